"""Weights & Biases: a run in files that `wandb sync` sends, or sent at once where WANDB_MODE is online."""

import os
from collections.abc import Mapping
from typing import Any

from fedjax_dp import errors
from fedjax_dp.experiments.training import Experiment, Result
from fedjax_dp.tools.trackers import fields
from fedjax_dp.tools.trackers.fields import Memory, Tracker

INTERRUPTED, FAILED = 130, 1  # exit codes that W&B shows


class Wandb(Tracker):
    """A callback that writes a run to Weights & Biases: offline, unless the variable WANDB_MODE says otherwise.

    folder   in which W&B makes its folder `wandb`; by default WANDB_DIR or the working folder
    project  by default WANDB_PROJECT or fedjax-dp
    A run that goes on keeps its id; offline each start leaves a folder of its own, and `wandb sync` joins them.
    Raises: ConfigurationError where wandb is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, project: str | None = None) -> None:
        errors.require_installed("wandb", "wandb")
        self._folder, self._project = None if folder is None else os.fspath(folder), project

    def _begin(self, run: Experiment) -> None:
        import wandb

        project = self._project or os.environ.get("WANDB_PROJECT") or "fedjax-dp"
        mode = os.environ.get("WANDB_MODE") or "offline"
        self._memory = Memory("wandb", run, project)
        privacy = fields.privacy_of(run.guarantee)
        folder = os.path.abspath(self._folder or os.environ.get("WANDB_DIR") or os.getcwd())
        if self._folder is not None:
            os.makedirs(folder, exist_ok=True)  # else W&B takes a temporary one
        begin: Any = wandb.init
        self._run: Any = begin(
            project=project,
            dir=folder,  # whole: the process that writes has the working folder of W&B's first run
            id=self._memory.id,
            resume=None if self._memory.id is None or mode != "online" else "allow",
            mode=mode,
            name=os.environ.get("WANDB_NAME") or (run.title if run.folder is None else run.folder.name),
            notes=os.environ.get("WANDB_NOTES") or privacy["privacy/statement"],
            reinit="create_new",  # a run that the user has begun is left alone
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.config.update(fields.config_of(run) | privacy, allow_val_change=True)
        self._run.summary.update(privacy)
        self._memory.id, self._memory.rounds = self._run.id, run.rounds
        self._memory.keep()
        self.place = f"wandb sync {self._run.settings.sync_dir}" if mode == "offline" else str(self._run.url or "")

    def _numbers(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(numbers, step=step, commit=True)

    def on_finish(self, result: Result) -> None:
        with fields.redirect_output(), fields.files_of(result) as files:
            import wandb

            self._run.summary.update(fields.times_of(result))
            held = wandb.Artifact(f"run-{self._memory.id}", type="run")
            for file in files:
                held.add_file(str(file))
            self._run.log_artifact(held)
            self._run.finish()

    def on_stop(self, error: BaseException) -> None:
        with fields.redirect_output():
            self._run.summary["error"] = f"{type(error).__name__}: {error}"
            self._run.finish(exit_code=INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED)

    def __repr__(self) -> str:
        return f"Wandb({'' if self._folder is None else repr(self._folder)})"
