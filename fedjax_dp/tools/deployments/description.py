"""A private federation in public facts, whatever system runs it: who is drawn, what is clipped, where noise is added.

Closed by default: an unknown key is refused, a missing fact is refused by its name, and a fact that is stated to be
unknown is counted as the worst that it could be.
"""

import dataclasses
import functools
import math
import os
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from fedjax_dp import errors, folders, options, validation
from fedjax_dp.accounting import Unit
from fedjax_dp.options import REQUIRED, Option

BLANK = "?"  # stands in a template where a fact has to be filled in
UNKNOWN = "unknown"
NOISY = ("clip", "noise", "selection")  # groups without which nothing hides anybody
Number = float | tuple[float, ...]  # one for all clients, or one for each
Count = int | tuple[int, ...]
ClientLaw = Literal["all", "poisson", "fixed", "with-replacement", "round-robin", "schedule", "unknown"]
ReleaseKind = Literal["metrics", "counts", "norm", "statistics", "batchnorm", "preprocessing", "selection", "threshold"]
RecordLaw = Literal["full", "poisson", "fixed", "with-replacement", "shuffled", "once", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """A group of facts, checked when it is made; groups inside of it may be given as mappings.

    What is annotated with `require(name, number)` is held to that, each number by itself.
    """

    where: ClassVar[str] = ""  # of its keys, in refusals

    def __post_init__(self) -> None:
        for name, option in self.facts().items():
            object.__setattr__(self, name, _typed_fact(option, getattr(self, name), self.where + name))
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            for require in getattr(hint, "__metadata__", ()):
                _each(self.where + name, getattr(self, name), require)
        self._check()

    def _check(self) -> None:
        """Refuse facts that cannot be true together."""

    @classmethod
    @functools.cache
    def facts(cls) -> options.Options:
        """What the group is made of, as options are described."""
        taken = options.of_class(cls)
        return {field.name: taken[field.name] for field in dataclasses.fields(cls)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The same from a mapping, as a TOML file has it."""
        if not isinstance(values, Mapping):
            what = cls.where.rstrip(".") or "a deployment"
            raise errors.refuse(what, validation.describe(values), "a table of facts")
        taken = cls.facts()
        for name in values:
            errors.require_choice(f"{cls.where}{name}: a key", name, taken)
        needed = [name for name, option in taken.items() if option.default is REQUIRED]
        if missing := [cls.where + name for name in needed if name not in values]:
            raise missing_facts_error(missing)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """What is stated, as a TOML file has it."""
        result: dict[str, Any] = {}
        for name, option in self.facts().items():
            value = getattr(self, name)
            if value != option.default and value is not None:
                result[name] = _plain(value)
        return result


def require_share(what: str, value: Any) -> None:
    """Refuse what is no share of a whole."""
    if not 0 < errors.require_number(what, value) <= 1:
        raise errors.refuse(what, value, "above 0 and at most 1")


def _plain(value: Any) -> Any:
    if isinstance(value, Facts):
        return value.to_dict()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberDraws(Facts):
    """How many there are, and how many of them are drawn: `size` of `of`, or each at `rate`."""

    law: Any
    of: Annotated[Any, errors.require_count] = None
    size: Annotated[Any, errors.require_count] = None
    rate: Annotated[Any, require_share] = None

    def _check(self) -> None:
        of, size, rate = self.of, self.size, self.rate
        if size is not None and rate is not None:
            raise errors.refuse(f"{self.where}rate", rate, f"left out beside {self.where}size", "keep one of them")
        for drawn, members in _pairs_by_client(size, of):
            if drawn > members:
                raise errors.refuse(f"{self.where}size", drawn, f"at most the {members} of {self.where}of")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clients(MemberDraws):
    """Which clients a round has.

    Args:
        law: how they are drawn
        of: how many there are
        size: how many reply, not how many are invited
        rate: the chance of each to be drawn
    """

    where = "clients."
    law: ClientLaw
    of: Annotated[int | None, errors.require_count] = None
    size: Annotated[int | None, errors.require_count] = None
    rate: Annotated[float | None, require_share] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordDraws(MemberDraws):
    """Which records of a client a local step has; lists are one number per client.

    Args:
        law: how they are drawn; once: one draw, kept for the run
        of: how many a client has
        size: how many are drawn
        rate: the chance of each to be drawn
        steps: noisy local steps of a round
        last: of law shuffled, what becomes of the rest of a pass that is smaller than a batch: drop, or keep as a batch
    """

    where = "records."
    law: RecordLaw
    of: Annotated[Count | None, errors.require_count] = None
    size: Annotated[Count | None, errors.require_count] = None
    rate: Annotated[Number | None, require_share] = None
    steps: Annotated[Count | None, errors.require_count] = None
    last: Literal["drop", "keep", "unknown"] | None = None

    def _check(self) -> None:
        super()._check()
        if self.last is not None and self.law != "shuffled":
            raise errors.refuse(
                "records.last", self.last, f"left out for law {self.law}", "passes have a rest if shuffled"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip(Facts):
    """What is bounded.

    Args:
        of: whose norm
        norm: which norm; coordinate: each number by itself
        bound: the bound
        scope: all tensors together, or each by itself
        tensors: how many, of scope tensor
        coordinates: how many numbers a model has, where norm and noise do not belong together
        threshold: how the bound is chosen; private: from the data, without noise; adaptive: by counts with noise
        count_noise: of threshold adaptive, standard deviation of the noise on the count of those clipped
        count_bits: of threshold adaptive, what each adds to that count; zero-one: 0 or 1; half: minus or plus a half
    """

    where = "clip."
    of: Literal["record", "update", "weights", "batch", "aggregate", "nothing"]
    norm: Literal["l2", "l1", "coordinate"] | None = None
    bound: Annotated[Number | None, errors.require_positive] = None
    scope: Literal["all", "tensor"] = "all"
    tensors: Annotated[int | None, errors.require_count] = None
    coordinates: Annotated[int | None, errors.require_count] = None
    threshold: Literal["public", "private", "adaptive", "unknown"] = "public"
    count_noise: Annotated[float | None, errors.require_positive] = None
    count_bits: Literal["zero-one", "half", "unknown"] | None = None

    def _check(self) -> None:
        if self.threshold == "adaptive" and self.count_noise is None:
            remedy = "it is the standard deviation on the count; a count without noise is threshold private"
            raise errors.refuse("clip.count_noise", "nothing", "given for threshold adaptive", remedy)
        if self.threshold == "adaptive" and self.norm == "coordinate":
            remedy = "how often numbers of one member are clipped is not bounded by 1; use norm l2"
            raise errors.refuse("clip.norm", "coordinate", "another norm for threshold adaptive", remedy)
        for name, value in (("count_noise", self.count_noise), ("count_bits", self.count_bits)):
            if self.threshold != "adaptive" and value is not None:
                remedy = "only an adaptive bound has counts"
                raise errors.refuse(f"clip.{name}", value, f"left out for threshold {self.threshold}", remedy)
        if self.scope == "tensor" and self.tensors is None:
            raise missing_facts_error(["clip.tensors"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration(Facts):
    """Keys from which a system makes the noise: Gaussian of standard deviation sensitivity sqrt(2 ln(1.25 / delta)) /
    epsilon, or Laplace of scale sensitivity / epsilon.

    Args:
        epsilon: its key
        delta: its key, of Gaussian noise
        sensitivity: its key; left out where the clip bound stands in its place
    """

    where = "noise.calibration."
    epsilon: Annotated[float, errors.require_positive]
    delta: Annotated[float | None, errors.require_in_unit_interval] = None
    sensitivity: Annotated[float | None, errors.require_positive] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise(Facts):
    """What is added.

    Args:
        law: of each number
        std: its standard deviation, of whatever `on` says
        calibration: instead of std, keys of the classical formula
        on: sum or mean of what is clipped, or each client's message
        by: who adds it
        scale: what std depends on; private: the data; next-bound: an adaptive bound after its update
        misses: tensors that get none
    """

    where = "noise."
    law: Literal["gaussian", "laplace", "none", "unknown"]
    std: Annotated[Number | None, errors.require_not_negative] = None
    calibration: Calibration | None = None
    on: Literal["sum", "mean", "message"] | None = None
    by: Literal["server", "client"] | None = None
    scale: Literal["public", "private", "next-bound", "unknown"] = "public"
    misses: tuple[str, ...] = ()

    def _check(self) -> None:
        if self.std is not None and self.calibration is not None:
            raise errors.refuse("noise.calibration", "one", "left out beside noise.std", "keep one of them")
        if self.on == "message" and self.by == "server":
            remedy = 'noise that a server adds is on = "mean" or "sum"'
            raise errors.refuse("noise.by", "server", "client for noise on messages", remedy)
        if self.law == "gaussian" and self.calibration is not None and self.calibration.delta is None:
            raise missing_facts_error(["noise.calibration.delta"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Facts):
    """By what is divided.

    Args:
        largest: share of one client in the mean, at most in any round; unknown: 1
        denominator: of the sum that the noise is for, of clients or of the records of a batch; fixed: a public number;
            count: those who came
    """

    where = "weights."
    largest: float | Literal["unknown"] | None = None
    denominator: Literal["fixed", "count", "unknown"] | None = None

    def _check(self) -> None:
        if self.largest != UNKNOWN:
            _each("weights.largest", self.largest, require_share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection(Facts):
    """Numbers of a message chosen by the sparse vector technique and released with noise of their own.

    Args:
        epsilon: of the choice, for as many answers as are released
        of: how many numbers are queried
        fraction: of them is released, rounded up
        release: epsilon of one released number
    """

    where = "selection."
    epsilon: Annotated[float, errors.require_positive]
    of: Annotated[int, errors.require_count]
    fraction: Annotated[float, require_share]
    release: Annotated[float, errors.require_positive]

    @property
    def answers(self) -> int:
        return math.ceil(self.fraction * self.of * (1 - 1e-12))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Also(Facts):
    """Something else that leaves and was computed from records.

    Args:
        kind: what it is; preprocessing: public steps, such as scalers, fitted on records; threshold: a bound from data
        text: in words
        to: who gets it
        epsilon: of the run at delta 0, where it has noise of its own
    """

    where = "also."
    kind: ReleaseKind
    text: str
    to: Literal["server", "clients", "public"]
    epsilon: Annotated[float | None, errors.require_positive] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumed(Facts):
    """What the accountant of a claim takes for granted, where that is not what the description says.

    Args:
        clients: law by which clients are drawn, where that is counted as amplification
        records: law by which records are drawn
        population: how many clients there are
        cohort: how many of them reply
        noise: own: of a client alone; summed: that of a cohort, added up
    """

    where = "claim.assumes."
    clients: ClientLaw | None = None
    records: RecordLaw | None = None
    population: Annotated[int | None, errors.require_count] = None
    cohort: Annotated[int | None, errors.require_count] = None
    noise: Literal["own", "summed"] = "own"

    def _check(self) -> None:
        if (self.population is None) != (self.cohort is None):
            raise missing_facts_error([f"claim.assumes.{'cohort' if self.cohort is None else 'population'}"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise(Facts):
    """The epsilon that is stated.

    Args:
        epsilon: as stated
        delta: as stated, by default the deployment's
        per: what it is stated of
        assumes: what its accountant takes for granted
    """

    where = "claim."
    epsilon: Annotated[float, errors.require_positive]
    delta: float | None = None
    per: Literal["run", "round"]
    assumes: Assumed = dataclasses.field(default_factory=Assumed)

    def _check(self) -> None:
        if self.delta != 0:  # pure differential privacy
            _each("claim.delta", self.delta, errors.require_in_unit_interval)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Facts):
    """Where the facts are from; printed, and compared with the version that a template was read at.

    Args:
        system: its name
        version: of the system
        repository: where it is
        path: of the file there
        commit: that was read
    """

    where = "source."
    system: str | None = None
    version: str | None = None
    repository: str | None = None
    path: str | None = None
    commit: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment(Facts):
    """A private federation in public facts; groups may be given as mappings, as a TOML file has them.

    >>> deployment = Deployment(
    ...     unit="client", delta=1e-5, rounds=20,
    ...     clients={"law": "fixed", "size": 10, "of": 100},
    ...     clip={"of": "update", "norm": "l2", "bound": 1.0},
    ...     noise={"law": "gaussian", "std": 0.1, "on": "mean", "by": "server"},
    ...     weights={"largest": 0.1},
    ... )
    >>> deployment.noise.std
    0.1

    Args:
        unit: whose presence is to be hidden
        delta: at which epsilon is computed
        rounds: how many there are
        clients: which clients a round has
        records: which records a local step has
        clip: what is bounded
        noise: what is added
        weights: how updates are averaged
        selection: numbers chosen by the sparse vector technique
        also: what else leaves
        claim: the epsilon that is stated
        ignored: keys that are set and read by nothing in the version that runs; clip, noise or selection where that
            whole group of facts is never carried out
        assumes: what has to be true and no file shows
        source: where the facts are from
    """

    unit: Literal["record", "client"]
    delta: float
    rounds: int
    clients: Clients
    records: RecordDraws | None = None
    clip: Clip
    noise: Noise
    weights: Weights = dataclasses.field(default_factory=Weights)
    selection: Selection | None = None
    also: tuple[Also, ...] = ()
    claim: Promise | None = None
    ignored: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    source: Source = dataclasses.field(default_factory=Source)

    def _check(self) -> None:
        errors.require_delta(self.delta)
        errors.require_integer("rounds", self.rounds, 1, 10**6)
        clip, noise = self.clip, self.noise
        by_record = clip.of == "record"
        if by_record and noise.by == "server":
            remedy = "a server does not see the sum of a client's records; noise on updates needs their clip"
            raise errors.refuse("noise.by", "server", "client where records are clipped", remedy)
        if by_record and noise.on == "message":
            remedy = "give the noise of a step, on = sum or mean; noise on an upload needs the clip of the upload"
            raise errors.refuse("noise.on", "message", "sum or mean where records are clipped", remedy)
        if not by_record and noise.by == "client" and noise.on in ("sum", "mean"):
            remedy = "noise of one client is on its message"
            raise errors.refuse("noise.on", noise.on, f"message for noise by clients on their {clip.of}", remedy)
        sampled = self.records is not None and self.records.law not in ("full", "unknown")
        if noise.law == "laplace" and by_record and sampled:
            remedy = "gaussian noise is covered; or describe what is true without sampling, law full"
            raise errors.refuse("noise.law", "laplace", "gaussian where records are sampled", remedy)
        self._require_shares()
        for name, value in (("std", noise.std), ("calibration", noise.calibration)):
            if value is not None and self.selection is not None and noise.law == "laplace" and noise.on == "message":
                raise errors.refuse(
                    f"noise.{name}", "one", "left out beside selection", "its noise follows its epsilons"
                )
        for name in self.ignored:
            group, _, fact = name.partition(".")
            if fact and group in self.facts() and group not in NOISY:
                raise errors.refuse(
                    "ignored", name, "a key that is no fact of here", f"say in {name} what really is so"
                )
        for name, value in self.per_client.items():
            if isinstance(value, tuple) and self.clients.of is None:
                raise missing_facts_error(["clients.of"])
            if isinstance(value, tuple) and len(value) != self.clients.of:
                wanted = f"a list of as many numbers as clients.of, {self.clients.of}"
                raise errors.refuse(name, f"{len(value)} numbers", wanted)

    def _require_shares(self) -> None:
        """Refuse a largest share that is smaller than an equal one of those who reply."""
        clients, largest = self.clients, self.weights.largest
        replies = (
            clients.of if clients.law == "all" else None if clients.law in ("poisson", "schedule") else clients.size
        )
        shared = self.noise.on == "mean" and self.noise.by == "server" and self.weights.denominator != "fixed"
        if (
            shared and replies is not None and isinstance(largest, float) and largest * replies < 0.99
        ):  # of 0.33 for 1/3
            remedy = 'shares of those who reply add up to 1; or denominator = "fixed"'
            raise errors.refuse("weights.largest", largest, f"at least 1/{replies} for {replies} replies", remedy)

    @property
    def per_client(self) -> dict[str, Any]:
        """Facts that may be lists."""
        named = {"clip.bound": self.clip.bound, "noise.std": self.noise.std}
        if self.records is not None:
            named |= {f"records.{name}": getattr(self.records, name) for name in ("of", "size", "rate", "steps")}
        return named

    def of_client(self, index: int) -> "Deployment":
        """The same with one client's numbers in the place of lists."""
        if not any(isinstance(value, tuple) for value in self.per_client.values()):
            return self

        def own(facts: Any) -> Any:
            lists = {
                field.name: value[index]
                for field in dataclasses.fields(facts)
                if isinstance(value := getattr(facts, field.name), tuple) and field.name != "misses"
            }
            return dataclasses.replace(facts, **lists) if lists else facts

        groups = {name: own(part) for name in ("clip", "noise", "records") if (part := getattr(self, name)) is not None}
        return dataclasses.replace(self, **groups)

    @property
    def hidden(self) -> Unit:
        """Whose presence is to be hidden."""
        return Unit(self.unit)

    @property
    def kinds(self) -> tuple["Deployment", ...]:
        """One for each client where some numbers are the clients' own, else itself."""
        lists = any(isinstance(value, tuple) for value in self.per_client.values())
        return tuple(map(self.of_client, range(self.clients.of or 1))) if lists else (self,)

    def to_toml(self) -> str:
        """As a file that `read` takes."""
        return folders.toml(self.to_dict())


def read(path: str | os.PathLike[str], *, free: Collection[str] = ()) -> Deployment:
    """The deployment that a TOML file describes; facts that are `free` may be blank, as if they were left out.

    Raises: ConfigurationError for what is none, for keys that are unknown, facts that are missing, blanks.
    """
    values = folders.read_toml("deployment file", path)
    for name in free:
        group, _, fact = name.partition(".")
        facts = values.get(group)
        if isinstance(facts, dict) and next(names_of(BLANK, {fact: facts.get(fact)}), None):
            del facts[fact]
    require_filled(values)
    return Deployment.from_dict(values)


def require_filled(values: Mapping[str, Any]) -> None:
    """Refuse blanks of a template, all of them at once."""
    if blanks := list(names_of(BLANK, values)):
        raise errors.refuse(", ".join(blanks), "blanks", "filled in", f'write what is so in the place of "{BLANK}"')


def names_of(word: str, values: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The keys whose value is a word, such as `BLANK`."""
    for name, value in values.items():
        if value == word:
            yield where + name
        elif isinstance(value, Mapping):
            yield from names_of(word, value, f"{where}{name}.")


def missing_facts_error(names: list[str]) -> errors.ConfigurationError:
    """The error to raise for facts that are missing, all of them at once."""
    return errors.refuse(", ".join(names), "nothing", "given", "nothing is assumed in its place")


def _typed_fact(option: Option, value: Any, what: str) -> Any:
    """A fact in the type of its field: a group of facts, a scalar, a name, or a list of such."""
    if value is None or value is option.default:
        return value
    hints = options.members(option.hint)
    many = [hint for hint in hints if typing.get_origin(hint) is tuple]
    kinds = (*hints, *(typing.get_args(hint)[0] for hint in many))
    group = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Facts)), None)
    if many and isinstance(value, list | tuple):
        if not value and option.kinds != ():
            raise errors.refuse(what, "an empty list", "a number, or one for each client")
        return tuple(_one(option, one, what, group) for one in value)
    if many and (group is not None or option.kinds == ()):
        raise errors.refuse(what, validation.describe(value), "a list")
    return _one(option, value, what, group)


def _one(option: Option, value: Any, what: str, group: type[Facts] | None) -> Any:
    if group is not None:
        return value if isinstance(value, group) else group.from_dict(value)
    if option.kinds == ():  # a list of words
        if not isinstance(value, str):
            raise errors.refuse(what, validation.describe(value), "text")
        return errors.require_text(what, value)
    value = option.typed(value, what)
    if isinstance(value, str) and option.choices is not None:
        errors.require_choice(what, value, option.choices)
    return value


def _each(what: str, value: Any, require: Callable[[str, Any], object]) -> None:
    """Hold a number, or each of a list, to a requirement; what is left out is fine."""
    for one in value if isinstance(value, tuple) else () if value is None else (value,):
        require(what, one)


def _pairs_by_client(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Two facts client by client."""
    if first is None or second is None:
        return
    lists = [value for value in (first, second) if isinstance(value, tuple)]
    count = len(lists[0]) if lists else 1
    pairs = zip(*(value if isinstance(value, tuple) else (value,) * count for value in (first, second)))
    yield from pairs
