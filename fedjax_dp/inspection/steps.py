"""Checks that the parts of a local step bound records and add noise as stated."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Adjacency, Event, FullBatch, GaussianSteps, Release, Sampling
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import schedule_points
from fedjax_dp.inspection.neighbours import (
    BATCHES,
    DIVISOR,
    NeighbouringBatches,
    neighbouring_batches,
    require_bounded,
)
from fedjax_dp.inspection.noise_law import examine_noise
from fedjax_dp.inspection.noise_scale import Names, require_public, scale_names
from fedjax_dp.inspection.schedule_points import whiten
from fedjax_dp.inspection.trials import NOISE_SLACK, SLACK, Place, compile_trials, keys_of
from fedjax_dp.inspection.verdict import require, require_at_most, require_so
from fedjax_dp.models.model import size_of
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.parts import facts
from fedjax_dp.parts.batches import neighbours_of
from fedjax_dp.parts.clipping import Bound, Records
from fedjax_dp.parts.contexts import ClientContext, Received, StepContext
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.parts.local_training import extreme_rates
from fedjax_dp.parts.noise import NoiseSource, WhiteNoise, correlated_source
from fedjax_dp.parts.record_privacy import Privatizer, clips
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import field_of, ravel
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key

CLIP_NORMS = 12  # of a run whose clip norm changes, the most that bounds are tried at
AGAIN = 24  # times as many draws of noise that seems too small
TRIED_EVERYWHERE = 8  # neighbours that are tried at every point on which a gradient depends


def _streams(place: Place) -> list[int]:
    """The streams of draws whose noise is examined."""
    return [0] if place.by_client else sorted(schedule_points.gradients_of(place.algorithm, place.data))


def examine_source(source: NoiseSource, place: Place) -> None:
    """Check the law of noise at 12 steps of random clients and rounds, or everywhere if its size depends on them."""
    for stream in _streams(place):
        _examine_source(source, place, stream)


def _examine_source(source: NoiseSource, place: Place, stream: int) -> None:
    size, steps, trials = 48, 12, 200
    draws = schedule_points.draws_of(source, stream)

    def of(key: jax.Array) -> jax.Array:
        client, t = (jax.random.randint(role_key(key, name), (), 0, 1000) for name in ("client", "round"))
        rate, total = (jax.random.uniform(role_key(key, name), minval=0.01, maxval=2.0) for name in ("rate", "drift"))

        at, ones = jnp.arange(steps, dtype=jnp.uint32), jnp.ones(steps, jnp.int32)
        return draws(key, StepContext(client * ones, t * ones, at, rate * ones, total * ones, at == steps - 1), size)

    noise = np.asarray(compile_trials(of)(keys_of(trials, "noise")), float)
    if source.fresh:
        more = np.count_nonzero(np.asarray(source.coefficients(steps), float)[1:])
        require(not more, "coefficients of fresh noise", f"{1 + more}", "1, or `fresh` False")
    examine_noise(whiten(noise, source), [f"step {t}" for t in range(steps)])
    (trace,) = scale_names(
        lambda key, **at: source.draw(key, StepContext(**at, stream=stream), size, source.init(size))[0],
        run_key(0),
        schedule_points.example_point(),
    )
    depends = trace.values | trace.scale
    if jax.tree.leaves(source.init(size)):
        depends |= {"state"}  # so all of the run is drawn
    longest = max(place.rounds, steps)
    whole = np.append(np.asarray(source.coefficients(longest), float), np.zeros(longest))
    for fewer in {*range(1, min(longest, 64)), place.algorithm.cohort.min_separation(place.data.num_clients)}:
        first = np.append(np.asarray(source.coefficients(fewer), float), np.zeros(fewer))[: min(fewer, longest)]
        alike = np.allclose(first, whole[: first.size], rtol=1e-9, atol=1e-12)
        require_so(alike, f"coefficients of {fewer} steps", "others", f"the first of those of {longest}")
    if place.by_client:
        every = schedule_points.points_of_server(place.rounds)
    else:
        names = depends | trace.bits
        every = schedule_points.points_of_clients(place.algorithm, place.data, place.rounds, names, stream)
    schedule_points.examine(draws, every, source, size_of(place.model), depends, trace.bits)


def _records(x: jax.Array, y: Any, mask: jax.Array, key: jax.Array) -> Records:
    return Records(x, y, mask, jnp.int32(DIVISOR), jax.random.split(key, mask.shape[0]))


def _varies(algorithm: Algorithm) -> bool:
    return neighbours_of(algorithm.local.batches.sampling(2**31 - 1)) is Adjacency.ADD_REMOVE


def examine_bound(bound: Bound, place: Place) -> None:
    """Check that neighbouring batches move the mean by at most its unit, which is public."""
    algorithm, data, model, rounds = place[:4]
    privatizer = algorithm.local.privatizer
    if not clips(privatizer):
        return  # the privatizer is examined with it
    batches = neighbouring_batches(data, model, _varies(algorithm))

    def of(key: jax.Array, clip: Any, params: jax.Array, x: jax.Array, y: Any, mask: jax.Array) -> tuple[Any, Any]:
        bounded = bound.apply(model, batches.unravel(params), _records(x, y, mask, key), clip)
        return bounded.mean, jnp.broadcast_to(bounded.noise_unit, bounded.mean.shape)

    clip = np.float32(privatizer.clip_norm)
    traced = {"params": batches.params[0], "records": tuple(jax.tree.map(lambda a: a[0], batches.own))}
    _, unit = scale_names(lambda key, params, records: of(key, clip, params, *records), run_key(0), traced)
    public = not (unit.values or unit.noise)
    require_so(public, "the unit of the noise", "one of its records or of the model", "one of public numbers")
    run, changes = compile_trials(of, (0, None, 0, 0, 0, 0)), field_of(privatizer, "clip_by_round")
    factors = np.unique(np.ones(1) if changes is None else changes.factors(rounds))
    for factor in factors[np.unique(np.linspace(0, factors.size - 1, CLIP_NORMS).astype(int))].tolist():
        _examine_reach(bound, batches, run, clip * np.float32(factor), _varies(algorithm))


def _examine_reach(
    bound: Bound, batches: NeighbouringBatches, run: Callable[..., Any], clip: np.float32, varies: bool
) -> None:
    keys = keys_of(BATCHES, "bound")
    (one, unit), (other, theirs), (less, last) = (
        jax.tree.map(np.asarray, run(keys, clip, batches.params, *batch)) for batch in batches[:3]
    )
    alike = np.array_equal(unit, theirs) and np.array_equal(unit, last) and np.ptp(unit, axis=0).max() == 0
    require_so(alike, "the unit of the noise is the same for all batches", "not", "so")
    stated = clip / DIVISOR if bound.per_record else clip
    least = float(unit.min())
    require(least >= stated * (1 - SLACK), "the unit of the noise", f"{least:.4g}", f"{stated:.4g} or more")
    require_bounded("an exchanged record moves the mean, in units", one / unit, other / unit, 2.0)
    if bound.per_record:
        require_bounded("a record less moves the mean, in units", one / unit, less / unit, 1.0)
    if not bound.assumption and not varies:
        longest = float(np.linalg.norm(one, axis=-1).max())
        require_at_most("the length of the mean", longest, clip * (1 + SLACK))


def examine_privatizer(privatizer: Privatizer, place: Place) -> None:
    """Check that its event covers all steps, and that its noise over the neighbours' difference is as stated."""
    if privatizer.on_upload:
        raise AssertionError("noise on the upload is supported by OutputGaussian alone, with any bound and source")
    for stream in _streams(place):
        _examine_privatizer(privatizer, place, stream)


def _examine_privatizer(privatizer: Privatizer, place: Place, stream: int) -> None:
    algorithm, data, model, rounds = place[:4]
    sizes = np.asarray(data.sizes)
    events = [_event(privatizer, algorithm, data, i) for i in range(data.num_clients)]
    multipliers = np.array([min((step.noise_multiplier for step in steps), default=np.inf) for steps in events])
    kind = _noise_kind(events)
    tau = schedule_points.gradients_of(algorithm, data)[stream]
    some = sorted(
        {int(np.argmin(sizes)), int(np.argmax(sizes)), int(np.argmin(multipliers)), int(np.argmax(multipliers))}
    )
    steps = np.unique(np.linspace(0, tau - 1, min(tau, 6)).astype(int))
    batches, varies = neighbouring_batches(data, model, _varies(algorithm)), _varies(algorithm)
    many = max(2**14 // batches.params.shape[1], 500)

    def of(
        key: jax.Array, point: Any, divisor: Any, params: jax.Array, x: jax.Array, y: Any, mask: jax.Array
    ) -> jax.Array:
        records = _records(x, y, mask, run_key(1))._replace(divisor=divisor)
        step = StepContext(*point)._replace(stream=stream)
        return privatizer.gradient(key, step, model, batches.unravel(params), records)[0]

    usual, divisor = tuple(a[0] for a in batches.own), jnp.int32(DIVISOR)
    depends, bits, moved_by = _scale_of_noise(of, (batches.params[0], *usual))
    draw = compile_trials(jax.vmap(of, (None, 0, *[None] * 5)), (0, None, *[None] * 5))
    run = compile_trials(of, (0, None, None, 0, 0, 0, 0))
    own_keys, loud = keys_of(BATCHES, "privatizer"), (batches.params[0], *usual)
    pair = batches.own, batches.without_one if varies else batches.with_other
    least, least_moves = np.inf, np.full(BATCHES, np.inf)
    for client in some:
        for t in sorted({0, rounds - 1}):
            at = schedule_points.arrays(schedule_points.points_of_steps(algorithm, data, client, t, steps, stream))
            keys = keys_of(2 * many, f"noise {client} {t}")
            noise = _noise_of_pairs(draw(keys, at, divisor, *loud))  # (draws, steps, size)
            std = np.sqrt(np.mean(noise**2, 0))
            require_so(np.all(std > 0), "every coordinate of every step is noised", "not", "so")
            last, at_last = tuple(a[-1] for a in at), tuple(a[-1:] for a in at)
            own, other = (np.asarray(run(own_keys, last, divisor, batches.params, *batch), float) for batch in pair)
            finite = np.isfinite(own).all() and np.isfinite(other).all()
            require_so(finite, "a noised gradient", "not finite", "finite: a run that stops reveals a record")
            difference, share = (own - other) * kind.deviation, multipliers[client] / (1.0 if varies else 2.0)
            over = share * _largest_move(difference / std[-1], kind.norm)
            if over > 1 + NOISE_SLACK:  # by chance, where a record moves few coordinates: drawn again, more often
                again = [keys_of(2 * many, f"noise again {client} {t} {part}") for part in range(AGAIN)]
                squares = [
                    np.mean(_noise_of_pairs(draw(keys, at_last, divisor, *loud))[:, 0] ** 2, 0) for keys in again
                ]
                over = share * _largest_move(difference / np.sqrt(np.mean(squares, 0)), kind.norm)
            law, chance = "standard deviation of its noise over that of its event", f"{NOISE_SLACK:.0%} may be chance"
            require(over <= 1 + NOISE_SLACK, law, f"{1 / over:.4g}", "1 or more", chance)
            examine_noise(kind.as_normal(noise / std), [f"step {step}" for step in steps])
            spread = np.sqrt(np.mean(std**2, 1))
            require(
                np.ptp(spread) <= NOISE_SLACK * spread.max() or spread[-1] <= spread.min() * (1 + NOISE_SLACK),
                "noise of the steps",
                f"from {spread.min():.4g} to {spread.max():.4g}",
                "alike",
            )
            least = min(least, float(spread.min()) / multipliers[client])
            least_moves = np.minimum(least_moves, np.linalg.norm(own - other, ord=kind.norm, axis=-1))
    if moved_by:
        every = schedule_points.points_of_clients(algorithm, data, rounds, moved_by, stream)
        far = np.flatnonzero(least_moves >= 0.9 * least_moves.max())
        far = far[np.linspace(0, far.size - 1, TRIED_EVERYWHERE).astype(int)]  # neighbours that move it the furthest

        def move(point: Any) -> jax.Array:
            one, other = (
                jax.vmap(of, (None, None, None, 0, 0, 0, 0))(
                    run_key(2), point, divisor, batches.params[far], *jax.tree.map(lambda a: a[far], batch)
                )
                for batch in pair
            )
            return jnp.max(jnp.linalg.norm(one - other, ord=kind.norm, axis=-1))

        first = max(rounds, data.num_clients)  # in which each round and client occurs
        flat = tuple(a[:first].reshape(-1) for a in schedule_points.arrays(every))
        over = float(np.max(jax.jit(lambda points: jax.lax.map(move, points, batch_size=64))(flat))) / least_moves.max()
        law, of_names = "neighbours' distance over that where its noise was measured", ", ".join(sorted(moved_by))
        require(over <= 1 + NOISE_SLACK, law, f"{over:.4g} at some {of_names}", "at most 1 everywhere")
    _examine_everywhere(of, privatizer, place, loud, least * multipliers, depends, bits, kind, stream)


def _largest_move(moved: np.ndarray, norm: int) -> float:
    return float(np.max(np.linalg.norm(moved, ord=norm, axis=-1)))


def _noise_of_pairs(draws: jax.Array) -> np.ndarray:
    """Differences of pairs of draws, scaled to the noise of one."""
    return (np.asarray(draws[::2], float) - np.asarray(draws[1::2], float)) / np.sqrt(2)


def _scale_of_noise(of: Callable[..., jax.Array], usual: tuple[Any, ...]) -> tuple[Names, Names, Names]:
    """Names of what the noise's size and bits depend on, and fields of the point on which the value depends.

    It refuses noise of a size that depends on the parameters or the records.
    """

    def release(key: jax.Array, divisor: Any, params: Any, records: Any, **where: Any) -> jax.Array:
        return of(key, schedule_points.arrays(StepContext(**where)), divisor, params, *records)

    params, *records = usual
    inputs = {
        "divisor": jnp.int32(DIVISOR),
        "params": params,
        "records": tuple(records),
        **schedule_points.example_point(),
    }
    (trace,) = scale_names(release, run_key(0), inputs)
    require_so(trace.noise, "the gradient", "no noise of its key", "noise", "the trace is exact")
    require_public(trace.scale | trace.bits, {"params": "the parameters", "records": "the records of its batch"})
    return trace.scale, trace.bits, trace.values & schedule_points.example_point().keys()


def _examine_everywhere(
    of: Callable[..., jax.Array],
    privatizer: Privatizer,
    place: Place,
    usual: tuple[Any, ...],
    wanted: np.ndarray,
    depends: Names,
    bits: Names,
    kind: Release,
    stream: int,
) -> None:
    """Check that noise is as stated wherever its size may change, with each client's divisor, and never repeats.

    wanted  the standard deviation for each client, for the divisor that was tried.
    """
    every_divisor = schedule_points.divisors(place.algorithm, place.data)
    for own in every_divisor if np.any(np.ptp(every_divisor, axis=0)) else every_divisor[:1]:
        share = np.array([privatizer.noise_unit(int(divisor)) for divisor in own]) / privatizer.noise_unit(DIVISOR)
        if np.any(share > 1 + SLACK):  # in these batches a record moves the mean further than was tried
            depends |= {"divisor"}

        def draw(key: jax.Array, at: StepContext, size: int, own: Any = own) -> jax.Array:
            def one(*point: Any) -> jax.Array:
                divisor = jnp.asarray(own, jnp.int32)[StepContext(*point).client]
                return of(key, point, divisor, *usual)[:size]

            return jax.vmap(one)(*schedule_points.arrays(at))

        every = schedule_points.points_of_clients(place.algorithm, place.data, place.rounds, depends | bits, stream)
        as_normal = None if kind.is_normal else kind.as_normal
        schedule_points.examine(draw, every, WhiteNoise(), usual[0].size, depends, bits, wanted * share, as_normal)


def _event(privatizer: Privatizer, algorithm: Algorithm, data: FederatedData, client: int) -> list[Release]:
    """The releases of a client's event, which must cover all its steps, batches and neighbours."""
    local, records = algorithm.local, int(np.asarray(data.sizes)[client])
    steps, law = local.batches.count(local.steps, records), local.batches.sampling(records)
    noise = privatizer.client_noise(data.num_clients)[client]
    rates = np.full(1, float(local.rates(0, data.largest)[-1]))
    event = privatizer.event(noise, local.batches, records, steps, lambda: rates)
    return releases_of(event, law, neighbours_of(law), steps, correlated_source(privatizer))


def releases_of(
    event: Event, law: Sampling, adjacency: Adjacency, sums: int, source: Any, any_neighbours: bool = False
) -> list[Release]:
    """The releases of an event, which must cover so many sums, with their sampling law and adjacency.

    For a correlated source of the project one release may cover all sums, with `any_neighbours` of any adjacency.
    """
    joined = source is not None and facts.of_the_project(source)
    releases = [release for release, _ in event.leaves()]
    for release in releases:
        alike = release.adjacency is adjacency or (joined and any_neighbours)
        require(alike, "neighbours", release.adjacency.value, adjacency.value)
        require(release.sampling in (law, FullBatch()), "sampling in its event", str(release.sampling), str(law))
    counted = sum(release.count for release in releases)
    require(joined or counted >= sums, "noisy sums in its event", f"{counted}", f"the {sums} that are drawn")
    return releases


def _noise_kind(events: list[list[Release]]) -> Release:
    """One of the releases, which must all have one kind of noise: it states the law and the bound's norm."""
    every = {type(step): step for steps in events for step in steps}
    require(len(every) <= 1, "noise in its events", f"of {len(every)} kinds", "of one kind")
    return next(iter(every.values()), GaussianSteps(1.0, FullBatch(), Adjacency.REPLACE_ONE, 1))


def examine_correction(correction: Correction, place: Place) -> None:
    """For noise on the upload: check that a step increases the distance of two models by that of gradients at most."""
    algorithm, data, model, rounds = place[:4]
    if not algorithm.local.privatizer.on_upload:
        return
    start, unravel = ravel(model.init(run_key(0)))
    rate = jnp.float32(extreme_rates(algorithm.local, data.largest, rounds)[1])
    rng = numpy_stream("models of corrections")
    scale = np.resize([1e-2, 1.0, 1e2], BATCHES)[:, None]
    pairs = (scale * rng.normal(size=(4, BATCHES, start.size))).astype(np.float32)
    one = jnp.zeros((1, *data.record_shape), jnp.int32 if data.tokens else jnp.float32)
    records = Records(one, jnp.zeros(1, jnp.int32), jnp.ones(1, bool), jnp.int32(1))
    held = jax.tree.map(jnp.asarray, data)

    def corrected(step: StepContext, params: jax.Array, gradient: jax.Array) -> jax.Array:
        own = held.client(step.client)
        client = ClientContext(run_key(0), step.round, own, held, model, unravel, Received(start))
        return correction.gradient(gradient, params, step, client, records)

    def reach(point: tuple[Any, ...], pairs: Any) -> tuple[jax.Array, jax.Array]:
        step, (v, w, g, h) = StepContext(*point), pairs
        correct = jax.vmap(functools.partial(corrected, step))

        def after(params: jax.Array, gradient: jax.Array) -> jax.Array:
            return params - step.rate * correct(params, gradient)

        def length(a: jax.Array) -> jax.Array:
            return jnp.linalg.norm(a, axis=-1)

        apart = length(after(v, g) - after(w, h)) / (length(v - w) + step.rate * length(g - h))
        error = jnp.max(jnp.abs(correct(v, g + h) - correct(v, g) - h)) / jnp.max(jnp.abs(h))
        return jnp.max(apart), error

    (trace,) = scale_names(
        lambda key, **at: corrected(StepContext(**at), start, start), run_key(0), schedule_points.example_point()
    )
    extreme = StepContext(**schedule_points.example_point() | {"rate": rate, "total_rate": rate})
    found = [jax.jit(reach)(schedule_points.arrays(extreme), pairs)]
    if trace.values:
        every = schedule_points.points_of_clients(algorithm, data, rounds, trace.values)
        few = pairs[:, np.linspace(0, BATCHES - 1, TRIED_EVERYWHERE).astype(int)]
        flat = tuple(a.reshape(-1) for a in schedule_points.arrays(every))
        found += [jax.jit(lambda points: jax.lax.map(lambda at: reach(at, few), points, batch_size=64))(flat)]
    apart, error = (float(np.max([np.max(each) for each in of])) for of in zip(*found, strict=True))
    require_at_most("a step brings two models apart, over their distance and that of their gradients", apart, 1 + SLACK)
    require(error < 1e-2, "noise passes a step unchanged", f"off by {error:.2g}", "unchanged")
