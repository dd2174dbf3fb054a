"""Runs of which each client counts while its own updates cost less than the budget."""

import jax
import numpy as np
import pytest
from helpers import ragged_data
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp import parts
from fedjax_dp.accounting import FullBatch, epsilon_of
from fedjax_dp.cli import main
from fedjax_dp.parts.individual_filter import ADJACENCY
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.guarantees import prepared
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.testing import check_sensitivity

DATA = ragged_data([20, 20, 7, 40, 40, 20])
ROUNDS = 12


def algorithm_of(make=fdp.dp_fedavg, **changes):
    common = {"cohort_size": 3, "batch_size": 5, "local_steps": 2, "learning_rate": 0.3}
    noise = {"clip_norm": 0.6, "noise_multiplier": 2.0} if make.private else {}
    return make.of(common | noise | changes)


def planned(algorithm=None, rounds=ROUNDS, **terms):
    counted = PrivacyTerms(**{"delta": 1e-3, "budget": 3.0, "individual": True, **terms})
    return fdp.privacy.plan_run(algorithm or algorithm_of(), DATA, rounds=rounds, terms=counted)


def simulated(run, rounds=ROUNDS, **options):
    return fdp.simulate(run.algorithm, DATA, rounds=rounds, evaluate_every=4, **options)


@pytest.fixture(scope="module")
def filtered():
    """A run whose budget some clients use up, what it promises, and how it went."""
    run, promise = prepared(planned())
    return run, promise, simulated(run)


def equal(one, other):
    return all(map(np.array_equal, *map(jax.tree.leaves, (one, other))))


def test_the_claim_is_the_budget_or_less_and_the_run_takes_all_its_rounds(filtered):
    run, promise, found = filtered
    assert run.rounds == ROUNDS
    assert promise.epsilon == pytest.approx(3.0, rel=1e-8)
    assert promise.adjacency is ADJACENCY
    often = np.asarray(run.schedule)
    for event, rounds, epsilon in zip(client_events(run), often, promise.epsilons):
        assert epsilon == epsilon_of(event, 1e-3) <= 3.0
        assert (epsilon == promise.epsilon) == (rounds > 2.0**2 * run.algorithm.upload.budget_mu**2)
    assert any("zeros in the place of what a client contributes" in line for line in promise.assumptions)
    assert not any("above the budget" in line for line in promise.warnings)
    left = np.isinf(found.state.uploads.squared_mu)
    assert 0 < left.sum() < len(left)


def test_a_guarantee_without_a_run_is_that_of_the_run(filtered):
    run, promise, _ = filtered
    options = {"rounds": ROUNDS, "delta": 1e-3, "budget": 3.0, "individual": True}
    for algorithm in (algorithm_of(), run.algorithm):
        counted = fdp.guarantee(algorithm, DATA, **options)
        assert (counted.epsilons, counted.adjacency) == (promise.epsilons, ADJACENCY)


def test_the_ledger_has_the_lesser_of_both_by_round(filtered):
    run, promise, _ = filtered
    spending = Spending(run, promise)
    planned_to = [spending.epsilon(rounds) for rounds in range(1, ROUNDS + 1)]
    assert planned_to == sorted(planned_to)
    assert planned_to[-1] == promise.epsilon
    assert spending.at_any_time(ROUNDS) is None  # the budget of a filter holds at any time
    events = [client_events(run.prefix(rounds)) for rounds in (1, ROUNDS)]
    assert {event.noise_multiplier for event in events[0]} == {2.0}
    assert 1 / run.algorithm.upload.budget_mu in {event.noise_multiplier for event in events[1]}


def test_sampling_hides_nobody():
    """Who takes part is taken as seen, whatever the cohort, though nobody sees it without a filter."""
    run, promise = prepared(planned(budget=500.0))
    unfiltered = prepared(planned(budget=None, individual=False))[1]
    assert promise.epsilon > unfiltered.epsilon
    steps = [step for event in client_events(run) for step, _ in event.leaves()]
    assert {type(step.sampling) for step in steps} == {FullBatch}


@pytest.mark.parametrize("accountant", ["gaussian", "rdp", "zcdp"])
def test_the_budget_is_kept_by_every_accountant(accountant):
    promise = prepared(planned(accountant=accountant))[1]
    assert promise.epsilon == pytest.approx(3.0, rel=1e-3)
    assert promise.epsilon <= 3.0


def test_a_budget_that_nobody_uses_up_leaves_the_run_bit_for_bit(filtered):
    _, _, found = filtered
    before = simulation.advance._cache_size()
    loose = simulated(prepared(planned(budget=500.0))[0])
    assert simulation.advance._cache_size() == before  # another budget is another number of the same program
    usual = fdp.simulate(algorithm_of(), DATA, rounds=ROUNDS, evaluate_every=4)
    assert equal(loose.params, usual.params)
    assert not equal(loose.params, found.params)
    assert np.isfinite(loose.state.uploads.squared_mu).all()


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(filtered, tmp_path):
    run, _, found = filtered
    half = simulated(run, rounds=6).state
    store = Checkpoints(tmp_path)
    store.save(half)
    held = store.restore(simulation.fresh(run.algorithm, DATA, run.model, 0))
    store.close()
    assert equal(simulated(run, start=held).state, found.state)
    forgotten = half._replace(uploads=simulation.fresh(run.algorithm, DATA, run.model, 0).uploads)
    assert not equal(simulated(run, start=forgotten).params, found.params)  # the wrong program


@pytest.mark.slow
def test_rows_on_the_host_are_those_on_devices(filtered):
    run, _, found = filtered
    host = simulated(run, on_host=True).state
    assert equal(host.params, found.params)
    np.testing.assert_array_equal(np.asarray(host.uploads.squared_mu), found.state.uploads.squared_mu)


@pytest.mark.slow
def test_a_row_of_a_sweep_is_the_run_by_itself(filtered):
    _, promise, found = filtered
    axes = {"noise_multiplier": [2.0, 4.0]}
    options = {"delta": 1e-3, "budget": 3.0, "individual": True, "evaluate_every": 4, "progress": False}
    swept = fdp.sweep(algorithm_of(), DATA, rounds=ROUNDS, axes=axes, seeds=1, **options)
    history = [record["history"] for record in swept.records]
    np.testing.assert_allclose(history[0][-1]["test_loss"], found.history[-1].test_loss, rtol=1e-6)
    assert swept.records[0]["guarantee"]["epsilon"] == promise.epsilon


def test_what_is_measured_tells_nothing_of_who_counts(filtered):
    _, promise, found = filtered
    for seen in found.history:
        assert seen.clipped is None
        assert seen.noise_to_signal is None
    used = np.asarray(found.state.uploads.squared_mu)
    shown = " ".join(map(repr, (found, found.state, promise, found.history)))
    assert not any(f"{number:.4g}" in shown for number in used[np.isfinite(used)])


@pytest.mark.parametrize(
    ("changes", "terms", "words"),
    [
        ({}, {"budget": None}, "budget must be given"),
        ({}, {"budget": [3.0] * 6}, "individual must be beside one budget, got a budget for each client"),
        ({}, {"epsilon": 4.0}, "left out where epsilon finds the noise"),
        ({}, {"participation": "once"}, "participation once"),
        ({}, {"view": "uploads"}, "left out where epsilon is infinite.*before the server adds noise"),
        ({}, {"deployment_cohort": 30, "deployment_population": 60}, "stands for a deployment"),
        ({"noise_multiplier": 0.0}, {}, "noise_multiplier must be positive"),
        ({"make": fdp.fedavg}, {}, "for an algorithm without privacy"),
        ({"make": fdp.dpnfl}, {}, "individual must be left out but for white noise .* got noise on records"),
        ({"adaptive_clip": True, "bit_noise": 3.0}, {}, "got AdaptiveClientGaussian"),
        ({"cohort": "uniform", "noise": "shared", "secure": True, "fractional_bits": 6}, {}, "got ClientSkellam"),
        ({"make": fdp.dp_ftrl}, {}, "white noise of one size"),
        ({"noise_schedule": "linear", "noise_end": 2.0, "noise_rounds": 9}, {}, "white noise of one size"),
        ({"clip_schedule": "linear", "clip_end": 0.5, "clip_rounds": 9}, {}, "white noise of one size"),
        ({"secure": True, "cohort": "uniform"}, {}, "transport must be a plain sum under a filter for each client"),
    ],
)  # fmt: skip
def test_what_has_no_filter_is_refused_in_one_line(changes, terms, words):
    with pytest.raises(fdp.ConfigurationError, match=words) as error:
        prepared(planned(algorithm_of(**changes), **terms))
    assert "\n" not in str(error.value)


def test_parts_of_ones_own_that_see_who_counts_are_refused():
    run = prepared(planned())[0]
    for slot, part, words in (
        ("aggregate", lying(parts.BoundedMean(), needs_loss=True), "estimator must be one whose weights and divisor"),
        ("cohort", lying(parts.AllClients(), prior_event=client_events(run)[0]), "drawn without what clients sent"),
        ("cohort", lying(parts.AllClients(), at_most_once=False), "draws a client at most once"),
    ):
        with pytest.raises(fdp.ConfigurationError, match=words):
            simulation.check(changed(run.algorithm, **{slot: part}), DATA, ROUNDS)


def test_noise_is_neither_found_for_a_filter_nor_chosen_beside_one(filtered):
    run, _, _ = filtered
    with pytest.raises(fdp.ConfigurationError, match="epsilon must be left out beside a filter for each client"):
        fdp.calibrate(run.algorithm, DATA, rounds=ROUNDS, epsilon=2.0, delta=1e-3)
    options = {"budget": 3.0, "delta": 1e-3, "individual": True, "accountant": "rdp"}
    with pytest.raises(fdp.ConfigurationError, match="adapt must be left out beside individual filters"):
        fdp.run(algorithm_of(), DATA, rounds=2, adapt=lambda seen: 2.0, **options)


def test_a_filter_of_ones_own_is_not_believed(filtered):
    run, _, _ = filtered
    upload = lying(run.algorithm.upload, counted=lambda self, update, row: (update, row))
    with pytest.raises(fdp.ConfigurationError, match="understood of the project's alone"):
        fdp.guarantee(changed(run.algorithm, upload=upload), DATA, rounds=ROUNDS, delta=1e-3, model=run.model)


def test_neither_audits_nor_the_checks_of_sensitivity_take_a_filter(filtered):
    run, _, _ = filtered
    with pytest.raises(fdp.ConfigurationError, match="individual must be left out of an audit"):
        fdp.audit(run.algorithm, DATA, rounds=ROUNDS, delta=1e-3, trials=200)
    with pytest.raises(fdp.ConfigurationError, match="does not filter by client"):
        check_sensitivity(run.algorithm, DATA)


@pytest.mark.slow
def test_two_phases_are_within_the_budget_together_and_folders_tell_nothing_of_who_counts(tmp_path, capsys):
    options = {"rounds": ROUNDS, "delta": 1e-3, "individual": True, "evaluate_every": 4, "checkpoint_every": 4}
    first = fdp.run(algorithm_of(), DATA, budget=3.0, out=tmp_path / "first", **options)
    model = fdp.models.freeze(fdp.logistic_regression((3,), 3), start=fdp.open_run(tmp_path / "first"))
    with pytest.raises(fdp.ConfigurationError, match="spent before"):
        fdp.run(algorithm_of(), DATA, budget=2.0, model=model, out=tmp_path / "third", **options)
    second = fdp.run(algorithm_of(), DATA, budget=5.0, model=model, out=tmp_path / "second", **options)
    assert first.guarantee.epsilon == pytest.approx(3.0, rel=1e-8)
    assert 3.0 < second.guarantee.epsilon <= 5.0
    for folder, result in ((tmp_path / "first", first), (tmp_path / "second", second)):
        assert main(["account", "--ledger", str(folder)]) in (0, None)
        assert "equal to what the run promised" in capsys.readouterr().out
        used = np.asarray(result.simulation.state.uploads.squared_mu)
        shown = "".join(file.read_text() for file in folder.iterdir() if file.suffix in (".csv", ".json", ".jsonl"))
        assert not any(f"{number:.5g}" in shown for number in used[np.isfinite(used)])
        assert "squared_mu" not in shown
