"""Checks that a secure sum hides every message."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.inspection.trials import Place, compile_trials, keys_of
from fedjax_dp.inspection.verdict import count_deviate, require, require_usual
from fedjax_dp.parts.transport import Transport
from fedjax_dp.pytrees import replace

KEYS, MEMBERS, SIZE = 256, 5, 16  # runs, members and coordinates that are tried


def examine_masks(transport: Transport, place: Place) -> None:
    """Every uploaded bit is a fair coin: alone, in the sum of two members, and in the difference of two rounds.

    So no two masks cancel, and a member that helps the server learns nothing from its own. Skips plain sums.
    """
    if not transport.secret:
        return
    members, seed = max(min(MEMBERS, place.algorithm.cohort.capacity(place.data.num_clients)), 3), place.seed
    if getattr(transport, "neighbours", None) is not None:  # among so few, masks between all pairs
        transport = replace(transport, neighbours=None)
    ids, selected = jnp.arange(members, dtype=jnp.int32), jnp.ones(members, bool)
    flat = jax.random.normal(jax.random.key(seed), (members, SIZE))

    def of(key: jax.Array, t: jax.Array) -> jax.Array:
        return jax.vmap(lambda i: transport.message(key, t, i, ids, selected, flat[i])[0])(ids)

    run = compile_trials(jax.vmap(of, (None, 0)), (0, None))
    words = np.asarray(run(keys_of(KEYS, "masks", seed), jnp.arange(2)))  # (keys, rounds, members, lanes, size)
    lanes = words.shape[3]
    bits = 16 if lanes > 1 else 32
    pairs = [(i, j) for i in range(members) for j in range(i)]
    views = {
        "a member's message": words[:, 0],
        "two members' messages together": np.stack([words[:, 0, i] + words[:, 0, j] for i, j in pairs], 1),
        "a member's messages of two rounds": words[:, 0] - words[:, 1],
    }
    for what, rows in views.items():
        ones = np.stack([(rows >> bit & 1).sum(0, dtype=np.int64) for bit in range(bits)])
        if lanes > 1:  # sums of limbs carry: only the lowest limb's bits are independent
            ones = ones[:, :, :1] if what != "a member's message" else ones
        require_usual(f"every bit of {what} is a fair coin", count_deviate(ones, KEYS, 0.5), "0")
    key = keys_of(KEYS, "masks", seed)[0]
    summed = words[0, 0].astype(np.uint32).sum(0, dtype=np.uint32)
    total = np.asarray(transport.total(key, jnp.int32(0), ids, selected, selected, jnp.asarray(summed)))
    error = np.abs(total - np.asarray(flat).sum(0)).max()
    within = members * transport.resolution
    require(error <= within, "all messages added up are the sum", f"{error:.2g}", "the sum")
