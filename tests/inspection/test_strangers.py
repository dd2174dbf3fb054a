"""Parts that users write: none gets an epsilon below the truth, and those that are right get theirs."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, refusal, states_of, thinned

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Poisson, WithoutReplacement
from fedjax_dp.accounting.gaussian import gaussian_epsilon
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.inspection import flow
from fedjax_dp.inspection.trials import drawn_cohorts
from fedjax_dp.parts.aggregation import equally
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.facts import restates
from fedjax_dp.parts.noise import noise_event
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.simulation import run_key

COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.3}
CLIP = {"clip_norm": 0.7, "noise_multiplier": 2.0}
SIZES = [8, 8, 8, 10, 12, 9]
DATA = ragged_data(SIZES)


def dpnfl(**options):
    return fdp.dpnfl(**{**COMMON, **CLIP, "l2": 0.0, "schedule": "constant", **options})


def whole(**options):
    return fdp.dp_fedavg(**{**COMMON, **CLIP, "cohort": "uniform", **options})


def with_local(algorithm, **parts):
    return replace(algorithm, local=replace(algorithm.local, **parts))


def epsilon(algorithm, data=DATA, rounds=5, **options):
    given = {"model": fdp.logistic_regression(data.record_shape, data.classes), "accountant": "rdp", **options}
    return fdp.guarantee(algorithm, data, rounds=rounds, delta=1e-5, **given).epsilon


def refused(algorithm, data=DATA, **options):
    """The one line by which a Guarantee is refused."""
    return refusal(lambda: epsilon(algorithm, data, **options))


# What was found by attack; each accepted before.


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
        assert epsilon(replace(whole(), aggregate=aggregate)) == pytest.approx(epsilon(whole()))
    assert "what a client of norm 1 moves the mean by" in refused(
        replace(whole(), aggregate=fdp.parts.Estimator(weigh=heavier_in_company))
    )


def fifty(members, shares, rates):
    return 50.0 * members.participation_count


def heavier_in_company(members, shares, rates):
    return members.participation_count * jnp.where(members.participation_count.sum() < 5, 9.0, 1.0)


@fdp.value
class MeanClip:
    """The whole batch clipped, as `ClipBatch`; what it says is left to subclasses."""

    def apply(self, model, params, records, clip_norm):
        found = fdp.parts.ClipBatch().apply(model, params, records, clip_norm)
        return found._replace(noise_unit=self.unit(records, clip_norm))

    def unit(self, records, clip_norm):
        return jnp.asarray(clip_norm, jnp.float32)

    def check(self):
        pass


@fdp.value
class MeanClipTold(MeanClip):
    no_epsilon_reason, assumption, per_record = None, None, False


@fdp.value
class MeanClipLying(MeanClip):
    no_epsilon_reason, assumption, per_record = None, None, True

    def unit(self, records, clip_norm):
        return clip_norm / records.divisor


@pytest.mark.slow
def test_a_bound_says_whether_it_is_of_records_or_of_the_batch():
    """A1."""
    for batches in ("poisson", "without-replacement"):
        algorithm = dpnfl(batches=batches)

        def bounded(bound, algorithm=algorithm):
            return with_local(algorithm, privatizer=replace(algorithm.local.privatizer, bound=bound))

        assert "lacks no_epsilon_reason" in refused(bounded(MeanClip()))
        assert "moves the mean, in units" in refused(bounded(MeanClipLying()))
        if batches == "poisson":
            assert "ClipRecords for batches of random size" in refused(bounded(MeanClipTold()))
        else:
            assert epsilon(bounded(MeanClipTold())) == pytest.approx(epsilon(bounded(fdp.parts.ClipBatch())))


@fdp.value
@restates(fdp.parts.FixedBatches)
class LastIdle(fdp.parts.FixedBatches):
    """Batches of which the last step is not taken."""

    def sample(self, key, records, steps, largest, smallest):
        batch = fdp.parts.FixedBatches(size=self.size).sample(key, records, steps, largest, smallest)
        return batch._replace(step_mask=batch.step_mask.at[-1].set(0.0))


@pytest.mark.slow
def test_noise_joins_in_the_last_step_that_is_taken():
    """A2: no upload without noise, and batches that leave a step out are no even ones."""
    algorithm = fdp.dp_fedavg_output(**{**COMMON, **CLIP})
    idle = with_local(algorithm, batches=LastIdle(size=2))
    assert "all steps are taken" in refused(idle)
    one, other = (states_of(idle, fdp.logistic_regression((3,), 3), DATA, 1, seed) for seed in (0, 1))
    for a, b in zip(jax.tree.leaves(one[1].params), jax.tree.leaves(other[1].params)):
        assert np.abs(a - b).min() > 0  # noise in every coordinate


@fdp.value
class TwoMore(fdp.parts.Correction):
    """Sends two more privatized gradients."""

    told: int = fdp.structure(default=2)
    pull = 0.0

    @property
    def extra_gradients(self):
        return self.told

    def finish(self, update, client, total_rate, extra_gradient):
        return (extra_gradient(client.received.params), extra_gradient(client.received.params)), ()

    def absorb(self, server, total, num_clients):
        return jnp.stack(total)

    def init(self, run):
        return fdp.parts.LocalState(jnp.zeros((2, run.size)))


@fdp.value
class InALoop(TwoMore):
    """Asks for them in a loop, with the same batch and noise."""

    pull = 0.0

    def finish(self, update, client, total_rate, extra_gradient):
        return jax.lax.map(lambda scale: extra_gradient(scale * client.received.params), jnp.ones(2)), ()

    def absorb(self, server, total, num_clients):
        return total


@pytest.mark.slow
def test_every_gradient_that_is_asked_for_is_new_and_counted():
    """A3."""
    algorithm = dpnfl(cohort_size=None, batches="full", batch_size=None)
    asked = with_local(algorithm, corrections=(TwoMore(),))
    one, other = states_of(asked, fdp.logistic_regression((3,), 3), DATA, 1)[1].shared[0]
    assert np.abs(one - other).min() > 0  # another noise for each
    assert epsilon(asked) == pytest.approx(epsilon(replace(algorithm, local=replace(algorithm.local, steps=4))))
    assert "calls of extra_gradient" in refused(with_local(algorithm, corrections=(TwoMore(told=1),)))
    assert "calls of extra_gradient" in refused(with_local(algorithm, corrections=(TwoMore(told=0),)))
    assert "in a loop of their own" in refused(with_local(algorithm, corrections=(InALoop(),)))


@fdp.value
class Bare:
    """Says that it hides clients, and adds no noise."""

    clip_norm: float

    unit, is_amplified, extra, shared_noise, noise_ratio = fdp.accounting.Unit.CLIENT, True, 0, False, None

    def init(self):
        return ()

    def message(self, key, update, sizes, state, sent):
        norm = jnp.linalg.norm(update)
        return jnp.where(jnp.isfinite(norm), update * jnp.minimum(1.0, self.clip_norm / (norm + 1e-9)), 0.0), ()

    def release(self, key, round_index, mean, extra, state, reach, expected):
        return mean, state

    def scales_down(self, update, sizes, state, sent):
        return None

    def learnt_clip_norm(self, state):
        return None

    def noise_std(self, state, reach, round_index):
        return None

    def event(self, noise, attendance):
        return fdp.parts.client_privacy.noisy_sums(fdp.parts.WhiteNoise(), noise, attendance)

    def check(self, num_clients):
        pass


@fdp.value
@restates(Bare)
class Silent(Bare):
    noise_multiplier: float


def test_an_upload_without_noise_is_not_believed():
    """A4."""
    promise = fdp.guarantee(replace(whole(), upload=Bare(clip_norm=1.0)), DATA, rounds=5, delta=1e-5)
    assert promise.epsilon == math.inf
    assert "no noise_multiplier" in promise.reason
    assert "standard deviation of the noise" in refused(
        replace(whole(), upload=Silent(clip_norm=1.0, noise_multiplier=2.0))
    )


@fdp.value
class OwnGaussian:
    """Noise on clipped records, without a source: A5."""

    clip_norm: float
    noise_multiplier: float
    factor: float = 1.0

    no_epsilon_reason, assumptions, on_upload = None, (), False

    def gradient(self, key, step, model, params, records):
        found = fdp.parts.ClipRecords().apply(model, params, records, self.clip_norm)
        key = jax.random.fold_in(key, step.number)
        std = self.factor * self.noise_multiplier * self.clip_norm / records.divisor
        return found.mean + std * jax.random.normal(key, found.mean.shape), found.report

    def client_noise(self, num_clients):
        return [float(self.noise_multiplier)] * num_clients

    def noise_unit(self, divisor):
        return 1 / divisor

    def event(self, noise, batches, records, steps, rates):
        law = batches.sampling(records)
        adjacency = Adjacency.ADD_REMOVE if isinstance(law, Poisson) else Adjacency.REPLACE_ONE
        return noise_event(fdp.parts.WhiteNoise(), noise, law, adjacency, steps, steps)

    def check(self, num_clients):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["without-replacement", "poisson"])
def test_an_own_privatizer_is_priced_as_what_it_does(batches):
    algorithm = dpnfl(batches=batches)
    own = with_local(algorithm, privatizer=OwnGaussian(**CLIP))
    model = fdp.logistic_regression(DATA.record_shape, DATA.classes)
    promise = fdp.guarantee(own, DATA, rounds=5, delta=1e-5, accountant="rdp", model=model)
    assert promise.epsilon == pytest.approx(epsilon(algorithm))
    assert any(line.startswith("on the word of OwnGaussian (privatizer)") for line in promise.assumptions)
    assert "standard deviation of its noise" in refused(with_local(own, privatizer=OwnGaussian(**CLIP, factor=0.9)))


@fdp.value
class Peeks(fdp.parts.Correction):
    """Reads the records past the privatizer: X2."""

    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return gradient + 1e-3 * records.x.mean()


@fdp.value
class Sends(fdp.parts.Correction):
    """Sends a term beside the update, and does not say so: X6."""

    pull, has_client_state = 0.0, False

    def finish(self, update, client, total_rate, extra_gradient):
        return update, ()

    def absorb(self, server, total, num_clients):
        return total

    def init(self, run):
        return fdp.parts.LocalState(jnp.zeros(run.size))


def test_records_that_reach_a_message_are_found():
    told = refused(with_local(dpnfl(), corrections=(Peeks(),)))
    assert "past what is accounted for" in told
    assert "test_strangers.py" in told  # where
    assert epsilon(with_local(dpnfl(), corrections=(Sends(),))) == pytest.approx(epsilon(dpnfl()))
    assert "past what is accounted for" in refused(with_local(whole(), corrections=(Sends(),)))


@pytest.mark.parametrize("entry", thinned(sorted(CATALOGUE), ["cpfed", "dp_ftrl", "dp_scaffold", "dpnfl", "fedavg"], 3))
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
@restates(fdp.parts.AllClients)
class Uninvited(fdp.parts.AllClients):
    """Everybody comes, nobody is selected: X4."""

    def sample(self, keys, round_index, shares):
        members = fdp.parts.AllClients().sample(keys, round_index, shares)
        return members._replace(selected=jnp.zeros(members.ids.shape, bool))


class _Rigged(fdp.parts.UniformCohort):
    """Always the first clients."""

    def sample(self, keys, round_index, shares):
        ids = jnp.arange(self.size, dtype=jnp.int32)
        return Members.of(ids)


@fdp.value
class Rigged(_Rigged):
    pass


@fdp.value
@restates(fdp.parts.UniformCohort)
class RiggedTold(_Rigged):
    pass


@pytest.mark.slow
def test_cohorts_are_what_they_say():
    """X4, X7: a subclass inherits no law, and one that states it is compared with its draws."""
    algorithm = dpnfl(cohort_size=None)
    model = fdp.logistic_regression((3,), 3)
    start, end = states_of(replace(algorithm, cohort=Uninvited()), model, DATA, 1)
    for a, b in zip(jax.tree.leaves(start.params), jax.tree.leaves(end.params)):
        np.testing.assert_array_equal(a, b)  # nobody took part
    assert "answer in every round" in refused(replace(algorithm, cohort=Uninvited()))
    for made in (dpnfl(), whole()):
        assert "not believed of its subclasses" in refused(replace(made, cohort=Rigged(size=3)))
        assert "wanted its rates" in refused(replace(made, cohort=RiggedTold(size=3)))


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
    spent = fdp.guarantee(replace(whole(), cohort=uneven), data, rounds=10, delta=1e-3, model=model).epsilons
    times = np.bincount(drawn_cohorts(uneven, run_key(0), np.arange(10), data.shares).ids.ravel(), minlength=30)
    assert spent == pytest.approx([gaussian_epsilon(1e-3, 1.0, count) for count in times.tolist()], rel=1e-3)
    assert "how often each is drawn" in refused(replace(whole(), cohort=StrataTold(**vars(uneven))), data)
    even = StrataTold(sizes=(10, 10, 10), each=2)  # whose clients are drawn equally often, though not equally together
    assert "measured some groups more often than others" in refused(replace(whole(), cohort=even), data)


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
    steep = with_local(calm, schedule=up, learning_rate=0.5)
    assert "drive models apart" in refused(steep)
    for correction, why in ((Repels(), "apart"), (Doubles(), "apart"), (Unsaid(), "pull")):
        assert why in refused(with_local(calm, corrections=(correction,)))


@pytest.mark.xfail(strict=True, reason="jaxlib takes two registered dataclasses for one")
def test_jax_tells_registered_dataclasses_apart():
    """When this passes, `value` may register dataclasses as everybody does."""

    def made():
        kind = dataclasses.make_dataclass("Part", [("x", float)], frozen=True)
        return jax.tree_util.register_dataclass(kind, ["x"], [])

    assert jax.tree.structure(made()(x=1.0)) != jax.tree.structure(made()(x=1.0))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Registered:
    size: int = dataclasses.field(metadata={"static": True}, default=3)


def test_parts_are_made_by_value():
    for algorithm in (replace(dpnfl(), cohort=Registered()), replace(dpnfl(), cohort=_Rigged(size=3))):
        assert "decorated with fedjax_dp.value" in refused(algorithm)


def test_probabilities_need_a_word_about_their_origin():
    chances = np.full(6, 1 / 6)
    with pytest.raises(errors.ConfigurationError, match="what these tell of the records"):
        fdp.calibrate(
            fdp.acs_pldp(**COMMON, clip_norm=1.0, sampling="optimal", probabilities=chances),
            DATA,
            rounds=3,
            epsilon=2.0,
            delta=1e-3,
        )
    public = replace(
        dpnfl(),
        cohort=fdp.parts.MultinomialCohort(draws=3, probabilities=chances, public=True),
        aggregate=fdp.parts.ESTIMATORS["wor_delta"],
    )
    promise = fdp.guarantee(public, DATA, rounds=3, delta=1e-5, accountant="rdp")
    assert promise.epsilon < math.inf
    assert any("on the word of whoever gave them" in line for line in promise.assumptions)


def test_seeds_of_more_than_32_bits_are_refused():
    for seed in (2**32, -1, True, 0.5):
        with pytest.raises(errors.ConfigurationError, match="seed must be"):
            fdp.simulate(dpnfl(), DATA, rounds=1, seed=seed)


def test_accuracy_on_records_that_clients_hold_out_is_mentioned():
    held = dataclasses.replace(DATA, test_clients=np.zeros(len(DATA.y_test), np.int32))
    told = fdp.guarantee(dpnfl(), held, rounds=2, delta=1e-5).warnings
    assert any("records that clients hold out" in line for line in told)
    assert json.dumps(told)
