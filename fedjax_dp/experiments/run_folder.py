"""The folder of a run: configuration, metrics, checkpoints, result and picture; a stopped run goes on from there.

`run.json` decides, under a seal. `config.toml` beside it is for people and for new runs: the run itself never reads it.
"""

import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np

from fedjax_dp import errors, folders, hooks
from fedjax_dp.accounting.ledger import phases_in
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution import distributed
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments import environment, population, summary
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.round_ledger import RoundLedger, carry_on, read_text, require_own, write_tables
from fedjax_dp.experiments.training import Callbacks, Experiment, Result, train
from fedjax_dp.folders import FolderLock
from fedjax_dp.models.origins import LEDGER, RUN, phases_of
from fedjax_dp.pytrees import checksum, same
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.rounds.simulation import Evaluation, fresh, numbers
from fedjax_dp.rounds.state import ServerState, place
from fedjax_dp.tasks import describe_task

ABOUT, CONFIG, METRICS, RESULT, GUARANTEE = "run.json", "config.toml", "metrics.json", "result.json", "guarantee.json"
BEGINNING = (GUARANTEE, LEDGER, ABOUT)  # in the order of writing: the last makes it a run folder
FOR_PEOPLE = f"# For people and for new runs. This one goes on by {ABOUT}, whatever is edited here.\n"
FREE = ("devices", "model_devices")  # what a run may change on its way
FORMAT = 2  # raise it whenever a file of the folder gets, loses or renames a field
KEYS = {"made of", "config", "checksums", "seal", "versions", "devices", "model_devices", "task"}
MATTER = ("fedjax-dp", "jax", "jaxlib", "flax")  # other versions of these are reported
START_ANEW = "put it back, or start a new run"
RUNS = pathlib.Path("runs")  # where runs go of which no folder is named


class RunFolder:
    """The folder of one run, while it is trained."""

    def __init__(self, path: pathlib.Path, lock: FolderLock | None, ready: Experiment) -> None:
        self.path, self._lock = path, lock
        self._ledger = RoundLedger(path, ready) if distributed.first() else None
        with self._storing():
            self._checkpoints = Checkpoints(path)

    def keep(self, state: ServerState, params: Any, history: Sequence[Evaluation], checkpoint: bool) -> None:
        """At evaluations, and where a checkpoint is due; the state is valid during the call only.

        Ledger and metrics are kept always, the state and the model's parameters where a checkpoint is due.
        """
        with self._storing():
            if self._ledger is not None:
                self._ledger.write(int(state.round))
                folders.write_json(self.path / METRICS, [point.row() for point in history])
            if checkpoint:
                self._checkpoints.save(state, params)

    def finish(self, result: Result) -> None:
        """Result and picture."""
        content, ready = summary.of_run(result), result.ready
        if distributed.first():
            with self._storing():
                hooks.plot_run(result.history, result.guarantee, ready.title, self.path / "run.png", task=ready.task)
                write_tables(self.path, ready)
                folders.write_json(self.path / RESULT, content)  # last: it says that the run is finished

    def state(self, ready: Experiment) -> ServerState | None:
        """The newest checkpoint, on the devices of the run; None before the first."""
        if self._checkpoints.latest() is None:
            return None
        run = ready.planned
        begun = fresh(run.algorithm, run.data, run.model, run.draw_seed, ready.on_host)
        return self._checkpoints.restore(place(begun, ready.execution))

    def close(self) -> None:
        self._checkpoints.close()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        if self._lock is not None:
            self._lock.require_own()
        place = folders.quoted(self.path)
        with folders.storing(self.path, f"make room; fedjax-dp run --resume {place} goes on from what is stored"):
            yield


@contextmanager
def writing(take: Callable[[], AbstractContextManager[FolderLock]]) -> Iterator[FolderLock | None]:
    """A folder locked by what `take` gives, of several processes that share a run by the first: the others have None.

    Raises: ConfigurationError in all of them where it is raised there.
    """
    with ExitStack() as stack:
        yield distributed.together(
            lambda: stack.enter_context(take()) if distributed.first() else None, lambda made: {}
        )


@contextmanager
def new_folder(
    named: pathlib.Path | None, usual: str, otherwise: Callable[[pathlib.Path], str], screen: Screen
) -> Iterator[tuple[pathlib.Path, FolderLock | None]]:
    """A folder for a new run, which nobody else writes to until the block ends.

    named      or else the first free one of the name `usual` among `RUNS`
    otherwise  what else could be done with a folder that is that of a run
    """
    with writing(lambda: _locked_new(named, usual, otherwise)) as lock:
        where = distributed.of_first(str(lock.folder) if lock else "")
        path = named or pathlib.Path(where)
        _note(lock, screen)
        yield path, lock


@contextmanager
def _locked_new(
    named: pathlib.Path | None, usual: str, otherwise: Callable[[pathlib.Path], str]
) -> Iterator[FolderLock]:
    if named is None:
        with folders.locked_unused("out", RUNS, usual) as lock:
            yield lock
        return
    check_new(named, otherwise(named))  # before there is a lock in a folder of something else
    with folders.locked("out", named) as lock:
        check_new(named, otherwise(named))
        yield lock


@contextmanager
def folder_to_resume(path: pathlib.Path, screen: Screen) -> Iterator[FolderLock | None]:
    """The folder of a run that goes on, which nobody else writes to until the block ends."""
    with writing(lambda: folders.locked("resume", path, "make room")) as lock:
        _note(lock, screen)
        yield lock


def _note(lock: FolderLock | None, screen: Screen) -> None:
    if lock is not None and lock.note is not None:
        screen.say(lock.note)


@contextmanager
def opened(path: pathlib.Path, lock: FolderLock | None, ready: Experiment) -> Iterator[RunFolder]:
    """The folder, until the training in it ends."""
    folder = RunFolder(path, lock, ready)
    try:
        yield folder
    except KeyboardInterrupt as error:
        error.add_note(str(path))  # whoever reports it can say how to go on
        raise
    finally:
        folder.close()


def start(
    ready: Experiment, path: pathlib.Path, lock: FolderLock | None, screen: Screen, callbacks: Callbacks
) -> Result:
    """Train a run in a new folder."""
    distributed.together(lambda: _begin(path, lock, ready), lambda made: {})
    distributed.together(lambda: _check_shared(path), lambda made: {})
    with opened(path, lock, ready) as folder:
        return train(dataclasses.replace(ready, folder=path), screen, callbacks, keeper=folder)


def go_on(
    path: pathlib.Path,
    lock: FolderLock | None,
    about: dict[str, Any],
    rounds: int,
    prepare: Callable[[int, Screen], Experiment],
    screen: Screen,
    callbacks: Callbacks,
) -> Result:
    """Train a run from the newest checkpoint of its folder to its end, or to more `rounds` than it began with.

    about    as `begun` read it;
    prepare  prepares the run again, for a number of rounds.
    Raises: ConfigurationError where what decides the run has changed, or more rounds would have begun otherwise.
    """

    def prepare_again() -> tuple[Experiment, dict[str, Any]]:
        before = about["config"]["rounds"]
        ready = prepare(before, screen if rounds == before else Screen(quiet=True))
        require_same(about, ready.checksums)
        if distributed.first():
            require_own(path, ready)
        if rounds == before:
            return dataclasses.replace(ready, halted_of=about.get("halted_of")), about
        longer = prepare(rounds, screen)
        if longer.rounds == before:
            wanted = f"{before}, after which the budget is spent"
            raise errors.refuse("rounds of the resumed run", rounds, wanted, "start a new run with another budget")
        _require_alike(ready, longer)
        return longer, extend(path, about, longer)

    ready, about = distributed.together(prepare_again, lambda made: facts(path, made[0]))
    return _trained(ready, path, lock, about, screen, callbacks)


def _require_alike(before: Experiment, after: Experiment) -> None:
    """Refuse more rounds where they would have been begun with other noise, weights or sizes of cohorts."""
    reason, whole = None, after.planned.algorithm
    cohorts, shares = (before.planned.algorithm.cohort, whole.cohort), np.asarray(after.planned.data.shares)
    if not same(before.planned.algorithm, whole.prefix(before.rounds)):
        reason = "its noise was found for a budget that so many rounds spend"
        if before.spec.privacy.epsilon is None:
            reason = "its parts depend on their number"
    elif len({cohort.capacity(len(shares)) for cohort in cohorts}) > 1:
        reason = "no round of it has as many clients as the log has in a later one"
    elif not same(*(cohort.rates(shares) for cohort in cohorts)) and whole.goes_by_rates:
        reason = "clients weigh by how often the whole log names them (--estimator mean does not)"
    if reason is not None:
        raise errors.refuse(
            "rounds of the resumed run", after.rounds, f"{before.rounds}, as {reason}", "start a new run"
        )


def _trained(
    ready: Experiment,
    path: pathlib.Path,
    lock: FolderLock | None,
    about: Mapping[str, Any],
    screen: Screen,
    callbacks: Callbacks,
) -> Result:
    """The run, from its newest checkpoint on."""
    before, now = {name: about[name] for name in FREE}, _layout(ready.execution)
    alike = before["model_devices"] == now["model_devices"] and ready.execution.parts is not None
    if not alike and before != now:
        words = ("{devices} devices, {model_devices} to a model".format(**layout) for layout in (before, now))
        screen.say("started on {}, continued on {}: equal to rounding".format(*words))
    versions = environment.versions()
    others = [name for name in MATTER if about["versions"].get(name) != versions[name]]
    if others:
        versions_then = ", ".join(f"{name} {about['versions'].get(name)} (now {versions[name]})" for name in others)
        screen.say(f"begun with {versions_then}: another version may round, and draw, otherwise")
    if distributed.first():  # after `extend`, or where a kill came before or within it
        with folders.storing(path):
            folders.write_json(path / GUARANTEE, sealed(ready.guarantee.saved(), about))
            carry_on(path / LEDGER, ready)
            _write_config(path, about["config"], {})
    with opened(path, lock, ready) as folder:
        state = folder.state(ready)
        done = 0 if state is None else int(state.round)
        screen.say(f"continuing {path} after round {done} of {ready.rounds}")
        known = tuple(point for point in history(path) if point.round <= done)
        ready = dataclasses.replace(ready, folder=path, history=known)
        return train(ready, screen, callbacks, keeper=folder, start=state)


def check_new(path: pathlib.Path, otherwise: str) -> None:
    """Refuse a folder that holds something, is none, or cannot be written to.

    otherwise  what else could be done with the folder of a run.
    """
    begun = os.path.isfile(path / ABOUT)
    remedy = f"give another out, {otherwise}" if begun else "give another out"
    folders.require_new("out", path, remedy, () if begun else BEGINNING)


def facts(path: pathlib.Path, ready: Experiment) -> dict[str, str]:
    """What must be the same in all processes, and is not in the configuration."""
    return {
        "out": str(path),
        "code": distributed.code(),
        "noise and other numbers": checksum(numbers(ready.planned.algorithm)),
        **ready.checksums,
        **{f"version of {name}": version for name, version in environment.versions().items()},
    }


def begun(path: pathlib.Path) -> dict[str, Any]:
    """What `run.json` says of a run.

    Raises: ConfigurationError for what is no run folder, and where the file was changed since, by hand or by another
            program.
    """
    if not path.is_dir():
        wanted, remedy = "an existing folder", folders.where_looked(path)
        raise errors.refuse("run folder", str(path), *(("a folder",) if path.exists() else (wanted, remedy)))
    if not (path / ABOUT).is_file():
        if folders.holds_only(path, BEGINNING):
            got = f"{path}, where nothing was stored before the run was stopped"
            raise errors.refuse("run folder", got, "one of a run that had begun", "start it again in the same folder")
        raise errors.refuse("run folder", str(path), f"one with a file {ABOUT}", "start a run with --out")
    about = folders.read_json(path / ABOUT)
    if not isinstance(about, dict) or KEYS - about.keys() or about.get("format") != FORMAT:
        remedy = f"fedjax-dp run {path / CONFIG} runs it anew"
        raise errors.refuse("run folder", f"{path}, of another version", "written by this version", remedy)
    if about["seal"] != seal(about):
        raise errors.refuse(str(path / ABOUT), "one that was changed since", "as the run wrote it", START_ANEW)
    return about


def configuration(path: pathlib.Path) -> dict[str, Any]:
    """What the configuration of a run sets, for another run or an audit of it: all but how it was carried out.

    Raises: ConfigurationError for what is no run folder, for a run of values of Python, and where files of the user's
            that decide it have changed since.
    """
    about = begun(path)
    if about["made of"] != configs.CONFIGURED:
        got = f"{path}, a run of values of Python"
        raise errors.refuse("run folder", got, "of a configuration", "audit and run it from Python too")
    config = configs.RunSpec.of(about["config"] | {"devices": "auto"})
    require_same(about, about["checksums"] | files_of(config))
    return {
        name: value for name, value in about["config"].items() if value is not None and name not in (*FREE, "records")
    }


def require_own_data(path: pathlib.Path, config: configs.RunSpec, data: FederatedData) -> None:
    """Refuse data that are not those of the run in a folder, where a configuration names the run's."""
    about = begun(path)
    if configs.RunSpec.of(about["config"] | {"devices": "auto"}).data == config.data:
        require_same(about, about["checksums"] | {"data": population.checksum(config.data, data)})


def require_same(about: Mapping[str, Any], checksums: Mapping[str, str]) -> None:
    """Refuse data, code and values that are not those that the run began with."""
    for name in sorted(about["checksums"].keys() | checksums.keys()):
        before, now = (of.get(name, "none") for of in (about["checksums"], checksums))
        if before != now:
            wanted = f"unchanged, checksum {before}"
            raise errors.refuse(f"{name} of the run", now, wanted, START_ANEW)


def files_of(config: configs.RunSpec) -> dict[str, str]:
    """The checksums of the user's own files as they are kept."""
    result = {f"code in {file}": digest for file, digest in config.code.items()}
    return result | {f"content of {file}": digest for file, digest in config.files.items()}


def extend(path: pathlib.Path, about: dict[str, Any], ready: Experiment) -> dict[str, Any]:
    """Note that the run goes on to more rounds, with another Guarantee."""
    before = about["config"]
    about |= {"config": ready.spec.flat(), "checksums": dict(ready.checksums), "halted_of": ready.halted_of}
    about["seal"] = seal(about)
    if distributed.first():
        # First: a kill leaves no promise of fewer rounds.
        folders.write_json(path / GUARANTEE, sealed(ready.guarantee.saved(), about))
        _write_config(path, about["config"], before)
        folders.write_json(path / ABOUT, about)
    return about


def ledger(path: pathlib.Path) -> str:
    """What the parameters of a run carry with them."""
    text = phases_in(read_text(path / LEDGER))
    phases_of(text, str(path))  # refuses what was edited
    return text


def result_of(path: pathlib.Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a finished run; None before its end."""
    if not (path / RESULT).is_file():
        return None
    result = folders.read_json(path / RESULT)
    finished = isinstance(result, dict) and result.get("rounds") == about["config"]["rounds"]
    return result if finished else None


def history(path: pathlib.Path) -> list[Evaluation]:
    rows = folders.read_json(path / METRICS) if (path / METRICS).is_file() else ()
    return [Evaluation.of_row(row) for row in rows]


def seal(about: Mapping[str, Any]) -> str:
    """A checksum of what a continued run may not change."""
    return _checksum({name: about[name] for name in ("made of", "config", "checksums")})


def _checksum(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def sealed(promise: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """A saved Guarantee with the checksum of itself and of the run that it is of, to whatever round that goes."""
    plain = {name: value for name, value in promise.items() if name != "seal"}
    run = {name: value for name, value in about["config"].items() if name != "rounds"}
    return plain | {"seal": _checksum({"promise": plain, "run": run, "checksums": about["checksums"]})}


def promise_of(path: pathlib.Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """The Guarantee of a run as it was saved.

    Raises: ConfigurationError where the file was changed since, or is another run's.
    """
    promise = folders.read_json(path / GUARANTEE)
    if not isinstance(promise, dict) or promise != sealed(promise, about):
        raise errors.refuse(str(path / GUARANTEE), "one that was changed since", "as the run wrote it", START_ANEW)
    return promise


def require_one_run(path: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Refuse a folder whose files are not all of the run in `run.json`, or not all there."""
    points, promise = history(path), promise_of(path, about)  # before the ledger, which is written first
    text = read_text(path / LEDGER)
    phase, result = phases_of(phases_in(text), str(path / LEDGER))[-1], result_of(path, about)
    kept = {name: value for name, value in about["config"].items() if name not in FREE}
    held = {} if result is None else result["config"]
    lines = text.count("\n") - phases_in(text).count("\n")
    others = {
        LEDGER: phase["kind"] != RUN
        or (phase["delta"], phase["records"]["checksum"]) != (promise["delta"], about["checksums"]["data"]),
        METRICS: bool(points) and points[-1].round > min(lines, about["config"]["rounds"]),
        RESULT: any(held[name] != value for name, value in kept.items() if name in held),
    }
    for name, other in others.items():
        if other:
            got = f"{path}, of two runs: {name} is not that of {ABOUT}"
            raise errors.refuse("run folder", got, "of one run", START_ANEW)


def _begin(path: pathlib.Path, lock: FolderLock | None, ready: Experiment) -> None:
    """What a run folder begins with, by the first process, which has the lock."""
    if lock is None:
        return
    config = ready.spec.flat()
    about: dict[str, Any] = {"made of": ready.spec.made_of, "config": config, "checksums": dict(ready.checksums)}
    about |= {"format": FORMAT, "seal": seal(about), "halted_of": ready.halted_of, **_layout(ready.execution)}
    data = ready.planned.data
    words = None if data.vocabulary is None else data.vocabulary._asdict()
    records = {"shape": data.record_shape, "classes": data.classes, "tokens": data.tokens, "task": data.task}
    about |= {"records": records | {"vocabulary": words}, "task": describe_task(ready.task)}
    with folders.storing(path, "make room, or give another --out"), folders.making(path):
        folders.write_json(path / GUARANTEE, sealed(ready.guarantee.saved(), about))
        folders.write_atomically(path / LEDGER, ready.ledger)
        folders.write_json(path / ABOUT, about | {"versions": environment.versions(), "device": environment.device()})
        _write_config(path, config, {})


def _write_config(path: pathlib.Path, config: configs.Overrides, before: configs.Overrides) -> None:
    """Write the configuration for people where there is none, or the one of `before`: another is somebody's own."""
    file = path / CONFIG
    if not file.is_file() or file.read_bytes() == (FOR_PEOPLE + folders.toml(before)).encode():
        folders.write_atomically(file, FOR_PEOPLE + folders.toml(config))


def _check_shared(path: pathlib.Path) -> None:
    """Refuse a run folder that only some processes see; every process writes its part of a checkpoint."""
    if not (path / ABOUT).is_file():
        raise errors.refuse("out", str(path), "on a file system that all processes share", "choose another --out")


def _layout(execution: Execution) -> dict[str, int]:
    """What changes results by rounding."""
    return {"devices": execution.devices, "model_devices": execution.model_devices}
