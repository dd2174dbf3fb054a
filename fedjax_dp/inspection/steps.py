"""Do the parts of a local step bound and noise the records as they state?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Adjacency, FullBatch, Poisson
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.trials import NOISE_SLACK, QUICK, SCALES, SLACK, TRIALS, compiled, keys_of
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.clipping import Bound, Records
from fedjax_dp.parts.corrections import Correction, Step
from fedjax_dp.parts.local_training import extreme_rates
from fedjax_dp.parts.noise import NoiseSource, Place, correlated_source
from fedjax_dp.parts.record_privacy import Privatizer, clips
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.statistics.noise import examine_noise
from fedjax_dp.statistics.verdict import require

ROWS, DIVISOR = 6, 3  # of a batch of random size; of others, as many rows as the divisor


def examine_source(source: NoiseSource) -> None:
    """Its law at 12 steps in a row, for clients, rounds and rates drawn at random from run to run."""
    size, steps, trials = 48, 12, 200

    def of(key: jax.Array) -> jax.Array:
        client, t = (jax.random.randint(role_key(key, name), (), 0, 1000) for name in ("client", "round"))
        rate, drift = (jax.random.uniform(role_key(key, name), minval=0.01, maxval=2.0) for name in ("rate", "drift"))

        def at(step: jax.Array) -> jax.Array:
            return source.draw(key, Place(client, t, step, rate, drift, step == steps - 1), size)

        return jax.vmap(at)(jnp.arange(steps, dtype=jnp.uint32))

    noise = np.asarray(compiled(of)(keys_of(trials, "noise")), float)
    bands = np.asarray(source.bands, float)
    if source.fresh:
        require(bands.size == 1, "fresh noise has one band", f"{bands.size} of them", "1, or `fresh` False", "exact")
    white = np.zeros_like(noise)
    for t in range(steps):
        earlier = sum(bands[j] * white[:, t - j] for j in range(1, min(bands.size, t + 1)))
        white[:, t] = (noise[:, t] - earlier) / bands[0]
    examine_noise(white, [f"step {t}" for t in range(steps)])


class _Batches(NamedTuple):
    """Batches and their neighbours, `(TRIALS, rows, ...)` each: with another first record, and without it."""

    own: Any
    exchanged: Any
    less: Any
    params: np.ndarray  # (TRIALS, size)
    unravel: Callable[[jax.Array], Any]


def _neighbours(data: FederatedData, model: Model, varies: bool) -> _Batches:
    """Features of all sizes and signs, models near and far; batches that vary in size have rows that are not there."""
    rng, rows = np.random.default_rng(0), ROWS if varies else DIVISOR
    params, unravel = ravel(model.init(run_key(0)))
    shape = (TRIALS, rows, *data.record_shape)
    scale = np.resize(SCALES, TRIALS).reshape(-1, *[1] * (len(shape) - 2))
    if data.tokens:
        low, high = int(np.min(data.x)), int(np.max(data.x)) + 1
        x, other = rng.integers(low, high, shape), rng.integers(low, high, (TRIALS, *data.record_shape))
    else:
        x = rng.normal(size=shape).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            x[:, 0] = (x[:, 0] * scale).astype(np.float32)
        other = -x[:, 0]
    exchanged = x.copy()
    exchanged[:, 0] = other
    drawn, others = rng.integers(0, len(data.x), (2, TRIALS, rows))
    others[:, 1:] = drawn[:, 1:]
    y, moved = (jax.tree.map(lambda a: np.asarray(a)[at], data.y) for at in (drawn, others))  # noqa: B023
    mask = rng.random((TRIALS, rows)) < (0.6 if varies else 2.0)
    mask[:, 0] = True
    gone = mask.copy()
    gone[:, 0] = False
    flat = np.asarray(params) + rng.choice([0.0, 0.3, 3.0], (TRIALS, 1)) * rng.normal(size=(TRIALS, params.size))
    return _Batches((x, y, mask), (exchanged, moved, mask), (x, y, gone), flat.astype(np.float32), unravel)


def _records(x: jax.Array, y: Any, mask: jax.Array, key: jax.Array) -> Records:
    return Records(x, y, mask, jnp.int32(DIVISOR), jax.random.split(key, mask.shape[0]))


def _moved(one: np.ndarray, other: np.ndarray, wanted: Any, what: str) -> None:
    finite = np.isfinite(one).all() and np.isfinite(other).all()
    require(finite, what, "a mean that is not finite", "finite: a run that stops tells of a record", "exact")
    part = np.max(np.linalg.norm((one - other).astype(float), axis=-1) / wanted)
    require(part <= 1 + SLACK, what, f"{part:.4g} times what is stated", "at most 1", "a search over few neighbours")


def _varies(algorithm: Algorithm) -> bool:
    return isinstance(algorithm.local.batches.sampling(2**31 - 1), Poisson)


def examine_bound(bound: Bound, algorithm: Algorithm, data: FederatedData, model: Model, rounds: int) -> None:
    privatizer = algorithm.local.privatizer
    if not clips(privatizer):
        return  # the privatizer is examined with it
    clip = float(np.float32(privatizer.clip_norm))
    found = _neighbours(data, model, _varies(algorithm))

    def of(key: jax.Array, params: jax.Array, x: jax.Array, y: Any, mask: jax.Array) -> tuple[Any, Any]:
        bounded = bound.apply(model, found.unravel(params), _records(x, y, mask, key), clip)
        return bounded.mean, jnp.broadcast_to(bounded.unit, bounded.mean.shape)

    run, keys = compiled(of), keys_of(TRIALS, "bound")
    (one, unit), (other, theirs), (less, last) = (
        jax.tree.map(np.asarray, run(keys, found.params, *batch)) for batch in found[:3]
    )
    alike = np.array_equal(unit, theirs) and np.array_equal(unit, last) and np.ptp(unit, axis=0).max() == 0
    require(alike, "the unit of the noise is the same for all batches", "not", "so", "exact")
    told = clip / DIVISOR if bound.per_record else clip
    least = float(unit.min())
    require(least >= told * (1 - SLACK), "the unit of the noise", f"{least:.4g}", f"{told:.4g} or more", "exact")
    _moved(one / unit, other / unit, 2.0, "an exchanged record moves the mean, in units")
    if bound.per_record:
        _moved(one / unit, less / unit, 1.0, "a record less moves the mean, in units")
    if not bound.assumption and not _varies(algorithm):
        longest = float(np.linalg.norm(one, axis=-1).max())
        require(
            longest <= clip * (1 + SLACK), "the length of the mean", f"{longest:.4g}", f"at most {clip:.4g}", "exact"
        )


def examine_privatizer(
    privatizer: Privatizer, algorithm: Algorithm, data: FederatedData, model: Model, rounds: int
) -> None:
    """Its event for clients of every size, and its noise against what neighbours move, where it will be used."""
    local, sizes = algorithm.local, np.asarray(data.sizes)
    if privatizer.on_upload:
        raise AssertionError("noise on the upload is understood of OutputGaussian alone, with any bound and source")
    told = [_told(privatizer, algorithm, data, i) for i in range(data.num_clients)]
    tau = local.batches.count(local.steps, data.largest)
    some = sorted({int(np.argmin(sizes)), int(np.argmax(sizes)), int(np.argmin(told)), int(np.argmax(told))})
    steps = np.unique(np.linspace(0, tau - 1, min(tau, 6)).astype(int))
    found, varies = _neighbours(data, model, _varies(algorithm)), _varies(algorithm)
    many = max(2**14 // found.params.shape[1], 500)
    for client in some:
        for t in sorted({0, rounds - 1}):
            rates = local.rates(t, data.largest)

            def of(
                key: jax.Array,
                step: Any,
                params: jax.Array,
                x: jax.Array,
                y: Any,
                mask: jax.Array,
                t: int = t,
                client: int = client,
                rates: jax.Array = rates,
            ) -> jax.Array:
                place = Place(jnp.int32(client), jnp.int32(t), step, rates[step], rates.sum(), step == tau - 1)
                records = _records(x, y, mask, run_key(1))
                return privatizer.gradient(key, place, model, found.unravel(params), records)[0]

            at = jnp.asarray(steps, jnp.uint32)
            draw = jax.jit(
                jax.vmap(jax.vmap(of, (None, 0, *[None] * 4)), (0, None, *[None] * 4)), compiler_options=QUICK
            )
            usual = tuple(a[1] for a in found.own)
            drawn = np.asarray(draw(keys_of(2 * many, f"noise {client} {t}"), at, found.params[1], *usual), float)
            noise = (drawn[::2] - drawn[1::2]) / np.sqrt(2)  # (draws, steps, size)
            std = np.sqrt(np.mean(noise**2, 0))
            require(np.all(std > 0), "every coordinate of every step is noised", "not", "so", "exact")
            last = jnp.full(TRIALS, int(steps[-1]), jnp.uint32)
            run, keys = compiled(of), keys_of(TRIALS, "privatizer")
            own, other = (
                np.asarray(run(keys, last, found.params, *batch), float)
                for batch in (found.own, found.less if varies else found.exchanged)
            )
            finite = np.isfinite(own).all() and np.isfinite(other).all()
            require(finite, "a noised gradient", "not finite", "finite: a run that stops tells of a record", "exact")
            sensitivity = 1.0 if varies else 2.0
            over = float(np.max(np.linalg.norm((own - other) / std[-1], axis=-1))) * told[client] / sensitivity
            require(
                over <= 1 + NOISE_SLACK,
                "standard deviation of its noise over what its event says",
                f"{1 / over:.4g}",
                "1 or more",
                f"{NOISE_SLACK:.0%} may be chance",
            )
            examine_noise(noise / std, [f"step {step}" for step in steps])
            spread = np.sqrt(np.mean(std**2, 1))
            require(
                np.ptp(spread) <= NOISE_SLACK * spread.max() or spread[-1] <= spread.min() * (1 + NOISE_SLACK),
                "noise of the steps",
                f"from {spread.min():.4g} to {spread.max():.4g}",
                "alike",
                "exact",
            )


def _told(privatizer: Privatizer, algorithm: Algorithm, data: FederatedData, client: int) -> float:
    """The least noise multiplier in a client's event, which must be of all its steps, batches and neighbours."""
    local, records = algorithm.local, int(np.asarray(data.sizes)[client])
    steps, law = local.batches.count(local.steps, records), local.batches.sampling(records)
    adjacency = Adjacency.ADD_REMOVE if isinstance(law, Poisson) else Adjacency.REPLACE_ONE
    noise = privatizer.client_noise(data.num_clients)[client]
    rates = np.full(1, float(local.rates(0, data.largest)[-1]))
    leaves = list(privatizer.event(noise, local.batches, records, steps, rates).leaves())
    for step, _ in leaves:
        require(step.adjacency is adjacency, "neighbours", step.adjacency.value, adjacency.value, "exact")
        known = step.sampling in (law, FullBatch())
        require(known, "sampling in its event", str(step.sampling), f"{law} of the batches", "exact")
    source = correlated_source(privatizer)
    joined = source is not None and facts.of_the_project(source)
    counted = sum(step.count for step, _ in leaves)
    require(joined or counted >= steps, "noisy sums in its event", f"{counted}", f"the {steps} local steps", "exact")
    return min((step.noise_multiplier for step, _ in leaves), default=np.inf)


def examine_correction(
    correction: Correction, algorithm: Algorithm, data: FederatedData, model: Model, rounds: int
) -> None:
    """Where noise joins the upload: a step brings models no further apart than they are, but for their gradients."""
    if not algorithm.local.privatizer.on_upload:
        return
    start, unravel = ravel(model.init(run_key(0)))
    rate = extreme_rates(algorithm.local, data.largest, rounds)[1]
    rng = np.random.default_rng(0)
    scale = np.resize([1e-2, 1.0, 1e2], TRIALS)[:, None]
    points = (scale * rng.normal(size=(4, TRIALS, start.size))).astype(np.float32)
    one = jnp.zeros((1, *data.record_shape), jnp.int32 if data.tokens else jnp.float32)
    records = Records(one, jnp.zeros(1, jnp.int32), jnp.ones(1, bool), jnp.int32(1))

    def after(params: jax.Array, gradient: jax.Array) -> jax.Array:
        step = Step(params, start, (), (), (), records, model, unravel)
        return params - rate * correction.gradient(gradient, step)

    run = compiled(after)
    v, w, g, h = points
    near, far = np.asarray(run(v, g), float), np.asarray(run(w, h), float)
    allowed = np.linalg.norm(v - w, axis=-1) + rate * np.linalg.norm(g - h, axis=-1)
    _moved(near, far, allowed, "a step brings two models apart, over their distance and that of their gradients")
    noised = np.asarray(run(v, g + h), float) - near
    error = np.abs(noised + rate * h).max() / np.abs(rate * h).max()
    require(error < 1e-2, "noise passes a step as it is", f"off by {error:.2g}", "unchanged", "exact")
