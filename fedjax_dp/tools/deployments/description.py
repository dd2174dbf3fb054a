"""A private federation on any system, described by public facts: sampling, clipping and noise.

Unknown keys and missing facts are refused by name. For a fact described as unknown the worst case is counted.
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

BLANK = "?"  # in a template, marks a fact to fill in
UNKNOWN = "unknown"
NOISY = ("clip", "noise", "selection")  # groups without which nothing is private
Number = float | tuple[float, ...]  # one for all clients, or one for each
Count = int | tuple[int, ...]
ClientLaw = Literal["all", "poisson", "fixed", "with-replacement", "round-robin", "schedule", "unknown"]
ReleaseKind = Literal["metrics", "counts", "norm", "statistics", "batchnorm", "preprocessing", "selection", "threshold"]
RecordLaw = Literal["full", "poisson", "fixed", "with-replacement", "shuffled", "once", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """A group of facts, validated when created; nested groups may be mappings.

    A fact annotated with `require(name, number)` must satisfy it; in a list, each number must.
    """

    where: ClassVar[str] = ""  # prefix of its keys in refusals

    def __post_init__(self) -> None:
        for name, option in self.facts().items():
            object.__setattr__(self, name, _typed_fact(option, getattr(self, name), self.where + name))
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            for require in getattr(hint, "__metadata__", ()):
                _each(self.where + name, getattr(self, name), require)
        self._check()

    def _check(self) -> None:
        """Refuse facts that contradict each other."""

    @classmethod
    @functools.cache
    def facts(cls) -> options.Options:
        """The facts of the group as options."""
        taken = options.of_class(cls)
        return {field.name: taken[field.name] for field in dataclasses.fields(cls)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The group from a mapping, such as a table of a TOML file."""
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
        """The facts that differ from defaults, for a TOML file."""
        result: dict[str, Any] = {}
        for name, option in self.facts().items():
            value = getattr(self, name)
            if value != option.default and value is not None:
                result[name] = _plain(value)
        return result


def require_share(what: str, value: Any) -> None:
    """Refuse a number that is not in (0, 1]."""
    if not 0 < errors.require_number(what, value) <= 1:
        raise errors.refuse(what, value, "above 0 and at most 1")


def _plain(value: Any) -> Any:
    if isinstance(value, Facts):
        return value.to_dict()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberDraws(Facts):
    """The number of members, and the sampling: `size` of `of`, or each at `rate`."""

    law: Any
    of: Annotated[Any, errors.require_count] = None
    size: Annotated[Any, errors.require_count] = None
    rate: Annotated[Any, require_share] = None

    def _check(self) -> None:
        of, size, rate = self.of, self.size, self.rate
        if size is not None and rate is not None:
            raise errors.refuse(f"{self.where}rate", rate, f"left out with {self.where}size", "keep one of them")
        for drawn, members in pairs_by_client(size, of):
            if drawn > members:
                raise errors.refuse(f"{self.where}size", drawn, f"at most the {members} of {self.where}of")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clients(MemberDraws):
    """The clients of a round.

    Args:
        law: sampling law
        of: number of clients in the population
        size: number of clients that are invited to a round, also if some do not reply
        rate: sampling rate of each client, whether it replies or not
        members: whether other clients know who takes part; known: also members of a secure sum, who agree on masks,
            and clients that keep state, unless they are Poisson samples
    """

    where = "clients."
    law: ClientLaw
    of: Annotated[int | None, errors.require_count] = None
    size: Annotated[int | None, errors.require_count] = None
    rate: Annotated[float | None, require_share] = None
    members: Literal["hidden", "known", "unknown"] = "hidden"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordDraws(MemberDraws):
    """The records of a local step; a list has one number per client.

    Args:
        law: sampling law; once: one sample, kept for the run
        of: number of records of a client
        size: number of records in a batch
        rate: sampling rate of each record
        steps: noisy local steps of a round
        last: for law shuffled, whether a smaller last batch of a pass is dropped or kept
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
                "records.last", self.last, f"left out for law {self.law}", "only shuffled passes have a last batch"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip(Facts):
    """The clipping.

    Args:
        of: what is clipped
        norm: which norm; coordinate: each number separately
        bound: the clipping norm
        scope: all tensors together, or each tensor separately
        tensors: number of tensors, for scope tensor
        coordinates: number of parameters, if the noise does not match the norm
        threshold: how the bound is chosen; private: from the data, without noise; adaptive: by noised counts
        count_noise: for threshold adaptive, standard deviation of the noise on the count
        count_bits: for threshold adaptive, what a member adds to that count; zero-one: 0 or 1; half: -1/2 or 1/2
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
    """Settings from which a system computes the noise: Gaussian of standard deviation sensitivity sqrt(2 ln(1.25 /
    delta)) / epsilon, or Laplace of scale sensitivity / epsilon.

    Args:
        epsilon: its setting
        delta: its setting, for Gaussian noise
        sensitivity: its setting; left out if it is the clipping norm
    """

    where = "noise.calibration."
    epsilon: Annotated[float, errors.require_positive]
    delta: Annotated[float | None, errors.require_in_unit_interval] = None
    sensitivity: Annotated[float | None, errors.require_positive] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise(Facts):
    """The noise.

    Args:
        law: distribution of each coordinate
        std: standard deviation of the noise on the quantity in `on`
        calibration: instead of std, settings of the classical formula
        on: what the noise is added to: the sum or mean of clipped values, or each client's message
        by: who adds it
        scale: what std depends on; private: the data; bound: an adaptive bound, in proportion, std at the first one;
            next-bound: that bound after its update
        misses: tensors without noise
    """

    where = "noise."
    law: Literal["gaussian", "laplace", "none", "unknown"]
    std: Annotated[Number | None, errors.require_not_negative] = None
    calibration: Calibration | None = None
    on: Literal["sum", "mean", "message"] | None = None
    by: Literal["server", "client"] | None = None
    scale: Literal["public", "private", "bound", "next-bound", "unknown"] = "public"
    misses: tuple[str, ...] = ()

    def _check(self) -> None:
        if self.std is not None and self.calibration is not None:
            raise errors.refuse("noise.calibration", "one", "left out with noise.std", "keep one of them")
        if self.on == "message" and self.by == "server":
            remedy = 'noise that a server adds is on = "mean" or "sum"'
            raise errors.refuse("noise.by", "server", "client for noise on messages", remedy)
        if self.law == "gaussian" and self.calibration is not None and self.calibration.delta is None:
            raise missing_facts_error(["noise.calibration.delta"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Facts):
    """The weights in the mean.

    Args:
        largest: largest share of one client in the mean of any round; unknown: 1
        denominator: of the noised sum over clients, or over the records of a batch; fixed: a public number; count: the
            actual number of members
    """

    where = "weights."
    largest: float | Literal["unknown"] | None = None
    denominator: Literal["fixed", "count", "unknown"] | None = None

    def _check(self) -> None:
        if self.largest != UNKNOWN:
            _each("weights.largest", self.largest, require_share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection(Facts):
    """Numbers of a message that the sparse vector technique selects and that are released with additional noise.

    Args:
        epsilon: of the selection, for all released numbers
        of: number of queried numbers
        fraction: the fraction of them that is released, rounded up
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
    """Another release that was computed from records.

    Args:
        kind: its kind; preprocessing: steps such as scalers fitted on records; threshold: a bound from data
        text: description
        to: recipient
        epsilon: of the whole run at delta 0, if it has noise
    """

    where = "also."
    kind: ReleaseKind
    text: str
    to: Literal["server", "clients", "public"]
    epsilon: Annotated[float | None, errors.require_positive] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimAssumptions(Facts):
    """Assumptions of a claim's accountant that differ from the description.

    Args:
        clients: sampling law of clients, if it is counted as amplification
        records: sampling law of records
        population: number of clients
        cohort: number of clients in a round
        noise: own: the noise of one client; summed: the sum of the cohort's noise
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
        if self.population is not None and self.cohort > self.population:  # type: ignore[operator]
            raise errors.refuse("claim.assumes.cohort", self.cohort, f"at most the population, {self.population}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise(Facts):
    """The claim of a deployment.

    Args:
        epsilon: as claimed
        delta: as claimed, by default the deployment's
        per: whether it is claimed for the run or for one round
        assumes: assumptions of its accountant
    """

    where = "claim."
    epsilon: Annotated[float, errors.require_positive]
    delta: float | None = None
    per: Literal["run", "round"]
    assumes: ClaimAssumptions = dataclasses.field(default_factory=ClaimAssumptions)

    def _check(self) -> None:
        if self.delta != 0:  # pure differential privacy
            _each("claim.delta", self.delta, errors.require_in_unit_interval)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Facts):
    """The source of the facts; printed, and compared with the version of the system that a template describes.

    Args:
        system: its name
        version: of the system
        repository: its address
        path: of the file in the repository
        commit: of the file
    """

    where = "source."
    system: str | None = None
    version: str | None = None
    repository: str | None = None
    path: str | None = None
    commit: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment(Facts):
    """A private federation described by public facts; groups may be mappings, as in a TOML file.

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
        unit: unit of privacy
        delta: the delta of epsilon
        rounds: number of rounds
        clients: the clients of a round
        records: the records of a local step
        clip: the clipping
        noise: the noise
        weights: the weights in the mean
        selection: numbers selected by the sparse vector technique
        also: other releases
        claim: the claimed epsilon
        ignored: settings that the running version ignores; clip, noise or selection if the whole group is never applied
        assumes: assumptions that no file can show
        source: source of the facts
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
        if clip.threshold == "adaptive" and noise.scale == "public" and noise.law not in ("none", UNKNOWN):
            remedy = "noise that stays while the bound grows has no epsilon"
            raise errors.refuse("noise.scale", "public", "bound for threshold adaptive", remedy)
        if clip.threshold == "public" and noise.scale in ("bound", "next-bound"):
            raise errors.refuse(
                "noise.scale", noise.scale, "left out for threshold public", "only adaptive bounds move"
            )
        sampled = self.records is not None and self.records.law != "full"
        if noise.law == "laplace" and by_record and sampled:
            remedy = "gaussian noise is covered; or describe what is true without sampling, law full"
            raise errors.refuse("noise.law", "laplace", "gaussian where records are sampled", remedy)
        self._require_shares()
        clients = self.clients
        if noise.by == "server" and clients.members != "hidden" and clients.law in ("with-replacement", UNKNOWN):
            remedy = "who is known to come several times has no bound; if nobody does, the law is schedule"
            raise errors.refuse("clients.members", clients.members, f"hidden for law {clients.law}", remedy)
        if noise.by == "server" and isinstance(noise.std, tuple):
            remedy = "it is the same for all, whoever takes part"
            raise errors.refuse("noise.std", f"{len(noise.std)} numbers", "one for noise by the server", remedy)
        for name, value in (("std", noise.std), ("calibration", noise.calibration)):
            if value is not None and self.selection is not None and noise.law == "laplace" and noise.on == "message":
                raise errors.refuse(f"noise.{name}", "one", "left out with selection", "its noise follows its epsilons")
        for name in self.ignored:
            group, _, fact = name.partition(".")
            if (plain := group.strip().casefold()) != group and plain in self.facts():
                raise errors.refuse("ignored", repr(name), f"{plain!r}, as a description writes it")
            if fact and group in self.facts() and group not in NOISY:
                raise errors.refuse(
                    "ignored", name, "a setting that is no fact of a description", f"write in {name} what is true"
                )
        for name, value in self.per_client.items():
            if isinstance(value, tuple) and self.clients.of is None:
                raise missing_facts_error(["clients.of"])
            if isinstance(value, tuple) and len(value) != self.clients.of:
                wanted = f"a list of as many numbers as clients.of, {self.clients.of}"
                raise errors.refuse(name, f"{len(value)} numbers", wanted)

    def _require_shares(self) -> None:
        """Refuse a largest share that is smaller than an equal share."""
        largest, equal = self.weights.largest, self.equal_share
        if isinstance(largest, float) and largest < 0.99 * equal:  # of 0.33 for 1/3
            most = round(1 / equal)
            remedy = 'shares of those who reply add up to 1; or denominator = "fixed"'
            raise errors.refuse("weights.largest", largest, f"at least 1/{most}: {most} reply at most", remedy)

    @property
    def equal_share(self) -> float:
        """The share of each client if all reply and have the same; 0 if a draw varies or is not the divisor."""
        clients = self.clients
        drawn = clients.of if clients.law == "all" else None if clients.law in ("poisson", "schedule") else clients.size
        return 1 / drawn if self.averages and drawn is not None else 0.0

    @property
    def averages(self) -> bool:
        """Whether shares add up to 1: noise is on the mean of those who reply."""
        return self.noise.on == "mean" and self.noise.by == "server" and self.weights.denominator != "fixed"

    @property
    def per_client(self) -> dict[str, Any]:
        """The facts that may be lists."""
        named = {"clip.bound": self.clip.bound, "noise.std": self.noise.std}
        if self.records is not None:
            named |= {f"records.{name}": getattr(self.records, name) for name in ("of", "size", "rate", "steps")}
        return named

    def of_client(self, index: int) -> "Deployment":
        """The deployment with one client's numbers instead of lists."""
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
    def protected_unit(self) -> Unit:
        return Unit(self.unit)

    @property
    def kinds(self) -> tuple["Deployment", ...]:
        """A deployment for each client if some facts are lists, else this one."""
        lists = any(isinstance(value, tuple) for value in self.per_client.values())
        return tuple(map(self.of_client, range(self.clients.of or 1))) if lists else (self,)

    def to_toml(self) -> str:
        """The content of a file for `read`."""
        return folders.toml(self.to_dict())


def read(path: str | os.PathLike[str], *, free: Collection[str] = ()) -> Deployment:
    """The deployment in a TOML file; blanks of facts in `free` count as left out.

    Raises: ConfigurationError for an invalid file, unknown keys, missing facts and blanks.
    """
    remedy = "fedjax-dp account --ledger FOLDER is for the folder of a run" if os.path.isdir(path) else ""
    values = folders.read_toml("deployment file", path, remedy)
    for name in free:
        group, _, fact = name.partition(".")
        facts = values.get(group)
        if isinstance(facts, dict) and next(names_of(BLANK, {fact: facts.get(fact)}), None):
            del facts[fact]
    if blanks := list(names_of(BLANK, values)):
        raise errors.refuse(", ".join(blanks), "blanks", "filled in", f'replace "{BLANK}"')
    return Deployment.from_dict(values)


def names_of(word: str, values: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The keys whose value is a word, such as `BLANK`."""
    for name, value in values.items():
        if value == word:
            yield where + name
        elif isinstance(value, Mapping):
            yield from names_of(word, value, f"{where}{name}.")


def missing_facts_error(names: list[str]) -> errors.ConfigurationError:
    """The error for missing facts, all at once; of a single one it says what it is."""
    meaning = "; ".join(filter(None, [_meaning_of(names[0]) if len(names) == 1 else "", "there is no default for it"]))
    return errors.refuse(", ".join(names), "nothing", "given", meaning)


def _meaning_of(name: str) -> str:
    """What a fact such as `weights.denominator` is, in the words of its group, and the names that it may have."""
    taken, option = options.of_class(Deployment), None
    for word in name.split("."):
        option = taken.get(word)
        kinds = [] if option is None else [kind for kind in options.members(option.hint) if isinstance(kind, type)]
        taken = next((options.of_class(kind) for kind in kinds if issubclass(kind, Facts)), {})
    if option is None:
        return ""
    return f"{option.about.text} ({', '.join(option.choices)})" if option.choices else option.about.text


def _typed_fact(option: Option, value: Any, what: str) -> Any:
    """A fact in the type of its field: a group, a scalar, a name, or a list of these."""
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
    """Apply a requirement to a number, or to each number of a list; None is allowed."""
    for one in value if isinstance(value, tuple) else () if value is None else (value,):
        require(what, one)


def pairs_by_client(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of two facts, client by client."""
    if first is None or second is None:
        return
    lists = [value for value in (first, second) if isinstance(value, tuple)]
    count = len(lists[0]) if lists else 1
    pairs = zip(*(value if isinstance(value, tuple) else (value,) * count for value in (first, second)))
    yield from pairs
