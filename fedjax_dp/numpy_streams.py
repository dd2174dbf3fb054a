"""NumPy's generator by named roles, for all that is drawn on the host. No JAX here.

`numpy.random.default_rng(seed)` is everybody's: a user's own numbers, made with the same small seed, would be the very
draws that a partition takes for chance. A role keeps a stream apart from these, and from other roles of the same seed.
"""

import zlib

import numpy as np


def numpy_stream(role: str, *numbers: int) -> np.random.Generator:
    """The generator of a named role and some numbers, such as a seed; adding a role never changes another's draws."""
    return np.random.default_rng([*numbers, zlib.crc32(role.encode())])
