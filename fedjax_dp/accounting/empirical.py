"""Lower bounds on epsilon from the outcomes of an attack."""

import math

from scipy.stats import beta

from fedjax_dp import errors


def clopper_pearson_epsilon(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    delta: float,
    significance: float = 0.05,
) -> float:
    """Epsilon that a mechanism must exceed, with confidence 1 - `significance`, given one attack's hits and misses.

    Each rate gets half of the significance in an exact binomial bound; then ln((tpr - delta) / fpr), at least 0. The
    attack, threshold included, must have been fixed before these trials were run.
    Source: Jagielski, Ullman, Oprea 2020, arXiv:2006.07709, section 4.
    """
    errors.require_in_unit_interval("delta", delta)
    errors.require_in_unit_interval("significance", significance)
    for what, hits, trials in (("positives", true_positives, positives), ("negatives", false_positives, negatives)):
        errors.require_count(what, trials)
        if not 0 <= hits <= trials:
            raise errors.refuse(f"hits among {trials} {what}", hits, f"from 0 to {trials}")
    low = float(beta.ppf(significance / 2, true_positives, positives - true_positives + 1)) if true_positives else 0.0
    all_wrong = false_positives == negatives
    high = 1.0 if all_wrong else float(beta.isf(significance / 2, false_positives + 1, negatives - false_positives))
    return max(math.log((low - delta) / high), 0.0) if low > delta else 0.0
