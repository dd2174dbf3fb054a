"""Clients smaller than a batch, and clients that take fewer steps than others: laws of a client's round."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import own_parts as own
import pytest
from helpers import ragged_data, refusal, usual

import fedjax_dp as fdp
from fedjax_dp import accounting, parts, prng
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.inspection.local_steps import _initial_context
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.rounds.state import initial_state
from fedjax_dp.tools.testing import check_algorithm

OPTIONS = {"cohort_size": 2, "batch_size": 4, "learning_rate": 0.3, "clip_norm": 0.7, "noise_multiplier": 2.0}
RULES = ("without-replacement", "with-replacement", "poisson", "full", "epochs")


def algorithm_of(batches, **options):
    steps = {"local_steps": 2, "batches": batches}
    whole = {"batch_size": None} if batches == "full" else {}
    return fdp.dpnfl.of(OPTIONS | steps | whole | options)


STORE = ragged_data([6, 19])
SOFTMAX = fdp.logistic_regression(STORE.record_shape, STORE.classes)


def of_client(algorithm, sizes, t=1, skips=False):
    """Update and what the first client keeps and shows, of a round in which two have so many of their records."""
    data = replace(STORE, sizes=np.array(sizes, np.int32), largest=max(sizes), smallest=min(sizes))
    held = jax.tree.map(jnp.asarray, data)
    client = _initial_context(algorithm.local, algorithm, data, SOFTMAX)(run_key(3), jnp.int32(t), jnp.int32(0), held)
    result = jax.jit(lambda: algorithm.local.run(client._replace(skips_steps=skips)))()
    return jax.tree.leaves((result.update, result.client_state, result.report))


def follows_others(algorithm, sizes=(6, 6), larger=(6, 19)):
    """Whether a client's round is another where another client is larger."""
    one, other = of_client(algorithm, sizes), of_client(algorithm, larger)
    return not all(np.allclose(a, b, rtol=2e-6, atol=1e-7) for a, b in zip(one, other, strict=True))


OF_STEPS = {
    "sgd": {},
    "momentum": {"local_rule": "momentum", "keep_rule": True},
    "schedule": {"schedule": "inverse_sqrt", "per_step": True},
}


# Draws alone, of every rule and by default: tests/parts/test_batches.py
@pytest.mark.slow
@pytest.mark.parametrize("records", usual([3, 6], [3]))
@pytest.mark.parametrize("steps", usual(OF_STEPS, ["momentum"]))
@pytest.mark.parametrize("batches", usual(RULES, ["epochs", "poisson"]))
def test_a_round_is_the_same_however_large_another_client(batches, steps, records):
    algorithm = algorithm_of(batches, **{"schedule": "constant"} | OF_STEPS[steps])
    assert not follows_others(algorithm, (records, records), (records, 19))


@fdp.value
class MovesWhenDead(parts.LocalSgd):
    """Momentum moves in steps that the client does not take."""

    def move(self, gradients, state, drawn, params, gradient, report):
        taken = drawn._replace(batch=drawn.batch._replace(step_mask=jnp.ones_like(drawn.batch.step_mask)))
        rule = super().move(gradients, state, taken, params, gradient, report).rule
        return super().move(gradients, state, drawn, params, gradient, report)._replace(rule=rule)


@fdp.value
class OneStream(parts.EpochBatches):
    """Pass p shuffles by numbers p * largest + i of one stream."""

    def sample(self, key, records, steps, largest, smallest):
        right = super().sample(key, records, steps, largest, smallest)
        passes = steps // self.count(1, largest)
        words = prng.bits(key, 0, passes * largest).reshape(passes, largest) >> 1
        order = jnp.argsort(jnp.where(jnp.arange(largest) < records, words, np.uint32(2**32 - 1)), axis=-1)
        rows = order[:, : steps // passes * right.mask.shape[1]].reshape(right.positions.shape).astype(jnp.int32)
        return right._replace(positions=jnp.where(right.mask, rows, 0))


@pytest.mark.slow
def test_a_step_that_is_not_taken_may_not_move_momentum():
    right = algorithm_of("epochs", local_rule="momentum", schedule="constant")
    fields = {field.name: getattr(right.local, field.name) for field in dataclasses.fields(right.local)}
    assert follows_others(replace(right, local=MovesWhenDead(**fields)))


def test_a_step_that_is_not_taken_may_be_skipped():
    right = algorithm_of("epochs", local_rule="momentum", keep_rule=True, schedule="constant")
    fields = {field.name: getattr(right.local, field.name) for field in dataclasses.fields(right.local)}
    for algorithm, alike in ((right, True), (replace(right, local=MovesWhenDead(**fields)), False)):
        computed, skipped = (of_client(algorithm, (6, 19), skips=skips) for skips in (False, True))
        assert alike == all(np.allclose(a, b, rtol=2e-6, atol=1e-7) for a, b in zip(computed, skipped, strict=True))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="an accelerator computes clients at once")
@pytest.mark.parametrize(("chunk", "sizes", "skips"), [(1, [6, 19], True), (1, [19, 19], False), (2, [6, 19], False)])
def test_clients_one_after_another_skip_steps(chunk, sizes, skips, monkeypatch):
    data, execution = ragged_data(sizes), Execution(chunk_size=chunk)
    algorithm = fdp.fedavg(cohort_size=2, batches="epochs", batch_size=4, local_steps=1, learning_rate=0.1)
    state = initial_state(algorithm, SOFTMAX, data, run_key(0))

    def branches():
        jaxpr = jax.make_jaxpr(lambda state: run_round(algorithm, SOFTMAX, data, run_key(0), state, execution))(state)
        return str(jaxpr).count("cond[")

    ours = branches()
    monkeypatch.setattr(Execution, "skips_steps", lambda *_: False)
    assert ours == branches() + skips


@pytest.mark.slow
def test_shuffles_may_not_depend_on_another_clients_size():
    right = algorithm_of("epochs", schedule="constant")
    assert follows_others(own.steps(right, batches=OneStream(size=4)))


# What the accountants may count: wrong batches, and noise on the mean.

DATA = ragged_data([3, 6, 9, 14])
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)


@fdp.value
class Another(parts.FixedBatches):
    """Batches by other rules, stated in full: what is wrong is put into one of the members."""

    even, rate = True, "size"
    count, sampling, divisor = (getattr(parts.PoissonBatches, name) for name in ("count", "sampling", "divisor"))
    sample = parts.PoissonBatches.sample


@fdp.value
class SecretDivisor(Another):
    """Divides by how many records there are in the batch, which add-remove neighbours are to be hidden in."""

    even = True
    count, sampling, divisor = Another.count, Another.sampling, Another.divisor

    def sample(self, key, records, steps, largest, smallest):
        batch = Another.sample(self, key, records, steps, largest, smallest)
        return batch._replace(divisor=jnp.maximum(batch.mask.sum(1), 1))


@fdp.value
class RateOfB(Another):
    """States the rate B / n_k, which is above 1 where clients are smaller than a batch."""

    even = True
    count, sample, divisor = Another.count, Another.sample, Another.divisor

    def sampling(self, records):
        return accounting.Poisson(self.size / records)


@fdp.value
class StatesMoreThanThereAre(parts.FixedBatches):
    """A client with fewer records than a batch is stated to be sampled."""

    even = True
    count, sample, divisor = (getattr(parts.FixedBatches, name) for name in ("count", "sample", "divisor"))

    def sampling(self, records):
        return accounting.WithoutReplacement(min(self.size, max(records - 1, 1)), records)


def with_batches(batches):
    return own.steps(algorithm_of("poisson"), batches=batches)


def test_batches_of_ones_own_may_be_ragged():
    assert fdp.guarantee(with_batches(Another(size=4)), DATA, rounds=3, delta=1e-3, model=MODEL).epsilon > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "words"),
    [(SecretDivisor, "divisor"), (RateOfB, "in [0, 1]"), (StatesMoreThanThereAre, "size of a batch")],
)
def test_ragged_batches_that_are_stated_wrongly_have_no_epsilon(wrong, words):
    assert words in refusal(fdp.guarantee, with_batches(wrong(size=4)), DATA, rounds=3, delta=1e-3, model=MODEL)


@fdp.value
class NoiseOnTheMean(parts.RecordGaussian):
    """Noise C z / B on the mean over any number of records: over r_k of them it is r_k / B of what it should be."""

    on_upload, bound_of_batch = False, 4

    def gradient(self, key, step, model, params, records):
        silent = parts.RecordGaussian(clip_norm=self.clip_norm, noise_multiplier=0.0)
        exact, _ = silent.gradient(key, step, model, params, records)
        std = self.noise_multiplier * self.clip_norm / self.bound_of_batch
        return exact + std * prng.normals(key, step.number, exact.size), parts.clipping.StepReport(*jnp.zeros(4))

    def event(self, noise, batches, records, steps, rates):
        return parts.RecordGaussian.event(self, noise, batches, records, steps, rates)

    def client_noise(self, num_clients):
        return parts.RecordGaussian.client_noise(self, num_clients)

    def noise_unit(self, divisor):
        return 1 / self.bound_of_batch

    no_epsilon_reason, assumptions = None, ()

    def check(self, num_clients):
        pass


@pytest.mark.slow
def test_noise_on_the_mean_over_the_rest_of_a_pass_is_too_small():
    right = algorithm_of("epochs", last="keep", local_steps=1)
    wrong = own.steps(right, privatizer=NoiseOnTheMean(clip_norm=0.7, noise_multiplier=2.0))
    with pytest.raises((AssertionError, ConfigurationError)):
        fdp.guarantee(wrong, DATA, rounds=3, delta=1e-3, model=MODEL)


@pytest.mark.slow
def test_checks_hold_for_ragged_clients():
    check_algorithm(algorithm_of("epochs", last="keep"), DATA, model=MODEL, only=("sampling", "noise"))


@pytest.mark.parametrize("sizes", [[3, 20, 30], [10, 20, 31]])
def test_sizes_beside_the_stated_ones_are_refused_before_anything_is_drawn(sizes):
    """Batches rely on the smallest and the largest client: another client would be given records of its neighbours."""
    data = dataclasses.replace(ragged_data([10, 20, 30]), sizes=np.array(sizes, np.int32))
    value = fdp.fedavg(cohort_size=2, batch_size=5, local_steps=1, learning_rate=0.1)
    assert "records of clients must be 10 to 30, as the data state" in refusal(fdp.simulate, value, data, rounds=1)
