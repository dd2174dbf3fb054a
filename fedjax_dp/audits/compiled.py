"""An audit compiled for an accelerator that is not here, see `fedjax_dp.experiments.compiled`."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.audits import trials as games
from fedjax_dp.audits.setup import staged
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.execution.targets import compiled_for, devices_of, execution_on, target_of
from fedjax_dp.experiments.compiled import Compiled, compiling, read_off, times
from fedjax_dp.experiments.floor import size_of, work_of
from fedjax_dp.models import Model
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyOptions, terms_from
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.algorithm import Algorithm


@checks_arguments
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
    """Compile the trials of an audit, each of all its rounds; what is told is of whole trials, not of a round.

    target, devices as for `compiled_round`, the rest as for `fedjax_dp.audit`.
    """
    for name, count in (("trials", trials), ("lanes", lanes)):
        if count is not None:
            errors.require_count(name, count)
    chosen = target_of(target)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms_from(privacy))
    _, scene = staged(run, canary=canary, client=None, record=0, one_run=None, parameters=parameters)
    mesh, members = Mesh(devices_of(chosen, devices), (games.AXIS,)), algorithm.cohort.capacity(data.num_clients)
    game = next(iter(scene.games.values()))
    portion = execution_on(chosen).portion(members, size_of(game.model))
    game = changed(game, execution=Execution(chunk_size=portion))
    whole = NamedSharding(mesh, P())
    shapes, key = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a), sharding=whole),
        (game, jax.eval_shape(lambda: simulation.run_key(0))),
    )

    def play(at_once: int) -> Any:
        return compiled_for(chosen, lambda options: games.compiled(shapes, key, mesh, at_once, scene.bits, options))

    with compiling(target):
        if lanes is None:
            lanes, made = games.fitting(play, games.SHARE_OF_ROOM * chosen.room)
        else:
            made = play(lanes)
    work = times(work_of(game.algorithm, game.data, game.model), trials * rounds)
    told = {"at_once": portion, "runs": trials, "runs_at_once": lanes}
    return read_off(chosen, made, work, devices=devices, loops=0, **told)
