"""Parts as users write them, without a class of the project's: right ones, of every slot."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_dp as fdp
from fedjax_dp import schedules
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, Poisson, Unit, WithoutReplacement
from fedjax_dp.parts.batches import Batch
from fedjax_dp.parts.client_privacy import noisy_sums
from fedjax_dp.parts.clipping import Bounded, StepReport
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import LocalState
from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import ravel, replace

SEEN = (FullBatch(), Adjacency.REPLACE_ONE)
# algorithms of the project whose parts they take the place of
COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.3}
CLIP = {"clip_norm": 0.7, "noise_multiplier": 2.0}
RECORD = fdp.dpnfl(**COMMON, **CLIP, l2=0.0, schedule="constant")
CLIENT = fdp.dp_fedavg(**COMMON, **CLIP, cohort="uniform")
OUTPUT = fdp.dp_fedavg_output(**COMMON, **CLIP)
POISSON = replace(RECORD, local=replace(RECORD.local, batches=fdp.parts.PoissonBatches(size=2)))


def steps(algorithm, **parts):
    """The algorithm with other parts of its local steps."""
    return replace(algorithm, local=replace(algorithm.local, **parts))


def with_privatizer(algorithm, **parts):
    """The algorithm with other parts of its privatizer."""
    return steps(algorithm, privatizer=replace(algorithm.local.privatizer, **parts))


def answering(ids, drawn=None, selected=None):
    ids = ids.astype(jnp.int32)
    selected = jnp.ones(ids.shape, bool) if selected is None else selected
    return Members(ids, selected.astype(jnp.float32) if drawn is None else drawn, jnp.zeros_like(ids), selected)


def lying(part, **members):
    """A subclass that restates all facts, but for these members."""
    kind = type(part)
    made = fdp.value(restates(kind)(type(f"Lying{kind.__name__}", (kind,), members)))
    return made(**{field.name: getattr(part, field.name) for field in dataclasses.fields(kind)})


def stateless(draw):
    """The `draw` of a noise source that keeps nothing, by a function without a state."""
    return lambda self, key, step, size, state: (draw(self, key, step, size), state)


def lying_noise(draw, algorithm=RECORD):
    """The algorithm with JAX's normals that are drawn otherwise."""
    return with_privatizer(algorithm, source=lying(JaxNormals(), draw=stateless(draw)))


def lying_server_noise(draw):
    return replace(CLIENT, upload=replace(CLIENT.upload, source=lying(JaxNormals(), draw=stateless(draw))))


def lying_privatizer(**members):
    return steps(RECORD, privatizer=lying(Noises(**CLIP), **members))


def lying_bound(apply, algorithm=RECORD):
    return with_privatizer(algorithm, bound=lying(Normalise(), apply=apply))


def lying_upload(**members):
    return replace(CLIENT, upload=lying(Clips(**CLIP), **members))


def without(part, name):
    """The same class but for one statement."""
    kind = type(part)
    members = {k: v for k, v in vars(kind).items() if not k.startswith("__") or k in ("__annotations__", "__doc__")}
    members.pop(name, None)
    annotations = {k: v for k, v in members.pop("__annotations__", {}).items() if k != name}
    for field in dataclasses.fields(kind):
        if field.name in annotations and field.metadata.get("static"):
            members[field.name] = fdp.structure()
        else:
            members.pop(field.name, None)
    made = fdp.value(type(kind.__name__, (), {**members, "__annotations__": annotations}))
    return made(**{field.name: getattr(part, field.name) for field in dataclasses.fields(made)})


@fdp.value
class Shuffled:
    """The first clients of a shuffle: a uniform cohort by other draws."""

    size: int = fdp.structure()

    is_random, fixed, at_most_once, max_participations, no_epsilon_reason, setup_event = True, True, True, 1, None, None

    @property
    def base(self):
        return self

    def capacity(self, num_clients):
        return self.size

    def expected_size(self, num_clients):
        return self.size

    def sample(self, keys, round_index, shares):
        return answering(jax.random.permutation(keys.round, shares.shape[0])[: self.size])

    def rates(self, shares):
        return self.size / shares.shape[0] + 0.0 * shares

    def inclusion_probability(self, shares):
        return self.rates(shares), 1

    def amplification(self, num_clients, known):
        others = max(num_clients - known, 1)
        return WithoutReplacement(min(self.size, others), others), Adjacency.REPLACE_ONE

    def min_separation(self, num_clients):
        return 1

    rounds_per_pass = min_separation

    def log(self, num_clients):
        return None

    def with_size(self, size):
        return type(self)(size=size)

    def check(self, num_clients):
        pass


@fdp.value
class Coins:
    """A coin for every client: a Poisson cohort that keeps a position for each."""

    rate: float

    is_random, fixed, at_most_once, max_participations = True, False, True, 1
    no_epsilon_reason, setup_event = None, None

    @property
    def base(self):
        return self

    def capacity(self, num_clients):
        return num_clients

    def expected_size(self, num_clients):
        return num_clients

    def sample(self, keys, round_index, shares):
        return answering(jnp.arange(shares.shape[0]), selected=jax.random.uniform(keys.round, shares.shape) < self.rate)

    def rates(self, shares):
        return self.rate + 0.0 * shares

    def inclusion_probability(self, shares):
        return self.rates(shares), 1

    def amplification(self, num_clients, known):
        return Poisson(float(self.rate)), Adjacency.ADD_REMOVE

    def min_separation(self, num_clients):
        return 1

    rounds_per_pass = min_separation

    def log(self, num_clients):
        return None

    def with_size(self, size):
        raise NotImplementedError

    def check(self, num_clients):
        pass


@fdp.value
class Halves:
    """The two halves of the clients take turns."""

    is_random, fixed, at_most_once, max_participations = False, True, True, 1
    no_epsilon_reason, setup_event = None, None

    @property
    def base(self):
        return self

    def capacity(self, num_clients):
        return num_clients // 2

    expected_size = capacity

    def sample(self, keys, round_index, shares):
        half = shares.shape[0] // 2
        return answering(jnp.arange(half) + half * (round_index % 2))

    def rates(self, shares):
        return 0.5 + 0.0 * shares

    def inclusion_probability(self, shares):
        return self.rates(shares), 1

    def amplification(self, num_clients, known):
        return SEEN

    def min_separation(self, num_clients):
        return 2

    def rounds_per_pass(self, num_clients):
        return 1

    def log(self, num_clients):
        return None

    def with_size(self, size):
        raise NotImplementedError

    def check(self, num_clients):
        pass


@fdp.value
class Picks:
    """Batches by the smallest of random numbers."""

    size: int = fdp.structure()

    even = True

    def count(self, steps, largest):
        return steps

    def sample(self, key, records, steps, largest, smallest):
        luck = jnp.where(jnp.arange(largest) < records, jax.random.uniform(key, (steps, largest)), 2.0)
        positions = jnp.argsort(luck, -1)[:, : self.size].astype(jnp.int32)
        return Batch(positions, jnp.ones(positions.shape, bool), jnp.full(steps, self.size), jnp.ones(steps))

    def sampling(self, records):
        return WithoutReplacement(self.size, records)

    def divisor(self, records):
        return self.size

    def check(self, sizes):
        pass


@fdp.value
class RecordCoins:
    """Poisson batches that hold a row for every record."""

    size: int = fdp.structure()

    even = True

    def count(self, steps, largest):
        return steps

    def sample(self, key, records, steps, largest, smallest):
        at = jnp.broadcast_to(jnp.arange(largest, dtype=jnp.int32), (steps, largest))
        mask = (jax.random.uniform(key, (steps, largest)) < self.size / records) & (at < records)
        return Batch(jnp.where(mask, at, 0), mask, jnp.full(steps, self.size), jnp.ones(steps))

    def sampling(self, records):
        return Poisson(self.size / records)

    def divisor(self, records):
        return self.size

    def check(self, sizes):
        pass


@fdp.value
class Everything:
    """All records."""

    even = True

    def count(self, steps, largest):
        return steps

    def sample(self, key, records, steps, largest, smallest):
        at = jnp.broadcast_to(jnp.arange(largest, dtype=jnp.int32), (steps, largest))
        mask = at < records
        return Batch(jnp.where(mask, at, 0), mask, jnp.broadcast_to(records, (steps,)), jnp.ones(steps))

    def sampling(self, records):
        return FullBatch()

    def divisor(self, records):
        return records

    def check(self, sizes):
        pass


def by_records(model, params, records):
    """Losses and flat gradients of single records."""

    def one(x, y):
        loss, found = jax.value_and_grad(lambda p: model.loss(p, x, y, None))(params)
        return loss, ravel(found)[0]

    return jax.vmap(one)(records.x, records.y)


@fdp.value
class Normalise:
    """Each record's gradient over its norm, if that is above the clip norm."""

    no_epsilon_reason, assumption, per_record = None, None, True

    def apply(self, model, params, records, clip_norm):
        losses, rows = by_records(model, params, records)
        norms = jnp.linalg.norm(rows, axis=-1, keepdims=True)
        kept = jnp.where(jnp.isfinite(norms), rows * jnp.minimum(1.0, clip_norm / jnp.maximum(norms, 1e-9)), 0.0)
        mean = jnp.where(records.mask[:, None], kept, 0.0).sum(0) / records.divisor
        return Bounded(mean, clip_norm / records.divisor, StepReport(losses.mean(), jnp.float32(0)))

    def check(self):
        pass


@fdp.value
class ClampMean:
    """The mean gradient of the batch, clipped as a whole."""

    no_epsilon_reason, assumption, per_record = None, None, False

    def apply(self, model, params, records, clip_norm):
        losses, rows = by_records(model, params, records)
        mean = jnp.where(records.mask[:, None], rows, 0.0).sum(0) / records.divisor
        norm = jnp.linalg.norm(mean)
        mean = jnp.where(jnp.isfinite(norm), mean * jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-9)), 0.0)
        return Bounded(mean, jnp.asarray(clip_norm, jnp.float32), StepReport(losses.mean(), jnp.float32(0)))

    def check(self):
        pass


@fdp.value
class JaxNormals(fdp.parts.NoiseSource):
    """White noise by JAX's own generator."""

    fresh = True

    def coefficients(self, steps):
        return (1.0,)

    def draw(self, key, step, size, state):
        return jax.random.normal(jax.random.fold_in(key, step.number), (size,)), state

    def variance(self, step):
        return 1.0


@fdp.value
class TakesBack(fdp.parts.NoiseSource):
    """Noise of which half is taken back a step later."""

    fresh = False

    def coefficients(self, steps):
        return (1.0, -0.5)

    def draw(self, key, step, size, state):
        def z(step):
            return jax.random.normal(jax.random.fold_in(key, step), (size,))

        return z(step.number) - jnp.where(step.number > 0, 0.5, 0.0) * z(jnp.maximum(step.number, 1) - 1), state

    def variance(self, step):
        return jnp.where(step > 0, 1.25, 1.0)


@fdp.value
class Noises:
    """A privatizer by itself: clips records and adds noise."""

    clip_norm: float
    noise_multiplier: float

    no_epsilon_reason, assumptions, on_upload = None, ("none but its own",), False

    def gradient(self, key, step, model, params, records):
        found = Normalise().apply(model, params, records, self.clip_norm)
        noise = jax.random.normal(jax.random.fold_in(key, step.number), found.mean.shape)
        return found.mean + self.noise_multiplier * found.noise_unit * noise, found.report

    def client_noise(self, num_clients):
        return [float(self.noise_multiplier)] * num_clients

    def noise_unit(self, divisor):
        return 1 / divisor

    def event(self, noise, batches, records, steps, rates):
        law = batches.sampling(records)
        adjacency = Adjacency.ADD_REMOVE if isinstance(law, Poisson) else Adjacency.REPLACE_ONE
        return GaussianSteps(noise, law, adjacency, steps)

    def check(self, num_clients):
        pass


@fdp.value
class Within:
    """The same with a name of its own for the bound."""

    radius: float
    noise_multiplier: float

    no_epsilon_reason, assumptions, on_upload = None, (), False

    def _named(self):
        return Noises(clip_norm=self.radius, noise_multiplier=self.noise_multiplier)

    def gradient(self, *arguments):
        return self._named().gradient(*arguments)

    def client_noise(self, num_clients):
        return self._named().client_noise(num_clients)

    def noise_unit(self, divisor):
        return 1 / divisor

    def event(self, *arguments):
        return self._named().event(*arguments)

    def check(self, num_clients):
        pass


@fdp.value
class EachTensor:
    """Every tensor of a record's gradient is clipped to its part of the bound."""

    no_epsilon_reason, assumption, per_record = None, None, True

    def apply(self, model, params, records, clip_norm):
        told, rows = Normalise().apply(model, params, records, clip_norm), by_records(model, params, records)[1]
        ends = np.cumsum([leaf.size for leaf in jax.tree.leaves(params)])
        kept = []
        for part in jnp.split(rows, ends[:-1], axis=1):
            norms = jnp.linalg.norm(part, axis=1, keepdims=True)
            factor = jnp.minimum(1.0, clip_norm / len(ends) ** 0.5 / jnp.maximum(norms, 1e-9))
            kept.append(jnp.where(jnp.isfinite(norms) & records.mask[:, None], part * factor, 0.0))
        return told._replace(mean=jnp.concatenate(kept, 1).sum(0) / records.divisor)

    def check(self):
        pass


@fdp.value
class Decay(fdp.parts.Correction):
    """Weight decay."""

    strength: float

    @property
    def pull(self):
        return float(self.strength)

    def gradient(self, gradient, params, step, client, records):
        return gradient + self.strength * params


@fdp.value
class SignOnly(fdp.parts.Correction):
    """Steps by the sign of the noised gradient."""

    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return jnp.sign(gradient)


@fdp.value
class Drift(fdp.parts.Correction):
    """The server keeps the mean update and sends it to everybody; clients send theirs once more."""

    pull, has_client_state = 0.0, False

    def init(self, run):
        return LocalState(jnp.zeros(run.size))

    def gradient(self, gradient, params, step, client, records):
        return gradient - 0.1 * client.received.server_state

    def finish(self, update, client, total_rate, extra_gradient):
        return update, ()

    def absorb(self, server, total, num_clients):
        return total / num_clients


@fdp.value
class OneMore(fdp.parts.Correction):
    """One more privatized gradient of every client, kept by the server."""

    pull, has_client_state = 0.0, False

    @property
    def extra_gradients(self):
        return 1

    def init(self, run):
        return LocalState(jnp.zeros(run.size))

    def finish(self, update, client, total_rate, extra_gradient):
        return extra_gradient(client.received.params), ()

    def absorb(self, server, total, num_clients):
        return total / num_clients


@fdp.value
class Clips:
    """Noise of the server on updates that are clipped."""

    clip_norm: float
    noise_multiplier: float

    unit, is_amplified, shared_noise, extra, noise_ratio = Unit.CLIENT, True, False, 0, None

    def init(self, size):
        return ()

    def message(self, key, update, sizes, state, sent):
        norm = jnp.linalg.norm(update)
        return jnp.where(jnp.isfinite(norm), update * jnp.minimum(1.0, self.clip_norm / (norm + 1e-9)), 0.0), ()

    def release(self, key, round_index, mean, extra, state, sensitivity, expected):
        noise = jax.random.normal(jax.random.fold_in(key, round_index), mean.shape)
        return mean + self.noise_multiplier * self.clip_norm * sensitivity * noise, state

    def scales_down(self, update, sizes, state, sent):
        return None

    def learnt_clip_norm(self, state):
        return None

    def noise_std(self, state, sensitivity, round_index):
        return self.noise_multiplier * self.clip_norm * sensitivity

    def event(self, noise, attendance):
        return noisy_sums(fdp.parts.WhiteNoise(), noise, attendance)

    def check(self, num_clients):
        pass


@fdp.value
class Average:
    """The sum of the updates over the expected number of clients."""

    alike, realised, needs_loss, needs_rates = True, False, False, True
    extra = 0

    def weights(self, members, shares, rates):
        return members.participation_count

    def contribution(self, weight, update, loss, rate):
        return weight * update

    def combine(self, total, members, shares, rates, params):
        return total / jnp.sum(rates)

    def sensitivity(self, shares, rates, members):
        return 1 / jnp.sum(rates)

    def check(self, cohort, num_clients):
        pass


@fdp.value
class Open:
    """Messages as they are."""

    secret, resolution, word_bytes = False, 0.0, 4

    def hidden_among(self, members, helpers):
        return 1

    def limit(self, members):
        return np.inf

    def message(self, key, round_index, position, ids, selected, flat):
        return flat, jnp.bool_(False)

    def total(self, key, round_index, ids, selected, present, summed):
        return summed

    def check(self, members):
        pass


@fdp.value
@restates(fdp.parts.LocalSgd)
class Halved(fdp.parts.LocalSgd):
    """Local steps of which half the way is kept."""

    def run(self, client):
        found = fdp.parts.LocalSgd.run(self, client)
        return found._replace(update=0.5 * found.update)


@fdp.value
class Lazy:
    """A server that moves half the way."""

    rate: float

    def init(self, params):
        return optax.sgd(1.0).init(params)

    def move(self, round_index, update, variance, state, params):
        return jax.tree.map(lambda p, u: p + self.rate * schedules.constant(round_index) * u, params, update), state

    def check(self):
        pass


def small_first(members, shares, rates):
    """Weights that no other client changes."""
    return members.participation_count * jnp.where(shares[members.ids] < np.float32(0.2), 1.0, 0.5)
