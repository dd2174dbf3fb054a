"""Parts that users write: none gets an epsilon below the truth, and those that are right get theirs."""

import contextlib
import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import own_parts as own
import pytest
from helpers import ragged_data, refusal, states_of, thinned
from own_parts import CLIENT, CLIP, COMMON, OUTPUT, RECORD, steps, without
from test_stranger_families import FULL, last_idle
from wrong_programs import reading_correction

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, WithoutReplacement
from fedjax_dp.accounting.gaussian import gaussian_epsilon
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.inspection import flow
from fedjax_dp.inspection.sampling_law import examine_sampling
from fedjax_dp.inspection.trials import draw_cohorts
from fedjax_dp.parts import facts
from fedjax_dp.parts.aggregation import equally
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.simulation import run_key

DATA = ragged_data([8, 8, 8, 10, 12, 9])
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)


def epsilon(algorithm, data=DATA, rounds=5, **options):
    given = {"model": fdp.logistic_regression(data.record_shape, data.classes), "accountant": "rdp", **options}
    return fdp.guarantee(algorithm, data, rounds=rounds, delta=1e-5, **given).epsilon


def refused(algorithm, data=DATA, **options):
    """The one line by which a Guarantee is refused."""
    return refusal(lambda: epsilon(algorithm, data, **options))


# What was found by attack; each accepted before.


def test_an_own_bound_of_whole_batches_is_refused_where_their_size_is_random():
    bound = own.lying(fdp.parts.ClipBatch())
    poisson = steps(own.with_privatizer(RECORD, bound=bound), batches=fdp.parts.PoissonBatches(size=2))
    assert "ClipRecords for batches of random size" in refused(poisson)


def test_an_estimator_without_a_sensitivity_is_not_said_to_have_a_reach():
    for members, reach in (({}, True), ({"sensitivity": lambda self, shares, rates, members: None}, False)):
        words = facts.trusted_parts(replace(RECORD, aggregate=own.lying(own.Average(), **members)))
        assert any("its reach" in line for line in words) == reach
        assert any("(estimator)" in line for line in words)


def test_a_sensitivity_that_fails_is_left_to_the_examination():
    def fails(self, shares, rates, members):
        raise ZeroDivisionError

    words = facts.trusted_parts(replace(RECORD, aggregate=own.lying(own.Average(), sensitivity=fails)))
    assert any("its reach" in line for line in words)


@pytest.mark.slow
@pytest.mark.parametrize("private", [{}, {"noise": "shared", "secure": True, "fractional_bits": 6}])
def test_a_ring_of_masks_that_colluders_cut_is_not_taken_for_a_sum(private):
    """X5: k colluders can stand on both sides of one client, whose upload is then seen."""
    data = ragged_data([8] * 12)
    options = {**COMMON, "cohort_size": 10, "local_steps": 1, "neighbours": 2, "secure": True}
    entry = fdp.dp_fedavg if private else fdp.cpfed
    algorithm = entry.of({**options, **CLIP, **private})
    assert "no honest client of 10 is left alone" in refused(algorithm, data, view="secure_sum", colluders=5)
    assert epsilon(algorithm, data, view="secure_sum", colluders=1) < math.inf
    everyone = entry.of({**options, **CLIP, **private, "neighbours": None})
    assert epsilon(everyone, data, view="secure_sum", colluders=5) < math.inf


@pytest.mark.slow
def test_weights_have_the_reach_that_they_have():
    """X3: what one client of norm 1 moves the sum by, whatever function weighs."""
    shares = jnp.asarray(DATA.shares)
    for weigh, wanted in ((equally, 1.0), (fifty, 50.0)):
        aggregate = fdp.parts.Estimator(weigh=weigh)
        assert float(aggregate.sensitivity(shares, None, 3)) == pytest.approx(wanted)
        assert epsilon(replace(CLIENT, aggregate=aggregate)) == pytest.approx(epsilon(CLIENT))
    assert "what a client of norm 1 moves the mean by" in refused(
        replace(CLIENT, aggregate=fdp.parts.Estimator(weigh=heavier_in_company))
    )


def test_no_noise_of_others_hides_who_may_count_more_than_once():
    one_step = fdp.cpfed(**{**COMMON, "local_steps": 1, "cohort_size": 6}, **CLIP)
    views = [fdp.accounting.View.UPLOADS, fdp.accounting.View.SECURE_SUM]
    for once in (True, False):
        cohort = replace(one_step, cohort=own.lying(own.Shuffled(size=6), at_most_once=once))
        own_alone, with_others = (epsilon(cohort, view=view.value) for view in views)
        assert (with_others < own_alone) == once


def fifty(members, shares, rates):
    return 50.0 * members.participation_count


def heavier_in_company(members, shares, rates):
    return members.participation_count * jnp.where(members.participation_count.sum() < 5, 9.0, 1.0)


@pytest.mark.slow
def test_noise_joins_in_the_last_step_that_is_taken():
    """A2: no upload without noise."""
    idle = steps(OUTPUT, batches=own.lying(own.Picks(size=2), sample=last_idle))
    one, other = (states_of(idle, MODEL, DATA, 1, seed) for seed in (0, 1))
    for a, b in zip(jax.tree.leaves(one[1].params), jax.tree.leaves(other[1].params)):
        assert np.abs(a - b).min() > 0  # noise in every coordinate


@fdp.value
class TwoMore(fdp.parts.Correction):
    """Sends two more privatized gradients."""

    extra_gradients, pull = 2, 0.0

    def finish(self, update, client, total_rate, extra_gradient):
        return (extra_gradient(client.received.params), extra_gradient(client.received.params)), ()

    def absorb(self, server, total, num_clients):
        return jnp.stack(total)

    def init(self, run):
        return fdp.parts.LocalState(jnp.zeros((2, run.size)))


@pytest.mark.slow
def test_every_gradient_that_is_asked_for_is_new_and_counted():
    """A3."""
    asked = steps(FULL, corrections=(TwoMore(),))
    one, other = states_of(asked, MODEL, DATA, 1)[1].shared[0]
    assert np.abs(one - other).min() > 0  # another noise for each
    assert epsilon(asked) == pytest.approx(epsilon(steps(FULL, steps=4)))
    more = steps(FULL, corrections=(own.lying(TwoMore(), extra_gradients=1),))
    assert "calls of extra_gradient" in refused(more)


def test_an_upload_without_noise_is_not_believed():
    """A4."""
    silent = own.lying(own.Clips(**CLIP), release=lambda self, key, t, mean, extra, state, *rest: (mean, state))
    assert "standard deviation of the noise" in refused(replace(CLIENT, upload=silent))
    unknown = replace(CLIENT, upload=without(own.Clips(**CLIP), "noise_multiplier"))
    promise = fdp.guarantee(unknown, DATA, rounds=5, delta=1e-5, model=MODEL)
    assert promise.epsilon == math.inf
    assert "no noise_multiplier" in promise.reason


def test_records_that_reach_a_message_are_found():
    """X2: past the privatizer."""
    found = refused(reading_correction(RECORD))
    assert "past what is accounted for" in found
    assert "wrong_programs.py" in found  # where


@pytest.mark.parametrize(
    "entry", thinned(sorted(CATALOGUE), ["cpfed", "dp_ftrl", "dp_scaffold", "dpnfl", "fedavg"], 16)
)
def test_the_catalogue_lets_out_what_it_says(entry):
    """The trace that strangers' parts are put through finds nothing in ours but what `no_epsilon_reason` says."""
    private = CATALOGUE[entry].private
    options = {**COMMON, **(CLIP if private else {}), **({"local_steps": 1} if entry == "dp_sgd" else {})}
    algorithm = CATALOGUE[entry].of(options)
    model = fdp.mlp((3,), 3, (4,))
    leaks = algorithm.aggregate.needs_loss or any(c.no_epsilon_reason for c in algorithm.local.corrections)
    if leaks:
        assert "past what is accounted for" in refusal(flow.check, algorithm, DATA, model)
    else:
        flow.check(algorithm, DATA, model)


@fdp.value
class Strata(fdp.parts.Cohort):
    """`each` clients of every stratum, uniformly; strata are of `sizes`, in the order of ids."""

    sizes: tuple[int, ...] = fdp.structure()
    each: int = fdp.structure()
    no_epsilon_reason, fixed, at_most_once = None, True, True

    def capacity(self, num_clients):
        return self.each * len(self.sizes)

    def sample(self, keys, round_index, shares):
        order = jnp.lexsort((jax.random.uniform(keys.round, shares.shape), jnp.asarray(self._of_clients())))
        firsts = np.cumsum((0, *self.sizes[:-1]))
        ids = order[(firsts[:, None] + np.arange(self.each)).ravel()].astype(jnp.int32)
        return Members.of(ids)

    def rates(self, shares):
        return (self.each / np.asarray(self.sizes))[self._of_clients()] + 0.0 * shares

    def inclusion_probability(self, shares):
        return self.rates(shares), 1

    def _of_clients(self):
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


@fdp.value
@restates(Strata)
class StrataTold(Strata):
    """As if one draw were made from all clients."""

    def amplification(self, num_clients, known):
        return WithoutReplacement(self.capacity(num_clients), num_clients - known), Adjacency.REPLACE_ONE


@pytest.mark.slow
def test_cohorts_by_strata_are_counted_client_by_client():
    data, uneven = ragged_data([4] * 30), Strata(sizes=(6, 9, 15), each=2)
    model = fdp.logistic_regression(data.record_shape, data.classes)
    spent = fdp.guarantee(replace(CLIENT, cohort=uneven), data, rounds=10, delta=1e-3, model=model).epsilons
    times = np.bincount(draw_cohorts(uneven, run_key(0), np.arange(10), data.shares).ids.ravel(), minlength=30)
    assert spent == pytest.approx([gaussian_epsilon(1e-3, 1.0, count) for count in times.tolist()], rel=1e-3)
    assert "how often each is drawn" in refused(replace(CLIENT, cohort=StrataTold(**vars(uneven))), data)
    even = StrataTold(sizes=(10, 10, 10), each=2)  # whose clients are drawn equally often, though not equally together
    assert "measured some groups more often than others" in refused(replace(CLIENT, cohort=even), data)


@pytest.mark.parametrize("members", [100, 1000])
def test_members_that_are_drawn_with_one_other_are_not_drawn_apart(members):
    """Such as a record and its mirrored copy, beside it or after all the others: no member is drawn too often."""
    rng, half = np.random.default_rng(0), members // 2
    pairs = np.argsort(rng.random((400, half)))[:, :5, None]
    drawn = {
        "beside": np.concatenate([2 * pairs, 2 * pairs + 1], 2),
        "behind": np.concatenate([pairs, pairs + half], 2),
        "honest": np.argsort(rng.random((400, members))),
    }
    for name, ids in drawn.items():
        counts = np.zeros((400, members), int)
        np.put_along_axis(counts, ids.reshape(400, -1)[:, :10], 1, axis=1)
        with contextlib.nullcontext() if name == "honest" else pytest.raises(AssertionError, match="each pair"):
            examine_sampling("cohorts", counts.reshape(40, 10, members), WithoutReplacement(10, members))


def up(at):
    return 1.0 + 9.0 * (at > 2)


@fdp.value
class Repels(fdp.parts.Correction):
    """Drives models apart, and says nothing of it."""

    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return gradient - 5.0 * (params - client.received.params)


@fdp.value
class Doubles(fdp.parts.Correction):
    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return 2.0 * gradient


@fdp.value
class Unsaid(fdp.parts.Correction):
    def gradient(self, gradient, params, step, client, records):
        return gradient


@pytest.mark.slow
def test_steps_under_a_noised_upload_are_contractions():
    """X8: at every rate of the schedule, and with every correction."""
    options = {**COMMON, **CLIP, "learning_rate": 0.5}
    calm = fdp.dp_fedavg_output(**options, l2=0.5)
    assert epsilon(calm) < math.inf
    steep = steps(calm, schedule=up, learning_rate=0.5)
    assert "steps are no contraction" in refused(steep)
    for correction, why in ((Repels(), "apart"), (Doubles(), "apart"), (Unsaid(), "pull")):
        assert why in refused(steps(calm, corrections=(correction,)))


@pytest.mark.xfail(strict=True, reason="jaxlib takes two registered dataclasses for one")
def test_jax_tells_registered_dataclasses_apart():
    """When this passes, `value` may register dataclasses as everybody does."""

    def made():
        kind = dataclasses.make_dataclass("Part", [("x", float)], frozen=True)
        return jax.tree_util.register_dataclass(kind, ["x"], [])

    assert jax.tree.structure(made()(x=1.0)) != jax.tree.structure(made()(x=1.0))


def test_probabilities_need_a_word_about_their_origin():
    chances = np.full(6, 1 / 6)
    with pytest.raises(errors.ConfigurationError, match="what the sampling probabilities reveal"):
        fdp.calibrate(
            fdp.acs_pldp(**COMMON, clip_norm=1.0, sampling="optimal", probabilities=chances),
            DATA,
            rounds=3,
            epsilon=2.0,
            delta=1e-3,
        )
    public = replace(
        RECORD,
        cohort=fdp.parts.MultinomialCohort(draws=3, probabilities=chances, public=True),
        aggregate=fdp.parts.ESTIMATORS["wor_delta"],
    )
    promise = fdp.guarantee(public, DATA, rounds=3, delta=1e-5, accountant="rdp")
    assert promise.epsilon < math.inf
    assert any("are trusted to depend on public numbers alone" in line for line in promise.assumptions)


def test_accuracy_on_records_that_clients_hold_out_is_mentioned():
    held = dataclasses.replace(DATA, test_clients=np.zeros(len(DATA.y_test), np.int32))
    told = fdp.guarantee(RECORD, held, rounds=2, delta=1e-5).warnings
    assert any("records that clients hold out" in line for line in told)
    assert json.dumps(list(told))
