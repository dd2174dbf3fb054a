"""What trackers get of a run, by name, and what the folder of the run remembers of each of them.

An epsilon goes with delta, unit, adjacency, view and statement, under `privacy/`. Under `probe/` stands what only a
simulator sees. A number that is not known, or not finite, is left out.
"""

import contextlib
import json
import math
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

from fedjax_dp import folders
from fedjax_dp.accounting import Guarantee
from fedjax_dp.experiments import environment, parameters, phases
from fedjax_dp.experiments.training import Experiment, Result
from fedjax_dp.rounds.metrics import PROBES
from fedjax_dp.rounds.simulation import Evaluation
from fedjax_dp.tools import figures

MEMORY, PICTURE = "trackers.json", "run.png"
OF_PRIVACY = ("epsilon", "delta", "unit", "adjacency", "view", "accountant", "statement")


def config_of(run: Experiment) -> dict[str, Any]:
    """The configuration as scalars, and the versions that it runs on."""
    scalars = {
        name: value if isinstance(value, str | bool | int | float) else json.dumps(value)
        for name, value in {"algorithm": run.name, "dataset": run.dataset, **run.spec.to_dict()}.items()
        if value is not None
    }
    return scalars | {f"version/{name}": version for name, version in environment.versions().items()}


def privacy_of(guarantee: Guarantee) -> dict[str, Any]:
    """What an epsilon may not stand without; an infinite one is in words."""
    scalars = guarantee.to_dict()
    words = {name: scalars[name] for name in OF_PRIVACY if scalars[name] is not None}
    if guarantee.mark:
        words["mark"] = guarantee.mark
    if scalars["warnings"]:
        words["warnings"] = "; ".join(scalars["warnings"])
    return {f"privacy/{name}": value for name, value in ({"epsilon": "infinite"} | words).items()}


def numbers_of_privacy(guarantee: Guarantee) -> dict[str, float]:
    """Epsilon with its delta, where there is one."""
    return {name: value for name, value in privacy_of(guarantee).items() if isinstance(value, float)}


def numbers_of(evaluation: Evaluation, run: Experiment) -> dict[str, float]:
    """All of an evaluation but its round, and the epsilon so far.

    That is at most: of a run that was planned to stop there, or a little later (`Spending.price`).
    """
    numbers = {
        f"probe/{name}" if name in PROBES else name: float(value)
        for name, value in evaluation.row().items()
        if name != "round" and value is not None and math.isfinite(value)
    }
    if run.spending.private and run.spending.priced_rounds and evaluation.round:
        numbers["privacy/epsilon_planned"] = run.spending.price(evaluation.round).epsilon
    return numbers


def times_of(result: Result) -> dict[str, float]:
    """Seconds of this process."""
    return {f"time/{name}": float(value) for name, value in result.timing._asdict().items() if math.isfinite(value)}


@contextlib.contextmanager
def files_of(result: Result) -> Iterator[list[pathlib.Path]]:
    """Files of a finished run, for as long as the block takes: configuration, Guarantee, picture, parameters.

    Nothing in them is computed from single records: the ledger of the parameters is without their checksum.
    """
    ready, privacy = result.ready, privacy_of(result.guarantee)
    known = phases.without_digests(ready.ledger)
    ledger = phases.ledger_of_parameters(known, parameters.by_name(result.params), result.history[-1].round)
    described = {"config": json.dumps(config_of(ready)), "privacy": str(privacy["privacy/statement"])}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folders.write_json(folder / "config.json", config_of(ready))
        folders.write_json(folder / "guarantee.json", result.guarantee.to_full_dict())
        figures.plot_run(result.history, result.guarantee, ready.title, folder / PICTURE, task=ready.task)
        parameters.write(folder / "params.safetensors", result.params, ledger, described)
        yield sorted(folder.iterdir())


class Memory:
    """What the folder of a run remembers of a tracker, so that the run goes on there: nothing without a folder.

    id      of the run, as the tracker calls it
    round   the last that was written to the tracker
    rounds  for which it got a Guarantee
    where   the tracker keeps it: what was written elsewhere does not count
    """

    def __init__(self, tracker: str, run: Experiment, where: str) -> None:
        self._tracker, self._file = tracker, None if run.folder is None else run.folder / MEMORY
        held = self._all().get(tracker, {})
        known = held if held.get("where") == where else {}
        self.id: str | None = known.get("id")
        self.round: int = known.get("round", 0)
        self.rounds: int = known.get("rounds", 0)
        self._where = where

    def keep(self) -> None:
        """Store it, beside what other trackers have stored since."""
        if self._file is not None:
            mine = {"id": self.id, "round": self.round, "rounds": self.rounds, "where": self._where}
            folders.write_json(self._file, self._all() | {self._tracker: mine})

    def _all(self) -> dict[str, Any]:
        held = self._file is not None and self._file.is_file()
        return json.loads(self._file.read_text()) if held and self._file is not None else {}


@contextlib.contextmanager
def redirect_output() -> Iterator[None]:
    """Stdout is the run's own: what a tracker prints there goes to stderr, and what it warns of is its own affair."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
