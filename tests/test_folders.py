"""Folders are tried before anything is computed for them, and a machine that fails to store is told in one line."""

import dataclasses
import errno
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
from concurrent import futures

import pytest
from helpers import command_output, command_refusal, ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import errors, folders
from fedjax_dp.accounting import ParticipationLog
from fedjax_dp.data import file_parts
from fedjax_dp.data.disk import STORE_FOLDER
from fedjax_dp.experiments.run_folder import RUN_FOLDER
from fedjax_dp.rounds.checkpoint import Checkpoints
from fedjax_dp.sweeps import table
from fedjax_dp.sweeps.folder import open_points
from fedjax_dp.sweeps.records import SWEEP_FOLDER
from fedjax_dp.tools import cli
from fedjax_dp.tools.papers.reproductions.reproduce import REPRODUCTION_FOLDER, reproduce

QUICK = ["--algorithm", "fedavg", "--rounds", "4", "--local-steps", "2", "--evaluate-every", "2"]
QUICK += ["--checkpoint-every", "1"]
SWEEP = '[base]\nalgorithm = "fedavg"\nrounds = 2\nlocal_steps = 2\n[axes]\nlearning_rate = [0.5, 1.0]\n'


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def everything():
    return sorted(map(str, pathlib.Path().rglob("*")))


def fail_in(folder, kind):
    with folders.create_folder(folder):
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
    told = command_refusal(capsys, *words, "--out", out)
    assert "out must be" in told
    assert why in told
    assert everything() == ["file", "s.toml"]


def test_a_disk_without_room_is_found_at_once(monkeypatch, capsys):
    monkeypatch.setattr(folders.tempfile, "TemporaryFile", full)
    assert "got new/run; no space left on device" in command_refusal(capsys, "run", "--out", "new/run")
    assert everything() == []


@pytest.mark.slow
def test_a_disk_that_becomes_full_keeps_the_last_checkpoint_and_the_run_goes_on(monkeypatch, capsys):
    whole = command_output(capsys, "run", *QUICK, "--out", "whole", "--json").out
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
    text = command_output(capsys, "run", "--resume", "r", "--json")
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
    assert "q holds 2 of 2 points" in command_output(capsys, "sweep", "s.toml", "--out", "q").err


def test_a_point_on_a_full_disk_names_the_folder_and_leaves_the_points_before(tmp_path):
    with folders.lock_folder("out", tmp_path) as lock:
        keep = open_points(tmp_path, lock)
        keep({"point": "a"}, None)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (25, most[1]))  # files cannot grow beyond
        try:
            with pytest.raises(errors.StorageError, match="file too large; make room; the same command continues"):
                keep({"point": "b"}, None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert (tmp_path / "points.jsonl").read_text().startswith('{"point": "a"}\n')


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
    algorithm = fdp.fedavg(cohort_size=2, batch_size=2, local_steps=2, learning_rate=0.1)
    told = refusal(fdp.run, algorithm, ragged_data([4, 4]), rounds=2, seed=2**32, out="r")
    assert told.startswith("seed must be an integer in")
    assert everything() == []


def test_drafts_are_gone_where_writing_failed(monkeypatch):
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        folders.write_atomically(pathlib.Path("a.json"), "{}")
    assert everything() == []


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOENT])
def test_only_what_the_file_system_refuses_is_told_as_such_with_the_remedy_that_fits(code):
    remedy = "make room, or" if code == errno.EDQUOT else "put it back, or start anew, or"
    words = os.strerror(code)
    for error in (OSError(code, words), ValueError(f"tensorstore: Error writing: {words} [source]")):
        told = f"x could not be written: {words.lower()}; {remedy} give another"
        with pytest.raises(errors.StorageError, match=told), folders.storage_errors("x", "make room, or give another"):
            raise error
    for other in (KeyError("a defect"), errors.refuse("x", 1, "2")):
        with pytest.raises(type(other)), folders.storage_errors("x"):
            raise other


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no such device here")
@pytest.mark.parametrize("command", ["catalogue", "--version"])
def test_an_output_that_is_full_ends_in_3_with_one_line(command):
    with open("/dev/full", "w") as nowhere:
        words = [sys.executable, "-m", "fedjax_dp", command]
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(words, stdout=nowhere, stderr=subprocess.PIPE, text=True, env=buffered)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "the output could not be written: no space left on device" in done.stderr


def test_memory_that_is_full_is_one_line(monkeypatch, capsys):
    def exhausted(arguments):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 568000015528 bytes.")

    monkeypatch.setattr("fedjax_dp.tools.cli.catalogue.catalogue_command", exhausted)
    assert cli.main(["catalogue"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("fedjax-dp: memory is full: RESOURCE_EXHAUSTED: Out of memory allocating")
    assert told.count("\n") == 1


def test_a_path_that_begins_with_a_dash_is_no_flag_when_it_is_copied():
    assert folders.quote_path("-x") == "./-x"
    assert folders.quote_path("--my runs") == "'./--my runs'"
    assert folders.quote_path("runs/a-b") == "runs/a-b"


def locked(name):
    """The refusal of a lock."""
    return refusal(folders.lock_folder("out", pathlib.Path(name)).__enter__)


def test_a_folder_has_one_writer_and_who_is_refused_removes_nothing():
    mine = pathlib.Path("runs/mine")
    with folders.lock_folder("out", mine):
        words = locked("runs/mine")
        assert words.startswith("out must be free, got runs/mine, which is being written by another process")
        assert everything() == ["runs", "runs/mine", "runs/mine/.lock"]
        folders.require_writable("out", mine)  # as the second one does before
        (mine / "run.json").write_text("{}")
        locked("runs/mine")
    assert everything() == ["runs", "runs/mine", "runs/mine/run.json"]
    with folders.lock_folder("out", mine):
        pass


def test_who_fails_before_anything_is_stored_leaves_no_folder_and_no_lock():
    for take in (
        lambda: folders.lock_folder("out", pathlib.Path("a/b")),
        lambda: folders.lock_unused("out", pathlib.Path("c"), "d"),
    ):
        with pytest.raises(KeyError), take():
            raise KeyError
    assert everything() == []


def test_names_are_taken_by_making_them_however_many_take_one_at_once():
    pathlib.Path("runs").mkdir()
    pathlib.Path("runs/x-2").symlink_to("nowhere")
    with futures.ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: folders.make_unused(pathlib.Path("runs"), "x"), range(40)))
    assert len(set(made)) == 40
    assert {path.name for path in made} == {"x", *(f"x-{number}" for number in range(3, 42))}


def test_of_many_that_begin_at_once_one_has_the_folder_whoever_fails():
    def begin(number):
        try:
            with folders.lock_folder("out", pathlib.Path("new/x")) as lock:
                lock.require_own()
                (lock.folder / "file").write_text(str(number))
                lock.require_own()
                assert (lock.folder / "file").read_text() == str(number)
                (lock.folder / "file").unlink()
                raise KeyError
        except errors.ConfigurationError:
            return "refused"
        except KeyError:
            return "had it"

    with futures.ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(begin, range(200)))
    assert "had it" in ends
    assert not [path for path in pathlib.Path().rglob("*") if path.is_file()]


HOLDER = """
import os, pathlib, sys, time
from fedjax_dp import folders
with folders.lock_folder("out", pathlib.Path("held")):
    if "child" in sys.argv and os.fork() == 0:
        os.write(1, b"%d" % os.getpid())
        time.sleep(60)
        os._exit(0)
    if "child" not in sys.argv:
        os.write(1, b"0")
    time.sleep(60)
"""


@pytest.mark.parametrize("words", [[], ["child"]])
def test_the_system_lets_a_folder_go_when_its_process_is_killed_even_where_a_child_lives_on(words):
    with subprocess.Popen([sys.executable, "-c", HOLDER, *words], stdout=subprocess.PIPE) as process:
        child = int(os.read(process.stdout.fileno(), 20))
        try:
            locked("held")
            process.kill()
            process.wait()
            with folders.lock_folder("out", pathlib.Path("held")):
                pass
        finally:
            process.kill()
            if child:
                os.kill(child, signal.SIGKILL)


def test_who_was_moved_away_writes_no_more_and_leaves_the_lock_of_the_next():
    mine = pathlib.Path("mine")
    with folders.lock_folder("out", mine) as lock:
        lock.require_own()
        mine.rename("moved")
        with folders.lock_folder("out", mine) as other:
            with pytest.raises(errors.StorageError, match="mine could not be written: it was moved or removed"):
                lock.require_own()
            other.require_own()
            (mine / "file").write_text("")
    assert everything() == ["mine", "mine/file", "moved", "moved/.lock"]


def test_a_file_system_without_locks_goes_on_and_says_so(monkeypatch):
    def without(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folders.fcntl, "flock", without)
    notes = []
    with folders.lock_folder("out", pathlib.Path("a"), say=notes.append):
        assert notes[0].startswith("the file system of a has no locks")


def test_a_new_file_is_one_writers_and_gone_where_writing_failed(monkeypatch):
    folders.write_new("file", pathlib.Path("a/b.toml"), "x")
    assert refusal(folders.write_new, "file", pathlib.Path("a/b.toml"), "y").startswith("file must be a new file")
    assert pathlib.Path("a/b.toml").read_text() == "x"
    monkeypatch.setattr(folders, "write_atomically", full)
    with pytest.raises(errors.StorageError):
        folders.write_new("file", pathlib.Path("c/d.toml"), "x")
    assert everything() == ["a", "a/b.toml"]


KINDS = {kind.name: kind for kind in (RUN_FOLDER, SWEEP_FOLDER, REPRODUCTION_FOLDER, STORE_FOLDER)}


def manifest_of(kind):
    """The least that a manifest of the kind holds."""
    empty = {str: "", dict: {}, list: [], int: 0, object: None}
    return {name: empty[of] for name, of in kind.fields.items() if name != "seal"}


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_is_read_by_its_own_kind_and_refused_by_every_other(name):
    kind, folder = KINDS[name], pathlib.Path("x")
    assert refusal(kind.read, folder).startswith(f"{name} folder must be an existing folder, got x")
    folder.mkdir()
    assert kind.is_new(folder)
    assert f"where nothing was stored before the {name} was stopped" in refusal(kind.read, folder)
    kind.write(folder, manifest_of(kind))
    assert kind.read(folder).items() >= manifest_of(kind).items()
    assert not kind.is_new(folder)
    for other in KINDS.values():
        if other is not kind:
            assert f"must be one with a file {other.manifest}, got x" in refusal(other.read, folder)
            assert refusal(other.require_new, "out", folder, "give another").startswith("out must be a new or empty")


@pytest.mark.parametrize("name", KINDS)
def test_a_manifest_of_another_version_or_without_a_field_is_refused(name):
    kind, folder = KINDS[name], pathlib.Path("x")
    folder.mkdir()
    if kind.format is not None:
        key, number = kind.format
        dataclasses.replace(kind, format=(key, number + 1)).write(folder, manifest_of(kind))
        assert f"{name} folder must be written by this version, got x" in refusal(kind.read, folder)
    for field in kind.fields:
        for changed in ({}, {} if kind.fields[field] is object else {field: None}):
            kind.write(folder, manifest_of(kind))
            manifest = json.loads((folder / kind.manifest).read_text())
            del manifest[field]
            (folder / kind.manifest).write_text(json.dumps(manifest | changed))
            assert f"{name} folder must be written by this version, got x" in refusal(kind.read, folder)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_killed_beginning_leaves_is_as_good_as_new_and_nothing_else_is(name):
    kind, folder = KINDS[name], pathlib.Path("x")
    folder.mkdir()
    for left in (*kind.beginning, f"{kind.manifest}{folders.DRAFT}", folders.LOCK):
        (folder / left).write_text("")
    assert kind.is_new(folder)
    (folder / "notes.txt").write_text("mine")
    assert not kind.is_new(folder)


def test_a_folder_of_another_recipe_is_left_alone():
    pathlib.Path("x").mkdir()
    REPRODUCTION_FOLDER.write(pathlib.Path("x"), {"recipe": "dpnfl/table2"})
    told = refusal(reproduce, "rfedavg/table3", scale="smoke", out="x", progress=False)
    assert "one of this recipe, got x, one of dpnfl/table2" in told
    assert everything() == ["x", "x/table.json"]


def test_a_folder_that_another_removes_while_it_is_made_is_made_again(monkeypatch):
    mkdir, calls = os.mkdir, []

    def removed_meanwhile(path, *mode):
        calls.append(path)
        if len(calls) == 1:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", removed_meanwhile)
    with folders.ensure_folder(pathlib.Path("x")):
        assert everything() == ["x"]


@pytest.mark.parametrize("content", [None, b"\x89PNG\r\n\xff\xfe"], ids=["folder", "picture"])
def test_files_of_another_kind_are_refused_as_what_they_are(content, tmp_path):
    path = tmp_path / "other"
    path.mkdir() if content is None else path.write_bytes(content)
    reads = {
        "start_names": lambda: folders.read_toml("start_names", path, "write lines"),
        "client_ids": lambda: file_parts(path, 4),
        "participation log": lambda: ParticipationLog.read(path),
    }
    for what, read in reads.items():
        line = refusal(read)
        assert f"{path}, which is {'a folder' if content is None else 'not UTF-8 text'}" in line
        assert line.startswith(f"{what} must be a ")
        assert line.partition("; ")[2].startswith(("write", "give"))


def test_two_that_write_one_file_at_once_both_write_it_whole():
    whole = "x" * 100_000

    def write(_):
        folders.write_atomically(pathlib.Path("report.html"), whole)
        return pathlib.Path("report.html").read_text() == whole

    with futures.ThreadPoolExecutor(4) as threads:
        assert all(threads.map(write, range(200)))
    assert everything() == ["report.html"]


def test_a_folder_that_another_removes_while_it_is_checked_is_checked_again(monkeypatch):
    probe, removed = folders.tempfile.TemporaryFile, []

    def removed_meanwhile(dir):
        if not removed:
            removed.append(dir.rmdir())
        return probe(dir=dir)

    monkeypatch.setattr(folders.tempfile, "TemporaryFile", removed_meanwhile)
    folders.require_writable("out", pathlib.Path("runs/x"))
    assert removed
    assert everything() == []
