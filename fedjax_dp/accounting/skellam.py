"""Integer noise: the Renyi bound of Skellam noise, the difference of two Poisson draws.

Source: Agarwal, Kairouz, Liu 2021, "The Skellam mechanism for differentially private federated learning",
arXiv:2110.04995.
"""

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.events import SkellamSums


def skellam_divergence(step: SkellamSums, orders: np.ndarray) -> np.ndarray:
    """Renyi divergence bound of one release of `step`, per order, in nats.

    Shapes:    orders `(A,)`, real, above 1; returns `(A,)`.
    Adjacency: the step's; L1 and L2 sensitivity both double under replace-one.
    Limits:    much noise -> order L2^2 / (2 variance), that of Gaussian noise of the same variance.
    Source:    2110.04995, Corollary 4.1 at scale 1, for integer orders. Between them (order - 1) times the divergence
               is convex, so a chord bounds it.
    """
    orders = np.asarray(orders, float)
    if not np.all(orders > 1):
        raise errors.refuse("Renyi orders", orders.min(), "above 1")
    errors.require_positive("variance", step.variance)
    below = np.floor(orders)
    share = orders - below
    moments = (1 - share) * _moments(step, below) + share * _moments(step, below + 1)
    divergences: np.ndarray = moments / (orders - 1)
    return divergences


def _moments(step: SkellamSums, order: np.ndarray) -> np.ndarray:
    """(a - 1) times the divergence bound at integer orders a of at least 1."""
    square = (step.adjacency.sensitivity * step.l2) ** 2
    absolute = min(step.adjacency.sensitivity * step.l1, square)  # of whole numbers, none is above its square
    variance = step.variance
    excess = np.minimum(((2 * order - 1) * square + 6 * absolute) / (4 * variance**2), 1.5 * absolute / variance)
    return (order - 1) * (order * square / (2 * variance) + excess)
