"""The noise that papers' theorems or code prescribe. The Guarantee has the epsilon that it really gives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Shuffled, WithoutReplacement, noise_multiplier_for
from fedjax_dp.data.store import FederatedData
from fedjax_dp.privacy.planned_run import last_rates
from fedjax_dp.privacy.protection import clips_records, noises_steps
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.tools.papers import theorems


def prescribed_noise(
    paper: str, algorithm: Algorithm, data: FederatedData, rounds: int, epsilons: Sequence[float], delta: float
) -> np.ndarray:
    """Noise multipliers `(num_clients,)` by the theorem of `paper`, one of NOISE_THEOREMS, for these budgets.

    The theorem's conditions are not checked, since a paper's recipe may ignore them.
    Raises: ConfigurationError if the theorem does not cover these parts.
    """
    theorem = NOISE_THEOREMS[paper]
    if not theorem.covers(algorithm):
        raise errors.refuse("sigma_mode", paper, f"used with {theorem.parts}", "leave it out")
    return theorem.noise(algorithm, data, rounds, np.asarray(epsilons, float), delta)


class Theorem(NamedTuple):
    """A paper's rule for the noise."""

    parts: str  # that it covers, in words
    covers: Callable[[Algorithm], bool]
    noise: Callable[[Algorithm, FederatedData, int, np.ndarray, float], np.ndarray]


def has_acs_pldp_theorem1(algorithm: Algorithm) -> bool:
    """Whether acs_pldp's Theorem 1 covers these parts: draws with replacement, equal batches, noise on records."""
    return not algorithm.cohort.base.at_most_once and noises_steps(algorithm) and draws_batches(algorithm)


def noises_uploads(algorithm: Algorithm) -> bool:
    """Whether dp_fedavg_output's Theorem 1 covers these parts: noise on uploads, batches of a fixed size."""
    return algorithm.local.privatizer.on_upload and draws_batches(algorithm)


def draws_batches(algorithm: Algorithm) -> bool:
    """Whether batches have a fixed size and are independent draws without replacement."""
    return isinstance(algorithm.local.batches.sampling(2**31), WithoutReplacement)


def acs_pldp_theorem1(algorithm: Algorithm, data: FederatedData, rounds: int, delta: float) -> np.ndarray:
    """Noise multipliers at epsilon 1 by acs_pldp's Theorem 1, constant 1, `(num_clients,)`; they scale by 1 / epsilon.

    In units of the clipping norm: acs_pldp's sensitivity is 2C/m.
    """
    cohort: Any = algorithm.cohort.base
    batches = algorithm.local.batches
    draws = cohort.capacity(data.num_clients) * rounds
    chances = np.asarray(cohort.rates(np.asarray(data.shares, float)), float) / cohort.capacity(data.num_clients)
    return np.array(
        [
            2
            * theorems.acs_pldp_theorem1_noise(
                1.0,
                delta,
                rate=batches.divisor(records) / records,
                participations=theorems.acs_pldp_lemma1(draws, float(chance), delta / 4),
                draws=draws,
                local_steps=algorithm.local.steps,
                constant=1,
            )
            for chance, records in zip(chances, np.asarray(data.sizes).tolist(), strict=True)
        ]
    )


def _clips_fixed(algorithm: Algorithm) -> bool:
    return clips_records(algorithm) and draws_batches(algorithm)


def _dpnfl_lemma2(
    algorithm: Algorithm, data: FederatedData, rounds: int, epsilons: np.ndarray, delta: float
) -> np.ndarray:
    """dpnfl, Lemmas 2 to 4, with each client's mean number of rounds."""
    batch, rates = algorithm.local.batches.divisor, algorithm.cohort.rates(np.asarray(data.shares, float))
    steps = rounds * np.broadcast_to(np.asarray(rates, float), (data.num_clients,)) * algorithm.local.steps
    of_clients = zip(epsilons, np.asarray(data.sizes).tolist(), steps, strict=True)
    return np.array([theorems.dpnfl_noise_as_printed(e, delta, batch(n), n, count) for e, n, count in of_clients])


def _cpfed_theorem1(
    algorithm: Algorithm, data: FederatedData, rounds: int, epsilons: np.ndarray, delta: float
) -> np.ndarray:
    """cpfed, Theorem 1: with secure sums the whole cohort's noise protects every step, else the client's own."""
    batches = algorithm.local.batches
    batch, members = batches.divisor(data.largest), algorithm.cohort.capacity(data.num_clients)
    setting = theorems.Cpfed(rounds, algorithm.local.steps, data.num_clients, members, batch)
    secure = bool(algorithm.transport.secret)
    return np.array([setting.sigma(epsilon, delta, secure=secure) * batch for epsilon in epsilons])


def _dp_fedavg_output_theorem1(
    algorithm: Algorithm, data: FederatedData, rounds: int, epsilons: np.ndarray, delta: float
) -> np.ndarray:
    """dp_fedavg_output, Theorem 1: budgets per round; noise in units of the clipped steps' reach, not 4 Q G eta."""
    batches = algorithm.local.batches
    steps, rates = algorithm.local.steps, np.asarray(algorithm.local.rates(0, data.largest), float)
    unit = 4 * steps * last_rates(algorithm, data.largest, 1)[0] / rates.sum()
    sampled = np.minimum(steps * batches.divisor(data.largest) / np.asarray(data.sizes, float), 1.0)
    pairs = zip(epsilons, sampled, strict=True)
    noise = theorems.dp_fedavg_output_theorem1_noise
    return unit * np.array([noise(epsilon, delta, rate) for epsilon, rate in pairs])


def takes_passes(algorithm: Algorithm) -> bool:
    """Whether noisy steps use batches of shuffled passes, as the code of mr_mtl's authors does."""
    return clips_records(algorithm) and isinstance(algorithm.local.batches.sampling(2**31), Shuffled)


def _mr_mtl_code(
    algorithm: Algorithm, data: FederatedData, rounds: int, epsilons: np.ndarray, delta: float
) -> np.ndarray:
    """The noise that the code of mr_mtl's authors computes, by Renyi DP; one pass is one of their epochs."""
    batches, passes = algorithm.local.batches, rounds * algorithm.local.steps
    find = functools.cache(
        lambda epsilon, records: noise_multiplier_for(
            theorems.mr_mtl_steps(batches.divisor(records), records, passes), epsilon, delta, "rdp"
        )
    )
    return np.array([find(*of_client) for of_client in zip(epsilons.tolist(), np.asarray(data.sizes).tolist())])


NOISE_THEOREMS = {
    "dpnfl": Theorem("noise on batches of clipped records, such as dpnfl's", _clips_fixed, _dpnfl_lemma2),
    "cpfed": Theorem("noise on batches of clipped records, such as cpfed's", _clips_fixed, _cpfed_theorem1),
    "acs_pldp": Theorem(
        "acs_pldp, whose theorem it is",
        has_acs_pldp_theorem1,
        lambda algorithm, data, rounds, epsilons, delta: acs_pldp_theorem1(algorithm, data, rounds, delta) / epsilons,
    ),
    "dp_fedavg_output": Theorem("dp_fedavg_output, whose theorem it is", noises_uploads, _dp_fedavg_output_theorem1),
    "mr_mtl": Theorem("passes over clipped records, as mr_mtl takes with batches epochs", takes_passes, _mr_mtl_code),
}
