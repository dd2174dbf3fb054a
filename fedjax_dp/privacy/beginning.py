"""What the values that training begins with hold of the clients' records, as far as it is known.

A phase of training counts: the Guarantee is of it and of the run together, and there is none where that phase had no
privacy, or nobody says how much. It does not count where its records are others by name, both data sets being shipped
ones that share none, or where somebody denies it; the Guarantee then names the start. Records are not compared, as
those of a data set may have been cropped, mirrored, scaled or relabelled.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from fedjax_dp import errors
from fedjax_dp.accounting import Event, Unit, View, epsilons_of
from fedjax_dp.accounting.composed_phases import (
    Kind,
    Matched,
    Phase,
    about,
    events_for,
    events_of,
    is_private,
    kind_of,
    mapped,
    matched,
    sharing_draws,
    stated,
    without_price,
)
from fedjax_dp.accounting.guarantee import epsilon_text
from fedjax_dp.accounting.ledger import ranges
from fedjax_dp.data.names import share_no_records
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Origin
from fedjax_dp.models.origins import RUN, who_is_in

OF = "of the training alone, which begins with"
SAY_SO = "say that it holds none of these clients' records (start_private false) if that is so"


class Beginning(NamedTuple):
    """What a Guarantee says of the values that training begins with."""

    reason: str | None = None  # why there is no epsilon
    caveat: str | None = None  # what has to be read before the number
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    before: "tuple[Before, ...]" = ()  # phases that the Guarantee is of too

    @property
    def views(self) -> list[View]:
        """In which these are counted, as far as it is known."""
        views = (one.phase.get("view") for one in self.before)
        return [View(view) for view in views if view in {known.value for known in View}]

    @property
    def unattacked(self) -> "Beginning":
        """The same for a Guarantee of what follows these phases, where nobody attacks their own releases."""
        if not self.before:
            return self
        listed = ", ".join(about(one.phase) for one in self.before)
        caveat = f"{OF} the model of {listed}, whose own releases are not attacked"
        return self._replace(caveat="; ".join(filter(None, (self.caveat, caveat))), assumptions=(), before=())

    def counted_with_fewer(self, colluders: int) -> str | None:
        """That a phase before is counted against fewer helpers of the adversary than these, where some would matter."""
        for phase in (one.phase for one in self.before):
            known = phase.get("colluders")
            if known is not None and known < colluders and phase.get("view") != View.UPLOADS.value:
                return f"{about(phase)} before it is counted with {known} colluders: count both with as many"
        return None


class Before(NamedTuple):
    """A phase that is over, whose releases are of the clients too."""

    phase: Phase
    match: Matched

    def events(self, kind: Kind, num_clients: int) -> list[Event]:
        """What it releases of each client.

        An add-remove price is not always one for a zero in the place (as of an individual filter): where a sum is
        divided by who is drawn (`BoundedMean` with `least`), a client without its contribution still counts in the
        divisor, and one that is gone does not; sampling then hides it less, and no ledger says what was divided by.
        Raises: ConfigurationError where it is of another unit or other neighbours.
        """
        if (own := kind_of(self.phase)) is not None and own != kind:
            of_that, of_this = (f"one {unit} ({adjacency.value} neighbours)" for unit, adjacency in (own, kind))
            got = f"{about(self.phase)}, whose epsilon {self.phase['epsilon']:.4g} is for {of_that}"
            remedy = "these are two guarantees, which do not add up: each holds by itself"
            raise errors.refuse("the phase before", got, f"for {of_this}, as this run is", remedy)
        return events_for(self.phase, self.match, kind, num_clients)

    def left(self, delta: float, accountant: str, kind: Kind) -> str:
        """Which of its clients are not in what follows, and the epsilon that they keep; empty where all are."""
        gone = self.match.left
        if not gone.size:
            return ""
        events = events_of(self.phase, kind) or [stated(self.phase, kind)] * (int(gone.max()) + 1)
        kept = epsilon_text(max(epsilons_of([events[client] for client in gone.tolist()], delta, accountant)))
        listed = ", ".join("-".join(map(str, one)) if isinstance(one, list) else str(one) for one in ranges(gone))
        return f"clients {listed} of {about(self.phase)} are in it alone and keep {kept} at delta {delta:g}"


class _Sign(NamedTuple):
    """What speaks for a start being made of these clients' records, and whether a word to the contrary outweighs it."""

    reason: str
    deniable: bool = True


def beginning_of(origins: Iterable[Origin], data: FederatedData, unit: Unit) -> Beginning:
    """What is known of all of these values: the first reason against an epsilon, or all that the Guarantee has to name.

    unit  of the Guarantee: of a client it is not public who takes part, so that none is known by its name.
    """
    parts = [_one(origin, data, unit) for origin in origins]
    caveats = [part.caveat for part in parts if part.caveat]
    before = {one.phase["phase"]: one for part in parts for one in part.before}  # of two branches the common one once
    reasons = [part.reason for part in parts if part.reason]
    if (twice := sharing_draws(one.phase for one in before.values())) is not None:
        reasons.append(
            f"training begins with {twice}, whose noise may be the same numbers, which cancel where they are compared: "
            "run one again with another --seed"
        )
    return Beginning(
        next(iter(reasons), None),
        "; ".join(caveats) or None,
        tuple(line for part in parts for line in part.assumptions),
        tuple(line for part in parts for line in part.warnings),
        tuple(before.values()),
    )


def _one(origin: Origin, data: FederatedData, unit: Unit) -> Beginning:
    """What is known of one start. All that denies is a word; all that composes, a run's ledger or an epsilon."""
    signs = {phase["phase"]: sign for phase in origin.phases if (sign := _sign(phase, origin, data))}
    if origin.ledger and origin.trained_on is not None and _names(origin.trained_on, data.name):
        sign = _Sign(f"said to be trained on {origin.trained_on}, as these clients' data are called")
        signs |= {phase["phase"]: sign for phase in origin.phases if phase["phase"] not in signs}
    if origin.public is False or origin.stated is not None or origin.clients is not None:
        sign = _Sign("which was trained on records of these clients", deniable=False)
        known = [phase for phase in origin.phases if phase["kind"] == RUN or is_private(phase)]
        signs |= {phase["phase"]: sign for phase in known or origin.phases}
    counted = [name for name, sign in signs.items() if not (origin.public and sign.deniable)]
    facts = who_is_in(data, data.checksum, unit is not Unit.CLIENT) if counted else {}
    if origin.clients is not None:
        last = origin.phases[-1]
        facts = facts | {"mapped": {last["phase"]: mapped(origin.clients, last, facts)}}
    before = [Before(phase, matched(phase, facts)) for phase in origin.phases if phase["phase"] in counted]
    for phase in (one.phase for one in before if not is_private(one.phase)):
        sign = signs[phase["phase"]]
        remedy = f": {SAY_SO}" if sign.deniable else ""
        why = f": {without_price(phase)}" if phase["kind"] == RUN else ""
        return Beginning(f"training begins with {origin.name}, {sign.reason}{why}{remedy}")
    denied = next((sign for name, sign in signs.items() if name not in counted), None)
    by_name = bool(origin.ledger) and origin.public is None
    word = "treated as public" if by_name else "public on the word of whoever runs it"
    if denied is not None:
        return Beginning(caveat=f"{OF} {origin}, {word} although {denied.reason}", before=tuple(before))
    files = (phase for phase in origin.phases if phase["kind"] != RUN)
    unnamed = next((one["name"] for one in files if one["trained_on"] is None and one.get("stated") is None), None)
    if unnamed is not None and origin.trained_on is None and origin.public is None:
        if origin.foreign:
            reason = (
                f"training begins with parameters of unknown origin, {origin}, that may hold records of these clients"
            )
            return Beginning(f"{reason}: say what they were trained on (start_data), or {SAY_SO}")
        through = "" if unnamed == origin.name else f", through {unnamed}"
        return Beginning(
            caveat=f"{OF} parameters of unknown origin, {origin}{through}, that may hold records of these clients",
            warnings=(
                f"nobody says what {unnamed} was trained on: start_data names it, start_private says whether these "
                "clients' records are in it; a network that is to begin at random is given as a function of a key",
            ),
            before=tuple(before),
        )
    if before:
        lines = [f"training begins with {origin}"]
        for one in before:
            sign = signs[one.phase["phase"]]
            lines += [f"of {about(one.phase)}, {one.match.members}", *([sign.reason] if sign.deniable else [])]
        return Beginning(assumptions=("; ".join(lines),), before=tuple(before))
    made_of = "" if origin.trained_on else ", ".join(filter(None, map(_made_of, origin.phases)))
    made_of = f", made by {made_of}," if made_of else ","
    apart = ", as its data set shares no record with these clients'" if by_name else ""
    return Beginning(assumptions=(f"training begins with {origin}{made_of} which is {word}{apart}",))


def _sign(phase: Phase, origin: Origin, data: FederatedData) -> _Sign | None:
    """What speaks for a phase of training having seen these clients' records."""
    name = data.name
    if phase["kind"] != RUN:
        if phase.get("stated") is not None:
            return _Sign(f"made of {phase['name']}, which was trained on records of its clients")
        words = phase["trained_on"]
        named = words is not None and _names(words, name)
        through = f"made of {phase['name']}, " if origin.ledger else ""
        return _Sign(f"{through}said to be trained on {words}, as these clients' data are called") if named else None
    if share_no_records(phase["dataset"], name):
        return None
    made_by = f"made by {_made_of(phase)}"
    if phase["records"].get("checksum") == data.checksum:
        return _Sign(f"{made_by}, of these very records", deniable=False)
    if name and phase["dataset"] == name:
        return _Sign(f"{made_by}, as these clients' data are called")
    return _Sign(f"{made_by}, whose records may be these clients' in another form")


def _made_of(phase: Phase) -> str:
    if phase["kind"] == RUN:
        return f"a run on {phase['dataset'] or 'data without a name'}"
    return f"{phase['name']}, trained on {phase['trained_on']}" if phase["trained_on"] else ""


def _names(words: str, name: str) -> bool:
    """Whether words speak of a data set by its name, or by the last part of it."""
    parts = {name, name.rpartition(":")[2], name.rpartition("/")[2]} - {""}
    return any(re.search(rf"(?<![\w:]){re.escape(part)}(?![\w:])", words, re.IGNORECASE) for part in parts)
