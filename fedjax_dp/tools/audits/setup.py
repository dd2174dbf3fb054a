"""The setup of an audit: the Guarantee, the client, and the games that test it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Event, Guarantee, Release, Unit
from fedjax_dp.data.client_names import number_of
from fedjax_dp.data.store import FederatedData
from fedjax_dp.privacy import guarantees
from fedjax_dp.privacy.client_events import client_events, participation_mode
from fedjax_dp.privacy.planned_run import INITIALIZATION, PlannedRun
from fedjax_dp.privacy.protection import unit_of
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.tools.audits import canaries
from fedjax_dp.tools.audits.game import Game
from fedjax_dp.tools.audits.one_run import LEAST
from fedjax_dp.tools.audits.wrappers import linear_model

CANARY_NAMES = ("gradient", *canaries.CANARIES)
PARTICIPATIONS = ("schedule", "worst")  # modes for which a run of one seed can be a counterexample


class AuditSetup(NamedTuple):
    """The target of an audit: the client's `epsilon` at `delta`, its `event`, and games that differ in numbers only."""

    guarantee: Guarantee
    delta: float
    client: int
    name: str  # of the client
    epsilon: float
    event: Event
    games: dict[str, Any]
    bits: tuple[int, ...]  # shape of the coins of a run: () for one canary, else (canaries,)


class AttackOptions(NamedTuple):
    """The options of an audit's attack; see `audit`."""

    canary: str = "gradient"
    client: int | str | None = None
    record: int = 0
    trials: int = 10_000
    one_run: int | None = None
    significance: float = 0.05
    claim: float | None = None
    parameters: int = 20
    lanes: int | None = None
    progress: Callable[[int, int], None] = lambda done, total: None


def set_up(run: PlannedRun, attack: AttackOptions) -> tuple[PlannedRun, AuditSetup]:
    """The run with the noise for its budget, and the setup of its audit."""
    canary, one_run, parameters = attack.canary, attack.one_run, attack.parameters
    if run.unit.of_records:
        remedy = "with --unit record the epsilon of a record is attacked"
        raise errors.refuse("unit", run.unit.value, "record or client for an audit, which plants one record", remedy)
    if run.terms.deployment is not None:
        raise errors.refuse(
            "deployment_cohort",
            run.terms.deployment_cohort,
            "left out of an audit, which attacks the run itself, with less noise than its deployment",
            "find the noise with it (fedjax_dp.calibrate), and audit that algorithm without it",
        )
    if participation_mode(run) not in PARTICIPATIONS:
        raise errors.refuse(
            "participation of an audit",
            run.terms.participation,
            f"{' or '.join(PARTICIPATIONS)}, as it plays the cohorts of one seed",
            f"find the noise for {run.terms.participation} first, and audit with that noise_multiplier",
        )
    run = (run if run.terms.epsilon is None else guarantees.with_least_noise(run)).with_terms(epsilon=None)
    algorithm, data, rounds, seed = run.algorithm, run.data, run.rounds, run.draw_seed
    errors.require_choice("canary", canary, CANARY_NAMES)
    by_record = unit_of(algorithm) is Unit.RECORD
    if one_run is not None:
        errors.require_count("one_run", one_run)
        parameters = max(2, min(one_run, data.largest if by_record else data.num_clients))
    if one_run is not None and not by_record and attack.client is not None:
        wanted = "left out where one run has many clients as canaries"
        raise errors.refuse("client", attack.client, wanted, "the largest of their epsilons is tested")
    if attack.record and not (by_record and one_run is None):
        raise errors.refuse("record", attack.record, "left out where there is no choice of one record")
    store, played, planned = data, run.model, run.seed
    if canary == "gradient":
        played, planned = linear_model(canaries.tensors_of(parameters)), seed  # which has no start of its own
        store = canaries.linear_data(data, np.zeros((1, parameters)), np.zeros(1))
    # The Guarantee of training without earlier phases; the game has as many clients, of the same sizes.
    known = {INITIALIZATION: run.initialization.without_prior_runs}
    terms = dataclasses.replace(run.terms, view=run.view.value)
    counted = dataclasses.replace(run, data=store, chosen_model=played, seed=planned, terms=terms, _cache=known)
    promise = guarantees.unverified_guarantee(counted)
    if math.isinf(promise.epsilon) or promise.delta is None:
        raise errors.refuse(
            "algorithm",
            "no epsilon",
            "one with a Guarantee to test",
            promise.reason or "the noise is too small for the accountant to tell the losses from infinite ones",
        )
    if promise.epsilon == 0:
        remedy = "use view deployed, in which personal models are released"
        raise errors.refuse("view", promise.view.value, "one that receives anything computed from records", remedy)
    if attack.client is None:
        target = _most_exposed(promise, algorithm, data, rounds, seed)
    else:
        target = number_of("client", data.names, data.num_clients, attack.client)
    event = client_events(counted)[target]
    step = _release(algorithm, event, data.called(target))
    bits: tuple[int, ...] = ()
    if one_run is None:
        place = canaries.place_one(algorithm, data, step, target, attack.record)
    else:
        place = canaries.place_many(algorithm, data, step, target, one_run)
        bits = (int(place.coins[-1]) + 1,)
        if bits[0] < LEAST:
            raise errors.refuse(
                "canaries in one run", bits[0], f"at least {LEAST}", "use that many, or a larger client"
            )
    common = {"rounds": rounds, "view": promise.view, **canaries.target_of(seed, target, step)}
    games: dict[str, Game]
    if canary == "gradient":
        games = {
            others + kind: canaries.gradient_game(
                algorithm, data, place, others=others, parameters=parameters, shape=shape, **common
            )
            for others in canaries.others_for(algorithm, place)
            for kind, shape in canaries.SHAPES[2 if one_run else step.norm].items()
        }
    else:
        games = {"data": canaries.input_game(algorithm, data, run.model, place, kind=canary, seed=seed, **common)}
    return run, AuditSetup(
        promise, promise.delta, target, data.called(target), promise.epsilons[target], event, games, bits
    )


def _most_exposed(promise: Guarantee, algorithm: Algorithm, data: FederatedData, rounds: int, seed: int) -> int:
    """The client with the largest epsilon, and of several the one with the largest share, which noise hides least.

    Clients that send no message under the seed are skipped if possible: their audit would prove nothing.
    """
    epsilons = np.array(promise.epsilons)
    most = epsilons >= epsilons.max() * (1 - 1e-9)
    draw = jax.jit(jax.vmap(lambda t: draw_cohort(algorithm.cohort, run_key(seed), t, jnp.asarray(data.shares))))
    cohorts = draw(jnp.arange(rounds))
    sends = np.zeros(data.num_clients, bool)
    sends[np.asarray(cohorts.ids)[np.asarray(cohorts.present)]] = True
    return int(np.argmax(np.where(most & sends if np.any(most & sends) else most, np.asarray(data.shares), -1.0)))


def _release(algorithm: Algorithm, event: Event, client: str) -> Release:
    """The release of one noisy sum of the run."""
    steps = [step for step, _ in event.leaves() if step != algorithm.cohort.setup_event]
    if not steps:
        raise errors.refuse("client", client, "one that takes part", "it is in no cohort of this seed")
    return steps[-1]
