"""Runs of values: calibrate, train and account, optionally in a folder."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData, require_clients
from fedjax_dp.display import words
from fedjax_dp.execution import distributed
from fedjax_dp.execution.mesh import Execution, all_devices
from fedjax_dp.experiments import configured, phases, population, run_folder
from fedjax_dp.experiments.config import CONFIGURED, RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.run_folder import RUN_FOLDER, Continuation
from fedjax_dp.experiments.saved_run import SavedRun, open_run
from fedjax_dp.experiments.training import Callbacks, Experiment, Result, prepare_experiment, train
from fedjax_dp.models import ARCHITECTURES, Model, NetworkModel, usual_model
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyOptions
from fedjax_dp.rounds.algorithm import Algorithm

OF_VALUES = ("algorithm", "dataset", "model")  # fields of a configuration that only describe values


def run(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    model: Model | None = None,
    evaluate_every: int | None = None,
    train_metrics: bool = False,
    target: str | None = None,
    execution: Execution | None = None,
    on_host: bool = False,
    out: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    progress: bool = False,
    callbacks: Sequence[Any] = (),
    **privacy: Unpack[PrivacyOptions],
) -> Result:
    """Train `algorithm` on `data`, and compute its privacy guarantee.

    algorithm         from the catalogue, such as `fedjax_dp.dpnfl(...)`, or of your own parts;
    data              from `fedjax_dp.federate`;
    epsilon, delta    the budget, one or one for each client, which determines the least noise; without epsilon the
                      algorithm's own `noise_multiplier` counts;
    target            METRIC=VALUE of the task's metrics, such as accuracy=0.9, to count rounds and bytes to;
    out               a new folder for configuration, metrics, checkpoints, result and picture; `resume` goes on there
                      after a stop, `open_run` reads it;
    checkpoint_every  rounds between checkpoints in it (default: rounds / 5);
    progress          bars on stderr, or in the notebook;
    callbacks         are called at start, evaluations and end, see `experiments.Callback`.
    Other privacy options (accountant, participation, unit, view, stop_at_epsilon, ...) are keyword arguments too, see
    `fedjax_dp.privacy.PrivacyTerms`. For the remaining arguments see `fedjax_dp.simulate`.
    Raises: ConfigurationError before anything is compiled or written; errors.DivergedError with round and clients.
    """
    observers, path = Callbacks(callbacks), None if out is None else pathlib.Path(out)
    if path is None and checkpoint_every is not None:
        raise errors.refuse("checkpoint_every", checkpoint_every, "left out without a folder", "name one with out=")
    screen = Screen(quiet=not progress or not distributed.is_first())
    overrides: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "train_metrics": train_metrics,
        "target": target,
        "checkpoint_every": checkpoint_every,
        "records": "host" if on_host else "devices",
        **privacy,
    }

    def prepare() -> Experiment:
        return _prepare(algorithm, data, _model(model, data), execution, overrides, path is not None)

    if path is None:
        return train(prepare(), screen, observers)

    otherwise = f"or go on with it: resume({str(path)!r}, algorithm, data)"
    return run_folder.start(prepare, path, "", otherwise, screen, observers)[0]


def resume(
    folder: str | os.PathLike[str],
    algorithm: Algorithm | None = None,
    data: FederatedData | None = None,
    *,
    model: Model | None = None,
    rounds: int | None = None,
    execution: Execution | None = None,
    progress: bool = False,
    callbacks: Sequence[Any] = (),
) -> SavedRun:
    """Continue a stopped run from its newest checkpoint, bit for bit as if it had not stopped.

    algorithm, data, model  the arguments of `run`, which a folder cannot hold; leave them out for the run of a
                            configuration, which the folder holds;
    rounds                  more than before, if the run would have begun in the same way: the Guarantee is computed
                            anew; a participation log must continue too;
    A finished run does not change.
    Raises: ConfigurationError if folder, configuration, values or data have changed since.
    """
    path, observers, screen = pathlib.Path(folder), Callbacks(callbacks), Screen(quiet=not progress)
    manifest = RUN_FOLDER.read(path)
    if manifest["made of"] == CONFIGURED:
        if any(value is not None for value in (algorithm, data, model, execution)):
            raise errors.refuse("algorithm, data, model and execution", "one of them", f"left out: {path} says them")
        configured.resume(path, {} if rounds is None else {"rounds": rounds}, screen, observers)
        return open_run(path)
    if algorithm is None or data is None:
        remedy = f"resume({os.fspath(folder)!r}, algorithm, data, model=...) goes on"
        raise errors.refuse("algorithm and data", "nothing", "given again, as the run was made of values", remedy)
    before, used = manifest["config"]["rounds"], _model(model, data)
    rounds = before if rounds is None else rounds
    errors.require_count("rounds", rounds)
    if rounds < before:
        raise errors.refuse("rounds of the resumed run", rounds, f"at least {before}, as it began with")

    def continuation(manifest: run_folder.Manifest) -> Continuation:
        config = {name: value for name, value in manifest["config"].items() if name not in OF_VALUES}

        def prepare(to: int, screen: Screen) -> Experiment:
            own = algorithm if to == rounds else algorithm.prefix(to)
            return _prepare(own, data, used, execution, config | {"rounds": to}, kept=True)

        return Continuation(rounds, prepare, lambda: _checksums(algorithm, data, used))

    run_folder.resume(path, continuation, screen, observers)
    return open_run(path, model=model)


def _model(model: Model | None, data: FederatedData) -> Model:
    require_clients(data)
    return usual_model(data) if model is None else model


def _prepare(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model,
    execution: Execution | None,
    overrides: Mapping[str, Any],
    kept: bool,
) -> Experiment:
    """Prepare a run of values; `kept` in a folder, it needs checksums of them."""
    spec = RunSpec.of_values(overrides, dataset=data.name or "data")
    rounds, seed, terms = spec.training.rounds, spec.data.seed, spec.privacy
    ready = prepare_experiment(
        spec,
        plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms),
        execution or all_devices(),
        on_host=spec.execution.records == "host",
        checksums=_checksums(algorithm, data, model) if kept else {},
    )
    describe = functools.partial(_describe, ready.planned.algorithm, model, data)
    return dataclasses.replace(ready, spec=dataclasses.replace(ready.spec, describe=describe))


def _describe(algorithm: Algorithm, model: Model, data: FederatedData) -> dict[str, str | None]:
    shortened = textwrap.shorten(words(algorithm), 200, placeholder="...")
    return {"algorithm": shortened, "model": _architecture(model, data)}


def _checksums(algorithm: Algorithm, data: FederatedData, model: Model) -> dict[str, str]:
    return population.checksums(data) | phases.checksums_of_values(algorithm, model)


def _architecture(model: Model, data: FederatedData) -> str | None:
    """The name of the package's architecture that equals this model."""
    if not isinstance(model, NetworkModel):
        return None
    for name, make in ARCHITECTURES.items():
        with contextlib.suppress(errors.ConfigurationError):  # it is not made for such records
            if (
                name != "lstm" and make(data.record_shape, data.classes).for_data(data) == model
            ):  # its word vectors are its own
                return name
    return None
