"""Folders are tried before anything is computed for them, and a machine that fails to store is told in one line."""

import errno
import os
import pathlib
import subprocess
import sys

import pytest

import fedjax_dp as fdp
from fedjax_dp import cli, errors, folders
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.sweeps import table

QUICK = ["--rounds", "4", "--local-steps", "2", "--evaluate-every", "2", "--checkpoint-every", "1"]
SWEEP = "seeds = 2\n[base]\nrounds = 2\nlocal_steps = 2\n[axes]\nclip_norm = [0.5, 1.0]\n"


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def everything():
    return sorted(map(str, pathlib.Path().rglob("*")))


def fail_in(folder, kind):
    with folders.making(folder):
        (folder / "file").write_text("")
        raise kind


def test_a_failure_leaves_no_folder_and_no_parent_of_one_and_keeps_what_was_there():
    for kind in (KeyError, KeyboardInterrupt):
        with pytest.raises(kind):
            fail_in(pathlib.Path("a/b/c"), kind)
    assert everything() == []
    pathlib.Path("mine").mkdir()
    pathlib.Path("mine/kept").write_text("")
    with pytest.raises(KeyError):
        fail_in(pathlib.Path("mine"), KeyError)
    assert everything() == ["mine", "mine/file", "mine/kept"]


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("file/run", "not a directory"),
        ("x" * 300, "file name too long"),
        ("/proc/self/run", "no such file"),
        ("a\0b", "null "),
    ],
)
@pytest.mark.parametrize(
    "words", [["run"], ["sweep", "s.toml"], ["data", "convert", "digits"], ["reproduce", "dpnfl/table2"]]
)
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(words, out, why, capsys, monkeypatch):
    monkeypatch.setattr("fedjax_dp.experiments.population.load", lambda *a, **k: pytest.fail("too late"))
    pathlib.Path("file").write_text("")
    pathlib.Path("s.toml").write_text(SWEEP)
    assert cli.main([*words, "--out", out]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "out must be" in told
    assert why in told
    assert everything() == ["file", "s.toml"]


def test_a_disk_without_room_is_found_at_once(monkeypatch, capsys):
    monkeypatch.setattr(folders.tempfile, "TemporaryFile", full)
    assert cli.main(["run", "--out", "new/run"]) == 2
    assert "got new/run; no space left on device" in capsys.readouterr().err
    assert everything() == []


@pytest.mark.slow
def test_a_disk_that_becomes_full_keeps_the_last_checkpoint_and_the_run_goes_on(monkeypatch, capsys):
    assert cli.main(["run", *QUICK, "--out", "whole", "--json"]) == 0
    whole = capsys.readouterr().out
    save, kept = Checkpoints.save, []

    def twice(self, state, params=None):
        (save if len(kept) < 2 else full)(self, state, params)
        kept.append(state.round)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", twice)
        assert cli.main(["run", *QUICK, "--out", "r"]) == 3
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(
        "fedjax-dp: r could not be written: no space left on device; make room; fedjax-dp run --resume r"
    )
    assert cli.main(["run", "--resume", "r", "--json"]) == 0
    text = capsys.readouterr()
    assert "continuing r after round 2 of 4" in text.err
    assert text.out.partition('"guarantee"')[0] == whole.partition('"guarantee"')[0]


def test_a_run_that_cannot_begin_leaves_nothing(monkeypatch, capsys):
    monkeypatch.setattr(folders, "write_json", full)
    assert cli.main(["run", *QUICK, "--out", "a/r"]) == 3
    assert "a/r could not be written: no space left on device" in capsys.readouterr().err
    assert everything() == []


@pytest.mark.slow
def test_a_sweep_goes_on_where_the_disk_was_full(monkeypatch, capsys):
    pathlib.Path("s.toml").write_text(SWEEP)
    with monkeypatch.context() as patched:
        patched.setattr(table, "write", full)
        assert cli.main(["sweep", "s.toml", "--out", "q"]) == 3
    assert "q could not be written: no space left on device; make room; the same command" in capsys.readouterr().err
    assert cli.main(["sweep", "s.toml", "--out", "q"]) == 0
    assert "q holds 4 of 4 points" in capsys.readouterr().err


@pytest.mark.slow
def test_a_store_and_parameters_are_whole_or_not_there(monkeypatch, capsys):
    assert cli.main(["run", *QUICK, "--out", "r"]) == 0
    before = everything()
    with monkeypatch.context() as patched:
        patched.setattr("fedjax_dp.data.disk._write", full)
        patched.setattr("numpy.savez", full)
        assert cli.main(["data", "convert", "digits", "--out", "new/store"]) == 3
        assert "new/store could not be written: no space left on device" in capsys.readouterr().err
        assert cli.main(["export", "r", "p.npz"]) == 3
        assert "p.npz could not be written: no space left on device" in capsys.readouterr().err
    assert everything() == before


def test_a_seed_of_more_than_32_bits_is_refused_from_python_before_a_folder_is_made():
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits.y_train, [140] * 10, 0))
    algorithm = fdp.fedavg(cohort_size=5, batch_size=20, local_steps=2, learning_rate=0.1)
    with pytest.raises(errors.ConfigurationError, match="seed must be an integer in"):
        fdp.run(algorithm, data, rounds=2, seed=2**32, out="r")
    assert everything() == []


def test_drafts_are_gone_where_writing_failed(monkeypatch):
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        folders.write_atomically(pathlib.Path("a.json"), "{}")
    assert everything() == []


def test_only_what_the_file_system_refuses_is_told_as_such():
    told = "x could not be written: disk quota exceeded; again"
    with pytest.raises(errors.StorageError, match=told), folders.storing("x", "again"):
        raise ValueError("tensorstore: Error writing: Disk quota exceeded [source]")
    with pytest.raises(KeyError), folders.storing("x"):
        raise KeyError("a defect")
    with pytest.raises(errors.ConfigurationError), folders.storing("x"):
        raise errors.refuse("x", 1, "2")


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no such device here")
def test_an_output_that_is_full_ends_in_3_with_one_line():
    with open("/dev/full", "w") as nowhere:
        words = [sys.executable, "-m", "fedjax_dp", "completion", "fish"]
        done = subprocess.run(words, stdout=nowhere, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "the output could not be written: no space left on device" in done.stderr


def test_memory_that_is_full_is_one_line(monkeypatch, capsys):
    def exhausted(arguments):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 568000015528 bytes.")

    monkeypatch.setattr("fedjax_dp.cli.catalogue.catalogue_command", exhausted)
    assert cli.main(["catalogue"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("fedjax-dp: memory is full: RESOURCE_EXHAUSTED: Out of memory allocating")
    assert told.count("\n") == 1


def test_a_path_that_begins_with_a_dash_is_no_flag_when_it_is_copied():
    assert folders.quoted("-x") == "./-x"
    assert folders.quoted("--my runs") == "'./--my runs'"
    assert folders.quoted("runs/a-b") == "runs/a-b"
