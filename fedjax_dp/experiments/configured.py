"""Start and resume runs of a configuration in a folder, also to more rounds."""

import os
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, gradients
from fedjax_dp.accounting import BallsInBins, Poisson, RandomAllocation, Unit, WithoutReplacement
from fedjax_dp.algorithms import COMMON
from fedjax_dp.data.client_names import in_brackets
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.data.store import FederatedData
from fedjax_dp.devices import CPU_DEVICES
from fedjax_dp.display import count
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.experiments import build, environment, population, presets, run_folder, summary
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments.communication import traffic
from fedjax_dp.experiments.config import CONFIGURED, RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.run_folder import Continuation
from fedjax_dp.experiments.training import Callbacks, Experiment, prepare_experiment
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import clips_records, noise_of, unit_of
from fedjax_dp.pytrees import equal
from fedjax_dp.rounds.simulation import run_key

BROUGHT = ("schedule", "per_step", "l2", "estimator")  # options whose defaults differ between entries


def start(config: RunSpec, screen: Screen, callbacks: Callbacks | None = None) -> tuple[dict[str, Any], pathlib.Path]:
    """The content of `result.json` of a new run, and its folder, which holds only its lock until all is checked."""

    def prepare() -> Experiment:
        with config.naming_defaults():
            return _prepare(config, screen)

    named = None if config.output.out is None else pathlib.Path(config.output.out)
    usual = f"{config.data.dataset.partition(':')[0]}-{config.entry.name}-s{config.data.seed}"
    otherwise = f"or --resume {named}"
    result, path = run_folder.start(prepare, named, usual, otherwise, screen, callbacks or Callbacks())
    return summary.summarise_run(result), path


def resume(
    path: pathlib.Path, overrides: dict[str, Any], screen: Screen, callbacks: Callbacks | None = None
) -> tuple[dict[str, Any], pathlib.Path]:
    """Continue a run from its newest checkpoint; a finished run does not change.

    `overrides` must equal the run's own fields, except free ones and `rounds`: more are possible if the run would have
    begun in the same way.
    """

    def continuation(manifest: run_folder.Manifest) -> Continuation:
        if manifest["made of"] != CONFIGURED:
            remedy = "fedjax_dp.resume(folder, algorithm, data) goes on with it"
            raise errors.refuse("resume", f"{path}, a run of values of Python", "a run of a configuration", remedy)
        config, rounds = _changed_config(manifest, overrides)

        def prepare(to: int, screen: Screen) -> Experiment:
            return _prepare(config.replace(rounds=to), screen, goes_on=to < rounds)

        return Continuation(rounds, prepare, lambda: manifest["checksums"] | run_folder.files_of(config))

    return run_folder.resume(path, continuation, screen, callbacks or Callbacks()), path


def _changed_config(manifest: run_folder.Manifest, overrides: dict[str, Any]) -> tuple[RunSpec, int]:
    """The configuration of a run folder with `overrides`, which may only change free fields, and its last round."""
    before, rounds = manifest["config"], overrides.get("rounds")
    if "out" in overrides:
        raise errors.refuse("out", overrides["out"], "left out with --resume, which names the folder", "drop it")
    for name, value in overrides.items():
        longer = name == "rounds" and isinstance(value, int) and value > before["rounds"]
        if name not in run_folder.FREE and value != before.get(name) and not longer:
            raise errors.refuse(
                f"{name} of the resumed run",
                value,
                f"{before.get(name)}, as it began with" + (", or more" if name == "rounds" else ""),
                "leave the option out, or start a new run",
            )
    config = configs.RunSpec.of(before | {name: overrides[name] for name in run_folder.FREE if name in overrides})
    return config, config.training.rounds if rounds is None else rounds


def _prepare(config: RunSpec, screen: Screen, goes_on: bool = False) -> Experiment:
    data = population.build_data(config.data)
    config = config.for_clients(data.num_clients)
    chosen = list[str]()
    planned = build.planned_of(config, data, goes_on=goes_on, say=chosen.append)
    execution = build.build_execution(config, planned.algorithm, data)
    # Noted, so that another number of processes continues the run in the same way.
    on_host = build.records_on_host(config, planned.algorithm)
    config = config.replace(records="host" if on_host else "devices", out=None)  # the place determines nothing
    began = time.perf_counter()
    searched = config.privacy.epsilon is not None  # else noise is set, and its epsilon is computed
    with screen.bar("calibrating noise" if searched else "computing epsilon", total=1) as show:
        kinds = 0

        def progress(done: int, total: int) -> None:
            nonlocal kinds
            kinds = total
            show(done / total, f"{done} of {total} kinds of clients")

        ready = prepare_experiment(
            config,
            planned,
            execution,
            on_host=on_host,
            checksums=population.checksums(data, config.data) | run_folder.files_of(config),
            progress=progress,
            notes=chosen,
        )
    if ready.halted_of is not None:
        again = build.build_algorithm(config.with_rounds(ready.rounds), data)
        if not equal(again, planned.algorithm):
            reason = "its algorithm is another for fewer rounds: give them as rounds"
            raise errors.refuse("stop_at_epsilon", config.privacy.stop_at_epsilon, "left out", reason)
    for line in (
        *population.notes(config.data, data),
        *_assumed_defaults(config),
        *_entry_defaults(config),
        *ready.notes,
        *_describe(config, ready),
        *filter(None, [ready.halt]),
    ):
        screen.say(line)
    if kinds:
        spent = time.perf_counter() - began
        whom = "every client" if kinds == 1 else f"{kinds} kinds of clients, which differ in records and rounds"
        task = "found the least noise for the budget" if searched else "computed the epsilon"
        screen.say(f"{task} of {whom} in {spent:.1f} s")
    return ready


def _assumed_defaults(config: RunSpec) -> list[str]:
    """Unset numbers for the user's own data, for which no default can be right."""
    brought = config.from_data_set() if kind_of(config.data.dataset) in presets.FILES else {}
    listed = ", ".join(f"{name} {value:g}" for name, value in brought.items() if isinstance(value, int | float))
    return [f"not set, so defaults are used: {listed}"] if listed else []


def _entry_defaults(config: RunSpec) -> list[str]:
    """Defaults of an entry for local steps and sums that differ from those of other entries; one that prepares its
    arguments decides them itself."""
    if config.entry.prepare is not None:
        return []
    taken = {name: option.default for name, option in config.entry.options.items() if name in BROUGHT}
    brought = {
        name: value
        for name, value in taken.items()
        if value != COMMON[name].default and config.options.get(name, value) == value
    }
    listed = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in brought.items())
    return [f"{config.entry.name} uses {listed} by default, as in its paper"] if listed else []


def _describe(config: RunSpec, ready: Experiment) -> list[str]:
    """The lines of the log before the first round."""
    run, options = ready.planned, config.options
    data, algorithm = run.data, run.algorithm
    lines = [f"{_clients(data)}; {_rounds(config, ready)}", _devices(ready.execution)]
    noise = noise_of(algorithm)
    if noise is not None:
        noises = np.atleast_1d(np.asarray(noise, float))
        least, most = f"{noises.min():.4g}", f"{noises.max():.4g}"
        words = f"noise multiplier {least}" if least == most else f"noise multiplier {least} to {most}, by client"
        if len(run.noise_levels.factors) > 1:
            words += ", in round 0"
        if "clip_norm" in options:
            words += f", clip norm {options['clip_norm']:g}; the noise on a sum is their product"
        lines.append(words)
        if clips_records(algorithm):
            params = jax.eval_shape(run.model.init, run_key(run.seed))
            rows = (data.features(jnp.asarray(data.x[:1])), data.blank_targets(1))
            lines.append(f"clipping by {gradients.describe(run.model, params, *rows)}")
    lines += _small_clients(run)
    lines.append(str(traffic(algorithm, run.model, data)))
    return lines


def _small_clients(run: PlannedRun) -> list[str]:
    """A warning if some clients, unlike others, have no more records than a batch, and its privacy cost."""
    batches = run.algorithm.local.batches
    size, sizes = getattr(batches, "size", 0), np.asarray(run.data.sizes)
    if noise_of(run.algorithm) is None or unit_of(run.algorithm) is not Unit.RECORD:
        fewer = int(np.sum(sizes < size))
        return [f"{count(fewer, 'client')} with fewer than {size} records use all in every batch"] if fewer else []
    small = int(np.sum(sizes <= size))
    samples = isinstance(batches.sampling(2**31), WithoutReplacement | Poisson | RandomAllocation | BallsInBins)
    if not small or not samples:
        return []
    remedies = ["--batches epochs", "a smaller --batch-size"]
    if run.terms.epsilon is None:
        remedies.append("noise per client (by --epsilon)")
    gain = "the largest epsilon" if run.terms.epsilon is None else "the noise that the budget needs"
    return [
        f"{small} of {count(len(sizes), 'client')} with at most {size} records use all of them in every step, without "
        f"amplification by sampling; {', '.join(remedies)} or --min-records {size + 1} would lower {gain}"
    ]


def _clients(data: FederatedData) -> str:
    least, most = int(np.min(data.sizes)), int(np.max(data.sizes))
    each = " each" * (data.num_clients > 1) if least == most else ""
    records = f"{least:,} to " * (least < most) + count(most, "record") + each
    return f"{count(data.num_clients, 'client')}{in_brackets(data.names)} with {records}"


def _rounds(config: RunSpec, ready: Experiment) -> str:
    """A round in words, as far as the options determine it."""
    options, planned = config.options, ready.planned
    cohort = planned.algorithm.cohort
    size = cohort.expected_size(planned.data.num_clients)
    everyone = not cohort.base.is_random and cohort.base.fixed and size == planned.data.num_clients
    who = "all clients" if everyone else f"{'' if cohort.fixed else 'about '}{count(size, 'client')}"
    steps, batch = options.get("local_steps"), options.get("batch_size")
    does = "train"
    if steps is not None:
        even = planned.algorithm.local.batches.even
        kind = ("local step", "local steps") if even else ("local pass", "local passes")
        does = (
            f"take {steps:,} {kind[steps != 1]} of {'all their records' if batch is None else count(batch, 'record')}"
        )
    return f"{count(ready.rounds, 'round')}, in each {who} {does}"


def _devices(execution: Execution) -> str:
    """The devices in words."""
    device = environment.device()
    kind = device["platform"].upper() + ("" if device["kind"] == device["platform"] else f" ({device['kind']})")
    words = f"runs on {execution.devices} {kind} device{'s' * (execution.devices > 1)}"
    if execution.devices < device["count"]:
        words += f" of {device['count']}"
    if execution.model_devices > 1:
        words += f", {execution.model_devices} to a model"
    if device["processes"] > 1:
        words += f" in {device['processes']} processes"
    late = device["platform"] == "cpu" and device["count"] < device["cores"] * device["processes"]
    if late and CPU_DEVICES not in os.environ:
        words += f", although there are {device['cores']} cores; import fedjax_dp before you use JAX to use them all"
    return words
