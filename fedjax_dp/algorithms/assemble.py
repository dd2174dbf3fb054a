"""What all entries share: their common options, and how options become the slots of an `Algorithm`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypedDict

import numpy as np
import optax

from fedjax_dp import errors
from fedjax_dp.parts.aggregation import ESTIMATORS, Aggregate
from fedjax_dp.parts.answers import Dropout, FirstResponders
from fedjax_dp.parts.batches import (
    Batches,
    EpochBatches,
    FixedBatches,
    FullBatches,
    PoissonBatches,
    ReplacementBatches,
)
from fedjax_dp.parts.client_privacy import PlainUpload, Upload
from fedjax_dp.parts.clipping import Bound, ClipBatch, ClipRecords, ClipTensorsAtMedian, ScaleGradients, Unbounded
from fedjax_dp.parts.cohorts import AllClients, Cohort, CyclicCohort, MultinomialCohort, PoissonCohort, UniformCohort
from fedjax_dp.parts.corrections import Correction, L2Penalty
from fedjax_dp.parts.local_sgd import LOCAL_RULES, LocalRule, LocalSgd
from fedjax_dp.parts.record_privacy import NonPrivate, Privatizer
from fedjax_dp.parts.secure_aggregation import SecureSum
from fedjax_dp.parts.server_optimizers import Server
from fedjax_dp.parts.transport import PlainSum
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.schedules import SCHEDULES


class Common(TypedDict, total=False):
    """Options that every entry takes."""

    cohort_size: Required[int | None]  # clients per round, or their expected number; None trains all
    batch_size: Required[int | None]  # records per local step; None for batches "full"
    local_steps: Required[int]  # tau; epochs for batches "epochs"
    learning_rate: Required[float]  # of the local steps
    cohort: str  # uniform, poisson, md, cyclic: see COHORTS
    one_by_one: bool  # a client drawn m times by md trains m times instead of once
    dropout: float  # probability that a client's message does not arrive
    first: int | None  # only so many of the cohort are waited for
    estimator: str  # see ESTIMATORS
    batches: str  # see BATCHES
    schedule: str  # see SCHEDULES
    per_step: bool  # the schedule runs over local steps, not rounds
    l2: float  # h in h |w|^2
    microbatch: int | None  # records whose gradients are built at once where a model needs that; bounds memory
    local_rule: str  # sgd, momentum, rmsprop
    local_decay: float | None  # of momentum or rmsprop
    keep_rule: bool  # the rule's state stays with the client across rounds
    secure: bool  # messages travel masked, and only their sum is seen
    ring_bits: int
    fractional_bits: int
    neighbours: int | None  # clients that each client shares a mask with; None: all


DEFAULTS: dict[str, Any] = {
    "cohort": "uniform",
    "one_by_one": False,
    "dropout": 0.0,
    "first": None,
    "estimator": "wor_delta",
    "batches": "without-replacement",
    "schedule": "constant",
    "per_step": False,
    "l2": 0.0,
    "microbatch": None,
    "local_rule": "sgd",
    "local_decay": None,
    "keep_rule": False,
    "secure": False,
    "ring_bits": 32,
    "fractional_bits": 16,
    "neighbours": None,
}

BATCHES: dict[str, Callable[[Any], Batches]] = {
    "without-replacement": lambda size: FixedBatches(size=size),
    "with-replacement": lambda size: ReplacementBatches(size=size),
    "poisson": lambda size: PoissonBatches(size=size),
    "full": lambda size: FullBatches(),
    "epochs": lambda size: EpochBatches(size=size),
}

COHORTS: dict[str, Callable[..., Cohort]] = {
    "uniform": lambda size, **drawn: UniformCohort(size=size),
    "poisson": lambda size, **drawn: PoissonCohort(size=size),
    "md": lambda size, **drawn: MultinomialCohort(draws=size, **drawn),
    "cyclic": lambda size, **drawn: CyclicCohort(size=size),
}

BOUNDS: dict[str, Callable[[Any], Bound]] = {
    "record": lambda gradient_bound: ClipRecords(),
    "batch": lambda gradient_bound: ClipBatch(),
    "scale": lambda gradient_bound: ScaleGradients(gradient_bound=gradient_bound),
    "none": lambda gradient_bound: Unbounded(),
    "tensor-median": lambda gradient_bound: ClipTensorsAtMedian(),
}


def assemble(
    common: Mapping[str, Any],
    entry: Mapping[str, Any],
    *,
    privatizer: Privatizer | None = None,
    corrections: tuple[Correction, ...] = (),
    aggregate: Aggregate | None = None,
    server: Server | None = None,
    upload: Upload | None = None,
    drawn: Mapping[str, Any] | None = None,
) -> Algorithm:
    """An algorithm from common options over the entry's own defaults over DEFAULTS, and the parts that are special."""
    require_common(common)
    if aggregate and "estimator" in common:
        raise errors.refuse("estimator", common["estimator"], "left out for an entry with one of its own")
    given: dict[str, Any] = {**DEFAULTS, **entry, **common}
    for name, choices in (
        ("schedule", SCHEDULES),
        ("estimator", ESTIMATORS),
        ("batches", BATCHES),
        ("cohort", COHORTS),
        ("local_rule", LOCAL_RULES),
    ):
        errors.require_choice(name, given[name], choices)
    if (given["batch_size"] is None) != (given["batches"] == "full"):
        raise errors.refuse(
            "batch_size", given["batch_size"], "None for batches full, else a number", f"batches are {given['batches']}"
        )
    for name, needed in (
        ("one_by_one", given["cohort"] == "md"),
        ("keep_rule", given["local_rule"] != "sgd"),
        ("ring_bits", given["secure"]),
        ("fractional_bits", given["secure"]),
        ("neighbours", given["secure"]),
    ):
        if name in common and common[name] and not needed:
            words = {"one_by_one": "cohort md", "keep_rule": "another local_rule than sgd"}.get(name, "secure sums")
            raise errors.refuse(name, common[name], f"left out without {words}", "drop it")
    size = given["cohort_size"]
    if drawn and drawn.get("probabilities") is not None and (size is None or given["cohort"] != "md"):
        raise errors.refuse("cohort", given["cohort"], "md with a cohort_size for given probabilities")
    cohort: Cohort = AllClients()
    if size is not None:
        cohort = COHORTS[given["cohort"]](size, one_by_one=given["one_by_one"], **(drawn or {}))
    if given["first"] is not None:
        cohort = FirstResponders(cohort=cohort, size=given["first"])
    if np.any(np.asarray(given["dropout"]) != 0):
        cohort = Dropout(cohort=cohort, rate=given["dropout"])
    decay = {"momentum": {"decay": 0.9}, "rmsprop": {"decay": 0.99}}.get(given["local_rule"], {})
    if given["local_decay"] is not None:
        if not decay:
            raise errors.refuse("local_decay", given["local_decay"], "left out for local rule sgd")
        decay = {"decay": given["local_decay"]}
    if given["microbatch"] is not None:
        errors.require_count("microbatch", given["microbatch"])
        bound = getattr(privatizer, "bound", None)
        if not hasattr(bound, "microbatch"):
            raise errors.refuse("microbatch", given["microbatch"], "left out where no record is clipped", "drop it")
        privatizer = changed(privatizer, bound=ClipRecords(microbatch=given["microbatch"]))
    ring = {"bits": given["ring_bits"], "fractional_bits": given["fractional_bits"], "neighbours": given["neighbours"]}
    return Algorithm(
        cohort=cohort,
        local=LocalSgd(
            learning_rate=given["learning_rate"],
            privatizer=privatizer or NonPrivate(),
            batches=BATCHES[given["batches"]](given["batch_size"]),
            corrections=(*corrections, L2Penalty(strength=given["l2"])),
            rule=LocalRule(hyperparameters=decay, factory=LOCAL_RULES[given["local_rule"]], keep=given["keep_rule"]),
            steps=given["local_steps"],
            schedule=SCHEDULES[given["schedule"]],
            per_step=given["per_step"],
        ),
        upload=upload or PlainUpload(),
        aggregate=aggregate or ESTIMATORS[given["estimator"]],
        transport=SecureSum(**ring) if given["secure"] else PlainSum(),
        server=server or add_update(),
    )


def add_update(rate: float = 1.0, momentum: float = 0.0) -> Server:
    """The new model is the old one plus `rate` times the aggregated update, or times v <- momentum v + update."""
    numbers = {"learning_rate": rate} | ({"momentum": momentum} if momentum else {})
    return Server(hyperparameters=numbers, factory=optax.sgd)


def bound_named(clipping: str, choices: Sequence[str], gradient_bound: float | None = None) -> Bound:
    """One of the bounds that an entry offers."""
    errors.require_choice("clipping", clipping, choices)
    if (clipping == "scale") != (gradient_bound is not None):
        raise errors.refuse("gradient_bound", gradient_bound, "given for clipping scale, and only then")
    return BOUNDS[clipping](gradient_bound)


def require_common(common: Mapping[str, Any]) -> None:
    """Refuse options that are missing or unknown."""
    for name in common:
        errors.require_choice("option", name, Common.__annotations__)
    for name in sorted(Common.__required_keys__):
        if name not in common:
            raise errors.refuse(name, "nothing", "given to every algorithm", f"add {name}=")
