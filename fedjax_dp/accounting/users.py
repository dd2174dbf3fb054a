"""Units above the record: numbers of records of a person, a text or a token, and releases of several clients.

A person's records at one client are a `group` of a release; releases of several clients are composed:

>>> from fedjax_dp.accounting import Adjacency, Composed, FullBatch, GaussianSteps, Unit, epsilon_of
>>> first = GaussianSteps(20.0, FullBatch(), Adjacency.REPLACE_ONE, 20, Unit.USER, group=3)
>>> second = GaussianSteps(15.0, FullBatch(), Adjacency.REPLACE_ONE, 16, Unit.USER, group=2)
>>> round(epsilon_of(Composed((first, second)), 1e-5), 3)
8.28
"""

import math
from typing import Literal

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.releases import GaussianSteps
from fedjax_dp.accounting.sampling import FullBatch


def windows_of_text(tokens: int, window: int, stride: int) -> int:
    """Number of windows of `window` tokens, at a distance of `stride`, that cover a text; the last one is padded."""
    for name, value in (("tokens", tokens), ("window", window), ("stride", stride)):
        errors.require_count(name, value)
    return 1 + math.ceil(max(tokens - window, 0) / stride)


def windows_of_token(tokens: int, window: int, stride: int) -> int:
    """Largest number of windows that contain one token of such a text."""
    return min(math.ceil(window / stride), windows_of_text(tokens, window, stride))


def user_weights(counts: np.ndarray, rule: Literal["uniform", "proportional"] = "uniform") -> np.ndarray:
    """Weight of each user's update at each client `(users, clients)`; the weights of a user sum to 1.

    counts  numbers of records `(users, clients)`. Uniform weights do not depend on them and are best if uploads are
            seen; proportional weights are public only if the counts are.
    Source: Kato et al. 2023, arXiv:2308.12210 (ULDP-AVG and its weighted form).
    """
    errors.require_choice("rule", rule, ("uniform", "proportional"))
    counts = np.asarray(counts, float)
    if counts.ndim != 2 or not np.all(counts >= 0) or not np.all(counts.sum(1) > 0):
        raise errors.refuse("counts", f"shape {counts.shape}", "(users, clients), with a record of every user")
    if rule == "uniform":
        return np.full(counts.shape, 1 / counts.shape[1])
    return counts / counts.sum(1, keepdims=True)


def weighted_user(noise_multiplier: float, rounds: int, weights: np.ndarray | None = None) -> GaussianSteps:
    """The event of a user whose update every client clips to C and multiplies by its weight.

    Each of S clients adds noise of standard deviation noise_multiplier * C / sqrt(S), so that the sum has
    noise_multiplier * C.
    weights  the user's weights `(clients,)`, if a server sees the clients' uploads; None: it sees only their sum, where
             the user's sensitivity is C for all weights.
    Adjacency: add or remove a user. Unsampled: mu is sqrt(rounds S sum w^2) / noise_multiplier where uploads are seen,
    else sqrt(rounds) / noise_multiplier.
    Source: Kato et al. 2023, arXiv:2308.12210.
    """
    spread = 1.0
    if weights is not None:
        weights = np.asarray(weights, float)
        if weights.ndim != 1 or not np.all(weights >= 0) or not abs(weights.sum() - 1) < 1e-9:
            raise errors.refuse("weights", f"of sum {weights.sum():g}", "(clients,), not negative, of sum 1")
        spread = math.sqrt(weights.size * float(weights @ weights))
    return GaussianSteps(noise_multiplier / spread, FullBatch(), Adjacency.ADD_REMOVE, rounds, Unit.USER)
