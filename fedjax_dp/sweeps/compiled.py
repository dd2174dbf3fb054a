"""A sweep compiled for an accelerator that is not here, see `fedjax_dp.experiments.compiled`."""

import math

from jax.sharding import Mesh

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.memory import most_at_once
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.execution.targets import compiled_for, devices_of, execution_on, target_of
from fedjax_dp.experiments.compiled import Compiled, compiling, read_off, require_room, times
from fedjax_dp.experiments.floor import size_of, work_of
from fedjax_dp.gradients import split
from fedjax_dp.models import Model, usual_model
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.sweeps import program as programs
from fedjax_dp.sweeps.memory import records_of


@checks_arguments
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
    structure, frozen = split(model)
    members = algorithm.cohort.capacity(data.num_clients)
    there, size = execution_on(chosen, 1, chunk_size, parts=devices), size_of(model)
    portion = there.portion(members, size)
    alone = Execution(chunk_size=portion, parts=devices)  # on a CPU, where nothing runs, the portion would be another

    def compile_in(slots: int) -> programs.Compiled:
        program = programs.Program(mesh, structure, alone, train_metrics=False, together=True, slots=slots, marks=1)
        shapes = program.shapes(algorithm, data.partition, records_of(data, data.largest), frozen)
        return compiled_for(chosen, lambda options: program.compile(*shapes, options))

    with compiling(target):
        slots, made = most_at_once(
            compile_in,
            chosen.room,
            first=there.runs(share, members, size),
            share=share,
            needs=lambda tried: tried.bytes,
            what="points",
        )
    work = times(work_of(algorithm, data, model), points)
    told = {"at_once": portion, "runs": points, "runs_at_once": slots}
    return read_off(chosen, made.visit, work, devices=devices, loops=2, **told)
