"""The parts of a round's time: the same round with one part after another left out, and its floor.

A compiled round has no seams to put a clock between: generator, clipping and step are one loop. So parts are measured
by leaving them out. Rounds without clipping, without noise, without drawing batches, without gradients and without
records run in turns, and the time that each saves over the previous one is that of the missing part. So the parts add
up to the round. The remainder, empty steps and the sum over the cohort, is called aggregation: in a round of many tiny
steps it is mostly the loop itself.
"""

import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, gradients
from fedjax_dp.accounting import FullBatch
from fedjax_dp.data.store import FederatedData
from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.execution.mesh import Execution, all_devices
from fedjax_dp.models import Model, usual_model
from fedjax_dp.models.model import size_of
from fedjax_dp.parts.batches import Batch, Batches
from fedjax_dp.parts.clipping import Unbounded
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.noise import NoiseSource
from fedjax_dp.pytrees import Wrapper, replace, structure, value
from fedjax_dp.rounds import metrics, simulation
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.state import ServerState
from fedjax_dp.tools.latency.floor import Floor, floor_of, round_timer

PARTS = ("sampling", "gather", "gradient", "clipping", "noise", "aggregation", "server", "evaluation")
TURN_S = 0.2  # a measurement of one variant lasts about this long
DISTURBED = 0.3  # spread above which numbers mean little


@value
class Silence(NoiseSource):
    """Zero noise, to measure the cost of drawing noise. A round with it is not private."""

    fresh = True

    def coefficients(self, steps: int) -> tuple[float, ...]:
        return (1.0,)

    def draw(self, key: jax.Array, step: StepContext, size: int, state: Any) -> tuple[jax.Array, Any]:
        return jnp.zeros(size), state

    def variance(self, step: jax.Array) -> float:
        return 0.0


@value
class ConsecutiveBatches(Wrapper):
    """Batches of the shape of `base` with consecutive positions instead of random ones. For measuring only."""

    base: Batches = structure()

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        shapes = jax.eval_shape(lambda k, n: self.base.sample(k, n, steps, largest, smallest), key, records)
        place = jnp.arange(np.prod(shapes.positions.shape), dtype=jnp.int32).reshape(shapes.positions.shape)
        rows = jnp.full(shapes.divisor.shape, shapes.positions.shape[1], shapes.divisor.dtype)
        return Batch(place % records, jnp.ones(shapes.mask.shape, bool), rows, jnp.ones_like(shapes.step_mask))


@jax.custom_vjp
def _zero_loss(params: Any) -> jax.Array:
    """Zero, with derivative one in every parameter."""
    return jnp.float32(0)


_zero_loss.defvjp(
    lambda params: (jnp.float32(0), params),
    lambda params, pulled: (jax.tree.map(lambda p: jnp.full_like(p, pulled), params),),
)


def _bits(a: jax.Array) -> Any:
    """The sum of the stored bits, which unlike a sum of floats does not depend on the order."""
    bits = jax.lax.bitcast_convert_type(a, jnp.int32) if a.dtype == jnp.float32 else a.astype(jnp.int32)
    return bits.sum()


@dataclasses.dataclass(frozen=True)
class Idle(Wrapper):
    """The parameters of a model without its arithmetic: its loss only reads the records, or their targets.

    reads  whether it reads a record's features, once each.
    """

    base: Any
    reads: bool

    def with_device_records(self, frozen: Any) -> "Idle":
        return dataclasses.replace(self, base=self.base.with_device_records(frozen))

    def init(self, key: jax.Array) -> Any:
        return self.base.init(key)

    def loss(self, params: Any, x: jax.Array, y: Any, key: jax.Array | None) -> jax.Array:
        leaves = jax.tree.leaves((x, y) if self.reads else y)
        return sum(map(_bits, leaves)).astype(jnp.float32) * _zero_loss(params)

    def logits(self, params: Any, x: jax.Array) -> jax.Array:
        return self.base.logits(params, x)


class Change(NamedTuple):
    """A change of the configuration and the time it would save per round."""

    setting: str
    description: str
    saves_ms: float


class Latency(NamedTuple):
    """Milliseconds of a round. `parts` add up to `round_ms` and the share of evaluation."""

    round_ms: float  # without evaluation
    spread: float  # of the round: the middle half of its times over the median
    parts: dict[str, float]
    floor: Floor
    changes: list[Change]  # the largest saving first
    compile_s: float
    turns: int
    devices: int

    @property
    def is_disturbed(self) -> bool:
        """Whether the machine was too busy for the numbers to mean much."""
        return self.spread > DISTURBED

    @property
    def total_ms(self) -> float:
        return sum(self.parts.values())

    @property
    def headline(self) -> str:
        """The first line in print and on a picture."""
        if self.is_disturbed:
            return (
                f"disturbed: the middle half of the round's times spreads over {self.spread:.0%} of their median; "
                "these numbers are no measurement, run it again on a quiet machine"
            )
        return f"{milliseconds(self.round_ms)} a round, floor {milliseconds(self.floor.ms)}"


def milliseconds(ms: float) -> str:
    """Milliseconds as text."""
    return f"{ms:,.0f} ms" if abs(ms) >= 100 else f"{ms:.3g} ms"


Show = Callable[[float, str], None]


def measure_round(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model | None = None,
    *,
    evaluate_every: int = 0,
    seed: int = 0,
    turns: int = 7,
    execution: Execution | None = None,
    show: Show = lambda done, what: None,
) -> Latency:
    """Measure the time of a round of an algorithm and of its parts.

    evaluate_every  rounds between evaluations, whose cost is spread over them; 0 leaves evaluation out;
    turns           how often every variant is timed, in turns;
    show            called with the fraction done and the current step.
    Raises:         ConfigurationError for an invalid run.
    """
    model = model or usual_model(data)
    simulation.check(algorithm, data, 1, model)
    errors.require_count("turns", turns)
    execution = execution or all_devices()
    ladder = variants(algorithm, model)
    others = {} if execution.chunk_size is not None else _portions(algorithm, data, model, execution)
    runs: dict[str, Callable[[], float]] = {}
    compile_s = 0.0
    cases = {**{name: (*parts, execution) for name, parts in ladder.items()}, **others}
    for at, (name, (changed_algorithm, changed_model, where)) in enumerate(cases.items()):
        show(0.5 * at / len(cases), f"compiling {name}")
        runs[name], seconds = _time_rounds(changed_algorithm, data, changed_model, where, seed)
        compile_s = compile_s or seconds
    runs["server"] = _server(algorithm, data, model, execution, seed)
    if evaluate_every:
        runs["evaluation"] = _evaluation(data, model, execution)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        show(0.5 + 0.5 * turn / turns, f"turn {turn + 1} of {turns}")
        for name, run in runs.items():
            times[name].append(run())
    middle = {name: statistics.median(ms) for name, ms in times.items()}
    parts = _parts(middle, list(ladder), evaluate_every)
    whole = times["whole"]
    spread = float(np.subtract(*np.percentile(whole, [75, 25])) / middle["whole"])
    floor = floor_of(algorithm, data, model, execution)
    changes = _changes(parts, middle, evaluate_every)
    return Latency(middle["whole"], spread, parts, floor, changes, compile_s, turns, execution.devices)


def variants(algorithm: Algorithm, model: Model) -> dict[str, tuple[Algorithm, Model]]:
    """The round, and the round without one part after another; each also lacks the parts of those before."""
    local, privatizer, upload = algorithm.local, algorithm.local.privatizer, algorithm.upload
    rounds = {"whole": (algorithm, model)}
    if hasattr(privatizer, "bound") and not privatizer.bound.no_epsilon_reason:
        local = replace(local, privatizer=replace(privatizer, bound=Unbounded()))
        algorithm = replace(algorithm, local=local)
        rounds["clipping"] = (algorithm, model)
    noisy = [part for part in (local.privatizer, upload) if hasattr(part, "source")]
    if noisy:
        if hasattr(local.privatizer, "source"):
            local = replace(local, privatizer=replace(local.privatizer, source=Silence()))
        if hasattr(upload, "source"):
            upload = replace(upload, source=Silence())
        algorithm = replace(algorithm, local=local, upload=upload)
        rounds["noise"] = (algorithm, model)
    if not isinstance(local.batches.sampling(2**31 - 1), FullBatch):
        algorithm = replace(algorithm, local=replace(local, batches=ConsecutiveBatches(base=local.batches)))
        rounds["sampling"] = (algorithm, model)
    rounds["gradient"] = (algorithm, Idle(model, reads=True))
    rounds["gather"] = (algorithm, Idle(model, reads=False))
    return rounds


def _parts(middle: dict[str, float], ladder: list[str], evaluate_every: int) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    for before, name in itertools.pairwise(ladder):
        parts[name] = middle[before] - middle[name]
    rest = middle[ladder[-1]]
    parts["server"] = min(middle["server"], rest)
    parts["aggregation"] = rest - parts["server"]
    parts["evaluation"] = middle["evaluation"] / evaluate_every if evaluate_every else 0.0
    return parts


def _time_rounds(
    algorithm: Algorithm, data: FederatedData, model: Model, execution: Execution, seed: int
) -> tuple[Callable[[], float], float]:
    """A function that runs some rounds and returns milliseconds per round, and the seconds of compilation."""
    rounds_, state = simulation.initialize(algorithm, data, model, execution, seed=seed)
    held: list[ServerState] = [state]

    def run(rounds: int) -> float:
        start = int(held[0].round)
        began = time.perf_counter()
        held[0], report = rounds_.advance(held[0], start + rounds)
        jax.block_until_ready((held[0], report))
        seconds, done = time.perf_counter() - began, int(held[0].round) - start
        if done < rounds:  # diverged, as may happen without clipping: start again next time
            held[0] = simulation.initialize(algorithm, data, model, execution, seed=seed)[1]
        return 1e3 * seconds / done

    first = run(1)
    usual = run(1)
    rounds = max(1, min(200, int(1e3 * TURN_S / max(usual, 0.01))))
    return lambda: run(rounds), max(first - usual, 0.0) / 1e3


def _server(
    algorithm: Algorithm, data: FederatedData, model: Model, execution: Execution, seed: int
) -> Callable[[], float]:
    """A timer of the server's steps alone."""
    value = simulation.as_float32_leaves(algorithm)
    state = simulation.begin(value, data, simulation.run_key(seed), model=model)
    params, optimizer, server = execution.place((state.params, state.optimizer, value.server))
    rounds = 100

    @functools.partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def moves(server: Any, params: Any, optimizer: Any) -> Any:
        def one(at: jax.Array, carry: Any) -> Any:
            params, optimizer = carry
            update = jax.tree.map(lambda p: 1e-6 * p, params)
            return server.move(at, update, lambda: jnp.float32(0), optimizer, params)

        return jax.lax.fori_loop(0, rounds, one, (params, optimizer))

    return round_timer(lambda: moves(server, params, optimizer), rounds)


def _evaluation(data: FederatedData, model: Model, execution: Execution) -> Callable[[], float]:
    """A timer of one evaluation on the test set."""
    structure, frozen = gradients.split(model)
    placed = execution.place((model.init(jax.random.key(0)), frozen, data))
    params, frozen, stored = execution.on_one_device(placed)
    model = gradients.joined(structure, frozen)
    return round_timer(lambda: metrics.measure(params, stored, model=model, train=False), 1)


def _portions(
    algorithm: Algorithm, data: FederatedData, model: Model, execution: Execution
) -> dict[str, tuple[Algorithm, Model, Execution]]:
    """The round with another number of clients at once."""
    members = algorithm.cohort.capacity(data.num_clients)
    share = -(-members // execution.shares)
    used = execution.portion(members, size_of(model), algorithm.cohort.expected_size(data.num_clients))
    other = share if used == 1 else 1
    if share == 1:
        return {}
    return {f"chunk_size {other}": (algorithm, model, dataclasses.replace(execution, chunk_size=other))}


def _changes(parts: dict[str, float], middle: dict[str, float], evaluate_every: int) -> list[Change]:
    """The changes that save time, largest first; only `chunk_size` keeps the results."""
    changes = [
        Change(
            "evaluate_every",
            f"{2 * evaluate_every} instead of {evaluate_every}: half the evaluations",
            parts["evaluation"] / 2,
        ),
        Change("local_steps", "half of them with batches twice as large: half the noise to draw", parts["noise"] / 2),
        Change(
            "batch_size",
            "half of it: half the arithmetic, and more noise for the same epsilon",
            (parts["gradient"] + parts["gather"] + parts["clipping"]) / 2,
        ),
    ]
    for name, ms in middle.items():
        if name.startswith("chunk_size"):
            run, number = name.split()
            changes.append(
                Change(run, f"{number}: this many clients at once on a device, measured", middle["whole"] - ms)
            )
    return sorted((change for change in changes if change.saves_ms > 0), key=lambda change: -change.saves_ms)
