"""Checks that the parts after a client's steps bound its update and add noise as stated."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Adjacency, FullBatch
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import schedule_points
from fedjax_dp.inspection.neighbours import SCALES
from fedjax_dp.inspection.noise_law import examine_noise, examine_sizes, require_uncorrelated
from fedjax_dp.inspection.noise_scale import Names, require_public, scale_names
from fedjax_dp.inspection.schedule_points import whiten
from fedjax_dp.inspection.steps import releases_of
from fedjax_dp.inspection.trials import NOISE_SLACK, SLACK, TRIALS, Place, compile_trials, draw_cohorts, keys_of
from fedjax_dp.inspection.verdict import require, require_at_most, require_so
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.parts.aggregation import Aggregate
from fedjax_dp.parts.client_privacy import (
    ClientPrivacy,
    MessageEncoding,
    Participation,
    UpdatePrivatizer,
    amplified_sampling,
    hides_clients,
    noisy_sums,
    released_noise,
)
from fedjax_dp.parts.cohorts import SEEN, Members
from fedjax_dp.parts.local_training import extreme_rates
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.parts.transport import Transport
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import mask_rows, tensor_sizes
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key

HORIZON = 32  # rounds that are tried


def examine_upload(upload: ClientPrivacy, place: Place) -> None:
    """Check that the noise added to the mean covers the longest message in every round, and that the mean is kept."""
    algorithm, data, model, rounds = place[:4]
    if upload.shared_noise or upload.extra:
        raise AssertionError("only the project's uploads may share noise or send extra numbers with an update")
    sizes = tensor_sizes(model.init(run_key(0)))
    size, horizon = sum(sizes), min(rounds, HORIZON)
    cohort, shares = algorithm.cohort, jnp.asarray(data.shares)
    members, rates = cohort.capacity(data.num_clients), cohort.rates(shares)
    reach = jnp.float32(algorithm.aggregate.sensitivity(shares, rates, members))
    expected = jnp.float32(members) if rates is None else jnp.sum(rates)
    stated = _multiplier(upload, algorithm, data, rounds, size) * float(reach)
    depends = _scale_of_noise(upload, size, reach, expected)
    source = correlated_source(upload)
    stateful = bool(jax.tree.leaves(upload.init(size))) or source is not None  # all rounds, one after another

    def run(keys: tuple[jax.Array, ...], rounds: jax.Array, means: jax.Array, most: int = size) -> Any:
        """Noise of one key, or the difference of two, which is 0 for noise that is drawn with another key."""

        def step(states: Any, now: Any) -> Any:
            t, mean = now
            releases = [upload.release(key, t, mean, (), state, reach, expected) for key, state in zip(keys, states)]
            noise = releases[0][0] - (mean if len(releases) == 1 else releases[1][0])
            return tuple(after for _, after in releases), (noise[:most], jnp.sum(noise**2) / len(releases), states[0])

        return jax.lax.scan(step, tuple(upload.init(size) for _ in keys), (rounds, means))[1]

    means, first = _means(numpy_stream("means of uploads"), horizon, size), jnp.arange(horizon)
    many = int(np.clip(2**21 // (horizon * size), 64, 2000))
    keys = keys_of(many, "release")
    noise = np.asarray(compile_trials(lambda key: run((key,), first, jnp.asarray(means))[0])(keys), float)
    quiet = np.asarray(compile_trials(lambda key: run((key,), first, jnp.zeros_like(means))[0])(keys[:4]), float)
    scale = np.maximum(np.abs(means).max(-1, keepdims=True), np.abs(quiet).max(-1, keepdims=True)) + 1e-30
    error = float((np.abs(noise[:4] - quiet) / scale).max())
    require(error < 1e-3, "the mean that joins its noise", f"changed by {error:.2g}", "as it arrived")
    tried, times = np.arange(rounds), -(-schedule_points.LEAST // size)
    if not (stateful or depends):
        tried = np.unique(np.linspace(0, rounds - 1, min(rounds, max(2**22 // size, HORIZON))).astype(int))
    if tried.size * size * times > schedule_points.MOST:
        require(False, "the size of its noise", "one that depends on the round", "one that can be tried everywhere", "")
    still = jnp.zeros((tried.size, size))

    def of_two(key: jax.Array) -> Any:
        both = role_key(key, "one"), role_key(key, "other")
        return run(both, jnp.asarray(tried), still, min(size, schedule_points.ROWS))

    rows, squares, states = compile_trials(of_two)(keys_of(times, "all rounds"))
    states = jax.tree.map(lambda a: a[0] if stateful else a[0, :1], states)
    sent = MessageEncoding(members, algorithm.transport.resolution, algorithm.transport.limit(members))
    longest = _longest_messages(upload, sizes, states, sent)
    require_so(np.isfinite(longest).all(), "a message", "one that is not finite", "finite: else a run would stop")
    wanted = np.broadcast_to(stated * longest, tried.shape)
    require(np.all(wanted > 0), "the noise multiplier of its event", f"{stated:g}", "above 0")
    std = np.sqrt(np.mean(noise**2, (0, 2)))
    least = float(np.min(std / wanted[:horizon]))
    slack = max(NOISE_SLACK, 6 / np.sqrt(2 * many * size))
    require(
        least >= 1 - slack,
        "standard deviation of the noise over that of its event",
        f"{least:.4g}",
        "1 or more",
        f"{slack:.0%} may be chance",
    )
    above = np.sum(np.asarray(squares, float), 0) / (wanted * (1 - SLACK)) ** 2
    examine_sizes(above, times * size, lambda at: f"round {tried[at]}", least=True)
    if source is not None:  # scaled to the source's own noise, then the white noise under it
        coefficients = np.append(np.asarray(source.coefficients(rounds), float), np.zeros(rounds))[:rounds]
        own = np.sqrt(np.cumsum(coefficients**2))
        lengths = np.sqrt(np.mean(np.asarray(squares, float), 0) / size)
        rows = whiten(np.asarray(rows, float) * (own / lengths)[:, None], source)
        noise = whiten(noise * (own[:horizon] / std)[:, None], source)
        std = np.ones(horizon)
    examine_noise(noise / std[:, None], [f"round {t}" for t in range(horizon)])
    require_uncorrelated("rounds", np.asarray(rows[0], float), [f"round {t}" for t in tried])


def _scale_of_noise(upload: ClientPrivacy, size: int, reach: Any, expected: Any) -> Names:
    """Names of what the size of its noise depends on, the round or its state; refuses the received mean."""

    def release(key: jax.Array, now: Any, mean: Any, kept: Any, numbers: Any) -> Any:
        return upload.release(key, now, mean, (), kept, *numbers)[0]

    inputs = {"now": jnp.int32(0), "mean": jnp.zeros(size), "kept": upload.init(size), "numbers": (reach, expected)}
    (trace,) = scale_names(release, run_key(0), inputs)
    require_public(trace.scale, {"mean": "the mean that it joins"})
    return trace.scale - {"numbers"}


def _means(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    means = rng.normal(size=(count, size)) * np.resize([1.0, 1e-4, 1e2, 1.0, 1e-2], count)[:, None]
    means[3::5] *= np.arange(size) == rng.integers(0, size)
    return means.astype(np.float32)


def _longest_messages(upload: ClientPrivacy, sizes: Sequence[int], states: Any, sent: MessageEncoding) -> np.ndarray:
    """The norm of the longest message of updates of many kinds, for each of some states `(rounds or 1,)`."""
    count = len(jax.tree.leaves(states)[0]) if jax.tree.leaves(states) else 1
    updates = jnp.asarray(_updates(upload, sum(sizes), 2**24 // count))

    def longest(state: Any) -> jax.Array:
        def of(key: jax.Array, update: jax.Array) -> jax.Array:
            message, more = upload.message(key, update, sizes, state, sent)
            if jax.tree.leaves(more):
                raise AssertionError("extra numbers are sent with an update, though `extra` is 0")
            return jnp.sqrt(jnp.sum(message * message))

        return jnp.max(jax.vmap(of)(keys_of(len(updates), "message"), updates))

    run = jax.jit(lambda: jax.lax.map(longest, states) if jax.tree.leaves(states) else longest(states)[None])
    return np.asarray(run(), float)


def _updates(upload: ClientPrivacy, size: int, numbers: int) -> np.ndarray:
    """Dense, sparse, even, one-signed and integer updates of all lengths, and single coordinates, all if possible."""
    rng = numpy_stream("updates")
    dense = rng.normal(size=(TRIALS, size))
    sparse = dense * (rng.random((TRIALS, size)) < 0.1)
    even = np.resize([1.0, -1.0], (TRIALS, 1)) * np.ones(size)
    kinds = np.concatenate([dense, sparse, np.abs(dense), -np.abs(dense), even, np.rint(dense), np.sign(dense)])
    near = _message_length(upload) / np.maximum(np.linalg.norm(kinds, axis=1, keepdims=True), 1e-12)
    lengths = np.concatenate(
        [SCALES, 10.0 ** rng.uniform(-9, 37, TRIALS - 2 * SCALES.size), np.full(SCALES.size, 1.01)]
    )
    lengths = np.concatenate([np.resize(lengths, TRIALS)[rng.permutation(TRIALS)] for _ in range(7)])[:, None]
    alone = np.eye(size)[rng.permutation(size)[: max(numbers // size - len(kinds), 64)]]
    alone = (
        alone
        * _message_length(upload)
        * 10.0 ** rng.uniform(0.01, 6, (len(alone), 1))
        * rng.choice([-1, 1], (len(alone), 1))
    )
    with np.errstate(invalid="ignore", over="ignore"):
        every = np.concatenate([kinds * lengths, kinds * near * 1.5, alone]).astype(np.float32)
    return every[: max(numbers // size, 128)] if numbers // size < len(every) else every


def _multiplier(upload: ClientPrivacy, algorithm: Algorithm, data: FederatedData, rounds: int, size: int) -> float:
    """The largest noise multiplier in its events, for all rounds and all samplings and neighbours of the run."""
    cohort, count = algorithm.cohort, data.num_clients
    members, resolution = cohort.capacity(count), algorithm.transport.resolution
    noise, source, multipliers = released_noise(upload), correlated_source(upload), []
    for sampling, adjacency in {SEEN, amplified_sampling(upload, cohort, count, rounds, 0)}:
        attendance = Participation(
            sampling, adjacency, rounds, rounds, cohort.min_separation(count), members, members, resolution, size
        )
        event, least = upload.event(noise, attendance), -(-rounds // cohort.min_separation(count))
        counted = releases_of(event, sampling, adjacency, least, source, any_neighbours=True)
        if source is not None:
            seen = all(one.sampling == FullBatch() for one in counted)
            of_law = attendance._replace(sampling=FullBatch(), adjacency=adjacency) if seen else attendance
            least_of = [release for release, _ in noisy_sums(source, noise, of_law).leaves()]
            few = sum(one.count for one in counted) < sum(one.count for one in least_of)
            most = [max((one.relative_noise for one in each), default=np.inf) for each in (counted, least_of)]
            alike = not few and most[0] <= most[1] * (1 + 1e-6)
            require_so(alike, "its event", "less than the noise of its source costs", "as in `noisy_sums`")
        multipliers += [release.noise_multiplier for release in counted]
    return max(multipliers, default=np.inf)


def _message_length(upload: UpdatePrivatizer) -> float:
    """The length of messages that transports and means are tried with."""
    return float(upload.clip_norm) if hides_clients(upload) else 1.0


def _sample_cohorts(place: Place, most: int) -> tuple[Members, np.ndarray]:
    """Cohorts of the run and their rounds: all rounds, if these are no more than `most`."""
    tried = np.unique(np.linspace(0, place.rounds - 1, min(place.rounds, max(most, TRIALS))).astype(np.int32))
    shares = jnp.asarray(place.data.shares)
    return draw_cohorts(place.algorithm.cohort, run_key(place.seed), tried, shares), tried


def examine_transport(transport: Transport, place: Place) -> None:
    """Check that the sum that arrives is the sum of the messages: otherwise its noise would be scaled."""
    members, size = place.algorithm.cohort.capacity(place.data.num_clients), 8
    clip = _message_length(place.algorithm.upload)
    schedule, tried = _sample_cohorts(place, 2**20 // members**2)
    at = jnp.arange(members, dtype=jnp.int32)

    def off(key: jax.Array, t: jax.Array, ids: jax.Array, here: jax.Array) -> jax.Array:
        flat = clip * jax.random.uniform(key, (members, size), minval=-1.0)
        flat = jnp.where(t % 3 == 2, flat * (jnp.arange(size) == t % size)[None], flat)  # a single coordinate, too

        def send(i: jax.Array) -> Any:
            return transport.message(key, t, i, ids, here, flat[i])[0]

        def add_up(a: jax.Array) -> jax.Array:
            return mask_rows(a, here).sum(0, dtype=a.dtype)

        arrived = transport.total(key, t, ids, here, here, jax.tree.map(add_up, jax.vmap(send)(at)))
        return jnp.abs(arrived - jnp.where(here[:, None], flat, 0).sum(0)).max()

    keys = keys_of(len(tried), "transport")
    errors = compile_trials(off)(keys, jnp.asarray(tried), jnp.asarray(schedule.ids), jnp.asarray(schedule.selected))
    worst = float(np.max(np.asarray(errors)))
    allowed = members * (0.51 * transport.resolution + 1e-5 * clip)
    require_at_most("what arrives less the sum of the messages", worst, allowed)


def examine_estimator(aggregate: Aggregate, place: Place) -> None:
    """Check, in cohorts of the run, that the mean is linear and that one message moves it by at most its reach."""
    algorithm, data, _, rounds = place[:4]
    shares, local = jnp.asarray(data.shares), algorithm.local
    rates = algorithm.cohort.rates(shares)
    size, compared = 8, 24
    positions = algorithm.cohort.capacity(data.num_clients)
    schedule, _ = _sample_cohorts(place, 2**21 // (positions * min(positions, compared)))
    clip = _message_length(algorithm.upload)
    reach = float(aggregate.sensitivity(shares, rates, positions))
    least, most = extreme_rates(local, data.largest, rounds)
    _, adjacency = amplified_sampling(algorithm.upload, algorithm.cohort, data.num_clients, rounds, 0)
    added = adjacency is not Adjacency.REPLACE_ONE

    def mean(here: Members, updates: jax.Array, rate: jax.Array, params: jax.Array) -> jax.Array:
        weights = aggregate.weights(here, shares, rates)
        each = jax.vmap(lambda w, u: aggregate.contribution(w, u, jnp.float32(1), rate))(weights, updates)
        total = jax.tree.map(lambda a: mask_rows(a, here.present).sum(0), each)
        return aggregate.combine(total, here, shares, rates, params)

    def of(members: Members, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        names = ("one", "other", "length", "rate", "params", "position")
        keys = {name: jax.random.fold_in(key, i) for i, name in enumerate(names)}
        one, other = (jax.random.normal(keys[name], (positions, size)) for name in names[:2])
        lengths = clip * 10.0 ** jax.random.uniform(keys["length"], (positions, 1), minval=-3.0, maxval=0.0)
        one, other = (lengths * a / jnp.linalg.norm(a, axis=-1, keepdims=True) for a in (one, other))
        rate = jax.random.uniform(keys["rate"], minval=least, maxval=most)
        zero = jnp.zeros(size)
        rest = mean(members, 0 * one, rate, zero)
        parts = mean(members, one, rate, zero) - rest + mean(members, other, rate, zero) - rest
        whole = mean(members, one + other, rate, jax.random.normal(keys["params"], (size,))) - rest
        bent = jnp.abs(whole - parts).max() / (clip * reach)
        ahead = clip * jnp.broadcast_to(zero.at[0].set(1.0), (positions, size))

        def moves(position: jax.Array) -> jax.Array:
            full = mean(members, ahead, rate, zero)
            turned = mean(members, ahead.at[position].set(-ahead[0]), rate, zero)
            left = members._replace(participation_count=members.participation_count.at[position].set(0.0))
            joined = jnp.linalg.norm(full - mean(left, ahead, rate, zero))
            lone = jnp.linalg.norm(turned - mean(left, ahead, rate, zero))
            return jnp.maximum(joined, lone) if added else jnp.linalg.norm(full - turned) / 2

        some = jnp.arange(min(positions, compared)) + jax.random.randint(keys["position"], (), 0, positions)
        return bent, jnp.max(jax.vmap(moves)(some % positions)) / clip

    members = jax.tree.map(jnp.asarray, schedule)
    run = compile_trials(of)
    bent, moved = (float(np.max(np.asarray(a))) for a in run(members, keys_of(len(schedule.ids), "estimator")))
    certain = "in cohorts of this run"
    require_at_most("the mean of two sums of messages less their means, over its reach", bent, 1e-2, certain)
    require_at_most("what a client of norm 1 moves the mean by", moved, reach * (1 + SLACK), certain)
