"""What all entries share: their common options, and how options become the slots of an `Algorithm`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

import numpy as np

from fedjax_dp import errors, parts, validation
from fedjax_dp.options import REQUIRED, About, about, of_class, require

if TYPE_CHECKING:
    import jax

    from fedjax_dp.rounds.algorithm import Algorithm

    Noise = float | np.ndarray | jax.Array
else:
    Noise = float | np.ndarray  # of JAX, which signatures do without, every array is one

# Names of tables which load JAX.
ESTIMATORS = ("full", "wor_delta", "wor_model", "biased", "renorm", "precision", "mean", "median", "trimmed_mean")
LOCAL_RULES = ("sgd", "momentum", "rmsprop", "adam", "adam_bc", "adamw", "adamw_bc")
SCHEDULES = ("constant", "inverse_sqrt", "inverse", "cosine", "step", "warm_up", "warm_up_cosine")

CHANGES = ("linear", "cosine", "step", "list")  # of noise multiplier and clip norm over rounds
MOVES = CHANGES[:3]

ADAPTIVE = ("adam", "yogi", "adagrad")  # servers
SERVERS = ("sgd", *ADAPTIVE)
AVERAGES = ("exponential", "polyak", "polynomial")  # of the models of rounds
LAST = ("drop", "keep")  # of a pass, with epochs
RATES = ("size", "opacus")  # of Poisson batches

BATCHES: dict[str, Callable[..., "parts.Batches"]] = {
    "without-replacement": lambda size, **rest: parts.FixedBatches(size=size),
    "with-replacement": lambda size, **rest: parts.ReplacementBatches(size=size),
    "poisson": lambda size, rate="size", **rest: parts.PoissonBatches(size=size, rate=rate),
    "full": lambda size, **rest: parts.FullBatches(),
    "epochs": lambda size, last, **rest: parts.EpochBatches(size=size, last=last),
    "allocated": lambda size, **rest: parts.AllocatedBatches(size=size),
    "bins": lambda size, **rest: parts.AllocatedBatches(size=size, kept=True),
}

COHORTS: dict[str, Callable[..., "parts.Cohort"]] = {
    "uniform": lambda size, options: parts.UniformCohort(size=size),
    "poisson": lambda size, options: parts.PoissonCohort(size=size),
    "truncated": lambda size, options: parts.TruncatedPoissonCohort(size=size, most=_given(options, "cohort_most")),
    "md": lambda size, options: parts.MultinomialCohort(
        draws=size, one_by_one=options["one_by_one"], **options["drawn"]
    ),
    "cyclic": lambda size, options: parts.CyclicCohort(size=size),
    "cyclic-poisson": lambda size, options: parts.CyclicPoissonCohort(
        size=size, pass_rounds=_given(options, "pass_rounds")
    ),
    "separated": lambda size, options: parts.SeparatedCohort(size=size, separation=_given(options, "separation")),
    "allocation": lambda size, options: parts.AllocatedCohort(
        pass_rounds=_given(options, "pass_rounds"), chosen=options["chosen"]
    ),
    "bins": lambda size, options: parts.BinnedCohort(pass_rounds=_given(options, "pass_rounds")),
    "log": lambda size, options: _logged(_given(options, "participation_log")),
}
SIZED_BY = {  # of cohorts without a cohort_size: what says how many take part
    "log": "a participation log, which says who takes part",
    "allocation": "pass_rounds and chosen, of which their number follows",
    "bins": "pass_rounds, of which their number follows",
}

BOUNDS: dict[str, Callable[[Any], "parts.Bound"]] = {
    "record": lambda gradient_bound: parts.ClipRecords(),
    "batch": lambda gradient_bound: parts.ClipBatch(),
    "scale": lambda gradient_bound: parts.ScaleGradients(gradient_bound=gradient_bound),
    "none": lambda gradient_bound: parts.Unbounded(),
    "tensor-median": lambda gradient_bound: parts.ClipTensorsAtMedian(),
}


STATEFUL = ("momentum", "rmsprop", "adam", "adam_bc", "adamw", "adamw_bc")  # local rules
MOMENTS = ("adam", "adam_bc", "adamw", "adamw_bc")


def of_rules(*rules: str, default: str) -> About:
    """A number of some local rules, with its defaults in words."""
    return about("", value=None, beside={"local_rule": rules}, default=default)


def _of_change(schedule: str, *changes: str, value: Any = None) -> About:
    """A number of some changes over rounds."""
    return about("", value=value, beside={schedule: changes or MOVES}, group="privacy")


class Common(TypedDict, total=False):
    """Options that every entry takes.

    Args:
        cohort_size: clients per round, or their expected number; num_clients, or from Python None, is all of them
        cohort: how they are drawn; md draws by shares with replacement; allocation, bins and cyclic-poisson: by passes
            of rounds; separated: with a rest between two rounds of a client; truncated: Poisson, cut; log: not at all,
            participation_log says them
        pass_rounds: rounds of a pass: a client is in chosen ones of each (allocation), in one that stays (bins), or
            may be in one that its id says (cyclic-poisson)
        chosen: rounds of a pass that a client is in
        separation: rounds from one that a client is in to its next, at least
        cohort_most: clients that stay where more join
        participation_log: who takes part when, instead of cohort_size: a CSV of round,client, both from 0
        one_by_one: a client drawn m times trains m times instead of once
        dropout: probability that a client's message does not arrive
        first: wait for so many of the cohort only
        estimator: how updates combine
        trim: fraction of the updates left out at either end, in each coordinate
        batches: how a step's records are drawn; full takes all, with epochs, allocated and bins local steps are epochs
        batch_size: records B per local step; a client with fewer is in every step with all of them
        last: the rest of a pass, fewer than a batch
        poisson_rate: chance of a record: size is B / n_k, at most 1; opacus is 1 / ceil(n_k / B)
        local_steps: local steps tau per round
        learning_rate: of the local steps
        schedule: of the learning rate over rounds
        decay_rounds: after which a cosine would be 0
        warm_up_rounds: in which the rate grows to its own
        decay_every: rounds between the falls of schedule step
        decay_factor: of each fall
        per_step: the schedule runs over local steps, not rounds
        local_rule: how a gradient becomes a step
        local_decay: of momentum or rmsprop
        local_b1: decay of the first moment
        local_b2: decay of the second moment
        local_eps: added to the root of the second moment
        local_floor: least second moment once the noise's is taken off; a tiny one makes huge steps
        local_weight_decay: lambda: a step also takes rate * lambda of the model off it
        keep_rule: the rule's state stays with its client across rounds
        l2: h in the penalty h |w|^2
        microbatch: records whose gradients are built at once where a model needs that; bounds memory
        noise_schedule: of the noise multiplier over rounds, which is that of the first; each is counted with its own
        noise_end: factor that it ends with
        noise_rounds: by which it does
        noise_stages: of equal noise on the way, at most
        noise_factors: of the rounds, with commas between, from 1; the last one stays
        clip_schedule: of the clip norm, likewise; the noise follows it
        clip_end: factor that it ends with
        clip_rounds: by which it does
        clip_stages: of equal clip norm on the way, at most
        clip_factors: of the rounds, with commas between, from 1; the last one stays
        secure: messages travel masked and only their sum is seen
        ring_bits: of the secure sum's integers: 32 or 64
        fractional_bits: of the secure sum's fixed point
        neighbours: clients that each shares a mask with; all unless given
        server: how the server moves by the aggregated update (Reddi et al. 2021)
        server_learning_rate: of the server's step
        momentum: of the server: v <- momentum v + update
        b1: decay of the server's first moment
        b2: decay of its second moment
        pi: added to the root of its second moment (tau of Reddi et al. 2021)
        average: the final model is this mean of the models of rounds, at no cost of privacy; clients go on without it
        average_decay: model t - k weighs in proportion to its k-th power; 0 is the last model alone
        average_from: round from whose model on all weigh alike; 0: all
        average_power: model t weighs about t to this power; 0: all alike
    """

    cohort_size: Required[int | None]
    cohort: Annotated[str, about("", value="uniform", choices=COHORTS)]
    participation_log: Annotated[str | None, about("", value=None, beside={"cohort": "log"}, metavar="FILE")]
    one_by_one: Annotated[bool, about("", value=False, beside={"cohort": "md"})]
    pass_rounds: Annotated[
        int | None, about("", value=None, beside={"cohort": ("allocation", "bins", "cyclic-poisson")})
    ]
    chosen: Annotated[int, about("", value=1, beside={"cohort": "allocation"})]
    separation: Annotated[int | None, about("", value=None, beside={"cohort": "separated"})]
    cohort_most: Annotated[int | None, about("", value=None, beside={"cohort": "truncated"})]
    dropout: Annotated[float, about("", value=0.0)]
    first: Annotated[int | None, about("", value=None)]
    estimator: Annotated[str, about("", value="wor_delta", choices=ESTIMATORS)]
    trim: Annotated[float, about("", value=0.1, beside={"estimator": "trimmed_mean"})]
    batch_size: Required[int | None]
    batches: Annotated[str, about("", value="without-replacement", choices=BATCHES)]
    last: Annotated[str, about("", value="drop", choices=LAST, beside={"batches": "epochs"})]
    poisson_rate: Annotated[str, about("", value="size", choices=RATES, beside={"batches": "poisson"})]
    local_steps: Required[int]
    learning_rate: Required[float]
    schedule: Annotated[str, about("", value="constant", choices=SCHEDULES)]
    decay_rounds: Annotated[int | None, about("", value=None, beside={"schedule": ("cosine", "warm_up_cosine")})]
    warm_up_rounds: Annotated[int | None, about("", value=None, beside={"schedule": ("warm_up", "warm_up_cosine")})]
    decay_every: Annotated[int | None, about("", value=None, beside={"schedule": "step"})]
    decay_factor: Annotated[float | None, about("", value=None, beside={"schedule": "step"}, default="0.1")]
    per_step: Annotated[bool, about("", value=False)]
    local_rule: Annotated[str, about("", value="sgd", choices=LOCAL_RULES)]
    local_decay: Annotated[float | None, of_rules("momentum", "rmsprop", default="0.9 or 0.99")]
    local_b1: Annotated[float | None, of_rules(*MOMENTS, default="0.9")]
    local_b2: Annotated[float | None, of_rules(*MOMENTS, default="0.999")]
    local_eps: Annotated[float | None, of_rules("rmsprop", "adam", "adamw", default="1e-08")]
    local_floor: Annotated[float | None, of_rules("adam_bc", "adamw_bc", default="1e-05")]
    local_weight_decay: Annotated[float | None, of_rules("adamw", "adamw_bc", default="0.01")]
    keep_rule: Annotated[bool, about("", value=False, beside={"local_rule": STATEFUL})]
    l2: Annotated[float, about("", value=0.0)]
    microbatch: Annotated[int | None, about("", value=None)]
    noise_schedule: Annotated[str, about("", value="constant", choices=("constant", *CHANGES), group="privacy")]
    noise_end: Annotated[float | None, _of_change("noise_schedule")]
    noise_rounds: Annotated[int | None, _of_change("noise_schedule")]
    noise_stages: Annotated[int, _of_change("noise_schedule", value=10)]
    noise_factors: Annotated[str | None, _of_change("noise_schedule", "list")]
    clip_schedule: Annotated[str, about("", value="constant", choices=("constant", *CHANGES), group="privacy")]
    clip_end: Annotated[float | None, _of_change("clip_schedule")]
    clip_rounds: Annotated[int | None, _of_change("clip_schedule")]
    clip_stages: Annotated[int, _of_change("clip_schedule", value=10)]
    clip_factors: Annotated[str | None, _of_change("clip_schedule", "list")]
    secure: Annotated[bool, about("", value=False, group="privacy")]
    ring_bits: Annotated[int, about("", value=32, group="privacy", beside={"secure": True})]
    fractional_bits: Annotated[int, about("", value=16, group="privacy", beside={"secure": True})]
    neighbours: Annotated[int | None, about("", value=None, group="privacy", beside={"secure": True})]
    server: Annotated[str, about("", value="sgd", choices=SERVERS, group="server")]
    server_learning_rate: Annotated[
        float | None, about("", value=None, group="server", default="1.0, or 0.01 of " + ", ".join(ADAPTIVE))
    ]
    momentum: Annotated[float | None, about("", value=None, group="server", beside={"server": "sgd"}, default="none")]
    b1: Annotated[float, about("", value=0.9, group="server", beside={"server": ADAPTIVE})]
    b2: Annotated[float, about("", value=0.99, group="server", beside={"server": ADAPTIVE[:2]})]
    pi: Annotated[float, about("", value=1e-3, group="server", beside={"server": ADAPTIVE})]
    average: Annotated[str, about("", value="none", choices=("none", *AVERAGES), group="server")]
    average_decay: Annotated[float, about("", value=0.9, group="server", beside={"average": "exponential"})]
    average_from: Annotated[int, about("", value=0, group="server", beside={"average": "polyak"})]
    average_power: Annotated[float, about("", value=8.0, group="server", beside={"average": "polynomial"})]


COMMON = of_class(Common)
OF_SERVER = tuple(name for name, option in COMMON.items() if option.about.group == "server")
CHANGING = tuple(name for name in COMMON if name.startswith(("noise_", "clip_")))  # of entries that add noise
OF_COHORT = ("cohort_size", "cohort", *(name for name, option in COMMON.items() if "cohort" in option.about.beside))
AVERAGING = tuple(name for name in OF_SERVER if name.startswith("average"))
ClipNorm = Annotated[float, about("C, L2 bound on one record's gradient", group="privacy")]
ClientClipNorm = Annotated[float, about("C, L2 bound on a client's update", group="privacy")]
NoiseMultiplier = Annotated[
    Noise,
    about(
        "standard deviation of the noise on a sum of clipped gradients, over the clip norm; instead of --epsilon",
        group="privacy",
        default="from epsilon",
    ),
]
ClientNoiseMultiplier = Annotated[
    float,
    about(
        "standard deviation of the noise on the sum of clipped updates, over the clip norm; instead of --epsilon",
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
    """An algorithm from common options and the parts that are special.

    cohort     who is drawn; the options `first` and `dropout` decide who of these answers.
    of_server  makes the server of the one that options say, and of the schedule of rates and its numbers.
    """
    from fedjax_dp.pytrees import changed  # loads JAX
    from fedjax_dp.rounds.algorithm import Algorithm
    from fedjax_dp.schedules import SCHEDULES

    defaults = {name: option.default for name, option in COMMON.items() if option.default is not REQUIRED}
    options: dict[str, Any] = {**defaults, **common}
    require(COMMON, options, common, "every algorithm")
    if not isinstance(corrections, tuple | list):
        raise errors.refuse(
            "corrections", validation.described(corrections), "a tuple of parts", "put it into one: (part,)"
        )
    slots = {"cohort": (cohort, OF_COHORT), "aggregate": (aggregate, ("estimator",)), "server": (server, OF_SERVER)}
    for slot, (part, names) in slots.items():
        for name in names:
            if part is not None and common.get(name) is not None:
                raise errors.refuse(name, common[name], f"left out for an entry with its own {slot}")
    combined = parts.ESTIMATORS[options["estimator"]]
    if options["estimator"] == "trimmed_mean":
        combined = changed(combined, trim=options["trim"])
    batch_size, batches = options["batch_size"], options["batches"]
    if (batch_size is None) != (batches == "full"):
        raise errors.refuse("batch_size", batch_size, "None for batches full, else a number", f"batches are {batches}")
    size = options["cohort_size"]
    if drawn and drawn.get("probabilities") is not None and (size is None or options["cohort"] != "md"):
        raise errors.refuse("cohort", options["cohort"], "md with a cohort_size for given probabilities")
    if options["cohort"] in SIZED_BY and size is not None:
        raise errors.refuse("cohort_size", size, f"None beside {SIZED_BY[options['cohort']]}")
    if cohort is None and (size is not None or options["cohort"] in SIZED_BY):
        cohort = COHORTS[options["cohort"]](size, options | {"drawn": drawn or {}})
    cohort = parts.AllClients() if cohort is None else cohort
    if options["first"] is not None:
        cohort = parts.FirstResponders(cohort=cohort, size=options["first"])
    if np.any(np.asarray(options["dropout"]) != 0):
        cohort = parts.Dropout(cohort=cohort, rate=options["dropout"])
    rule = parts.LOCAL_RULES[options["local_rule"]]
    numbers = {name: options[f"local_{name}"] for name in rule.hyperparameters}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    if options["microbatch"] is not None:
        errors.require_count("microbatch", options["microbatch"])
        bound = getattr(privatizer, "bound", None)
        if not hasattr(bound, "microbatch"):
            raise errors.refuse("microbatch", options["microbatch"], "left out where no record is clipped", "drop it")
        privatizer = changed(privatizer, bound=parts.ClipRecords(microbatch=options["microbatch"]))
    noise, clip = (_by_round(what, options) for what in ("noise", "clip"))
    if noise or clip:
        noised: Any = privatizer if upload is None else upload
        if not hasattr(noised, "noise_by_round"):
            name = "noise_schedule" if noise else "clip_schedule"
            wanted = "constant unless Gaussian noise is added whose clip norm is not learnt"
            raise errors.refuse(name, options[name], wanted, f"drop it beside {type(noised).__name__}")
        noised = changed(noised, noise_by_round=noise, clip_by_round=clip)
        privatizer, upload = (noised, None) if upload is None else (privatizer, noised)
    schedule = {"schedule": SCHEDULES[options["schedule"]], "timing": _timing(options)}
    if server is None:
        moves = _server_of(**{name: options[name] for name in OF_SERVER if name not in AVERAGING})
        moves = moves if of_server is None else of_server(moves, schedule)
        server = _averaged(moves, **{name: options[name] for name in AVERAGING})
    ring = {"bits": options["ring_bits"]} | {name: options[name] for name in ("fractional_bits", "neighbours")}
    steps: dict[str, Any] = {
        "learning_rate": options["learning_rate"],
        "privatizer": parts.NonPrivate() if privatizer is None else privatizer,
        "batches": BATCHES[batches](batch_size, last=options["last"], rate=options["poisson_rate"]),
        "corrections": (*corrections, parts.L2Penalty(strength=options["l2"])),
        "rule": changed(rule, hyperparameters=rule.hyperparameters | numbers, keep=options["keep_rule"]),
        "steps": options["local_steps"],
        "per_step": options["per_step"],
        **schedule,
    }
    return Algorithm(
        cohort=cohort,
        local=parts.LocalSgd(**steps) if models is None else parts.PersonalSgd(**steps, models=models),
        upload=parts.PlainUpload() if upload is None else upload,
        aggregate=combined if aggregate is None else aggregate,
        transport=parts.SecureSum(**ring) if options["secure"] else parts.PlainSum(),
        server=server,
    )


def _given(options: Mapping[str, Any], name: str) -> Any:
    return errors.require_given(name, options[name], f"cohort {options['cohort']} is drawn by it")


def _logged(file: str) -> "parts.Cohort":
    from fedjax_dp.accounting import ParticipationLog  # loads SciPy

    return parts.LoggedCohort.of(ParticipationLog.read(file))


def _by_round(what: str, options: Mapping[str, Any]) -> "parts.ByRound | None":
    """The change of noise or clip norm over rounds."""
    from fedjax_dp.schedules import CHANGES  # loads JAX

    name = options[f"{what}_schedule"]
    if name == "constant":
        return None
    words = {"end": "a factor", "rounds": "a number of rounds", "stages": "a number", "factors": "numbers"}
    taken = ("factors",) if name == "list" else ("end", "rounds", "stages")
    for number in taken:
        if options[f"{what}_{number}"] is None:
            raise errors.refuse(f"{what}_{number}", "nothing", f"{words[number]} for {what}_schedule {name}")
    numbers: dict[str, Any] = {number: options[f"{what}_{number}"] for number in taken}
    if name == "list":
        numbers["factors"] = _numbers(f"{what}_factors", numbers["factors"])
    return parts.ByRound(change=CHANGES[name], numbers=numbers)


def _numbers(what: str, text: str) -> np.ndarray:
    try:
        return np.array([float(word) for word in text.split(",")], np.float32)
    except ValueError:
        raise errors.refuse(what, repr(text), "numbers with commas between", "such as 1,0.8,0.5") from None


def _averaged(server: "parts.ServerOptimizer", average: str, **numbers: Any) -> "parts.ServerOptimizer":
    """With the mean of that name, which has the number that goes with it."""
    if average == "none":
        return server
    of_mean = {name: number for name, number in numbers.items() if COMMON[name].about.beside["average"] == average}
    return parts.AveragedServer(base=server, weight=parts.AVERAGES[average], numbers=of_mean)


TIMING = {  # numbers of schedules that have some
    "cosine": ("decay_rounds",),
    "step": ("decay_every", "decay_factor"),
    "warm_up": ("warm_up_rounds",),
    "warm_up_cosine": ("warm_up_rounds", "decay_rounds"),
}


def _timing(options: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"decay_factor": 0.1}
    numbers = {name: options[name] for name in TIMING.get(options["schedule"], ())}
    numbers = {name: defaults.get(name) if number is None else number for name, number in numbers.items()}
    for name, number in numbers.items():
        if number is None:
            raise errors.refuse(name, "nothing", f"a number of rounds for schedule {options['schedule']}")
    return numbers


def _server_of(
    server: str, server_learning_rate: float | None, momentum: float | None, b1: float, b2: float, pi: float
) -> "parts.Server":
    """The server of that name: w <- w + rate (update), or by v <- momentum v + update, or by Reddi et al. 2021."""
    if server in ADAPTIVE:
        factories = {"adam": parts.adaptive_delta, "yogi": parts.adaptive_yogi, "adagrad": parts.adaptive_adagrad}
        rate = 0.01 if server_learning_rate is None else server_learning_rate
        numbers = {"learning_rate": rate, "b1": b1, "b2": b2, "pi": pi}
        return parts.Server(hyperparameters=numbers, factory=factories[server])
    import optax  # loads JAX

    numbers = {"learning_rate": 1.0 if server_learning_rate is None else server_learning_rate}
    numbers |= {} if momentum is None else {"momentum": momentum}
    return parts.Server(hyperparameters=numbers, factory=optax.sgd)


def brought_to_server(known: Mapping[str, Any]) -> dict[str, Any]:
    """The data set's rate for servers whose steps are of the rate's own size, where it has one."""
    fits = known.get("server") in ADAPTIVE and "adaptive_learning_rate" in known
    return {"server_learning_rate": known["adaptive_learning_rate"]} if fits else {}


def bound_of(clipping: str, gradient_bound: float | None = None) -> "parts.Bound":
    return BOUNDS[clipping](gradient_bound)
