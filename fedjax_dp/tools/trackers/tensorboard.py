"""TensorBoard: event files, written by tensorboardX."""

import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.experiments.parameters import by_name
from fedjax_dp.experiments.training import Experiment, Result
from fedjax_dp.tasks import measures_of_task
from fedjax_dp.tools.trackers import fields
from fedjax_dp.tools.trackers.fields import Memory, Tracker


class TensorBoard(Tracker):
    """A callback that writes event files, as `tensorboard --logdir` shows them.

    folder  in which each run has a folder of its own; by default that is `tensorboard` in the run's folder
    Raises: ConfigurationError where tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        errors.require_installed("tensorboardX", "tensorboard")
        self._gathered = None if folder is None else pathlib.Path(folder)

    def _begin(self, run: Experiment) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter  # which writes at once, in no thread
        from tensorboardX.proto import event_pb2

        self._summary, self._event = summary, event_pb2
        gathered = self._gathered or run.folder or pathlib.Path("tensorboard")
        within = gathered == run.folder
        self._memory = Memory("tensorboard", run, "" if within else str(gathered.absolute()))
        if self._memory.id is None:
            own = f"{run.dataset.partition(':')[0]}-{run.name}-s{run.seed}" if run.folder is None else run.folder.name
            self._memory.id = "tensorboard" if within else folders.make_unused(gathered, own).name
        folder = gathered / self._memory.id
        folder.mkdir(parents=True, exist_ok=True)
        # Files are read in the order of their names, which count seconds, and a run may go on within one.
        self._file: Any = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self.place = f"tensorboard --logdir {folder}"
        session = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(session_log=session, step=self._memory.round + 1)  # what a kill left after that does not count
        config, privacy = fields.config_of(run), fields.privacy_of(run.guarantee)
        experiment, begin, self._end = self._summary.hparams(
            config | privacy, dict.fromkeys(measures_of_task(run.task).tested)
        )
        for shown in (experiment, begin):
            self._write(summary=shown)
        self._text(
            "config", "\n".join(["| | |", "|-|-|", *(f"| {name} | {value} |" for name, value in config.items())])
        )
        words = [str(privacy[name]) for name in ("privacy/statement", "privacy/warnings") if name in privacy]
        self._text("privacy", "\n\n".join(words))
        if self._memory.rounds != run.rounds or self._memory.round < run.rounds:  # else it is there, and counts
            self._numbers(fields.numbers_of_privacy(run.guarantee), run.rounds)
            self._memory.rounds = run.rounds
        self._file.flush()
        self._memory.keep()

    def on_finish(self, result: Result) -> None:
        self._numbers(fields.times_of(result), result.history[-1].round)
        self._write(summary=self._end)
        with fields.redirect_output(), fields.files_of(result) as files:
            from tensorboardX.proto.summary_pb2 import Summary

            picture = next(file for file in files if file.name == fields.PICTURE).read_bytes()
            shown = Summary.Value(tag="run", image=Summary.Image(encoded_image_string=picture))
            self._write(summary=Summary(value=[shown]), step=result.history[-1].round)
        for name, values in by_name(result.params).items():
            self._write(summary=self._summary.histogram(f"parameters/{name}", values, "auto"), step=self._memory.round)
        self._close("finished")

    def on_stop(self, error: BaseException) -> None:
        self._close(f"failed: {type(error).__name__}: {error}")

    def _close(self, status: str) -> None:
        self._text("status", status)
        self._file.close()

    def _numbers(self, numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            self._write(summary=self._summary.scalar(name, number), step=step)
        self._file.flush()

    def _text(self, name: str, text: str) -> None:
        self._write(summary=self._summary.text(name, text), step=self._memory.round)

    def _write(self, **content: Any) -> None:
        self._file.write_event(self._event.Event(wall_time=time.time(), **content))

    def __repr__(self) -> str:
        return "TensorBoard()" if self._gathered is None else f"TensorBoard({str(self._gathered)!r})"
