"""Examination of algorithms: one table of properties, with checks of single parts and of whole runs.

User-defined parts are examined before an epsilon is printed. The draws of cohorts and batches are compared with their
stated law, the noise with its standard deviation, neighbours with the sensitivity, weights with their reach; a
contradiction is refused. What no check can show (that a part holds no records) is an assumption of the Guarantee. The
project's own parts pass the same checks in its tests; `fedjax_dp.testing` calls the checks of whole runs.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import (
    draws,
    flow,
    invariance,
    local_steps,
    masks,
    neighbours_of_runs,
    noise_of_runs,
    steps,
    updates,
)
from fedjax_dp.inspection.trials import Place
from fedjax_dp.inspection.verdict import CheckReport, record_reports, require
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.rounds.algorithm import Algorithm

Check = Callable[[Any, Place], None]  # of a part, in its algorithm
_IN_LOCAL_STEPS = ("batches", "bound", "privatizer", "correction", "local")


class Property(NamedTuple):
    """A property and its checks: of single parts, by slot, and of whole runs."""

    of_runs: Callable[[Place], None]
    always: Mapping[str, Check] = {}
    of_records: Mapping[str, Check] = {}  # where noise hides records
    of_clients: Mapping[str, Check] = {}  # where it hides whole clients
    needs_claim: bool = False  # whole runs are compared with what the accountants count


def _examine_draws(place: Place) -> None:
    """Check all parts that draw, user-defined or not."""
    local = place.algorithm.local
    draws.examine_cohort(place.algorithm.cohort, place)
    draws.examine_batches(local.batches, place)
    local_steps.examine_batches_of_steps(local, place)


def _examine_statements(place: Place) -> None:
    """Check what a Guarantee requires, and that every release is accounted for, of the project's parts too."""
    try:
        facts.require_facts(place.algorithm)
        flow.check(*place[:3])
        require_true(*place[:5])
    except errors.ConfigurationError as refusal:
        raise AssertionError(str(refusal)) from None
    require(True, "parts are what they state", "nothing against it", "so", "the trace of the round is exact")


# In this order: a fault found by an earlier check would also fail later ones, under a less specific name.
PROPERTIES = {
    "sampling": Property(
        _examine_draws,
        always={"cohort": draws.examine_cohort},
        of_records={
            "batches": draws.examine_batches,
            "local": local_steps.examine_local,
            "client models": local_steps.examine_models,
        },
    ),
    "statements": Property(_examine_statements, needs_claim=True),
    "sensitivity": Property(
        neighbours_of_runs.examine_sensitivity,
        of_records={"bound": steps.examine_bound, "correction": steps.examine_correction},
        of_clients={"estimator": updates.examine_estimator, "transport": updates.examine_transport},
        needs_claim=True,
    ),
    "noise": Property(
        noise_of_runs.examine_law,
        always={"noise source": steps.examine_source},
        of_records={"privatizer": steps.examine_privatizer},
        of_clients={"upload": updates.examine_upload},
        needs_claim=True,
    ),
    "masks": Property(
        lambda place: masks.examine_masks(place.algorithm.transport, place), always={"transport": masks.examine_masks}
    ),
    "keys": Property(noise_of_runs.examine_keys),
    "padding": Property(invariance.examine_padding),
    "order": Property(
        invariance.examine_order, of_clients=dict.fromkeys(_IN_LOCAL_STEPS, local_steps.examine_isolation)
    ),
}


def examine_part(slot: str, part: Any, place: Place) -> None:
    """Raise AssertionError if a measurement contradicts what the part in this slot of the algorithm states."""
    for law in PROPERTIES.values():
        for checks in (law.always, law.of_clients if place.by_client else law.of_records):
            if slot in checks:
                checks[slot](part, place)


def examine(place: Place, names: Iterable[str] = PROPERTIES) -> list[CheckReport]:
    """Check whole runs; returns one report for each law that holds.

    Raises: AssertionError for the first law that does not hold; ConfigurationError if a part cannot be examined.
    """
    with record_reports() as reports:
        for name in names:
            PROPERTIES[name].of_runs(place)
    return reports


def require_true(algorithm: Algorithm, data: FederatedData, model: Model, rounds: int, seed: int) -> None:
    """Refuse user-defined parts if a measurement contradicts what they state.

    Each statistical check rejects a correct part with probability 1e-6.
    """
    if algorithm.upload.shared_noise and not facts.of_the_project(algorithm.transport):
        raise errors.refuse(
            "transport",
            type(algorithm.transport).__name__,
            "SecureSum for shares of noise",
            "what another transport reveals is not known",
        )
    place = Place(algorithm, data, model, rounds, seed)
    for slot, part in facts.parts_of(algorithm):
        weighed = slot == "estimator" and not facts.of_the_project(getattr(part, "weigh", part))
        if facts.of_the_project(part) and not weighed:
            continue
        name = f"{slot} {type(part).__name__}"
        with (
            errors.refuse_errors(
                name, _describe_failure, "one that can be examined", "see its Protocol for shapes and types"
            ),
            errors.refuse_errors(
                name, str, "what it states of itself", "correct the part or its facts", AssertionError
            ),
        ):
            examine_part(slot, part, place)


def _describe_failure(error: Exception) -> str:
    return f"one that fails under vmap and jit: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
