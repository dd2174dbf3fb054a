"""Events: what was released, with its adjacency, sampling, noise and number of steps, as explicit types.

An event is public information: releases (`releases`), composed or chosen by chance. Each release states its cost;
accountants compose the costs.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Self, TypeVar

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError, Unit
from fedjax_dp.accounting.releases import GaussianSteps, Release

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class _Several:
    parts: "tuple[Event, ...]"

    def mapped(self, of: "Callable[[Event], Event]") -> Self:
        """The event with `of` applied to each part."""
        return dataclasses.replace(self, parts=tuple(map(of, self.parts)))

    def scaled(self, factor: float) -> Self:
        """The event with all noise multiplied by `factor`."""
        return self.mapped(lambda part: part.scaled(factor))

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        for part in self.parts:
            yield from part.leaves(taken)


@dataclasses.dataclass(frozen=True)
class Composed(_Several):
    """Adaptive composition: each event may depend on what earlier ones released."""

    def __post_init__(self) -> None:
        kinds = {(step.adjacency, step.unit) for step, _ in self.leaves()}
        if len(kinds) > 1:
            got = ", ".join(sorted(f"{unit.value}/{adjacency.value}" for adjacency, unit in kinds))
            raise errors.refuse("composed events", got, "of one unit and adjacency", "account for them separately")
        ongoing = [part for part in self.parts if not isinstance(part, Past)]
        if sum(step.sampling.keeps_draw for part in ongoing for step, _ in part.leaves()) > 1:
            raise NotCoveredError(
                "several events do not state whether they share a slot; state one event, or use slots that are drawn "
                "in each pass"
            )


@dataclasses.dataclass(frozen=True)
class Past(Composed):
    """Events with fixed noise, such as finished phases: calibration does not change it."""

    def scaled(self, factor: float) -> Self:
        """The event itself: its noise is fixed."""
        return self


@dataclasses.dataclass(frozen=True)
class AnyOf(_Several):
    """One of these events has happened, but it is unknown which: in every composition the worst counts, each time.

    times  how often one has happened, each time perhaps another
    """

    times: int = 1

    def __post_init__(self) -> None:
        errors.require_count("times", self.times)
        if self.times > 1 and any(step.sampling.keeps_draw for step, _ in super().leaves()):
            raise NotCoveredError(
                "one slot for events of which each may be another is not covered; use slots that are drawn in each pass"
            )

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        return super().leaves(taken * self.times)


@dataclasses.dataclass(frozen=True)
class RandomParticipation:
    """In each of `rounds` rounds `each` happens with probability `rate`, by a public coin that is independent of data.

    Ex-ante accounting: delta(epsilon) is the mean over the binomial number of rounds with participation.
    """

    each: "Event"
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise errors.refuse("the participation rate", self.rate, "in [0, 1]")
        errors.require_count("rounds", self.rounds)
        if any(step.sampling.keeps_draw for step, _ in self.each.leaves()):
            raise NotCoveredError(
                "one slot for rounds that are drawn at random is not covered; use slots that are drawn in each pass"
            )

    def scaled(self, factor: float) -> "RandomParticipation":
        return dataclasses.replace(self, each=self.each.scaled(factor))

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        if self.rate:
            yield from self.each.leaves(taken * self.rounds)


Event = Release | Composed | AnyOf | RandomParticipation


def repeated(event: Event, times: float) -> Event:
    """`times` adaptively composed copies; numbers of steps, rounds and epochs are rounded up to whole ones.

    Raises: ConfigurationError if `times` is negative or not finite.
    """
    errors.require_not_negative("times", times)
    match event:
        case Release():
            return event.repeated(times)
        case Composed():
            return event.mapped(lambda part: repeated(part, times))
        case AnyOf():
            count = math.ceil(event.times * times * (1 - 1e-12))
            return dataclasses.replace(event, times=count) if count else Composed(())
        case RandomParticipation(rounds=rounds):
            count = math.ceil(rounds * times * (1 - 1e-12))
            return dataclasses.replace(event, rounds=count) if count else Composed(())


def of_group(event: Event, unit: Unit, group: int) -> Event:
    """The event of a unit with at most `group` records, from the event of one record.

    Raises: NotCoveredError for releases that do not state the cost of several records.
    """
    match event:
        case GaussianSteps():
            return dataclasses.replace(event, unit=unit, group=group)
        case Composed() | AnyOf():
            return event.mapped(lambda part: of_group(part, unit, group))
        case RandomParticipation():
            return dataclasses.replace(event, each=of_group(event.each, unit, group))
    noise = event.noise or type(event).__name__
    raise NotCoveredError(f"{noise} does not state the cost of several records of one {unit.value}; use Gaussian noise")


def joined(events: Sequence[Event]) -> Event:
    return events[0] if len(events) == 1 else Composed(tuple(events))


def adjacency_of(events: Iterable[Event]) -> Adjacency | None:
    """The adjacency of the releases; None if nothing is released."""
    return next((step.adjacency for event in distinct(events) for step, _ in event.leaves()), None)


def distinct(ledger: Iterable[Event]) -> list[Event]:
    """The distinct events of a ledger. A million clients share few objects, so few are hashed."""
    return list(dict.fromkeys({id(event): event for event in ledger}.values()))


def each(ledger: Iterable[K], of: Callable[[K], T], progress: Callable[[int, int], None] | None = None) -> list[T]:
    """`of(event)` for every event of a ledger, evaluated once for each distinct one.

    progress  called with (distinct events done, distinct events).
    """
    ledger = list(ledger)
    shared = {id(event): event for event in ledger}
    kinds, values = dict.fromkeys(shared.values()), dict[K, T]()
    for event in kinds:
        values[event] = of(event)
        if progress:
            progress(len(values), len(kinds))
    by_id = {key: values[event] for key, event in shared.items()}
    return [by_id[id(event)] for event in ledger]


def number_events(ledger: Iterable[Event]) -> tuple[list[Event], np.ndarray]:
    """The distinct events of a ledger, and the index of each client's event among them."""
    ledger = list(ledger)
    kinds = distinct(ledger)
    places = {event: place for place, event in enumerate(kinds)}
    return kinds, np.array(each(ledger, places.__getitem__), int)


def combine_by_client(ledgers: Iterable[Sequence[Event]], of: Callable[..., Event]) -> list[Event]:
    """`of` the events of every client in all these ledgers, evaluated once for clients that share them."""
    made: dict[tuple[int, ...], Event] = {}
    columns = list(zip(*ledgers, strict=True))
    for events in columns:
        if (key := tuple(map(id, events))) not in made:
            made[key] = of(*events)
    return [made[tuple(map(id, events))] for events in columns]
