"""The privacy cost of early stopping by a score.

Stopping by released values or public records is free; the epsilon is still that of the planned end. Stopping by noisy
counts of right answers on held-out records of members is priced. Without noise there is no epsilon; this also holds for
choosing the best checkpoint and for rates that follow a plateau. A curve that nothing acts on is a diagnostic.
"""

import math

from fedjax_dp import errors
from fedjax_dp.accounting.gaussian import Gdp
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError, Unit
from fedjax_dp.accounting.releases import GaussianSteps
from fedjax_dp.accounting.sampling import FullBatch

HELD_BY = ("public", "other records", "same clients")


def looks_event(
    looks: int, noise_on_count: float, adjacency: Adjacency, unit: Unit, held_out: int = 1
) -> GaussianSteps:
    """The event of `looks` noisy counts of right answers; one member changes each by at most `held_out`.

    noise_on_count  standard deviation of the noise on each count;
    held_out        public number of records that the member holds out: 1 for a record, all its records for a client.
    """
    errors.require_count("looks", looks)
    errors.require_positive("noise_on_count", noise_on_count)
    errors.require_count("held_out", held_out)
    # Exchanging a member moves a count by no more than taking it away, not by twice as much as a sum of vectors.
    return GaussianSteps(noise_on_count * adjacency.sensitivity / held_out, FullBatch(), adjacency, looks, unit)


def with_looks(
    training: Gdp, looks: int, noise_on_count: float | None, held_by: str, held_out: int | None = None
) -> Gdp:
    """Unsampled training and the noisy counts that may stop it, for the member with the largest cost.

    held_by  "public": no cost; "other records" than the training records, at unit record: each record pays either for
             training or for the counts; "same clients", at unit client: both costs add up;
    held_out  the most records that one client holds out, a public number; for "same clients".
    For sampled training compose its event with `looks_event`.
    Raises: NotCoveredError for members' records without noise.
    """
    errors.require_choice("held_by", held_by, HELD_BY)
    errors.require_count("looks", looks)
    if held_by == "public":
        return training
    if noise_on_count is None:
        raise NotCoveredError(
            "a stop by records without noise has no epsilon; noise the metric, use public records, or fix the rounds"
        )
    errors.require_positive("noise_on_count", noise_on_count)
    if held_by == "same clients" and held_out is None:
        raise errors.refuse("held_out", None, "the most records that a client holds out", "each of them moves a count")
    errors.require_count("held_out", held_out or 1)
    of_looks = Gdp((held_out or 1) * math.sqrt(looks) / noise_on_count)
    return training.plus(of_looks) if held_by == "same clients" else max(training, of_looks, key=lambda one: one.mu)
