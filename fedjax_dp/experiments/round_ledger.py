"""The ledger file of a run's folder: the phases, then a line for each round, added as the run goes on."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.accounting.composed_phases import counted_with
from fedjax_dp.accounting.ledger import Ledger, phases_in, read_rounds, text_of
from fedjax_dp.display import comma_separated, finite
from fedjax_dp.experiments import phases
from fedjax_dp.models.origins import LEDGER, RUN, phases_of
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.protection import noise_of

if TYPE_CHECKING:
    from fedjax_dp.experiments.training import Experiment

BY_ROUND, BY_CLIENT = "ledger.csv", "clients.csv"
COLUMNS = ("round", "epsilon_planned", "priced_at", "epsilon_at_any_time", "budget", "left", "halt")  # and deployment
PUT_BACK = "put it back, or start a new run"


def read_text(file: pathlib.Path) -> str:
    """The whole file.

    Raises: ConfigurationError where it is none that can be read, or empty.
    """
    try:
        text = file.read_text()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise errors.refuse(str(file), "something else", "the ledger of a run", reason) from None
    if not phases_in(text).strip():
        raise errors.refuse(str(file), "a file without phases", "the ledger of a run", PUT_BACK)
    return text


def read_ledger(path: pathlib.Path) -> Ledger:
    """The rounds in a ledger file, or in that of a run's folder.

    Raises: ConfigurationError in one line for what is none, or is of another version.
    """
    file = path / LEDGER if path.is_dir() else path
    text = read_text(file)
    *_, phase = every = phases_of(text, str(file))
    if phase["kind"] != RUN:
        raise errors.refuse(str(file), f"a ledger that ends with {phase['kind']}", "that of a run", PUT_BACK)
    return dataclasses.replace(read_rounds(text, phase, str(file)), before=counted_with(every))


def require_own(folder: pathlib.Path, ready: "Experiment") -> None:
    """Refuse a ledger that was edited, or is another run's.

    It may be of fewer rounds: a kill may come while a run goes on to more.
    """
    phase, guarantee = read_ledger(folder).phase, ready.guarantee
    own: dict[str, Any] = {
        "algorithm": ready.name,
        "dataset": ready.planned.data.name,
        "view": guarantee.view.value,
        "delta": guarantee.delta,
    }
    stated = dict(phase)
    if ready.spending.private:
        stated["epsilon"] = (phase.get("deployment") or phase)["epsilon"]
        own["rounds"] = min(phase["rounds"], ready.rounds)
        own["epsilon"] = finite(ready.spending.epsilon(own["rounds"]))
    for name, value in own.items():
        if stated[name] != value:
            got = f"of another run, with {name} {stated[name]}"
            raise errors.refuse(str(folder / LEDGER), got, f"this run's, with {name} {value}", PUT_BACK)


def carry_on(file: pathlib.Path, ready: "Experiment") -> None:
    """The file as the run goes on with it: without what a kill cut off, and with the number of rounds it goes to.

    What rounds that are done have cost is not worked out again.
    """
    text, held = read_text(file), read_ledger(file)
    before = phases.longer(phases_in(text), ready.planned, ready.guarantee)
    lines = []
    for line in held.lines:
        ends = line["halt"] if line["halt"] == "rule" or line["round"] + 1 == ready.rounds else None
        lines.append(dict(line) | {"halt": ends})
    made = before + text_of(lines)
    if made != text:
        folders.write_atomically(file, made)


class RoundLedger:
    """Adds the lines of rounds to the ledger of a run that is trained in a folder."""

    def __init__(self, folder: pathlib.Path, ready: "Experiment") -> None:
        self._file, self._ready = folder / LEDGER, ready
        self._next = read_ledger(folder).rounds

    def write(self, done: int) -> None:
        """The lines of all rounds up to `done` that are not there yet."""
        if done <= self._next:
            return
        with self._file.open("a") as opened:
            opened.write(text_of(self._ready.spending.lines(self._next, done, *self._ready.end)))
        self._next = done


def write_tables(folder: pathlib.Path, ready: "Experiment") -> None:
    """The same for people: `ledger.csv` by round, of the worst client, and `clients.csv`."""
    lines = read_ledger(folder).lines
    by_round = [[*(line[name] for name in COLUMNS), ready.guarantee.mark] for line in lines]
    folders.write_atomically(folder / BY_ROUND, comma_separated((*COLUMNS, "deployment"), by_round))
    rows = [list(row.values()) for row in clients_table(ready)]
    folders.write_atomically(folder / BY_CLIENT, comma_separated(CLIENT_COLUMNS, rows))


CLIENT_COLUMNS = (
    "client",
    "records",
    "noise_multiplier",
    "rounds",
    "releases",
    "epsilon",
    "budget",
    "left",
    "deployment",
)


def clients_table(ready: "Experiment") -> list[dict[str, Any]]:
    """What each client has been promised, a row for each."""
    planned, guarantee = ready.planned, ready.guarantee
    num_clients, sizes = planned.data.num_clients, np.asarray(planned.data.sizes).tolist()
    private = ready.spending.private
    noise = noise_of(planned.algorithm) if private else None
    noises = [None] * num_clients if noise is None else np.broadcast_to(np.asarray(noise, float), num_clients).tolist()
    events = client_events(planned) if private else [None] * num_clients
    releases = {id(event): sum(count for _, count in event.leaves()) for event in events if event is not None}
    rounds = ready.spending.counts(ready.end[0]).tolist()
    known = planned.terms.any_budget is not None
    budgets = planned.terms.budgets(num_clients) if known else [None] * num_clients
    rows = []
    for client, (records, z, event, budget) in enumerate(zip(sizes, noises, events, budgets, strict=True)):
        epsilon = guarantee.epsilons[client] if private else None
        left = None if budget is None or epsilon is None else budget - epsilon
        spent = (rounds[client], releases.get(id(event)), epsilon, budget, left)
        rows.append(dict(zip(CLIENT_COLUMNS, (client, records, z, *spent, guarantee.mark), strict=True)))
    return rows
