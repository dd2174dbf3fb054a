"""All checks that apply to an algorithm, in one call."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedjax_dp.algorithm import Algorithm
from fedjax_dp.data.store import FederatedData
from fedjax_dp.ledger import natural_view, noise_of, unprotected
from fedjax_dp.models import Model
from fedjax_dp.testing.invariance import check_order, check_padding
from fedjax_dp.testing.keys import check_keys
from fedjax_dp.testing.noise import check_noise
from fedjax_dp.testing.sampling import check_sampling
from fedjax_dp.testing.sensitivity import check_sensitivity
from fedjax_dp.testing.verdict import Report


def check_algorithm(
    algorithm: Algorithm, data: FederatedData, *, model: Model | None = None, seed: int = 0,
    audit: Callable[[Algorithm, FederatedData, Model | None], Any] | None = None,
) -> list[Report]:  # fmt: skip
    """Every check that applies, each with its own wrong programs; what was found, in order.

    Sampling, keys, padding and order for every algorithm; sensitivity and noise for those that have an epsilon: where
    there is none, a report says why they were left out.
    audit    one more check, called with algorithm, data and model; a report, or some of them, join the others.
    Errors:  those of the single checks; nothing is tried twice.
    Raises:  AssertionError by the first check that fails; ConfigurationError if the algorithm cannot run on the data.
    """
    found = check_sampling(algorithm, data, seed=seed)
    found += check_padding(algorithm, data, model=model, seed=seed)
    found += check_order(algorithm, data, model=model, seed=seed)
    found += check_keys(algorithm, data, model=model, seed=seed)
    noise = noise_of(algorithm)
    reason = unprotected(algorithm, natural_view(algorithm))
    if reason is None and not np.any(np.asarray(noise) > 0):
        reason = "its noise_multiplier is 0"
    if reason:
        return [*found, Report("sensitivity and noise", "not checked", "an epsilon", reason)]
    found += check_sensitivity(algorithm, data, model=model, seed=seed)
    found += check_noise(algorithm, data, model=model, seed=seed)
    if audit is not None:
        told = audit(algorithm, data, model)
        found += list(told) if isinstance(told, Iterable) and not isinstance(told, Report) else [told]
    return found
