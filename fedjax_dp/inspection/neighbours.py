"""Worst-case neighbours, and the check that they move a noised value no further than its stated sensitivity."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedjax_dp.accounting import Adjacency
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.trials import SLACK
from fedjax_dp.inspection.verdict import require, require_so
from fedjax_dp.models import Model
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.simulation import run_key

ROUNDING = 1e-4  # relative: float32 sums over a batch
SCALES = np.array([1.0, 10.0, 1e3, 1e6, 1e19, 1e30, 0.0, 1e-3, 1e15, np.inf, np.nan])  # of features
ROWS, DIVISOR = 6, 3  # rows of a batch; batches of one size have DIVISOR records in them
BATCHES = 16 * SCALES.size
SPREADS = [0.0, 0.3, 3.0, 30.0, 1e3]  # standard deviations of what is added to the parameters of round 0


def worst_records(rng: np.random.Generator, own: np.ndarray, population: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Records `(trials, ...)` of all scales and signs, and their replacements.

    Float records are normal, zero, real, one-hot, constant, of one sign or integers; the replacement is the negative.
    Integer records are real, or random within the population's range; the replacement is another of them.
    own  records of the population, as the model sees them.
    """
    kind, x = _kinds(len(own)), _random_records(rng, own, population)
    if not np.issubdtype(own.dtype, np.floating):
        x[kind % 2 == 1] = own[kind % 2 == 1]
        return x, np.roll(x, 1, 0)
    flat = x.reshape(len(x), -1)
    flat[kind == 1] = own.reshape(flat.shape)[kind == 1]
    single = np.flatnonzero(kind == 3)
    flat[(kind == 2) | (kind == 3)] = 0.0
    flat[single, rng.integers(0, flat.shape[1], single.size)] = 1.0
    flat[kind == 4] = 1.0
    flat[kind == 5] = np.abs(flat[kind == 5])
    flat[kind == 6] = np.rint(flat[kind == 6])
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (x * np.resize(SCALES, len(x)).reshape(-1, *[1] * (x.ndim - 1))).astype(own.dtype)
    return scaled, -scaled


def _kinds(trials: int) -> np.ndarray:
    """Which of eight kinds of records, and of models, each trial has: all scales of one kind, then of the next."""
    return np.arange(trials) // SCALES.size % 8


def _random_records(rng: np.random.Generator, own: np.ndarray, population: np.ndarray) -> np.ndarray:
    if np.issubdtype(own.dtype, np.floating):
        return rng.normal(size=own.shape).astype(own.dtype)
    return rng.integers(int(np.min(population)), int(np.max(population)) + 1, own.shape).astype(own.dtype)


def worst_models(rng: np.random.Generator, model: Model, trials: int) -> np.ndarray:
    """Flat parameters `(trials, size)` near those of round 0 and far from them, and zeros."""
    params = np.asarray(ravel(model.init(run_key(0)))[0])
    away = rng.choice(SPREADS, (trials, 1)) * rng.normal(size=(trials, params.size))
    return np.where(_kinds(trials)[:, None] == 7, 0.0, params + away).astype(np.float32)


class NeighbouringBatches(NamedTuple):
    """Batches `(BATCHES, rows, ...)` and their neighbours: with another first record, and without it."""

    own: Any
    with_other: Any
    without_one: Any
    params: np.ndarray  # (BATCHES, size)
    unravel: Callable[[jax.Array], Any]


def neighbouring_batches(data: FederatedData, model: Model, varies: bool) -> NeighbouringBatches:
    """Batches with a worst-case first record; the others are of all kinds, all equal, or zero.

    Batches have more rows than records: if they vary in size, some rows are missing, or all but the first.
    """
    rng, rows = numpy_stream("neighbouring batches"), ROWS
    kind = np.arange(BATCHES) // SCALES.size
    indices, others = rng.integers(0, len(data.x), (2, BATCHES, rows))
    indices[kind % 5 == 1] = indices[kind % 5 == 1, :1]  # all with one target
    others[:, 1:] = indices[:, 1:]
    population = np.asarray(data.x)
    own = np.array(data.features(population[indices]))
    one, other = worst_records(rng, own[:, 0], population)
    x = np.where((kind % 8 == 1).reshape(-1, *[1] * (own.ndim - 1)), own, _random_records(rng, own, population))
    if not data.tokens:
        x[kind % 8 == 2] = 0.0
    x[:, 0] = one
    exchanged = x.copy()
    exchanged[:, 0] = other
    y, moved = (jax.tree.map(lambda a: np.asarray(a)[at], data.y) for at in (indices, others))  # noqa: B023
    mask = np.arange(rows) < DIVISOR + np.zeros((BATCHES, 1))
    if varies:
        mask = rng.random((BATCHES, rows)) < 0.6
        mask[kind % 5 == 2] = False
    mask[:, 0] = True
    gone = mask.copy()
    gone[:, 0] = False
    unravel = ravel(model.init(run_key(0)))[1]
    models = worst_models(rng, model, BATCHES)
    return NeighbouringBatches((x, y, mask), (exchanged, moved, mask), (x, y, gone), models, unravel)


def neighbouring_stores(
    rng: np.random.Generator, data: FederatedData, theirs: np.ndarray
) -> list[tuple[np.ndarray, Any]]:
    """Features and targets of two stores by trial, in which the records `theirs` (trials, records) are replaced.

    In each trial one worst-case record replaces them all, in the second store its neighbour.
    """
    indices = rng.integers(0, len(data.x), (2, len(theirs)))  # records whose targets they take
    pair = worst_records(rng, np.asarray(data.features(data.x[indices[0]])), np.asarray(data.x))

    def replace_rows(a: Any, instead: np.ndarray) -> np.ndarray:
        return np.where(theirs.reshape(*theirs.shape, *[1] * (np.ndim(a) - 1)), instead[:, None], np.asarray(a)[None])

    return [
        (replace_rows(data.x, x), jax.tree.map(lambda a: replace_rows(a, np.asarray(a)[at]), data.y))  # noqa: B023
        for x, at in zip(pair, indices)
    ]


def require_bounded(
    law: str, one: np.ndarray, other: np.ndarray, bound: Any, order: int = 2, slack: Any = SLACK
) -> None:
    """Refuse values of neighbours `(trials, size)` that are not finite, or differ by more than a bound, in L1 or L2.

    bound, slack  one number, or one for each trial; the slack is relative.
    """
    lost = ~(np.isfinite(one).all(-1) & np.isfinite(other).all(-1))
    wanted = "finite: a bound maps NaN and infinity to zero, as a run that stops reveals a record"
    require_so(not lost.any(), law, f"numbers that are not finite in {np.mean(lost):.0%} of trials", wanted)
    apart = np.linalg.norm((one - other).astype(float), ord=order, axis=-1) / bound
    require(
        np.all(apart <= 1 + slack),
        law,
        f"{np.max(apart):.4g} times what is stated, in {len(one)} trials",
        "at most 1",
        f"a search; rounding may add {np.max(slack):.1g}",
    )


def require_moved_within(
    what: str, one: np.ndarray, other: np.ndarray, bound: Any, adjacency: Adjacency, order: int = 2
) -> None:
    """`require_bounded` with a slack of ROUNDING and of the float32 rounding of the vectors."""
    law = f"{what} moves between {adjacency.value} neighbours by at most the sensitivity"
    slack = ROUNDING + np.finfo(np.float32).eps * np.linalg.norm(one, ord=order, axis=-1) / bound
    require_bounded(law, one, other, bound, order, slack)


def examine_function(
    function: Callable[[Any], Any], sensitivity: float, adjacency: Adjacency, records: Any, seed: int, trials: int
) -> None:
    """Check a function on sums of records in which one record is replaced or removed."""
    rng = numpy_stream("neighbours of a function", seed)
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, records))
    each, count = np.arange(trials), len(leaves[0])
    at, source = rng.integers(0, count, (2, trials))
    one, other = ([np.repeat(a[None], trials, 0) for a in leaves] for _ in range(2))
    for a, *stores in zip(leaves, one, other, strict=True):
        codes = a[source], np.roll(a[source], 1, 0)  # integers may be codes: none is invented
        for store, exchanged in zip(stores, worst_records(rng, a[source], a) if a.dtype.kind == "f" else codes):
            store[each, at] = exchanged
    if adjacency is Adjacency.ADD_REMOVE:
        kept = np.array([np.delete(np.arange(count), i) for i in at])
        other = [a[each[:, None], kept] for a in one]
    run = jax.jit(jax.vmap(lambda leaves: ravel_pytree(function(jax.tree.unflatten(structure, leaves)))[0]))
    before, after = (np.asarray(run(stores), float) for stores in (one, other))
    require_moved_within("the function", before, after, sensitivity, adjacency)
