"""The ledger of a run, readable without the run: lines of JSON, first phases (`models.origins`), then rounds.

The line of a round contains what was released of which clients, and the cost of this and all earlier rounds. `clients`
are (ids, or pairs of first and last id) with the index of their event in `events`. If `so_far` is true, the events
cover all rounds up to this one, as for noise that is correlated over rounds. `as_round` names another round with the
same events and clients. A last line that is incomplete, because the run was killed, does not count.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import sampling
from fedjax_dp.accounting.accountants import ACCOUNTANTS, epsilons_of
from fedjax_dp.accounting.events import AnyOf, Composed, Event, Past, RandomParticipation, joined, repeated
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.releases import BoundedRange, GaussianSteps, SkellamSums, StatedPrivacy
from fedjax_dp.accounting.views import View

VERSION = 2
ROUND = "round"  # the kind of a round's line; others are phases
KINDS: dict[str, type[Any]] = {
    "gaussian": GaussianSteps,
    "skellam": SkellamSums,
    "range": BoundedRange,
    "stated": StatedPrivacy,
    "composed": Composed,
    "past": Past,
    "any_of": AnyOf,
    "random_participation": RandomParticipation,
    "none": sampling.FullBatch,
    "poisson": sampling.Poisson,
    "without_replacement": sampling.WithoutReplacement,
    "with_replacement": sampling.WithReplacement,
    "any_step": sampling.AnyStep,
    "shuffled": sampling.Shuffled,
    "allocation": sampling.RandomAllocation,
    "bins": sampling.BallsInBins,
    "truncated_poisson": sampling.TruncatedPoisson,
}
OF_LINE = ("adjacency", "unit")  # fields of events that stand once in a line
NO_PRICE = "own"  # an event whose class only its author has
FIELDS: dict[str, tuple[type, ...]] = {
    "round": (int,),
    "unit": (str,),
    "adjacency": (str, type(None)),
    "view": (str,),
    "delta": (float, int, type(None)),
    "accountant": (str,),
    "epsilon_planned": (float, int, type(None)),
    "priced_at": (int, type(None)),
    "epsilon_at_any_time": (float, int, type(None)),
    "budget": (float, int, type(None)),
    "left": (float, int, type(None)),
    "halt": (str, type(None)),
    "law": (dict,),
    "deployment": (dict, type(None)),
}
LAW = ("participation", "stop")  # what a line may say of how rounds are counted
Line = Mapping[str, Any]
MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)  # of JSON that no run wrote


def encode_event(event: Any) -> dict[str, Any]:
    """An event or a sampling as JSON: its kind and its fields."""
    kind = next((name for name, made in KINDS.items() if type(event) is made), None)
    if kind is None:
        return {"kind": NO_PRICE, "name": type(event).__name__}
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {"kind": kind} | {name: _plain(value) for name, value in fields.items() if name not in OF_LINE}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if dataclasses.is_dataclass(value):
        return encode_event(value)
    return value if isinstance(value, str | int | float) else value.item()


def decode_event(content: Any, adjacency: Adjacency, unit: Unit) -> Any:
    """The inverse of `encode_event`.

    Raises: ConfigurationError for an unknown kind, or one with the fields of another version; ValueError for content
            that is no event.
    """
    if not isinstance(content, dict):
        raise ValueError("an event that is none")
    kind = content.get("kind")
    if kind == NO_PRICE:
        got, remedy = f"{content.get('name')}, code of its user", "the run's Guarantee has its epsilon"
        raise errors.refuse("an event of the ledger", got, "of the package", remedy)
    errors.require_choice("kind of an event of the ledger", str(kind), KINDS)
    made = KINDS[str(kind)]
    names = [field.name for field in dataclasses.fields(made)]
    if set(content) - {"kind"} != set(names) - set(OF_LINE):
        got, wanted = f"{kind} with the fields of another version", "as this version writes it"
        raise errors.refuse("an event of the ledger", got, wanted, "run the configuration beside the ledger anew")
    values = {name: _value(value, adjacency, unit) for name, value in content.items() if name != "kind"}
    values |= {name: value for name, value in zip(OF_LINE, (adjacency, unit)) if name in names}
    return made(**values)


def _value(value: Any, adjacency: Adjacency, unit: Unit) -> Any:
    if isinstance(value, list):
        return tuple(decode_event(one, adjacency, unit) for one in value)
    return decode_event(value, adjacency, unit) if isinstance(value, dict) else value


def ranges(ids: np.ndarray) -> list[Any]:
    """Compress increasing ids: three or more consecutive ones become [first, last]."""
    if not ids.size:
        return []
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return [one for run in runs for one in ([[int(run[0]), int(run[-1])]] if run.size > 2 else run.tolist())]


def encode_events(kinds: Sequence[Event], kind: np.ndarray, members: np.ndarray) -> dict[str, Any]:
    """Events as JSON with the members of each; client k has the event `kinds[kind[k]]`, `kind` is `(num_clients,)`."""
    there = np.unique(kind[members])
    return {
        "events": [encode_event(kinds[at]) for at in there],
        "clients": [[ranges(members[kind[members] == at]), place] for place, at in enumerate(there)],
    }


def ids_of(listed: Iterable[Any], num_clients: int) -> np.ndarray:
    """The inverse of `ranges`.

    Raises: ValueError for unknown clients.
    """
    ends = [one if isinstance(one, list) else [one, one] for one in listed]
    ids = np.concatenate([np.arange(first, last + 1) for first, last in ends]) if ends else np.zeros(0, int)
    if ids.size and not (ids.min() >= 0 and ids.max() < num_clients):
        raise ValueError(f"client {ids.max()} of {num_clients}")
    return ids


def as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def text_of(lines: Iterable[Line]) -> str:
    """The text of these lines in the file."""
    return "".join(f"{as_json(line)}\n" for line in lines)


def read_line(text: str) -> dict[str, Any]:
    """Parse a line of any kind.

    Raises: ValueError for invalid lines.
    """

    def finite(number: str) -> float:
        if not math.isfinite(float(number)):  # as NaN, or 1e999
            raise ValueError(f"{number[:40]}, which is no number of JSON")
        return float(number)

    line = json.loads(text, parse_constant=finite, parse_float=finite)
    if not isinstance(line, dict) or not isinstance(line.get("ledger"), int):
        raise ValueError("no phase")
    return line


def phases_in(text: str) -> str:
    """The lines of phases, which precede those of rounds, unchanged."""
    kept = []
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("{") and f'"kind":"{ROUND}"' in line[:60].replace(" ", ""):
            break
        kept.append(line)
    return "".join(kept)


@dataclasses.dataclass(frozen=True)
class Ledger:
    """The rounds of a run in its ledger.

    phase  the run's own phase, the last before its rounds;
    lines  the lines of the rounds, from 0;
    is_cut  whether the file ends with an incomplete line, which does not count;
    prior_phases  phases that its epsilons cover too.
    """

    phase: Mapping[str, Any]
    lines: tuple[Line, ...]
    is_cut: bool = False
    prior_phases: tuple[Mapping[str, Any], ...] = ()

    @property
    def num_clients(self) -> int:
        return self.phase["clients"]["count"]

    @property
    def rounds(self) -> int:
        return len(self.lines)

    @property
    def last(self) -> Line:
        """The line of the last round.

        Raises: ConfigurationError before the first.
        """
        if not self.lines:
            raise errors.refuse("ledger", "no rounds", "of a run that has done some", "it grows as the run goes on")
        return self.lines[-1]

    @property
    def follows_results(self) -> bool:
        """Whether results may end the run: then the cost of planned rounds is no bound."""
        return bool(self.lines) and "stop" in self.lines[0].get("law", {})

    def events(self, rounds: int | None = None) -> list[Event]:
        """The event of each client in the first `rounds` rounds (default: all).

        Raises: ConfigurationError for unknown events, and for content that no run writes.
        """
        places: dict[Event, int] = {}
        counts: list[np.ndarray] = []
        latest = np.full(self.num_clients, -1)
        with errors.refuse_errors("ledger", _edit_message, "as the run wrote it", "put it back", MALFORMED):
            for at, uses in Counter(line.get("as_round", line["round"]) for line in self.lines[:rounds]).items():
                line = self.lines[at]
                events = [decode_event(one, Adjacency(line["adjacency"]), Unit(line["unit"])) for one in line["events"]]
                for listed, number in line["clients"]:
                    place = places.setdefault(events[number], len(places))
                    if place == len(counts):
                        counts.append(np.zeros(self.num_clients, np.int64))
                    ids = ids_of(listed, self.num_clients)
                    if line["so_far"]:
                        latest[ids] = place
                    else:
                        counts[place][ids] += uses
        if not counts:
            return [Composed(())] * self.num_clients
        kinds, kind = np.unique(np.stack([latest, *counts]), axis=1, return_inverse=True)
        sums = [_sum(list(places), column) for column in kinds.T]
        return [sums[one] for one in np.ravel(kind)]

    def epsilons(
        self, delta: float | None = None, accountant: str | None = None, rounds: int | None = None
    ) -> list[float]:
        """Epsilon of each client after `rounds` rounds (default: all), by default at the run's delta and accountant.

        Raises: ConfigurationError for a run without an epsilon, and for one that results may end.
        """
        if self.follows_results:
            wanted, remedy = "of one whose rounds were planned", "its Guarantee has its epsilon"
            raise errors.refuse("ledger", "one of a run that results may end", wanted, remedy)
        last = self.last
        if not self.lines[0]["events"]:
            raise errors.refuse("ledger", "one of a run without", "of a run that has an epsilon")
        return epsilons_of(self.events(rounds), delta or last["delta"], accountant or last["accountant"])


def _sum(events: Sequence[Event], column: np.ndarray) -> Event:
    """The event of a client: everything so far, or as many of each kind as its rounds have."""
    latest, *counts = column.tolist()
    if latest >= 0:
        return events[latest]
    return joined([repeated(event, count) for event, count in zip(events, counts) if count])


def read_rounds(text: str, phase: Mapping[str, Any], where: str) -> Ledger:
    """The rounds in the text of a ledger whose own phase is known.

    Raises: ConfigurationError for lines that are invalid, missing or of another version.
    """
    rest = text[len(phases_in(text)) :]
    *whole, cut = rest.split("\n")
    lines: list[Line] = []
    for number, words in enumerate(whole):
        at = f"{where}: the line of round {number}"
        with errors.refuse_errors(at, _edit_message, "as the run wrote it", "put it back", MALFORMED):
            line = read_line(words)
            if line["ledger"] != VERSION:
                got, wanted = f"of version {str(line['ledger'])[:20]}", f"of version {VERSION}, which is known here"
                raise errors.refuse(at, got, wanted, "read it with the version that wrote it")
            _require_whole(line, number, lines)
        lines.append(line)
    return Ledger(phase, tuple(lines), bool(cut))


def _edit_message(error: Exception) -> str:
    return f"edited since ({' '.join(str(error).split())[:60]})"


def _require_whole(line: Line, number: int, lines: Sequence[Line]) -> None:
    if line.get("kind") != ROUND:
        raise ValueError(f"kind {str(line.get('kind'))[:40]!r}")
    for name, kinds in FIELDS.items():
        if type(line.get(name)) not in kinds or (isinstance(line[name], float) and not math.isfinite(line[name])):
            raise ValueError(f"{name} {str(line.get(name))[:40]!r}")
    for name in line.get("law", ()):
        errors.require_choice("a law of the ledger", name, LAW)
    if line["round"] != number:
        raise ValueError(f"round {line['round']}")
    Unit(line["unit"]), View(line["view"]), Adjacency(line["adjacency"] or Adjacency.ADD_REMOVE)
    if line["accountant"] not in ACCOUNTANTS or not 0 < (line["delta"] or 0.5) < 1:
        raise ValueError(f"accountant {line['accountant'][:40]!r} at delta {line['delta']}")
    as_round = line.get("as_round")
    if as_round is None:
        if not all(isinstance(line[name], list) for name in ("events", "clients")) or type(line["so_far"]) is not bool:
            raise ValueError("no events or clients")
    elif type(as_round) is not int or "events" not in lines[as_round]:
        raise ValueError(f"as_round {as_round}")
