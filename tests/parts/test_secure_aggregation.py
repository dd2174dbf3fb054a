"""Secure sums against Python integers. Statistical tests: false positive 1e-6, and an unmasked message is rejected."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal, usual
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.random import threefry_2x32
from scipy import stats

from fedjax_dp import prng
from fedjax_dp.parts import secure_aggregation
from fedjax_dp.parts.secure_aggregation import SecureSum
from fedjax_dp.prng import role_key

pytestmark = pytest.mark.slow  # a dozen programs to compile; worked examples and uploads run by default

KEY = jax.random.key(11)
R, SIZE = 7, 150
IDS = np.array([40, 3, 17, 2**31 - 1, 0, 5, 29], np.int32)
EVERYONE = np.ones(R, bool)
FLATS = np.random.default_rng(0).normal(size=(R, SIZE)).astype(np.float32) * 50
KINDS = [SecureSum(bits=bits, neighbours=k) for bits in (32, 64) for k in (None, 4)]
each_kind = pytest.mark.parametrize(
    "transport", usual(KINDS, KINDS[::3]), ids=lambda t: f"{t.bits} bits, {t.neighbours or 'all'}"
)


@jax.jit
def _uploads(transport, key, round_index, ids, selected, flats):
    positions = jnp.arange(ids.shape[0])
    return lax.map(lambda row: transport.message(key, round_index, row[0], ids, selected, row[1]), (positions, flats))


def uploads(*arguments):
    """Words `(r, lanes, size)` and overflow `(r,)` of all members, one after another; NumPy from here on."""
    return jax.tree.map(np.asarray, _uploads(*arguments))


total, decode = jax.jit(SecureSum.total), jax.jit(SecureSum.decode)
encode = jax.jit(SecureSum.encode, static_argnums=2)
summed_up = functools.partial(np.sum, axis=0, dtype=np.uint32)


def integers(words):
    """Words `(..., lanes, size)` as Python integers of the ring."""
    limbs = np.moveaxis(np.asarray(words), -2, 0).astype(object)
    return sum(limb << (16 * place) for place, limb in enumerate(limbs))


def signed(numbers, bits):
    """Representatives in [-2^(bits-1), 2^(bits-1))."""
    return (np.asarray(numbers, object) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def fixed(flats, transport):
    """round(x 2^f) as Python integers."""
    return np.vectorize(lambda x: round(float(x) * 2**transport.fractional_bits), otypes=[object])(flats)


def nearest(number):
    """The float32 nearest to a Python integer, ties to even."""
    near = np.float32(float(number))
    candidates = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return min(candidates, key=lambda c: (abs(int(c) - number), int(c.view(np.uint32)) & 1))


def masks_in(words, transport):
    """What hides the messages FLATS in these words, Python integers `(r, size)`."""
    return (integers(words) - fixed(FLATS, transport)) % 2**transport.bits


def floats(numbers, transport):
    return np.array([nearest(n) for n in numbers], np.float32) * np.float32(2.0**-transport.fractional_bits)


def pair_words(key, a, b, round_index, size, bits):
    """What a pair draws, one tile long: first words, then second words; or both as one number of 64 bits."""
    seed = jax.random.fold_in(jax.random.fold_in(key, min(a, b)), max(a, b))
    blocks = size if bits == 64 else -(-size // 2)
    tile = -(-blocks // 64) * 64
    counters = np.concatenate([np.full(tile, round_index, np.uint32), np.arange(tile, dtype=np.uint32)])
    x, y = np.asarray(threefry_2x32(jax.random.key_data(seed), counters)).reshape(2, tile).astype(object)
    return (x + (y << 32))[:size] if bits == 64 else np.concatenate([x, y])[:size]


def edges(transport, key, round_index, r):
    """Ordered pairs of positions that share a mask."""
    if transport.neighbours is None:
        return [(i, j) for i in range(r) for j in range(r) if i != j]
    order = np.argsort(np.asarray(prng.bits(role_key(key, "ring"), round_index, r)))
    steps = range(1, transport.neighbours // 2 + 1)
    return [(order[i], order[(i + sign * d) % r]) for i in range(r) for d in steps for sign in (1, -1)]


@each_kind
def test_masks_are_signed_sums_of_pair_words_and_cancel_bit_for_bit(transport):
    words, _ = uploads(transport, KEY, 3, IDS, EVERYONE, FLATS)
    masks = masks_in(words, transport)
    expected = np.zeros((R, SIZE), object)
    for i, j in edges(transport, KEY, 3, R):
        a, b = int(IDS[i]), int(IDS[j])
        expected[i] += (1 if b > a else -1) * pair_words(KEY, a, b, 3, SIZE, transport.bits)
    assert (masks == expected % 2**transport.bits).all()
    assert (masks.sum(0) % 2**transport.bits == 0).all()
    order = np.random.default_rng(1).permutation(R)
    again = masks_in(uploads(transport, KEY, 3, IDS[order], EVERYONE, FLATS)[0], transport)
    assert (again.sum(0) % 2**transport.bits == 0).all()
    if transport.neighbours is None:  # who stands where does not matter
        assert (again == masks[order]).all()


@each_kind
def test_the_sum_of_those_present_is_exact_and_only_with_recovery(transport):
    words, overflow = uploads(transport, KEY, 3, IDS, EVERYONE, FLATS)
    assert not overflow.any()
    for dropped in ([], [2], [0, 3, 6]):
        present = EVERYONE.copy()
        present[dropped] = False
        summed = summed_up(words[present])
        expected = floats(fixed(FLATS, transport)[present].sum(0), transport)
        np.testing.assert_array_equal(total(transport, KEY, 3, IDS, EVERYONE, present, summed), expected)
        unrecovered = (np.asarray(decode(transport, summed)) != expected).mean()
        assert unrecovered > 0.9 if dropped else unrecovered == 0


@each_kind
def test_padding_uploads_zero_flags_nothing_and_leaves_the_sum_exact(transport):
    selected, present = EVERYONE.copy(), EVERYONE.copy()
    selected[[1, 4]], present[[1, 4, 5]] = False, False
    flats = np.where(selected[:, None], FLATS, np.nan).astype(np.float32)
    words, overflow = uploads(transport, KEY, 0, np.where(selected, IDS, IDS[0]), selected, flats)
    assert not np.asarray(words)[~selected].any()
    assert not overflow.any()
    expected = floats(fixed(FLATS, transport)[present].sum(0), transport)
    got = total(transport, KEY, 0, np.where(selected, IDS, IDS[0]), selected, present, summed_up(words[present]))
    np.testing.assert_array_equal(got, expected)


def test_a_round_repeats_its_masks_and_others_have_their_own():
    masks = [uploads(SecureSum(neighbours=4), KEY, t, IDS, EVERYONE, FLATS)[0] for t in (3, 3, 4)]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).mean() > 0.99
    rings = {frozenset(edges(SecureSum(neighbours=4), KEY, t, R)) for t in range(5)}
    assert len(rings) > 1


def test_no_word_of_a_pair_is_used_twice_across_tiles():
    size = 5 * 16_384  # three tiles of blocks in 32 bits
    ids, selected = jnp.array([8, 5]), jnp.ones(2, bool)
    masks = jax.jit(lambda: lax.map(lambda i: SecureSum().mask(KEY, 0, i, ids, selected, size)[0], jnp.arange(2)))()
    assert size - np.unique(masks[0]).size <= 10  # 0.8 chance repeats expected; more than 10 with probability 5e-9
    np.testing.assert_array_equal(masks[0] + masks[1], np.zeros(size))


def uniformity(octets):
    """p-value of bytes against the uniform law."""
    return stats.chisquare(np.bincount(np.asarray(octets), minlength=256)).pvalue


def test_messages_and_sums_that_lack_one_look_uniform_and_unmasked_ones_are_rejected():
    flats = np.full((R, SIZE), 0.37, np.float32)
    rounds = [uploads(SecureSum(), KEY, t, IDS, EVERYONE, flats)[0][:, 0] for t in range(150)]
    words = np.concatenate(rounds, axis=1)  # (r, 22,500)
    plain = np.tile(encode(SecureSum(), flats[0], R)[0][0], 150)
    for shift in (0, 8, 16, 24):
        assert uniformity(words[1] >> shift & 255) > 1e-6
        assert uniformity(summed_up(words[:-1]) >> shift & 255) > 1e-6  # one message is missing
        assert uniformity(plain >> shift & 255) < 1e-6
        assert uniformity(summed_up(words) >> shift & 255) < 1e-6


@settings(max_examples=60, deadline=None)
@given(data=st.data(), ring=st.sampled_from([(32, 0), (32, 16), (64, 5), (64, 20)]))
def test_rounding_stays_within_its_bound(data, ring):
    bits, fraction = ring
    transport, members = SecureSum(bits=bits, fractional_bits=fraction), 3
    limit = np.float32(min(transport.limit(members), 1e12))
    number = st.floats(-float(limit), float(limit), width=32)
    flats = np.array(data.draw(st.lists(st.lists(number, min_size=3, max_size=3), min_size=3, max_size=3)), np.float32)
    encoded = [encode(transport, flat, members) for flat in flats]
    assert not any(overflow for _, overflow in encoded)
    summed = summed_up([words for words, _ in encoded])
    whole = signed(integers(summed), bits)
    np.testing.assert_array_equal(whole, fixed(flats, transport).sum(0))
    np.testing.assert_array_equal(decode(transport, summed), floats(whole, transport))
    for number, exact in zip(whole, flats.astype(float).T):
        error = Fraction(number, 2**fraction) - sum(map(Fraction, exact))
        assert abs(error) <= members * 2.0 ** -(fraction + 1)  # of rounding to the ring


@pytest.mark.parametrize("bits", usual([32, 64], [64]))
@pytest.mark.parametrize(("bad", "becomes"), [(1e30, 1), (-1e30, -1), (np.inf, 0), (-np.inf, 0), (np.nan, 0)])
def test_what_does_not_fit_is_flagged_and_spoils_no_other_share(bits, bad, becomes):
    transport, members = SecureSum(bits=bits), 10
    flat = np.float32([1.0, bad, -2.5])
    words, overflow = encode(transport, flat, members)
    assert overflow
    limit = transport.limit(members)
    np.testing.assert_array_equal(decode(transport, words), np.float32([1, becomes * limit, -2.5]))
    np.testing.assert_array_equal(decode(transport, words * 10)[1], np.float32(becomes * limit * 10))  # does not wrap


@pytest.mark.parametrize("bits", usual([32, 64], [64]))
@pytest.mark.parametrize("members", [1, 2, 3, 100, 65_536])
def test_the_limit_is_no_false_alarm_and_beyond_it_is_flagged(bits, members):
    transport = SecureSum(bits=bits, fractional_bits=8)
    limit = np.float32(transport.limit(members))
    assert not encode(transport, np.float32([limit, -limit, 0]), members)[1]
    beyond = max(np.nextafter(limit, np.float32(np.inf)), limit + np.float32(2.0**-8))
    assert encode(transport, np.float32([0, beyond, 0]), members)[1]
    whole = int(float(limit) * 2**8)
    assert whole * members <= 2 ** (bits - 1) - 1
    assert whole * members > (2 ** (bits - 1) - 1) * 0.99


def test_limbs_of_65536_messages_can_be_summed_before_they_carry():
    transport, members = SecureSum(bits=64, fractional_bits=0), secure_aggregation.MOST_MEMBERS
    words, _ = encode(transport, np.float32([-1.0, 1.0, 2.0**40]), members)
    np.testing.assert_array_equal(decode(transport, words * np.uint32(members)), np.float32([-1, 1, 2.0**40]) * members)
    summed = np.full((4, SIZE), members * 65_535, np.uint32)  # all limbs at their largest: every message is -2^-16
    got = total(KINDS[2], KEY, 3, IDS, EVERYONE, EVERYONE, summed)
    np.testing.assert_array_equal(got, np.full(SIZE, -1, np.float32))


def test_64_bits_decode_to_the_nearest_float():
    rng = np.random.default_rng(2)
    numbers = [int(n) >> int(s) for n, s in zip(rng.integers(-(2**63), 2**63, 3000), rng.integers(0, 64, 3000))]
    ties = [
        sign * (2**24 + 1 + 2 * i) * 2**s + e for sign in (1, -1) for i in (0, 1) for s in range(38) for e in (-1, 0, 1)
    ]
    numbers += [*ties, 0, 1, -1, 2**32, -(2**32), 2**63 - 1, -(2**63)]
    limbs = np.array([[(n >> (16 * place)) & 0xFFFF for n in numbers] for place in range(4)], np.uint32)
    got = decode(SecureSum(bits=64, fractional_bits=0), limbs)
    np.testing.assert_array_equal(got, np.array([nearest(n) for n in numbers], np.float32))


@pytest.mark.parametrize(
    ("transport", "members", "word"),
    [
        (SecureSum(bits=16), 10, "32 or 64"),
        (SecureSum(fractional_bits=-1), 10, "fractional_bits"),
        (SecureSum(fractional_bits=28), 10, "bits=64"),
        (SecureSum(bits=64, fractional_bits=60), 10, "take fewer bits"),
        (SecureSum(neighbours=3), 10, "even"),
        (SecureSum(neighbours=10), 10, "below the 10 members"),
        (SecureSum(neighbours=0), 10, "at least 2"),
        (SecureSum(neighbours=2), 2, "every pair"),
        (SecureSum(), 0, "members"),
        (SecureSum(bits=64), 65_537, "members"),
    ],
)
def test_refusals_are_one_line_that_says_what_to_change(transport, members, word):
    assert word in refusal(transport.check, members)


def test_what_fits_is_accepted():
    assert [t.word_bytes for t in KINDS] == [4, 4, 8, 8]
    for transport in (
        *KINDS,
        SecureSum(fractional_bits=27),
        SecureSum(neighbours=8),
        SecureSum(bits=64, fractional_bits=59),
    ):
        transport.check(10)
        assert transport.limit(10) >= 1
