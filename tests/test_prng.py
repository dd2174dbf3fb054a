"""The laws of the draws. Statistical tests: false positive 1e-6 each (|z| < 4.89), and a wrong program is rejected."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_dp import prng
from fedjax_dp.parts import batches

KEY = jax.random.key(7)


def std_z(sample):
    """z-score of the sample standard deviation of normals whose true one is 1."""
    return (np.std(sample) - 1) * np.sqrt(2 * sample.size)


def test_normals_have_the_law_of_a_standard_normal():
    z = np.asarray(prng.normals(KEY, 3, 400_000), float)
    assert abs(z.mean() * np.sqrt(z.size)) < 4.89
    assert abs(std_z(z)) < 4.89
    assert stats.kstest(z, "norm").pvalue > 1e-6
    assert abs((z**4).mean() - 3) * np.sqrt(z.size / 96) < 4.89
    assert np.abs(z).max() > 4  # tails: P(no |z| > 4 among 400,000) < 1e-10


def test_a_standard_deviation_wrong_by_five_percent_is_rejected():
    z = np.asarray(prng.normals(KEY, 0, 12_743), float)  # enough draws for power 0.999
    assert abs(std_z(z)) < 4.89
    assert abs(std_z(1.05 * z)) > 4.89
    assert abs(std_z(0.95 * z)) > 4.89


def test_generator_equals_jax_threefry():
    words = prng.bits(KEY, 0, 64)
    high, low = jnp.zeros(64, jnp.uint32), jnp.arange(64, dtype=jnp.uint32)
    from jax.extend.random import threefry_2x32

    expected = threefry_2x32(jax.random.key_data(KEY), jnp.concatenate([high, low])).reshape(2, 64)
    np.testing.assert_array_equal(words, expected[0] ^ expected[1])


def test_streams_and_keys_are_uncorrelated():
    z = np.stack([prng.normals(k, s, 20_000) for k in jax.random.split(KEY, 4) for s in range(4)])
    correlations = np.corrcoef(z)[np.triu_indices(16, 1)] * np.sqrt(z.shape[1])
    assert np.abs(correlations).max() < 5.8  # 120 pairs at 1e-6 together


def test_below_is_floor_of_the_product_for_every_size():
    words = np.array([0, 1, 65_535, 65_536, 2**31, 2**32 - 1, 123_456_789], np.uint32)
    for bound in (1, 2, 10, 600, 65_535, 65_536, 70_000, 10**6, 2**31 - 1):
        expected = [(int(w) * bound) >> 32 for w in words]
        np.testing.assert_array_equal(prng.below(words, jnp.uint32(bound)), expected)


def test_two_words_are_as_good_as_one_of_64_bits():
    """In a population of a billion, one word alone would take some clients five times for others' four."""
    rng = np.random.default_rng(0)
    words, less = rng.integers(0, 2**32, (2, 2_000), dtype=np.uint64).astype(np.uint32)
    for bound in (1, 3, 70_000, 10**6, 10**9, 2**31 - 1):
        expected = [((int(w) << 32 | int(v)) * bound) >> 64 for w, v in zip(words, less)]
        np.testing.assert_array_equal(prng.below(words, jnp.uint32(bound), less), expected)
    edges = -(-np.arange(3, dtype=object) * 2**64 // 10**9)  # the first words of 0, 1 and 2 of a billion
    for number, edge in enumerate(edges[1:], 1):
        for off, wanted in ((-1, number - 1), (0, number)):
            high, low = divmod(int(edge) + off, 2**32)
            got = prng.below(jnp.uint32(high), jnp.uint32(10**9), jnp.uint32(low))
            assert int(got) == wanted
    counts = np.diff([-(-k * 2**32 // 10**9) for k in range(1_000)])  # of single words
    assert counts.max() / counts.min() == 5 / 4  # the wrong program


@pytest.mark.exhaustive
def test_draws_by_shares_are_as_likely_as_the_shares_among_millions():
    """Bisection over 64-bit words finds where one client ends and the next begins; 24 bits would skip some clients."""
    shares = np.random.default_rng(1).uniform(0.5, 1.5, 2_000_000).astype(np.float32)
    edges = np.cumsum(shares.astype(float)) / shares.astype(float).sum()
    asked = np.array([0, 1, 7, 1_000_003, 1_999_998])
    draw = jax.jit(lambda high, low: prng.proportional((high, low), shares))
    low, high = np.zeros(len(asked), object), np.full(len(asked), 2**64, object)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        words = [np.array([(int(m) >> shift) & (2**32 - 1) for m in middle], np.uint32) for shift in (32, 0)]
        beyond = np.asarray(draw(*words)) > asked
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    np.testing.assert_allclose(high.astype(float) / 2.0**64, edges[asked], rtol=0, atol=1e-9 / 2e6)
    coarse = np.asarray((np.arange(2**24) + 0.5) / 2**24)
    chosen = np.bincount(np.searchsorted(edges, coarse, side="right"), minlength=shares.size) / 2**24
    assert (chosen / (shares / shares.astype(float).sum())).max() > 1.1  # the wrong program


@pytest.mark.parametrize(("size", "population"), [(1, 1), (2, 4), (3, 5), (5, 5)])
def test_every_subset_is_equally_likely(size, population):
    trials = 40_000

    @jax.jit
    def draws(population):
        return prng.without_replacement(prng.bits(KEY, size, trials * size).reshape(trials, size), population)

    got = np.sort(np.asarray(draws(jnp.int32(population))), -1)
    subsets = list(itertools.combinations(range(population), size))
    counts = np.array([(got == subset).all(-1).sum() for subset in np.array(subsets)])
    assert counts.sum() == trials  # distinct, in range
    if len(subsets) > 1:
        assert stats.chisquare(counts).pvalue > 1e-6
        skewed = counts + np.where(np.arange(len(counts)) == 0, trials * 0.03, 0)
        assert stats.chisquare(skewed / skewed.sum() * trials).pvalue < 1e-6  # 3% more of one subset is rejected


@pytest.mark.parametrize(
    ("size", "population"),
    [
        (1, 9),
        (40, 41),
        pytest.param(40, 60, marks=pytest.mark.exhaustive),
        *(pytest.param(*told, marks=pytest.mark.exhaustive) for told in ((40, 40), (40, 10**6), (300, 301))),
    ],
)
def test_sorting_chooses_what_comparing_chooses(size, population, monkeypatch):
    def drawn():
        words = prng.bits(KEY, size, 200 * size).reshape(200, size)
        return np.asarray(jax.jit(lambda words: prng.without_replacement(words, jnp.int32(population)))(words))

    compared = drawn()
    monkeypatch.setattr(prng, "FEW", 0)
    np.testing.assert_array_equal(drawn(), compared)
    assert all(np.unique(row).size == size for row in compared)


@pytest.mark.slow
def test_poisson_batches_include_each_record_independently_at_the_rate():
    law, records, steps = batches.PoissonBatches(size=4), 20, 50_000
    batch = law.sample(KEY, jnp.int32(records), steps, records, records)
    present = np.zeros((steps, records))
    rows = np.broadcast_to(np.arange(steps)[:, None], batch.mask.shape)
    np.add.at(present, (rows[batch.mask], np.asarray(batch.positions)[batch.mask]), 1)
    assert present.max() == 1
    rate = 4 / records
    z = (present.mean(0) - rate) / np.sqrt(rate * (1 - rate) / steps)
    assert np.abs(z).max() < 5.5  # 20 records at 1e-6 together
    correlations = np.corrcoef(present.T)[np.triu_indices(records, 1)] * np.sqrt(steps)
    assert np.abs(correlations).max() < 5.9
    assert np.abs((0.9 * present.mean(0) - rate) / np.sqrt(rate * (1 - rate) / steps)).max() > 5.5  # 10% fewer: seen
    np.testing.assert_array_equal(batch.divisor, 4)  # the public size, never the realised one


def chance_of_a_gap(draw, population, size, gaps):
    """P(the first drawn integer is below g) of a sampler, by bisection over 64-bit words."""
    gaps = np.asarray(gaps)

    @jax.jit
    def first(high, low):
        places, drawn = draw((high[:, None], low[:, None]), jnp.int32(population), size)
        return jnp.where(drawn[:, 0], places[:, 0], population)

    low, high = np.zeros(len(gaps), object), np.full(len(gaps), 2**64, object)
    while np.any(high - low > 1):  # words from `high` on give a gap of g or more
        middle = (low + high) // 2
        words = [np.array([(int(m) >> shift) & (2**32 - 1) for m in middle], np.uint32) for shift in (32, 0)]
        far = np.asarray(first(*words)) >= gaps
        low, high = np.where(far, low, middle), np.where(far, middle, high)
    return np.array([float(int(h)) / 2.0**64 for h in high])


@pytest.mark.parametrize(
    ("population", "size"), [(8, 2), (10, 9), (1_000, 1), (10**6, 10), (2 * 10**9, 20), (2 * 10**9, 2)]
)
def test_poisson_draws_have_the_exact_law(population, size):
    """Inclusion to 1e-9 of the rate and absolutely, whatever the rate; 24-bit uniforms were off by a factor at 1e-8."""
    rate = size / population
    gaps = np.unique([1, 2, 3, 10, max(1, population // 100), population // size])
    gaps = gaps[gaps < min(population, 2**31 - 2)]
    wanted = -np.expm1(gaps * np.log1p(-rate))
    found = chance_of_a_gap(prng.independent, population, size, gaps)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)

    def in_float32(words, population, size):
        rate = jnp.minimum(size / population.astype(jnp.float32), 1.0)
        gap = jnp.floor(jnp.log1p(-prng.unit_interval(words[0])) / jnp.log1p(-rate)).astype(jnp.int32)
        return gap, gap < population

    wrong = chance_of_a_gap(in_float32, population, size, gaps)
    assert np.abs(wrong / wanted - 1).max() > 1e-9


def test_fixed_batches_are_distinct_and_replacement_batches_are_not():
    fixed = np.asarray(batches.FixedBatches(size=8).sample(KEY, jnp.int32(9), 100, 9, 9).positions)
    assert all(np.unique(row).size == 8 for row in fixed)
    again = np.asarray(batches.ReplacementBatches(size=8).sample(KEY, jnp.int32(9), 100, 9, 9).positions)
    assert any(np.unique(row).size < 8 for row in again)
    assert again.max() <= 8


@pytest.mark.parametrize("size", [1, 10, 7850])
def test_what_a_gpu_is_not_told_is_zero(size, monkeypatch):
    key = jax.random.key(5)
    ours = [prng.bits(key, 3, size), prng.normals(key, 3, size)]
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cuda, default: cuda(*args))
    theirs = [prng.bits(key, 3, size), prng.normals(key, 3, size)]
    np.testing.assert_array_equal(ours, theirs)
