"""Table 1 of adaptive clipping (Andrew et al. 2021, arXiv:1905.03871): fixed cohorts, accounted for as Poisson ones."""

import functools
from collections.abc import Callable, Iterator

from fedjax_dp.accounting import Adjacency, GaussianSteps, Poisson, Unit, WithoutReplacement
from fedjax_dp.accounting.accountants import ATTAINED, epsilon_of
from fedjax_dp.accounting.calibrate import noise_multiplier_for
from fedjax_dp.accounting.guarantee import Claim, Verdict
from fedjax_dp.tools.papers.row import PaperRow

USERS, EPSILON = 10**6, 5.0
DELTA = USERS**-1.1


def table() -> Iterator[Callable[[], PaperRow]]:
    """The tasks that compute its rows."""
    for cohort, noise, rounds in (
        (2231, 0.669, 4000),
        (513, 0.513, 1500),
        (2197, 0.659, 3000),
        (510, 0.510, 1200),
        (13958, 1.396, 1500),
    ):
        yield functools.partial(_row, cohort, noise, rounds)


def _row(cohort: int, noise: float, rounds: int) -> PaperRow:
    def event(multiplier: float) -> GaussianSteps:
        return GaussianSteps(multiplier, WithoutReplacement(cohort, USERS), Adjacency.REPLACE_ONE, rounds, Unit.CLIENT)

    poisson = GaussianSteps(noise, Poisson(cohort / USERS), Adjacency.ADD_REMOVE, rounds, Unit.CLIENT)
    assumed, attained = epsilon_of(poisson, DELTA), epsilon_of(event(noise), DELTA, ATTAINED)
    reason = (
        "one user with all its records, against who sees every model: true of Poisson cohorts and a user more or less; "
        "cohorts have a fixed size, and two real neighbours, one user exchanged, attain more"
    )
    verdict = Verdict.WRONG if attained > EPSILON else Verdict.HEURISTIC
    claim = Claim("Table 1 (Andrew et al. 2021)", EPSILON, DELTA, verdict, reason)
    tight = noise_multiplier_for(event(1.0), EPSILON, DELTA)
    details = {"attained_epsilon": attained, "epsilon_of_poisson_cohorts": assumed}
    setting = f"{cohort} of 10^6 users, T={rounds}"
    provable = epsilon_of(event(noise), DELTA)
    return PaperRow("adaptive_clipping", setting, claim, provable, noise, tight, "noise multiplier", details)
