"""Which noise leaves the least error in the iterates of a run at one budget, white or correlated over rounds.

Each candidate gets the least noise that the accountants allow it. Hidden cohorts amplify white noise and bands, seen
ones have their clients far apart, which is what dense strategies need.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_dp.accounting import correlated
from fedjax_dp.accounting.calibrate import noise_factor_for
from fedjax_dp.accounting.correlated import PREFIX_SUMS, Buffers, Workload
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.releases import GaussianSteps
from fedjax_dp.accounting.sampling import FullBatch, Poisson

VECTORS = 16  # of a model's size that a server keeps, unless somebody asks for more
KINDS = ("none", "bands", "blt", "inverse-root")
MOST_BUFFERS = 3  # more gain next to nothing
MOST_COEFFICIENTS = 32  # of an inverse root, each a noise vector that every round draws again
ALIKE = 1.004  # errors within this are ties


class Candidate(NamedTuple):
    """Noise of one kind at the budget."""

    kind: str
    size: int  # bands, buffers or coefficients
    hidden: bool  # cohorts are drawn in secret: by Poisson, for several bands in a cycle of so many rounds
    noise: float  # the least noise multiplier for the budget
    error: float  # root mean square over the iterates, on a sum and per clip norm
    vectors: int  # of a model's size that the server keeps
    strategy: np.ndarray | Buffers  # bands of C, buffers, or coefficients of its inverse

    def __str__(self) -> str:
        buffers = f"{self.size} buffer{'s' * (self.size > 1)}"
        size = {"none": "white noise", "blt": buffers}.get(self.kind, f"{self.kind} {self.size}")
        return f"{size}, {'hidden' if self.hidden else 'seen'} cohorts"


def noise_candidates(
    rounds: int,
    population: int,
    cohort: int,
    epsilon: float,
    delta: float,
    *,
    hidden: Adjacency | None = Adjacency.ADD_REMOVE,
    seen: Adjacency | None = Adjacency.ADD_REMOVE,
    workload: Workload = PREFIX_SUMS,
    kinds: Collection[str] = KINDS,
    sizes: Sequence[int] | None = None,
    apart: int | None = None,
    times: int | None = None,
    cycle: int | None = None,
) -> list[Candidate]:
    """Candidates for noise on the sums of `rounds` cohorts of `cohort` out of `population` clients.

    hidden, seen  the neighbours of cohorts that are drawn in secret, and of those that everyone sees; None: left out;
    sizes         of bands, buffers or coefficients; None: powers of two up to what a cycle holds, and few buffers;
    apart, times  rounds from one of a client to its next, and of all of them, where they are seen; None: by turns;
    cycle         rounds in which a client may be drawn once, where they are hidden; None: as many as there are bands.
    """
    apart = population // cohort if apart is None else apart
    times = -(-rounds // apart) if times is None else times

    def padded(column: np.ndarray) -> np.ndarray:
        return np.append(column, np.zeros(rounds))[:rounds]

    def candidates() -> Iterator[tuple[str, int, int, np.ndarray | Buffers, np.ndarray]]:
        """Kind, size, vectors, strategy and its column."""
        powers = [2**power for power in range(1, 1 + int(np.log2(max(apart, MOST_COEFFICIENTS))))]
        if "none" in kinds:
            yield "none", 1, 0, np.ones(1), padded(np.ones(1))
        for bands in sizes or [power for power in powers if power <= apart]:
            if "bands" in kinds and bands <= (cycle or apart):
                strategy = correlated.optimal_bands(bands, rounds, workload)
                yield "bands", bands, bands - 1, strategy, padded(strategy)
        if seen is None:
            return
        for buffers in sizes or range(1, MOST_BUFFERS + 1):
            if "blt" in kinds:
                blt = correlated.optimal_buffers(buffers, rounds, times, apart, workload)
                yield "blt", buffers, buffers, blt, blt.column(rounds)
        for count in sizes or [power for power in powers if power <= MOST_COEFFICIENTS]:
            if "inverse-root" in kinds:
                noise = correlated.inverse_root_bands(count, workload)
                yield "inverse-root", count, 0, noise, correlated.inverse(noise, rounds)

    one = None if seen is None else GaussianSteps(1.0, FullBatch(), seen, 1, Unit.CLIENT)
    gaussian = None if one is None else noise_factor_for(one, epsilon, delta, "gaussian")
    result = []
    for kind, size, vectors, strategy, column in candidates():
        error = correlated.iterate_error(column, workload)
        if hidden is not None and kind in ("none", "bands"):
            law, passes = Poisson(cohort * (cycle or size) / population), -(-rounds // (cycle or size))
            event = GaussianSteps(1 / float(np.linalg.norm(column)), law, hidden, passes, Unit.CLIENT)
            noise = noise_factor_for(event, epsilon, delta, "pld")
            result.append(Candidate(kind, size, True, noise, noise * error, vectors, strategy))
        if gaussian is not None and (hidden is None or kind != "bands"):
            noise = gaussian * correlated.sensitivity(column, times, apart)
            result.append(Candidate(kind, size, False, noise, noise * error, vectors, strategy))
    return result


def least_error(candidates: Sequence[Candidate], vectors: int) -> Candidate:
    """The candidate with the least error that keeps at most so many vectors; of equal ones the one that keeps least."""
    fitting = [one for one in candidates if one.vectors <= vectors]
    least = min(one.error for one in fitting)
    return min((one for one in fitting if one.error <= least * ALIKE), key=lambda one: (one.vectors, one.error))
