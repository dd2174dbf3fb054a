"""The final model of a run, which is evaluated, saved, exported and attacked."""

from typing import Any

from fedjax_dp import errors
from fedjax_dp.pytrees import describe_shapes, equal_shapes
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.state import ServerState


def final_model(algorithm: Algorithm, state: ServerState) -> Any:
    """The parameters of the final model if the run ends with this state: a tree like `state.params`; traced or not.

    They are `state.params`, unless the server has a `ServerOptimizer.final`, which may return a mean over rounds. The
    next round starts from `state.params` in either case.
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
    """The state with the final model's parameters, from which personal models are computed."""
    return state._replace(params=final_model(algorithm, state))
