"""MLflow: a run at a tracking server, or in the database that MLflow keeps in the working folder."""

import contextlib
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_dp import errors
from fedjax_dp.experiments.training import Experiment, Result
from fedjax_dp.tools.trackers import fields
from fedjax_dp.tools.trackers.fields import Memory, Tracker

# MLflow tries again for four minutes, and training would wait for it; and it prints where its runs are.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_CREDENTIALS = re.compile(r"://[^/@\s]*@")
LONGEST = 5000  # letters of a tag, at most


class MLflow(Tracker):
    """A callback that writes a run to MLflow.

    uri         of the tracking server or store; by default MLflow's own, MLFLOW_TRACKING_URI
    experiment  by name; by default MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID, or MLflow's default experiment
    Training waits for the server, but not for long, unless variables such as MLFLOW_HTTP_REQUEST_TIMEOUT say so.
    Raises: ConfigurationError where MLflow is not installed.
    """

    def __init__(self, uri: str | None = None, *, experiment: str | None = None) -> None:
        errors.require_installed("mlflow", "mlflow")
        self._uri, self._experiment = uri, experiment

    def _guard(self) -> contextlib.AbstractContextManager[None]:
        return _short_timeouts()

    def _begin(self, run: Experiment) -> None:
        import mlflow

        uri = self._uri or mlflow.get_tracking_uri()
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._entities = mlflow.entities
        self._memory = Memory("mlflow", run, _without_password(uri))
        config, privacy = fields.config_of(run), fields.privacy_of(run.guarantee)
        if self._memory.id is None:
            name = run.title if run.folder is None else run.folder.name
            self._memory.id = self._client.create_run(self._experiment_id(), run_name=name).info.run_id
            self._memory.keep()
        else:
            self._client.update_run(self._memory.id, status="RUNNING")
            # A parameter is written once; what a longer run changes, such as `rounds`, goes on as a tag.
            held = self._client.get_run(self._memory.id).data.params
            privacy |= {name: value for name, value in config.items() if held.get(name, str(value)) != str(value)}
            config = {name: value for name, value in config.items() if name not in held}
        tags = privacy | {"mlflow.note.content": privacy["privacy/statement"]}
        self._client.log_batch(
            self._memory.id,
            params=[self._entities.Param(name, str(value)[:LONGEST]) for name, value in config.items()],
            tags=[self._entities.RunTag(name, str(value)[:LONGEST]) for name, value in tags.items()],
        )
        if self._memory.rounds != run.rounds:
            self._numbers(fields.numbers_of_privacy(run.guarantee), run.rounds)
            self._memory.rounds = run.rounds
        self._memory.keep()
        self.place = f"run {self._memory.id} at {_without_password(uri)}"

    def on_finish(self, result: Result) -> None:
        with _short_timeouts():
            self._numbers(fields.times_of(result), result.history[-1].round)
            self._client.set_terminated(self._memory.id, "FINISHED")  # also where a file is not taken
            with fields.files_of(result) as files:
                for file in files:
                    self._client.log_artifact(self._memory.id, str(file))

    def on_stop(self, error: BaseException) -> None:
        with _short_timeouts():
            self._client.set_tag(self._memory.id, "error", f"{type(error).__name__}: {error}"[:LONGEST])
            status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            self._client.set_terminated(self._memory.id, status)

    def _experiment_id(self) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
        result = self._client.get_experiment_by_name(name)
        return str(result.experiment_id if result else self._client.create_experiment(name))

    def _numbers(self, numbers: Mapping[str, float], step: int) -> None:
        now, metric = time.time_ns() // 10**6, self._entities.Metric
        self._client.log_batch(
            self._memory.id, metrics=[metric(name, number, now, step) for name, number in numbers.items()]
        )

    def __repr__(self) -> str:
        arguments = {"uri": self._uri and _without_password(self._uri), "experiment": self._experiment}
        return f"MLflow({', '.join(f'{name}={value!r}' for name, value in arguments.items() if value)})"


def _without_password(uri: str) -> str:
    parts = urllib.parse.urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else uri


@contextlib.contextmanager
def _short_timeouts() -> Iterator[None]:
    """MLflow reads variables at every request; those of the user stay, and nothing else is left set."""
    added = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    retries: Any = logging.getLogger("urllib3.connectionpool")  # logs every attempt
    level = retries.level
    os.environ.update(added)
    retries.setLevel(logging.ERROR)
    try:
        with fields.redirect_output():
            yield
    except Exception as error:
        clean = _CREDENTIALS.sub("://", str(error))  # MLflow shows the whole address
        if clean == str(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {clean}") from None
    finally:
        retries.setLevel(level)
        for name in added:
            os.environ.pop(name, None)
