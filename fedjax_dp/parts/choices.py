"""Names that slots take in the place of parts, and the numbers of each part as options of a run. No JAX here.

A slot of an entry takes a part, or a name of one. A name's own numbers are options on the command line and in files:
one row here says all of them, and what takes names reads them off here. A part of one's own, `FILE.py:NAME`, says them
itself: a class decorated with `fedjax_dp.value` by its fields, a function by its keyword arguments.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_dp import errors, options, own_code, validation
from fedjax_dp.options import REQUIRED, Option, Options, about, is_part

LAST = ("drop", "keep")  # what becomes of the rest of a pass over records
RATES = ("size", "opacus")  # of Poisson batches


@dataclasses.dataclass(frozen=True)
class Choice:
    """A part by a name.

    part     its constructor, or a table of parts: a name in `fedjax_dp.parts`, which loads JAX; or a function; "" is no
             part at all;
    called   its name there, which the constructor takes first;
    size     the field that takes the size that the entry has, such as cohort_size; None: its numbers say the size;
    numbers  the options that it takes, by field;
    always   what its other fields are.
    """

    part: str | Callable[..., Any] = ""
    called: str | None = None
    size: str | None = None
    numbers: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make(self, what: str, values: Mapping[str, Any], size: Any = None) -> Any:
        """The part, of options by name; those that are None are left to it."""
        if not self.part:
            return None
        fields = dict(self.always) | ({self.size: size} if self.size and size is not None else {})
        for field, option in self.numbers.items():
            number = values.get(option.name)
            if number is None and option.default is REQUIRED:
                raise errors.refuse(option.name, "nothing", f"given for {what}")
            if number is not None:
                fields[field] = number
        home = self.home
        if isinstance(home, Mapping):
            return home[self.called]
        try:
            return home(*filter(None, [self.called]), **fields)
        except errors.ConfigurationError as error:
            known = self.numbers.get(error.what or "")
            raise error if known is None else errors.rename(error, known.name) from error

    @property
    def home(self) -> Any:
        if not isinstance(self.part, str):
            return self.part
        from fedjax_dp import parts  # its classes load JAX

        return functools.reduce(getattr, self.part.split("."), parts)

    def call(self, *names: str) -> str:
        """How Python makes it with these options, and with those that it cannot do without."""
        shown = [repr(self.called)] if self.called else []
        shown += [f"{self.size}=..."] if self.size and not self.called else []
        shown += [f"{field}=..." for field, one in self.numbers.items() if one.name in names or one.default is REQUIRED]
        name = self.part if isinstance(self.part, str) else self.part.__name__
        return f"fdp.parts.{name}({', '.join(shown)})"


@dataclasses.dataclass(frozen=True)
class Slot:
    """What stands in a slot: a part of a `kind`, by its name in `fedjax_dp.parts`, or one of the `choices`.

    size  the option of every entry that says the size of what is chosen.
    """

    kind: str
    choices: Mapping[Any, Choice]
    size: str | None = None


def number(
    name: str, hint: Any, text: str, default: Any = REQUIRED, *, words: str | None = None, **more: Any
) -> Option:
    """An option of a part; None as the default leaves it to the part, which has what `words` say."""
    return Option(name, hint, default, about(text, default=words, **more))


_PASS = number(
    "pass_rounds",
    int,
    "rounds of a pass: a client is in chosen ones of each (allocation), in one that stays (bins), or may be in one "
    "that its id says (cyclic-poisson)",
)
COHORTS: dict[str, Choice] = {
    "uniform": Choice("UniformCohort", size="size"),
    "poisson": Choice("PoissonCohort", size="size"),
    "truncated": Choice(
        "TruncatedPoissonCohort",
        size="size",
        numbers={"most": number("cohort_most", int, "clients that stay where more join")},
    ),
    "md": Choice(
        "MultinomialCohort",
        size="draws",
        numbers={
            "one_by_one": number("one_by_one", bool, "a client drawn m times trains m times instead of once", False)
        },
    ),
    "cyclic": Choice("CyclicCohort", size="size"),
    "cyclic-poisson": Choice("CyclicPoissonCohort", size="size", numbers={"pass_rounds": _PASS}),
    "separated": Choice(
        "SeparatedCohort",
        size="size",
        numbers={"separation": number("separation", int, "rounds from one that a client is in to its next, at least")},
    ),
    "allocation": Choice(
        "AllocatedCohort",
        numbers={
            "pass_rounds": _PASS,
            "chosen": number("chosen", int, "rounds of a pass that a client is in", 1),
        },
    ),
    "bins": Choice("BinnedCohort", numbers={"pass_rounds": _PASS}),
    "log": Choice(
        "LoggedCohort.read",
        numbers={
            "file": number(
                "participation_log",
                str,
                "who takes part when, instead of cohort_size: a CSV of round,client, both from 0",
                metavar="FILE",
            )
        },
    ),
}

BATCHES: dict[str, Choice] = {
    "without-replacement": Choice("FixedBatches", size="size"),
    "with-replacement": Choice("ReplacementBatches", size="size"),
    "poisson": Choice(
        "PoissonBatches",
        size="size",
        numbers={
            "rate": number(
                "poisson_rate",
                str,
                "chance of a record: size is B / n_k, at most 1; opacus is 1 / ceil(n_k / B)",
                "size",
                choices=RATES,
            )
        },
    ),
    "full": Choice("FullBatches"),
    "epochs": Choice(
        "EpochBatches",
        size="size",
        numbers={"last": number("last", str, "the rest of a pass, fewer than a batch", "drop", choices=LAST)},
    ),
    "allocated": Choice("AllocatedBatches", size="size"),
    "bins": Choice("AllocatedBatches", size="size", always={"kept": True}),
}

ESTIMATORS: dict[str, Choice] = {
    **{
        name: Choice("ESTIMATORS", name)
        for name in ("full", "wor_delta", "wor_model", "biased", "renorm", "precision", "mean", "median")
    },
    "trimmed_mean": Choice(
        "TrimmedMean",
        numbers={
            "trim": number("trim", float, "fraction of the updates left out at either end, in each coordinate", 0.1)
        },
    ),
}


def _of_rule(name: str, words: str, text: str) -> Option:
    return number(f"local_{name}", float, text, None, words=words)


_B1, _B2 = _of_rule("b1", "0.9", "decay of the first moment"), _of_rule("b2", "0.999", "decay of the second moment")
_EPS = _of_rule("eps", "1e-08", "added to the root of the second moment")
_FLOOR = _of_rule("floor", "1e-05", "least second moment once the noise's is taken off; a tiny one makes huge steps")
_SHRINK = _of_rule("weight_decay", "0.01", "lambda: a step also takes rate * lambda of the model off it")
_DECAY = "of momentum or rmsprop"
_KEEP = number("keep_rule", bool, "the rule's state stays with its client across rounds", False)


def _rule(name: str, **numbers: Option) -> Choice:
    return Choice("LocalRule.of", name, numbers=numbers | {"keep": _KEEP})


LOCAL_RULES: dict[str, Choice] = {
    "sgd": Choice("LocalRule.of", "sgd"),
    "momentum": _rule("momentum", decay=_of_rule("decay", "0.9", _DECAY)),
    "rmsprop": _rule("rmsprop", decay=_of_rule("decay", "0.99", _DECAY), eps=_EPS),
    "adam": _rule("adam", b1=_B1, b2=_B2, eps=_EPS),
    "adam_bc": _rule("adam_bc", b1=_B1, b2=_B2, floor=_FLOOR),
    "adamw": _rule("adamw", b1=_B1, b2=_B2, eps=_EPS, weight_decay=_SHRINK),
    "adamw_bc": _rule("adamw_bc", b1=_B1, b2=_B2, floor=_FLOOR, weight_decay=_SHRINK),
}


def _schedule(name: str, *numbers: Option) -> Choice:
    return Choice("RateSchedule.of", name, numbers={one.name: one for one in numbers})


_DECAYED = number("decay_rounds", int, "after which a cosine would be 0", whole_run=True)
_WARMED = number("warm_up_rounds", int, "in which the rate grows to its own")
SCHEDULES: dict[str, Choice] = {
    **{name: _schedule(name) for name in ("constant", "inverse_sqrt", "inverse")},
    "cosine": _schedule("cosine", _DECAYED),
    "step": _schedule(
        "step",
        number("decay_every", int, "rounds between the falls of schedule step"),
        number("decay_factor", float, "of each fall", None, words="0.1"),
    ),
    "warm_up": _schedule("warm_up", _WARMED),
    "warm_up_cosine": _schedule("warm_up_cosine", _WARMED, _DECAYED),
}


def _changes(what: str, quantity: str) -> dict[str, Choice]:
    """Of noise multiplier and clip norm over rounds."""
    moves = {
        "end": number(f"{what}_end", float, "factor that it ends with"),
        "rounds": number(f"{what}_rounds", int, "by which it does", whole_run=True),
        "stages": number(f"{what}_stages", int, f"of equal {quantity} on the way, at most", 10),
    }
    text = "of the rounds, with commas between, from 1; the last one stays"
    return {
        "constant": Choice(),
        **{name: Choice("ByRound.of", name, numbers=moves) for name in ("linear", "cosine", "step")},
        "list": Choice("ByRound.of", "list", numbers={"factors": number(f"{what}_factors", str, text)}),
    }


NOISE_SCHEDULES, CLIP_SCHEDULES = _changes("noise", "noise"), _changes("clip", "clip norm")

SECURE: dict[bool, Choice] = {
    False: Choice("PlainSum"),
    True: Choice(
        "SecureSum",
        numbers={
            "bits": number("ring_bits", int, "of the secure sum's integers: 32 or 64", 32),
            "fractional_bits": number("fractional_bits", int, "of the secure sum's fixed point", 16),
            "neighbours": number("neighbours", int, "clients that each shares a mask with; all unless given", None),
        },
    ),
}

_MOMENTUM = number("momentum", float, "of the server: v <- momentum v + update", None, words="none")
_SERVER_B1 = number("b1", float, "decay of the server's first moment", 0.9)
_SERVER_B2 = number("b2", float, "decay of its second moment", 0.99)
_PI = number("pi", float, "added to the root of its second moment (tau of Reddi et al. 2021)", 1e-3)


def _server(name: str, **numbers: Option) -> Choice:
    return Choice("Server.of", name, size="learning_rate", numbers=numbers)


SERVERS: dict[str, Choice] = {
    "sgd": _server("sgd", momentum=_MOMENTUM),
    "adam": _server("adam", b1=_SERVER_B1, b2=_SERVER_B2, pi=_PI),
    "yogi": _server("yogi", b1=_SERVER_B1, b2=_SERVER_B2, pi=_PI),
    "adagrad": _server("adagrad", b1=_SERVER_B1, pi=_PI),
}


def _average(name: str, one: Option) -> Choice:
    return Choice("ModelAverage.of", name, numbers={one.name: one})


AVERAGES: dict[str, Choice] = {
    "none": Choice(),
    "exponential": _average(
        "exponential",
        number(
            "average_decay",
            float,
            "model t - k weighs in proportion to its k-th power; 0 is the last model alone",
            0.9,
        ),
    ),
    "polyak": _average("polyak", number("average_from", int, "round from whose model on all weigh alike; 0: all", 0)),
    "polynomial": _average(
        "polynomial", number("average_power", float, "model t weighs about t to this power; 0: all alike", 8.0)
    ),
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
    """What a name stands for in a slot: one of its choices, or a part of one's own, FILE.py:NAME."""
    if own_code.is_file_name(name):
        return _own_choice(slot, name)
    if not isinstance(name, bool):
        errors.require_choice(slot, name, CHOICES[slot].choices)
    return CHOICES[slot].choices[name]


def takes_size(slot: str, what: Any) -> bool:
    """Whether a part, or one by this name, is given the size that the entry has."""
    return not is_part(what) and choice_of(slot, what).size is not None


def part_of(slot: str, values: Mapping[str, Any]) -> Any:
    """The part of a slot, of options by name.

    Raises: ConfigurationError in one line for what is no such part.
    """
    of, what = CHOICES[slot], values[slot]
    size = None if of.size is None else values.get(of.size)
    if is_part(what):
        from fedjax_dp import parts  # its classes load JAX

        validation.require_part(slot, what, getattr(parts, of.kind))
        if size is not None:
            raise errors.refuse(str(of.size), size, f"left out with a part in slot {slot}", "drop it")
        return what
    made = choice_of(slot, what).make(f"{slot} {what}", values, size)
    return part_of(slot, {slot: made}) if own_code.is_file_name(what) else made


def is_same_choice(one: Any, other: Any) -> bool:
    """Whether two parts are alike but for their numbers."""
    return type(one) is type(other) and getattr(one, "factory", None) is getattr(other, "factory", None)


def numbers_of(slot: str, group: str | None = None) -> Options:
    """The numbers of all choices of a slot, as options of a run, each beside those that have it."""
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
            described = dataclasses.replace(one.about, beside={slot: names}, default=words, group=group)
            result[one.name] = Option(one.name, hint, default, described)
    return result


def own_numbers(values: Mapping[str, Any]) -> Options:
    """The numbers of parts of one's own among these options, as options of a run."""
    result: Options = {}
    for slot in CHOICES:
        if own_code.is_file_name(name := values.get(slot)):
            for one in choice_of(slot, name).numbers.values():
                hint = one.hint | None if one.default is REQUIRED else one.hint
                described = dataclasses.replace(one.about, beside={slot: (name,)})
                result[one.name] = Option(one.name, hint, None if one.default is REQUIRED else one.default, described)
    return result


def _own_choice(slot: str, named: str) -> Choice:
    """What stands under a name in a file: a part, or a class or function that makes one, with its own options."""
    part = own_code.own(slot, named)
    if not callable(part) or validation.is_value(part):
        return Choice(lambda: part)
    described = options.of_class(part) if isinstance(part, type) else options.of_function(part)
    size = "size" if "size" in described and CHOICES[slot].size else None
    numbers = {
        field: dataclasses.replace(one, name=one.about.named or field)
        for field, one in described.items()
        if one.kinds and field != size
    }
    return Choice(part, size=size, numbers=numbers)


def refuse_number(slot: str, name: str, value: Any, chosen: Any) -> errors.ConfigurationError:
    """A number of a part, in Python: the part that is chosen, or the first that has it, takes it."""
    having = {
        key: choice
        for key, choice in CHOICES[slot].choices.items()
        if any(one.name == name for one in choice.numbers.values())
    }
    choice = having[chosen] if chosen in having else next(iter(having.values()))
    return errors.refuse(name, value, f"a number of the part in slot {slot}", f"write {slot}={choice.call(name)}")
