"""All checks that apply to an algorithm, in one call."""

import numpy as np

from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.verdict import CheckReport
from fedjax_dp.models import Model
from fedjax_dp.privacy.protection import natural_view, noise_of, unprotected
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing.audit import check_audit
from fedjax_dp.testing.invariance import check_order, check_padding
from fedjax_dp.testing.keys import check_keys
from fedjax_dp.testing.masks import check_masks
from fedjax_dp.testing.noise import check_noise
from fedjax_dp.testing.sampling import check_sampling
from fedjax_dp.testing.sensitivity import check_sensitivity
from fedjax_dp.testing.statements import check_statements


def check_algorithm(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    model: Model | None = None,
    delta: float | None = None,
    rounds: int = 10,
    seed: int = 0,
) -> list[CheckReport]:
    """Every check that applies, each with its own wrong programs; their reports, in order.

    Sampling, keys, padding and order for every algorithm, masks for secure sums; statements of the parts, sensitivity
    and noise for those that have an epsilon, and with `delta` a fast audit of `rounds` rounds: where there is no
    epsilon, a report says why they were left out.
    Errors:  those of the single checks; nothing is tried twice.
    Raises:  AssertionError by the first check that fails; ConfigurationError if the algorithm cannot run on the data.
    """
    reports = check_sampling(algorithm, data, model=model, seed=seed)
    noise = noise_of(algorithm)
    reason = unprotected(algorithm, natural_view(algorithm))
    if reason is None and not np.any(np.asarray(noise) > 0):
        reason = "its noise_multiplier is 0"
    if reason is None:  # first: what goes wrong here would show below as well, under a name that says less
        reports += check_statements(algorithm, data, model=model, seed=seed)
        reports += check_sensitivity(algorithm, data, model=model, seed=seed)
        reports += check_noise(algorithm, data, model=model, seed=seed)
    if algorithm.transport.secret:
        reports += check_masks(algorithm, data, seed=seed)
    reports += check_keys(algorithm, data, model=model, seed=seed)
    reports += check_padding(algorithm, data, model=model, seed=seed)
    reports += check_order(algorithm, data, model=model, seed=seed)
    if reason:
        return [*reports, CheckReport("sensitivity and noise", "not checked", "an epsilon", reason)]
    if delta is not None:
        reports += check_audit(algorithm, data, delta=delta, rounds=rounds, seed=seed)
    return reports
