"""What a rule costs that ends a run early by a score.

Free: released values and public records; the claim stays that of the planned end. Priced: records of members that are
held out, where the number of right answers is noised. Without an epsilon: the same without noise, be it for the best of
several checkpoints or for rates that follow a plateau. A curve that is drawn and not acted on is a probe.
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
    """`looks` noisy counts of right answers, each changed by at most `held_out` by one member.

    noise_on_count  standard deviation of the noise on each count;
    held_out        records that the member holds out, a public number: 1 for a record, all of its own for a client.
    """
    errors.require_count("looks", looks)
    errors.require_positive("noise_on_count", noise_on_count)
    errors.require_count("held_out", held_out)
    # Exchanging a member moves a count by no more than taking it away, not by twice as much as a sum of vectors.
    return GaussianSteps(noise_on_count * adjacency.sensitivity / held_out, FullBatch(), adjacency, looks, unit)


def with_looks(training: Gdp, looks: int, noise_on_count: float | None, held_by: str) -> Gdp:
    """Unsampled training and its looks at a score, for the member that pays most.

    held_by  public: nothing to pay; "other records" than those trained on, at unit record, where each record pays for
             what touches it alone; "same clients", at unit client, where both add up.
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
    of_looks = Gdp(math.sqrt(looks) / noise_on_count)
    return training.plus(of_looks) if held_by == "same clients" else max(training, of_looks, key=lambda one: one.mu)
