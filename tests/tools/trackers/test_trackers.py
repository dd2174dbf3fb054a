"""Trackers are told all of a run, read back from where they keep it; nothing that happens to them changes the run."""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import jax
import pytest
from small_runs import Stopped, dpnfl, stop_at

import fedjax_dp as fdp
from fedjax_dp.rounds.metrics import PROBES
from fedjax_dp.tools.cli import main
from fedjax_dp.tools.trackers import MLflow, TensorBoard, Wandb

WORDS = {"rounds": 6, "evaluate_every": 2, "delta": 1e-3}
FLAGS = ["--num-clients", "10", "--cohort-size", "5", "--local-steps", "2", "--rounds", "6", "--noise-multiplier", "2"]
RUN = ["run", *FLAGS, "--evaluate-every", "2", "--checkpoint-every", "2", "--out", "x"]
GUARANTEE = ("epsilon", "delta", "unit", "adjacency", "view", "accountant", "statement")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Nothing of the user's own trackers, and nobody outside is told."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "300")  # its service may start late beside other tests
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "300")


def told(evaluation):
    """An evaluation as a tracker has it."""
    return {
        f"probe/{name}" if name in PROBES else name: value
        for name, value in evaluation.row().items()
        if name != "round" and value is not None
    }


def expected(history):
    """By name, then by round."""
    found = {}
    for seen in history:
        for name, value in told(seen).items():
            found.setdefault(name, []).append((seen.round, value))
    return found


def without(numbers, *groups):
    return {name: seen for name, seen in numbers.items() if name.partition("/")[0] not in groups}


def close(found, wanted, tolerance=0.0):
    assert set(found) == set(wanted)
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        values = zip((value for _, value in found[name]), (value for _, value in points), strict=True)
        assert all(abs(here - there) <= tolerance * abs(there) for here, there in values), name


# TensorBoard


def events(folder):
    """Numbers and texts of an event folder, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    numbers = {tag: [(at.step, at.value) for at in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    texts = {
        tag.removesuffix("/text_summary"): [at.tensor_proto.string_val[0].decode() for at in read.Tensors(tag)]
        for tag in read.Tags()["tensors"]
    }
    return numbers, texts, read


@pytest.mark.slow
def test_event_files_hold_the_history_and_the_guarantee(data):
    result = fdp.run(dpnfl(), data, callbacks=[TensorBoard("logs")], **WORDS)
    (folder,) = pathlib.Path("logs").iterdir()
    numbers, texts, read = events(folder)
    close(without(numbers, "privacy", "time"), expected(result.history), 1e-6)  # they hold float32
    assert numbers["privacy/epsilon"][0] == (6, pytest.approx(result.guarantee.epsilon))
    assert numbers["privacy/delta"][0] == (6, pytest.approx(1e-3))
    assert [step for step, _ in numbers["privacy/epsilon_planned"]] == [2, 4, 6]
    assert numbers["privacy/epsilon_planned"][-1] == numbers["privacy/epsilon"][0]
    assert str(result.guarantee) in texts["privacy"][0]
    assert "| rounds | 6 |" in texts["config"][0]
    assert texts["status"] == ["finished"]
    assert read.Images("run")[0].encoded_image_string.startswith(b"\x89PNG")
    assert any(name.startswith("parameters/") for name in read.Tags()["histograms"])
    assert numbers["time/total_s"] == [(6, pytest.approx(result.timing.total_s))]
    assert {"_hparams_/session_start_info", "_hparams_/session_end_info"} <= set(read.PluginTagToContent("hparams"))
    fdp.run(dpnfl(), data, callbacks=[TensorBoard("logs")], **WORDS)
    assert len(list(pathlib.Path("logs").iterdir())) == 2  # nothing mixed, nothing overwritten


@pytest.mark.slow
def test_no_privacy_is_said_in_words_and_no_number(data):
    result = fdp.run(dpnfl(noise_multiplier=0.0), data, out="x", callbacks=[TensorBoard()], **WORDS)
    numbers, texts, _ = events("x/tensorboard")
    assert not {name for name in numbers if name.startswith("privacy")}
    assert str(result.guarantee) in texts["privacy"][0]
    assert texts["privacy"][0].startswith("no privacy")


@pytest.mark.slow
def test_a_run_that_goes_on_has_each_point_once(data):
    words = WORDS | {"checkpoint_every": 2, "evaluate_every": 1}
    with pytest.raises(Stopped):
        fdp.run(dpnfl(), data, out="x", callbacks=[TensorBoard(), stop_at(3)], **words)
    assert "failed: Stopped" in events("x/tensorboard")[1]["status"][0]
    memory = json.loads(pathlib.Path("x/trackers.json").read_text())
    assert memory["tensorboard"]["round"] == 3  # one after the checkpoint
    memory["tensorboard"]["round"] = 2  # as if a kill had come before it was remembered
    pathlib.Path("x/trackers.json").write_text(json.dumps(memory))
    seen = fdp.resume("x", dpnfl(), data, callbacks=[TensorBoard()])
    numbers, texts, _ = events("x/tensorboard")
    close(without(numbers, "privacy", "time"), expected(seen.history), 1e-6)
    assert [step for step, _ in numbers["privacy/epsilon"]] == [6]
    assert texts["status"][-1] == "finished"
    fdp.resume("x", dpnfl(), data, rounds=8, callbacks=[TensorBoard()])
    numbers, _, _ = events("x/tensorboard")
    assert [step for step, _ in numbers["test_accuracy"]] == list(range(1, 9))
    assert [step for step, _ in numbers["privacy/epsilon"]] == [6, 8]


@pytest.mark.slow
def test_who_comes_later_is_told_of_what_was_before(data):
    with pytest.raises(Stopped):
        fdp.run(dpnfl(), data, out="x", checkpoint_every=2, callbacks=[stop_at(4)], **WORDS)
    seen = fdp.resume("x", dpnfl(), data, callbacks=[TensorBoard()])
    close(without(events("x/tensorboard")[0], "privacy", "time"), expected(seen.history), 1e-6)


@pytest.mark.slow
def test_a_full_disk_loses_the_tracker_and_not_the_run(data, monkeypatch):
    from tensorboardX.event_file_writer import EventsWriter

    whole = fdp.run(dpnfl(), data, **WORDS)
    flushed = []

    def flush(self):
        flushed.append(self)
        if len(flushed) > 2:
            self._py_recordio_writer.close()
            raise OSError(28, "No space left on device")
        return True

    monkeypatch.setattr(EventsWriter, "flush", flush)
    with pytest.warns(RuntimeWarning, match=r"TensorBoard\('logs'\) failed in on_evaluation .* No space left") as seen:
        result = fdp.run(dpnfl(), data, callbacks=[TensorBoard("logs")], **WORDS)
    assert len([one for one in seen if "TensorBoard" in str(one.message)]) == 1
    assert result.history == whole.history


# MLflow


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """`mlflow server` in a process of its own, with a store in files."""

    def __init__(self, folder):
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        command = [sys.executable, *f"-m mlflow server --workers 1 --host 127.0.0.1 --port {port}".split()]
        command += ["--backend-store-uri", f"{folder}/store", "--artifacts-destination", f"{folder}/artifacts"]
        allowed = os.environ | {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        allowed = {name: value for name, value in allowed.items() if name != "MLFLOW_TRACKING_URI"}
        self.log = (folder / "log").open("w")
        output = {"stdout": self.log, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, env=allowed, cwd=folder, start_new_session=True, **output)
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=1):
                return
            assert self.process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.2)

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    served = Server(tmp_path_factory.mktemp("mlflow"))
    yield served
    served.kill()


def client_of(uri):
    import mlflow

    return mlflow.MlflowClient(tracking_uri=uri)


def run_of(uri, folder="x"):
    """The run of a folder as MLflow has it, and its numbers."""
    client = client_of(uri)
    run = client.get_run(json.loads(pathlib.Path(f"{folder}/trackers.json").read_text())["mlflow"]["id"])
    numbers = {
        name: [(at.step, at.value) for at in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    return run, numbers


@pytest.mark.slow
def test_a_server_has_the_history_and_the_guarantee(data, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits of mine")
    before = dict(os.environ)
    result = fdp.run(dpnfl(), data, out="x", callbacks=[MLflow(server.uri)], **WORDS)
    assert dict(os.environ) == before
    run, numbers = run_of(server.uri)
    close(without(numbers, "privacy", "time"), expected(result.history))
    assert numbers["privacy/epsilon"] == [(6, result.guarantee.epsilon)]
    tags, promise = run.data.tags, result.guarantee.to_dict()
    assert {name: tags[f"privacy/{name}"] for name in GUARANTEE} == {name: str(promise[name]) for name in GUARANTEE}
    assert tags["mlflow.note.content"] == str(result.guarantee)
    assert run.data.params["rounds"] == "6"
    assert run.data.params["version/jax"] == jax.__version__
    assert (run.info.status, run.info.run_name) == ("FINISHED", "x")
    files = {file.path for file in client_of(server.uri).list_artifacts(run.info.run_id)}
    assert files == {"config.json", "guarantee.json", "params.safetensors", "run.png"}
    assert client_of(server.uri).get_experiment(run.info.experiment_id).name == "digits of mine"


@pytest.mark.slow
def test_a_run_goes_on_at_the_server_and_ends_as_it_ended(data, server):
    words = WORDS | {"checkpoint_every": 2, "evaluate_every": 1}
    for error, status in ((KeyboardInterrupt, "KILLED"), (Stopped, "FAILED")):
        folder = status.lower()
        with pytest.raises(error):
            fdp.run(dpnfl(), data, out=folder, callbacks=[MLflow(server.uri), stop_at(3, error)], **words)
        assert run_of(server.uri, folder)[0].info.status == status
    fdp.resume("killed", dpnfl(), data, callbacks=[MLflow(server.uri)])
    longer = fdp.resume("killed", dpnfl(), data, rounds=8, callbacks=[MLflow(server.uri)])
    run, numbers = run_of(server.uri, "killed")
    close(without(numbers, "privacy", "time"), expected(longer.history))
    assert [step for step, _ in numbers["privacy/epsilon"]] == [6, 8]
    assert (run.data.params["rounds"], run.data.tags["rounds"], run.info.status) == ("6", "8", "FINISHED")
    diverging = fdp.fedavg(cohort_size=5, batch_size=10, local_steps=2, learning_rate=1e38)
    with pytest.raises(fdp.errors.DivergedError):
        fdp.run(diverging, data, rounds=4, out="y", callbacks=[MLflow(server.uri)])
    run, _ = run_of(server.uri, "y")
    assert run.info.status == "FAILED"
    assert "training diverged" in run.data.tags["error"]


@pytest.mark.exhaustive  # CI: a server that is not there
def test_a_server_that_is_killed_loses_the_tracker_and_not_the_run(data, tmp_path):
    served = Server(tmp_path)
    whole = fdp.run(dpnfl(), data, **WORDS)

    def kill(evaluation):
        if evaluation.round == 2:
            served.kill()

    began = time.monotonic()
    with pytest.warns(
        RuntimeWarning, match=r"MLflow\(uri='http.*failed in on_evaluation and is not called again"
    ) as seen:
        result = fdp.run(dpnfl(), data, out="x", callbacks=[MLflow(served.uri), kill], **WORDS)
    assert time.monotonic() - began < 60
    assert len([one for one in seen if "MLflow" in str(one.message)]) == 1
    assert result.history == whole.history
    assert json.loads(pathlib.Path("x/trackers.json").read_text())["mlflow"]["round"] == 2


@pytest.mark.slow
def test_a_server_that_is_not_there_is_told_in_one_line_and_the_run_goes_on(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:secret@127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the user's own stays
    assert main([*RUN, "--track", "mlflow", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 6
    (line,) = [line for line in err.splitlines() if line.startswith("fedjax-dp: ")]
    assert "MLflow() failed in on_start and is not called again" in line
    assert "secret" not in out + err
    assert "Warning" not in err
    assert "Retrying" not in err


# Weights & Biases


def records(file):
    """The records of a file of an offline run: a log of blocks, as LevelDB has it."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            found.append(Record.FromString(whole))
            whole = b""
    return found


def offline(folder):
    """Id, numbers, configuration, summary and exit code of the offline runs in a folder, in their order."""
    numbers, ids, config, summary, codes = {}, set(), {}, {}, []
    for file in sorted(
        pathlib.Path(folder).glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime
    ):
        for record in records(file):
            kind = record.WhichOneof("record_type")
            items = {
                "history": record.history.item,
                "summary": record.summary.update,
                "config": record.config.update,
            }.get(kind, ())
            found = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            if kind == "history":
                step = found["_step"]
                for name, value in found.items():
                    if not name.startswith("_"):
                        numbers.setdefault(name, []).append((step, value))
            elif kind == "summary":
                summary |= found
            elif kind == "config":
                config |= found
            elif kind == "run":
                ids.add(record.run.run_id)
            elif kind == "exit":
                codes.append(record.exit.exit_code)
    return ids, numbers, config, summary, codes


@pytest.mark.slow
def test_a_folder_is_of_where_the_run_is_begun_not_of_the_first_run_of_the_process(data, tmp_path, monkeypatch):
    """One process of W&B writes for all runs, in the working folder of the first."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        fdp.run(dpnfl(), data, callbacks=[Wandb("w")], **WORDS | {"rounds": 1})
        assert len([*pathlib.Path("w").rglob("run-*.wandb")]) == 1


@pytest.mark.slow
def test_an_offline_run_holds_the_history_and_the_guarantee_and_goes_on(data):
    words = WORDS | {"checkpoint_every": 2, "evaluate_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fdp.run(dpnfl(), data, out="x", callbacks=[Wandb("w"), stop_at(3, KeyboardInterrupt)], **words)
    seen = fdp.resume("x", dpnfl(), data, callbacks=[Wandb("w")])
    ids, numbers, config, summary, codes = offline("w")
    assert ids == {json.loads(pathlib.Path("x/trackers.json").read_text())["wandb"]["id"]}
    close(without(numbers, "privacy"), expected(seen.history))
    promise = seen.guarantee.to_dict()
    for kept in (config, summary):
        assert {name: kept[f"privacy/{name}"] for name in GUARANTEE} == {name: promise[name] for name in GUARANTEE}
    assert config["rounds"] == 6
    assert summary["time/total_s"] > 0
    assert any(file.read_bytes().count(b"params.safetensors") for file in pathlib.Path("w").rglob("run-*.wandb"))
    assert codes == [130, 0]


# All of them


def test_a_callback_of_the_user_needs_no_more_than_one_method(data):
    class Ends:
        def __init__(self):
            self.errors = []

        def on_stop(self, error):
            self.errors.append(error)

    ends, seen = Ends(), []
    with pytest.raises(Stopped) as stopped:
        fdp.run(dpnfl(), data, callbacks=[ends, seen.append, stop_at(4)], **WORDS)
    assert ends.errors == [stopped.value]
    assert [one.round for one in seen] == [2, 4]
    fdp.run(dpnfl(), data, callbacks=[ends], **WORDS)
    assert len(ends.errors) == 1


@pytest.mark.slow
def test_the_command_line_tracks_and_the_run_is_the_same(capsys):
    assert main([*RUN, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    shutil.move("x", "plain")
    assert main([*RUN, "--track", "tensorboard,wandb", "--json"]) == 0
    out, err = capsys.readouterr()
    tracked = json.loads(out)  # what the packages print is not there
    assert "wandb" not in err.lower()
    for name in ("history", "guarantee", "config"):
        assert tracked[name] == plain[name]
    for name in ("config.toml", "metrics.json", "guarantee.json"):
        assert pathlib.Path("x", name).read_bytes() == pathlib.Path("plain", name).read_bytes()
    wanted = {
        name: [(seen["round"], value)]
        for seen in tracked["history"][-1:]
        for name, value in told(fdp.rounds.Evaluation.of_row(seen)).items()
    }
    numbers = without(events("x/tensorboard")[0], "privacy", "time")
    close({name: points[-1:] for name, points in numbers.items()}, wanted, 1e-6)
    assert offline(".")[1]["test_accuracy"] == [(seen["round"], seen["test_accuracy"]) for seen in plain["history"]]
    # Free to change where the run goes on, and no part of what it is held to.
    pathlib.Path("x/result.json").unlink()
    assert main(["run", "--resume", "x", "--track", "tensorboard", "--track-dir", "logs"]) == 0
    assert "tracked   tensorboard --logdir logs/x" in capsys.readouterr().out
    assert set(events("logs/x")[0]) >= {"test_accuracy", "privacy/epsilon"}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--track", "tensorbord"], "track must be one of tensorboard, mlflow, wandb, got 'tensorbord'"),
        (["--track", "mlflow", "--track-dir", "y"], "track_dir must be left out for mlflow"),
        (["--track-dir", "y"], "track_dir must be left out without track"),
        (["--track", ""], "an empty word"),
    ],
)
def test_what_cannot_be_tracked_is_refused_before_anything_is_written(flags, line, capsys):
    assert main([*RUN, *flags]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
    assert not list(pathlib.Path().iterdir())


def test_no_sweep_says_who_is_told(capsys):
    pathlib.Path("sweep.toml").write_text('seeds = 2\n[base]\nrounds = 2\ntrack = "mlflow"\n')
    assert main(["sweep", "sweep.toml"]) == 2
    assert "no tracker follows a sweep: fedjax-dp best prints its winner" in capsys.readouterr().err


@pytest.mark.parametrize("made", [TensorBoard, MLflow, Wandb])
def test_a_package_that_is_missing_is_named_with_its_extra(made, monkeypatch, capsys):
    find, name = importlib.util.find_spec, made.__name__.lower()
    package = {"tensorboard": "tensorboardX"}.get(name, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == package else find(asked))
    line = f'{package} must be installed, got nothing; pip install "fedjax-dp[{name}]"'
    with pytest.raises(fdp.ConfigurationError) as refused:
        made()
    assert str(refused.value) == line
    assert main([*RUN, "--track", name]) == 2
    assert capsys.readouterr().err == f"fedjax-dp: {line}\n"
    assert not pathlib.Path("x").exists()


def test_a_folder_of_the_name_is_no_package(monkeypatch):
    """W&B writes into a folder `wandb` where it is used, which Python would take for an empty package."""
    pathlib.Path("wandb").mkdir()
    monkeypatch.setattr(sys, "path", [os.getcwd()])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(fdp.ConfigurationError, match="wandb must be installed"):
        Wandb()
