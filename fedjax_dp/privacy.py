"""The bridge from the simulated value to its Guarantee: what is accounted is what was run."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import (
    Claim,
    Event,
    GaussianSteps,
    Guarantee,
    RandomParticipation,
    Unit,
    Verdict,
    View,
)  # fmt: skip
from fedjax_dp.accounting.guarantee import FLOAT_NOISE, delta_warnings, no_privacy
from fedjax_dp.algorithm import Algorithm, draw_cohort
from fedjax_dp.cohort import Cohort
from fedjax_dp.data.store import FederatedData
from fedjax_dp.privatizer import RecordGaussian
from fedjax_dp.simulation import check, run_key

PARTICIPATION = ("schedule", "expected", "worst", "law")


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
    accountant: str = "pld", participation: str = "schedule", view: str = "uploads", colluders: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Algorithm:  # fmt: skip
    """The same algorithm with the smallest noise, per client, that keeps each client's records within the budget.

    participation  "schedule": each client's own number of rounds under `seed` (the run must use this seed);
                   "law": any seed, delta averaged over the draw of cohorts; "worst": every round;
                   "expected": rounds * cohort / clients, as the papers do (clients drawn more often exceed the budget,
                   and the Guarantee shows by how much).
    accountant     "pld" (rigorous), or another of `accounting.ACCOUNTANTS`.
    view           who must learn nothing: see `guarantee`.
    progress       called with (client kinds done, client kinds in all).
    Raises:        ConfigurationError if the budget is unreachable or the combination has no accountant.
    """
    check(algorithm, data, rounds)
    errors.require_positive("epsilon", epsilon)
    errors.require_in_unit_interval("delta", delta)
    errors.require_choice("accountant", accountant, accounting.ACCOUNTANTS)
    privatizer = algorithm.local.privatizer
    if not isinstance(privatizer, RecordGaussian):
        raise errors.refuse(
            "epsilon", epsilon, "left out for an algorithm without privacy", "choose a private algorithm such as dpnfl"
        )
    alike = dataclasses.replace(privatizer, noise_multiplier=1.0)
    unit_noise = dataclasses.replace(algorithm, local=dataclasses.replace(algorithm.local, privatizer=alike))
    ledger = ledger_of(unit_noise, data, rounds, seed, participation, view, colluders, at_least=1)
    noise: dict[Event, float] = {}
    distinct = list(dict.fromkeys(ledger))
    for done, event in enumerate(distinct):
        noise[event] = accounting.noise_factor_for(event, epsilon, delta, accountant)
        if progress:
            progress(done + 1, len(distinct))
    needed = [noise[event] for event in ledger]
    if view != View.UPLOADS.value:  # the others' noise was counted as equal to one's own, so it has to be
        needed = [max(needed)] * len(needed)
    multipliers = np.nextafter(np.array(needed, np.float32), np.float32(np.inf))
    calibrated = dataclasses.replace(privatizer, noise_multiplier=multipliers)
    return dataclasses.replace(algorithm, local=dataclasses.replace(algorithm.local, privatizer=calibrated))


def guarantee(
    algorithm: Algorithm, data: FederatedData, *, rounds: int, delta: float, seed: int = 0, accountant: str = "pld",
    participation: str = "schedule", view: str = "uploads", colluders: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Guarantee:  # fmt: skip
    """What the run of `algorithm` for `rounds` rounds with `seed` promises, per client; unit: one record of one client.

    participation  "schedule": the rounds that each client takes part in under `seed`; "law": before the cohorts are
                   drawn; "worst": every round.
    view           "uploads": the server sees every message, so sampling clients amplifies nothing; "secure_sum",
                   "broadcast", "final_model": the others' noise helps where it is known to add up, that is with one
                   local step, equal clients and equal noise (`accounting.seen`), else own noise alone is counted.
    colluders      clients of each cohort that help the adversary, in the last three views.
    progress       called with (distinct clients done, distinct clients in all).
    Raises: ConfigurationError for a combination without an accountant.
    """
    check(algorithm, data, rounds)
    errors.require_choice("accountant", accountant, accounting.ACCOUNTANTS)
    num_clients = data.num_clients
    if not isinstance(algorithm.local.privatizer, RecordGaussian):
        return no_privacy(num_clients, "gradients are neither clipped nor noised")
    errors.require_in_unit_interval("delta", delta)
    ledger = ledger_of(algorithm, data, rounds, seed, participation, view, colluders)
    steps = [step for event in ledger for step, _ in event.leaves()]
    if any(step.reveals_everything for step in steps):
        return no_privacy(num_clients, "gradients are clipped but noise_multiplier is 0")
    epsilons = tuple(accounting.epsilons_of(ledger, delta, accountant, progress))
    cohorts = {
        "schedule": "which clients take part is drawn from the seed, independent of all data, and may be public",
        "law": "cohorts are drawn uniformly, independent of all data; delta is averaged over the draw, which is public "
               "afterwards, so a client drawn often may have more than epsilon",
        "worst": "every client is accounted for all rounds",
        "expected": "every client is accounted for the mean number of rounds: no guarantee for those drawn more often",
    }  # fmt: skip
    sizes = (
        "the numbers of records of all clients are public"
        if steps[0].adjacency is accounting.Adjacency.REPLACE_ONE
        else "each client's sampling rate is a public constant"
    )
    assumptions = (
        cohorts[participation], f"each local step uses fresh randomness: {_sampling_words(steps)}", sizes,
        *_noise_words(algorithm, num_clients, steps, view, colluders), FLOAT_NOISE,
    )  # fmt: skip
    return Guarantee(
        epsilons, delta, Unit.RECORD, steps[0].adjacency, View(view), accounting.ACCOUNTANTS[accountant].about,
        assumptions, _claims(algorithm, data, rounds, seed, delta, max(epsilons)),
        delta_warnings(delta, np.asarray(data.sizes).tolist()),
    )  # fmt: skip


def ledger_of(
    algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, participation: str = "schedule",
    view: str = "uploads", colluders: int = 0, at_least: int = 0,
) -> list[Event]:  # fmt: skip
    """The event of each client: what `view` receives that depends on its records. See `guarantee` for the options.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    errors.require_choice("participation", participation, PARTICIPATION)
    errors.require_choice("view", view, [known.value for known in View])
    num_clients, steps = data.num_clients, algorithm.local.steps
    cohort = algorithm.cohort.members(num_clients)
    if colluders and view == View.UPLOADS.value:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    privatizer = algorithm.local.privatizer
    assert isinstance(privatizer, RecordGaussian)
    noises, sizes = privatizer.client_noise(num_clients), np.asarray(data.sizes).tolist()
    one_round = [
        privatizer.event(noise, algorithm.local.batches.sampling(records), steps)
        for noise, records in zip(noises, sizes, strict=True)
    ]
    seen = accounting.seen(one_round[0], View(view), cohort_size=cohort, colluders=colluders, local_steps=steps)
    if len(set(one_round)) == 1 and len(set(sizes)) == 1:  # then weights and noises are equal, too
        one_round = [seen] * num_clients
    if participation == "law" and cohort < num_clients:
        return [RandomParticipation(event, cohort / num_clients, rounds) for event in one_round]
    if participation == "schedule":
        counts = np.maximum(participations(algorithm, num_clients, rounds, seed), at_least).tolist()
    elif participation == "expected":
        counts = [max(rounds * cohort / num_clients, 1.0)] * num_clients
    else:
        counts = [rounds] * num_clients
    return [
        dataclasses.replace(event, count=math.ceil(event.count * count))
        for event, count in zip(one_round, counts, strict=True)
    ]


def _sampling_words(steps: list[GaussianSteps]) -> str:
    kinds = list(dict.fromkeys(str(step.sampling) for step in steps))
    if isinstance(steps[0].sampling, accounting.FullBatch):
        return "all records in every step"
    return f"records by {kinds[0]}" + (f" and {len(kinds) - 1} more sizes" if len(kinds) > 1 else "")


def _noise_words(
    algorithm: Algorithm, num_clients: int, steps: list[GaussianSteps], view: str, colluders: int
) -> list[str]:
    """Whose noise is counted in views other than uploads."""
    if view == View.UPLOADS.value:
        return []
    own = algorithm.local.privatizer.client_noise(num_clients)[0]
    if steps[0].noise_multiplier <= own:
        return ["a client's own noise alone is counted: a cohort's adds up for one local step and equal clients only"]
    summed = round((steps[0].noise_multiplier / own) ** 2)
    return [f"the noise of {summed} clients adds up in what is seen; {colluders} of a cohort help the adversary"]


def _claims(
    algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, delta: float, proved: float
) -> tuple[Claim, ...]:
    """000's theorem at realised participation, and as the paper applies it: at the mean, to the busiest client."""
    realised = ledger_of(algorithm, data, rounds, seed)
    expected = ledger_of(algorithm, data, rounds, seed, "expected")
    source = "000 Lemmas 2-4 (tCDP)"
    try:
        spent = accounting.epsilons_of(realised, delta, "tcdp")
        assumed = accounting.epsilons_of(expected, delta, "tcdp")
    except accounting.NotCoveredError as error:
        return (Claim(source, None, delta, Verdict.CONDITIONAL, f"condition not met: {error}"),)
    counts = [step.count for event in realised for step, _ in event.leaves()]
    means = [step.count for event in expected for step, _ in event.leaves()]
    busiest = max(range(len(counts)), key=lambda i: counts[i] / means[i])
    if counts[busiest] <= means[busiest]:
        verdict, reason = Verdict.HOLDS, "all conditions met, and no client took part more often"
    else:
        verdict = Verdict.HEURISTIC
        reason = (
            f"the busiest client took part {counts[busiest] / means[busiest]:.2g} times as often, which by the same "
            f"lemmas costs it {spent[busiest]:.4g}"
        )
        if proved <= assumed[busiest]:
            reason += f"; the number is above the proved {proved:.4g} all the same"
    return (
        Claim(f"{source} at realised participation", max(spent), delta, Verdict.HOLDS, "all conditions met"),
        Claim(f"{source} at expected participation, busiest client", assumed[busiest], delta, verdict, reason),
    )
