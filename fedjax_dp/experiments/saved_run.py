"""Read a run folder: parameters, configuration, history, Guarantee, model; and export its parameters."""

import functools
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.accounting import Guarantee
from fedjax_dp.accounting.guarantee import with_mark
from fedjax_dp.data.targets import vocabulary_of
from fedjax_dp.display import Card, displayed
from fedjax_dp.experiments import build, parameters, phases, run_folder
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments.training import merge_params
from fedjax_dp.models import ARCHITECTURES, Model, NetworkModel, Origin, Start, adapters
from fedjax_dp.models.origins import values_digest
from fedjax_dp.models.run_files import CHECKPOINTS
from fedjax_dp.models.starts import ADAPTER
from fedjax_dp.rounds import metrics
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.rounds.simulation import Evaluation
from fedjax_dp.tasks.measures import TEST, Measures, measures_of


@displayed
class SavedRun:
    """The content of a run's folder; large files are read at first use."""

    def __init__(self, folder: pathlib.Path, model: Model | None) -> None:
        self.folder = folder
        self._manifest = run_folder.RUN_FOLDER.read(folder)
        run_folder.require_one_run(folder, self._manifest)
        self._model = model

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run, by name."""
        return dict(self._manifest["config"])

    @property
    def finished(self) -> bool:
        """Whether the run has completed all its rounds."""
        return self.result is not None

    @functools.cached_property
    def result(self) -> Mapping[str, Any] | None:
        """The content of `result.json`; None before the end."""
        return run_folder.result_of(self.folder, self._manifest)

    @functools.cached_property
    def history(self) -> list[Evaluation]:
        """The evaluations so far."""
        return run_folder.history(self.folder)

    @property
    def title(self) -> str:
        """The run in words."""
        config = self.config
        name = f"{config['algorithm']} on " if self._manifest["made of"] == configs.CONFIGURED else ""
        text = f"{name}{config['dataset']}, {len(self.guarantee.epsilons)} clients, seed {config['seed']}"
        return with_mark(text, self.guarantee.mark)

    @property
    def measures(self) -> Measures:
        """The measures in the history, by name."""
        return measures_of(self._manifest["task"])

    @property
    def metrics(self) -> dict[str, float | None]:
        """The task's metrics on the test set at the last evaluation, by name; each is a property too."""
        return self._last.metrics

    @property
    def test_loss(self) -> float:
        """The test loss at the last evaluation."""
        return self._last.test_loss

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        """The Guarantee of all rounds, completed or not."""
        return Guarantee.from_full_dict(run_folder.promise_of(self.folder, self._manifest))

    @property
    def round(self) -> int:
        """The round of the newest checkpoint and of `params`.

        Raises: ConfigurationError before the first.
        """
        return self._checkpoint[0]

    @property
    def params(self) -> Any:
        """The model's parameters at the newest checkpoint: NumPy arrays, however many devices wrote them.

        Raises: ConfigurationError before the first.
        """
        return self._checkpoint[1]

    @functools.cached_property
    def model(self) -> Model:
        """The model of `params`.

        Raises: ConfigurationError for a model of Python that was not passed to `open_run`.
        """
        records, config = self._manifest["records"], self._manifest["config"]
        if self._model is not None:
            return self._model
        like = build.RecordFormat(
            tuple(records["shape"]),
            records["classes"],
            records["tokens"],
            records["task"],
            vocabulary_of(records["vocabulary"]),
        )
        if self._manifest["made of"] == configs.CONFIGURED:
            run = configs.RunSpec.of(config)
            run_folder.require_same(self._manifest, self._manifest["checksums"] | run_folder.files_of(run))
            return build.build_model(run, like)
        if "model" not in config:
            raise errors.refuse("model", "one of your own", "given again", "open_run(folder, model=...) takes it")
        return ARCHITECTURES[config["model"]](like.record_shape, like.classes)

    @property
    def whole(self) -> Any:
        """All parameters of the network: trained ones, frozen ones, and low-rank terms added to their kernels."""
        return merge_params(self.model, self.params)

    def as_start(self) -> Start:
        """All its parameters and their ledger: `models.freeze(model, start=run)` begins another run with them."""
        values = parameters.by_name(self.whole)
        ledger = phases.ledger_of_parameters(self._ledger, values, self.round)
        return Start(values, Origin(self.folder.name, values_digest(values), ledger=ledger))

    def export(self, path: str | os.PathLike[str], *, merged: bool = False, format: str | None = None) -> pathlib.Path:
        """Write the parameters to a new file, named by their paths, such as Dense_0/kernel, and their ledger.

        path    ends in .safetensors, which also holds configuration and Guarantee, or in .npz;
        merged  all parameters of the network, see `whole`; else only the trained ones;
        format  `peft`: of a pretrained model, a folder with its adapter for PEFT, or, if merged, one that transformers
                reads as it does the base; with the Guarantee in PRIVACY.md.
        Raises: ConfigurationError for other endings, for what exists or cannot be written.
        """
        path = pathlib.Path(path)
        described = {"config": json.dumps(self.config), "round": str(self.round), "privacy": str(self.guarantee)}
        if format is not None:
            errors.require_choice("format", format, ("peft",))
            self._export_for_peft(path, merged, described)
            return path
        params = self.whole if merged else self.params
        ledger = phases.ledger_of_parameters(self._public_ledger, parameters.by_name(params), self.round)
        with folders.storage_errors(path, "make room, or write elsewhere"):
            parameters.write(path, params, ledger, described, new=True)
        return path

    @property
    def _public_ledger(self) -> str:
        return phases.without_digests(self._ledger, names=True)

    def _export_for_peft(self, path: pathlib.Path, merged: bool, described: Mapping[str, str]) -> None:
        model, base = self.model, configs.folder_of(self._manifest["config"].get("model"))
        if not isinstance(model, NetworkModel):
            raise errors.refuse("format", "peft for a model of your own", "used with a pretrained model", "drop it")
        promise = self.guarantee
        lines = (f"* {line}" for line in (*promise.warnings, *promise.assumptions))
        files = {"PRIVACY.md": "\n".join((f"{promise}\n", *lines, "")).encode()}
        if merged:
            if base is None:
                raise errors.refuse(
                    "merged", "a run from Python", "one with model pretrained:FOLDER", "use PEFT's merge"
                )
            tensors, name = adapters.merged_files(model, self.whole), "model.safetensors"
            kept = (file for file in pathlib.Path(base).glob("*.json") if not file.name.endswith(".index.json"))
            files |= {file.name: file.read_bytes() for file in kept}
        else:
            tensors, text = adapters.adapter_files(model, self.params, base or model.origins[0].name)
            files, name = files | {ADAPTER[0]: text.encode()}, ADAPTER[1]
        ledger = phases.ledger_of_parameters(self._public_ledger, tensors, self.round)
        if path.exists() or not path.parent.is_dir():
            wanted = "a new folder in an existing one"
            raise errors.refuse("folder to export to", str(path), wanted, "give another name, or remove it")
        with folders.storage_errors(path, "make room, or write elsewhere"):
            path.mkdir()  # by one process
            try:
                for file, content in files.items():
                    (path / file).write_bytes(content)
                # last, so that what is killed before cannot be loaded
                parameters.write(path / name, tensors, ledger, {**described, "format": "pt"}, new=True)
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise

    def _card(self) -> Card:
        rounds = self._manifest["config"]["rounds"]
        facts = {
            "rounds": f"{self.history[-1].round if self.history else 0} of {rounds} done",
            **metrics.main_metric(self.history),
            "privacy": str(self.guarantee),
            "configuration": ", ".join(f"{name} {value}" for name, value in self.config.items() if value is not None),
        }
        return Card(f"run in {self.folder}", facts, metrics.table(self.history))

    def __getattr__(self, name: str) -> Any:
        if name.startswith(TEST):
            return getattr(self._last, name)
        raise AttributeError(f"a run has no {name}")

    @property
    def _ledger(self) -> str:
        return run_folder.ledger(self.folder)

    @property
    def _last(self) -> Evaluation:
        if not self.history:
            raise errors.refuse(
                "run", f"{self.folder} before its first evaluation", "evaluated", "resume goes on with it"
            )
        return self.history[-1]

    @functools.cached_property
    def _checkpoint(self) -> tuple[int, Any]:
        if not (self.folder / CHECKPOINTS).is_dir():  # looking for checkpoints would create it
            raise errors.refuse("checkpoint", "none", f"present in {self.folder}", "resume goes on with the run")
        checkpoints = Checkpoints(self.folder)
        try:
            return checkpoints.params()
        finally:
            checkpoints.close()


def open_run(folder: str | os.PathLike[str], *, model: Model | None = None) -> SavedRun:
    """Open the folder of a run; nothing in it changes.

    model  the run's model, if the folder does not hold it: a user-defined network of Python.
    Raises: ConfigurationError if it is no run folder, its `run.json` was edited, or it lacks files of its run or has
            those of another.
    """
    return SavedRun(pathlib.Path(folder), model)
