"""What all entries share: the common options, and how options become the slots of an `Algorithm`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

import numpy as np

from fedjax_dp import errors, parts, validation
from fedjax_dp.options import REQUIRED, Options, about, is_part, of_class, require
from fedjax_dp.parts.choices import CHOICES, numbers_of, own_numbers, part_of, takes_size

if TYPE_CHECKING:
    import jax

    from fedjax_dp.rounds.algorithm import Algorithm

    Noise = float | np.ndarray | jax.Array
    CohortSlot = str | parts.Cohort
    BatchesSlot = str | parts.Batches
    EstimatorSlot = str | parts.Aggregate
    RuleSlot = str | parts.Rule
    ScheduleSlot = str | parts.RateSchedule
    ChangeSlot = str | parts.ByRound
    SecureSlot = bool | parts.Transport
    ServerSlot = str | parts.ServerOptimizer
    AverageSlot = str | parts.ModelAverage
else:
    Noise = float | np.ndarray  # signatures must not load JAX
    # nor the parts that a slot also takes
    CohortSlot = BatchesSlot = EstimatorSlot = RuleSlot = ScheduleSlot = ChangeSlot = ServerSlot = AverageSlot = str
    SecureSlot = bool

ADAPTIVE = ("adam", "yogi", "adagrad")  # servers whose step size does not depend on the size of the update

BOUNDS: dict[str, Callable[[Any], "parts.Bound"]] = {
    "record": lambda gradient_bound: parts.ClipRecords(),
    "batch": lambda gradient_bound: parts.ClipBatch(),
    "scale": lambda gradient_bound: parts.ScaleGradients(gradient_bound=gradient_bound),
    "none": lambda gradient_bound: parts.Unbounded(),
    "tensor-median": lambda gradient_bound: parts.ClipTensorsAtMedian(),
}


def _slot(name: str, default: Any, group: str | None = None) -> Any:
    """The annotation of a slot, which takes one of the names in `CHOICES` or a part."""
    choices = CHOICES[name].choices
    named = not isinstance(default, bool)
    return about("", value=default, choices=choices if named else None, own=named, group=group, part=True)


class Common(TypedDict, total=False):
    """Options that every entry takes.

    A slot takes a name or, from Python, a part that holds its own numbers: `cohort="uniform"`, or
    `cohort=fedjax_dp.parts.BinnedCohort(pass_rounds=8)`. On the command line and in files these numbers are options
    too, see `parts.choices`.

    Args:
        cohort_size: clients per round (their expected number if it varies); num_clients, or None in Python: all
        cohort: how the cohort is sampled; md: in proportion to the shares, with replacement; allocation, bins,
            cyclic-poisson: in passes of several rounds; separated: with a minimum gap between a client's rounds;
            truncated: Poisson with a maximum size; log: read from participation_log
        dropout: probability that a client's upload does not arrive
        first: number of clients the server waits for in each round
        estimator: how the server combines the updates
        batches: how the records of a local step are sampled; full: all; epochs, allocated, bins: local_steps are epochs
        batch_size: records B per local step; a client with fewer records uses all of them in every step
        local_steps: local steps tau per round
        learning_rate: learning rate of the local steps
        schedule: how the learning rate changes over the rounds
        per_step: change the learning rate with every local step instead of every round
        local_rule: local optimizer: how a gradient becomes a step
        l2: weight h of the penalty h |w|^2
        microbatch: record gradients held in memory at once, for models that need them one by one
        noise_schedule: how the noise multiplier changes over the rounds; each round is accounted with its own
        clip_schedule: how the clip norm changes over the rounds; the noise scales with it
        secure: secure aggregation: uploads are masked, and only their sum is seen
        server: server optimizer, which applies the aggregated update (Reddi et al. 2021)
        server_learning_rate: learning rate of the server
        average: mean of the rounds' models that is returned as the final model; costs no privacy, training ignores it
    """

    cohort_size: Required[int | None]
    cohort: Annotated[CohortSlot, _slot("cohort", "uniform")]
    dropout: Annotated[float, about("", value=0.0)]
    first: Annotated[int | None, about("", value=None)]
    estimator: Annotated[EstimatorSlot, _slot("estimator", "wor_delta")]
    batch_size: Required[int | None]
    batches: Annotated[BatchesSlot, _slot("batches", "without-replacement")]
    local_steps: Required[int]
    learning_rate: Required[float]
    schedule: Annotated[ScheduleSlot, _slot("schedule", "constant")]
    per_step: Annotated[bool, about("", value=False)]
    local_rule: Annotated[RuleSlot, _slot("local_rule", "sgd")]
    l2: Annotated[float, about("", value=0.0)]
    microbatch: Annotated[int | None, about("", value=None)]
    noise_schedule: Annotated[ChangeSlot, _slot("noise_schedule", "constant", "privacy")]
    clip_schedule: Annotated[ChangeSlot, _slot("clip_schedule", "constant", "privacy")]
    secure: Annotated[SecureSlot, _slot("secure", False, "privacy")]
    server: Annotated[ServerSlot, _slot("server", "sgd", "server")]
    server_learning_rate: Annotated[
        float | None, about("", value=None, group="server", default="1.0, or 0.01 of " + ", ".join(ADAPTIVE))
    ]
    average: Annotated[AverageSlot, _slot("average", "none", "server")]


COMMON = of_class(Common)
SLOT_OF = {number: slot for slot in CHOICES for number in numbers_of(slot)}  # the slot that each number belongs to


def with_numbers(keywords: Options) -> Options:
    """All options of a run: those of an entry and, after each slot, the numbers of the parts that it can name."""
    result: Options = {}
    for name, option in keywords.items():
        result[name] = option
        if option.about.part:
            result |= {key: one for key, one in numbers_of(name, option.about.group).items() if key not in keywords}
    return result


RUN_OPTIONS = with_numbers(COMMON)


def _of_slots(*slots: str) -> tuple[str, ...]:
    """The options that determine the parts in these slots."""
    sizes = tuple(size for slot in slots if (size := CHOICES[slot].size))
    return (*slots, *sizes, *(number for number, slot in SLOT_OF.items() if slot in slots))


OF_COHORT = _of_slots("cohort")
OF_SERVER = _of_slots("server", "average")
AVERAGING = _of_slots("average")
CHANGING = _of_slots("noise_schedule", "clip_schedule")  # only for entries that add noise
ClipNorm = Annotated[float, about("clipping norm C: L2 bound on one record's gradient", group="privacy")]
ClientClipNorm = Annotated[float, about("clipping norm S: L2 bound on a client's update", group="privacy")]
NoiseMultiplier = Annotated[
    Noise,
    about(
        "standard deviation of the noise on a sum of clipped gradients, divided by clip_norm; instead of --epsilon",
        group="privacy",
        default="from epsilon",
    ),
]
ClientNoiseMultiplier = Annotated[
    float,
    about(
        "standard deviation of the noise on the sum of clipped updates, divided by clip_norm; instead of --epsilon",
        group="privacy",
        default="from epsilon",
    ),
]


def assemble(
    common: Mapping[str, Any],
    *,
    cohort: "parts.Cohort | None" = None,
    privatizer: "parts.Privatizer | None" = None,
    corrections: "tuple[parts.Correction, ...]" = (),
    models: "parts.ClientModels | None" = None,
    aggregate: "parts.Aggregate | None" = None,
    server: "parts.ServerOptimizer | None" = None,
    of_server: "Callable[[parts.Server, Mapping[str, Any]], parts.Server] | None" = None,
    upload: "parts.UpdatePrivatizer | None" = None,
    drawn: Mapping[str, Any] | None = None,
) -> "Algorithm":
    """An algorithm from the common options and the parts that are special to it.

    common     options of a run by name, which may include numbers of parts;
    cohort     samples the clients; the options `first` and `dropout` decide which of them answer;
    of_server  builds the server from the one that the options choose, and from the learning rate schedule;
    drawn      fields of a cohort that samples by `probabilities`.
    """
    from fedjax_dp.pytrees import replace  # loads JAX
    from fedjax_dp.rounds.algorithm import Algorithm

    options = fill_defaults(common)
    require(RUN_OPTIONS | own_numbers(options), options, common, "every algorithm")
    if not isinstance(corrections, tuple | list):
        raise errors.refuse(
            "corrections", validation.describe(corrections), "a tuple of parts", "put it into one: (part,)"
        )
    slots = {"cohort": (cohort, OF_COHORT), "aggregate": (aggregate, ("estimator",)), "server": (server, OF_SERVER)}
    for slot, (part, names) in slots.items():
        for name in names:
            if part is not None and common.get(name) is not None:
                raise errors.refuse(name, common[name], f"left out for an entry with its own {slot}")
    for slot in ("cohort", "batches"):
        _require_size(slot, options)
    cohort = _cohort_of(options, drawn or {}) if cohort is None else cohort
    if options["first"] is not None:
        cohort = parts.FirstResponders(cohort=cohort, size=options["first"])
    if np.any(np.asarray(options["dropout"]) != 0):
        cohort = parts.Dropout(cohort=cohort, rate=options["dropout"])
    if options["microbatch"] is not None:
        errors.require_count("microbatch", options["microbatch"])
        bound = getattr(privatizer, "bound", None)
        if not hasattr(bound, "microbatch"):
            raise errors.refuse("microbatch", options["microbatch"], "left out where no record is clipped", "drop it")
        privatizer = replace(privatizer, bound=parts.ClipRecords(microbatch=options["microbatch"]))
    noise, clip = (part_of(slot, options) for slot in ("noise_schedule", "clip_schedule"))
    if noise or clip:
        adds_noise: Any = privatizer if upload is None else upload
        if not hasattr(adds_noise, "noise_by_round"):
            name = "noise_schedule" if noise else "clip_schedule"
            wanted = "constant unless Gaussian noise is added whose clip norm is not learnt"
            raise errors.refuse(name, options[name], wanted, f"drop it with {type(adds_noise).__name__}")
        adds_noise = replace(adds_noise, noise_by_round=noise, clip_by_round=clip)
        privatizer, upload = (adds_noise, None) if upload is None else (privatizer, adds_noise)
    rates = part_of("schedule", options)
    schedule = {"schedule": rates.factor, "timing": rates.numbers}
    if server is None:
        chosen: Any = part_of("server", options)
        server = chosen if of_server is None else of_server(chosen, schedule)
        if (mean := part_of("average", options)) is not None:
            server = parts.AveragedServer(base=server, weight=mean.weight, numbers=mean.numbers)
    steps: dict[str, Any] = {
        "learning_rate": options["learning_rate"],
        "privatizer": parts.NonPrivate() if privatizer is None else privatizer,
        "batches": part_of("batches", options),
        "corrections": (*corrections, parts.L2Penalty(strength=options["l2"])),
        "rule": part_of("local_rule", options),
        "steps": options["local_steps"],
        "per_step": options["per_step"],
        **schedule,
    }
    return Algorithm(
        cohort=cohort,
        local=parts.LocalSgd(**steps) if models is None else parts.PersonalSgd(**steps, models=models),
        upload=parts.PlainUpload() if upload is None else upload,
        aggregate=part_of("estimator", options) if aggregate is None else aggregate,
        transport=part_of("secure", options),
        server=server,
    )


def fill_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run with the usual values of those that are left out."""
    return {name: one.default for name, one in RUN_OPTIONS.items() if one.default is not REQUIRED} | dict(options)


def _require_size(slot: str, options: Mapping[str, Any]) -> None:
    """Refuse a size for a choice that determines its own, and batches without the size that they need."""
    name, what = str(CHOICES[slot].size), options[slot]
    size, needs_size = options[name], takes_size(slot, what)
    if size is not None and not needs_size and not is_part(what):
        raise errors.refuse(name, size, f"left out with {slot} {what}, which determines it", "drop it")
    if size is None and needs_size and slot == "batches":
        raise errors.refuse(name, size, f"a number for batches {what}", "or use batches full")


def _cohort_of(options: Mapping[str, Any], drawn: Mapping[str, Any]) -> "parts.Cohort":
    """The cohort that the options choose; all clients if there is no size. `drawn`: as in `assemble`."""
    from fedjax_dp.pytrees import replace  # loads JAX

    everyone = options["cohort_size"] is None and takes_size("cohort", options["cohort"])
    cohort: Any = parts.AllClients() if everyone else part_of("cohort", options)
    takes_probabilities = hasattr(cohort, "probabilities")
    if drawn.get("probabilities") is not None and not takes_probabilities:
        raise errors.refuse("cohort", options["cohort"], "md with a cohort_size for given probabilities")
    return replace(cohort, **drawn) if takes_probabilities and drawn else cohort


def server_presets(known: Mapping[str, Any]) -> dict[str, Any]:
    """The data set's learning rate for adaptive servers, where it has one."""
    fits = known.get("server") in ADAPTIVE and "adaptive_learning_rate" in known
    return {"server_learning_rate": known["adaptive_learning_rate"]} if fits else {}


def bound_of(clipping: str, gradient_bound: float | None = None) -> "parts.Bound":
    return BOUNDS[clipping](gradient_bound)
