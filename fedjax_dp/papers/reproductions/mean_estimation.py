"""Private mean estimation by clients whose means differ: what mean regularisation gains, in closed form.

Client k holds n_k values of variance sigma^2 around w_k, and releases one noisy mean hat w_k of error variance s_k; the
w_k have variance h^2. Its model is (hat w_k + lambda_k m) / (1 + lambda_k), the minimiser of |w - hat w_k|^2 +
lambda_k |w - m|^2, with m the mean of all models. Source: Liu et al. 2022, arXiv:2206.07902, section 5; clients of
different sizes, budgets and lambdas are derived here.
"""

import numpy as np

from fedjax_dp import accounting, errors


def noise_for(epsilon: float, delta: float) -> float:
    """The noise multiplier of one release of all records, neighbours by replacement, exactly."""
    one = accounting.GaussianSteps(1.0, accounting.FullBatch(), accounting.Adjacency.REPLACE_ONE, 1)
    return accounting.noise_multiplier_for(one, epsilon, delta, "gaussian")


def release_variance(records: float, sigma: float, clip_norm: float, noise_multiplier: float) -> float:
    """s = sigma^2 / n + (z C / n)^2: of the error of one client's noisy mean."""
    return sigma**2 / records + (noise_multiplier * clip_norm / records) ** 2


def errors_at(strengths: np.ndarray | float, variances: np.ndarray, spread: float) -> np.ndarray:
    """Mean squared error of every client's model `(clients,)`, at its own lambda.

    strengths  lambda, one number or `(clients,)`; infinite: the mean of all, as federated averaging;
    variances  s_k `(clients,)`; spread  h.

    | lambda 0: s_k | all alike: s/K + (1 - 1/K) (s + lambda^2 h^2) / (1 + lambda)^2 |
    """
    noise = np.asarray(variances, float)
    pulls = np.broadcast_to(np.asarray(strengths, float), noise.shape)
    if not np.all(pulls >= 0):
        raise errors.refuse("strength", strengths, "at least 0")
    kept = 1 / (1 + pulls)
    total = kept.sum()
    weights = kept / total if total > 0 else np.full(noise.shape, 1 / len(noise))  # noisy clients weigh less
    pulled = (1 - kept)[:, None] * weights
    of_noise = pulled + np.diag(kept)
    of_means = pulled - np.diag(1 - kept)
    found: np.ndarray = of_noise**2 @ noise + spread**2 * np.sum(of_means**2, 1)
    return found


def best_strength(variance: float, spread: float) -> float:
    """lambda* = s / h^2, whatever the number of clients, where they are alike."""
    return variance / spread**2


def least_error(variance: float, spread: float, clients: int) -> float:
    """E* = s/K + (1 - 1/K) s h^2 / (s + h^2) at lambda*."""
    return variance / clients + (1 - 1 / clients) * variance * spread**2 / (variance + spread**2)
