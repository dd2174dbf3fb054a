"""The words of a Guarantee: the assumptions behind its epsilon and its warnings, in sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_dp import accounting
from fedjax_dp.accounting import Unit, View
from fedjax_dp.accounting.guarantee import FLOAT_NOISE, delta_warnings
from fedjax_dp.accounting.plain_words import epsilon_warnings
from fedjax_dp.data.store import FederatedData
from fedjax_dp.parts import facts
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.privacy.client_events import message_size, participation_mode, remembers
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import unit_of


def assumptions(run: PlannedRun, steps: Sequence[Any]) -> list[str]:
    """The assumptions of a run whose rounds release these steps: its rounds', other features', and what is trusted."""
    trusted = [*facts.trusted_parts(run.algorithm), *facts.trusted_model(run.chosen_model)]
    if trusted and run.private_tests is None:
        trusted.append("the test set is public")
    of_features = [line for one in run.qualifiers for line in one.assumptions]
    known = "the number of classes is" if run.data.class_names is None else "the classes and what they are called are"
    classes = [f"{known} public"] if run.data.task == "classes" or run.data.class_names is not None else []
    return [*_of_rounds(run, steps), *classes, *of_features, *trusted, FLOAT_NOISE]


def warnings(run: PlannedRun, epsilon: float, delta: float) -> list[str]:
    """What makes less of the largest epsilon of all clients than it seems to promise."""
    data, unit = run.data, run.unit
    members = [run.population.num_clients] if unit is Unit.CLIENT else np.asarray(data.sizes).tolist()
    return [
        *epsilon_warnings(epsilon),
        *delta_warnings(delta, members, unit),
        *(line for one in run.qualifiers for line in one.warnings),
        *(_unit_warnings(data) if unit is Unit.RECORD else ()),
        *_feature_warnings(data),
    ]


def _of_rounds(run: PlannedRun, steps: Sequence[Any]) -> list[str]:
    algorithm, colluders = run.algorithm, run.terms.colluders
    participation = participation_mode(run)
    cohorts = {
        "schedule": "which clients take part is drawn from the seed, independent of all data, and may be public",
        "law": "cohorts are drawn by their law, independent of all data; delta is an average over the draw: once that "
        "is known, a client drawn often may have more than epsilon",
        "worst": "every client is accounted for all rounds",
        "expected": "every client is accounted for the mean number of rounds",
        "once": "a single round of the run is accounted for, whichever it is",
    }
    if participation != run.terms.participation:
        cohorts[participation] += f"; nothing less is proved for participation {run.terms.participation} here"
    if algorithm.cohort.log(run.data.num_clients) is not None:
        cohorts["schedule"] = "participation follows a public log, which is trusted to depend on no records"
    unit, local = unit_of(algorithm), algorithm.local
    if not steps:
        return [cohorts[participation]]
    if unit is Unit.CLIENT:
        hidden = not isinstance(steps[0].sampling, accounting.FullBatch)
        lines = [
            *_noise_schedule(run),
            f"clients by {steps[0].sampling}, and who takes part is hidden" if hidden else cohorts[participation],
            *["a client's zeros count as its absence: it is drawn and counted as before"]
            * (run.terms.adjacency is not None),
            *_client_state(run, hidden),
            *_known_members(run, hidden),
            "the number of clients, their shares and all divisors are public constants, whoever takes part",
            "the server sums, clips nothing itself and adds the noise honestly"
            if not algorithm.upload.shared_noise
            else f"every client of a cohort adds its share of the noise, {colluders} of them help the adversary; "
            f"an update has {message_size(run):,} parameters, each of which is rounded",
        ]
        if correlated_source(algorithm.upload) is not None:
            counted = "each pass of rounds as one release" if hidden else "as one release of the whole run"
            lines.append(f"noise is correlated over rounds and counted {counted}")
        return lines
    if algorithm.cohort.setup_event is not None:
        cohorts["worst"] = (
            "cohorts follow what clients sent of their records, a release that is counted; therefore every client is "
            "accounted for all rounds"
        )
    if algorithm.cohort is not algorithm.cohort.base:
        cohorts[participation] += "; who of them answers does not depend on records"
    lines = [cohorts[participation], f"each local step uses fresh randomness: {_sampling_words(steps)}"]
    if correlated_source(local.privatizer) is not None:
        lines[1] = "noise is correlated over a round's steps, which are counted as one release without sampling"
    lines.append(
        "the numbers of records of all clients are public"
        if steps[0].adjacency is not accounting.Adjacency.ADD_REMOVE
        else "the clients, and each one's share, sampling rate, divisor and number of steps, are public constants, and "
        "every other record stays at its client or in the test set, whoever joins or leaves"
    )
    lines += [*_noise_schedule(run), *local.privatizer.assumptions]
    if local.initial_release:
        lines.append("every client's warm start is counted, once")
    if run.view is not View.UPLOADS:
        gains = run.noise_amplification
        if np.all(gains == 1):
            lines.append("a client's own noise alone is counted: a cohort's adds up for one plain local step only")
        else:
            low, high = (f"{gain:.3g}" for gain in (gains.min(), gains.max()))
            between = low if low == high else f"{low} to {high}"
            lines.append(
                f"the adversary sees {between} times the variance of a client's own noise, with {colluders} colluders "
                "in a cohort"
            )
            if algorithm.transport.resolution:
                lines.append(
                    "no message overflows the secure sum: it would stop the run, "
                    "which then has the epsilon of view uploads"
                )
    return lines


def _noise_schedule(run: PlannedRun) -> list[str]:
    """That noise differs from round to round."""
    factors = run.noise_levels.factors
    if len(factors) == 1:
        return []
    between = f"{factors.min():.4g} to {factors.max():.4g}"
    by_round = f"noise multipliers are of round 0; by round they are {between} times as large, fixed beforehand"
    return [f"{by_round}, and every round is counted with its own"]


def _client_state(run: PlannedRun, hidden: bool) -> list[str]:
    """What clients that keep something are counted by, under noise on whole clients."""
    if not remembers(run.algorithm):
        return []
    if hidden:
        return ["client state changes in its client's own rounds alone, by its own records and by releases"]
    public = "client state acts on later updates: the draw of clients is counted as public, without amplification"
    return [public] if run.algorithm.cohort.is_random else []


def _known_members(run: PlannedRun, hidden: bool) -> list[str]:
    """That the draw would hide a client from who takes no part itself."""
    cohort, num_clients = run.population
    if hidden or remembers(run.algorithm) or isinstance(cohort.amplification(num_clients, 0)[0], accounting.FullBatch):
        return []
    by_name = run.algorithm.transport.secret and run.helpers  # masks are agreed on with named members
    if not by_name and not isinstance(cohort.amplification(num_clients, run.helpers)[0], accounting.FullBatch):
        return []
    return [
        "no amplification is proved against members of a cohort: the draw of clients is counted as public "
        "(view final_model has no such members)"
    ]


def _sampling_words(steps: Sequence[Any]) -> str:
    kinds = list(dict.fromkeys(step.sampling for step in steps))
    sampled = [str(kind) for kind in kinds if not isinstance(kind, accounting.FullBatch)]
    if not sampled:
        return "all records in every step"
    words = f"records by {sampled[0]}" + (f" and {len(sampled) - 1} more sizes" if len(sampled) > 1 else "")
    return words + ", all records of clients with no more than a batch" * (len(sampled) < len(kinds))


def _unit_warnings(data: FederatedData) -> list[str]:
    """That a record is less than what somebody may want hidden."""
    several = [bound for bound in data.bounds if bound.unit is not Unit.TOKEN]
    lines = [f"epsilon is of one record: {data.overlap}"] if data.overlap else []
    return lines + [
        f"epsilon is of one record, of which one {one.unit.value} may have {one.records}" for one in several
    ]


def _feature_warnings(data: FederatedData) -> list[str]:
    lines = [f"epsilon does not cover what the features were made with: {line}" for line in data.learnt]
    if data.holds_tests:
        lines.append(
            "epsilon does not cover what is measured on records that clients hold out, without noise, nor choices by it"
        )
    return lines
