"""A run that lives in a folder: configuration, metrics, checkpoints, result and picture; it can be resumed."""

import dataclasses
import itertools
import json
import os
import pathlib
import time
import zlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, gradients
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data import FederatedData
from fedjax_dp.devices import ASKED
from fedjax_dp.execution import distributed
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.experiments import build, plots, population, report
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments.communication import traffic
from fedjax_dp.experiments.config import RunConfig
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.run import Result
from fedjax_dp.models import Model
from fedjax_dp.privacy.guarantees import prepared
from fedjax_dp.privacy.paper_noise import clips_records
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.protection import noise_of
from fedjax_dp.pytrees import checksum
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.rounds.prefetch import check as check_feed
from fedjax_dp.rounds.round import ServerState, place
from fedjax_dp.rounds.simulation import Evaluation, Simulation, fresh, numbers, run_key, simulate

FREE = ("devices", "model_devices")  # what a run may change on its way
Outcome = tuple[dict[str, Any], RunConfig, pathlib.Path]


@dataclasses.dataclass(frozen=True)
class _Ready:
    """Everything built and checked, nothing trained."""

    config: RunConfig
    data: FederatedData
    algorithm: Algorithm
    model: Model
    execution: Execution
    guarantee: Guarantee
    checksum: str  # of the data


def start(config: RunConfig, screen: Screen) -> Outcome:
    """A new run of a resolved configuration. Nothing is written before everything has been checked."""

    def prepared() -> tuple[pathlib.Path, _Ready]:
        folder = _free_folder(config)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            remedy = f"give another --out, or --resume {folder}"
            raise errors.refuse("out", str(folder), "a new or empty folder", remedy)
        return folder, _prepare(config, screen)

    folder, ready = distributed.together(prepared, lambda made: _facts(*made))
    distributed.together(lambda: _write(folder, ready), lambda made: {})
    distributed.together(lambda: _check_shared(folder), lambda made: {})
    return _train(ready, folder, screen, done=None, history=[])


def _write(folder: pathlib.Path, ready: _Ready) -> None:
    """What a run folder begins with, by the first process."""
    if not distributed.first():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        about = {"data": ready.checksum, "decided": decided(ready.config), **_layout(ready.execution)}
        report.write_json(folder / "run.json", about | {"versions": report.versions(), "device": report.device()})
        report.write_json(folder / "guarantee.json", ready.guarantee.to_dict())
        report.write_atomically(
            folder / "config.toml", configs.to_toml(ready.config.flat())
        )  # last: it makes a run folder
    except (OSError, ValueError) as error:  # a name may hold what no file name can
        raise errors.refuse("out", repr(str(folder)), "a folder that can be written", str(error)) from None


def _check_shared(folder: pathlib.Path) -> None:
    """Refuse a run folder that only some processes see; every process writes its part of a checkpoint."""
    if not (folder / "config.toml").is_file():
        raise errors.refuse("out", str(folder), "on a file system that all processes share", "choose another --out")


def decided(config: RunConfig) -> str:
    """A checksum of what a continued run may not change."""
    decided = {name: value for name, value in config.flat().items() if name not in ("out", *FREE)}
    return f"{zlib.crc32(json.dumps(decided, sort_keys=True, default=str).encode()):08x}"


def _layout(execution: Execution) -> dict[str, int]:
    """What changes results by rounding."""
    return {"devices": execution.devices, "model_devices": execution.model_devices}


def _facts(folder: pathlib.Path, ready: _Ready) -> dict[str, str]:
    """What must be the same in all processes, and is not in the configuration."""
    return {
        "out": str(folder),
        "code": distributed.code(),
        "data": ready.checksum,
        "noise and other numbers": checksum(numbers(ready.algorithm)),
        **{f"version of {name}": version for name, version in report.versions().items()},
    }


def resume(folder: pathlib.Path, asked: dict[str, Any], screen: Screen) -> Outcome:
    """Continue a run from its newest checkpoint.

    `asked` are fields given again. They must equal the run's own, except those in FREE.
    """

    def prepared() -> tuple[_Ready, dict[str, Any], list[Evaluation]]:
        config = _continued(folder, asked)
        ready = _prepare(config, screen)
        try:
            about = json.loads((folder / "run.json").read_text())
            metrics = json.loads((folder / "metrics.json").read_text()) if (folder / "metrics.json").is_file() else []
        except (OSError, ValueError) as error:
            raise errors.refuse("run folder", str(folder), "readable", str(error)) from None
        if not {"data", "decided", *_layout(ready.execution)} <= about.keys():
            raise errors.refuse("run folder", f"{folder}, of another version", "of this one", "start a new run")
        if about["decided"] != decided(config):
            raise errors.refuse(
                "config.toml of the resumed run",
                "one that was changed since",
                "the one that the run began with",
                "what is run and what is promised would differ: put it back, or start a new run",
            )
        if about["data"] != ready.checksum:
            raise errors.refuse(
                "data of the resumed run",
                ready.checksum,
                f"unchanged, checksum {about['data']}",
                "restore the data set, or start a new run",
            )
        return ready, about, [Evaluation(**point) for point in metrics]

    ready, about, history = distributed.together(prepared, lambda made: _facts(folder, made[0]))
    config, now = ready.config, _layout(ready.execution)
    alike = about["model_devices"] == now["model_devices"] and config.execution.deterministic is not None
    if not alike and any(about[name] != now[name] for name in now):
        before, after = ("{devices} devices, {model_devices} to a model".format(**layout) for layout in (about, now))
        screen.say(f"started on {before}, continued on {after}: equal to rounding")
    checkpoints = Checkpoints(folder)
    done = checkpoints.latest()
    checkpoints.close()
    screen.say(f"continuing {folder} after round {done or 0} of {config.training.rounds}")
    return _train(ready, folder, screen, done=done, history=[p for p in history if p.round <= (done or 0)])


def _continued(folder: pathlib.Path, asked: dict[str, Any]) -> RunConfig:
    """The configuration of a run folder, with what may change as `asked`."""
    if not (folder / "config.toml").is_file():
        raise errors.refuse("resume", str(folder), "a run folder with a config.toml", "start a run with --out")
    said = configs.read(folder / "config.toml")
    for name, value in asked.items():
        if name not in ("out", *FREE) and value != said.get(name):
            raise errors.refuse(
                f"{name} of the resumed run",
                value,
                f"{said.get(name)}, as in {folder / 'config.toml'}",
                "leave the option out, or start a new run",
            )
    return configs.resolve(said | {name: asked[name] for name in FREE if name in asked})


def _prepare(config: RunConfig, screen: Screen) -> _Ready:
    data = population.build_data(config.data)
    model = build.build_model(config, data)
    algorithm = build.build_algorithm(config, data)
    terms = build.terms_of(config, data)
    rounds, seed = config.training.rounds, config.data.seed
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)
    execution = build.build_execution(config, algorithm, data)
    # Said, so that the run goes on alike with another number of processes.
    on_host = build.records_on_host(config, algorithm)
    config = config.replace(records="host" if on_host else "devices")
    if on_host:
        check_feed(algorithm, bool(config.output.train_metrics))
    began = time.perf_counter()
    with screen.bar("calibrating noise", total=1) as show:
        kinds = 0

        def progress(done: int, total: int) -> None:
            nonlocal kinds
            kinds = total
            show(done / total, f"{done} of {total} kinds of clients")

        algorithm, guarantee = prepared(run, progress)
    for line in _about(config, data, algorithm, model, execution):
        screen.say(line)
    if kinds:
        spent = time.perf_counter() - began
        screen.say(f"noise found for {kinds} kinds of clients (records, rounds) in {spent:.1f} s")
    return _Ready(config, data, algorithm, model, execution, guarantee, population.checksum(config.data, data))


def _about(
    config: RunConfig, data: FederatedData, algorithm: Algorithm, model: Model, execution: Execution
) -> list[str]:
    """What a reader of the log wants to know before the first round."""
    device = report.device()
    options = config.options
    batch = options.get("batch_size", "all their records")
    rows = (data.features(jnp.asarray(data.x[:1])), jnp.zeros(1, jnp.int32))
    params = model.init(run_key(config.data.seed))
    lines = [
        f"{data.num_clients} clients with {int(np.min(data.sizes))} to {int(np.max(data.sizes))} records, "
        f"cohort {options.get('cohort_size', 'its own')}, {options.get('local_steps', 'its own')} local steps of "
        f"{batch}, {config.training.rounds} rounds",
        f"{execution.devices} {device['platform']} device(s) ({device['kind']})",
    ]
    if execution.devices < device["count"]:
        lines[-1] += f" of {device['count']}"
    if execution.model_devices > 1:
        lines[-1] += f", {execution.model_devices} to a model"
    if device["processes"] > 1:
        lines[-1] += f" in {device['processes']} processes"
    late = device["platform"] == "cpu" and device["count"] < device["cores"] * device["processes"]
    if late and ASKED not in os.environ:
        lines[-1] += f", although there are {device['cores']} cores: import fedjax_dp before JAX is first used"
    noise = noise_of(algorithm)
    if noise is not None:
        noises = np.atleast_1d(np.asarray(noise, float))
        words = f"clip norm {options['clip_norm']:g}, noise multiplier {noises.min():.4g} to {noises.max():.4g}"
        by_record = clips_records(algorithm)
        lines.append(words + (f", clipping by {gradients.describe(model, params, *rows)}" if by_record else ""))
    lines.append(str(traffic(algorithm, model, data)))
    return lines


def _train(
    ready: _Ready, folder: pathlib.Path, screen: Screen, *, done: int | None, history: list[Evaluation]
) -> Outcome:
    config, execution = ready.config, ready.execution
    checkpoints = Checkpoints(folder)
    on_host, rounds, seed = config.execution.records == "host", config.training.rounds, config.data.seed
    begun = fresh(ready.algorithm, ready.data, ready.model, seed, on_host)
    state = checkpoints.restore(place(begun, execution)) if done else begun
    first, began = done or 0, time.perf_counter()
    try:
        with screen.bar("training", total=rounds, done=first) as show:

            def on_pause(state: ServerState, new: list[Evaluation]) -> None:
                now = int(state.round)
                if distributed.first():
                    report.write_json(folder / "metrics.json", [point._asdict() for point in [*history, *new]])
                if now % config.output.checkpoint_every == 0 or now == rounds:
                    checkpoints.save(state)
                show(now, _pace(new, now - first, time.perf_counter() - began))

            simulation = simulate(
                ready.algorithm,
                ready.data,
                rounds=rounds,
                seed=seed,
                model=ready.model,
                evaluate_every=config.output.evaluate_every,
                train_metrics=bool(config.output.train_metrics),
                execution=execution,
                start=state,
                pause_every=config.output.checkpoint_every,
                on_pause=on_pause,
                on_host=on_host,
                checked=True,
            )
    finally:
        checkpoints.close()
    simulation = Simulation(simulation.state, [*history, *simulation.history], simulation.timing)
    result = Result(ready.algorithm, simulation, ready.guarantee)
    told = report.summary(config, result, traffic(ready.algorithm, ready.model, ready.data))
    if not distributed.first():
        return told, config, folder
    report.write_json(folder / "result.json", told)
    title = f"{config.algorithm} on {config.data.dataset}, {ready.data.num_clients} clients, seed {seed}"
    plots.plot_run(result.history, result.guarantee, title, folder / "run.png")
    return told, config, folder


def _pace(history: list[Evaluation], rounds: int, seconds: float) -> str:
    accuracy = f"accuracy {history[-1].test_accuracy:.3f}, " if history else ""
    return f"{accuracy}{rounds / max(seconds, 1e-9):.1f} rounds/s"


def _free_folder(config: RunConfig) -> pathlib.Path:
    """The asked run folder, or the first free one under runs/."""
    if config.output.out is not None:
        return pathlib.Path(config.output.out)
    name = f"{config.data.dataset.partition(':')[0]}-{config.algorithm}-s{config.data.seed}"
    candidates = (pathlib.Path("runs") / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(path for path in candidates if not path.exists())
