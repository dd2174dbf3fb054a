"""Does a secure sum hide every message?"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.masks import examine_masks
from fedjax_dp.inspection.verdict import CheckReport
from fedjax_dp.parts.transport import Transport
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing.checks import run_check
from fedjax_dp.testing.mutation import WrongProgram, wrong_program


def _require_secret(algorithm: Algorithm) -> None:
    if not algorithm.transport.secret:
        raise errors.refuse("transport", type(algorithm.transport).__name__, "a secure sum, for this check")


@wrong_program("transport", "message", _require_secret)
def unmasked_first(right: Any, key: jax.Array, t: Any, position: Any, ids: jax.Array, *rest: Any) -> Any:
    """The first member of every cohort uploads its message as it is."""
    words, overflow = right.message(key, t, position, ids, *rest)
    plain, _ = right.encode(rest[-1], ids.shape[0])
    return jnp.where(position == 0, plain, words), overflow


@wrong_program("transport", "message", _require_secret)
def same_masks(right: Transport, key: jax.Array, t: Any, *rest: Any) -> Any:
    """The masks of a run never change: two rounds of a client show the difference of its messages."""
    return right.message(key, jnp.int32(0), *rest)


def check_masks(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    wrong: WrongProgram | Iterable[WrongProgram] | None = (unmasked_first, same_masks),
    seed: int = 0,
) -> list[CheckReport]:
    """Every bit that a member of a secure sum uploads is a fair coin, whatever else is uploaded.

    Looked at: the words of 5 members for the same messages over 256 runs: of each member; of each pair added up, so
    that no two masks cancel and who helps the server learns nothing by its own; of each member in one round less the
    next. All messages added up are the sum.
    wrong    programs that the same check must reject: the first message unmasked, and masks that never change.
    Errors:  false alarm 1e-6 over all bits; a bit that is not masked at all is always found.
    Raises:  AssertionError; ConfigurationError for an algorithm without a secure sum.
    """
    _require_secret(algorithm)
    members = algorithm.cohort.capacity(data.num_clients)

    def examine(algorithm: Algorithm) -> None:
        examine_masks(algorithm.transport, members, seed)

    return run_check(examine, algorithm, wrong, "this should not happen")
