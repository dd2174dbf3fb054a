"""Families of parts that users write: right ones get the price of what they do, wrong ones get no epsilon below it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
import own_parts as own
import pytest
from helpers import ragged_data, thinned, usual
from own_parts import (
    CLIENT,
    CLIP,
    COMMON,
    OUTPUT,
    POISSON,
    RECORD,
    lying,
    lying_bound,
    lying_noise,
    lying_privatizer,
    lying_server_noise,
    lying_upload,
    steps,
    with_privatizer,
    without,
)

import fedjax_dp as fdp
from fedjax_dp import errors, parts
from fedjax_dp.accounting import Adjacency, Poisson, WithoutReplacement
from fedjax_dp.parts.aggregation import equally
from fedjax_dp.parts.client_models import OwnSteps
from fedjax_dp.parts.facts import FACTS, restates
from fedjax_dp.parts.local_training import AdditionalRelease
from fedjax_dp.parts.record_privacy import scale_noise
from fedjax_dp.pytrees import Wrapper, replace

SIZES = [8, 8, 8, 10, 12, 9]
DATA = ragged_data(SIZES)
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)


def epsilon(algorithm):
    """The largest of all views that are not refused."""
    return fdp.guarantee(algorithm, DATA, rounds=5, delta=1e-5, accountant="rdp", model=MODEL).epsilon


FULL = fdp.dpnfl(**{**COMMON, "batch_size": None}, **CLIP, batches="full", l2=0.0, schedule="constant")
BATCH = with_privatizer(RECORD, bound=parts.ClipBatch())
# what a user wrote, and what of the catalogue does the same
RIGHT = {
    "shuffled cohort": (replace(RECORD, cohort=own.Shuffled(size=6)), replace(RECORD, cohort=parts.AllClients())),
    "shuffled cohort, whole clients": (replace(CLIENT, cohort=own.Shuffled(size=3)), CLIENT),
    "coins, whole clients": (
        replace(CLIENT, cohort=own.Coins(rate=0.5)),
        replace(CLIENT, cohort=parts.PoissonCohort(size=3)),
    ),
    "halves": (replace(RECORD, cohort=own.Halves()), replace(RECORD, cohort=parts.CyclicCohort(size=3))),
    "halves, correlated": (
        replace(fdp.dp_ftrl(**COMMON, **CLIP), cohort=own.Halves()),
        fdp.dp_ftrl(**COMMON, **CLIP, cohort="cyclic"),
    ),
    "batches by luck": (steps(RECORD, batches=own.Picks(size=2)), RECORD),
    "batches by coins": (
        steps(RECORD, batches=own.RecordCoins(size=2)),
        POISSON,
    ),
    "all records": (steps(RECORD, batches=own.Everything()), FULL),
    "own clipping": (with_privatizer(RECORD, bound=own.Normalise()), RECORD),
    "own clipping, Poisson": (
        steps(with_privatizer(RECORD, bound=own.Normalise()), batches=parts.PoissonBatches(size=2)),
        POISSON,
    ),
    "own batch clipping": (with_privatizer(RECORD, bound=own.ClampMean()), BATCH),
    "own bound of a noised upload": (with_privatizer(OUTPUT, bound=own.ClampMean()), OUTPUT),
    "JAX's normals": (with_privatizer(RECORD, source=own.JaxNormals()), RECORD),
    "JAX's normals, whole clients": (replace(CLIENT, upload=replace(CLIENT.upload, source=own.JaxNormals())), CLIENT),
    "noise taken back": (
        with_privatizer(RECORD, source=own.TakesBack()),
        with_privatizer(RECORD, source=parts.BandedNoise(bands=(1.0, -0.5))),
    ),
    "own privatizer": (steps(RECORD, privatizer=own.Noises(**CLIP)), RECORD),
    "own privatizer, own names": (
        steps(RECORD, privatizer=own.Within(radius=0.7, noise_multiplier=2.0)),
        RECORD,
    ),
    "every tensor clipped": (with_privatizer(RECORD, bound=own.EachTensor()), RECORD),
    "own schedule": (steps(RECORD, schedule=lambda t: 1 / (1 + 0.1 * t)), RECORD),
    "own privatizer, Poisson": (
        steps(RECORD, privatizer=own.Noises(**CLIP), batches=parts.PoissonBatches(size=2)),
        POISSON,
    ),
    "weight decay": (steps(RECORD, corrections=(own.Decay(strength=0.1),)), RECORD),
    "weight decay under a noised upload": (steps(OUTPUT, corrections=(own.Decay(strength=0.1),)), OUTPUT),
    "steps by sign": (steps(RECORD, corrections=(own.SignOnly(),)), RECORD),
    "mean drift": (steps(RECORD, corrections=(own.Drift(),)), RECORD),
    "one gradient more": (steps(FULL, corrections=(own.OneMore(),)), steps(FULL, steps=3)),
    "own upload": (replace(CLIENT, upload=own.Clips(**CLIP)), CLIENT),
    "own estimator": (replace(CLIENT, aggregate=own.Average()), CLIENT),
    "own estimator of records": (replace(RECORD, aggregate=own.Average()), RECORD),
    "own weights": (replace(CLIENT, aggregate=parts.Estimator(weigh=own.small_first)), CLIENT),
    "own transport": (replace(RECORD, transport=own.Open()), RECORD),
    "own local steps": (replace(RECORD, local=own.Halved(**vars(RECORD.local))), RECORD),
    "own server": (replace(CLIENT, server=own.Lazy(rate=0.5)), CLIENT),
}


@pytest.mark.slow  # each runs a round of its own
@pytest.mark.parametrize("name", usual(RIGHT, list(RIGHT)[:1]))
def test_a_right_part_has_the_price_of_what_it_does(name):
    theirs, ours = RIGHT[name]
    promise = fdp.guarantee(theirs, DATA, rounds=5, delta=1e-5, accountant="rdp", model=MODEL)
    if name == "shuffled cohort":  # its schedule is another one, so all take part
        assert promise.epsilon == pytest.approx(epsilon(ours), rel=1e-6)
    else:
        counted = {"rounds": 5, "delta": 1e-5, "accountant": "rdp", "participation": "worst", "model": MODEL}
        wanted = fdp.guarantee(ours, DATA, **counted).epsilon
        assert fdp.guarantee(theirs, DATA, **counted).epsilon == pytest.approx(wanted, rel=1e-6)
    assert math.isfinite(promise.epsilon)
    assert any(" is trusted: " in line for line in promise.assumptions)
    fdp.simulate(theirs, DATA, rounds=1)


SLOTS = {
    "cohort": (own.Shuffled(size=3), lambda part: replace(RECORD, cohort=part)),
    "batches": (own.Picks(size=2), lambda part: steps(RECORD, batches=part)),
    "privatizer": (own.Noises(**CLIP), lambda part: steps(RECORD, privatizer=part)),
    "bound": (own.Normalise(), lambda part: with_privatizer(RECORD, bound=part)),
    "noise source": (own.JaxNormals(), lambda part: with_privatizer(RECORD, source=part)),
    "upload": (own.Clips(**CLIP), lambda part: replace(CLIENT, upload=part)),
    "estimator": (own.Average(), lambda part: replace(CLIENT, aggregate=part)),
    "transport": (own.Open(), lambda part: replace(RECORD, transport=part)),
}
MISSING = [(slot, name) for slot in SLOTS for name in FACTS[slot]]


@pytest.mark.parametrize(("slot", "name"), MISSING)
def test_a_part_that_leaves_a_fact_unsaid_is_refused_in_one_line(slot, name):
    part, place = SLOTS[slot]
    with pytest.raises(errors.ConfigurationError, match=name) as caught:
        epsilon(place(without(part, name)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_subclass_inherits_no_fact(slot):
    part, place = SLOTS[slot]
    for kind in (type(part), *([parts.RecordGaussian] if slot == "privatizer" else [])):
        heir = fdp.value(type("Heir", (kind,), {}))
        given = {f.name: getattr(part, f.name, None) for f in dataclasses.fields(kind) if hasattr(part, f.name)}
        with pytest.raises(errors.ConfigurationError, match="not believed of its subclasses"):
            epsilon(place(heir(**given)))


def says(result):
    return lambda self, *arguments: result


SHUFFLED, PICKS, COINS = own.Shuffled(size=3), own.Picks(size=2), own.Coins(rate=0.5)
BOTH = {"of records": RECORD, "of clients": CLIENT}


def twice_the_first(self, keys, round_index, shares):
    return own.answering(jnp.zeros(3, jnp.int32) + jax.random.randint(keys.round, (), 0, shares.shape[0]))


def counted_twice(self, keys, round_index, shares):
    found = own.Shuffled.sample(self, keys, round_index, shares)
    return found._replace(participation_count=2 * found.participation_count)


def late_at_a_tenth(self, keys, round_index, shares):
    found = own.Shuffled.sample(self, keys, round_index, shares)
    return found._replace(participation_count=jnp.where(found.ids == 0, 1.0, 0.1))


def rates_at_a_tenth(self, shares):
    return self.size / shares.shape[0] * jnp.where(jnp.arange(shares.shape[0]) == 0, 1.0, 0.1)


def same_every_round(self, keys, round_index, shares):
    return own.answering(jax.random.permutation(jax.random.key(0), shares.shape[0])[: self.size])


def first_ones(self, keys, round_index, shares):
    return own.answering(jnp.arange(self.size))


def favourites(self, keys, round_index, shares):
    order = jnp.argsort(jax.random.uniform(keys.round, shares.shape) - 0.3 * (jnp.arange(shares.shape[0]) < 2))
    return own.answering(order[: self.size])


def pairs(self, keys, round_index, shares):
    """Each as often as is told, but always with its neighbour."""
    luck = jnp.repeat(jax.random.uniform(keys.round, (shares.shape[0] // 2,)), 2)
    return own.answering(jnp.arange(shares.shape[0]), selected=luck < self.rate)


def often(self, keys, round_index, shares):
    return own.answering(jnp.arange(shares.shape[0]), selected=jax.random.uniform(keys.round, shares.shape) < 0.8)


def moved(positions):
    """Batches whose positions are a function of those drawn `(steps, size)` and of the number of records."""

    def sample(self, key, records, steps, largest, smallest):
        found = own.Picks.sample(self, key, records, steps, largest, smallest)
        return found._replace(positions=jnp.broadcast_to(positions(found.positions, records), found.positions.shape))

    return sample


def every_other_run(self, key, records, steps, largest, smallest):
    """The last batch is the first one's in a tenth of the runs."""
    found = own.Picks.sample(self, key, records, steps, largest, smallest)
    again = jax.random.uniform(jax.random.fold_in(key, 1)) < 0.1
    return found._replace(positions=found.positions.at[-1].set(found.positions[jnp.where(again, 0, -1)]))


def every_third_round(self, keys, round_index, shares):
    return own.Shuffled.sample(self, parts.CohortKeys.of(jax.random.key(0), round_index % 3), round_index, shares)


def realised(self, key, records, steps, largest, smallest):
    found = own.RecordCoins.sample(self, key, records, steps, largest, smallest)
    return found._replace(divisor=jnp.maximum(found.mask.sum(-1), 1))


def last_idle(self, key, records, steps, largest, smallest):
    found = own.Picks.sample(self, key, records, steps, largest, smallest)
    return found._replace(step_mask=found.step_mask.at[-1].set(0.0))


def scaled_bound(factor, unit=1.0):
    def apply(self, model, params, records, clip_norm):
        found = own.Normalise.apply(self, model, params, records, factor * clip_norm)
        return found._replace(noise_unit=unit * clip_norm / records.divisor)

    return apply


def by_tensor_norm(self, model, params, records, clip_norm):
    """The first coordinates decide how far all are scaled down."""
    rows = own.by_records(model, params, records)[1]
    norms = jnp.linalg.norm(rows[:, :3], axis=-1, keepdims=True)
    kept = rows * jnp.minimum(1.0, clip_norm / jnp.maximum(norms, 1e-9))
    told = own.Normalise.apply(own.Normalise(), model, params, records, clip_norm)
    return told._replace(mean=jnp.where(jnp.isfinite(kept), kept, 0.0).sum(0) / records.divisor)


def unit_of_the_batch(self, model, params, records, clip_norm):
    found = own.Normalise.apply(self, model, params, records, clip_norm)
    _, rows = own.by_records(model, params, records)
    norms = jnp.linalg.norm(jnp.where(jnp.isfinite(rows), rows, 0.0), axis=-1)
    return found._replace(noise_unit=jnp.maximum(jnp.median(norms), clip_norm) / records.divisor)


def realised_mean(self, model, params, records, clip_norm):
    found = own.Normalise.apply(self, model, params, records, clip_norm)
    return found._replace(mean=found.mean * records.divisor / jnp.maximum(records.mask.sum(), 1))


def frozen(self, key, step, size):
    return jax.random.normal(key, (size,))


def times(factor):
    """Normal noise times `factor(step, size)`."""

    def draw(self, key, step, size):
        return factor(step, size) * jax.random.normal(jax.random.fold_in(key, step.number), (size,))

    return draw


def one_number(self, key, step, size):
    return jnp.broadcast_to(jax.random.normal(jax.random.fold_in(key, step.number), ()), (size,))


def uniform(self, key, step, size):
    return jax.random.uniform(jax.random.fold_in(key, step.number), (size,), minval=-(3**0.5), maxval=3**0.5)


def faint_gradient(self, key, step, model, params, records):
    return own.Noises.gradient(replace(own.Noises(**CLIP), noise_multiplier=1.0), key, step, model, params, records)


def first_step_only(self, key, step, model, params, records):
    quiet = own.Noises(clip_norm=self.clip_norm, noise_multiplier=jnp.where(step.number == 0, 2.8, 0.0))
    return own.Noises.gradient(quiet, key, step, model, params, records)


def same_noise(self, key, step, *rest):
    return own.Noises.gradient(self, key, step._replace(number=jnp.zeros_like(step.number)), *rest)


def event_of(**changes):
    def event(self, noise, batches, records, steps, rates):
        return dataclasses.replace(own.Noises.event(self, noise, batches, records, steps, rates), **changes)

    return event


def long_message(self, key, update, *rest):
    return 2.0 * own.Clips.message(self, key, update, *rest)[0], ()


def faint_release(self, key, round_index, mean, extra, state, reach, expected):
    return own.Clips.release(
        replace(own.Clips(**CLIP), noise_multiplier=1.0), key, round_index, mean, extra, state, reach, expected
    )


def same_release(self, key, round_index, *rest):
    return own.Clips.release(self, key, jnp.zeros_like(round_index), *rest)


def no_reach(self, key, round_index, mean, extra, state, reach, expected):
    return own.Clips.release(self, key, round_index, mean, extra, state, 0.1 * reach, expected)


def by_those_here(self, total, members, shares, rates, params):
    return total / jnp.maximum(members.participation_count.sum(), 1.0)


class Sender(parts.Correction):
    """What the corrections below have in common."""

    pull, has_client_state = 0.0, False

    def init(self, run):
        return parts.LocalState(jnp.zeros(run.size))

    def absorb(self, server, total, num_clients):
        return total


def of_kind(**members):
    return fdp.value(type("Wrong", (Sender,), {"pull": 0.0, **members}))()


def looks_at_records(self, update, client, total_rate, extra_gradient):
    def see(key, params, client, data, model):
        return data.gather(client, jnp.arange(1))[0].sum()

    return client.evaluate(see, client.received.params) + 0.0 * update, ()


def asks_unsaid(self, update, client, total_rate, extra_gradient):
    return extra_gradient(client.received.params + update), ()


def asks_under_vmap(self, update, client, total_rate, extra_gradient):
    start = client.received.params
    return jax.vmap(extra_gradient)(jnp.stack([start, start + update])).sum(0), ()


def label_step(self, gradient, params, step, client, records):
    return jnp.where(records.y[0] == 0, gradient, -gradient)


def looks_before(self, run):
    found = run.map_clients(lambda key, params, client, data, model: data.gather(client, jnp.arange(1))[0].sum())
    return parts.LocalState(jnp.zeros(run.size) + found.sum())


def looks_after(self, memory, map_clients, members, upcoming):
    found = map_clients(
        lambda key, params, client, data, model: data.gather(client, jnp.arange(1))[0].sum(), members.ids
    )
    return memory._replace(server=memory.server + found.sum())


def same_for_all(self, client):
    return parts.LocalSgd.run(self, client._replace(key=jax.random.fold_in(jax.random.key(7), client.round)))


@fdp.value
class AllAtOnce(Wrapper):
    """Batches of all records, whatever is drawn."""

    base: Any

    def sample(self, key, records, steps, largest, smallest):
        found = self.base.sample(key, records, steps, largest, smallest)
        rows = jnp.broadcast_to(jnp.arange(largest), (steps, largest))
        return found._replace(positions=rows, mask=rows < records)


def of_all_records(self, client):
    return parts.LocalSgd.run(dataclasses.replace(self, batches=AllAtOnce(base=self.batches)), client)


def of_one_key(self, client):
    """Every step's batch is drawn again with the same key: right numbers, but one batch for all."""
    return parts.LocalSgd.run(dataclasses.replace(self, batches=Repeats(base=self.batches)), client)


@fdp.value
class Repeats(Wrapper):
    base: Any

    def sample(self, key, records, steps, largest, smallest):
        found = self.base.sample(key, records, steps, largest, smallest)
        return found._replace(positions=jnp.broadcast_to(found.positions[:1], found.positions.shape))


def past_the_privatizer(self, client):
    found = parts.LocalSgd.run(self, client)
    x, _ = client.data.gather(client.client, jnp.arange(1))
    return found._replace(update=found.update + 1e-3 * x.sum())


LIES = {
    **{
        f"cohort {name}, {of}": replace(algorithm, cohort=lying(part, **members))
        for of, algorithm in BOTH.items()
        for name, (part, members) in {
            "of one client thrice": (SHUFFLED, {"sample": twice_the_first}),
            "same every round": (SHUFFLED, {"sample": same_every_round}),
            "same every third round": (SHUFFLED, {"sample": every_third_round}),
            "of the first": (SHUFFLED, {"sample": first_ones}),
            "with favourites": (SHUFFLED, {"sample": favourites}),
            "of a smaller law": (SHUFFLED, {"inclusion_probability": lambda self, shares: (0.1 + 0.0 * shares, 1)}),
            "of more positions": (SHUFFLED, {"capacity": says(5)}),
            "more often than told": (COINS, {"sample": often}),
            "of a base that draws less": (SHUFFLED, {"base": property(lambda self: own.Shuffled(size=1))}),
        }.items()
    },
    "cohort of halves, wider apart": replace(
        fdp.dp_ftrl(**COMMON, **CLIP), cohort=lying(own.Halves(), min_separation=says(4))
    ),
    "cohort counted twice": replace(CLIENT, cohort=lying(SHUFFLED, sample=counted_twice)),
    "cohort whose late messages count a tenth": replace(
        CLIENT,
        cohort=lying(SHUFFLED, sample=late_at_a_tenth, rates=rates_at_a_tenth, inclusion_probability=says((0.5, 1))),
        aggregate=parts.ESTIMATORS["mean"],
    ),
    "cohort hidden as a smaller sample": replace(
        CLIENT, cohort=lying(COINS, amplification=says((Poisson(0.1), Adjacency.ADD_REMOVE)))
    ),
    "cohort hidden as independent": replace(CLIENT, cohort=lying(COINS, sample=pairs)),
    "cohort fixed though it is not": replace(
        CLIENT, cohort=lying(COINS, fixed=True), aggregate=parts.ESTIMATORS["mean"]
    ),
    **{
        f"batches {name}": steps(RECORD, batches=lying(part, **members))
        for name, (part, members) in {
            "of the first": (PICKS, {"sample": moved(lambda drawn, records: jnp.arange(2))}),
            "same in every step": (PICKS, {"sample": moved(lambda drawn, records: drawn[:1])}),
            "of one record twice": (PICKS, {"sample": moved(lambda drawn, records: drawn[:, :1])}),
            "of others' records": (PICKS, {"sample": moved(lambda drawn, records: drawn + records)}),
            "over who came": (own.RecordCoins(size=2), {"sample": realised}),
            "of a smaller law": (PICKS, {"sampling": says(WithoutReplacement(2, 80))}),
            "Poisson at half the rate": (own.RecordCoins(size=2), {"sampling": says(Poisson(0.1))}),
            "Poisson though of one size": (PICKS, {"sampling": says(Poisson(0.25))}),
            "of another divisor": (PICKS, {"divisor": says(4)}),
        }.items()
    },
    **{
        f"batches {name}": steps(RECORD, steps=6, batches=lying(PICKS, sample=sample))
        for name, sample in {
            "same after two": moved(lambda drawn, records: jnp.resize(drawn[:2], drawn.shape)),
            "sometimes again": every_other_run,
        }.items()
    },
    "batches with an idle last step": steps(OUTPUT, batches=lying(PICKS, sample=last_idle)),
    **{
        f"bound {name}": lying_bound(apply)
        for name, apply in {
            "wider than told": scaled_bound(1.5),
            "of a smaller unit": scaled_bound(1.0, 0.5),
            "by a part of the tensors": by_tensor_norm,
            "of a unit made of the batch": unit_of_the_batch,
            "that does not clip": lambda self, *told: parts.Unbounded().apply(*told),
            "of the batch": own.ClampMean.apply,
        }.items()
    },
    "bound of the batch, with the unit of records": with_privatizer(
        RECORD,
        bound=lying(
            own.ClampMean(),
            per_record=True,
            apply=lambda self, model, params, records, clip: own.ClampMean.apply(
                self, model, params, records, clip
            )._replace(noise_unit=clip / records.divisor),
        ),
    ),
    "bound over who came": lying_bound(realised_mean, POISSON),
    "bound wider than told, noised upload": with_privatizer(
        OUTPUT, bound=lying(own.ClampMean(), apply=scaled_bound(1.5))
    ),
    **{
        f"noise {name}": lying_noise(draw)
        for name, draw in {
            "that never changes": frozen,
            "of one number": one_number,
            "of uniform law": uniform,
            "too faint": times(lambda step, size: 0.9),
            "of half the coordinates": times(lambda step, size: 2**0.5 * (jnp.arange(size) < size // 2)),
        }.items()
    },
    "noise fresh though it takes back": with_privatizer(
        RECORD, source=lying(own.TakesBack(), fresh=True, coefficients=lambda self, steps: (1.0,))
    ),
    "noise that takes back more than told": with_privatizer(
        RECORD, source=lying(own.TakesBack(), coefficients=lambda self, steps: (1.0, -0.1))
    ),
    "server noise that never changes": lying_server_noise(frozen),
    **{
        f"privatizer {name}": lying_privatizer(**members)
        for name, members in {
            "of half the noise": {"gradient": faint_gradient},
            "that noises the first step": {"gradient": first_step_only},
            "of the same noise in every step": {"gradient": same_noise},
            "of more noise in its event": {"event": event_of(noise_multiplier=4.0)},
            "of one step in its event": {"event": event_of(count=1)},
            "of a smaller sample in its event": {"event": event_of(sampling=WithoutReplacement(2, 800))},
            "told to be of more noise": {"client_noise": says([4.0] * 6)},
            "told to noise the upload": {"on_upload": True, "event": event_of(count=1)},
        }.items()
    },
    "privatizer of add-remove neighbours": steps(
        RECORD,
        batches=own.Everything(),
        privatizer=lying(own.Noises(**CLIP), event=event_of(adjacency=Adjacency.ADD_REMOVE)),
    ),
    **{
        f"correction {name}": steps(RECORD, corrections=(of_kind(**members),))
        for name, members in {
            "that looks": {"finish": looks_at_records},
            "that asks unsaid": {"finish": asks_unsaid},
            "that asks under vmap": {"finish": asks_under_vmap, "extra_gradients": 1},
            "that turns by labels": {"gradient": label_step},
            "that looks before": {"init": looks_before},
            "that looks after": {"exchange": looks_after, "absorb": lambda self, server, total, clients: server},
        }.items()
    },
    "correction that sends under client noise": replace(
        CLIENT,
        local=replace(CLIENT.local, corrections=(of_kind(finish=lambda self, update, *rest: (update, ())),)),
    ),
    **{
        f"upload {name}": lying_upload(**members)
        for name, members in {
            "longer than told": {"message": long_message},
            "unclipped": {"message": lambda self, key, update, *rest: (update, ())},
            "of half the noise": {"release": faint_release},
            "of the same noise every round": {"release": same_release},
            "whose noise forgets the reach": {"release": no_reach},
            "of more noise in its event": {
                "event": lambda self, noise, attendance: own.Clips.event(self, 2 * noise, attendance)
            },
            "of shares": {"shared_noise": True},
            "of numbers beside": {"extra": 1},
        }.items()
    },
    **{
        f"estimator {name}": replace(CLIENT, aggregate=lying(own.Average(), **members))
        for name, members in {
            "of half the reach": {"sensitivity": lambda self, shares, rates, members: 0.5 / jnp.sum(rates)},
            "heavier than told": {"contribution": lambda self, weight, update, loss, rate: 3.0 * weight * update},
        }.items()
    },
    "estimator over who came": replace(
        CLIENT, cohort=parts.PoissonCohort(size=3), aggregate=lying(own.Average(), combine=by_those_here)
    ),
    "estimator of equal weights that are not": replace(
        CLIENT,
        aggregate=lying(
            own.Average(),
            weights=lambda self, members, shares, rates: members.participation_count * 40 * shares[members.ids],
        ),
    ),
    "local steps of one noise for all": replace(RECORD, local=lying(RECORD.local, run=same_for_all)),
    "local steps of all records": replace(RECORD, local=lying(RECORD.local, run=of_all_records)),
    "local steps of one batch": replace(RECORD, local=lying(RECORD.local, run=of_one_key)),
    "local steps under a noised upload": replace(OUTPUT, local=lying(OUTPUT.local)),
    "local steps past the privatizer": replace(RECORD, local=lying(RECORD.local, run=past_the_privatizer)),
    "transport of shares in the open": replace(
        fdp.dp_fedavg.of({**COMMON, **CLIP, "noise": "shared", "secure": True, "fractional_bits": 6}),
        transport=lying(own.Open(), secret=True, resolution=2.0**-6, hidden_among=lambda self, m, h: m - h),
    ),
}


# What two reviews found that had been accepted.


def scaled_mean(self, key, t, mean, *rest):
    update, state = own.Clips.release(self, key, t, mean, *rest)
    return update + 9.0 * mean, state


def growing(self, key, update, sizes, state, sent):
    norm = jnp.linalg.norm(update)
    kept = update * jnp.minimum(1.0, state * self.clip_norm / (norm + 1e-9))
    return jnp.where(jnp.isfinite(norm), kept, 0.0), ()


def doubled_state(self, key, t, mean, extra, state, *rest):
    return own.Clips.release(self, key, t, mean, extra, (), *rest)[0], 2.0 * state


def momentum(self, key, t, mean, extra, state, *rest):
    state = 0.9 * state + mean
    return own.Clips.release(self, key, t, state, extra, (), *rest)[0], state


def raw_norm(self, key, update, *rest):
    return own.Clips.message(self, key, update, *rest)[0], jnp.linalg.norm(update)


def without_reach(self, key, t, mean, extra, state, reach, expected):
    return own.Clips.release(self, key, t, mean, extra, state, 0.3, expected)


def one_round(self, noise, attendance):
    return own.Clips.event(self, noise, attendance._replace(rounds=1, times=1.0))


def thousandfold(self, noise, attendance):
    return own.Clips.event(self, noise, attendance._replace(sampling=WithoutReplacement(1, 1000)))


def unit_length(self, weight, update, loss, rate):
    return weight * update / jnp.maximum(jnp.linalg.norm(update), 1e-12)


def normalised(self, total, members, shares, rates, params):
    mean = total / jnp.sum(rates)
    return mean / jnp.maximum(jnp.linalg.norm(mean), 1e-12)


def unit_of_rows(self, model, params, records, clip_norm):
    return own.Normalise.apply(self, model, params, records, clip_norm)._replace(
        noise_unit=clip_norm / records.mask.size
    )


def unit_of_present(self, model, params, records, clip_norm):
    found = own.Normalise.apply(self, model, params, records, clip_norm)
    return found._replace(noise_unit=clip_norm / jnp.maximum(records.mask.sum(), 1))


def naive(self, model, params, records, clip_norm):
    _, rows = own.by_records(model, params, records)
    norms = jnp.linalg.norm(rows, axis=-1, keepdims=True)
    found = own.Normalise.apply(self, model, params, records, clip_norm)
    return found._replace(mean=(rows * jnp.minimum(1.0, clip_norm / norms)).sum(0) / records.divisor)


def own_seed(self, keys, round_index, shares):
    return own.Coins.sample(self, parts.CohortKeys.of(jax.random.key(3), round_index), round_index, shares)


def fewer_others(self, num_clients, known):
    size = self.size if known == 0 else 1
    return WithoutReplacement(size, num_clients - known), Adjacency.REPLACE_ONE


@fdp.value
class SignRule(parts.LocalRule):
    """Its `is_sgd` is inherited: it says that it is not there."""

    def transform(self):
        return optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (jnp.sign(g), s))


@fdp.value
@restates(parts.LocalRule)
class SignRuleTold(SignRule):
    pass


@fdp.value
class LateDecay(parts.Correction):
    """A contraction at the rates of the first rounds."""

    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return gradient + 2.0 * params


@fdp.value
class Twice(parts.ClientModels):
    """A second stream of steps from the received model, which is sent too."""

    has_client_state = False
    own_steps = OwnSteps()

    def context(self, client):
        return self.own_steps.context(client)

    def run(self, sgd, client, server, own):
        again = self.context(client).receiving(client.received.params, (), (), ())
        found, more = sgd.run(client), self.own_steps.of(sgd).run(again)
        return found._replace(update=found.update - more.update), (), ()

    def model_of(self, sgd, client, server, own):
        return client.received.params


def twice(self, sgd, client, server, own):
    return Twice.run(Twice(), sgd, client, server, own)


def sgd_of_less_noise(self, sgd, client, server, own):
    quiet = replace(sgd, privatizer=scale_noise(sgd.privatizer, 1e-3))
    return Twice.run(self, quiet, client, server, own)


def of_models(**members):
    models = fdp.value(type("OwnTwice", (Twice,), {"has_client_state": False, "own_steps": OwnSteps(), **members}))()
    return replace(RECORD, local=parts.PersonalSgd(**vars(RECORD.local), models=models))


def test_a_second_stream_of_own_models_has_the_price_of_two():
    twice = steps(RECORD, steps=4)
    assert epsilon(of_models()) == pytest.approx(epsilon(twice), rel=1e-6)


@fdp.value
class GrowingDecay(parts.Correction):
    """A contraction in the first step and round."""

    pull, by = 0.5, "round"

    def gradient(self, gradient, params, step, client, records):
        return gradient + 0.5 * (1.0 + 20.0 * getattr(step, self.by)) * params


def late(at):
    return jnp.where(at > 4, 12.0, 1.0)


def up_and_down(at):
    return jnp.where(at % 2 == 0, 1.0, -0.99)


ONE = {"init": lambda self: jnp.float32(1)}
LIES |= {
    **{
        f"upload {name}": lying_upload(**members)
        for name, members in {
            "of ten means": {"release": scaled_mean},
            "of a growing clip": {"message": growing, "release": doubled_state, **ONE},
            "of momentum before noise": {"release": momentum, "init": lambda self: jnp.zeros(12)},
            "of a raw norm beside": {"message": raw_norm},
            "without its reach": {"release": without_reach},
            "of one round in its event": {"event": one_round},
            "of a smaller sample in its event": {"event": thousandfold},
        }.items()
    },
    **{
        f"estimator {name}": replace(CLIENT, aggregate=lying(own.Average(), **members))
        for name, members in {
            "of signs": {"contribution": lambda self, weight, update, loss, rate: weight * jnp.sign(update)},
            "of unit lengths": {"contribution": unit_length},
            "per rate": {"contribution": lambda self, weight, update, loss, rate: weight * update / rate},
            "of a normalised mean": {"combine": normalised},
        }.items()
    },
    "transport ten times as loud": replace(
        CLIENT, transport=lying(own.Open(), total=lambda self, *told: 10.0 * told[-1])
    ),
    "transport of one bit": replace(
        CLIENT, transport=lying(own.Open(), message=lambda self, *told: (jnp.sign(told[-1]), jnp.bool_(False)))
    ),
    "bound with a unit of its rows": lying_bound(unit_of_rows),
    "bound of a gradient of two models": with_privatizer(fdp.ditto_joint(**COMMON, **CLIP), bound=own.Normalise()),
    "bound with a unit of its rows, Poisson": lying_bound(unit_of_rows, POISSON),
    "bound with a unit of those present, Poisson": lying_bound(unit_of_present, POISSON),
    "bound that is not finite": lying_bound(naive),
    "noise times the rate": lying_noise(times(lambda step, size: step.rate)),
    "noise that falls silent": lying_noise(times(lambda step, size: jnp.where(step.number < 4, 1.0, 0.0))),
    "cohort of a seed of its own": replace(CLIENT, cohort=lying(COINS, sample=own_seed)),
    "cohort hidden among fewer": replace(CLIENT, cohort=lying(SHUFFLED, amplification=fewer_others)),
    "rule that inherits what it says": steps(RECORD, rule=SignRule(hyperparameters={})),
    "rule under a noised upload": steps(OUTPUT, rule=SignRuleTold(hyperparameters={})),
    "client models of one key for two streams": of_models(context=lambda self, client: client._replace(stream=1)),
    "client models of less noise": of_models(run=sgd_of_less_noise),
    **{
        f"client models {name}": of_models(
            releases=(AdditionalRelease(event, sent=True, stream=1, steps=2, most=most),), own_steps=None, run=twice
        )
        for name, event, most in (
            ("of more noise in an event", OwnSteps(noise=50.0).event, None),
            ("of one step in an event", OwnSteps(steps=1).event, None),
            ("that release in one round at most", OwnSteps().event, 1),
        )
    },
    "correction that grows by the round": steps(OUTPUT, corrections=(GrowingDecay(),)),
    "correction that grows by the step": steps(
        OUTPUT, corrections=(fdp.value(type("ByStep", (GrowingDecay,), {"pull": 0.5, "by": "number"}))(),)
    ),
    "correction at a late rate": steps(OUTPUT, corrections=(LateDecay(),), schedule=late),
    "schedule that changes sign": steps(OUTPUT, schedule=up_and_down),
}


QUICK = ("cohort hidden as independent", "bound that does not clip")


@pytest.mark.parametrize("name", thinned(LIES, QUICK, 24, ("transport ten times as loud",)))
def test_a_part_that_says_what_is_not_so_is_refused_in_one_line(name):
    with pytest.raises(errors.ConfigurationError) as caught:
        epsilon(LIES[name])
    assert "\n" not in str(caught.value)
    assert "fails under vmap" not in str(caught.value), caught.value


def test_the_same_weights_by_name_and_by_function():
    named = parts.Estimator(weigh=equally, normalised=True)
    assert epsilon(replace(CLIENT, aggregate=named)) == pytest.approx(epsilon(CLIENT))
