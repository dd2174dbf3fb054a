"""Checks that members are drawn by the stated law, by NumPy and SciPy."""

import math

import numpy as np
from scipy import stats

from fedjax_dp.accounting.sampling import (
    BallsInBins,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
    WithReplacement,
)
from fedjax_dp.inspection.verdict import (
    certainty,
    count_deviate,
    detectable_deviation,
    limit,
    require,
    require_at_most,
    require_so,
    require_usual,
)

RUNS, RUN = 48, 8  # runs of neighbouring members, evenly spread, whose pairs are compared
LEAST = 100  # draws, and pairs in them, from which all pairs are compared at once
LAGS = 6  # the largest distance at which draws are compared; all pairs of draws are compared together too


def examine_sampling(name: str, counts: np.ndarray, law: Sampling) -> None:
    """Check counts `(trials, draws, members)`; the draws of a trial are consecutive."""
    members = counts.shape[-1]
    if isinstance(law, RandomAllocation | BallsInBins):
        _examine_allocation(name, counts, law)
        return
    rows = counts.reshape(-1, members)
    size, total, draws = rows.sum(1), len(rows), rows.sum(0)
    known, both = isinstance(law, WithoutReplacement | Shuffled), None
    match law:
        case WithoutReplacement() | Shuffled():
            among, sized = law.records, law.batch_size
        case WithReplacement():
            among, sized = law.records, law.draws
        case _:
            among, sized = members, members
    require(among == members, f"{name}: the stated law draws", f"from {among}", f"from all {members}")
    if isinstance(law, Poisson):
        apart = count_deviate(size.sum(), total * members, law.rate)
        spread = total * np.var(size) / max(members * law.rate * (1 - law.rate), 1e-12)
        kurtosis = (1 - 6 * law.rate * (1 - law.rate)) / max(members * law.rate * (1 - law.rate), 1e-12)
        wide = (spread / total - 1) / math.sqrt((2 + kurtosis) / total) if law.rate < 1 else 0.0
        error = math.sqrt((1 - law.rate) / max(law.rate * total * members, 1e-12))
        require_usual(
            f"{name}: mean size of a batch",
            apart,
            f"{members * law.rate:.4g}",
            f"{size.mean():.4g}",
            f", off by {detectable_deviation(error):.1%} is missed once in 1000",
        )
        wanted = f"{members * law.rate * (1 - law.rate):.4g}"
        require_usual(f"{name}: variance of the size", wide, wanted, f"{np.var(size):.4g}")
    elif isinstance(law, TruncatedPoisson):
        most, chance = size.max(initial=0), stats.binom.pmf(np.arange(members + 1), members, law.rate)
        require_at_most(f"{name}: size of a batch", most, law.capacity)
        kept = np.minimum(np.arange(members + 1), law.capacity)
        sized, both = kept @ chance, kept * (kept - 1) @ chance / max(members * (members - 1), 1)
        known = True
    else:
        of_each = np.resize(law.sizes if isinstance(law, Shuffled) else sized, counts.shape[1])
        wrong = np.unique(size[size != np.tile(of_each, len(counts))])
        require_so(not wrong.size, f"{name}: size of a batch", f"also {wrong[:4].tolist()}", f"{sized}")
    if isinstance(law, FullBatch):
        return
    rate = sized / members if known else law.rate
    if isinstance(law, Shuffled):
        # a member of an epoch's first batch is in no other batch of it
        epochs = counts.reshape(-1, law.steps_per_epoch, members).sum(1)
        require_at_most(f"{name}: times that an epoch takes a record", epochs.max(), 1)
        rows = counts[:, :: law.steps_per_epoch].reshape(-1, members)
        total, draws = len(rows), rows.sum(0)
    trials, each = (total * law.draws, 1 / members) if isinstance(law, WithReplacement) else (total, rate)
    missed = (
        f", off by {detectable_deviation(math.sqrt((1 - each) / (each * trials)), members):.0%} is missed once in 1000"
    )
    _require_chance(f"{name}: how often each is drawn", draws, trials, each, missed)
    if isinstance(law, WithReplacement):
        _require_chance(f"{name}: how often each is drawn at all", (rows > 0).sum(0), total, law.rate)
    if not isinstance(law, WithReplacement) and members > 1 and 0 < rate < 1:
        compared = _some_members(rows)
        if both is None:
            both = rate**2 if isinstance(law, Poisson) else sized * (sized - 1) / (members * (members - 1))
        _require_chance(f"{name}: how often each pair is drawn together", _pairs(compared), total, both)
        _require_even_pairs(name, compared, both)
    if not isinstance(law, Shuffled):
        require_independent_draws(name, counts)
    if isinstance(law, Shuffled) and len(set(law.sizes)) > 1:  # batches differ in size
        counts = counts - counts.mean((0, 2), keepdims=True)
    require_independent(f"{name}: runs", counts[:-1], counts[1:])


def _require_chance(law: str, counts: np.ndarray, draws: int, chance: float, missed: str = "") -> None:
    """Check that each count fits `draws` draws with this chance."""
    away = count_deviate(counts, draws, chance)
    worst = int(np.argmax(np.abs(away)))
    require_usual(law, away, f"{chance:.4g}", f"{np.ravel(counts)[worst] / draws:.4g} by number {worst}", missed)


def _examine_allocation(name: str, counts: np.ndarray, law: RandomAllocation | BallsInBins) -> None:
    """Check that every member picks its own draws of a pass, as many as stated, anew in each pass or once a run."""
    members, of, chosen = counts.shape[-1], law.steps_per_epoch, law.sums_per_member
    whole = counts[:, : counts.shape[1] // of * of].reshape(len(counts), -1, of, members)
    times = np.unique(whole.sum(2))
    require_so(np.all(times == chosen), f"{name}: draws of a pass with a member", f"{times.tolist()}", f"{chosen}")
    passes = whole[:, 0] if law.keeps_draw else whole.reshape(-1, of, members)
    total = len(passes)
    if of == 1:
        return
    _require_chance(f"{name}: how often each is in each draw of a pass", passes.sum(0), total, law.rate)
    if 1 < chosen < of:
        pairs, both = (passes[:, 0] * passes[:, 1]).sum(), law.rate * (chosen - 1) / (of - 1)
        _require_chance(f"{name}: how often each is in the first two", pairs, total * members, both)
    if members > 1 and chosen < of:
        rows = _some_members(passes[:, 0])
        _require_chance(f"{name}: how often each pair is in a first draw", _pairs(rows), total, law.rate**2)
        _require_even_pairs(name, rows, law.rate**2)
    flat = whole.reshape(len(counts), -1, of * members)
    if law.keeps_draw:
        require_so(np.all(flat == flat[:, :1]), f"{name}: draws of later passes", "others", "those of the first")
    elif chosen < of:
        require_independent(f"{name}: passes", flat[:, :-1], flat[:, 1:])
    if chosen < of:
        require_independent(f"{name}: runs", flat[:-1, 0], flat[1:, 0])


def _some_members(rows: np.ndarray) -> np.ndarray:
    """The columns of members whose pairs are compared: all, or some with their neighbours and those far away."""
    members = rows.shape[1]
    some = (np.arange(RUNS)[:, None] * members // RUNS + np.arange(RUN)) % members
    return rows[:, np.unique(some)].astype(float)


def _pairs(rows: np.ndarray) -> np.ndarray:
    """How often each pair of members is drawn together."""
    return (rows.T @ rows)[np.triu_indices(rows.shape[1], 1)]


def _require_even_pairs(name: str, rows: np.ndarray, both: float) -> None:
    """Compare all pairs at once: half of the draws suggests pairs that are too frequent, the other half tests them.

    This finds groups that are drawn separately, where no single pair shows it.
    """
    former, latter = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    size = latter.sum(1)
    if min(len(former), np.sum(size * (size - 1)) / 2) < LEAST:
        return
    lean = former.T @ former / len(former) - both
    np.fill_diagonal(lean, 0.0)
    excess = np.sum(latter @ lean * latter, 1) - both * lean.sum()
    error = excess.std(ddof=1) / math.sqrt(len(excess))
    require(
        excess.mean() <= limit() * (1 + 8 / len(excess)) * error,  # of Student's distribution, roughly
        f"{name}: how often pairs are drawn together",
        "some groups more often than others",
        f"all pairs alike, {both:.4g}",
        certainty(),
    )


def require_independent_draws(name: str, counts: np.ndarray) -> None:
    """Check that draws of a trial, `(trials, draws, members)`, overlap no more than independent ones."""
    draws = counts.shape[1]
    for lag in range(1, min(LAGS, draws - 1) + 1):
        require_independent(f"{name}: draws {lag} apart", counts[:, :-lag], counts[:, lag:])
    if draws < 3 or len(counts) < 3 or counts.shape[-1] < 2:
        return
    away = counts - counts.mean((0, 1))
    total = away.sum(1)
    products = (np.sum(total * total, -1) - np.sum(away * away, (1, 2))) / 2  # of all pairs of draws of a trial
    error = products.std(ddof=1) / math.sqrt(len(products))
    bound = limit() * (1 + 8 / len(products))  # of Student's distribution, roughly
    require(
        abs(products.mean()) <= bound * error,
        f"{name}: all draws of a run are independent of one another",
        f"an overlap {products.mean():.3g} above chance",
        "0",
        f"{certainty()}, {detectable_deviation(error):.2g} is missed once in 1000",
    )


def require_independent(name: str, a: np.ndarray, b: np.ndarray) -> None:
    """Check that pairs of draws overlap as independent draws of their rates."""
    if not a.size or not b.size or a.shape[-1] < 2:
        return
    a, b = a.reshape(-1, a.shape[-1]).astype(float), b.reshape(-1, b.shape[-1]).astype(float)
    products = np.sum((a - a.mean(0)) * (b - b.mean(0)), -1)
    error = products.std() / math.sqrt(len(products))
    same = bool(np.array_equal(a, b) and a.std(0).max() > 0)
    away = products.mean() / error if error > 0 else 0.0
    require(
        abs(away) < limit() and not same,
        f"{name} are independent of one another",
        f"an overlap {products.mean():.3g} above chance, {away:.2g} standard errors",
        "0",
        f"{certainty()}, {detectable_deviation(error):.2g} is missed once in 1000",
    )
