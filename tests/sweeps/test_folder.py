"""A sweep in its folder and from the command line: streamed, continued, told, refused."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import types

import pytest
from helpers import command_output, command_refusal, refusal
from small_runs import QUIET, Stopped
from sweep_points import of_all_but_times, point, recorded

import fedjax_dp as fdp
from fedjax_dp import errors, folders, own_code
from fedjax_dp.experiments import config, configured
from fedjax_dp.pytrees import equal
from fedjax_dp.sweeps import cluster, folder
from fedjax_dp.sweeps.plan import SweepConfig, digest, expand, to_toml
from fedjax_dp.sweeps.preparation import Sources, with_data
from fedjax_dp.sweeps.records import SWEEP_FOLDER, read_records
from fedjax_dp.sweeps.sweep import run_sweep
from fedjax_dp.tools import cli

BASE = {"dataset": "digits", "rounds": 3, "local_steps": 2, "evaluate_every": 1}
AXES = {"learning_rate": [0.1, 0.3], "clip_norm": [0.5, 1.0, 2.0]}
SWEEP = SweepConfig(base=BASE | {"epsilon": 4.0}, axes=AXES, seeds=(0, 1))
TOML = to_toml(SWEEP)


@pytest.fixture(autouse=True)
def _file():
    pathlib.Path("sweep.toml").write_text(TOML)


def histories(where):
    return {record["point"]: record["history"] for record in read_records(where)[1]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that ran without a stop."""
    where = tmp_path_factory.mktemp("sweep") / "whole"
    return run_sweep(SWEEP, where, screen=QUIET), where


@pytest.mark.slow
def test_a_row_is_the_run_of_its_configuration(whole, capsys):
    found, _ = whole
    record = found.records[7]
    pathlib.Path("one.toml").write_text(folders.toml(record["config"] | {"out": "one"}))
    run = json.loads(command_output(capsys, "run", "one.toml", "--json").out)
    assert run["history"] == record["history"]
    assert run["guarantee"].pop("attack") is not None
    assert record["guarantee"].pop("attack") is None  # which no sweep computes
    assert run["guarantee"] == record["guarantee"]


@pytest.mark.slow
def test_the_folder_holds_everything(whole):
    found, where = whole
    about, records = read_records(where)
    assert {path.name for path in where.iterdir()} >= {
        "sweep.toml",
        "sweep.json",
        "points.jsonl",
        "table.csv",
        "table.parquet",
        "selection.json",
        "sweep.png",
    }
    assert fdp.sweeps.read_sweep(where / "sweep.toml") == fdp.sweeps.read_sweep("sweep.toml")
    assert about["digest"] == digest(fdp.sweeps.read_sweep("sweep.toml"))
    assert (about["points"], about["axes"], about["seeds"]) == (12, ["learning_rate", "clip_norm"], [0, 1])
    assert [record["index"] for record in records] == list(range(12))
    assert len(found.table()) == 36
    assert found.choosing["epsilon_single"] == pytest.approx(4.0, rel=1e-2)
    assert found.choosing["epsilon"] > 12
    assert found.choosing["applies"] == "composition"


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_and_repeats_what_is_missing_or_failed_alone(whole):
    records, where = whole[0].records, pathlib.Path("stopped")
    shutil.copytree(whole[1], where)
    lost = records[2] | {"status": "failed", "reason": "out of memory", "history": []}
    kept = [*records[:2], lost, *records[3:10]]
    torn = '{"point": "0123'  # what a killed writer leaves
    (where / "points.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept) + torn)
    assert [record["status"] for record in read_records(where)[1]] == ["done"] * 2 + ["failed"] + ["done"] * 7
    with recorded() as again:
        run_sweep(SWEEP, where, screen=QUIET)
    assert set(again) == {records[at]["point"] for at in (2, 10, 11)}
    assert histories(where) == histories(whole[1])
    assert len((where / "points.jsonl").read_text().splitlines()) == 10 + 3


GROWN = dataclasses.replace(
    SWEEP, base=BASE, axes=AXES | {"clip_norm": [0.25, *AXES["clip_norm"]], "epsilon": [4.0, 8.0]}, seeds=(0, 1, 2)
)


@pytest.mark.exhaustive  # CI: growing that is killed at its beginning, below, and of a search, test_search.py
def test_a_finished_sweep_grows_by_what_it_lacks_also_when_killed(whole):
    where = pathlib.Path("grown")
    shutil.copytree(whole[1], where)
    before = histories(where)
    (where / "sweep.toml").write_text(folder_text := to_toml(GROWN))
    with recorded(stop=5) as ran, pytest.raises(Stopped):
        run_sweep(GROWN, where, screen=QUIET)
    assert fdp.open_sweep(where).choosing is None  # what it was for fewer points is not shown
    with recorded() as later:
        grown = run_sweep(GROWN, where, screen=QUIET)
    ran += later
    assert len(ran) == len(set(ran)) == 48 - 12
    assert not set(ran) & set(before)
    at_once = run_sweep(GROWN, "at_once", screen=QUIET)
    assert of_all_but_times(grown.records) == of_all_but_times(at_once.records)
    assert grown.axes == at_once.axes
    assert (where / "sweep.toml").read_text() == pathlib.Path("at_once/sweep.toml").read_text() == folder_text
    about, other = (read_records(one)[0] for one in (where, "at_once"))
    assert about.pop("grown") == [12]
    assert about == other
    # what was seen may have decided what was added, so the sum is shown and no epsilon stated
    assert grown.choosing["epsilon"] is None
    assert grown.choosing["epsilon_composition"] == at_once.choosing["epsilon_composition"]
    assert "no epsilon is stated, as the sweep grew" in grown.choosing["short"]
    assert at_once.choosing["epsilon"] == at_once.choosing["epsilon_composition"]
    words = refusal(lambda: run_sweep(SWEEP, where, screen=QUIET))  # what was seen cannot be taken back
    assert "36 points are not of this one, or their files" in words
    assert "such as learning_rate=0.1, clip_norm=0.25, epsilon=4, seed=0" in words


@pytest.mark.slow
def test_growing_that_is_killed_before_it_is_written_down_begins_again(monkeypatch):
    """At each of its steps."""
    axes = {"learning_rate": [0.1]}
    small = SweepConfig(base=BASE | {"algorithm": "fedavg"}, axes=axes, seeds=(1,))
    large = dataclasses.replace(small, seeds=(0, 1))
    first = run_sweep(small, "x", screen=QUIET).records[0]
    whole = folders.write_atomically

    for kept in ("points.jsonl", "sweep.toml", "sweep.json"):

        def until(path, text, kept=kept):
            if path.name == kept:
                raise Stopped
            whole(path, text)

        with monkeypatch.context() as patch:
            patch.setattr(folders, "write_atomically", until)
            with pytest.raises(Stopped):
                run_sweep(large, "x", screen=QUIET)
    grown = run_sweep(large, "x", screen=QUIET)
    records = grown.records
    assert "no point is private" in grown.choosing["statement"]
    assert [(one["index"], one["values"]["seed"]) for one in records] == [(0, 0), (1, 1)]
    assert records[1] == first | {"index": 1}
    assert read_records("x")[0]["grown"] == [1]


@pytest.mark.slow
def test_equal_random_points_run_once():
    sweep = SweepConfig(base=BASE | {"algorithm": "fedavg"}, axes={"learning_rate": [0.1, 0.3]}, trials=9)
    assert len(run_sweep(sweep, "random", screen=QUIET).records) == 2


@pytest.mark.slow
def test_a_folder_of_something_else_is_refused_and_left_alone(whole):
    _, where = whole
    other = SweepConfig(base=BASE, axes={"learning_rate": [0.1, 0.2]})
    before = sorted((path.name, path.stat().st_mtime_ns) for path in where.iterdir())
    assert "a folder of another sweep" in refusal(lambda: run_sweep(other, where, screen=QUIET))
    assert sorted((path.name, path.stat().st_mtime_ns) for path in where.iterdir()) == before
    pathlib.Path("begun").mkdir()
    pathlib.Path("begun/sweep.json").write_text(json.dumps(read_records(where)[0]))
    assert "a folder of another sweep" in refusal(lambda: run_sweep(other, "begun", screen=QUIET))
    pathlib.Path("mine").mkdir()
    pathlib.Path("mine/notes.txt").write_text("mine")
    assert "a new or empty folder" in refusal(lambda: run_sweep(other, "mine", screen=QUIET))
    assert os.listdir("mine") == ["notes.txt"]


@pytest.mark.slow
def test_a_folder_has_one_writer(whole):
    _, where = whole
    about = read_records(where)[0]
    plan = {record["point"]: (record["index"], record["values"]) for record in read_records(where)[1]}
    with folder.lock(where, about, plan, None, QUIET):
        words = refusal(lambda: run_sweep(SWEEP, where, screen=QUIET))
    assert "which is being written" in words


@pytest.mark.slow
def test_who_was_moved_away_writes_nothing_into_the_folder_of_the_next(monkeypatch):
    mine, moved, sync = pathlib.Path("mine"), pathlib.Path("moved"), os.fsync

    def moved_after_the_first_point(file):
        sync(file)
        if not moved.exists():
            mine.rename(moved)
            (mine / "params").mkdir(parents=True)  # of another sweep

    monkeypatch.setattr(os, "fsync", moved_after_the_first_point)
    few = SweepConfig(base=BASE | {"noise_multiplier": 1.0}, axes={"learning_rate": [0.1, 0.3]}, seeds=(0,))
    with pytest.raises(errors.StorageError, match="moved or removed meanwhile"):
        run_sweep(few, mine, screen=QUIET)
    assert [*mine.rglob("*")] == [mine / "params"]
    monkeypatch.setattr(os, "fsync", sync)
    assert len(run_sweep(few, moved, screen=QUIET).records) == 2


@pytest.mark.slow
def test_command_prints_the_plan_the_best_the_lost_and_the_cost_of_choosing(whole, capsys):
    told = command_output(capsys, "sweep", "sweep.toml", "--plan")
    assert told.out.count("plan: 12 points in 1 program, one after another on") == told.out.count("program") == 1
    assert "MB" in told.out
    assert "s to run" in told.out
    assert "plan" not in told.err
    assert not pathlib.Path("sweeps").exists()  # a plan takes no folder
    shutil.copytree(whole[1], "s")
    out = command_output(capsys, "sweep", "sweep.toml", "--out", "s").out
    assert "the best of 6 settings" in out
    assert "choosing  comparing these 12 private runs (6 settings x 2 seeds) costs" in out
    assert "proved    epsilon at delta" in out
    told = command_output(capsys, "sweep", "sweep.toml", "--out", "s", "--json")  # nothing is left to run
    assert pathlib.Path("s/points.jsonl").read_bytes() == (whole[1] / "points.jsonl").read_bytes()
    result = json.loads(told.out)
    assert (result["points"], result["done"], len(result["settings"])) == (12, 12, 6)
    assert "holds 12 of 12 points" in told.err
    diverged = whole[0].records[0] | {"status": "diverged", "reason": "training diverged in round 0", "history": []}
    lines = pathlib.Path("s/points.jsonl").read_text().splitlines()
    pathlib.Path("s/points.jsonl").write_text("\n".join([json.dumps(diverged), *lines[1:]]) + "\n")
    assert cli.main(["sweep", "sweep.toml", "--out", "s"]) == 0
    assert "lost      1 point: training diverged in round 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[0.1, 0.3]", "[0.1, -0.3]"), "6 of 12 points cannot run: learning_rate=-0.3, clip_norm=0.5, seed=0"),
        (("epsilon = 4.0", "epsilon = -1.0"), "12 of 12 points cannot run"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_code_2(change, words, capsys):
    pathlib.Path("sweep.toml").write_text(TOML.replace(*change))
    assert cli.main(["sweep", "sweep.toml"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err
    assert len([line for line in told.err.splitlines() if line.startswith("fedjax-dp:")]) == 1


def test_what_a_sweep_has_no_use_for_is_one_line(capsys):
    line = command_refusal(capsys, "sweep", "sweep.toml", "--coordinator", "host:1")
    assert "start a Ray cluster and give --ray ADDRESS" in line
    assert "--ray ADDRESS" in refusal(lambda: SweepConfig(base=BASE | {"coordinator": "auto"}, axes=AXES))


COUNTING = """
import sys
import jax.monitoring
missed = []
jax.monitoring.register_event_listener(lambda event, **_: missed.append(event) if "cache_misses" in event else None)
from fedjax_dp import errors, folders
from fedjax_dp.tools import cli
cli.main(["sweep", "sweep.toml", "--out", sys.argv[1], "--json"])
print(len(missed), file=sys.stderr)
"""


@pytest.mark.exhaustive
def test_a_second_process_compiles_nothing(tmp_path):
    missed = []
    for out in ("one", "two"):
        done = subprocess.run(
            [sys.executable, "-c", COUNTING, out],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        )
        missed.append(int(done.stderr.split()[-1]))
    assert missed[0] > 2
    assert missed[1] == 0
    assert histories("one") == histories("two")


@pytest.mark.exhaustive
def test_a_ray_cluster_loses_and_doubles_nothing_when_a_worker_is_killed(whole):
    psutil = pytest.importorskip("psutil")
    killed = []

    def kill_one():
        """Kill the first worker that is seen at work, once."""
        me = psutil.Process()
        while not killed:
            time.sleep(0.05)
            for process in me.children(recursive=True):
                try:
                    at_work = "ray::run_points" in " ".join(process.cmdline()) and process.cpu_times().user > 2
                    if at_work and not killed:
                        process.kill()
                        killed.append(process.pid)
                except psutil.Error:
                    continue

    hunter = threading.Thread(target=kill_one, daemon=True)
    hunter.start()
    run_sweep(SWEEP, "ray", screen=QUIET, ray="local")
    assert killed
    lines = pathlib.Path("ray/points.jsonl").read_text().splitlines()
    ids = [json.loads(line)["point"] for line in lines]
    assert len(ids) == len(set(ids)) == 12
    assert histories("ray") == histories(whole[1])


def write_store(labels=0, names=1):
    """A store of two clients; with -1 their names, or the labels of the test records, stand in the opposite order."""
    digits = fdp.load("digits")
    digits = digits._replace(y_test=digits.y_test[:: labels or 1])
    shutil.rmtree("store", ignore_errors=True)
    parts = dict(zip(["north", "south"][::names], fdp.data.iid(digits, 2)))
    fdp.data.save_store(fdp.federate(digits, parts), "store")


def write_in(path, *texts):
    return [lambda text=text: pathlib.Path(path).write_text(text) for text in texts]


LOG = {"participation_log": "log.csv", "num_clients": 4, "noise_multiplier": 2.0}
CHANGES = {  # the fields of a sweep, and a file of it before and after
    "participation log": (LOG, write_in("log.csv", "round,client\n0,0\n0,1\n2,0\n", "round,client\n0,0\n2,1\n")),
    "table": ({"dataset": "csv:t.csv"}, write_in("t.csv", *("a,b,label\n" + "1,2,0\n4,3,1\n" * n for n in (20, 21)))),
    "code": ({"model": "net.py:net"}, write_in("net.py", "net = 1", "net = 2")),
    "start": ({"start": "start.npz"}, write_in("start.npz", "one", "other")),
    "names of clients": ({"dataset": "store:store"}, [write_store, lambda: write_store(names=-1)]),
    "test records": ({"dataset": "store:store"}, [write_store, lambda: write_store(labels=-1)]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_sweep_continues_only_with_the_files_that_its_points_had(name):
    fields, (write, change) = CHANGES[name]
    sweep = SweepConfig(base=BASE | fields, axes={"learning_rate": [0.1, 0.3]})

    def plan():
        return {one.id: (one.index, one.values) for one in with_data(expand(sweep), Sources())}

    write()
    about, before, where = folder.manifest_of("x", digest(sweep), (), (0,), 2), plan(), pathlib.Path("x")
    where.mkdir()
    SWEEP_FOLDER.write(where, about)
    held = point(0, {"learning_rate": 0.1, "seed": 0}) | {"point": next(iter(before))}
    (where / "points.jsonl").write_text(json.dumps(held) + "\n")
    change()
    words = refusal(folder.read_own, where, about, plan())
    assert "1 points are not of this one, or their files, code or data have changed" in words
    if name == "participation log":
        assert words == refusal(lambda: run_sweep(sweep, where, screen=QUIET))
    write()
    assert plan() == before
    assert folder.read_own(where, about, plan())[1] == [held]


def test_a_worker_of_a_cluster_with_other_files_runs_nothing():
    fields, (write, change) = CHANGES["table"]
    write()
    points = with_data(expand(SweepConfig(base=BASE | fields, axes={"learning_rate": [0.1, 0.3]})), Sources())
    change()
    words = refusal(cluster.run_points, [(one, None, None) for one in points], 1)
    assert "data, code and files of learning_rate=0.1, seed=0 must be those of the machine of the sweep" in words


NET = """
from flax import linen as nn
class Net(nn.Module):
    @nn.compact
    def __call__(self, x): return nn.Dense(10)({}(x.reshape((x.shape[0], -1))))
"""


def test_a_sweep_of_values_continues_only_with_all_that_its_points_had(monkeypatch):
    """Each argument by which a Guarantee or a result changes is another sweep; the same ones are the same."""
    digits = fdp.load("digits")
    parts, other = fdp.data.iid(digits, 2), digits._replace(y_test=digits.y_test[::-1])
    numbers = {"local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 4.0}
    algorithm = fdp.dpnfl(cohort_size=2, batch_size=20, **numbers)

    def data(*names, dataset=digits):
        return fdp.federate(dataset, dict(zip(names, parts)) if names else parts)

    def net(activation):
        path = pathlib.Path(f"net{len(activation)}.py")  # sources are read when a point is identified
        path.write_text(NET.format(activation))
        return fdp.model(own_code.own("model", f"{path}:Net")(), data())

    started = []
    monkeypatch.setattr(sys.modules[run_sweep.__module__], "_run_in_folder", lambda *args: started.append(args[1:3]))
    changes = [{"delta": delta} for delta in (1e-2, 1e-5)] + [{"participation": "once"}, {"view": "final_model"}]
    changes += [{"data": data("north", "south")}, {"data": data("south", "north")}, {"data": data(dataset=other)}]
    changes += [{"model": net("")}, {"model": net("nn.tanh")}, {"accountant": "rdp"}, {"rounds": 3}]
    for change in ({}, *changes, {}):
        usual = {"data": data(), "rounds": 2, "delta": 1e-3, "axes": {"learning_rate": [0.1, 0.3]}, "out": "x"}
        fdp.sweep(algorithm, progress=False, **usual | change)
    digests = [about["digest"] for about, _ in started]
    ids = [one for _, points in started[1:] for one in points]
    assert digests[0] == digests[-1]
    assert len(set(digests)) == len(changes) + 1
    assert len(set(ids)) == len(ids) == 2 * (len(changes) + 1)


def test_points_of_a_lost_task_are_recorded_as_failed(monkeypatch):
    """A cluster that answers, and whose workers all die."""

    def lose(task):
        raise Stopped("the worker died")

    ray = types.SimpleNamespace(
        exceptions=types.SimpleNamespace(RayError=Stopped),
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": os.cpu_count()}}],
        remote=lambda **options: lambda work: types.SimpleNamespace(remote=lambda batch, parts: object()),
        wait=lambda running, num_returns: (running[:1], running[1:]),
        get=lose,
    )
    monkeypatch.setattr(cluster, "_connect", lambda address: contextlib.nullcontext(ray))
    found = run_sweep(SWEEP, "lost", screen=QUIET, ray="local")
    assert [record["status"] for record in found.records] == ["failed"] * 12
    assert {record["reason"] for record in found.records} == {"Stopped: the worker died"}


def test_a_missing_cluster_is_one_line():
    pytest.importorskip("ray")
    words = refusal(lambda: run_sweep(SWEEP, "ray", screen=QUIET, ray="127.0.0.1:1"))
    assert "ray must be the address of a running Ray cluster" in words


@pytest.mark.exhaustive
def test_a_folder_is_opened_with_the_parameters_of_its_points(tmp_path):
    """The best point's are those of its single run, bit for bit."""
    base = {"rounds": 2, "num_clients": 10, "cohort_size": 3, "local_steps": 1, "noise_multiplier": 1.0}
    asked = SweepConfig(base=base, axes={"learning_rate": [0.01, 0.3]}, seeds=(0, 1))
    run_sweep(asked, tmp_path / "s")
    opened = fdp.open_sweep(tmp_path / "s")
    assert [point["values"]["learning_rate"] for point in opened.points] == [0.01, 0.01, 0.3, 0.3]
    assert len(opened.table()) > 0
    best = opened.best()
    configured.start(config.RunSpec.of(best.config | {"out": str(tmp_path / "r")}), QUIET)
    alone = fdp.open_run(tmp_path / "r").params
    assert equal(opened.params(), alone)
    others = {opened.params(point)["Dense_0"]["kernel"].tobytes() for point in opened.points}
    assert len(others) == 4
    for path in (tmp_path / "s" / "params").iterdir():
        path.unlink()
    assert "params must be kept in" in refusal(opened.params)
