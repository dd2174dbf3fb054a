"""The variance of the noise in a round's mean update, from public numbers, for servers that subtract it.

The cohort is not public: a model that revealed it would undo the amplification by subsampling. So this is the mean over
all possible cohorts: sum_i q_i a_i^2 v_i, where client i takes part with probability q_i, a_i is the weight of its
update in the mean, and v_i the variance of the noise in that update. Server noise needs no such mean.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.parts.aggregation import public
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.parts.record_privacy import require_measured
from fedjax_dp.rounds.algorithm import Algorithm


def variance_of_mean(algorithm: Algorithm, data: FederatedData, round_index: jax.Array, upload: Any) -> jax.Array:
    """Variance of each coordinate of the noise in a round's mean update, a float32 scalar; traced.

    upload: the state of `algorithm.upload`.
    Raises: ConfigurationError in one line if public numbers do not determine it.
    """
    require_known(algorithm)
    cohort, aggregate, num_clients = algorithm.cohort, algorithm.aggregate, data.num_clients
    rates = cohort.rates(data.shares)
    if algorithm.upload.unit is not None:
        sensitivity = aggregate.sensitivity(data.shares, rates, cohort.capacity(num_clients))
        std = jnp.asarray(algorithm.upload.noise_std(upload, sensitivity, round_index), jnp.float32)
        return std**2
    gains = _noise_gains(algorithm, data.shares)
    local: Any = algorithm.local
    return jnp.sum(rates * gains**2 * local.noise_variance(round_index, data))


def require_known(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose noise in the mean update is never determined by public numbers."""
    local, upload = algorithm.local, algorithm.upload
    if upload.unit is not None:
        if upload.shared_noise:
            raise _refusal("noise", "shared by the clients", "added by the server")
        return
    if not local.is_sgd or local.has_client_state or getattr(local, "noise_variance", None) is None:
        wanted = "plain sgd without client state"
        raise _refusal("local steps", type(local).__name__ if local.is_sgd else "with another rule", wanted)
    if correlated_source(local.privatizer) is not None:  # steps' variances do not add up
        raise _refusal("noise", "correlated over steps", "independent in every step")
    if not algorithm.cohort.at_most_once:
        raise _refusal("cohort", type(algorithm.cohort).__name__, "one that draws a client at most once a round")


def check_known(algorithm: Algorithm, shares: np.ndarray) -> None:
    """Refuse, before anything compiles, that a server subtracts noise whose variance is unknown."""
    require_known(algorithm)
    if algorithm.upload.unit is None:
        require_measured(algorithm.local.privatizer)
        _noise_gains(algorithm, shares)


def _noise_gains(algorithm: Algorithm, shares: Any) -> Any:
    cohort, aggregate = algorithm.cohort, algorithm.aggregate
    rates = cohort.rates(shares)
    if rates is None:
        raise _refusal("cohort", type(cohort).__name__, "one whose rates are known")
    members = cohort.capacity(shares.shape[0]) if cohort.fixed else None
    gains = aggregate.gains(shares, rates, members) if public(aggregate) else None
    if gains is None:
        wanted = "one whose weights do not depend on who takes part, such as wor_delta"
        raise _refusal("estimator", type(aggregate).__name__, wanted)
    return gains


def _refusal(what: str, got: str, wanted: str) -> errors.ConfigurationError:
    remedy = "or use a server that subtracts nothing, such as second_moment delta"
    return errors.refuse(what, got, f"{wanted}, for a server that subtracts the noise's variance", remedy)
