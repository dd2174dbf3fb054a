"""What happened, as explicit types: who is a neighbour, how records were sampled, how much noise was added, how often.

An event is public information: releases (`releases`), one after the other or by chance. Each release says what it
costs; accountants add that up.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import NotCoveredError, Unit
from fedjax_dp.accounting.releases import GaussianSteps, Release

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Composed:
    """Events that follow one another, each free to depend on what earlier ones released."""

    parts: "tuple[Event, ...]"

    def __post_init__(self) -> None:
        kinds = {(step.adjacency, step.unit) for step, _ in self.leaves()}
        if len(kinds) > 1:
            got = ", ".join(sorted(f"{unit.value}/{adjacency.value}" for adjacency, unit in kinds))
            raise errors.refuse("composed events", got, "of one unit and adjacency", "account for them separately")
        ongoing = [part for part in self.parts if not isinstance(part, Past)]
        if sum(step.sampling.kept for part in ongoing for step, _ in part.leaves()) > 1:
            raise NotCoveredError(
                "several events do not say whether a slot is kept from one to the next; state one event, or use "
                "slots that are drawn afresh in each pass"
            )

    def scaled(self, factor: float) -> "Composed":
        """The same with `factor` times the noise everywhere."""
        return Composed(tuple(part.scaled(factor) for part in self.parts))

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        for part in self.parts:
            yield from part.leaves(taken)


@dataclasses.dataclass(frozen=True)
class Past(Composed):
    """Events whose noise is fixed beforehand, as that of phases that are over: no budget changes it."""

    def scaled(self, factor: float) -> "Past":
        """The same."""
        return self


@dataclasses.dataclass(frozen=True)
class AnyOf:
    """One of these events has happened, and nobody knows which: whatever else is released, the worst of them counts."""

    parts: "tuple[Event, ...]"

    def scaled(self, factor: float) -> "AnyOf":
        """The same with `factor` times the noise in any of them."""
        return AnyOf(tuple(part.scaled(factor) for part in self.parts))

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        for part in self.parts:
            yield from part.leaves(taken)


@dataclasses.dataclass(frozen=True)
class RandomParticipation:
    """In each of `rounds` rounds `each` happens with probability `rate`, by a coin that is public and knows no data.

    The ex-ante account: delta(eps) is the mean over the number of rounds taken part in, drawn from a binomial law.
    """

    each: "Event"
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise errors.refuse("the participation rate", self.rate, "in [0, 1]")
        errors.require_count("rounds", self.rounds)
        if any(step.sampling.kept for step, _ in self.each.leaves()):
            raise NotCoveredError(
                "a slot that is kept over rounds drawn at random is not covered; use slots drawn afresh in each pass"
            )

    def scaled(self, factor: float) -> "RandomParticipation":
        """The same with `factor` times the noise."""
        return dataclasses.replace(self, each=self.each.scaled(factor))

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        if self.rate:
            yield from self.each.leaves(taken * self.rounds)


Event = Release | Composed | AnyOf | RandomParticipation


def repeated(event: Event, times: float) -> Event:
    """`times` adaptively composed copies; every number of steps is rounded up to whole steps (or whole epochs).

    Raises: ConfigurationError if `times` is negative or not finite; NotCoveredError for random participation, whose
            rounds are fixed beforehand.
    """
    errors.require_not_negative("times", times)
    match event:
        case Release():
            return event.repeated(times)
        case Composed(parts):
            return Composed(tuple(repeated(part, times) for part in parts))
        case RandomParticipation():
            raise NotCoveredError("random participation cannot be repeated; give it more rounds instead")
        case AnyOf(parts):
            return AnyOf(tuple(repeated(part, times) for part in parts))


def of_group(event: Event, unit: Unit, group: int) -> Event:
    """The same releases for a unit that has at most `group` of the records that an event of one record is of.

    Raises: NotCoveredError for releases that do not say what several records cost.
    """
    match event:
        case GaussianSteps():
            return dataclasses.replace(event, unit=unit, group=group)
        case Composed(parts):
            return Composed(tuple(of_group(part, unit, group) for part in parts))
        case RandomParticipation():
            return dataclasses.replace(event, each=of_group(event.each, unit, group))
        case AnyOf(parts):
            return AnyOf(tuple(of_group(part, unit, group) for part in parts))
    noise = event.noise or type(event).__name__
    raise NotCoveredError(f"{noise} does not say what several records of one {unit.value} cost; use Gaussian noise")


def distinct(ledger: Iterable[Event]) -> list[Event]:
    """The events of a ledger, each once. A million clients share a few objects, which are hashed a few times."""
    return list(dict.fromkeys({id(event): event for event in ledger}.values()))


def each(ledger: Iterable[Event], of: Callable[[Event], T]) -> list[T]:
    """`of(event)` for every event of a ledger, evaluated once for each distinct one."""
    ledger = list(ledger)
    shared = {id(event): event for event in ledger}
    values = {event: of(event) for event in dict.fromkeys(shared.values())}
    by_id = {key: values[event] for key, event in shared.items()}
    return [by_id[id(event)] for event in ledger]
