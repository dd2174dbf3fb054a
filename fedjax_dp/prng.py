"""Keys by named roles, and random draws for the inner loop: normals, batches, cohorts.

Keys are derived from roles and ids; splitting them in order would let an added draw change all later ones.

The generator is Threefry-2x32 with 20 rounds (Salmon et al. 2011), as in JAX, one block per number. Its rounds are
written out as plain arithmetic on a counter, so that XLA fuses generator, transformation and the update that uses the
noise into one loop: no random bits are ever stored.

Every draw has a key and a 64-bit counter: the high word is the stream (such as a local step), the low word the index
within it. Callers use distinct (key, stream) pairs, so no counter is used twice.
"""

import functools
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
FEW = 500  # largest count for which comparing all pairs is fastest
_PARITY = np.uint32(0x1BD11BDA)


def role_key(key: jax.Array, role: str) -> jax.Array:
    """The key for a named role; adding a role never changes the draws of another."""
    return jax.random.fold_in(key, zlib.crc32(role.encode()))


def _threefry(
    key: jax.Array | tuple[jax.Array, jax.Array], high: jax.Array, low: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32-20 of the counter (high, low) under a key of two words; two words per counter."""
    first, second = key[0], key[1]
    schedule = (first, second, first ^ second ^ _PARITY)
    x, y = high + schedule[0], low + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x = x + schedule[(block + 1) % 3]
        y = y + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return x, y


def _words(key: jax.Array) -> jax.Array:
    """The two 32-bit words of a key; keys of other generators are condensed to two words."""
    data = jax.random.key_data(key)
    return data if data.shape == (2,) else jax.random.bits(key, (2,), jnp.uint32)


def _blocks(key: jax.Array, stream: jax.Array | int, size: int) -> tuple[jax.Array, jax.Array]:
    """Two words for each of `size` counters of a stream."""
    low, words = lax.iota(jnp.uint32, size), _words(key)

    def unknown_zero(first: jax.Array, low: jax.Array) -> jax.Array:
        """Zeros that the compiler does not know to be zeros.

        On a GPU, everything that depends only on key and stream would be a separate kernel launch before every draw;
        adding these makes it differ between numbers.
        """
        return (first & low) >> np.uint32(31)

    def zero(first: jax.Array, low: jax.Array) -> jax.Array:
        return jnp.zeros_like(low)

    on_gpu = unknown_zero if size <= 2**31 else zero
    nothing = lax.platform_dependent(words[0], low, cuda=on_gpu, default=zero)
    return _threefry((words[0] + nothing, words[1] + nothing), jnp.asarray(stream, jnp.uint32) + nothing, low)


def bits(key: jax.Array, stream: jax.Array | int, size: int) -> jax.Array:
    """`size` uniform 32-bit words of one stream; shape `(size,)`."""
    x, y = _blocks(key, stream, size)
    return x ^ y


def words(
    key: jax.Array, stream: jax.Array | int, size: int, start: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
    """Both words of each of `size` counters from `start` on; two `(size,)` arrays, so a word costs half a block."""
    high = jnp.broadcast_to(jnp.asarray(stream, jnp.uint32), (size,))
    return _threefry(_words(key), high, lax.iota(jnp.uint32, size) + jnp.asarray(start, jnp.uint32))


# sin(pi/2 t) / t in t^2 on [-1, 1]: least squares on Chebyshev nodes, relative error 7e-9
_SINE = (1.5707963201, -0.6459637604, 0.0796899226, -0.0046741507, 0.0001516751)


def normals(key: jax.Array, stream: jax.Array | int, size: int) -> jax.Array:
    """`size` independent standard normals of one stream, float32; flat, because other shapes do not vectorise.

    Box and Muller 1958, with both words of a block for one normal: sqrt(-2 ln u) sin(pi/2 t), u uniform in (0, 1) and
    t in [-1, 1), whose sine is distributed like the cosine of a uniform angle. |z| stays below 6.7.
    """
    x, y = _blocks(key, stream, size)
    u = ((x >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5) * np.float32(2.0**-31)
    t = lax.bitcast_convert_type(y, jnp.int32).astype(jnp.float32) * np.float32(2.0**-31)
    sine = jnp.full_like(t, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        sine = sine * (t * t) + np.float32(coefficient)
    return jnp.sqrt(-2 * jnp.log(u)) * (sine * t)


def below(word: jax.Array, bound: jax.Array, less: jax.Array | None = None) -> jax.Array:
    """Map uniform 32-bit words to integers in [0, bound) as floor(word * bound / 2^32); bias below bound / 2^32.

    less  32 more bits, of lower significance: the bias is below bound / 2^64, and the integer rarely changes.
    """
    bound = bound.astype(jnp.uint32)
    if less is not None:
        carried = word * bound + below(less, bound).astype(jnp.uint32) < word * bound
        return below(word, bound) + carried.astype(jnp.int32)
    word_high, word_low = word >> 16, word & np.uint32(0xFFFF)
    bound_high, bound_low = bound >> 16, bound & np.uint32(0xFFFF)
    middle = word_high * bound_low + ((word_low * bound_low) >> 16)
    carry = (middle & np.uint32(0xFFFF)) + word_low * bound_high
    return (word_high * bound_high + (middle >> 16) + (carry >> 16)).astype(jnp.int32)


def unit_interval(word: jax.Array) -> jax.Array:
    """Uniform float32 in (0, 1): 24 bits, never 0."""
    return ((word >> 8).astype(jnp.int32).astype(jnp.float32) + 0.5) * np.float32(2.0**-24)


def proportional(words: tuple[jax.Array, jax.Array], weights: jax.Array) -> jax.Array:
    """Independent draws of integers with probabilities proportional to `weights`, in float64 for large populations.

    Shapes: words two arrays `(k,)` of uniform 32-bit words, high and low; weights `(n,)`; returns `(k,)` int32.
    """
    with jax.enable_x64(True):
        edges = jnp.cumsum(weights.astype(jnp.float64))
        places = _fractions(words) * edges[-1]
        return jnp.minimum(jnp.searchsorted(edges, places, side="right"), weights.size - 1).astype(jnp.int32)


def _fractions(words: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Uniform float64 in (0, 1) from two words, high and low; float64 must be enabled."""
    high, low = words
    return (high.astype(jnp.float64) * 2.0**32 + low.astype(jnp.float64) + 0.5) * 2.0**-64


def without_replacement(words: jax.Array, population: jax.Array, less: jax.Array | None = None) -> jax.Array:
    """`k` distinct integers below `population`, every k-subset equally likely; the order is not uniform.

    Shapes: words `(..., k)` uniform 32-bit words, population a scalar (may be traced); returns `(..., k)` int32; `less`
            as for `below`.
    Source: Floyd's algorithm (Bentley and Floyd 1987): k bounded draws, each over one more integer than the one before;
            a draw that is already chosen chooses the newest integer instead. k^2 comparisons, and a sort for large k.
    """
    start = jnp.asarray(population, jnp.int32) - words.shape[-1]
    one_more = lax.broadcasted_iota(jnp.int32, words.shape, words.ndim - 1) + 1
    candidates = below(words, start + one_more, less)
    members: jax.Array
    if words.shape[-1] > FEW:
        members = _without_replacement_by_sorting(candidates, start)
        return members

    members = lax.platform_dependent(candidates, start, cpu=_one_after_another, default=_by_doubling)
    return members


def _one_after_another(candidates: jax.Array, start: jax.Array) -> jax.Array:
    """Floyd's loop."""

    def step(index: jax.Array, chosen: jax.Array) -> jax.Array:
        candidate = candidates[..., index]
        taken = jnp.any(chosen == candidate[..., None], axis=-1)
        return chosen.at[..., index].set(jnp.where(taken, start + index, candidate))

    return lax.fori_loop(0, candidates.shape[-1], step, jnp.full(candidates.shape, -1, jnp.int32))


def _by_doubling(candidates: jax.Array, start: jax.Array) -> jax.Array:
    """The same integers without a loop over them, which would be kernel launches for each on an accelerator.

    As in `_without_replacement_by_sorting`; whether a chain of turns ends in a candidate that was already chosen is
    found by steps of 1, 2, 4, ... along the chain.
    """
    turns = lax.broadcasted_iota(jnp.int32, candidates.shape, candidates.ndim - 1)
    alike = candidates[..., :, None] == candidates[..., None, :]
    taken = jnp.any(alike & (turns[..., :, None] > turns[..., None, :]), axis=-1)
    turn = jnp.where((candidates >= start) & (candidates < start + turns), candidates - start, turns)
    for _ in range((candidates.shape[-1] - 1).bit_length()):
        taken = taken | jnp.take_along_axis(taken, turn, axis=-1)
        turn = jnp.take_along_axis(turn, turn, axis=-1)
    return jnp.where(taken, start + turns, candidates)


@functools.partial(jnp.vectorize, signature="(k),()->(k)")
def _without_replacement_by_sorting(candidates: jax.Array, start: jax.Array) -> jax.Array:
    """The same integers by k log k comparisons.

    A candidate is already chosen if an earlier one equals it, or if it is the newest integer of an earlier turn that
    chose it because its own candidate was already chosen. Such turns lead to earlier ones in short chains.
    """
    turns = jnp.arange(candidates.size, dtype=jnp.int32)
    order = jnp.argsort(candidates, stable=True)
    again = jnp.diff(candidates[order], prepend=-1) == 0
    repeated = jnp.zeros(candidates.shape, bool).at[order].set(again)
    turn = jnp.where((candidates >= start) & (candidates < start + turns), candidates - start, turns)

    def follow(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken = carry[0] | carry[0][turn]
        return taken, jnp.any(taken != carry[0])

    taken, _ = lax.while_loop(lambda carry: carry[1], follow, (repeated, jnp.any(repeated)))
    return jnp.where(taken, start + turns, candidates)


@functools.cache
def poisson_capacity(size: int) -> int:
    """Smallest number that a sum of independent trials with mean `size` exceeds with probability below 1e-18.

    Source: Chernoff's bound for any number of Poisson trials.
    """
    rows = size + 1
    while rows * math.log(rows / size) - rows + size < 18 * math.log(10):
        rows += 1
    return rows


def misses(words: tuple[jax.Array, jax.Array], rate: float) -> jax.Array:
    """Number of failures before the first success of trials with probability `rate`, at most 2^30; in float64.

    Shapes: words two arrays `(k,)` of uniform 32-bit words, high and low; returns `(k,)` int32.
    """
    with jax.enable_x64(True):
        return _misses(_fractions(words), jnp.float64(rate), 2.0**30)


def _misses(uniform: jax.Array, rate: jax.Array, most: float) -> jax.Array:
    gaps = jnp.floor(jnp.log1p(-uniform) / jnp.log1p(-rate))  # short gaps come from small numbers, which are precise
    return jnp.minimum(gaps, most).astype(jnp.int32)


def independent(
    words: tuple[jax.Array, jax.Array], population: jax.Array, size: int, among: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Each integer below `population` independently with probability `size / population`, in increasing order.

    among   replaces the population in the probability; an integer that may be traced.

    Shapes: words two arrays `(..., k)` of uniform 32-bit words, high and low; returns integers `(..., k)` int32 and
            which of them are drawn; the others are 0. At most k are drawn: use k = `poisson_capacity(size)`.
    The gaps between drawn integers are geometric, so the cost does not grow with the population. They are computed in
    float64 in every program: in float32 a rate of 1e-8 would be wrong by a factor.
    """
    with jax.enable_x64(True):
        uniform = _fractions(words)
        rate = jnp.minimum(size / (population if among is None else among).astype(jnp.float64), 1.0)
        gaps = _misses(uniform, rate, 2.0**31 // uniform.shape[-1] - 2)  # so that the sum cannot overflow
    places = jnp.cumsum(gaps + 1, axis=-1) - 1
    drawn = places < population
    return jnp.where(drawn, places, 0), drawn
