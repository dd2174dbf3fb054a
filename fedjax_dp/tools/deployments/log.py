"""A log of the actual rounds, from a CSV file: a row for each message, or for each round if a server adds the noise.

Rows replace the sampling laws: clients are counted for the rounds that they take part in, without amplification. The
file is read row by row; only the kinds of rows are kept, and how often each client has them.
"""

import collections
import csv
import dataclasses
import io
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fedjax_dp import errors, folders
from fedjax_dp.accounting import ACCOUNTANTS, FullBatch
from fedjax_dp.accounting.events import AnyOf, joined, repeated
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.tools.deployments.description import (
    UNKNOWN,
    Clients,
    Deployment,
    RecordDraws,
    Weights,
    missing_facts_error,
)
from fedjax_dp.tools.deployments.mechanism import (
    VIEWS,
    Draw,
    GaussianCost,
    Mechanism,
    assumptions_of,
    bound_of,
    draw_of,
    gaussian_cost,
    missing_facts,
    multiplier,
    noise_std,
    releases,
    view_of,
)
from fedjax_dp.tools.deployments.rules import Effect, Finding, as_tuple
from fedjax_dp.tools.deployments.witness import witness_of

EVERYBODY = ""  # the client of rows without a name
CLOSE = 1e-6  # relative tolerance of sums of shares, and of norms against the bound
NUMBERS = {  # columns of numbers with their checks
    "replies": errors.require_count,
    "share": errors.require_positive,
    "clip": errors.require_positive,
    "noise_std": errors.require_not_negative,
    "steps": errors.require_count,
    "rate": errors.require_positive,
    "batch": errors.require_count,
    "of": errors.require_count,
    "noise_multiplier": errors.require_not_negative,
    "norm_after": errors.require_not_negative,
}
WORDS = {
    "sampling": ("full", "poisson", "fixed", "with-replacement", "shuffled", "unknown"),
    "weights": ("equal",),
    "received": ("0", "1", "true", "false"),  # a message counts, received or not
}
COLUMNS = ("round", "client", *NUMBERS, *WORDS)
FREE = (  # facts of the deployment that rows may replace
    "clients.size",
    "clients.rate",
    *(f"records.{name}" for name in ("of", "size", "rate", "steps")),
    "clip.bound",
    "noise.std",
    "noise.calibration",
    "weights.largest",
)
# facts that rows replace
REPLACED = (
    *FREE,
    "clients",
    "rounds",
    "records.law",
    "records.last",
    "weights.denominator",
    "claim.assumes.population",
    "claim.assumes.cohort",
)
SHOWN = ("norm_after", "received")  # columns without effect on the account
OF_RECORDS = {"law": "sampling", "steps": "steps", "of": "of", "rate": "rate", "size": "batch"}  # facts by column
COUNTS = ("replies", "steps", "batch", "of")

Values = dict[str, Any]


class Row(NamedTuple):
    number: int  # in the file, the header is 1
    round: int
    client: str
    cells: tuple[str, ...]  # of columns with an effect
    shown: tuple[str, ...]  # of the others


class Kind(NamedTuple):
    """The cost of equal rows, computed once."""

    cost: GaussianCost | None  # None without noise
    values: Values
    share: float  # at most
    ratio: float  # of the noise to the bound
    multiplier: float
    drawn: Draw


def mechanism_of_log(
    deployment: Deployment, path: str | os.PathLike[str], view: str | None = None, facts_read: set[str] | None = None
) -> tuple[Callable[[], Mechanism], list[Finding]]:
    """A function that accounts for the noisy updates of a log, and the findings in the log.

    Facts of the deployment that the cost uses are added to `facts_read`.

    Raises: ConfigurationError for an invalid file, and for impossible rows.
    """
    if deployment.noise.law == "laplace":
        raise errors.refuse("noise.law", "laplace", "gaussian for a log", "leave --log out")
    _require_priced_by_rows(deployment)
    reader = _Reader(pathlib.Path(path))
    facts_read = set() if facts_read is None else facts_read
    kinds: dict[tuple[str, ...], Kind] = {}
    taken: dict[str, collections.Counter[tuple[str, ...]]] = collections.defaultdict(collections.Counter)
    spread: dict[str, set[float]] = collections.defaultdict(set)
    shares, current, rounds = 0.0, -1, 0
    findings: dict[str, Finding] = {}
    each, exact = "client" in reader.columns, "share" in reader.columns
    for row in reader:
        if row.cells not in kinds:
            where, of_all = f"{reader.path.name} row {row.number}", "client" not in reader.columns
            kinds[row.cells] = _kind(deployment, reader.values(row), where, of_all, facts_read)
        kind = kinds[row.cells]
        if row.round != current:
            if each:
                _require_whole(shares, current, reader.path.name, exact)
            shares, current, rounds = 0.0, row.round, rounds + 1
        shares += 0.0 if exact and "share" not in kind.values else kind.share
        taken[row.client][row.cells] += 1
        for finding in _findings_of_row(kind, row, reader.values(row, shown=True), spread, deployment):
            findings.setdefault(finding.code, finding)
    if current < 0:
        raise errors.refuse("log", str(path), "a file with rows below its header")
    if each:
        _require_whole(shares, current, reader.path.name, exact)
    least, most = (limit(kind.ratio for kind in kinds.values()) for limit in (min, max))
    if deployment.clip.threshold == "adaptive" and most > least * (1 + CLOSE):
        remedy = "noise that does not follow an adaptive bound has no epsilon"
        raise errors.refuse("noise_std over clip", f"{least:.4g} to {most:.4g}", "the same in all rows", remedy)
    clients = len(taken.keys() - {EVERYBODY})
    if clients > (deployment.clients.of or clients):
        wanted = f"at most clients.of, {deployment.clients.of}"
        raise errors.refuse(f"{reader.path.name}: clients", f"{clients} names", wanted, "write each client in one way")

    def count() -> Mechanism:
        return _mechanism_of_rows(deployment, kinds, taken, view, rounds)

    return count, list(findings.values())


class _Reader:
    """The validated rows of a CSV file, in order."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        if not path.is_file():
            raise errors.refuse("log", str(path), "an existing CSV file", folders.where_looked(path))
        with self._open() as file:
            header = next(csv.reader(file), [])
        first = ",".join(header)
        where = f"{path.name} row 1"
        if first.startswith("\ufeff"):
            raise errors.refuse(
                f"{where}, column {header[0][1:]}", "a byte-order mark", "plain", "save as UTF-8, no BOM"
            )
        if ";" in first:
            raise errors.refuse(f"{where}, column {header[0]}", "semicolons", "separated from the next by a comma")
        self.columns = [name.strip() for name in header]
        for name in self.columns:
            errors.require_choice(f"{where}: a column", name, COLUMNS)
        if len(set(self.columns)) < len(self.columns):
            raise errors.refuse(where, first, "each column once")
        if "round" not in self.columns:
            raise errors.refuse(where, first, "with a column round")
        others = [place for place, name in enumerate(self.columns) if name not in ("round", "client")]
        self._shown = [place for place in others if self.columns[place] in SHOWN]
        self._counted = [place for place in others if self.columns[place] not in SHOWN]

    def _open(self) -> io.TextIOWrapper:
        return open(self.path, encoding="utf-8-sig", newline="")

    def __iter__(self) -> Iterator[Row]:
        place = self.columns.index("round")
        who = self.columns.index("client") if "client" in self.columns else None
        last, present = -1, set[str]()
        with self._open() as file:
            lines = csv.reader(file)
            next(lines)
            number = 1
            while True:
                number += 1
                try:
                    cells = next(lines, None)
                except (csv.Error, UnicodeDecodeError) as error:
                    raise errors.refuse(f"{self.path.name} row {number}", "no CSV", "text", str(error)) from None
                if cells is None:
                    return
                if not cells:
                    continue
                where = f"{self.path.name} row {number}"
                if any("\n" in cell or "\r" in cell for cell in cells):
                    remedy = "a quotation mark without its other one takes the following rows into its cell"
                    raise errors.refuse(where, "a cell with a line break", "a row on one line", remedy)
                if len(cells) != len(self.columns):
                    remedy = "decimals have a point, and cells are separated by commas"
                    raise errors.refuse(where, f"{len(cells)} cells", f"{len(self.columns)} cells", remedy)
                if not cells[place].strip().isdecimal():
                    raise errors.refuse(f"{where}, column round", repr(cells[place]), "a number of a round")
                now, client = int(cells[place]), EVERYBODY if who is None else plain_name(cells[who])
                if now < last:
                    raise errors.refuse(f"{where}, column round", now, f"at least {last}: rounds ascend")
                if now > last:
                    last, present = now, set()
                if client in present:
                    whose = f"client {client!r} in " if client else ""
                    raise errors.refuse(where, f"a second row of {whose}round {now}", "the only one")
                present.add(client)
                counted = tuple([cells[other] for other in self._counted])
                yield Row(number, now, client, counted, tuple([cells[other] for other in self._shown]))

    def values(self, row: Row, shown: bool = False) -> Values:
        """The cells with an effect, or the others, in their types and without empty ones."""
        result: Values = {}
        for place, cell in zip(self._shown, row.shown) if shown else zip(self._counted, row.cells):
            name, text = self.columns[place], cell.strip()
            where = f"{self.path.name} row {row.number}, column {name}"
            if not text:
                continue
            if name in WORDS:
                errors.require_choice(where, text.lower(), WORDS[name])
                result[name] = text.lower()
                continue
            try:
                number = int(text) if name in COUNTS else float(text)
                if "_" in text:  # which Python skips
                    raise ValueError
            except ValueError:
                remedy = "decimals have a point" if "," in text else ""
                raise errors.refuse(where, repr(text), "an integer" if name in COUNTS else "a number", remedy) from None
            NUMBERS[name](where, number)
            result[name] = number
        return result


def _require_whole(shares: float, last: int, file: str, exact: bool) -> None:
    """Shares that are equal, or at most the largest, may be more than 1 together: of messages that did not arrive."""
    if last >= 0 and (abs(shares - 1) > CLOSE if exact else shares < 1 - CLOSE):
        remedy = "" if exact else "weights.largest is too small for so few uploads"
        raise errors.refuse(f"{file}: shares of round {last}", f"a sum of {shares:.9g}", "1 together", remedy)


def _kind(deployment: Deployment, values: Values, where: str, of_all: bool, facts_read: set[str]) -> Kind:
    """The release of one row: the deployment with the row's numbers."""
    try:
        one = witness_of(_with_row(deployment, values, of_all), facts_read)
    except errors.ConfigurationError as error:
        raise errors.ConfigurationError(f"{where}: {error}") from None
    z = multiplier(one)
    cost = None if z == 0 else gaussian_cost(one, releases(one))
    share, largest = _share(values), one.weights.largest
    if share is None:
        share = float(largest) if one.averages and largest not in (None, UNKNOWN) else 1.0
    return Kind(cost, values, share, noise_std(one) / bound_of(one), z, draw_of(one))


def _require_priced_by_rows(deployment: Deployment) -> None:
    """Refuse sampling laws whose cost no row determines."""
    records, law = deployment.records, deployment.clients.law
    if records is not None and records.law == "once" and deployment.clip.of == "record":
        wanted = "drawn again in each step, since rows are accounted for one by one"
        raise errors.refuse("records.law", "once", wanted, "leave --log out: one sample is kept for the whole run")
    twice = law in ("with-replacement", UNKNOWN) and deployment.noise.by == "server" and deployment.noise.on == "sum"
    if twice:
        wanted = "a law by which a client takes part at most once a round, for a log of sums"
        raise errors.refuse("clients.law", law, wanted, "leave --log out")


def _share(values: Values) -> float | None:
    """The share of a row; None where it says nothing of it."""
    if "share" in values or values.get("weights") != "equal":
        return values.get("share")
    if "replies" not in values:
        raise missing_facts_error(["replies"])
    return 1 / values["replies"]


def _with_row(deployment: Deployment, values: Values, of_all: bool) -> Deployment:
    """One round of the deployment with the numbers of a row. A row is of one client, so lists are ignored.

    of_all  whether the row is of all clients of a round, so that a share is the largest.
    """
    share, replies, among = _share(values), values.get("replies"), deployment.clients.of
    if replies is not None and among is not None and replies > among:
        raise errors.refuse("replies", replies, f"at most clients.of, {among}", "count clients, not their records")
    largest = share if share is not None else deployment.weights.largest
    central = deployment.noise.by == "server" and deployment.noise.on == "mean"
    if central and "share" not in values and deployment.clients.law in ("with-replacement", UNKNOWN):
        raise missing_facts_error(["share"])  # of a client that is perhaps drawn several times
    weights = dataclasses.replace(deployment.weights, largest=largest)
    clients = Clients(law="all")  # a row is of one client, which is in its round
    if of_all:  # of some clients, of whom nobody knows whom
        present = among if replies is None and deployment.clients.law == "all" else replies
        clients = Clients(law="fixed", size=replies or among, of=present if present == among else None, members="known")
    records = deployment.records
    if deployment.clip.of == "record":
        own = {fact: values[column] for fact, column in OF_RECORDS.items() if column in values}
        other = {"rate", "size"} if own.keys() & {"rate", "size"} else set()  # which of the two sizes the draw
        stated = {} if records is None else records.to_dict()
        stated = {name: value for name, value in stated.items() if name not in other and not isinstance(value, list)}
        stated |= own
        if "law" not in stated:
            raise missing_facts_error(["sampling"])
        records = RecordDraws.from_dict(stated)
    clip, noise = deployment.clip, deployment.noise
    bound: Any = values.get("clip", 1.0 if clip.bound is None and "noise_multiplier" in values else clip.bound)
    clip = dataclasses.replace(clip, bound=bound)
    if "noise_std" in values:
        noise = dataclasses.replace(noise, std=values["noise_std"], calibration=None)
    elif "noise_multiplier" in values:
        noise = dataclasses.replace(noise, std=1.0, calibration=None)
    if isinstance(noise.std, tuple) or isinstance(clip.bound, tuple):
        raise errors.refuse("noise.std and clip.bound", "lists", "columns of the log", "add noise_std and clip")
    one = dataclasses.replace(
        deployment, rounds=1, clients=clients, records=records, clip=clip, noise=noise, weights=weights
    )
    if missing := missing_facts(one):
        raise missing_facts_error(missing)
    if "noise_multiplier" in values:
        if noise.on == "mean" or not math.isclose(bound_of(one), bound):
            wanted = "left out for means and for bounds on tensors or coordinates, where systems differ"
            raise errors.refuse("noise_multiplier", values["noise_multiplier"], wanted, "write noise_std")
        std = values["noise_multiplier"] * bound
        if "noise_std" in values and abs(values["noise_std"] - std) > CLOSE * std:
            raise errors.refuse("noise_multiplier", values["noise_multiplier"], "that of noise_std", "keep one of them")
        one = dataclasses.replace(one, noise=dataclasses.replace(noise, std=std))
    return one


def _findings_of_row(
    kind: Kind, row: Row, shown: Values, spread: dict[str, set[float]], deployment: Deployment
) -> Iterator[Finding]:
    values = kind.values
    bound = values.get("clip", deployment.clip.bound)
    most = math.inf if bound is None else max(as_tuple(bound))
    if shown.get("norm_after", 0.0) > most * (1 + CLOSE):
        words = f"round {row.round} has an update of norm {shown['norm_after']:g} above the bound {most:g}"
        yield Finding("unclipped", words, Effect.NO_MECHANISM, remedy="clip each update")
    if kind.multiplier == 0:
        yield Finding("no_noise", f"round {row.round} has noise 0", Effect.NO_MECHANISM)
    std = values.get("noise_std")
    if std is not None:
        stds = spread[f"{row.client} {bound}"]
        stds.add(std)
        if len(stds) == 2:
            words = f"the noise changes from {min(stds):g} to {max(stds):g} while the clip bound stays {most:g}"
            yield Finding("noise_changes", words, Effect.COUNTED)


def _mechanism_of_rows(
    deployment: Deployment,
    kinds: dict[tuple[str, ...], Kind],
    taken: dict[str, collections.Counter[tuple[str, ...]]],
    view: str | None,
    rounds: int,
) -> Mechanism:
    """The composition of each client's rows; equal clients are computed once."""
    if len({kind.drawn.adjacency for kind in kinds.values()}) > 1:
        words = ", ".join(dict.fromkeys(kind.drawn.words for kind in kinds.values()))
        raise errors.refuse("log", words, "sums with one kind of neighbours", "check them in separate logs")
    costs: dict[frozenset[tuple[GaussianCost, int]], GaussianCost] = {}
    clients: list[GaussianCost] = []
    everybody = taken.pop(EVERYBODY, None)
    for counter in taken.values() or ([everybody] if everybody else []):
        parts: collections.Counter[GaussianCost] = collections.Counter()
        for key, times in [*counter.items(), *(everybody.items() if everybody and counter is not everybody else ())]:
            cost = kinds[key].cost
            assert cost is not None  # rows without noise are findings
            parts[cost] += times
        alike = frozenset(parts.items())
        if alike not in costs:
            costs[alike] = _compose_costs(sorted(alike, key=repr))
        clients.append(costs[alike])
    first = next(iter(kinds.values())).drawn
    without = dataclasses.replace(deployment, weights=Weights(), records=None)  # what rows state
    words = first.words if first.samplings != (FullBatch(),) else "clients are counted for the rounds that they are in"
    lines = (
        *assumptions_of(without, first._replace(words=words)),
        f"the log is whole: nothing is noised in the other {deployment.rounds - rounds} of {deployment.rounds} rounds"
        if deployment.rounds > rounds
        else "the log is whole",
        "the log is public: its numbers of replies and shares are a separate release",
    )
    return Mechanism(
        tuple(clients),
        tuple(kind.multiplier for kind in kinds.values()),
        deployment.clients.of or 1,
        deployment.protected_unit,
        first.adjacency,
        VIEWS[view_of(deployment, view)],
        ACCOUNTANTS["pld"].about,
        (*lines, *deployment.assumes),
    )


def _compose_costs(parts: list[tuple[GaussianCost, int]]) -> GaussianCost:
    """The composition of repeated releases; the worst case of each if a law is unknown."""
    events = [repeated(one.events[0] if len(one.events) == 1 else AnyOf(one.events), times) for one, times in parts]
    reals = [repeated(one.real, times) for one, times in parts if one.real is not None]
    return GaussianCost((joined(events),), joined(reals) if len(reals) == len(parts) else None)
