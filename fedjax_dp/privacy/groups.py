"""Units above the record: all records of a user, a text or a token, of which each client holds a bounded number."""

import contextlib
import dataclasses
import functools

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Composed, Event, GaussianSteps, NotCoveredError, Unit, squared_mu
from fedjax_dp.accounting.events import distinct, each, of_group
from fedjax_dp.data.store import FederatedData, UnitBound
from fedjax_dp.privacy.qualifiers import Qualifier

BOUNDED_BY = {  # how one comes to know how many records a unit has
    Unit.USER: "give --user-column and --records-per-user of a table (Dataset.unit_ids and bounds)",
    Unit.TEXT: "give --windows-per-text of texts that are cut into windows (Dataset.unit_ids and bounds)",
    Unit.TOKEN: "use texts that are cut into windows, each text at one client",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups(Qualifier):
    """A qualifier: the Guarantee protects a group of records."""

    bound: UnitBound
    data: FederatedData

    def rounds(self, events: list[Event]) -> list[Event]:
        """The releases of the rounds for all records of a unit with records at each client.

        If sizes are public, a unit has at most the records of the client; for add-remove it may bring more. A unit
        with records at several clients is assumed to have the others at the most costly clients: releases compose.
        Raises: ConfigurationError if the most costly client is unknown.
        """
        bound = self.bound

        @functools.cache
        def of_unit(event: Event, records: int) -> Event:
            joins = any(step.adjacency is Adjacency.ADD_REMOVE for step, _ in event.leaves())
            return of_group(event, bound.unit, bound.records if joins else min(bound.records, records))

        at_client = [of_unit(*one) for one in zip(events, np.asarray(self.data.sizes).tolist(), strict=True)]
        others = min(bound.clients, self.data.num_clients) - 1
        if not others:
            return at_client
        elsewhere = (_dearest(distinct(at_client), bound.unit),) * others
        return each(at_client, lambda event: Composed((event, *elsewhere)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptRecords(Qualifier):
    """A qualifier: the Guarantee is for another unit than that of which the data keep the first records alone."""

    bound: UnitBound
    unit: Unit
    keeps_claims: bool = True

    def rounds(self, events: list[Event]) -> list[Event]:
        """The same events.

        Raises: ConfigurationError for a record or token that may leave, as the next one of its user or text comes in.
        """
        joins = any(step.adjacency is Adjacency.ADD_REMOVE for event in distinct(events) for step, _ in event.leaves())
        if joins and self.unit is not Unit.CLIENT:
            wanted = f"{self.bound.unit.value}, of which another record is kept where one leaves"
            raise errors.refuse("unit", self.unit.value, wanted, "drop it, or use batches of a fixed size")
        return events


def of_kept(bound: UnitBound, unit: Unit) -> KeptRecords:
    """The qualifier of a Guarantee for `unit` where each unit of the bound has its first records kept."""
    owner = bound.unit.value
    rule = f"which records are kept of a {owner} is fixed beforehand"
    words = "with or without a client" if unit is Unit.CLIENT else f"what takes the place of a record is of its {owner}"
    return KeptRecords(bound=bound, unit=unit, assumptions=(f"{rule}: {words}",))


def of_groups(bound: UnitBound, data: FederatedData) -> Groups:
    """The qualifier of a unit with a bounded number of records."""
    return Groups(bound=bound, data=data, assumptions=(_rule(bound),))


def require_bound(unit: Unit, data: FederatedData) -> None:
    """Refuse a unit without a bound on its records, or features that were learnt from training records."""
    if data.bound_of(unit) is None:
        raise errors.refuse("unit", unit.value, "one whose records the data bound", BOUNDED_BY[unit])
    if data.learnt:
        wanted = "record where features were made with training records"
        raise errors.refuse("unit", unit.value, wanted, f"these were: {data.learnt[0]}")


def _rule(bound: UnitBound) -> str:
    """How many records the unit has, and by what rule."""
    unit, records = bound.unit, bound.records
    if unit is Unit.TOKEN:
        return f"a token stands in at most {records} records, all at one client, by how texts are cut"
    by_rule = "by a rule that knows ids alone"
    if bound.clients == 1:
        first = "the first in the order of the data, at the first client that has some"
        return f"a {unit.value} has at most {records} records, all at one client: {first}, {by_rule}"
    return (
        f"a {unit.value} has at most {records} records at each of at most {bound.clients} clients: the first in "
        f"the order of the data, {by_rule}; beside each client it may have the dearest others"
    )


def _dearest(events: list[Event], unit: Unit) -> Event:
    """An event that costs no less than each of these, whatever delta."""
    costly = [event for event in events if any(True for _ in event.leaves())]
    if len(costly) < 2:
        return costly[0] if costly else Composed(())
    with contextlib.suppress(NotCoveredError, ZeroDivisionError):  # of sampled sums, and without noise
        return max(costly, key=squared_mu)
    steps = [event for event in costly if isinstance(event, GaussianSteps)]
    kinds = {dataclasses.replace(step, noise_multiplier=1.0, count=0) for step in steps}
    if len(kinds) == 1 and len(steps) == len(costly):
        least, most = min(step.noise_multiplier for step in steps), max(step.count for step in steps)
        return dataclasses.replace(steps[0], noise_multiplier=least, count=most)
    wanted = f"at one client where a {unit.value} at several may have the dearest ones, and none is known to be"
    raise errors.refuse("unit", unit.value, wanted, "use clients of one size, full batches or epochs")
