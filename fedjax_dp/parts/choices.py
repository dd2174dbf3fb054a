"""Names of parts for the slots of an algorithm, and the numbers of each part as options of a run. No JAX here.

A slot takes a part or the name of one. The numbers of a named part are options on the command line and in files; its
row in this module is the only list of them. The numbers of a user-defined part, `FILE.py:NAME`, are the fields of a
class decorated with `fedjax_dp.value`, or the keyword arguments of a function.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_dp import errors, options, own_code, validation
from fedjax_dp.options import REQUIRED, Option, Options, about, is_part


@dataclasses.dataclass(frozen=True)
class Choice:
    """A part that has a name.

    part     its constructor, or a table of parts: a name in `fedjax_dp.parts`, which loads JAX, or a function; "": no
             part;
    called   its name in the table, or the first argument of the constructor;
    size     the field that takes a size of the entry, such as cohort_size; None: its numbers determine the size;
    numbers  its options, by field;
    always   the values of its other fields.
    """

    part: str | Callable[..., Any] = ""
    called: str | None = None
    size: str | None = None
    numbers: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make(self, what: str, values: Mapping[str, Any], size: Any = None) -> Any:
        """The part with these options by name; None leaves a field at the part's default."""
        if not self.part:
            return None
        fields = dict(self.always) | ({self.size: size} if self.size and size is not None else {})
        for field, option in self.numbers.items():
            number = values.get(option.name)
            if number is None and option.default is REQUIRED:
                raise errors.refuse(option.name, "nothing", f"given for {what}")
            if number is not None:
                fields[field] = number
        constructor = self.home
        if isinstance(constructor, Mapping):
            return constructor[self.called]
        try:
            return constructor(*filter(None, [self.called]), **fields)
        except errors.ConfigurationError as error:
            owner = self.numbers.get(error.what or "")
            raise error if owner is None else errors.rename(error, owner.name) from error

    @property
    def home(self) -> Any:
        if not isinstance(self.part, str):
            return self.part
        from fedjax_dp import parts  # its classes load JAX

        return functools.reduce(getattr, self.part.split("."), parts)

    def call(self, *names: str) -> str:
        """The Python call that makes it with these options and those that it requires."""
        words = [repr(self.called)] if self.called else []
        words += [f"{self.size}=..."] if self.size and not self.called else []
        words += [f"{field}=..." for field, one in self.numbers.items() if one.name in names or one.default is REQUIRED]
        name = self.part if isinstance(self.part, str) else self.part.__name__
        return f"fdp.parts.{name}({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Slot:
    """What a slot holds: a part of a `kind`, a name in `fedjax_dp.parts`, or one of the `choices`.

    size  the common option that sets the size of the choice.
    """

    kind: str
    choices: Mapping[Any, Choice]
    size: str | None = None


def number(
    name: str, hint: Any, text: str, default: Any = REQUIRED, *, words: str | None = None, **more: Any
) -> Option:
    """An option of a part; a default of None means the part's own default, which `words` describe."""
    return Option(name, hint, default, about(text, default=words, **more))


_MOST = number("cohort_most", int, "maximum number of clients in a round")
_ONE_BY_ONE = number("one_by_one", bool, "train a client that is drawn m times m times instead of once", False)
_SEPARATION = number("separation", int, "minimum number of rounds from one participation of a client to its next")
_CHOSEN = number("chosen", int, "number of rounds of each pass that a client is in", 1)
_PASS = number(
    "pass_rounds",
    int,
    "rounds per pass; in each pass a client is in `chosen` rounds (allocation), always in the same round (bins), or "
    "possibly in the round of its id (cyclic-poisson)",
)
_LOG = number(
    "participation_log",
    str,
    "CSV of round,client, both counted from 0: who takes part in each round, instead of cohort_size",
    metavar="FILE",
)
COHORTS: dict[str, Choice] = {
    "uniform": Choice("UniformCohort", size="size"),
    "poisson": Choice("PoissonCohort", size="size"),
    "truncated": Choice("TruncatedPoissonCohort", size="size", numbers={"most": _MOST}),
    "md": Choice("MultinomialCohort", size="draws", numbers={"one_by_one": _ONE_BY_ONE}),
    "cyclic": Choice("CyclicCohort", size="size"),
    "cyclic-poisson": Choice("CyclicPoissonCohort", size="size", numbers={"pass_rounds": _PASS}),
    "separated": Choice("SeparatedCohort", size="size", numbers={"separation": _SEPARATION}),
    "allocation": Choice("AllocatedCohort", numbers={"pass_rounds": _PASS, "chosen": _CHOSEN}),
    "bins": Choice("BinnedCohort", numbers={"pass_rounds": _PASS}),
    "log": Choice("LoggedCohort.read", numbers={"file": _LOG}),
}

_RATE = number(
    "poisson_rate",
    str,
    "sampling rate of a record; size: B / n_k, at most 1; opacus: 1 / ceil(n_k / B)",
    "size",
    choices=("size", "opacus"),
)
_LAST = number("last", str, "drop or keep the last, smaller batch of a pass", "drop", choices=("drop", "keep"))
BATCHES: dict[str, Choice] = {
    "without-replacement": Choice("FixedBatches", size="size"),
    "with-replacement": Choice("ReplacementBatches", size="size"),
    "poisson": Choice("PoissonBatches", size="size", numbers={"rate": _RATE}),
    "full": Choice("FullBatches"),
    "epochs": Choice("EpochBatches", size="size", numbers={"last": _LAST}),
    "allocated": Choice("AllocatedBatches", size="size"),
    "bins": Choice("AllocatedBatches", size="size", always={"kept": True}),
}

_TRIM = number("trim", float, "fraction of the updates to drop at either end, in each coordinate", 0.1)
_ESTIMATORS = ("full", "wor_delta", "wor_model", "biased", "renorm", "precision", "mean", "median")
ESTIMATORS: dict[str, Choice] = {
    **{name: Choice("ESTIMATORS", name) for name in _ESTIMATORS},
    "trimmed_mean": Choice("TrimmedMean", numbers={"trim": _TRIM}),
}


def _of_rule(name: str, words: str, text: str) -> Option:
    return number(f"local_{name}", float, text, None, words=words)


_B1, _B2 = _of_rule("b1", "0.9", "decay of the first moment"), _of_rule("b2", "0.999", "decay of the second moment")
_EPS = _of_rule("eps", "1e-08", "added to the root of the second moment")
_FLOOR = _of_rule("floor", "1e-05", "minimum of the second moment without the noise's; a tiny floor makes huge steps")
_WEIGHT_DECAY = _of_rule("weight_decay", "0.01", "lambda: a step also subtracts rate * lambda times the model")
_DECAY = "decay of the momentum, or of the mean square in rmsprop"
_KEEP = number("keep_rule", bool, "keep the state of a client's local optimizer across rounds", False)


def _rule(name: str, **numbers: Option) -> Choice:
    return Choice("LocalRule.of", name, numbers=numbers | {"keep": _KEEP})


LOCAL_RULES: dict[str, Choice] = {
    "sgd": Choice("LocalRule.of", "sgd"),
    "momentum": _rule("momentum", decay=_of_rule("decay", "0.9", _DECAY)),
    "rmsprop": _rule("rmsprop", decay=_of_rule("decay", "0.99", _DECAY), eps=_EPS),
    "adam": _rule("adam", b1=_B1, b2=_B2, eps=_EPS),
    "adam_bc": _rule("adam_bc", b1=_B1, b2=_B2, floor=_FLOOR),
    "adamw": _rule("adamw", b1=_B1, b2=_B2, eps=_EPS, weight_decay=_WEIGHT_DECAY),
    "adamw_bc": _rule("adamw_bc", b1=_B1, b2=_B2, floor=_FLOOR, weight_decay=_WEIGHT_DECAY),
}


def _schedule(name: str, *numbers: Option) -> Choice:
    return Choice("RateSchedule.of", name, numbers={one.name: one for one in numbers})


_DECAY_ROUNDS = number("decay_rounds", int, "round in which a cosine schedule reaches 0", whole_run=True)
_WARM_UP_ROUNDS = number("warm_up_rounds", int, "rounds until the learning rate reaches its full value")
SCHEDULES: dict[str, Choice] = {
    **{name: _schedule(name) for name in ("constant", "inverse_sqrt", "inverse")},
    "cosine": _schedule("cosine", _DECAY_ROUNDS),
    "step": _schedule(
        "step",
        number("decay_every", int, "rounds between two drops of the learning rate in schedule step"),
        number("decay_factor", float, "factor of each drop of the learning rate", None, words="0.1"),
    ),
    "warm_up": _schedule("warm_up", _WARM_UP_ROUNDS),
    "warm_up_cosine": _schedule("warm_up_cosine", _WARM_UP_ROUNDS, _DECAY_ROUNDS),
}


def _changes(what: str, quantity: str) -> dict[str, Choice]:
    """The choices for a noise multiplier or clip norm that changes over the rounds."""
    numbers = {
        "end": number(f"{what}_end", float, f"final {quantity} as a multiple of the first"),
        "rounds": number(f"{what}_rounds", int, f"number of rounds until the final {quantity}", whole_run=True),
        "stages": number(f"{what}_stages", int, f"maximum number of stages of equal {quantity}", 10),
    }
    text = f"{quantity} of each round as a multiple of the first, starting with 1: 1,0.8,0.5; the last value stays"
    return {
        "constant": Choice(),
        **{name: Choice("ByRound.of", name, numbers=numbers) for name in ("linear", "cosine", "step")},
        "list": Choice("ByRound.of", "list", numbers={"factors": number(f"{what}_factors", str, text)}),
    }


NOISE_SCHEDULES, CLIP_SCHEDULES = _changes("noise", "noise multiplier"), _changes("clip", "clip norm")

_SECURE_SUM = {
    "bits": number("ring_bits", int, "bits of the secure sum's integers: 32 or 64", 32),
    "fractional_bits": number("fractional_bits", int, "fractional bits of the secure sum's fixed point", 16),
    "neighbours": number("neighbours", int, "clients that each client shares a mask with", None, words="all"),
}
SECURE: dict[bool, Choice] = {False: Choice("PlainSum"), True: Choice("SecureSum", numbers=_SECURE_SUM)}

_MOMENTUM = number("momentum", float, "momentum of the server: v <- momentum v + update", None, words="none")
_SERVER_B1 = number("b1", float, "decay of the server's first moment", 0.9)
_SERVER_B2 = number("b2", float, "decay of the server's second moment", 0.99)
_PI = number("pi", float, "added to the root of the server's second moment (tau of Reddi et al. 2021)", 1e-3)


def _server(name: str, **numbers: Option) -> Choice:
    return Choice("Server.of", name, size="learning_rate", numbers=numbers)


SERVERS: dict[str, Choice] = {
    "sgd": _server("sgd", momentum=_MOMENTUM),
    "adam": _server("adam", b1=_SERVER_B1, b2=_SERVER_B2, pi=_PI),
    "yogi": _server("yogi", b1=_SERVER_B1, b2=_SERVER_B2, pi=_PI),
    "adagrad": _server("adagrad", b1=_SERVER_B1, pi=_PI),
}


_AVERAGES = {
    "exponential": number(
        "average_decay",
        float,
        "decay of the weights: model t - k has weight average_decay^k; 0: the last model alone",
        0.9,
    ),
    "polyak": number("average_from", int, "first round whose model counts in the mean; 0: all rounds", 0),
    "polynomial": number(
        "average_power", float, "power of the weights: model t has weight about t^power; 0: equal", 8.0
    ),
}
AVERAGES: dict[str, Choice] = {
    "none": Choice(),
    **{name: Choice("ModelAverage.of", name, numbers={one.name: one}) for name, one in _AVERAGES.items()},
}

CHOICES: dict[str, Slot] = {
    "cohort": Slot("Cohort", COHORTS, size="cohort_size"),
    "estimator": Slot("Aggregate", ESTIMATORS),
    "batches": Slot("Batches", BATCHES, size="batch_size"),
    "schedule": Slot("RateSchedule", SCHEDULES),
    "local_rule": Slot("Rule", LOCAL_RULES),
    "noise_schedule": Slot("ByRound", NOISE_SCHEDULES),
    "clip_schedule": Slot("ByRound", CLIP_SCHEDULES),
    "secure": Slot("Transport", SECURE),
    "server": Slot("ServerOptimizer", SERVERS, size="server_learning_rate"),
    "average": Slot("ModelAverage", AVERAGES),
}


def choice_of(slot: str, name: Any) -> Choice:
    """The meaning of a name in a slot: one of its choices, or a user-defined part, FILE.py:NAME."""
    if own_code.is_file_name(name):
        return _user_choice(slot, name)
    if not isinstance(name, bool):
        errors.require_choice(slot, name, CHOICES[slot].choices)
    return CHOICES[slot].choices[name]


def takes_size(slot: str, what: Any) -> bool:
    """Whether a part, or the part of this name, takes its size from an option of the entry."""
    return not is_part(what) and choice_of(slot, what).size is not None


def part_of(slot: str, values: Mapping[str, Any]) -> Any:
    """The part of a slot, from options by name.

    Raises: ConfigurationError in one line for a value that is not such a part.
    """
    of, what = CHOICES[slot], values[slot]
    size = None if of.size is None else values.get(of.size)
    if is_part(what):
        from fedjax_dp import parts  # its classes load JAX

        validation.require_part(slot, what, getattr(parts, of.kind))
        if size is not None:
            raise errors.refuse(str(of.size), size, f"left out with a part in slot {slot}", "drop it")
        return what
    part = choice_of(slot, what).make(f"{slot} {what}", values, size)
    return part_of(slot, {slot: part}) if own_code.is_file_name(what) else part


def is_same_choice(one: Any, other: Any) -> bool:
    """Whether two parts differ in nothing but their numbers."""
    return type(one) is type(other) and getattr(one, "factory", None) is getattr(other, "factory", None)


def numbers_of(slot: str, group: str | None = None) -> Options:
    """The numbers of all choices of a slot as options of a run, each limited to the choices that have it."""
    result: Options = {}
    for name, choice in CHOICES[slot].choices.items():
        for one in choice.numbers.values():
            words = one.about.default
            if one.name in result:
                before = result[one.name].about
                names = (*before.beside[slot], name)
                words = words if words == before.default else f"{before.default} or {words}"
            else:
                names = (name,)
            hint, default = (one.hint, one.default) if one.default not in (REQUIRED, None) else (one.hint | None, None)
            text = dataclasses.replace(one.about, beside={slot: names}, default=words, group=group)
            result[one.name] = Option(one.name, hint, default, text)
    return result


def own_numbers(values: Mapping[str, Any]) -> Options:
    """The numbers of the user-defined parts among these options, as options of a run."""
    result: Options = {}
    for slot in CHOICES:
        if own_code.is_file_name(name := values.get(slot)):
            for one in choice_of(slot, name).numbers.values():
                hint = one.hint | None if one.default is REQUIRED else one.hint
                text = dataclasses.replace(one.about, beside={slot: (name,)})
                result[one.name] = Option(one.name, hint, None if one.default is REQUIRED else one.default, text)
    return result


def _user_choice(slot: str, name: str) -> Choice:
    """The user-defined part FILE.py:NAME: a part, or a class or function that makes one, with its options."""
    part = own_code.own(slot, name)
    if not callable(part) or validation.is_value(part):
        return Choice(lambda: part)
    fields = options.of_class(part) if isinstance(part, type) else options.of_function(part)
    size = "size" if "size" in fields and CHOICES[slot].size else None
    numbers = {
        field: dataclasses.replace(one, name=one.about.named or field)
        for field, one in fields.items()
        if one.kinds and field != size
    }
    return Choice(part, size=size, numbers=numbers)


def refuse_number(slot: str, name: str, value: Any, chosen: Any) -> errors.ConfigurationError:
    """The refusal of a part's number as an option in Python; the remedy names the chosen or first part that has it."""
    owners = {
        key: choice
        for key, choice in CHOICES[slot].choices.items()
        if any(one.name == name for one in choice.numbers.values())
    }
    choice = owners[chosen] if chosen in owners else next(iter(owners.values()))
    return errors.refuse(name, value, f"a number of the part in slot {slot}", f"write {slot}={choice.call(name)}")
