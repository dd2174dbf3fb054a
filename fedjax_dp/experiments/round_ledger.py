"""The ledger file of a run's folder: the phases, then a line for each completed round."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.accounting import Event, Unit
from fedjax_dp.accounting.composed_phases import phases_counted_in
from fedjax_dp.accounting.events import each
from fedjax_dp.accounting.ledger import Ledger, phases_in, read_rounds, text_of
from fedjax_dp.display import comma_separated, finite
from fedjax_dp.experiments import phases
from fedjax_dp.models.origins import LEDGER, RUN, phases_of
from fedjax_dp.models.run_files import PUT_BACK, require_one_name, run_of
from fedjax_dp.privacy.protection import noise_of

if TYPE_CHECKING:
    from fedjax_dp.experiments.training import Experiment

BY_ROUND, BY_CLIENT = "ledger.csv", "clients.csv"
COLUMNS = ("round", "epsilon_planned", "priced_at", "epsilon_at_any_time", "budget", "left", "halt")  # and deployment


def read_text(file: pathlib.Path) -> str:
    """The whole file.

    Raises: ConfigurationError if it cannot be read or is empty.
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
    """The rounds in a ledger file or a run's folder.

    Raises: ConfigurationError in one line if it is no ledger, of another version, or in the folder of another run.
    """
    file = path / LEDGER if path.is_dir() else path
    text, run = read_text(file), run_of(file.parent)
    if run is not None and file.name == LEDGER:
        require_one_name(run, None if run == file.parent.resolve() else file.resolve().parents[1])
    *_, phase = every = phases_of(text, str(file))
    if phase["kind"] != RUN:
        raise errors.refuse(str(file), f"a ledger that ends with {phase['kind']}", "that of a run", PUT_BACK)
    return dataclasses.replace(read_rounds(text, phase, str(file)), prior_phases=phases_counted_in(every))


def require_own(folder: pathlib.Path, ready: "Experiment") -> None:
    """Refuse a ledger that was edited or belongs to another run.

    It may have fewer rounds: a run may be killed while it continues to more.
    """
    phase = read_ledger(folder).phase
    if not ready.spending.private:
        return
    rounds = min(phase["rounds"], ready.rounds)
    own = {"rounds": rounds, "epsilon": finite(ready.spending.epsilon(rounds))}
    recorded = {"rounds": phase["rounds"], "epsilon": (phase.get("deployment") or phase)["epsilon"]}
    for name, value in own.items():
        if recorded[name] != value:
            got = f"of another run, with {name} {recorded[name]}"
            raise errors.refuse(str(folder / LEDGER), got, f"this run's, with {name} {value}", PUT_BACK)


def carry_on(file: pathlib.Path, ready: "Experiment") -> None:
    """The file for a continued run: without a line cut off by a kill, and with the new number of rounds.

    The cost of completed rounds is not computed again.
    """
    text, held = read_text(file), read_ledger(file)
    before = phases.ledger_of_more_rounds(phases_in(text), ready.planned, ready.guarantee)
    lines = []
    for line in held.lines:
        ends = line["halt"] if line["halt"] == "rule" or line["round"] + 1 == ready.rounds else None
        lines.append(dict(line) | {"halt": ends})
    content = before + text_of(lines)
    if content != text:
        folders.write_atomically(file, content)


class RoundLedger:
    """Adds the lines of rounds to the ledger in a run's folder."""

    def __init__(self, folder: pathlib.Path, ready: "Experiment") -> None:
        self._file, self._ready = folder / LEDGER, ready
        self._next = read_ledger(folder).rounds

    def write(self, done: int) -> None:
        """Write the missing lines of all rounds up to `done`."""
        if done <= self._next:
            return
        lines = text_of(self._ready.spending.lines(self._next, done, *self._ready.end))
        if self._next == 0:  # whole: in the beginning of a first line nothing says that it is no phase
            folders.write_atomically(self._file, read_text(self._file) + lines)
        else:
            with self._file.open("a") as opened:
                opened.write(lines)
        self._next = done


def write_tables(folder: pathlib.Path, ready: "Experiment") -> None:
    """Write tables for people: `ledger.csv` by round, for the worst client, and `clients.csv`."""
    lines = read_ledger(folder).lines
    by_round = [[*(line[name] for name in COLUMNS), ready.guarantee.mark] for line in lines]
    folders.write_atomically(folder / BY_ROUND, comma_separated((*COLUMNS, "deployment"), by_round))
    columns = client_columns(ready)
    folders.write_atomically(folder / BY_CLIENT, comma_separated(tuple(columns), zip(*columns.values(), strict=True)))


def client_columns(ready: "Experiment") -> dict[str, Sequence[Any]]:
    """The promise to each client, as columns by name."""
    planned, guarantee, spending = ready.planned, ready.guarantee, ready.spending
    data, terms, private = planned.data, planned.terms, spending.private
    unknown = [None] * data.num_clients
    noise = noise_of(planned.algorithm) if private else None
    known = unknown if noise is None else np.broadcast_to(np.asarray(noise, float), data.num_clients).tolist()
    epsilons = guarantee.epsilons if private else unknown
    budgets = unknown if terms.any_budget is None else terms.budgets(data.num_clients)
    return {
        "client": range(data.num_clients),
        **({} if data.names is None or guarantee.unit is Unit.CLIENT else {"name": data.names.listed}),
        "records": np.asarray(data.sizes).tolist(),
        "noise_multiplier": known,
        "rounds": spending.counts(ready.end[0]).tolist(),
        "releases": each(spending.events(planned.rounds), num_releases) if private else unknown,
        "epsilon": epsilons,
        "budget": budgets,
        "left": [
            None if budget is None or spent is None else budget - spent for budget, spent in zip(budgets, epsilons)
        ],
        "deployment": [guarantee.mark] * data.num_clients,
    }


def num_releases(event: Event) -> int:
    return sum(count for _, count in event.leaves())
