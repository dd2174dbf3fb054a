"""A round, sweep or audit compiled for an accelerator that is not here: launches, cycles, memory, exchanges, bytes.

Nothing is measured: all of it is read off the compiled program. The time of one H200 is predicted from what every
kernel reads, writes and computes, see `kernels`; for other accelerators, and for exchanges between several, there is no
calibrated model, and no time.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp import errors, gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.memory import fit_execution, memory_error, most_at_once
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model, usual_model
from fedjax_dp.models.model import size_of
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.state import initial_state, place
from fedjax_dp.sweeps import program as programs
from fedjax_dp.sweeps.record_cache import records_of
from fedjax_dp.tools.audits import trials as games
from fedjax_dp.tools.audits.setup import AttackOptions, set_up
from fedjax_dp.tools.latency.floor import Work, work_of
from forecast.kernels import CALIBRATED, OTHERS_WITHIN, PROFILED_WITHIN, Traffic, traffic
from forecast.program_text import OTHER, Collective, Program, counted
from forecast.targets import Accelerator, compiled_for, devices_of, execution_on, target_of

STEP = "local_step"
PARTS = ("cohort_draw", "batch_draw", STEP, "client_sum", "aggregation", "server_move")  # named scopes of a round


class Compiled(NamedTuple):
    """What the compiler makes of a round of all that runs at once, or of an audit's trials, and the time it takes."""

    target: Accelerator
    devices: int
    model_devices: int  # of these, that hold a model together
    runs: int  # points of a sweep, trials of an audit
    runs_at_once: int  # of these, on a device
    at_once: int  # clients of a run that a device computes at once
    launches: dict[str, int]  # by part, on one device, once through
    step_launches: int  # of one local step
    cycles: dict[str, int]  # by part; empty for a GPU
    step_cycles: int
    collectives: tuple[Collective, ...]
    argument_bytes: int  # of a device: records, state
    temporary_bytes: int
    output_bytes: int  # that do not take the place of arguments
    work: Work  # of all runs
    traffic: Traffic | None  # of a GPU's kernels, once through
    text: str  # of the program

    @property
    def needed_bytes(self) -> int:
        """Of a device's memory."""
        return self.argument_bytes + self.temporary_bytes + self.output_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.target.memory

    @property
    def turns(self) -> int:
        """How often the program runs until all runs have had theirs."""
        return math.ceil(self.runs / (self.runs_at_once * self.devices))

    @property
    def times_ms(self) -> dict[str, float]:
        """Predicted milliseconds of all runs (a round of each, or a whole trial), which add up, by what takes them.

        Empty where no model is calibrated.
        """
        if self.traffic is None or self.target.name != CALIBRATED or self.devices > 1:
            return {}
        return {name: self.turns * ms for name, ms in self.traffic.times_ms.items()}

    @property
    def bound(self) -> str | None:
        """What takes most of the predicted time."""
        times = self.times_ms
        return max(times, key=lambda name: times[name], default=None)

    @property
    def predicted_ms(self) -> float | None:
        """Off by no more than `PROFILED_WITHIN` for rounds like those profiled, `OTHERS_WITHIN` for all measured."""
        return sum(self.times_ms.values()) or None

    @property
    def about_time(self) -> str:
        """How far the predicted time is to be believed, in words."""
        if self.predicted_ms is None:
            return f"no time is predicted: the model is calibrated for one {CALIBRATED} alone"
        return (
            f"times are within {PROFILED_WITHIN:.0%} of the rounds that the model was fitted to, and within "
            f"{OTHERS_WITHIN:.0%} of others that were measured"
        )

    def to_dict(self) -> dict[str, Any]:
        fields, moved = self._asdict(), self.traffic and self.traffic._asdict()
        del fields["text"]
        if moved:
            del moved["times_ms"]  # of an H200, whatever the target is
        return fields | {
            "target": self.target.name,
            "turns": self.turns,
            "work": self.work._asdict(),
            "traffic": moved,
            "collectives": [one._asdict() for one in self.collectives],
            "memory_bytes": self.target.memory,
            "needed_bytes": self.needed_bytes,
            "fits": self.fits,
            "times_ms": self.times_ms,
            "bound": self.bound,
            "predicted_ms": self.predicted_ms,
            "predicted_within": {"profiled": PROFILED_WITHIN, "others": OTHERS_WITHIN} if self.times_ms else None,
        }


def compiled_round(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model | None = None,
    *,
    target: str,
    devices: int = 1,
    model_devices: int = 1,
    chunk_size: int | None = None,
    parts: int | None = None,
) -> Compiled:
    """Compile a round of an algorithm for an accelerator that is not here; arrays of `data` may be shapes.

    target   h200, h100, a100, v5e, v5p or v6e;
    devices  how many share the cohort, `model_devices` of them together a model;
    parts    of the cohort that are added up in order, see `Execution`.
    Unless `chunk_size` is given, a device computes as many clients at once as fit its memory.
    Raises: ConfigurationError without the extra `accelerators`, and with the bytes that are needed and there where not
            even one client fits.
    """
    chosen = target_of(target)
    model = usual_model(data) if model is None else model
    execution = execution_on(chosen, devices, chunk_size, parts=parts, model_devices=model_devices)
    require_room(chosen, model, model_devices)
    members, size = algorithm.cohort.capacity(data.num_clients), size_of(model)

    def compile_on(tried: Execution) -> Any:
        made = lowered(algorithm, data, model, tried)
        return compiled_for(chosen, lambda options: made.compile(compiler_options=options))

    with compiling(target):
        execution, made = fit_execution(compile_on, execution, members, size, chosen.room, placed=False)
    at_once, work = execution.portion(members, size), work_of(algorithm, data, model)
    return read_off(chosen, made, work, devices=devices, model_devices=model_devices, at_once=at_once)


def compiled_sweep(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model | None = None,
    *,
    points: int,
    target: str,
    devices: int = 1,
    chunk_size: int | None = None,
) -> Compiled:
    """Compile a round of all points of a sweep that differ in numbers alone; arrays of `data` may be shapes.

    A device takes as many of its points at once as fit its memory. The rest is as for `compiled_round`.
    """
    errors.require_count("points", points)
    chosen = target_of(target)
    model = usual_model(data) if model is None else model
    mesh, share = Mesh(devices_of(chosen, devices), (programs.AXIS,)), math.ceil(points / devices)
    require_room(chosen, model)
    structure, frozen = gradients.split(model)
    members = algorithm.cohort.capacity(data.num_clients)
    there, size = execution_on(chosen, 1, chunk_size, parts=devices), size_of(model)
    portion = there.portion(members, size)
    # On a CPU, where nothing runs, portion, pieces and signal would be others.
    alone = Execution(chunk_size=portion, parts=devices, pieces=there.in_pieces, signal=there.takes_signal)

    def compile_in(slots: int) -> programs.Executables:
        program = programs.Program(
            mesh, structure, alone, train_metrics=False, vmapped=True, slots=slots, max_evaluations=1
        )
        shapes = program.shapes(algorithm, data.partition, records_of(data, data.largest, data.smallest), frozen)
        return compiled_for(chosen, lambda options: program.compile(*shapes, options))

    with compiling(target):
        slots, made = most_at_once(
            compile_in,
            chosen.room,
            first=there.runs_at_once(share, members, size),
            share=share,
            needs=lambda tried: tried.bytes,
            what="points",
        )
    work = times(work_of(algorithm, data, model), points)
    counts = {"at_once": portion, "runs": points, "runs_at_once": slots}
    return read_off(chosen, made.run_segment, work, devices=devices, loops=2, **counts)


def compiled_audit(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model | None = None,
    *,
    rounds: int,
    target: str,
    devices: int = 1,
    seed: int = 0,
    canary: str = "gradient",
    trials: int = 10_000,
    parameters: int = 20,
    lanes: int | None = None,
    **privacy: Unpack[PrivacyOptions],
) -> Compiled:
    """Compile the trials of an audit, each of all its rounds; numbers are of whole trials, not of a round.

    target, devices as for `compiled_round`, the rest as for `fedjax_dp.audit`.
    """
    for name, count in (("trials", trials), ("lanes", lanes)):
        if count is not None:
            errors.require_count(name, count)
    chosen = target_of(target)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=PrivacyTerms(**privacy))
    _, setup = set_up(run, AttackOptions(canary, parameters=parameters))
    mesh, members = Mesh(devices_of(chosen, devices), (games.AXIS,)), algorithm.cohort.capacity(data.num_clients)
    game = next(iter(setup.games.values()))
    there = execution_on(chosen)
    portion = there.portion(members, size_of(game.model))
    execution = Execution(chunk_size=portion, pieces=there.in_pieces, signal=there.takes_signal)
    game = replace(game, execution=execution)
    whole = NamedSharding(mesh, P())
    shapes, key = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a), sharding=whole),
        (game, jax.eval_shape(lambda: simulation.run_key(0))),
    )

    def play(at_once: int) -> Any:
        return compiled_for(chosen, lambda options: games.compile_game(shapes, key, mesh, at_once, setup.bits, options))

    with compiling(target):
        if lanes is None:
            lanes, made = games.fit_lanes(play, games.SHARE_OF_ROOM * chosen.room)
        else:
            made = play(lanes)
    work = times(work_of(game.algorithm, game.data, game.model), trials * rounds)
    counts = {"at_once": portion, "runs": trials, "runs_at_once": lanes}
    return read_off(chosen, made, work, devices=devices, loops=0, **counts)


def require_room(target: Accelerator, model: Model, model_devices: int = 1) -> None:
    """Refuse models of which not even one and the copy that a client moves fit, before anything is made of them."""
    least = 2 * 4 * size_of(model) / model_devices
    if least > target.memory:
        raise memory_error(target.memory, least, "a model and a client's copy of it need")


@contextlib.contextmanager
def compiling(target: str) -> Iterator[None]:
    """A failure of the compiler in the block is one line."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise errors.refuse(f"the compiler for {target}", f"a failure: {reason}", "able to compile it") from error


def read_off(
    target: Accelerator,
    made: Any,
    work: Work,
    *,
    devices: int,
    at_once: int,
    model_devices: int = 1,
    runs: int = 1,
    runs_at_once: int = 1,
    loops: int = 1,
) -> Compiled:
    """What there is to read off a compiled program; `loops` stand around what is counted, see `Program`."""
    text, memory = made.as_text(), made.memory_analysis()
    program = Program(text, loops)
    found = counted(program, PARTS, STEP)
    return Compiled(
        target=target,
        devices=devices,
        model_devices=model_devices,
        runs=runs,
        runs_at_once=runs_at_once,
        at_once=at_once,
        launches=_in_order(found.launches),
        step_launches=found.per_step,
        cycles=_in_order(found.cycles) if target.platform == "tpu" else {},
        step_cycles=found.step_cycles,
        collectives=found.collectives,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        work=work,
        traffic=traffic(program) if target.platform == "cuda" else None,
        text=text,
    )


def times(work: Work, runs: int) -> Work:
    """Of so many runs."""
    return Work(*(runs * each for each in work))


def lowered(algorithm: Algorithm, data: FederatedData, model: Model, execution: Execution) -> Any:
    """A round lowered for an execution, from shapes alone."""
    algorithm = simulation.as_float32_leaves(algorithm)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a)), data)
    state = jax.eval_shape(lambda d: initial_state(algorithm, model, d, simulation.run_key(0)), shapes)
    key = jax.eval_shape(lambda: simulation.run_key(0))
    algorithm = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), algorithm)
    until = jax.ShapeDtypeStruct((), jnp.int32)
    placed = execution.place((algorithm, shapes, key, until))
    structure, frozen = gradients.split(model)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), frozen)
    model = gradients.joined(structure, execution.place_models(shapes))
    run = gradients.JitOfModel(simulation.run_rounds, ("execution",), donate_argnums=1)
    return run.lower(placed[0], place(state, execution), *placed[1:], model=model, execution=execution)


def _in_order(counts: Any) -> dict[str, int]:
    return {part: counts[part] for part in (*PARTS, OTHER) if counts[part]}
