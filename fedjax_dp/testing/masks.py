"""Does a secure sum hide every message?"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.algorithm import Algorithm
from fedjax_dp.data.store import FederatedData
from fedjax_dp.statistics.verdict import Report, certainty, count_deviate, largest_deviate, limit, require
from fedjax_dp.testing import probe
from fedjax_dp.testing.verdict import rejections
from fedjax_dp.testing.wrong import Wrong, posing
from fedjax_dp.values import changed

KEYS, MEMBERS, SIZE = 256, 5, 16  # runs, members and coordinates that are looked at


def unmasked_first(algorithm: Algorithm) -> Algorithm:
    """The first member of every cohort uploads its message as it is."""
    return _with_transport(algorithm, _unmasked_first)


def _unmasked_first(right: Any, key: jax.Array, t: Any, position: Any, ids: jax.Array, *rest: Any) -> Any:
    words, overflow = right.message(key, t, position, ids, *rest)
    plain, _ = right.encode(rest[-1], ids.shape[0])
    return jnp.where(position == 0, plain, words), overflow


def same_masks(algorithm: Algorithm) -> Algorithm:
    """The masks of a run never change: two rounds of a client tell the difference of its messages."""
    return _with_transport(algorithm, _same_masks)


def _same_masks(right: Any, key: jax.Array, t: Any, *rest: Any) -> Any:
    return right.message(key, jnp.int32(0), *rest)


def _with_transport(algorithm: Algorithm, deed: Any) -> Algorithm:
    if not algorithm.transport.secret:
        raise errors.refuse("transport", type(algorithm.transport).__name__, "a secure sum for this wrong program")
    return changed(algorithm, transport=posing(algorithm.transport, "message", deed))


def check_masks(
    algorithm: Algorithm, data: FederatedData, *, wrong: Wrong | Iterable[Wrong] | None = (unmasked_first, same_masks),
    seed: int = 0,
) -> list[Report]:  # fmt: skip
    """Every bit that a member of a secure sum uploads is a fair coin, whatever else is uploaded.

    Looked at: the words of 5 members for the same messages over 256 runs: of each member; of each pair added up, so
    that no two masks cancel and who helps the server learns nothing by its own; of each member in one round less the
    next. All messages added up are the sum.
    wrong    programs that the same check must reject: the first message unmasked, and masks that never change.
    Errors:  false alarm 1e-6 over all bits; a bit that is not masked at all is always found.
    Raises:  AssertionError; ConfigurationError for an algorithm without a secure sum.
    """
    if not algorithm.transport.secret:
        raise errors.refuse("transport", type(algorithm.transport).__name__, "a secure sum, for this check")
    members = max(min(MEMBERS, algorithm.cohort.members(data.num_clients)), 3)

    def examine(algorithm: Algorithm) -> list[Report]:
        transport: Any = algorithm.transport
        if getattr(transport, "neighbours", None) is not None:  # the same masks, between all of so few
            transport = changed(transport, neighbours=None)
        ids, invited = jnp.arange(members, dtype=jnp.int32), jnp.ones(members, bool)
        flat = jax.random.normal(jax.random.key(seed), (members, SIZE))

        def of(key: jax.Array, t: jax.Array) -> jax.Array:
            return jax.vmap(lambda i: transport.message(key, t, i, ids, invited, flat[i])[0])(ids)

        run = jax.jit(jax.vmap(jax.vmap(of, (None, 0)), (0, None)), compiler_options=probe.QUICK)
        words = np.asarray(run(probe.keys_of(seed, KEYS), jnp.arange(2)))  # (keys, rounds, members, lanes, size)
        lanes = words.shape[3]
        bits = 16 if lanes > 1 else 32
        pairs = [(i, j) for i in range(members) for j in range(i)]
        seen = {
            "a member's message": words[:, 0],
            "two members' messages together": np.stack([words[:, 0, i] + words[:, 0, j] for i, j in pairs], 1),
            "a member's messages of two rounds": words[:, 0] - words[:, 1],
        }
        found = []
        for what, rows in seen.items():
            ones = np.stack([(rows >> bit & 1).sum(0, dtype=np.int64) for bit in range(bits)])
            if lanes > 1:  # sums of limbs carry: only the lowest limb's bits are coins of their own
                ones = ones[:, :, :1] if what != "a member's message" else ones
            away = largest_deviate(count_deviate(ones, KEYS, 0.5))
            found.append(
                require(
                    abs(away) < limit(ones.size), f"every bit of {what} is a fair coin",
                    f"{away:.3g} standard errors off", "0", certainty(ones.size),
                )
            )  # fmt: skip
        key = probe.keys_of(seed, 1)[0]
        summed = words[0, 0].astype(np.uint32).sum(0, dtype=np.uint32)
        total = np.asarray(transport.total(key, jnp.int32(0), ids, invited, invited, jnp.asarray(summed)))
        error = np.abs(total - np.asarray(flat).sum(0)).max()
        within = members * transport.resolution
        found.append(require(error <= within, "all messages added up are the sum", f"{error:.2g}", "the sum", "exact"))
        return found

    return examine(algorithm) + rejections(examine, algorithm, wrong, "this should not happen")
