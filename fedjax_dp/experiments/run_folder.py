"""The folder of a run: configuration, metrics, checkpoints, result and picture; a stopped run continues from it.

The sealed `run.json` determines the run. `config.toml` is for people and new runs: the run itself never reads it.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors, folders, hooks
from fedjax_dp.accounting.ledger import phases_in
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution import distributed
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments import environment, phases, population, summary
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.round_ledger import RoundLedger, carry_on, read_text, require_own, write_tables
from fedjax_dp.experiments.training import Callbacks, Experiment, Result, train
from fedjax_dp.folders import FolderKind, FolderLock
from fedjax_dp.models.origins import LEDGER
from fedjax_dp.models.run_files import (
    CHECKPOINTS,
    NAME,
    PUT_BACK,
    RUN,
    name_of,
    read_phases,
    refuse_foreign,
    require_one_name,
)
from fedjax_dp.pytrees import checksum, equal
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.rounds.simulation import Evaluation, as_float32_leaves, initial_server_state
from fedjax_dp.rounds.state import ServerState, place
from fedjax_dp.tasks import describe_task

CONFIG, METRICS, RESULT, GUARANTEE = "config.toml", "metrics.json", "result.json", "guarantee.json"
RUN_FOLDER = FolderKind(
    name="run",
    manifest=RUN,
    fields={"made of": str, NAME: str, "config": dict, "checksums": dict, "seal": str, "versions": dict, "task": dict}
    | {"devices": int, "model_devices": int},
    beginning=(GUARANTEE, LEDGER),
    decisive=("made of", NAME, "config", "checksums"),
    format=("format", 3),
    remedy="start a run with --out",
    renewal=f"fedjax-dp run {{folder}}/{CONFIG} runs it anew",
)
FOR_PEOPLE = f"# For people and for new runs. This one goes on by {RUN_FOLDER.manifest}, whatever is edited here.\n"
FREE = ("devices", "model_devices")  # a resumed run may change these
MATTER = ("fedjax-dp", "jax", "jaxlib", "flax")  # other versions of these are reported
RUNS = pathlib.Path("runs")  # the place of runs without a folder name
Manifest = Mapping[str, Any]


class RunFolder:
    """The folder of a run during training."""

    def __init__(self, path: pathlib.Path, lock: FolderLock | None, ready: Experiment) -> None:
        self.path, self._lock = path, lock
        self._ledger = RoundLedger(path, ready) if distributed.is_first() else None
        with self._storing():
            self._checkpoints = Checkpoints(path)

    def keep(self, state: ServerState, params: Any, history: Sequence[Evaluation], checkpoint: bool) -> None:
        """Called at evaluations and checkpoints; the state is valid during the call only.

        Stores ledger and metrics, and at checkpoints the state and the model's parameters.
        """
        with self._storing():
            if self._ledger is not None:
                self._ledger.write(int(state.round))
                folders.write_json(self.path / METRICS, [point.row() for point in history])
            if checkpoint:
                self._checkpoints.save(state, params)

    def finish(self, result: Result) -> None:
        """Write result and picture."""
        content, ready = summary.summarise_run(result), result.ready
        if distributed.is_first():
            with self._storing():
                hooks.plot_run(result.history, result.guarantee, ready.title, self.path / "run.png", task=ready.task)
                write_tables(self.path, ready)
                content |= {NAME: name_of(self.path)}
                folders.write_json(self.path / RESULT, content)  # last: it marks the run as finished

    def state(self, ready: Experiment) -> ServerState | None:
        """The newest checkpoint, on the devices of the run; None before the first."""
        if self._checkpoints.latest() is None:
            return None
        run = ready.planned
        begun = initial_server_state(run.algorithm, run.data, run.model, run.draw_seed, ready.on_host)
        return self._checkpoints.restore(place(begun, ready.execution))

    def close(self) -> None:
        self._checkpoints.close()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        if self._lock is not None:
            self._lock.require_own()
        place = folders.quote_path(self.path)
        with folders.storage_errors(
            self.path, f"make room; fedjax-dp run --resume {place} goes on from what is stored"
        ):
            yield


class Continuation(NamedTuple):
    """How to continue a run."""

    rounds: int  # in total
    prepare: Callable[[int, Screen], Experiment]  # prepares it again, for a number of rounds
    checksums: Callable[[], Mapping[str, str]]  # of everything that determines it and is checked for a finished run


def start(
    prepare: Callable[[], Experiment],
    named: pathlib.Path | None,
    usual: str,
    otherwise: str,
    screen: Screen,
    callbacks: Callbacks,
) -> tuple[Result, pathlib.Path]:
    """Train a run in a new folder, which holds only its lock until all is checked; return the folder too.

    named      the folder; by default the first free one of the name `usual` in `RUNS`;
    otherwise  another remedy if the folder is that of a run
    """
    with _one_writer(lambda: _lock_new(named, usual, otherwise, screen)) as lock:
        path = named or pathlib.Path(distributed.broadcast_from_first(str(lock.folder) if lock else ""))
        ready = distributed.run_in_agreement(prepare, lambda own: facts(path, own))
        distributed.run_in_agreement(lambda: _begin(path, lock, ready), lambda nothing: {})
        distributed.run_in_agreement(lambda: _check_shared(path), lambda nothing: {})
        return _train(ready, path, lock, screen, callbacks), path


def resume(
    path: pathlib.Path, continuation: Callable[[Manifest], Continuation], screen: Screen, callbacks: Callbacks
) -> dict[str, Any]:
    """Continue a run from its newest checkpoint, perhaps to more rounds; return the content of `result.json`.

    A finished run does not change. `continuation` maps the folder's manifest to how the run continues.
    Raises: ConfigurationError if anything that determines the run has changed, or more rounds would begin otherwise.
    """

    def read() -> tuple[Manifest, Continuation, dict[str, Any] | None]:
        manifest = RUN_FOLDER.read(path)
        run = continuation(manifest)
        result = result_of(path, manifest) if run.rounds == manifest["config"]["rounds"] else None
        if result is not None:
            require_same(manifest, run.checksums())
            screen.say(f"{path} is finished after round {run.rounds}; --rounds N (rounds=N) continues it")
        return manifest, run, result

    *_, result = read()
    if result is not None:  # which needs no lock
        return result
    with _one_writer(lambda: folders.lock_folder("resume", path, "make room", screen.say)) as lock:
        manifest, run, result = read()
        if result is not None:  # by another process, until just now
            return result
        require_metrics(path)
        ready = distributed.run_in_agreement(
            lambda: _prepare_again(path, manifest, run, screen), lambda ready: facts(path, ready)
        )
        _note_changes(manifest, ready, screen)
        if distributed.is_first():
            with folders.storage_errors(path):
                _carry_on(path, manifest, ready)
        return summary.summarise_run(_train(ready, path, lock, screen, callbacks, again=True))


@contextmanager
def _one_writer(lock: Callable[[], AbstractContextManager[FolderLock]]) -> Iterator[FolderLock | None]:
    """A locked folder; of several processes that share a run only the first holds it, the others have None.

    Raises: ConfigurationError in all processes if the first raises it.
    """
    with ExitStack() as stack:
        yield distributed.run_in_agreement(
            lambda: stack.enter_context(lock()) if distributed.is_first() else None, lambda nothing: {}
        )


@contextmanager
def _lock_new(named: pathlib.Path | None, usual: str, otherwise: str, screen: Screen) -> Iterator[FolderLock]:
    if named is None:
        with folders.lock_unused("out", RUNS, usual, screen.say) as lock:
            yield lock
        return
    remedy = f"give another out, {otherwise}" if RUN_FOLDER.is_at(named) else "give another out"
    RUN_FOLDER.require_new("out", named, remedy)  # before a lock is created in a foreign folder
    with folders.lock_folder("out", named, say=screen.say) as lock:
        RUN_FOLDER.require_new("out", named, f"give another out, {otherwise}")
        yield lock


def _train(
    ready: Experiment,
    path: pathlib.Path,
    lock: FolderLock | None,
    screen: Screen,
    callbacks: Callbacks,
    again: bool = False,
) -> Result:
    """Train the run, from its newest checkpoint if there is one."""
    folder = RunFolder(path, lock, ready)
    try:
        state = folder.state(ready)
        done = 0 if state is None else int(state.round)
        if again:
            screen.say(f"continuing {path} after round {done} of {ready.rounds}")
        known = tuple(point for point in history(path) if point.round <= done)
        ready = dataclasses.replace(ready, folder=path, history=known)
        return train(ready, screen, callbacks, keeper=folder, start=state)
    except KeyboardInterrupt as error:
        error.add_note(str(path))  # a report can name the folder to resume
        raise
    finally:
        folder.close()


def _prepare_again(path: pathlib.Path, manifest: Manifest, run: Continuation, screen: Screen) -> Experiment:
    """Prepare the run again, as it began or with more rounds."""
    before = manifest["config"]["rounds"]
    ready = run.prepare(before, screen if run.rounds == before else Screen(quiet=True))
    require_same(manifest, ready.checksums)
    if distributed.is_first():
        require_own(path, ready)
    if run.rounds == before:
        return dataclasses.replace(ready, halted_of=manifest.get("halted_of"))
    longer = run.prepare(run.rounds, screen)
    if longer.rounds == before:
        wanted = f"{before}, after which the budget is spent"
        raise errors.refuse("rounds of the resumed run", run.rounds, wanted, "start a new run with another budget")
    _require_alike(ready, longer, result_of(path, manifest) is not None)
    return longer


def _require_alike(before: Experiment, after: Experiment, ended: bool) -> None:
    """Refuse more rounds if a run of that many would begin with other noise, weights or cohort sizes.

    ended  whether the run has completed its rounds; then also if its end would be released twice
    """
    reason, whole = None, after.planned.algorithm
    cohorts, shares = (before.planned.algorithm.cohort, whole.cohort), np.asarray(after.planned.data.shares)
    if not equal(before.planned.algorithm, whole.prefix(before.rounds)):
        reason = "its noise was found for a budget that so many rounds spend"
        if before.spec.privacy.epsilon is None:
            reason = "its parts depend on their number"
    elif len({cohort.capacity(len(shares)) for cohort in cohorts}) > 1:
        reason = "no round of it has as many clients as the log has in a later one"
    elif ended and before.spending.private and any(one.final for one in whole.local.additional_releases):
        reason = "its clients have fine-tuned their models after it, and would release them twice"
    elif not equal(*(cohort.rates(shares) for cohort in cohorts)) and whole.goes_by_rates:
        reason = "clients weigh by how often the whole log names them (--estimator mean does not)"
    if reason is not None:
        raise errors.refuse(
            "rounds of the resumed run", after.rounds, f"{before.rounds}, as {reason}", "start a new run"
        )


def _note_changes(manifest: Manifest, ready: Experiment, screen: Screen) -> None:
    """Report changes since the run began that may round differently."""
    before, now = {name: manifest[name] for name in FREE}, _layout(ready.execution)
    alike = before["model_devices"] == now["model_devices"] and ready.execution.parts is not None
    if not alike and before != now:
        words = ("{devices} devices, {model_devices} to a model".format(**layout) for layout in (before, now))
        screen.say("started on {}, continued on {}: results agree up to rounding".format(*words))
    then, versions = manifest["versions"], environment.versions()
    others = [f"{name} {then.get(name)} (now {versions[name]})" for name in MATTER if then.get(name) != versions[name]]
    if others:
        screen.say(f"started with {', '.join(others)}: another version may round and draw random numbers differently")


def facts(path: pathlib.Path, ready: Experiment) -> dict[str, str]:
    """Facts outside the configuration that must be the same in all processes."""
    return {
        "out": str(path),
        "code": distributed.code_checksum(),
        "noise and other numbers": checksum(as_float32_leaves(ready.planned.algorithm)),
        **ready.checksums,
        **{f"version of {name}": version for name, version in environment.versions().items()},
    }


def configuration(path: pathlib.Path) -> dict[str, Any]:
    """The settings of a run for another run or an audit: all but those of execution and output.

    Raises: ConfigurationError if it is no run folder, for a run of values of Python, and if user files that determine
            the run have changed since.
    """
    manifest = RUN_FOLDER.read(path)
    require_one_name(path)
    if manifest["made of"] != configs.CONFIGURED:
        got = f"{path}, a run of values of Python"
        raise errors.refuse("run folder", got, "of a configuration", "audit and run it from Python too")
    config, spared = manifest["config"], (*FREE, "records")
    own_files = files_of(configs.RunSpec.of(config | {"devices": "auto"}))
    require_same(manifest, manifest["checksums"] | own_files)
    return {name: value for name, value in config.items() if value is not None and name not in spared}


def require_own_data(path: pathlib.Path, config: configs.RunSpec, data: FederatedData) -> None:
    """Refuse other data than those that a folder's configuration names."""
    manifest = RUN_FOLDER.read(path)
    if configs.RunSpec.of(manifest["config"] | {"devices": "auto"}).data == config.data:
        require_same(manifest, manifest["checksums"] | population.checksums(data, config.data))


def require_same(manifest: Manifest, checksums: Mapping[str, str]) -> None:
    """Refuse data, code or values that have changed since the run began."""
    for name in sorted(manifest["checksums"].keys() | checksums.keys()):
        before, now = (of.get(name, "none") for of in (manifest["checksums"], checksums))
        if before != now:
            wanted = f"unchanged, checksum {before}"
            raise errors.refuse(f"{name} of the run", now, wanted, PUT_BACK)


def files_of(config: configs.RunSpec) -> dict[str, str]:
    """The checksums of the user's files, by their names in the manifest."""
    result = {f"code in {file}": digest for file, digest in config.code.items()}
    return result | {f"content of {file}": digest for file, digest in config.files.items()}


def ledger(path: pathlib.Path) -> str:
    """The ledger of a run's parameters."""
    return read_phases(path / LEDGER)


def result_of(path: pathlib.Path, manifest: Manifest) -> dict[str, Any] | None:
    """The result of a finished run; None before its end.

    Raises: ConfigurationError if the file belongs to another run.
    """
    if not (path / RESULT).is_file():
        return None
    result = folders.read_json(path / RESULT)
    if not isinstance(result, dict) or result.get(NAME) != manifest[NAME]:
        raise refuse_foreign(path, RESULT)
    return result if result.get("rounds") == manifest["config"]["rounds"] else None


def history(path: pathlib.Path) -> list[Evaluation]:
    rows = folders.read_json(path / METRICS) if (path / METRICS).is_file() else ()
    return [Evaluation.of_row(row) for row in rows]


def seal_promise(promise: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """A saved Guarantee with its number of rounds and a checksum of itself and its run."""
    plain = {"rounds": manifest["config"]["rounds"], **promise}
    plain.pop("seal", None)
    return plain | {"seal": folders.checksum_of({"promise": plain, NAME: manifest[NAME]})}


def promise_of(path: pathlib.Path, manifest: Manifest) -> dict[str, Any]:
    """The saved Guarantee of a run.

    Raises: ConfigurationError if the file was edited or covers fewer rounds, and for a folder of two runs.
    """
    require_one_name(path)
    promise = folders.read_json(path / GUARANTEE)
    own = isinstance(promise, dict) and promise == seal_promise(promise, manifest)
    if not own or promise["rounds"] < manifest["config"]["rounds"]:
        got = "one of fewer rounds" if own else "one that was changed since"
        raise errors.refuse(str(path / GUARANTEE), got, "as the run wrote it", PUT_BACK)
    return promise


def require_one_run(path: pathlib.Path, manifest: Manifest) -> None:
    """Refuse a folder with missing files, or with files of another run than that in `run.json`."""
    require_metrics(path)
    promise_of(path, manifest)
    result_of(path, manifest)
    points = history(path)  # before the ledger, which is written first
    text = read_text(path / LEDGER)
    lines = text.count("\n") - phases_in(text).count("\n")
    if points and points[-1].round > min(lines, manifest["config"]["rounds"]):
        raise refuse_foreign(path, METRICS)


def require_metrics(path: pathlib.Path) -> None:
    """Refuse a folder that lacks the metrics of what it has stored."""
    stored = (path / RESULT).is_file() or any((path / CHECKPOINTS).glob("[0-9]*"))  # after the metrics
    if stored and not (path / METRICS).is_file():
        raise errors.refuse(str(path / METRICS), "none", "present, as in a run that has stored more", PUT_BACK)


def _begin(path: pathlib.Path, lock: FolderLock | None, ready: Experiment) -> None:
    """Write the first files of a run folder, in the first process, which has the lock."""
    if lock is None:
        return
    lock.require_own()
    RUN_FOLDER.require_new("out", path, "give another out")  # a run that was moved away may have just stored something
    data = ready.planned.data
    words = None if data.vocabulary is None else data.vocabulary._asdict()
    records = {"shape": data.record_shape, "classes": data.classes, "tokens": data.tokens, "task": data.task}
    versions = environment.versions()
    manifest = {
        "made of": ready.spec.made_of,
        NAME: folders.checksum_of({**_decisive(ready), **versions}),  # stays when it goes on to more rounds
        **_decisive(ready),
        **_layout(ready.execution),
        "records": records | {"vocabulary": words},
        "task": describe_task(ready.task),
        "versions": versions,
        "device": environment.device(),
        **({"notes": list(ready.notes)} if ready.notes else {}),
    }
    with folders.storage_errors(path, "make room, or give another --out"), folders.create_folder(path):
        folders.write_json(path / GUARANTEE, seal_promise(ready.guarantee.to_full_dict(), manifest))
        folders.write_atomically(path / LEDGER, phases.ledger_of_run(ready.ledger, manifest[NAME]))
        RUN_FOLDER.write(path, manifest)
        _write_config(path, manifest["config"], {})


def _carry_on(path: pathlib.Path, manifest: Manifest, ready: Experiment) -> None:
    """Update the files of a continued run; a kill before or during this call does no harm."""
    before = manifest["config"]
    longer = ready.rounds != before["rounds"]
    manifest = {**manifest, **(_decisive(ready) if longer else {})}
    # First, so that a promise never covers fewer rounds.
    folders.write_json(path / GUARANTEE, seal_promise(ready.guarantee.to_full_dict(), manifest))
    _write_config(path, manifest["config"], before if longer else {})
    if longer:
        RUN_FOLDER.write(path, manifest)
    carry_on(path / LEDGER, ready)


def _decisive(ready: Experiment) -> dict[str, Any]:
    return {"config": ready.spec.flat(), "checksums": dict(ready.checksums), "halted_of": ready.halted_of}


def _write_config(path: pathlib.Path, config: configs.Overrides, before: configs.Overrides) -> None:
    """Write the configuration for people, unless a user has edited it since `before` was written."""
    file = path / CONFIG
    if not file.is_file() or file.read_bytes() == (FOR_PEOPLE + folders.toml(before)).encode():
        folders.write_atomically(file, FOR_PEOPLE + folders.toml(config))


def _check_shared(path: pathlib.Path) -> None:
    """Refuse a run folder that only some processes see; every process writes its part of a checkpoint."""
    if not (path / RUN_FOLDER.manifest).is_file():
        raise errors.refuse("out", str(path), "on a file system that all processes share", "choose another --out")


def _layout(execution: Execution) -> dict[str, int]:
    """The settings that change results by rounding."""
    return {"devices": execution.devices, "model_devices": execution.model_devices}
