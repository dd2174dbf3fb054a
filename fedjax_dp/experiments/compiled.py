"""A round compiled for an accelerator that is not here: launches, cycles, memory, collectives, and the time they take.

Nothing is measured. Launches, cycles, bytes and exchanges are read off the compiled program; times follow from them by
formulas that are told with them:
    launches  number of launches x time of a launch, which is assumed (GPU);
    cycles    the compiler's own estimate over the clock (TPU);
    work      the larger of operations over the peak, and bytes over the bandwidth, of what a round cannot do without.
A round takes about the largest of these that apply.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.memory import fitting
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.execution.program_text import OTHER, Collective, counted
from fedjax_dp.execution.targets import COMPILER_OPTIONS, LAUNCH_US, Target, execution_on, target_of
from fedjax_dp.experiments.floor import Work, size_of, work_of
from fedjax_dp.models import Model, logistic_regression
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import initial_state, place

STEP = "local_step"
PARTS = ("cohort_draw", "batch_draw", STEP, "client_sum", "aggregation", "server_move")  # named scopes of a round


class Compiled(NamedTuple):
    """What the compiler makes of a round, and the time that this takes."""

    target: Target
    devices: int
    at_once: int  # clients that a device computes at once
    launches: dict[str, int]  # by part, of a round on one device
    step_launches: int  # of one local step
    cycles: dict[str, int]  # by part; empty for a GPU
    step_cycles: int
    collectives: tuple[Collective, ...]
    argument_bytes: int  # of a device: records, state
    temporary_bytes: int
    output_bytes: int  # that do not take the place of arguments
    work: Work
    text: str  # of the program

    @property
    def needed_bytes(self) -> int:
        """Of a device's memory."""
        return self.argument_bytes + self.temporary_bytes + self.output_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.target.memory

    @property
    def times_ms(self) -> dict[str, float]:
        """Predicted milliseconds of a round, by what would bound it alone."""
        target, share = self.target, 1e3 / self.devices
        found = {
            "operations": share * self.work.flops / target.flops_per_s,
            "memory": share * self.work.bytes / target.bytes_per_s,
        }
        if target.platform == "cuda":
            return {"launches": 1e-3 * LAUNCH_US * sum(self.launches.values())} | found
        return {"cycles": 1e3 * sum(self.cycles.values()) / target.clock_hz} | found

    @property
    def bound(self) -> str:
        """What a round is bound by."""
        times = self.times_ms
        return max(times, key=lambda name: times[name])

    @property
    def round_ms(self) -> float:
        return self.times_ms[self.bound]

    def to_dict(self) -> dict[str, Any]:
        told = self._asdict()
        del told["text"]
        return told | {
            "target": self.target.name,
            "work": self.work._asdict(),
            "collectives": [one._asdict() for one in self.collectives],
            "memory_bytes": self.target.memory,
            "needed_bytes": self.needed_bytes,
            "fits": self.fits,
            "times_ms": self.times_ms,
            "bound": self.bound,
            "round_ms": self.round_ms,
            "launch_us": LAUNCH_US if self.target.platform == "cuda" else None,
        }


@checks_arguments
def compiled_round(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model | None = None,
    *,
    target: str,
    devices: int = 1,
    model_devices: int = 1,
    chunk_size: int | None = None,
) -> Compiled:
    """Compile a round of an algorithm for an accelerator that is not here; arrays of `data` may be shapes.

    target  h200, h100, a100, v5e, v5p or v6e; devices: how many share the cohort.
    Unless `chunk_size` is given, a device computes as many clients at once as fit its memory.
    Raises: ConfigurationError without the extra `accelerators`, and with the bytes that are needed and there where not
            even one client fits.
    """
    chosen = target_of(target)
    model = logistic_regression(data.record_shape, data.classes) if model is None else model
    execution = execution_on(chosen, devices, model_devices=model_devices, chunk_size=chunk_size)
    members, size = algorithm.cohort.members(data.num_clients), size_of(model)

    def compile_on(tried: Execution) -> Any:
        return lowered(algorithm, data, model, tried).compile(compiler_options=COMPILER_OPTIONS[chosen.platform])

    try:
        execution, made = fitting(compile_on, execution, members, size, chosen.memory, placed=False)
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        wanted = "able to compile the round"
        raise errors.refuse(f"the compiler for {target}", f"a failure: {reason}", wanted) from error
    text, memory = made.as_text(), made.memory_analysis()
    found = counted(text, PARTS, STEP)
    return Compiled(
        chosen,
        devices,
        execution.portion(members, size),
        _in_order(found.launches),
        found.per_step,
        _in_order(found.cycles) if chosen.platform == "tpu" else {},
        found.step_cycles,
        found.collectives,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        work_of(algorithm, data, model),
        text,
    )


def lowered(algorithm: Algorithm, data: FederatedData, model: Model, execution: Execution) -> Any:
    """A round lowered for an execution, from shapes alone."""
    algorithm = simulation.numbers(algorithm)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a)), data)
    state = jax.eval_shape(lambda d: initial_state(algorithm, model, d, simulation.run_key(0)), shapes)
    key = jax.eval_shape(lambda: simulation.run_key(0))
    algorithm = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), algorithm)
    until = jax.ShapeDtypeStruct((), jnp.int32)
    placed = execution.place((algorithm, shapes, key, until))
    run = jax.jit(simulation.run_rounds, static_argnames=("model", "execution"), donate_argnames=("state",))
    return run.lower(placed[0], place(state, execution), *placed[1:], model=model, execution=execution)


def _in_order(counts: Any) -> dict[str, int]:
    return {part: counts[part] for part in (*PARTS, OTHER) if counts[part]}
