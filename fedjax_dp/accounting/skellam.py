"""Integer noise: the Renyi bound for Skellam noise, the difference of two Poisson draws.

Source: Agarwal, Kairouz, Liu 2021, "The Skellam mechanism for differentially private federated learning",
arXiv:2110.04995.
"""

import numpy as np

from fedjax_dp import errors


def skellam_divergence(variance: float, l2: float, l1: float, orders: np.ndarray) -> np.ndarray:
    """Bound on the Renyi divergence of one sum of integers with Skellam noise at each order, in nats.

    Shapes:    orders `(A,)`, real, above 1; returns `(A,)`.
    Units:     `l2` and `l1` are sensitivities of the sum; they and `variance` are in ring units.
    Limits:    much noise -> order l2^2 / (2 variance), as for Gaussian noise of the same variance.
    Source:    2110.04995, Corollary 4.1 at scale 1, for integer orders. Between them (order - 1) times the divergence
               is convex, so a chord bounds it.
    """
    errors.require_positive("variance", variance)
    below = np.floor(orders)
    share = orders - below
    moments = (1 - share) * _moments(variance, l2, l1, below) + share * _moments(variance, l2, l1, below + 1)
    return moments / (orders - 1)


def _moments(variance: float, l2: float, l1: float, order: np.ndarray) -> np.ndarray:
    """(a - 1) times the divergence bound at integer orders a of at least 1."""
    square = l2**2
    absolute = min(l1, square)  # of whole numbers, none is above its square
    excess = np.minimum(((2 * order - 1) * square + 6 * absolute) / (4 * variance**2), 1.5 * absolute / variance)
    return (order - 1) * (order * square / (2 * variance) + excess)
