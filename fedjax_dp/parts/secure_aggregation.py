"""Secure aggregation: members upload masked integers of a ring, and the server learns only their sum.

Each pair of neighbours agrees on a seed; one adds the words drawn from it, the other subtracts them, so all masks
cancel in the sum of the cohort (Bonawitz et al. 2017). If a member drops out after the masks were agreed, the masks
that it shares with present members are drawn again from its seeds and removed.

Neighbours are either all pairs of the cohort, or the k nearest on a ring of the positions that is shuffled in every
round (Bell et al. 2020). On that ring, with a fraction g of r members colluding with the server, the honest members can
be split only if k/2 consecutive positions collude at two places, with probability at most (r g^(k/2))^2 / 2; a member
is isolated with probability at most g^k. The server knows the masks of members that dropped out, so they count as
colluding. The Guarantee counts the worst case instead: with fewer than k colluding members all honest members stay
together; with k or more, one may be isolated.

Not simulated: key agreement, secret sharing (seeds of dropped members are always recovered), and the additional masks
that protect members whose message is only late. All masks come from one seeded generator in one process: this shows
what the server would see, and protects nobody.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_dp import errors, prng
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import structure, value

MOST_MEMBERS = 65_536  # so that 16-bit limbs can be summed in 32-bit lanes
_TILE = 16_384  # blocks: masks of one tile stay in the cache of a core while all neighbours are added
Index = Array | int


@value
class SecureSum:
    """Sums float32 vectors in the integers mod 2^bits; pairwise masks hide each message.

    bits             32 or 64, of the ring. Words are uint32: one lane, or four limbs of 16 bits that sum lane by lane.
    fractional_bits  f: x becomes the integer round(x 2^f).
    neighbours       None: every pair shares a mask; k, even: the ring described in this module. With padding the sum
                     stays correct, but members have fewer neighbours.

    Common arguments, for r positions: key, used only here; position, one of them; ids `(r,)` int32, distinct and not
    negative; selected `(r,)` bool, False for padding; present `(r,)` bool, the selected whose message arrived. Words
    have shape `(lanes, size)`.
    """

    bits: int = structure(default=32)
    fractional_bits: int = structure(default=16)
    neighbours: int | None = structure(default=None)

    equation = (
        r"\sum_k \big( \lfloor 2^f \omega_k \Delta_k \rceil + \text{masks}_k \big) \bmod 2^b,\ "
        r"\sum_k \text{masks}_k = 0"
    )

    def message(
        self, key: Array, round_index: Index, position: Index, ids: Array, selected: Array, flat: Array
    ) -> tuple[Array, Array]:
        """What one member uploads for `flat (size,)`, and whether a coordinate did not fit; padding uploads 0."""
        words, overflow = self.encode(flat, ids.shape[0])
        words = _carry(words + self.mask(key, round_index, position, ids, selected, flat.size))
        return jnp.where(selected[position], words, 0), overflow & selected[position]

    def total(
        self, key: Array, round_index: Index, ids: Array, selected: Array, present: Array, summed: Array
    ) -> Array:
        """The sum of the present members, float32 `(size,)`, from the lane-wise sum of their words."""
        left = self.leftover(key, round_index, ids, selected, present, summed.shape[1])
        return self.decode(summed + _negate(left))

    def encode(self, flat: Array, members: int) -> tuple[Array, Array]:
        """Fixed-point words of `flat`, and whether a coordinate is not finite or could make the members' sum overflow.

        A coordinate that is too large becomes the largest that fits, and one that is not finite becomes 0, so a flagged
        message affects only its own share of the sum.
        """
        one = np.float32(2.0**self.fractional_bits)
        scaled, largest = jnp.round(flat * one), self.limit(members) * one
        overflow = ~jnp.all(jnp.abs(scaled) <= largest)  # NaN compares false
        fitted = jnp.where(jnp.isfinite(flat), jnp.clip(scaled, -largest, largest), 0)
        if self.bits == 32:
            return lax.bitcast_convert_type(fitted.astype(jnp.int32), jnp.uint32)[None], overflow
        high = jnp.floor(jnp.abs(fitted) * np.float32(2.0**-32))  # exact in float32, and so is the rest
        low = jnp.abs(fitted) - high * np.float32(2.0**32)
        return _limbs(*_negate_where(fitted < 0, low.astype(jnp.uint32), high.astype(jnp.uint32))), overflow

    def mask(self, key: Array, round_index: Index, position: Index, ids: Array, selected: Array, size: int) -> Array:
        """The sum of one member's masks with its selected neighbours. Summed over all members they are 0."""
        partners = self._partners(key, round_index, position, ids.shape[0])
        own, other = ids[position], ids[partners]

        def seed(a: Array, b: Array) -> Array:
            return jax.random.fold_in(jax.random.fold_in(key, jnp.minimum(a, b)), jnp.maximum(a, b))

        seeds = jax.vmap(seed)(jnp.broadcast_to(own, other.shape), other)
        is_partner = selected[partners] & (partners != position)
        kept_bits = jnp.where(is_partner, np.uint32(2**32 - 1), np.uint32(0))
        flip = jnp.where(other < own, np.uint32(2**32 - 1), np.uint32(0))
        subtracted = (is_partner & (other < own)).sum().astype(jnp.uint32)  # -m is ~m + 1: the ones are the sum's start

        blocks = size if self.bits == 64 else -(-size // 2)
        tiles = -(-blocks // _TILE)
        tile = -(-blocks // (64 * tiles)) * 64  # uneven lengths do not vectorise

        def one_tile(index: Array) -> Array:
            def add_two(pair: Array, sums: Array) -> Array:
                x, y = _unpack(sums)
                for i in (2 * pair, 2 * pair + 1):
                    a, b = prng.words(seeds[i], round_index, tile, index * np.uint32(tile))
                    a, b = (a ^ flip[i]) & kept_bits[i], (b ^ flip[i]) & kept_bits[i]
                    x = x + a
                    y = y + b + (x < a) if self.bits == 64 else y + b
                return _pack(x, y)

            start = jnp.broadcast_to(subtracted, (tile,))
            start = _pack(start, start if self.bits == 32 else jnp.zeros_like(start))
            return jnp.stack(_unpack(lax.fori_loop(0, partners.shape[0] // 2, add_two, start)))

        # one tile after another on a CPU, whose caches they fit; all at once elsewhere
        each = partial(lax.map, one_tile) if jax.default_backend() == "cpu" else jax.vmap(one_tile)
        words = each(jnp.arange(tiles, dtype=jnp.uint32))  # (tiles, 2, tile)
        if self.bits == 32:
            return words.reshape(1, -1)[:, :size]
        return _limbs(words[:, 0].ravel()[:size], words[:, 1].ravel()[:size])

    def leftover(self, key: Array, round_index: Index, ids: Array, selected: Array, present: Array, size: int) -> Array:
        """The masks that remain in the sum of the present members; costs dropped members times neighbours."""
        arrived, dropped = selected & present, selected & ~present
        order = jnp.argsort(~dropped)  # the dropped ones first
        none = jnp.zeros((1 if self.bits == 32 else 4, size), jnp.uint32)
        more = partial(self.mask, key, round_index, ids=ids, selected=arrived, size=size)
        return _negate(lax.fori_loop(0, dropped.sum(), lambda i, missing: missing + more(order[i]), none))

    def decode(self, words: Array) -> Array:
        """The float32 nearest to the number that the summed words represent, `(size,)`."""
        unit = np.float32(2.0**-self.fractional_bits)
        if self.bits == 32:
            return lax.bitcast_convert_type(words[0], jnp.int32).astype(jnp.float32) * unit
        low, high = _words_of(words)
        negative = high >> 31 == 1
        low, high = _negate_where(negative, low, high)
        # The 32 leading bits, the last one set if any bit below them is: enough to round once, to nearest.
        shift = lax.clz(high)
        lead = (high << shift) | (low >> 1 >> (31 - shift)) | ((low << shift) != 0).astype(jnp.uint32)
        power = lax.bitcast_convert_type((127 + 32 - shift) << 23, jnp.float32)
        number = jnp.where(high == 0, low, lead).astype(jnp.float32) * power * unit
        return jnp.where(negative, -number, number)

    def limit(self, members: int) -> float:
        """Largest |x| of a coordinate with which the sum of `members` messages cannot overflow."""
        bound = (2 ** (self.bits - 1) - 1) // members
        nearest = np.float32(bound)
        return float(nearest if int(nearest) <= bound else np.nextafter(nearest, 0)) * 2.0**-self.fractional_bits

    secret = True

    def hidden_among(self, members: int, helpers: int) -> int:
        """All honest members, unless helpers can isolate one on the ring by k/2 positions on either side.

        The worst case over shuffles: the ring is drawn anew in every round, so over many rounds it happens.
        """
        alone = self.neighbours is not None and helpers >= self.neighbours
        return 1 if alone else members - helpers

    @property
    def resolution(self) -> float:
        return 2.0**-self.fractional_bits

    @property
    def word_bytes(self) -> int:
        return self.bits // 8

    def check(self, members: int) -> None:
        if self.bits not in (32, 64):
            raise errors.refuse("bits of a secure sum", self.bits, "32 or 64")
        errors.require_integer("members of a secure sum", members, 1, MOST_MEMBERS)
        remedy = "take fewer bits for the fraction" + (" or bits=64" if self.bits == 32 else "")
        most = ((2 ** (self.bits - 1) - 1) // int(members)).bit_length() - 1  # bits with which every member may send 1
        errors.require_integer("fractional_bits", self.fractional_bits, 0, most, remedy)
        if self.neighbours is not None and self.neighbours not in range(2, members, 2):
            wanted = f"even, at least 2 and below the {members} members"
            raise errors.refuse("neighbours", self.neighbours, wanted, "use None to mask every pair")

    def _partners(self, key: Array, round_index: Index, position: Index, r: int) -> Array:
        """Positions that share a mask with `position`, and perhaps itself; an even number."""
        if self.neighbours is None:
            return jnp.append(jnp.arange(r), jnp.full(r % 2, position, jnp.int32))
        order = jnp.argsort(prng.bits(role_key(key, "ring"), round_index, r))
        steps = np.arange(1, self.neighbours // 2 + 1, dtype=np.int32)
        return order[(jnp.argsort(order)[position] + np.concatenate([steps, -steps])) % r]


def _limbs(low: Array, high: Array) -> Array:
    """Four limbs of 16 bits, low to high `(4, size)`, of numbers mod 2^64 given as two words `(size,)`."""
    shifts = jnp.array([0, 16], jnp.uint32)[None, :, None]
    return ((jnp.stack([low, high])[:, None] >> shifts) & np.uint32(0xFFFF)).reshape(4, -1)


def _words_of(limbs: Array) -> tuple[Array, Array]:
    """The two words of numbers given as limbs, which may be sums of up to 65,536 numbers."""
    low = limbs[0] + (limbs[1] << 16)
    return low, limbs[2] + (limbs[3] << 16) + (limbs[1] >> 16) + (low < limbs[0])


def _negate_where(negative: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Numbers mod 2^64, negated where `negative`."""
    opposite = ~low + np.uint32(1)
    return jnp.where(negative, opposite, low), jnp.where(negative, ~high + (opposite == 0), high)


def _carry(words: Array) -> Array:
    """Words whose limbs are below 2^16 again; a single lane wraps by itself."""
    return words if words.shape[0] == 1 else _limbs(*_words_of(words))


def _negate(words: Array) -> Array:
    return -words if words.shape[0] == 1 else _limbs(*_negate_where(jnp.array(True), *_words_of(words)))


def _pack(x: Array, y: Array) -> Array:
    """Two words as one complex number: XLA's loops on a CPU have one output, and two would draw every block twice.

    There is no arithmetic on the floats, so their bits stay the same, even those of NaN.
    """
    return lax.complex(*(lax.bitcast_convert_type(word, jnp.float32) for word in (x, y)))


def _unpack(pairs: Array) -> tuple[Array, Array]:
    bits = partial(lax.bitcast_convert_type, new_dtype=jnp.uint32)
    return bits(lax.real(pairs)), bits(lax.imag(pairs))
