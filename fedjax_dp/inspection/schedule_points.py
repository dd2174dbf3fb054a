"""Checks of noise at every point of a run's schedule on which its size may depend: rounds, clients and steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.flow import stated_gradients
from fedjax_dp.inspection.noise_law import examine_sizes, require_uncorrelated
from fedjax_dp.inspection.noise_scale import Names
from fedjax_dp.inspection.trials import compile_trials, keys_of
from fedjax_dp.inspection.verdict import certainty, limit, require, require_so
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.parts.batches import divisors_of
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.noise import NoiseSource
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.algorithm import Algorithm

NUMBERS = 2**21  # noise numbers that are drawn if the size depends on the point; more if LEAST needs it
MOST = 2**30  # noise whose size depends on the point is refused if it needs more
LEAST = 64  # numbers for each point
ROWS = 256  # coordinates of each step that are compared with those of others
OF_A_CLIENT = frozenset({"client", "round", "rate", "total_rate", "divisor"})


def example_point() -> dict[str, Any]:
    """The fields of a point of the schedule, by name."""
    at, one = jnp.int32(0), jnp.float32(1)
    point = StepContext(at, at, jnp.uint32(0), one, one, jnp.bool_(False))._asdict()
    return {name: number for name, number in point.items() if name != "stream"}


def arrays(at: StepContext) -> tuple[Any, ...]:
    """The traced fields of points: all but the stream."""
    return tuple(at)[:-1]


def points_of_steps(
    algorithm: Algorithm, data: FederatedData, client: Any, t: Any, steps: Any, stream: int = 0
) -> StepContext:
    """The points of some gradients of a stream in a client's round `(steps,)`."""
    rates = algorithm.local.rates(t, data.largest)
    at = jnp.asarray(steps, jnp.uint32)
    ones = jnp.ones(at.shape, jnp.int32)
    steps_taken = gradients_of(algorithm, data)[stream] if stream else rates.shape[0]  # extra gradients follow them
    rate, total_rate = rates[jnp.minimum(at, rates.shape[0] - 1)], jnp.broadcast_to(rates.sum(), at.shape)
    return StepContext(client * ones, t * ones, at, rate, total_rate, at == steps_taken - 1)


def gradients_of(algorithm: Algorithm, data: FederatedData) -> dict[int, int]:
    """The number of noised gradients of the largest client in a round, by stream, with those after the last round."""
    return stated_gradients(algorithm.local, data.largest, after=True)


def divisors(algorithm: Algorithm, data: FederatedData) -> np.ndarray:
    """The largest and the smallest divisor of each client's batches `(2, num_clients)`."""
    local, (sizes, at) = algorithm.local, np.unique(np.asarray(data.sizes), return_inverse=True)
    each = [divisors_of(local.batches, n, local.batches.count(local.steps, n)) for n in sizes.tolist()]
    return np.array([[of.max() for of in each], [of.min() for of in each]])[:, at]


def points_of_clients(
    algorithm: Algorithm, data: FederatedData, rounds: int, depends: Names, stream: int = 0
) -> StepContext:
    """Points `(sequences, steps)`: all steps, and if they matter every round, every client, and pairs of them.

    If clients matter only through the divisor of their batches, one client for each divisor is enough.
    """
    tau = gradients_of(algorithm, data)[stream]
    sequences, times, ids = 1, 1, np.arange(data.num_clients)
    if "client" not in depends and "divisor" in depends:
        ids = np.unique(divisors(algorithm, data), axis=1, return_index=True)[1]
    if depends & OF_A_CLIENT:
        sequences = max(rounds if depends & {"round", "rate", "total_rate"} else 1, ids.size)
        times = int(np.clip(NUMBERS // (sequences * tau * LEAST), 1, 8))
    rng = numpy_stream("points of schedules")
    at = np.arange(sequences)
    t = np.concatenate(
        [
            at * rounds // sequences if sequences >= rounds else at,
            *(np.sort(rng.integers(0, rounds, sequences)) for _ in range(times - 1)),
        ]
    )
    client = np.concatenate(
        [ids[(at + rng.integers(ids.size)) % ids.size], *(rng.choice(ids, sequences) for _ in range(times - 1))]
    )
    steps = jnp.arange(tau)
    points = compile_trials(lambda client, t: points_of_steps(algorithm, data, client, t, steps, stream))
    return points(jnp.asarray(client, jnp.int32), jnp.asarray(t, jnp.int32))


def points_of_server(rounds: int) -> StepContext:
    """Points `(1, rounds)`: all rounds, made as in `client_privacy.server_noise`."""
    t, one = jnp.arange(rounds, dtype=jnp.int32)[None], jnp.ones((1, rounds), jnp.float32)
    return StepContext(0 * t, t, t.astype(jnp.uint32), one, one, one > 0)


def draws_of(source: NoiseSource, stream: int = 0) -> Callable[[jax.Array, StepContext, int], jax.Array]:
    """A function of (key, points of steps, size) that draws the noise of these steps in turn `(steps, size)`."""

    def draw(key: jax.Array, at: StepContext, size: int) -> jax.Array:
        def one(state: Any, point: tuple[Any, ...]) -> tuple[Any, jax.Array]:
            noise, state = source.draw(key, StepContext(*point)._replace(stream=stream), size, state)
            return state, noise

        state = source.init(size)
        if not jax.tree.leaves(state):
            return jax.vmap(lambda *point: one(state, point)[1])(*arrays(at))
        return jax.lax.scan(one, state, arrays(at))[1]

    return draw


def whiten(noise: np.ndarray, source: NoiseSource) -> np.ndarray:
    """The white noise under the noise of a source `(..., steps, size)`."""
    coefficients = np.asarray(source.coefficients(noise.shape[-2]), float)
    return scipy.signal.lfilter([1.0], coefficients, noise, axis=-2)


def examine(
    draw: Callable[[jax.Array, StepContext, int], jax.Array],
    every: StepContext,
    source: NoiseSource,
    size: int,
    depends: Names,
    bits: Names,
    std: Any = 1.0,
    as_normal: Callable[[np.ndarray], np.ndarray] | None = None,
) -> None:
    """Check that the noise of `draw(key, points, size)` has the stated size at all points, and is new at each.

    every  points `(sequences, steps)`; a sequence has one key, such as a client's round, or the sums of a run;
    depends, bits  names that decide its size, and its bits; for bits alone some points are enough;
    std  its standard deviation over that of the source, one number or one for each client, where more is accepted;
    as_normal  transforms scaled differences of two noises to standard normals; None: they are normal.
    """
    sequences, steps = every.number.shape
    of_each = int(np.clip(NUMBERS // (sequences * steps), min(LEAST, size), size))
    times = -(-LEAST // of_each)
    most = MOST // (steps * times * size)
    if sequences > most and depends:
        of = ", ".join(sorted(depends))
        require(False, "the size of its noise", f"one that depends on {of}", "one that can be tried everywhere", "")
    if not depends:
        tried = np.unique(np.linspace(0, sequences - 1, min(sequences, max(most, 1)) if bits else 1).astype(int))
        every, times = StepContext(*[a[tried] for a in arrays(every)]), times if bits else 1
    noise = _draw_differences(draw, every, times, of_each)  # (times, sequences, steps, of_each)
    white = whiten(noise, source)
    names = [f"step {step}" for step in range(steps)]
    require_uncorrelated("steps", white[0, 0, :, :ROWS], names)
    if depends or bits:
        _require_new(white.transpose(1, 2, 0, 3).reshape(-1, steps, times * of_each))
    if depends:
        wanted = np.asarray(std)
        scale = wanted[np.asarray(every.client)] if wanted.ndim else wanted
        if as_normal is None:
            squares = np.sum(white**2, (0, 3)) / scale**2
        else:
            squares = np.sum(as_normal(white / scale[..., None]) ** 2, (0, 3))
        rounds, clients = np.asarray(every.round).ravel(), np.asarray(every.client).ravel()

        def name(at: int) -> str:
            return f"round {rounds[at]}, client {clients[at]}, step {at % steps}"

        examine_sizes(squares.ravel(), times * of_each, name, least=bool(wanted.ndim))


def _require_new(white: np.ndarray) -> None:
    """Refuse noise `(sequences, steps, numbers)` that repeats within a step, or resembles another step's.

    Random numbers of 23 bits rarely agree; if a tenth of them agrees, they are used again.
    """
    sizes = np.sort(np.abs(white), axis=-1)
    again = np.mean(np.diff(sizes, axis=-1) <= 1e-6 * sizes[..., 1:], -1)
    require_so(again.max(initial=0) < 0.1, "the numbers of a step", "some that come again", "new ones each")
    sequences, steps, numbers = white.shape
    if steps == 1 or sequences == 1:
        return  # one sequence is compared in `require_uncorrelated`
    tests, worst = sequences * steps**2, 0.0
    for some in np.array_split(white, -(-tests // 2**22)):
        unit = some / (np.linalg.norm(some, axis=-1, keepdims=True) + 1e-30)
        worst = max(worst, float(np.abs(np.triu(unit @ unit.swapaxes(-1, -2), 1)).max(initial=0)))
    what = "noise of a round's steps is independent"
    require(worst < limit(tests) / np.sqrt(numbers), what, f"correlation {worst:.3g}", "0", certainty(tests))


def _draw_differences(
    draw: Callable[[jax.Array, StepContext, int], jax.Array], at: StepContext, times: int, size: int
) -> np.ndarray:
    """Differences of two keys' noise: without signal, and 0 for noise that is drawn with another key."""
    sequences = at.number.shape[0]

    def of(key: jax.Array, sequence: tuple[Any, ...]) -> jax.Array:
        points = StepContext(*sequence)
        one, other = (draw(role_key(key, name), points, size) for name in ("one", "other"))
        return (one - other) / np.float32(2**0.5)

    run = compile_trials(jax.vmap(of), (0, None))
    keys = keys_of(times * sequences, "everywhere").reshape(times, sequences)
    return np.asarray(run(keys, arrays(at)), np.float32)
