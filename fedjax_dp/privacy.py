"""The bridge from the simulated value to its Guarantee: what is accounted is what was run."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Claim, GaussianSteps, Guarantee, View
from fedjax_dp.accounting.guarantee import FLOAT_NOISE, RECORD, no_privacy
from fedjax_dp.algorithm import Algorithm, draw_cohort
from fedjax_dp.cohort import Cohort
from fedjax_dp.data.store import FederatedData
from fedjax_dp.privatizer import RecordGaussian
from fedjax_dp.simulation import check, run_key

PARTICIPATION = ("schedule", "expected", "worst")
ACCOUNTANT_NAMES = {
    "pld": "privacy loss distribution (rigorous upper bound)",
    "tcdp": "tCDP as in paper 000 (valid where its conditions hold, loose)",
}


def participations(algorithm: Algorithm, num_clients: int, rounds: int, seed: int) -> np.ndarray:
    """How many of `rounds` rounds each client takes part in, for a seed; shape `(num_clients,)`.

    Cohorts depend on the seed alone, never on data, so the whole schedule can be known, and published, ahead.
    """
    cohorts = _draw_all(algorithm.cohort, run_key(seed), jnp.arange(rounds), num_clients=num_clients)
    return np.bincount(np.asarray(cohorts).ravel(), minlength=num_clients)


@functools.partial(jax.jit, static_argnames=("num_clients",))
def _draw_all(cohort: Cohort, key: jax.Array, rounds: jax.Array, *, num_clients: int) -> jax.Array:
    return jax.vmap(lambda t: draw_cohort(cohort, key, t, num_clients))(rounds)


def calibrate(
    algorithm: Algorithm, data: FederatedData, *, rounds: int, epsilon: float, delta: float, seed: int = 0,
    accountant: str = "pld", participation: str = "schedule", progress: Callable[[int, int], None] | None = None,
) -> Algorithm:  # fmt: skip
    """The same algorithm with the smallest noise, per client, that keeps each client's records within the budget.

    participation  "schedule": each client's own number of rounds under `seed` (the run must use this seed);
                   "expected": rounds * cohort / clients, as the papers do (clients drawn more often exceed the budget,
                   and the Guarantee shows by how much); "worst": every round.
    accountant     "pld" (rigorous) or "tcdp" (000's own).
    progress       called with (client kinds done, client kinds in all).
    Raises:        ConfigurationError if the budget is unreachable or the combination has no accountant.
    """
    check(algorithm, data, rounds)
    errors.require_positive("epsilon", epsilon)
    errors.require_in_unit_interval("delta", delta)
    errors.require_choice("participation", participation, PARTICIPATION)
    privatizer = algorithm.local.privatizer
    if not isinstance(privatizer, RecordGaussian):
        raise errors.refuse(
            "epsilon", epsilon, "left out for an algorithm without privacy", "choose a private algorithm such as dpnfl"
        )
    num_clients = data.num_clients
    if participation == "schedule":
        counts = participations(algorithm, num_clients, rounds, seed).astype(float)
    elif participation == "expected":
        counts = np.full(num_clients, rounds * algorithm.cohort.members(num_clients) / num_clients)
    else:
        counts = np.full(num_clients, float(rounds))
    kinds = list(zip(np.asarray(data.sizes).tolist(), counts.tolist(), strict=True))
    noise: dict[tuple[int, float], float] = {}
    distinct = sorted(set(kinds))
    for done, (records, count) in enumerate(distinct):
        template = privatizer.event(1.0, _sampling(algorithm, records), 1)
        taken = max(count, 1.0)  # a client that is never drawn gets the noise of one round; it pays nothing anyway
        noise[records, count] = accounting.noise_multiplier_for(
            epsilon, delta, template.sampling, template.adjacency, taken * algorithm.local.steps, accountant
        )
        if progress:
            progress(done + 1, len(distinct))
    multipliers = np.nextafter(np.array([noise[kind] for kind in kinds], np.float32), np.float32(np.inf))
    calibrated = dataclasses.replace(privatizer, noise_multiplier=multipliers)
    return dataclasses.replace(algorithm, local=dataclasses.replace(algorithm.local, privatizer=calibrated))


def guarantee(
    algorithm: Algorithm, data: FederatedData, *, rounds: int, delta: float, seed: int = 0, accountant: str = "pld"
) -> Guarantee:
    """What the run of `algorithm` for `rounds` rounds with `seed` promises: per client, by its realised participation.

    Unit one record of one client, view uploads: the server sees every message, so sampling clients amplifies nothing.
    Raises: ConfigurationError for a combination without an accountant.
    """
    check(algorithm, data, rounds)
    errors.require_choice("accountant", accountant, accounting.ACCOUNTANTS)
    num_clients = data.num_clients
    privatizer = algorithm.local.privatizer
    if not isinstance(privatizer, RecordGaussian):
        return no_privacy(num_clients, "gradients are neither clipped nor noised")
    errors.require_in_unit_interval("delta", delta)
    counts = participations(algorithm, num_clients, rounds, seed)
    ledger = [
        privatizer.event(z, _sampling(algorithm, records), int(count) * algorithm.local.steps)
        for z, records, count in zip(
            privatizer.client_noise(num_clients), np.asarray(data.sizes).tolist(), counts, strict=True
        )
    ]
    if any(steps.reveals_everything for steps in ledger):
        return no_privacy(num_clients, "gradients are clipped but noise_multiplier is 0")
    cost = accounting.ACCOUNTANTS[accountant]
    price = {steps: cost(steps, delta) for steps in set(ledger)}
    assumptions = (
        "which clients take part is drawn from the seed, independent of all data, and may be public",
        f"each local step uses fresh randomness: {_sampling_words(ledger)}",
        "the numbers of records of all clients are public",
        FLOAT_NOISE,
    )
    expected = rounds * algorithm.cohort.members(num_clients) / num_clients
    proved = max(price.values())
    claims = (
        _tcdp_claim(ledger, delta, proved, "000 Lemmas 2-4 (tCDP) at realised participation", None),
        _tcdp_claim(_at(ledger, expected * algorithm.local.steps), delta, proved,
                    "000 Lemmas 2-4 (tCDP) at expected participation", max(counts) / expected),
    )  # fmt: skip
    return Guarantee(
        tuple(price[steps] for steps in ledger), delta, RECORD, ledger[0].adjacency.value, View.UPLOADS.value,
        ACCOUNTANT_NAMES[accountant], assumptions, claims,
    )  # fmt: skip


def _sampling(algorithm: Algorithm, records: int) -> accounting.events.Sampling:
    sampling = algorithm.local.batches.sampling(records)
    if sampling is None:
        raise errors.refuse(
            "batches of a private run", type(algorithm.local.batches).__name__, "of a kind that has an accountant",
            "use without-replacement or poisson batches",
        )  # fmt: skip
    return sampling


def _sampling_words(ledger: list[GaussianSteps]) -> str:
    kinds = list(dict.fromkeys(str(steps.sampling) for steps in ledger))
    return kinds[0] + (f" and {len(kinds) - 1} more sizes" if len(kinds) > 1 else "")


def _at(ledger: list[GaussianSteps], count: float) -> list[GaussianSteps]:
    return [dataclasses.replace(steps, count=math.ceil(count)) for steps in ledger]


def _tcdp_claim(ledger: list[GaussianSteps], delta: float, proved: float, source: str, excess: float | None) -> Claim:
    """000's epsilon, or the condition that fails; `excess` is the largest participation over the one it assumes."""
    try:
        epsilon = max(accounting.tcdp_epsilon(steps, delta) for steps in set(ledger))
    except accounting.TcdpConditionError as error:
        return Claim(source, None, delta, "does not apply", str(error))
    if excess is None or excess <= 1:
        return Claim(source, epsilon, delta, "holds", "all conditions met")
    reason = f"the busiest client took part {excess:.2g} times as often as it assumes"
    if epsilon < proved:
        return Claim(source, epsilon, delta, "understates", reason)
    return Claim(source, epsilon, delta, "heuristic", f"{reason}, though the number is above the proved epsilon")
