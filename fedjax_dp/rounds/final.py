"""The final model of a run, as it is measured, saved, exported and attacked."""

from typing import Any

from fedjax_dp import errors
from fedjax_dp.pytrees import describe_shapes, equal_shapes
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.state import ServerState


def final_model(algorithm: Algorithm, state: ServerState) -> Any:
    """The parameters of a run's model, if it ended with this state: a tree like `state.params`; traced, or not.

    They are what the server has moved to, unless its part makes others, such as a mean over rounds, of what it keeps:
    `ServerOptimizer.final`. Clients go on with `state.params` in either case.
    """
    final = getattr(algorithm.server, "final", None)
    if final is None:
        return state.params
    params = final(state.optimizer, state.params)
    if not equal_shapes(params, state.params):
        what, wanted = f"what {type(algorithm.server).__name__}.final returns", describe_shapes(state.params)
        raise errors.refuse(what, describe_shapes(params), f"shaped as the parameters, {wanted}")
    return params


def with_final_model(algorithm: Algorithm, state: ServerState) -> ServerState:
    """The state with the final parameters, of which clients make their own models."""
    return state._replace(params=final_model(algorithm, state))
