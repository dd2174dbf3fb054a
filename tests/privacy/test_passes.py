"""What cohorts that are drawn by passes of rounds or with rests, and records that pick their batch, are counted as."""

import functools

import jax
import numpy as np
import pytest
from helpers import ragged_data
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp import accounting, errors, inspection, parts
from fedjax_dp.accounting import Adjacency, BallsInBins, FullBatch, GaussianSteps, NotCoveredError, RandomAllocation
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.guarantees import verified_guarantee
from fedjax_dp.privacy.planned_run import participations
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import replace

DATA = ragged_data([8, 8, 8, 10, 12, 9])
COMMON = {"batch_size": 2, "local_steps": 2, "learning_rate": 0.3, "clip_norm": 0.7, "noise_multiplier": 2.0}
ADDED = Adjacency.ADD_REMOVE
PASSES = {"cohort_size": None, "pass_rounds": 4}
COHORTS = {  # options, rounds, sampling, neighbours, sums of whole passes
    "allocation": ({**PASSES, "chosen": 2}, 9, RandomAllocation(2, 4), ADDED, 12),
    "bins": (PASSES, 9, BallsInBins(4), ADDED, 12),
    "cyclic-poisson": ({"cohort_size": 1, "pass_rounds": 4}, 9, accounting.Poisson(2 / 3), ADDED, 3),
    "truncated": (
        {"cohort_size": 2, "cohort_most": 3},
        9,
        accounting.TruncatedPoisson(1 / 3, 3, 6),
        Adjacency.ZERO_OUT,
        9,
    ),
}


def planned(algorithm, rounds=9, **terms):
    return fdp.privacy.plan_run(algorithm, DATA, rounds=rounds, seed=3, terms=PrivacyTerms(delta=1e-3, **terms))


def of_clients(cohort, **options):
    return fdp.dp_fedavg.of({**COMMON, **COHORTS[cohort][0], "cohort": cohort, **options})


@pytest.mark.parametrize("name", COHORTS)
def test_a_run_is_so_many_passes_of_which_a_partial_one_is_whole(name):
    _, rounds, sampling, adjacency, sums = COHORTS[name]
    run = planned(of_clients(name), rounds, view="final_model")
    event = GaussianSteps(2.0, sampling, adjacency, sums, accounting.Unit.CLIENT)
    assert client_events(run) == [event] * 6
    assert verified_guarantee(run).epsilon == accounting.epsilon_of(event, 1e-3, "pld")


def sampling_of(algorithm):
    run = planned(algorithm, participation="worst")
    kinds = {step.sampling for event in client_events(run) for step, _ in event.leaves()}
    assert len(kinds) == 1
    return kinds.pop()


def test_a_draw_that_is_seen_or_not_known_hides_nobody():
    assert sampling_of(of_clients("truncated")) == FullBatch()  # a member of the cohort tells of the others
    assert "members of a cohort" in " ".join(
        verified_guarantee(planned(of_clients("truncated"), participation="worst")).assumptions
    )
    changing = of_clients("allocation", noise_schedule="linear", noise_end=0.5, noise_rounds=9)
    assert sampling_of(changing) == FullBatch()
    whole = planned(changing, participation="worst")
    by_round = Spending(whole, verified_guarantee(whole))
    assert by_round.at_any_time(1) >= by_round.price(1).epsilon  # of one noise, yet counted as in the whole run
    keeping = fdp.mr_mtl.of({**COMMON, **PASSES, "cohort": "allocation", "noise_on": "clients"})
    assert sampling_of(keeping) == FullBatch()
    assert verified_guarantee(planned(of_clients("allocation"), view="uploads")).reason


APART = {**COMMON, "cohort": "separated", "cohort_size": 1, "separation": 3}


def test_rests_bound_the_rounds_of_a_client_where_noise_is_correlated():
    ftrl = functools.partial(fdp.dp_ftrl, **COMMON, bands=3, estimator="wor_delta")
    cyclic = ftrl(cohort="cyclic", cohort_size=2)  # of 6: every third round
    apart = ftrl(cohort=parts.SeparatedCohort(size=1, separation=3))
    events = [client_events(planned(of, participation="worst")) for of in (apart, cyclic)]
    assert events[0] == events[1]  # three rounds of nine, three apart
    with pytest.raises(errors.ConfigurationError, match="separation must be given"):
        fdp.dp_fedavg.of({**APART, "separation": None})
    with pytest.raises(errors.ConfigurationError, match="separation must be at most 6 clients / cohort_size 1"):
        planned(fdp.dp_fedavg.of({**APART, "separation": 7}))


@pytest.mark.slow
def test_rests_amplify_nothing():
    run = planned(fdp.dp_fedavg.of(APART))
    times = participations(run.algorithm, DATA, 9, 3)
    assert [event.releases for event in client_events(run)] == times.tolist()
    assert max(times) <= 3
    assert {step.sampling for event in client_events(run) for step, _ in event.leaves()} == {FullBatch()}


def test_rounds_of_a_pass_do_not_add_up_one_by_one():
    spending = Spending(run := planned(of_clients("bins")), verified_guarantee(run))
    assert spending.one_round is None
    assert [spending.epsilon(rounds) == spending.epsilon(rounds + 1) for rounds in (1, 3, 4, 5)] == [1, 1, 0, 1]


def of_records(**options):
    return fdp.dpnfl.of({**COMMON, "batch_size": 3, "cohort_size": None, **options})


def test_allocated_records_are_counted_by_passes_and_kept_slots_as_one():
    for batches, law, releases in (("allocated", lambda of: RandomAllocation(1, of), 10), ("bins", BallsInBins, 1)):
        run = planned(of_records(batches=batches), 5)
        for records, event in zip(DATA.sizes, client_events(run), strict=True):
            of = -(-int(records) // 3)
            assert event == GaussianSteps(2.0, law(of), ADDED, 5 * 2 * of)
            assert event.releases == releases


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({"noise_schedule": "linear", "noise_end": 0.5, "noise_rounds": 9}, {}),
        ({"cohort": "poisson", "cohort_size": 3}, {"participation": "law"}),
    ],
)
def test_what_splits_kept_slots_has_no_epsilon(options, terms):
    with pytest.raises(NotCoveredError, match="drawn in each pass"):
        verified_guarantee(planned(of_records(batches="bins", **options), **terms))


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "each"), [pytest.param("bins", 1, marks=pytest.mark.exhaustive), ("allocated", 3)])
def test_a_client_draws_kept_slots_by_one_key_in_all_rounds(batches, each):
    keys = set()

    def sample(part, key, records, *shape):
        jax.debug.callback(lambda n, words: keys.add((int(n), *words.tolist())), records, jax.random.key_data(key))
        return parts.AllocatedBatches.sample(part, key, records, *shape)

    algorithm = of_records(batches=batches)
    rule = lying(algorithm.local.batches, sample=sample)
    clients = ragged_data([8, 9, 10, 11, 12, 13])  # of which the sizes tell
    fdp.simulate(replace(algorithm, local=replace(algorithm.local, batches=rule)), clients, rounds=3)
    jax.effects_barrier()
    assert len({key[1:] for key in keys}) == len(keys) == 6 * each


REFUSED = [
    ({"cohort": "bins", "cohort_size": None}, "pass_rounds must be given"),
    ({"cohort": "truncated", "cohort_size": 3}, "cohort_most must be given"),
    ({"cohort": "allocation", **PASSES, "chosen": 5}, "chosen must be an integer from 1 to 4, got 5"),
    ({"cohort": "uniform", "cohort_size": 3, "pass_rounds": 4}, "pass_rounds"),
]


@pytest.mark.parametrize(("options", "line"), REFUSED)
def test_options_that_do_not_fit_are_refused_in_one_line(options, line):
    with pytest.raises(errors.ConfigurationError, match=line):
        planned(fdp.dp_fedavg.of({**COMMON, **options}))


def drawn_by_round(self, keys, round_index, shares):
    return type(self).__mro__[1].sample(self, keys._replace(run=keys.round), round_index, shares)


@pytest.mark.parametrize(
    ("kind", "members", "line"),
    [
        (parts.AllocatedCohort, {"sample": drawn_by_round}, "draws of a pass with a member"),
        (parts.BinnedCohort, {"sample": drawn_by_round}, "cohorts: "),
        (parts.BinnedCohort, {"rounds_per_pass": lambda self, num_clients: 1}, "as by a draw"),
        (parts.AllocatedCohort, {"inclusion_probability": lambda self, shares: (0.25, 1)}, "drawn by passes"),
    ],
)
@pytest.mark.slow
def test_a_cohort_that_is_not_drawn_as_it_states_is_found_out(kind, members, line):
    algorithm = replace(of_clients("bins"), cohort=lying(kind(pass_rounds=4), **members))
    place = inspection.Place(algorithm, DATA, fdp.logistic_regression((3,), 3), 12)
    with pytest.raises(AssertionError, match=line):
        inspection.examine_part("cohort", algorithm.cohort, place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [of_clients("allocation"), pytest.param(fdp.dp_fedavg.of(APART), marks=pytest.mark.exhaustive)],
    ids=["allocation", "apart"],
)
def test_a_run_goes_on_and_a_row_of_a_sweep_is_its_run_bit_for_bit(algorithm):
    whole = fdp.simulate(algorithm, DATA, rounds=6)
    on = fdp.simulate(algorithm, DATA, rounds=6, start=fdp.simulate(algorithm, DATA, rounds=3).state)
    assert all(map(np.array_equal, jax.tree.leaves(whole.params), jax.tree.leaves(on.params)))
    axes = {"clip_norm": [0.7, 1.4]}
    rows = fdp.sweep(algorithm, DATA, rounds=6, delta=1e-3, axes=axes, progress=False).records
    assert rows[0]["history"][-1]["test_loss"] == whole.history[-1].test_loss != rows[1]["history"][-1]["test_loss"]
