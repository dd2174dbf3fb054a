"""Runs and sweeps that are killed at any moment, again and again, end bit for bit like those that were left alone."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import numpy as np
import pytest
from sweep_points import of_all_but_times

import fedjax_dp as fdp
from fedjax_dp.experiments import parameters
from fedjax_dp.pytrees import equal

MINE = """
import sys
import flax.linen as nn
import numpy as np
import fedjax_dp as fdp

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(16)(x.reshape(len(x), -1))))

digits = fdp.load("digits")
data = fdp.federate(digits, np.array_split(np.arange(len(digits.y_train)), 10))
model = fdp.model(Net(), data)
private = {"cohort_size": 4, "batch_size": 8, "local_steps": 20, "learning_rate": 0.1, "clip_norm": 1.0}
algorithm = fdp.addpnfl(**private)  # its server keeps more than the model
budget = {"epsilon": 8.0, "delta": 1e-3}
"""
RUN = "fdp.run(algorithm, data, model=model, rounds=50, evaluate_every=3, checkpoint_every=1, out='out', **budget)"
RESUME = "fdp.resume('out', algorithm, data, model=model)"
SWEEP = """axes = {"batches.size": [6, 8], "clip_norm": [0.5, 1.0]}
fdp.sweep(algorithm, data, model=model, rounds=300, evaluate_every=60, axes=axes, out='out', **budget)"""
OPTIONS = """
dataset = "digits"
algorithm = "dp_scaffold"
cohort_size = 4
local_steps = 20
noise_multiplier = 1.0
delta = 0.001
"""
NOTHING = re.compile(r"run folder must be (an existing folder|one of a run that had begun), got ")
PROGRAM = [sys.executable, "-m", "fedjax_dp"]


class Way(NamedTuple):
    """How something in the folder `out` is started and gone on with, and what is then stored of it."""

    start: list[str]
    go_on: list[str]
    stored: Callable[[pathlib.Path], int]


def checkpoints(out):
    return max((int(path.name) for path in (out / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def points(out):
    return (out / "points.jsonl").read_bytes().count(b"\n") if (out / "points.jsonl").is_file() else 0


def python(call):
    return [sys.executable, "-c", MINE + call]


WAYS = {
    "run of the command line": Way(
        [*PROGRAM, "run", "../run.toml", "--out", "out"], [*PROGRAM, "run", "--resume", "out"], checkpoints
    ),
    "run of Python": Way(python(RUN), python(RESUME), checkpoints),
    "sweep of the command line": Way(*[[*PROGRAM, "sweep", "../sweep.toml", "--out", "out"]] * 2, points),
    "sweep of Python": Way(python(SWEEP), python(SWEEP), points),
}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    pathlib.Path("run.toml").write_text(OPTIONS + "rounds = 50\nevaluate_every = 3\ncheckpoint_every = 1\n")
    axes = "rounds = 300\nevaluate_every = 60\n[axes]\nbatch_size = [6, 8]\nclip_norm = [0.5, 1.0]\n"
    pathlib.Path("sweep.toml").write_text(f"[base]{OPTIONS}{axes}")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def live(command, where, seconds=None):
    """A process in a folder, killed after so many seconds if it has not ended: seconds, exit code, and what it said."""
    where.mkdir(exist_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        _, said = process.communicate()
    return time.perf_counter() - began, process.returncode, said


def moments(kills, seed):
    """Random moments of a life from 0 to 1, one in each part of it: the first at its beginning, the others shuffled."""
    draw = random.Random(seed)
    first, *others = [(part + draw.random()) / kills for part in range(kills)]
    draw.shuffle(others)
    return [first, *others]


def hunt(name, kills):
    """Folders of what was left alone, and of what was killed until it ended, and what was stored at each kill."""
    way = WAYS[name]
    left, stored = moments(kills, name), []
    seconds, code, said = live(way.start, folder := pathlib.Path(name))
    assert code == 0, said
    ended, begun = [folder], False
    while left or begun:
        folder = pathlib.Path(f"{name}, killed {len(ended)}")
        lived, code, said = live(way.go_on if begun else way.start, folder, left[0] * seconds if left else None)
        if code == -signal.SIGKILL:
            stored.append(way.stored(folder / "out"))
            begun = True
            del left[0]
        elif code == 0:
            seconds = seconds if begun else lived  # which is shorter with compiled programs
            ended.append(folder)
            begun = False
        else:
            assert begun, said
            assert NOTHING.search(said.strip().splitlines()[-1]), said
            begun = False
    return [folder / "out" for folder in ended], stored


@pytest.mark.exhaustive  # CI stops runs at each step of a longer run, in test_run_folder.py, and kills a sweep once
@pytest.mark.parametrize(("what", "kills"), [("run", 2), ("run", 10), ("sweep", 2), ("sweep", 6)])
def test_what_is_killed_at_random_moments_ends_like_what_was_left_alone(what, kills, capsys):
    names = [name for name in WAYS if what in name]
    with futures.ThreadPoolExecutor() as threads:  # each waits for its processes
        found = dict(zip(names, threads.map(hunt, names, [kills] * 2), strict=True))
    for name, ((whole, *ended), stored) in found.items():
        early = sum(not one for one in stored)
        with capsys.disabled():
            print(f"\n{name}: {kills} kills, {early} before anything was stored, {kills - early} after: {stored}")
        assert len(stored) == kills
        assert ended
        for out in ended:
            (same_run if what == "run" else same_sweep)(whole, out)
    assert 0 < sum(not one for _, stored in found.values() for one in stored) < 2 * kills


# CI: test_a_folder_that_is_written_is_refused_and_its_run_ends_as_if_nothing_had_been, test_run_folder.py, and
# test_of_many_that_begin_at_once_one_has_the_folder_whoever_fails, tests/test_folders.py


class States:
    """What a folder holds before each operation on a file in it, in copies: what a kill at that moment leaves."""

    CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link")

    def __init__(self, folder):
        self.folder, self.found, self.watching, self.copying = folder, {}, False, threading.Lock()
        sys.addaudithook(self.hook)  # for as long as the process lives

    def hook(self, event, arguments):
        changes = self.watching and event in self.CHANGES and self.folder.is_dir()
        if changes and self.copying.acquire(blocking=False):  # one thread's at a time, and not those of the copy itself
            try:
                self.copy(self.folder.with_name(f"state-{len(self.found)}"))
            finally:
                self.copying.release()

    def copy(self, name):
        try:
            shutil.copytree(self.folder, name)
        except shutil.Error:  # another thread has moved a file on
            shutil.rmtree(name)
            return
        files = sorted((str(path.relative_to(name)), path.is_file() and path.read_bytes()) for path in name.rglob("*"))
        if self.found.setdefault(repr(files), name) != name:
            shutil.rmtree(name)


@pytest.mark.exhaustive
def test_a_run_goes_on_from_what_every_operation_on_a_file_leaves():
    digits = fdp.load("digits")
    data = fdp.federate(digits, np.array_split(np.arange(len(digits.y_train)), 10))
    private = {"cohort_size": 4, "batch_size": 8, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    algorithm = fdp.addpnfl(**private, noise_multiplier=1.0)
    words = {"rounds": 4, "evaluate_every": 2, "checkpoint_every": 2, "delta": 1e-3}
    states = States(pathlib.Path("whole"))
    states.watching = True
    fdp.run(algorithm, data, out="whole", **words)
    states.watching = False
    again = 0
    for name in states.found.values():
        try:
            fdp.resume(name, algorithm, data)
        except fdp.ConfigurationError as refusal:
            if not NOTHING.search(str(refusal)):
                raise
            fdp.run(algorithm, data, out=name, **words)
            again += 1
        same_run(states.folder, name)
    assert 3 <= again < len(states.found) - 20


def same_run(whole, out):
    """Model, metrics, Guarantee and result: everything but times."""
    files, others = ({path.name for path in folder.iterdir()} - {".lock"} for folder in (whole, out))
    assert files == others  # the system releases the lock of a killed process; its empty file may stay
    for name in ("config.toml", "run.json", "metrics.json", "guarantee.json"):
        assert (whole / name).read_bytes() == (out / name).read_bytes(), name
    one, other = fdp.open_run(whole), fdp.open_run(out)
    assert one.guarantee == other.guarantee
    assert one.round == other.round
    assert equal(one.params, other.params)
    results = [dict(run.result) for run in (one, other)]
    for result in results:
        del result["timing"]
    assert results[0] == results[1]


def same_sweep(whole, out):
    """Points with their metrics and Guarantees, parameters, and what choosing costs: everything but times."""
    listed = [{str(path.relative_to(at)) for path in at.rglob("*")} for at in (whole, out)]
    assert listed[0] == listed[1]
    for name in ("selection.json", "sweep.json"):
        assert (whole / name).read_bytes() == (out / name).read_bytes(), name
    for path in (whole / "params").iterdir():
        assert equal(parameters.read(path), parameters.read(out / "params" / path.name))
    one, other = (of_all_but_times(fdp.open_sweep(at).points) for at in (whole, out))
    assert one == other
    tables = [fdp.open_sweep(at).table().drop(columns="seconds", errors="ignore") for at in (whole, out)]
    assert tables[0].equals(tables[1])
    assert json.loads((out / "sweep.json").read_text())["points"] == len(one) == 4
