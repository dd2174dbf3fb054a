"""An epsilon is of the training alone: what that begins with is known, or the Guarantee says first that it is not."""

import itertools
import json
import os
import pathlib
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import usual

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Composed, Guarantee, StatedPrivacy, composed_phases, epsilons_of
from fedjax_dp.accounting.composed_phases import same_clients, worst_of
from fedjax_dp.algorithms import optimal_probabilities
from fedjax_dp.display import upward
from fedjax_dp.experiments import parameters, phases
from fedjax_dp.experiments.round_ledger import read_ledger
from fedjax_dp.models import freeze, logistic_regression, read_start
from fedjax_dp.models.origins import phases_of
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.guarantees import prepare, verified_guarantee
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.tools import cli
from fedjax_dp.tools.audits.setup import AttackOptions, set_up
from fedjax_dp.tools.audits.verdict import judge

DIGITS = fdp.load("digits")
OTHERS = np.random.default_rng(0).integers(0, 17, (700, 8, 8)).astype(np.uint8)
NETWORK = logistic_regression((8, 8), 10)
PUBLIC = {"start_private": False}
LOCAL = {"cohort_size": None, "batch_size": 10, "local_steps": 2, "learning_rate": 0.3}


DIVIDED = np.array_split(np.arange(len(DIGITS.x_train)), 10)


def federated(x, y, name="own"):
    test = DIGITS.x_test.astype(x.dtype)
    dataset = fdp.dataset(x, y, test, DIGITS.y_test, classes=10, name=name)
    return fdp.federate(dataset, np.array_split(np.arange(len(x)), 10))


DATA = federated(DIGITS.x_train, DIGITS.y_train, "first")
OTHER = federated(OTHERS, np.arange(700) % 10, "other")


def stored(data, folder):
    fdp.data.save_store(data, folder)
    return fdp.data.open_store(folder)


def private():
    return fdp.dpnfl(clip_norm=1.0, noise_multiplier=4.0, **LOCAL)


def promise(start, data=DATA, rounds=2, **said):
    model = freeze(NETWORK, start=start, **said)
    return fdp.guarantee(private(), data, rounds=rounds, delta=1e-3, model=model)


PLAIN = fdp.guarantee(private(), DATA, rounds=2, delta=1e-3)


def events(rounds=2, algorithm=None, data=DATA):
    """Of every client, of rounds that begin at random."""
    return client_events(plan_run(algorithm or private(), data, rounds=rounds, terms=PrivacyTerms(delta=1e-3)))


def together(*phases):
    """The epsilons of clients with all of these events."""
    return epsilons_of([Composed(each) for each in zip(*phases, strict=True)], 1e-3)


def bare(run, path):
    """An export whose ledger has no checksum and no names, as trackers get it."""
    start = run.as_start()
    parameters.write(path, start.values, phases.without_digests(start.origin.ledger), {})
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs on DATA, without privacy and with, and what they write, by name."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, algorithm in (("open", fdp.fedavg(**LOCAL)), ("private", private())):
        result = fdp.run(algorithm, DATA, rounds=1, out=folder / name, delta=1e-3, model=NETWORK)
        run = fdp.open_run(folder / name)
        files = {kind: run.export(folder / f"{name}.{kind}") for kind in ("npz", "safetensors")}
        checkpoint = folder / name / "checkpoints" / "1" / "state"
        copy = shutil.copytree(checkpoint, folder / f"{name}-copy")
        doors = {"result": result, "opened": run, "folder": folder / name, "checkpoint": checkpoint, "copy": copy}
        found |= {f"{name} {door}": start for door, start in (doors | files).items()}
        found[f"{name} bare"] = bare(run, folder / f"{name}-bare.npz")
    model = freeze(NETWORK, start=found["private folder"])
    fdp.run(private(), DATA, rounds=2, out=folder / "second", delta=1e-3, model=model)
    return found | {"second": folder / "second"}


DOORS = ("result", "opened", "folder", "checkpoint", "copy")
EXPORTS = ("npz", "safetensors", "bare")


@pytest.mark.slow
@pytest.mark.parametrize("door", usual(DOORS, ("result", "copy")))
def test_through_no_door_a_model_of_these_records_is_a_public_start(made, door):
    """Without privacy there is none; with some, epsilon is of both phases. No word to the contrary is heard."""
    both = together(events(1), events(2))
    assert max(both) > PLAIN.epsilon
    for said in ({}, PUBLIC, {"start_data": "drawings"}):
        found = promise(made[f"open {door}"], **said)
        assert np.isinf(found.epsilon)
        assert "had no privacy" in str(found)
        assert "\n" not in str(found)
        found = promise(made[f"private {door}"], **said)
        np.testing.assert_allclose(found.epsilons, both, rtol=1e-9)
        assert "of 2 phases together: algorithm on first, 1 round" in str(found)
        assert found.phases[0].epsilon == made["private result"].guarantee.epsilon
        assert found.alone == PLAIN.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_has_no_checksum_of_records_and_costs_what_its_worst_client_paid(made, kind):
    """Whoever has all other records could test the last one by it: no epsilon of the model would hold."""
    file = made[f"private {kind}"]
    assert DATA.checksum.encode() in (made["private folder"] / "ledger.jsonl").read_bytes()
    assert DATA.checksum not in read_start(file).origin.ledger
    if file.suffix == ".safetensors":
        assert DATA.checksum.encode() not in file.read_bytes()
    found = promise(file)
    np.testing.assert_allclose(found.epsilons, together([worst_of(events(1))] * 10, events(2)), rtol=1e-9)
    assert np.isinf(promise(made[f"open {kind}"]).epsilon)
    assert str(promise(file, **PUBLIC)).startswith("of the training alone")


@pytest.mark.slow
def test_noise_is_found_for_what_the_first_phase_leaves(made):
    model = freeze(NETWORK, start=made["private folder"])
    words = {"rounds": 2, "delta": 1e-3, "model": model}
    first = made["private result"].guarantee.epsilon
    noised = fdp.calibrate(private(), DATA, epsilon=first * 1.05, **words)
    assert first * 1.04 < fdp.guarantee(noised, DATA, **words).epsilon <= first * 1.05
    with pytest.raises(
        errors.ConfigurationError, match=f"above {upward(first)}, which algorithm on first, 1 round cost"
    ):
        fdp.calibrate(private(), DATA, epsilon=first * 0.9, **words)
    run = plan_run(private(), DATA, rounds=2, terms=PrivacyTerms(delta=1e-3, stop_at_epsilon=first * 0.9), model=model)
    with pytest.raises(errors.ConfigurationError, match="which the first round costs"):
        prepare(run)


@pytest.mark.slow
def test_where_epsilon_and_delta_alone_are_known_they_compose(made):
    params, known = made["private result"].params, {"start_epsilon": 0.5, "start_delta": 1e-4}
    found = promise(params, **known)
    pair = [StatedPrivacy(0.5, 1e-4, Adjacency.REPLACE_ONE)] * 10
    np.testing.assert_allclose(found.epsilons, together(pair, events(2)), rtol=1e-9)
    assert found.caveat is None
    assert PLAIN.epsilon < found.epsilon < PLAIN.epsilon + 0.5
    assert "delta must be above theirs" in str(promise(params, start_epsilon=0.5, start_delta=1e-3))
    for said, words in (
        ({"start_epsilon": 0.5}, "given beside start_epsilon"),
        ({"start_epsilon": -1, "start_delta": 0}, "start_epsilon must be positive"),
        ({"start_epsilon": 1, "start_delta": 1}, "start_delta must be at least 0 and below 1"),
        (known | PUBLIC, "left out of a public start"),
    ):
        with pytest.raises(errors.ConfigurationError, match=words):
            promise(params, **said)
    with pytest.raises(errors.ConfigurationError, match="the ledger of the start says more"):
        promise(made["private npz"], **known)


@pytest.mark.slow
def test_phases_of_another_unit_are_two_guarantees(made):
    model = freeze(NETWORK, start=made["private folder"])
    central = fdp.dp_fedavg(clip_norm=1.0, noise_multiplier=1.0, **LOCAL)
    with pytest.raises(errors.ConfigurationError, match=r"0\.1277 is for one record .* two guarantees") as caught:
        fdp.guarantee(central, DATA, rounds=2, delta=1e-3, model=model)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_second_phase_keeps_the_ledger_of_the_first_and_has_one_epsilon_of_both(made, capsys):
    text, before = (made["second"] / "ledger.jsonl").read_text(), read_start(made["private folder"]).origin.ledger
    assert text.startswith(before)
    run = fdp.open_run(made["second"], model=freeze(NETWORK, start=made["private folder"]))
    assert run.as_start().origin.ledger.startswith(before)
    assert Guarantee.from_full_dict(run.guarantee.to_full_dict()) == run.guarantee
    ledger = read_ledger(made["second"])
    np.testing.assert_allclose(ledger.epsilons(), run.guarantee.epsilons, rtol=1e-9)
    assert [line["epsilon_planned"] for line in ledger.lines][-1] == run.guarantee.epsilon
    assert cli.main(["account", "--ledger", str(made["second"]), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["notes"] == ["equal to what the run promised"]
    assert (content["phases"][0]["epsilon"], content["alone"]) == pytest.approx(
        (run.guarantee.phases[0].epsilon, PLAIN.epsilon)
    )
    third = promise(run, rounds=1)
    np.testing.assert_allclose(third.epsilons, together(events(1), events(2), events(1)), rtol=1e-9)


@pytest.mark.slow
def test_several_ledgers_are_no_ledger(made, capsys):
    for words in (f"{made['private folder']},{made['second']}", "nowhere", str(made["private npz"])):
        assert cli.main(["account", "--ledger", words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "ledger.jsonl of one run" in line or "the ledger of a run" in line


def numbers(key):
    """Of the network, as if another run had made them."""
    return jax.tree.map(lambda value: jnp.full_like(value, key), NETWORK.init(jax.random.key(0)))


def begun(path, data, algorithm=None, start=None, key=0, **facts):
    """A file of parameters of a private run on these data that nobody had to train."""
    model = start if hasattr(start, "origins") else NETWORK if start is None else freeze(NETWORK, start=start)
    run = plan_run(algorithm or private(), data, rounds=2, terms=PrivacyTerms(delta=1e-3), model=model)
    ledger = phases.ledger_of("dpnfl", run, verified_guarantee(run), data.checksum, **facts)
    params = numbers(key)
    parameters.write(path, params, phases.ledger_of_parameters(ledger, parameters.by_name(params), 2), {})
    return path


@pytest.mark.slow
def test_a_second_phase_draws_noise_of_its_own_under_the_same_seed(made):
    """Else what both add would cancel where their releases are compared."""

    def planned(start, seed=0):
        model = NETWORK if start is None else freeze(NETWORK, start=start)
        return plan_run(private(), DATA, rounds=2, terms=PrivacyTerms(delta=1e-3), model=model, seed=seed)

    first, second = planned(None), planned(made["private npz"])
    assert (first.draw_seed, second.seed) == (0, 0)
    others = planned(made["second"]), planned(made["private npz"], 1)
    assert len({run.draw_seed for run in (first, second, *others)}) == 4
    assert planned(made["private folder"]).draw_seed == planned(made["private folder"]).draw_seed != 0


def test_a_phase_after_any_start_draws_noise_of_its_own_counted_or_not():
    """Whoever knows the first release, which may be public, would subtract it from the second."""
    noised = fdp.dp_fedavg(clip_norm=1.0, noise_multiplier=1e3, **LOCAL | {"cohort_size": 10})
    first = fdp.run(noised, DATA, rounds=1, delta=1e-3, model=NETWORK)
    flat = np.concatenate([np.ravel(one) for one in jax.tree.leaves(first.params)])
    for start, said in ((first, PUBLIC), (first.params, {}), (first.params, PUBLIC)):
        model = freeze(NETWORK, start=start, **said)
        second = fdp.run(noised, OTHER, rounds=1, delta=1e-3, model=model)
        step = np.concatenate([np.ravel(one) for one in jax.tree.leaves(second.params)]) - flat
        assert abs(np.corrcoef(flat, step)[0, 1]) < 0.2  # 5 deviations of independent noise; of the same it is 1


def test_what_clients_release_before_the_first_round_has_noise_of_its_own_too():
    words = {"epsilons": 8.0, "delta": 1e-3, "rounds": 2, "draws": 2, "batch_size": 10, "local_steps": 1}
    words |= {"learning_rate": 1e-6, "norm_noise": 1e3, "data": DATA}
    models = (NETWORK, freeze(NETWORK, start=numbers(0), **PUBLIC), freeze(NETWORK, start=numbers(1), **PUBLIC))
    norms = [optimal_probabilities(model=model, **words).norms for model in models]
    assert all(np.max(np.abs(one - other)) > 10 for one, other in itertools.combinations(norms, 2))  # of norms below 1


def test_a_run_does_not_go_on_with_another_start_of_the_same_shape(tmp_path):
    models = [freeze(NETWORK, start=numbers(at), **PUBLIC) for at in (0, 1)]
    fdp.run(private(), DATA, rounds=1, delta=1e-3, model=models[0], out=tmp_path / "x")
    with pytest.raises(errors.ConfigurationError, match="model of the run must be unchanged"):
        fdp.resume(tmp_path / "x", private(), DATA, model=models[1], rounds=2)


def test_a_stop_by_a_test_set_that_the_first_phase_may_have_trained_on_has_no_epsilon(tmp_path):
    start = begun(tmp_path / "a.npz", DATA)
    moved = federated(DIGITS.x_train[100:], DIGITS.y_train[100:], "first")  # the others may be in the test set
    for data, closed in ((DATA, False), (stored(DATA, tmp_path / "store"), False), (moved, True)):
        model = freeze(NETWORK, start=start)
        found = fdp.guarantee(private(), data, rounds=2, delta=1e-3, model=model, stop="accuracy=0.9")
        assert np.isinf(found.epsilon) is np.bool_(closed)
        assert ("an earlier phase may have trained on" in str(found)) is closed


def test_one_client_is_not_one_client_of_the_same_data_divided_anew(tmp_path):
    """A client of the second phase may have records of all clients of the first: ten times its worst client's cost."""
    noised = fdp.dp_fedavg(clip_norm=1.0, noise_multiplier=4.0, **LOCAL | {"cohort_size": 10})
    start = begun(tmp_path / "a.npz", DATA, noised)
    words = "was at most one client of the earlier phases"
    fewer = federated(DIGITS.x_train[100:], DIGITS.y_train[100:], "first")  # as the same clients may have next month
    anew = federated(DIGITS.x_train[::-1], DIGITS.y_train[::-1], "first")
    for data, known in ((DATA, True), (stored(DATA, tmp_path / "store"), True), (anew, False)):
        found = fdp.guarantee(noised, data, rounds=1, delta=1e-3, model=freeze(NETWORK, start=start))
        assert np.isfinite(found.epsilon) == known
        assert ("one client here is several there" in str(found)) is not known
        assert not any(words in line for line in found.assumptions)
    for data in (OTHER, fewer):
        model = freeze(NETWORK, start=start, start_private=True)
        found = fdp.guarantee(noised, data, rounds=1, delta=1e-3, model=model)
        assert np.isfinite(found.epsilon)
        assert any(words in line for line in found.assumptions)
        assert any("were fixed before anybody saw results of the earlier ones" in line for line in found.assumptions)


def test_two_private_starts_have_no_epsilon_as_their_noise_may_cancel(tmp_path):
    """With one seed it does: 4 b - a, of clip norms 1 and 1/4, has none of it. Runs that cost the same are two."""
    a = begun(tmp_path / "a.npz", DATA)
    others = {
        "clip norm": fdp.dpnfl(clip_norm=0.25, noise_multiplier=4.0, **LOCAL),
        "rate": fdp.dpnfl(clip_norm=1.0, noise_multiplier=4.0, **(LOCAL | {"learning_rate": 0.1})),
    }
    for name, algorithm in others.items():
        b = begun(tmp_path / f"{name}.npz", DATA, algorithm, key=1)
        both = freeze(freeze(NETWORK, start=a, trainable="**kernel"), start=b)
        found = fdp.guarantee(private(), DATA, rounds=1, delta=1e-3, model=both)
        assert np.isinf(found.epsilon)
        assert "two private runs that did not follow each other" in found.reason
        assert "\n" not in str(found)
    stated = freeze(freeze(NETWORK, start=a, trainable="**kernel"), start=numbers(1), start_epsilon=1, start_delta=0)
    assert np.isinf(fdp.guarantee(private(), DATA, rounds=1, delta=1e-3, model=stated).epsilon)


@pytest.mark.slow
def test_a_start_and_what_began_with_it_are_one_row_of_phases(made):
    first = freeze(NETWORK, "**kernel", start=made["private folder"])
    again = freeze(first, start=made["second"])
    assert len(again.origins) == 2
    found = fdp.guarantee(private(), DATA, rounds=1, delta=1e-3, model=again)
    np.testing.assert_allclose(found.epsilons, together(events(1), events(2), events(1)), rtol=1e-9)


def test_runs_of_one_start_that_come_back_in_one_ledger_have_no_epsilon(tmp_path):
    """Both draw by their seed and the same start; that a run without privacy merged them hides neither."""
    a = begun(tmp_path / "a.npz", DATA)
    b, c = (begun(tmp_path / f"{key}.npz", DATA, start=a, key=key) for key in (1, 2))
    both = freeze(freeze(NETWORK, start=b, trainable="**kernel"), start=c)
    merged = begun(tmp_path / "d.npz", OTHER, fdp.fedavg(**LOCAL), start=both, key=3)
    assert len(read_start(merged).origin.phases) == 5
    found = promise(merged, start_private=False)
    assert "two private runs that did not follow each other" in found.reason


def named(*clients, name="named"):
    """Clients by these names, of about 100 records each."""
    dataset = fdp.dataset(DIGITS.x_train, DIGITS.y_train, DIGITS.x_test, DIGITS.y_test, classes=10, name=name)
    return fdp.federate(dataset, {f"client {one}": np.arange(100 * at, 100 * at + 90 + one) for at, one in clients})


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (named((4, 1), (6, 2), (3, 3)), True),  # other records at the clients of these names
        (named((1, 1), (3, 3), (2, 2)), False),
        (federated(*(array[:290] for array in (DIGITS.x_train, DIGITS.y_train)), "no names"), False),
    ],
    ids=["names", "another order", "no names"],
)
def test_clients_of_the_same_names_pay_for_themselves_and_all_others_for_the_dearest(tmp_path, now, same):
    before = named((1, 1), (2, 2), (3, 3))
    start = begun(tmp_path / "a.npz", before)
    model = freeze(NETWORK, start=start)
    found = fdp.guarantee(private(), now, rounds=1, delta=1e-3, model=model)
    first, second = events(2, data=before), events(1, data=now)
    assert len(set(first)) == 3
    paid = first if same else [worst_of(first)] * now.num_clients
    np.testing.assert_allclose(found.epsilons, together(paid, second), rtol=1e-9)
    assert ("by their names" if same else "counts as the worst") in found.phases[0].members
    run = plan_run(private(), now, rounds=1, terms=PrivacyTerms(delta=1e-3), model=model)
    earlier, own = phases_of(phases.ledger_of("dpnfl", run, found, now.checksum), "ledger")
    assert (same_clients(earlier, own) is not None) is same  # whoever reads the ledger composes as the run did
    assert own["continues"] == [1]


SILENT = types.SimpleNamespace(  # an attack that proves nothing
    contradicts=lambda curve: False,
    epsilon_at_least=lambda *given: 0.0,
    epsilon_of_any=lambda delta: 0.0,
    noise_at_most=lambda *given: np.inf,
    evidence="100 runs",
)


def verdict_of(setup, claim):
    return judge(setup, SILENT, "pld", AttackOptions(claim=claim), seed=0, seconds=0.0, repeat="").verdict


@pytest.mark.slow
def test_an_audit_of_a_second_phase_tests_what_it_attacks(tmp_path):
    """The wrong program holds the attack on the second phase against the epsilon of both, which it cannot reach."""
    few = fdp.dpnfl(clip_norm=1.0, noise_multiplier=4.0, **LOCAL | {"cohort_size": 4})
    model, words = freeze(NETWORK, start=begun(tmp_path / "a.npz", DATA, few)), {"rounds": 2, "delta": 1e-3}
    run = plan_run(few, DATA, rounds=2, terms=PrivacyTerms(delta=1e-3), model=model)
    _, setup = set_up(run, AttackOptions(parameters=10))
    _, of_own_model = set_up(run, AttackOptions(canary="blank"))
    assert of_own_model.guarantee.epsilons == setup.guarantee.epsilons
    alone = fdp.guarantee(few, DATA, seed=run.draw_seed, **words)
    assert setup.guarantee.epsilons == alone.epsilons != fdp.guarantee(few, DATA, **words).epsilons
    assert setup.epsilon == verified_guarantee(run).alone < verified_guarantee(run).epsilon
    assert setup.guarantee.view is run.view
    assert "the model of dpnfl on first, 2 rounds, whose own releases are not attacked" in setup.guarantee.caveat
    verdict = verdict_of(setup, None)
    assert f"epsilon {upward(setup.epsilon)} is stated of the training alone at delta 0.001" in verdict
    assert "epsilon 3 is claimed at delta" in verdict_of(setup, 3.0)


def test_the_stronger_view_of_both_counts(tmp_path):
    secure = fdp.dpnfl(clip_norm=1.0, noise_multiplier=4.0, **LOCAL, secure=True)
    for first, second, view in (
        (private(), secure, "uploads"),
        (secure, private(), "uploads"),
        (secure, secure, "secure_sum"),
    ):
        start = begun(tmp_path / "a.npz", DATA, first)
        model = freeze(NETWORK, start=start)
        found = fdp.guarantee(second, DATA, rounds=1, delta=1e-3, model=model)
        assert found.view.value == view
        assert ("against a server that sees only the sum" in str(found).partition("phases")[2]) is (
            first is secure and second is not secure
        )
        start.unlink()


def test_a_phase_is_not_counted_against_fewer_colluders_than_the_run_that_goes_on(tmp_path):
    secure = fdp.dpnfl(clip_norm=1.0, noise_multiplier=4.0, **LOCAL | {"local_steps": 1}, secure=True, estimator="mean")
    words = {"rounds": 1, "delta": 1e-3, "colluders": 5}
    for first, closed in ((secure, True), (private(), False)):
        start = begun(tmp_path / f"{closed}.npz", DATA, first)
        found = fdp.guarantee(secure, DATA, model=freeze(NETWORK, start=start), view="secure_sum", **words)
        assert (found.reason or "").endswith("is counted with 0 colluders: count both with the same number") is closed


def test_a_start_that_was_chosen_in_a_sweep_has_no_price(tmp_path):
    start = begun(tmp_path / "a.npz", DATA, in_sweep=True)
    assert "the choice among the others" in str(promise(start))
    denied = promise(start, OTHER, **PUBLIC)
    assert denied.epsilon == fdp.guarantee(private(), OTHER, rounds=2, delta=1e-3).epsilon


def test_values_put_in_the_place_of_others_are_of_unknown_origin():
    fresh = freeze(NETWORK, "**kernel")
    values = {name: jnp.ones_like(value) for name, value in fresh.frozen.values.items()}
    other = fresh.with_device_records(fresh.frozen._replace(values=values))
    before, after = (fdp.guarantee(private(), DATA, rounds=2, delta=1e-3, model=model) for model in (fresh, other))
    assert before.caveat is None
    assert "unknown origin" in after.caveat


ORDER = np.random.default_rng(1).permutation(len(DIGITS.x_train))
SAME = {
    "shuffled": (DIGITS.x_train[ORDER], DIGITS.y_train[ORDER]),
    "scaled": (DIGITS.x_train * 0.3 - 2.0, DIGITS.y_train),
    "one among others": (np.concatenate([OTHERS, DIGITS.x_train[:1]]), np.arange(701) % 10),
    "others, as far as anybody knows": (OTHERS, np.arange(700) % 10),
}


@pytest.mark.parametrize("change", SAME)
def test_a_start_counts_in_whatever_form_its_records_come_back(tmp_path, change):
    """By a name that a user gives, none is known to be other records."""
    data = federated(*SAME[change], "another")
    assert np.isinf(promise(begun(tmp_path / "open.npz", DATA, fdp.fedavg(**LOCAL)), data).epsilon)
    found = promise(begun(tmp_path / "private.npz", DATA), data)
    assert "of 2 phases together" in str(found)
    assert found.epsilon > 1.04 * found.alone
    assert any("may be these clients' in another form" in line for line in found.assumptions)
    assert any("counts as the worst" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("one", "other", "counts"),
    [("digits", "mnist", False), ("mnist", "femnist_digits", True), ("digits", "digits", True), ("mnist", "x", True)],
)
def test_a_start_on_a_shipped_data_set_without_a_common_record_is_public(tmp_path, one, other, counts):
    before, now = (fdp.federate(DIGITS._replace(name=name), DIVIDED) for name in (one, other))
    found = promise(begun(tmp_path / "a.npz", before), now)
    alone = fdp.guarantee(private(), now, rounds=2, delta=1e-3)
    assert (found.epsilon > alone.epsilon) == counts
    if not counts:
        assert str(found) == str(alone)
        (line,) = (line for line in found.assumptions if line.startswith("training begins with"))
        assert f"a run on {one}" in line
        assert "treated as public" in line


def test_a_name_of_ones_own_makes_no_shipped_data_set(tmp_path):
    """Two such names would make the same records others."""
    before, now = (federated(DIGITS.x_train, DIGITS.y_train, name) for name in ("school", "adult"))
    assert (before.name, now.name) == ("own:school", "own:adult")
    assert "of 2 phases together" in str(promise(begun(tmp_path / "a.npz", before), now))


@pytest.mark.parametrize(
    ("words", "name", "same"),
    [
        ("CIFAR-10", "cifar10_pca60", True),
        ("MNIST", "emnist_letters", True),
        ("all of EMNIST", "mnist", True),
        ("Fashion MNIST", "fashion_mnist", True),
        ("Sentiment140", "sent140", True),
        ("Adult", "adult_full", True),
        ("my-data", "my_data", True),
        ("mnist_train", "mnist", True),
        ("csv:e1.csv", "csv:e1", True),
        ("e1v2", "csv:e1", True),
        ("\uff2d\uff2eI\u200bST60k", "mnist", True),
        ("fashion-mnist", "mnist", False),
        ("emnist_letters, fashion_mnist", "fashion_mnist", True),
        ("CIFAR-100", "cifar10", False),
        ("ImageNet", "mnist", False),
    ],
)
def test_words_name_the_clients_records_however_they_are_written(words, name, same):
    data = fdp.federate(DIGITS._replace(name=name), DIVIDED)
    assert np.isinf(promise(numbers(1), data, start_data=words).epsilon) == same


@pytest.mark.slow
def test_arrays_beside_the_checkpoints_of_a_run_may_be_of_several(made):
    """As a mean of two: the ledger of the run that they lie in is not theirs."""
    import orbax.checkpoint as orbax

    for inside in ("averaged", "checkpoints/1/averaged"):
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(made["private folder"] / inside, made["open result"].params)
        assert "unknown origin" in promise(made["private folder"] / inside).reason


@pytest.mark.slow
def test_other_records_of_the_same_name_need_a_word_which_the_first_line_tells(made):
    data = federated(OTHERS, np.arange(700) % 10, "first")
    assert "as these clients' data are called" in str(promise(made["open npz"], data))
    found = promise(made["open npz"], data, **PUBLIC)
    assert str(found).startswith("of the training alone, which begins with open.npz")
    assert "declared public by its user" in found.caveat
    assert np.isfinite(found.epsilon)


@pytest.mark.slow
def test_a_start_without_a_checksum_is_closed_until_somebody_denies_it(made):
    assert np.isinf(promise(made["open bare"]).epsilon)
    assert "declared public by its user" in str(promise(made["open bare"], **PUBLIC))
    (phase,) = read_start(made["open bare"]).origin.phases
    assert phase["records"]["checksum"] is None
    assert promise(made["private bare"], OTHER).phases  # nobody knows that the records are others


@pytest.mark.slow
def test_arrays_without_an_origin_are_named_before_the_epsilon(made):
    params = made["open result"].params
    for start in (params, {name: np.asarray(value) for name, value in params["Dense_0"].items()}):
        tree = start if "Dense_0" in start else {"Dense_0": start}
        found = promise(tree)
        assert found.epsilon == PLAIN.epsilon
        assert str(found).startswith("of the training alone, which begins with parameters of unknown origin")
        assert any("start_data" in line for line in found.warnings)
    named = promise(params, start_data="drawings of others")
    assert str(named) == str(PLAIN)
    assert any("drawings of others" in line and "declared public" in line for line in named.assumptions)
    assert str(promise(params, **PUBLIC)) == str(PLAIN)
    for said in ({"start_private": True}, {"start_data": "first"}, {"start_data": "the First half"}):
        assert np.isinf(promise(params, **said).epsilon)


@pytest.mark.slow
def test_foreign_files_are_of_unknown_origin_in_every_format(made, tmp_path):
    import orbax.checkpoint as orbax
    from safetensors.numpy import save_file

    between, own = (fdp.federate(DIGITS._replace(name=name), DIVIDED) for name in ("svhn", "cifar10"))
    params = jax.tree.map(np.asarray, made["open result"].params)
    flat = parameters.by_name(params)
    np.savez(tmp_path / "w.npz", **flat)
    save_file(flat, tmp_path / "w.safetensors")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "w", params)
    for name in ("w.npz", "w.safetensors", "w"):
        closed = promise(tmp_path / name)
        assert np.isinf(closed.epsilon)
        assert f"unknown origin, {name} (sha256" in str(closed)
        through = fdp.run(fdp.fedavg(**LOCAL), between, rounds=1, model=freeze(NETWORK, start=tmp_path / name))
        said = fdp.run(private(), own, rounds=1, delta=1e-3, model=freeze(NETWORK, start=tmp_path / name, **PUBLIC))
        assert np.isfinite(promise(said, own).epsilon)  # of the same records it need not be said again
        closed = promise(through, own)  # a run between does not say what the file was
        assert np.isinf(closed.epsilon)
        assert "unknown origin" in str(closed)
        assert np.isfinite(promise(through, own, start_data="drawings").epsilon)
        assert str(promise(tmp_path / name, **PUBLIC)) == str(PLAIN)
        assert str(promise(tmp_path / name, start_data="drawings")) == str(PLAIN)


def test_an_epsilon_that_was_stated_for_another_run_has_no_unit_here(tmp_path):
    between, own = (fdp.federate(DIGITS._replace(name=name), DIVIDED) for name in ("svhn", "cifar10"))
    np.savez(tmp_path / "w.npz", **parameters.by_name(numbers(0)))
    start = read_start(tmp_path / "w.npz", stated=(1.0, 1e-6))
    assert np.isfinite(promise(start, own).epsilon)
    closed = promise(fdp.run(private(), between, rounds=1, delta=1e-3, model=freeze(NETWORK, start=start)), own)
    assert np.isinf(closed.epsilon)
    assert "for an unknown unit" in str(closed)


def test_a_random_start_needs_no_word():
    for model in (None, NETWORK, freeze(NETWORK, "lora", rank=1)):
        assert fdp.guarantee(private(), DATA, rounds=2, delta=1e-3, model=model).caveat is None


@pytest.mark.slow
def test_networks_that_come_with_their_numbers_are_of_unknown_origin():
    import equinox as eqx

    class Net(eqx.Module):
        layer: eqx.nn.Linear

        def __init__(self, key):
            self.layer = eqx.nn.Linear(64, 10, key=key)

        def __call__(self, x):
            return self.layer(x.ravel())

    stands, numbers = Net(jax.random.key(0)), {"w": jax.random.normal(jax.random.key(1), (64, 10))}

    def forward(params, x):
        return x.ravel() @ params["w"]

    for network, unknown in (
        (stands, True),
        (lambda key: Net(key), False),
        ((lambda key: numbers, forward), True),
        ((lambda key: {"w": jax.random.normal(key, (64, 10))}, forward), False),
        ((lambda key: {"w": jnp.zeros((64, 10))}, forward), False),
    ):
        model = fdp.model(network, DATA)
        for made in (model, freeze(model)):
            found = fdp.guarantee(private(), DATA, rounds=2, delta=1e-3, model=made)
            assert ("unknown origin" in str(found)) is unknown


@pytest.mark.slow
def test_frozen_values_keep_their_origin_when_the_model_is_frozen_anew():
    network = fdp.models.mlp((8, 8), 10, hidden=(4,))
    values = network.init(jax.random.key(1))
    again = freeze(freeze(network, "head", start=values), "Dense_1/bias")
    assert "unknown origin" in str(fdp.guarantee(private(), DATA, rounds=2, delta=1e-3, model=again))


def test_phases_before_the_last_count_too(tmp_path):
    """A round on other records between makes no public start of a model of these."""
    for name, algorithm, told in (
        ("open", fdp.fedavg(**LOCAL), "had no privacy"),
        ("private", private(), "of 3 phases together"),
    ):
        first = begun(tmp_path / f"{name}.npz", DATA, algorithm)
        between = begun(tmp_path / f"{name} between.npz", OTHER, start=first, key=1)
        assert told in str(promise(between))
        assert read_start(between).origin.ledger.startswith(read_start(first).origin.ledger)
    between = begun(tmp_path / "unknown.npz", OTHER, start=numbers(2), key=1)
    assert "unknown origin" in str(promise(between))


@pytest.mark.slow
def test_ledgers_are_the_same_bytes_in_every_format_and_written_anew(made, tmp_path):
    read = [read_start(made[f"private {kind}"]) for kind in ("npz", "safetensors")]
    assert read[0].origin.ledger == read[1].origin.ledger != ""
    for kind in ("npz", "safetensors"):
        parameters.write(tmp_path / f"again.{kind}", read[0].values, read[0].origin.ledger, {})
        assert read_start(tmp_path / f"again.{kind}").origin.ledger == read[0].origin.ledger


def test_a_ledger_says_whose_epsilon_it_has_and_is_short(tmp_path):
    ledger = read_start(begun(tmp_path / "a.npz", DATA)).origin.ledger
    (phase,) = phases_of(ledger, "x")
    said = {"epsilon": PLAIN.epsilon, "delta": 1e-3, "unit": "record", "adjacency": "replace-one", "view": "uploads"}
    assert (said | {"rounds": 2, "dataset": "first"}).items() <= phase.items()
    assert sum(count for _, count in phase["epsilons"]) == phase["clients"]["count"] == 10
    assert phase["records"]["count"] == len(DIGITS.x_train)
    assert len(ledger) < 60_000


@pytest.mark.exhaustive
def test_merged_exports_of_low_rank_terms_carry_the_ledger(tmp_path):
    network = fdp.models.mlp((8, 8), 10, hidden=(4,))
    model = freeze(network, "ffa-lora", rank=1)
    result = fdp.run(private(), DATA, rounds=1, delta=1e-3, model=model, out=tmp_path / "r")
    run = fdp.open_run(tmp_path / "r", model=model)
    merged, trained = (run.export(tmp_path / f"{merged}.npz", merged=merged) for merged in (True, False))
    (own,) = phases_of((tmp_path / "r" / "ledger.jsonl").read_text(), "r")
    for path in (merged, trained):
        phase = read_start(path).origin.phases[-1]
        assert own | phase == phase | {"run": own["run"]}  # the name is the folder's
    for start in (merged, result, run):
        whole = freeze(network, start=start)
        assert len(fdp.guarantee(private(), DATA, rounds=2, delta=1e-3, model=whole).phases) == 1


QUICK = ("--rounds", "1", "--noise-multiplier", "4", "--quiet")


@pytest.mark.slow
def test_the_command_line_closes_the_doors_too(capsys):
    """A run on digits as the start of another one, by flags and by TOML; the words of the options are heard."""
    assert cli.main(["run", *QUICK, "--out", "a"]) == 0
    assert cli.main(["export", "a", "a.npz"]) == 0
    bare(fdp.open_run("a"), pathlib.Path("bare.npz"))
    np.savez("w.npz", **{name: value for name, value in np.load("a.npz").items() if name != "__ledger__"})
    capsys.readouterr()
    assert cli.main(["run", *QUICK, "--start", "w.npz", "--start-data", "digits", "--out", "r"]) == 0
    assert "as these clients' data are called" in capsys.readouterr().out
    said = pathlib.Path("r/config.toml").read_text()
    assert 'start_data = "digits"' in said
    pathlib.Path("b.toml").write_text(said.replace("w.npz", "bare.npz"))
    assert cli.main(["run", "b.toml", "--out", "t"]) == 0
    assert "of 2 phases together: dpnfl on digits, 1 round" in capsys.readouterr().out


def test_hostile_files_end_the_command_in_one_line(capsys):
    np.savez("h.npz", w=np.ones(3), __ledger__=np.frombuffer(b'{"ledger": 9}', np.uint8))
    assert cli.main(["run", *QUICK, "--start", "h.npz"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "version 9" in line
    os.mkdir("r")
    pathlib.Path("r/run.json").write_text("{}")
    assert cli.main(["run", *QUICK, "--start", "r"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_words_about_a_start_need_a_start():
    for said in (PUBLIC, {"start_data": "drawings"}):
        with pytest.raises(errors.ConfigurationError, match="left out where training begins at random"):
            freeze(NETWORK, "all", **said)


@pytest.mark.exhaustive
def test_points_of_a_sweep_carry_a_ledger_without_a_checksum(tmp_path):
    network = {"data": DATA, "model": NETWORK, "rounds": 1, "delta": 1e-3}
    found = fdp.sweep(private(), axes={"local.learning_rate": [0.1, 0.3]}, out=tmp_path / "s", **network)
    file = next((tmp_path / "s" / "params").glob("*.safetensors"))
    assert found.records
    assert "one point of a sweep, whose cost includes the choice" in str(promise(file))


def test_events_of_ones_own_that_are_counted_by_name_alone_have_no_price(monkeypatch):
    """Their schedule is known to nobody who begins with the model, and the epsilon of one round is none of the run."""
    terms = PrivacyTerms(delta=1e-3, participation="once")
    planned = plan_run(private(), DATA, rounds=2, terms=terms)
    ledger = phases.ledger_of("dpnfl", planned, verified_guarantee(planned), None)
    assert json.loads(ledger.splitlines()[-1])["epsilon"] is not None
    released = {
        "events": [{"kind": "composed", "parts": [{"kind": "own", "name": "Mine"}]}],
        "clients": [[[[0, 9]], 0]],
    }
    monkeypatch.setattr(phases, "encode_releases", lambda events: released)
    facts = json.loads(phases.ledger_of("dpnfl", planned, verified_guarantee(planned), None).splitlines()[-1])
    assert facts["epsilon"] is None
    assert not composed_phases.is_private(facts)
    assert composed_phases.without_price(facts) == "whose epsilon is not fully known"
