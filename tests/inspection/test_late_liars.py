"""Parts that lie late, rarely, or to few: right in what is tried first, wrong in a part of the run."""

import functools
import math

import jax
import jax.numpy as jnp
import own_parts as own
import pytest
from helpers import ragged_data, usual
from own_parts import (
    CLIENT,
    CLIP,
    COMMON,
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
)
from test_stranger_families import moved

import fedjax_dp as fdp
from fedjax_dp import errors, parts
from fedjax_dp.inspection import noise_scale, schedule_points
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.simulation import run_key

LONG = 1_500  # rounds
DITTO = fdp.ditto(**COMMON, **CLIP)

normal, fold = jax.random.normal, jax.random.fold_in


@functools.cache
def few():
    return ragged_data([8, 8, 8, 10, 12, 9])


@functools.cache
def many():
    """Clients with ids beyond 1,000."""
    return ragged_data([4] * 1_200)


@functools.cache
def of_many_sizes():
    return ragged_data(list(range(4, 24)))


def quiet_privatizer(gradient, **local):
    return steps(lying_privatizer(gradient=gradient), **local)


def silent_where(quiet):
    """Normal noise, but none where `quiet(step)`."""

    def draw(self, key, step, size):
        return jnp.where(quiet(step), 0.0, normal(fold(key, step.number), (size,)))

    return draw


def of_a_known_key_where(known):
    def draw(self, key, step, size):
        return normal(fold(jax.lax.cond(known(step), lambda: jax.random.key(0), lambda: key), step.number), (size,))

    return draw


def fades(self, key, step, size):
    return jnp.minimum(1.0, step.rate / 0.3) * normal(fold(key, step.number), (size,))


def by_hand(self, key, step, size):
    """Bits of which all are cut off where nobody looks."""
    kept = jnp.where(step.round < 1_000, jnp.uint32(2**32 - 1), jnp.uint32(0))
    words = jax.random.bits(fold(key, step.number), (size,)) & kept
    uniform = (words >> 8).astype(jnp.float32) / 2**24
    return jax.scipy.special.erfinv(jnp.clip(2 * uniform - 1, -1 + 1e-6, 1 - 1e-6)) * 2**0.5


def takes_itself_back(self, key, step, size):
    z = normal(fold(key, step.number), (size,))
    return z - jnp.float32(step.round >= 1_000) * z


def late_halves(self, key, step, size):
    """Half of the coordinates, later."""
    z = normal(fold(key, step.number), (size,))
    return jnp.where((jnp.arange(size) % 2 == 0) & (step.round > 1_400), 0.0, z)


def late(step, before, after):
    return jnp.where(step.round < 1_000, before, after)


def two_that_become_one(self, key, step, size):
    own = fold(key, step.number)
    return (normal(fold(own, 7), (size,)) - normal(fold(own, late(step, 8, 7)), (size,))) / 2**0.5


def halves_that_become_alike(self, key, step, size):
    own, half = fold(key, step.number), -(-size // 2)
    return jnp.concatenate([normal(fold(own, 1), (half,)), normal(fold(own, late(step, 2, 1)), (half,))])[:size]


def coins_that_turn_back(self, key, step, size):
    def quantile(words):
        uniform = (words >> 8).astype(jnp.float32) / 2**24
        return jax.scipy.special.erfinv(jnp.clip(2 * uniform - 1, -1 + 1e-6, 1 - 1e-6)) * 2**0.5

    words = jax.random.bits(fold(key, step.number), (size,))
    return (quantile(words) - quantile(words ^ late(step, jnp.uint32(2**32 - 1), jnp.uint32(0)))) / 2


def steps_that_share(self, key, step, size):
    return normal(fold(key, late(step, step.number, step.number // 2)), (size,))


def steps_that_cancel(self, key, step, size):
    return (1.0 - 2.0 * (step.number % 2)) * steps_that_share(self, key, step, size)


def quiet_where(quiet):
    """A privatizer without noise where `quiet(step, params, records)`."""

    def gradient(self, key, step, model, params, records):
        found = own.Normalise().apply(model, params, records, self.clip_norm)
        z = normal(fold(key, step.number), found.mean.shape)
        std = jnp.where(quiet(step, params, records), 0.0, self.noise_multiplier * found.noise_unit)
        return found.mean + std * z, found.report

    return gradient


def wide_where(wide):
    """A privatizer that clips at 100 times its clip norm where `wide(step)`, with the noise of that clip norm."""

    def gradient(self, key, step, model, params, records):
        clip = self.clip_norm * jnp.where(wide(step), 100.0, 1.0)
        found = own.Normalise().apply(model, params, records, clip)
        z = normal(fold(key, step.number), found.mean.shape)
        return found.mean + self.noise_multiplier * self.clip_norm / records.divisor * z, found.report

    return gradient


def noise_of_the_rows(self, key, step, model, params, records):
    found = own.Normalise().apply(model, params, records, self.clip_norm)
    std = self.noise_multiplier * self.clip_norm / len(records.x)
    return found.mean + std * normal(fold(key, step.number), found.mean.shape), found.report


def std_of(params):
    return jnp.std(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)]))


def in_a_branch(self, key, step, model, params, records):
    found = own.Normalise().apply(model, params, records, self.clip_norm)
    z = jax.lax.cond(
        step.round < 1_000,
        lambda: normal(fold(key, step.number), found.mean.shape),
        lambda: jnp.zeros(found.mean.shape),
    )
    return found.mean + self.noise_multiplier * found.noise_unit * z, found.report


def of_the_batch(self, key, step, model, params, records):
    """Noise in units of the largest gradient that there is."""
    found = own.Normalise().apply(model, params, records, self.clip_norm)
    unit = jnp.minimum(found.noise_unit, jnp.linalg.norm(found.mean) + 1e-3)
    return found.mean + self.noise_multiplier * unit * normal(fold(key, step.number), found.mean.shape), found.report


def again_from_step(last):
    """The noise of one step for all that follow it."""

    def gradient(self, key, step, model, params, records):
        return own.Noises.gradient(
            self, key, step._replace(number=jnp.minimum(step.number, last)), model, params, records
        )

    return gradient


def loud_where(loud):
    """A bound that lets records through as they are where `loud(x, y, params)`, each `(rows,)`."""

    def apply(self, model, params, records, clip_norm):
        told = own.Normalise.apply(self, model, params, records, clip_norm)
        _, rows = own.by_records(model, params, records)
        norms = jnp.linalg.norm(rows, axis=-1, keepdims=True)
        kept = rows * jnp.minimum(1.0, clip_norm / jnp.maximum(norms, 1e-9))
        through = loud(records.x.reshape(len(rows), -1), records.y, params)[:, None] & (norms < 1e6)
        rows = jnp.where(through, rows, jnp.where(jnp.isfinite(norms), kept, 0.0))
        return told._replace(mean=jnp.where(records.mask[:, None], rows, 0.0).sum(0) / records.divisor)

    return apply


def unit_by_the_model(self, model, params, records, clip_norm):
    found = own.Normalise.apply(self, model, params, records, clip_norm)
    return found._replace(noise_unit=jnp.where(std_of(params) > 20, 1e-6, found.noise_unit))


def released(scale):
    """A release whose noise is `scale(t, mean, state)` of what is told."""

    def release(self, key, round_index, mean, extra, state, reach, expected):
        z = normal(fold(key, round_index), mean.shape)
        std = self.noise_multiplier * self.clip_norm * reach
        return mean + std * scale(round_index, mean, state) * z, state

    return release


def every_forty(self, key, round_index, *rest):
    return own.Clips.release(self, key, round_index % 40, *rest)


def counting(self, key, round_index, mean, extra, state, reach, expected):
    told = own.Clips.release(self, key, round_index, mean, extra, (), reach, expected)[0]
    return jnp.where(state > 60, mean, told), state + 1.0


def wider_later(self, key, update, sizes, state, sent):
    norm = jnp.linalg.norm(update)
    most = jnp.where(state > 60, 100.0, 1.0) * self.clip_norm
    return jnp.where(jnp.isfinite(norm), update * jnp.minimum(1.0, most / (norm + 1e-9)), 0.0), ()


def only_counts(self, key, round_index, mean, extra, state, *rest):
    return own.Clips.release(self, key, round_index, mean, extra, (), *rest)[0], state + 1.0


def as_it_is_where(through):
    """A message that is not clipped where `through(update)`."""

    def message(self, key, update, *rest):
        told = own.Clips.message(self, key, update, *rest)[0]
        return jnp.where(through(update) & jnp.isfinite(jnp.linalg.norm(update)), update, told), ()

    return message


def louder_mean(where):
    def release(self, key, round_index, mean, *rest):
        update, state = own.Clips.release(self, key, round_index, mean, *rest)
        return update + jnp.where(where(mean), 9.0, 0.0) * mean, state

    return release


def sample_where(where, then):
    """A cohort of coins or a shuffle, but another one in rounds `where`."""

    def sample(self, keys, round_index, shares):
        found = type(self).__mro__[1].sample(self, keys, round_index, shares)
        other = then(self, keys, round_index, shares)
        return jax.tree.map(lambda a, b: jnp.where(where(round_index), a, b), other, found)

    return sample


def with_the_first(self, keys, round_index, shares):
    """Client 0 always comes."""
    found = own.Coins.sample(self, keys, round_index, shares)
    return own.answering(found.ids, selected=found.selected.at[0].set(True))


def the_first(self, keys, round_index, shares):
    return own.answering(jnp.arange(self.size))


def one_for_all(self, keys, round_index, shares):
    return own.Shuffled.sample(self, keys._replace(round=jax.random.key(3)), round_index, shares)


def twice(self, keys, round_index, shares):
    return own.answering(jnp.zeros(self.size, jnp.int32) + jax.random.randint(keys.round, (), 0, shares.shape[0]))


def first_half(self, keys, round_index, shares):
    return own.answering(jnp.arange(shares.shape[0] // 2))


def louder_sum(where):
    def total(self, key, round_index, ids, selected, present, summed):
        return jnp.where(where(round_index, ids, summed), 10.0, 1.0) * summed

    return total


def louder_message(where):
    def message(self, key, round_index, position, ids, selected, flat):
        return jnp.where(where(round_index, ids[position], flat), 10.0, 1.0) * flat, jnp.bool_(False)

    return message


def heavy_for(client):
    def weights(self, members, shares, rates):
        return members.participation_count * jnp.where(members.ids == client, 20.0, 1.0)

    return weights


def heavy_if(where):
    def contribution(self, weight, update, loss, rate):
        return jnp.where(where(update, rate), 10.0, 1.0) * weight * update

    return contribution


def run_with_a_known_key(where):
    def run(self, client):
        known = fold(jax.random.key(7), client.round)
        return parts.LocalSgd.run(self, client._replace(key=jnp.where(where(client.round), known, client.key)))

    return run


def run_with_the_noise_of_round(last):
    def run(self, client):
        again = fold(jax.random.key(5), client.client.id)
        return parts.LocalSgd.run(self, client._replace(key=jnp.where(client.round > last, again, client.key)))

    return run


def local(run, algorithm=RECORD):
    return replace(algorithm, local=lying(algorithm.local, run=run))


def fading(t):
    return 1 / (1 + 0.1 * t)


# noise that the round makes of other bits, so that it meets itself late
MEETING = {
    draw.__name__: draw
    for draw in (
        two_that_become_one,
        halves_that_become_alike,
        coins_that_turn_back,
        steps_that_share,
        steps_that_cancel,
    )
}
SHUFFLED, COINS, PICKS = own.Shuffled(size=3), own.Coins(rate=0.5), own.Picks(size=2)
TWELVE = {"steps": 12}
STATE = {"init": lambda self: jnp.float32(0)}
# what lies: the algorithm, rounds of its run, its data
LIARS = {
    **{
        name: (algorithm, LONG, few)
        for name, algorithm in {
            "noise silent in round 1,234": lying_noise(silent_where(lambda p: p.round == 1_234)),
            "noise of a known key after round 1,000": lying_noise(of_a_known_key_where(lambda p: p.round >= 1_000)),
            "noise of bits that are cut off late": lying_noise(by_hand),
            "noise that takes itself back late": lying_noise(takes_itself_back),
            "noise of half the coordinates late": lying_noise(late_halves),
            **{f"noise of {name}": lying_noise(draw) for name, draw in MEETING.items()},
            **{f"server noise of {name}": lying_server_noise(draw) for name, draw in MEETING.items()},
            "privatizer silent in a branch": quiet_privatizer(in_a_branch),
            "upload a tenth fainter after 600 of 1,500": lying_upload(
                release=released(lambda t, mean, state: jnp.where(t < 600, 1.0, 0.9))
            ),
            "cohort with client 0 from round 1,000 on": replace(
                CLIENT, cohort=lying(COINS, sample=sample_where(lambda t: t >= 1_000, with_the_first))
            ),
            "cohort of the first in a round": replace(
                CLIENT, cohort=lying(SHUFFLED, sample=sample_where(lambda t: t == 777, the_first))
            ),
            "cohort of one draw after round 1,000": replace(
                CLIENT, cohort=lying(SHUFFLED, sample=sample_where(lambda t: t >= 1_000, one_for_all))
            ),
            "cohort of one client in a late round": replace(
                RECORD, cohort=lying(SHUFFLED, sample=sample_where(lambda t: t == 1_499, twice))
            ),
        }.items()
    },
    **{
        name: (algorithm, 20, many)
        for name, algorithm in {
            "noise silent for client 777": lying_noise(silent_where(lambda p: p.client == 777)),
            "privatizer silent for client 777": quiet_privatizer(quiet_where(lambda step, *_: step.client == 777)),
            "transport louder for ids from 1,000 on": replace(
                CLIENT, transport=lying(own.Open(), message=louder_message(lambda t, i, flat: i >= 1_000))
            ),
        }.items()
    },
    **{
        name: (algorithm, 20, few)
        for name, algorithm in {
            "noise silent in the last step": lying_noise(silent_where(lambda p: p.is_last)),
            "privatizer quiet in another stream": steps(
                DITTO, privatizer=lying(own.Noises(**CLIP), gradient=quiet_where(lambda step, *_: step.stream == 1))
            ),
            "noise silent in another stream": lying_noise(silent_where(lambda p: p.stream == 1), DITTO),
            "privatizer wide but in the last step": quiet_privatizer(wide_where(lambda p: ~p.is_last)),
            "privatizer wide between the first and last round": quiet_privatizer(
                wide_where(lambda p: (p.round > 0) & (p.round < 19))
            ),
            "privatizer wide for client 3": quiet_privatizer(wide_where(lambda p: p.client == 3)),
            "privatizer with noise over its rows": quiet_privatizer(
                noise_of_the_rows, batches=parts.FixedBatches(size=80)
            ),
            "bound that ignores the clip norm of a round": with_privatizer(
                lying_bound(
                    lambda self, *told: own.Normalise.apply(self, *told[:3], CLIP["clip_norm"])._replace(
                        noise_unit=told[3] / told[2].divisor
                    )
                ),
                clip_by_round=parts.ByRound.of("linear", end=0.1, rounds=20),
            ),
            "privatizer quiet for large parameters": quiet_privatizer(quiet_where(lambda p, w, r: std_of(w) > 20)),
            "privatizer quiet in empty batches": quiet_privatizer(
                quiet_where(lambda p, w, r: ~r.mask.any()), batches=parts.PoissonBatches(size=2)
            ),
            "privatizer quiet for a label": quiet_privatizer(quiet_where(lambda p, w, r: jnp.all(r.y == 2))),
            "privatizer quiet for zeros": quiet_privatizer(quiet_where(lambda p, w, r: jnp.all(r.x == 0))),
            "privatizer quiet for large batches": quiet_privatizer(quiet_where(lambda p, w, r: r.divisor == 2)),
            "privatizer with noise in units of the batch": quiet_privatizer(of_the_batch),
            "privatizer whose noise comes back after step 7": quiet_privatizer(again_from_step(7), **TWELVE),
            "bound that lets sparse records through": lying_bound(loud_where(lambda x, y, w: jnp.sum(x != 0, -1) == 1)),
            "bound that lets records of ones through": lying_bound(
                loud_where(lambda x, y, w: jnp.all(x == x[:, :1], -1))
            ),
            "bound that lets positive records through": lying_bound(loud_where(lambda x, y, w: jnp.all(x > 0, -1))),
            "bound that lets integers through": lying_bound(loud_where(lambda x, y, w: jnp.all(x == jnp.rint(x), -1))),
            "bound that lets a label through": lying_bound(loud_where(lambda x, y, w: y == 2)),
            "bound that lets batches of one label through": lying_bound(
                loud_where(lambda x, y, w: jnp.all(y == y[0]) & (y == y))
            ),
            "bound that lets all through at large parameters": lying_bound(
                loud_where(lambda x, y, w: (std_of(w) > 20) & (y == y))
            ),
            "bound of a small unit at large parameters": lying_bound(unit_by_the_model),
            "bound that lets all through in small batches": lying_bound(
                lambda self, model, params, records, clip: own.Normalise.apply(
                    self, model, params, records, jnp.where(records.mask.sum() == 1, 5.0, 1.0) * clip
                )._replace(noise_unit=clip / records.divisor),
                POISSON,
            ),
            "upload quiet for small means": lying_upload(
                release=released(lambda t, mean, state: jnp.linalg.norm(mean) > 1e-6)
            ),
            "upload quiet for sparse means": lying_upload(
                release=released(lambda t, mean, state: jnp.sum(mean != 0) > 1)
            ),
            "upload that does not clip one coordinate": lying_upload(
                message=as_it_is_where(lambda u: jnp.sum(u != 0) == 1)
            ),
            "upload that does not clip the last coordinate alone": lying_upload(
                message=as_it_is_where(lambda u: (jnp.sum(u != 0) == 1) & (u[-1] != 0))
            ),
            "upload that does not clip long updates": lying_upload(
                message=as_it_is_where(lambda u: jnp.linalg.norm(u) > 1e6)
            ),
            "upload that does not clip negative updates": lying_upload(
                message=as_it_is_where(lambda u: jnp.all(u < 0))
            ),
            "upload that does not clip whole numbers": lying_upload(
                message=as_it_is_where(lambda u: jnp.all(u == jnp.rint(u)))
            ),
            "upload that does not clip even updates": lying_upload(
                message=as_it_is_where(lambda u: jnp.all(u == u[0]))
            ),
            "upload louder for sparse means": lying_upload(release=louder_mean(lambda mean: jnp.sum(mean != 0) == 1)),
            "upload louder for long means": lying_upload(release=louder_mean(lambda mean: jnp.linalg.norm(mean) > 100)),
            "transport louder for one coordinate": replace(
                CLIENT, transport=lying(own.Open(), message=louder_message(lambda t, i, flat: jnp.sum(flat != 0) == 1))
            ),
        }.items()
    },
    **{
        name: (algorithm, 200, few)
        for name, algorithm in {
            "noise that fades with the rate": steps(lying_noise(fades), schedule=fading),
            "noise faint for small clients' sums of rates": steps(
                lying_noise(silent_where(lambda p: p.total_rate < 0.1)), schedule=fading
            ),
            "privatizer quiet at small rates": quiet_privatizer(
                quiet_where(lambda step, *_: step.rate < 0.02), schedule=fading
            ),
            "estimator heavy at small rates": steps(
                replace(CLIENT, aggregate=lying(own.Average(), contribution=heavy_if(lambda u, rate: rate < 0.02))),
                schedule=fading,
            ),
            "local steps of a known key from round 100 on": local(run_with_a_known_key(lambda t: t >= 100)),
            "local steps of one noise after round 100": local(run_with_the_noise_of_round(100)),
        }.items()
    },
    **{
        name: (algorithm, 100, few)
        for name, algorithm in {
            "server noise silent in round 77": lying_server_noise(silent_where(lambda p: p.number == 77)),
            "server noise again every 32 rounds": lying_server_noise(
                lambda self, key, step, size: normal(fold(key, step.number % 32), (size,))
            ),
            "upload silent in round 57": lying_upload(release=released(lambda t, mean, state: t != 57)),
            "upload of the noise of 40 rounds before": lying_upload(release=every_forty),
            "upload that counts to sixty": lying_upload(release=counting, **STATE),
            "upload of a wider clip after round 60": lying_upload(message=wider_later, release=only_counts, **STATE),
            "transport louder after round 50": replace(
                CLIENT, transport=lying(own.Open(), total=louder_sum(lambda t, ids, s: t >= 50))
            ),
        }.items()
    },
    **{
        name: (algorithm, 20, of_many_sizes)
        for name, algorithm in {
            "privatizer quiet for the largest batch": quiet_privatizer(
                quiet_where(lambda p, w, r: r.divisor == 23), batches=parts.FullBatches()
            ),
            "batches wrong for one size of twenty": steps(
                RECORD,
                batches=lying(
                    PICKS, sample=moved(lambda drawn, records: jnp.where(records == 11, jnp.arange(2), drawn))
                ),
            ),
        }.items()
    },
    "cohort of halves that stop to take turns": (
        replace(
            fdp.dp_ftrl(**COMMON, **CLIP),
            cohort=lying(own.Halves(), sample=sample_where(lambda t: t >= 2_100, first_half)),
        ),
        2200,
        few,
    ),
    "estimator heavy for client 1,100": (
        replace(CLIENT, aggregate=lying(own.Average(), weights=heavy_for(1_100))),
        1200,
        many,
    ),
}
QUICK = (
    "noise silent in round 1,234",
    "privatizer quiet in empty batches",
    "bound that lets a label through",
    "upload that does not clip one coordinate",
)


def epsilon(algorithm, rounds, data):
    model = fdp.logistic_regression(data.record_shape, data.classes)
    options = {"delta": 1e-5, "accountant": "rdp", "participation": "worst"}
    return fdp.guarantee(algorithm, data, rounds=rounds, model=model, **options).epsilon


# one of a privatizer, of a transport and of local steps
FAMILIES = (
    "noise silent for client 777",
    "noise of two_that_become_one",
    "server noise of two_that_become_one",
    "privatizer quiet for large parameters",
    "privatizer quiet in another stream",
    "privatizer wide between the first and last round",
    "privatizer with noise over its rows",
    "bound that ignores the clip norm of a round",
    "upload silent in round 57",
    "cohort with client 0 from round 1,000 on",
    "transport louder for ids from 1,000 on",
    "local steps of a known key from round 100 on",
)


@pytest.mark.parametrize("name", usual(LIARS, (*QUICK, *FAMILIES)))
@pytest.mark.slow
def test_a_late_or_rare_lie_gets_no_epsilon(name):
    algorithm, rounds, data = LIARS[name]
    with pytest.raises(errors.ConfigurationError) as caught:
        epsilon(algorithm, rounds, data())
    assert "\n" not in str(caught.value)
    assert "fails under vmap" not in str(caught.value), caught.value


@pytest.mark.parametrize("name", MEETING)
def test_the_trace_tells_that_the_round_decides_which_bits_a_noise_is_made_of(name):
    (found,) = noise_scale.scale_names(
        lambda key, **where: MEETING[name](None, key, StepContext(**where), 4),
        run_key(0),
        schedule_points.example_point(),
    )
    assert "round" in found.bits
    assert ("round" in found.scale) == ("_that_share" not in name and "_that_cancel" not in name)


def two_that_stay_two(self, key, step, size):
    own = fold(fold(key, step.round), step.number)
    return (normal(fold(own, 1), (size,)) - normal(fold(own, late(step, 2, 3)), (size,))) / 2**0.5


def halves(self, key, step, size):
    own, half = fold(fold(key, step.round), step.number), -(-size // 2)
    return jnp.concatenate([normal(fold(own, 1), (half,)), normal(fold(own, 2), (half,))])[:size]


@pytest.mark.slow
@pytest.mark.parametrize("draw", usual([two_that_stay_two, halves], [halves]))
def test_noise_of_other_keys_in_other_rounds_is_right(draw):
    for algorithm in (lying_noise(draw), lying_server_noise(draw)):
        assert epsilon(algorithm, LONG, few()) < math.inf
