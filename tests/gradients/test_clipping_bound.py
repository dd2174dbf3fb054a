"""One record's part of a clipped sum is within the clip norm, over the whole range of exponents that float32 has."""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick, thinned, usual
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import errors, gradients
from fedjax_dp.gradients import clipped, norms
from fedjax_dp.pytrees import ravel

CLIP_NORMS = (1e-12, 1e-3, 1.0, 1e5)


@dataclasses.dataclass(frozen=True)
class Bilinear:
    """A loss that is linear in the parameters: the two factors of its gradient are the record's own x and y."""

    function: Callable[..., Any]
    parameters: tuple[tuple[int, ...], ...]
    x: tuple[int, ...]
    y: tuple[int, ...]
    rows: int = 0  # of a table; x picks from it

    def init(self, key):
        return tuple(jnp.ones(shape) for shape in self.parameters)

    def loss(self, params, x, y, key=None):
        return self.function(params, x, y).astype(jnp.float32)


def dense(params, x, y):
    return (y * (x @ params[0])).sum()


def picked(params, x, y):
    return (y * params[0][x]).sum()


def convolved(params, x, y, groups=1):
    numbers = ("NWC", "WIO", "NWC")
    made = lax.conv_general_dilated(
        x[None], params[0], (1,), "VALID", dimension_numbers=numbers, feature_group_count=groups
    )
    return (made[0] * y).sum()


def looped(params, x, y):
    """Steps that share their parameters."""
    return lax.scan(lambda total, rows: (total + (rows[1] * (rows[0] @ params[0])).sum(), None), 0.0, (x, y))[0]


def by_step(params, x, y):
    """Steps that have parameters of their own."""
    return lax.scan(lambda total, rows: (total + (rows[2] * (rows[1] @ rows[0])).sum(), None), 0.0, (*params, x, y))[0]


def twice(params, x, y):
    return (y[0] * (x[0] @ params[0])).sum() + (y[1] * (params[0] @ x[1])).sum()


def tied(params, x, y):
    """A table whose rows are picked, and which is multiplied with."""
    return picked(params, x, y) + ((params[0] @ y[0]) * jnp.linspace(0, 1e18, params[0].shape[0])).sum()


def two_layers(params, x, y):
    return (y * ((x @ (params[0] * 1e-19)) @ params[1])).sum()


def in_bfloat16(function):
    def narrow(*arguments):
        floats = lambda a: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a  # noqa: E731
        return function(*jax.tree.map(floats, arguments))

    return narrow


KINDS = {
    "one position": Bilinear(dense, ((30, 100),), (30,), (100,)),
    "one position, tall": Bilinear(dense, ((100, 30),), (100,), (30,)),
    "from the left": Bilinear(lambda params, x, y: (y * (params[0] @ x)).sum(), ((7, 5),), (5,), (7,)),
    "bias": Bilinear(lambda params, x, y: (y * (x + params[0][None])).sum(), ((7,),), (9, 7), (9, 7)),
    "pairs of positions": Bilinear(dense, ((16, 16),), (3, 16), (3, 16)),
    "pairs of wide positions": Bilinear(dense, ((200, 150),), (5, 200), (5, 150)),
    "single gradients": Bilinear(dense, ((4, 4),), (6, 4), (6, 4)),
    "used twice": Bilinear(twice, ((8, 8),), (2, 8), (2, 8)),
    "convolution": Bilinear(convolved, ((3, 2, 2),), (12, 2), (10, 2)),
    "convolution by pairs": Bilinear(convolved, ((3, 6, 12),), (4, 6), (2, 12)),
    "convolution of one window": Bilinear(convolved, ((3, 6, 12),), (3, 6), (1, 12)),
    "convolution in groups": Bilinear(functools.partial(convolved, groups=2), ((3, 2, 4),), (9, 4), (7, 4)),
    "lookup": Bilinear(picked, ((5, 9),), (1,), (1, 9), rows=5),
    "lookups by pairs": Bilinear(picked, ((50, 40),), (3,), (3, 40), rows=3),
    "lookups, single gradients": Bilinear(picked, ((3, 4),), (6,), (6, 4), rows=3),
    "tied": Bilinear(tied, ((20, 12),), (2,), (2, 12), rows=3),
    "loop": Bilinear(looped, ((12, 12),), (3, 12), (3, 12)),
    "loop over parameters": Bilinear(by_step, ((3, 6, 5),), (3, 6), (3, 5)),
    "direct": Bilinear(lambda params, x, y: (y * (x @ params[0] ** 2)).sum(), ((30, 100),), (30,), (100,)),
    "small number times": Bilinear(
        lambda params, x, y: (y * (x @ (params[0] * 1e-25))).sum(), ((30, 20),), (30,), (20,)
    ),
    "two layers": Bilinear(two_layers, ((6, 8), (8, 5)), (6,), (5,)),
    "one position in bfloat16": Bilinear(in_bfloat16(dense), ((30, 100),), (30,), (100,)),
    "pairs of positions in bfloat16": Bilinear(in_bfloat16(dense), ((16, 16),), (3, 16), (3, 16)),
    "records in float16": Bilinear(
        lambda params, x, y: dense(params, x.astype(jnp.float16), y), ((30, 100),), (30,), (100,)
    ),
}
# those of which a norm would be too small if numbers whose squares underflow counted as zero
UNDERFLOWING = ("one position", "pairs of positions", "convolution by pairs", "used twice", "loop over parameters")


def drawn(rng, records, shape, exponents):
    """Numbers around powers of 2: close together or far apart, some zero, not finite or denormal; rows that cancel."""
    size = int(np.prod(shape))
    spread = rng.choice([0, 0, 1, 5, 30, 120], (records, 1))
    powers = exponents[:, None] + rng.integers(-spread, spread + 1, (records, size))
    numbers = rng.uniform(1, 2, (records, size)) * rng.choice([-1, 1], (records, size))
    numbers = np.ldexp(numbers, np.clip(powers, -149, 126).astype(int)).astype(np.float32)
    kind = rng.random(records)[:, None]
    special = np.array([0, np.inf, -np.inf, np.nan, 2.0**-149, 2.0**-126, 3.4e38], np.float32)
    numbers = np.where(
        (kind < 0.15) & (rng.random((records, size)) < 0.02), rng.choice(special, numbers.shape), numbers
    )
    numbers = np.where((kind > 0.15) & (kind < 0.3) & (rng.random((records, size)) < 0.5), np.float32(0), numbers)
    numbers = numbers.reshape(records, *shape)
    if len(shape) > 1:
        near = 1 + 1e-3 * rng.normal(size=(records, shape[0], 1)).astype(np.float32)
        signs = np.where(np.arange(shape[0]) % 2, -1, 1).astype(np.float32)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = np.where(kind[..., None] > 0.7, numbers[:, :1] * signs * near, numbers)
    return numbers


def records_of(model, clip_norm, records, seed):
    """Records whose gradient is often near the clip norm, with one factor as large as the other is small."""
    rng = np.random.default_rng([5, seed])
    target = np.log2(clip_norm) + rng.choice([-30, -3, -1, 0, 1, 2, 3, 6, 20, 60], records)
    first, other = rng.integers(-149, 127, (2, records))
    if model.rows:
        x, of_y = rng.integers(0, model.rows, (records, *model.x)), np.where(rng.random(records) < 0.5, target, other)
        return x.astype(np.int32), drawn(rng, records, model.y, of_y.astype(int))
    of_y = np.where(rng.random(records) < 0.8, target - first, other)
    return drawn(rng, records, model.x, first), drawn(rng, records, model.y, of_y.astype(int))


def alone(model, clip_norm):
    """A function of records that returns the part of each in a clipped sum."""
    params = model.init(None)

    @jax.jit
    @jax.vmap
    def parts(x, y):
        return ravel(gradients.clipped_sum(model, params, x[None], y[None], jnp.ones(1, bool), clip_norm).total)[0]

    return lambda x, y: np.asarray(parts(x, y), np.float64)


def largest(model, clip_norm, records, seed=0, batch=1000):
    """Length of the longest part that a single record has in a clipped sum, over the clip norm; infinite for NaN."""
    parts_of, worst = alone(model, clip_norm), 0.0
    for start in range(0, records, batch):
        with np.errstate(over="ignore"):
            x, y = records_of(model, clip_norm, batch, seed + start)
        lengths = np.linalg.norm(parts_of(x, y), axis=1) / clip_norm
        worst = max(worst, np.where(np.isfinite(lengths), lengths, np.inf).max())
    return worst


@pytest.mark.parametrize("records", usual([2000, 100_000], [2000]))
@pytest.mark.parametrize("clip_norm", quick(CLIP_NORMS, (1e-3,), pytest.mark.exhaustive))
@pytest.mark.parametrize("kind", thinned(list(KINDS), ("one position", "pairs of positions", "records in float16"), 10))
def test_a_record_moves_the_sum_by_at_most_the_clip_norm_whatever_its_exponents(kind, clip_norm, records):
    assert largest(KINDS[kind], clip_norm, records) <= 1 + 1e-5


@pytest.mark.parametrize("kind", quick(UNDERFLOWING, ("one position", "pairs of positions"), pytest.mark.exhaustive))
def test_squares_that_count_as_zero_where_they_underflow_break_the_bound(kind, monkeypatch):
    monkeypatch.setattr(norms, "LEAST", 0.0)
    monkeypatch.setattr(norms, "SMALL", 0.0)
    assert largest(KINDS[kind], 1e-3, 2000) > 10


def cancelling(seed, records=64, k=65536, o=4):
    """Two positions whose outer products cancel to about the rounding of a product of k numbers."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(1, 2, (records, 1, 1)) * rng.choice([1, 1.25], (records, 1, k)).astype(np.float32)
    apart = 10 ** rng.uniform(-3.5, -2, (records, 1, 1))
    x = np.concatenate([u, u * (1 + apart)], 1)
    y = rng.uniform(1, 2, (records, 1, o)) * np.array([1, -1])[:, None]
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["every rounding of k products", "a fixed share"])
def test_positions_that_cancel_are_not_taken_for_small(allowed, monkeypatch):
    """A sum of k products is off by more, the larger k is: a fixed share of it is not enough."""
    if allowed == "a fixed share":
        monkeypatch.setattr(norms, "OPERATIONS", 8 - 65536)  # of both products, about 1e-6 together
    parts_of = alone(Bilinear(dense, ((65536, 4),), (2, 65536), (2, 4)), 1.0)
    lengths = [np.linalg.norm(parts_of(*cancelling(seed)), axis=1).max() for seed in range(4)]
    assert (max(lengths) <= 1 + 1e-5) == (allowed != "a fixed share")


class KeepingDenormals(types.SimpleNamespace):
    """What the products use of jax.numpy, by NumPy: in the same order and precision, and denormals stay as they are."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def matmul(one, other, precision=None):
        return np.matmul(one, other)


@pytest.mark.parametrize("least", [norms.LEAST, 0.0])
def test_the_bound_holds_on_devices_that_keep_denormals(least, monkeypatch):
    """There squares below 2^-149 are zero instead of those below 2^-126, and denormal factors have few bits."""
    rng = np.random.default_rng(0)
    clip_norm, records = np.float32(1e-12), 2000
    u = np.ldexp(rng.uniform(1, 2, (records, 1, 3)), rng.integers(-149, -30, (records, 1, 1))).astype(np.float32)
    v = np.ldexp(rng.uniform(1, 2, (records, 1, 4)), rng.integers(-10, 64, (records, 1, 1))).astype(np.float32)
    monkeypatch.setattr(norms, "LEAST", least)
    monkeypatch.setattr(norms, "jnp", KeepingDenormals())
    monkeypatch.setattr(norms, "sum_of_few", lambda a: a.sum(-1))
    with np.errstate(over="ignore", invalid="ignore"):
        squared = (norms.square(u) * norms.square(v))[:, 0]
    factors = np.asarray(clipped.clip_factors(jnp.asarray(squared), jnp.ones(records, bool), clip_norm))
    parts = [norms._product(u[i : i + 1], v[i : i + 1], factors[i : i + 1], alone=False) for i in range(records)]
    longest = np.linalg.norm(np.asarray(parts, np.float64), axis=(1, 2)).max() / clip_norm
    assert longest <= 1 + 1e-5 if least else longest > 10


def test_parameters_in_fewer_bits_than_float32_are_refused():
    """A sum in bfloat16 would be rounded before its noise, by more than a record may change it."""
    model = fdp.model((lambda key: jnp.zeros((5, 3), jnp.bfloat16), lambda params, x: x @ params), (5,))
    with pytest.raises(errors.ConfigurationError, match=r"parameters in bfloat16.*keep them in float32") as caught:
        gradients.clipped_sum(
            model, model.init(jax.random.key(0)), jnp.ones((4, 5)), jnp.zeros(4, int), jnp.ones(4, bool), 1.0
        )
    assert "\n" not in str(caught.value)
