"""Fields of a run for trackers, and what the folder of the run remembers of each tracker.

Epsilon has delta, unit, adjacency, view and statement with it, under `privacy/`. Diagnostics that epsilon does not
cover are under `probe/`. Unknown and infinite numbers are left out.
"""

import abc
import contextlib
import json
import math
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
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
    """The configuration as scalars, and the versions of packages."""
    scalars = {
        name: value if isinstance(value, str | bool | int | float) else json.dumps(value)
        for name, value in {"algorithm": run.name, "dataset": run.dataset, **run.spec.to_dict()}.items()
        if value is not None
    }
    return scalars | {f"version/{name}": version for name, version in environment.versions().items()}


def privacy_of(guarantee: Guarantee) -> dict[str, Any]:
    """Epsilon with its terms; an infinite epsilon is in words."""
    scalars = guarantee.to_dict()
    words = {name: scalars[name] for name in OF_PRIVACY if scalars[name] is not None}
    if guarantee.mark:
        words["mark"] = guarantee.mark
    if scalars["warnings"]:
        words["warnings"] = "; ".join(scalars["warnings"])
    return {f"privacy/{name}": value for name, value in ({"epsilon": "infinite"} | words).items()}


def numbers_of_privacy(guarantee: Guarantee) -> dict[str, float]:
    """Epsilon with its delta, if it is finite."""
    return {name: value for name, value in privacy_of(guarantee).items() if isinstance(value, float)}


def numbers_of(evaluation: Evaluation, run: Experiment) -> dict[str, float]:
    """The numbers of an evaluation without its round, and an upper bound on epsilon so far.

    The bound is for a run that was planned to stop there, or a little later (`Spending.price`).
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
    """Temporary files of a finished run: configuration, Guarantee, picture, parameters.

    None is computed from single records: the ledger of the parameters has no checksum of them.
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
    """State of a tracker in the folder of a run, so that a resumed run continues there.

    id      of the run in the tracker
    round   the last round written to the tracker
    rounds  the rounds of the last Guarantee written
    where   place of the tracker's data; state for another place is ignored
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
        """Store the state next to that of other trackers."""
        if self._file is not None:
            mine = {"id": self.id, "round": self.round, "rounds": self.rounds, "where": self._where}
            folders.write_json(self._file, self._all() | {self._tracker: mine})

    def _all(self) -> dict[str, Any]:
        held = self._file is not None and self._file.is_file()
        return json.loads(self._file.read_text()) if held and self._file is not None else {}


class Tracker(abc.ABC):
    """A callback that gives each evaluation of a run to a tracker once, also where the run goes on.

    place  where or how to see the run, once it has begun
    """

    place = ""
    _memory: Memory

    def on_start(self, run: Experiment) -> None:
        self._followed = run
        with self._guard():
            self._begin(run)
        for evaluation in run.history:
            self.on_evaluation(evaluation)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.round <= self._memory.round:
            return
        with self._guard():
            self._numbers(numbers_of(evaluation, self._followed), evaluation.round)
        self._memory.round = evaluation.round
        self._memory.keep()

    def _guard(self) -> contextlib.AbstractContextManager[None]:
        """The context in which the tracker's package runs."""
        return redirect_output()

    @abc.abstractmethod
    def _begin(self, run: Experiment) -> None:
        """Begin or continue the run there, and read the memory of it."""

    @abc.abstractmethod
    def _numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Give the numbers of one evaluation to the tracker."""


@contextlib.contextmanager
def redirect_output() -> Iterator[None]:
    """Send what a tracker prints to stderr, since stdout belongs to the run, and ignore its warnings."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
