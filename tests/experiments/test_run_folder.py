"""Runs in folders, from Python and of configurations: kept, read, gone on with, and refused where they were changed."""

import contextlib
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from helpers import refusal, usual
from safetensors.numpy import load_file
from small_runs import QUIET, Stopped, dpnfl, run_killed, stop_at

import fedjax_dp as fdp
from fedjax_dp import errors, folders
from fedjax_dp.accounting import Guarantee
from fedjax_dp.experiments import RunSpec, configured, run_folder
from fedjax_dp.models import read_start
from fedjax_dp.models.run_files import newest_checkpoint
from fedjax_dp.pytrees import equal
from fedjax_dp.tools.cli.account_ledger import account_ledger
from fedjax_dp.tools.reports.runs import of_folder as report_of
from fedjax_dp.tools.reports.statement import statement_of

WORDS = {"num_clients": 10, "cohort_size": 5, "local_steps": 2, "rounds": 4, "evaluate_every": 2, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run of a configuration."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    configured.start(RunSpec.of(WORDS | {"out": str(folder)}), QUIET)
    return folder


@pytest.fixture
def x(finished):
    shutil.copytree(finished, "x")


def in_turns(data, out, stop, **words):
    with pytest.raises(Stopped):
        fdp.run(dpnfl(), data, out=out, callbacks=[stop_at(stop)], **words)


@pytest.mark.slow
def test_a_folder_that_is_written_is_refused_and_its_run_ends_as_if_nothing_had_been(data):
    words = {"rounds": 2, "evaluate_every": 2, "checkpoint_every": 1, "delta": 1e-3}
    refused = []

    def others(evaluation):
        for other in (lambda: fdp.run(dpnfl(), data, out="a", **words), lambda: fdp.resume("a", dpnfl(), data)):
            try:
                other()
            except errors.ConfigurationError as error:
                refused.append(str(error))

    mine = fdp.run(dpnfl(), data, out="a", callbacks=[others], **words)
    alone = fdp.run(dpnfl(), data, out="b", **words)
    assert len(refused) == 2 * len(mine.history)
    assert {one.partition(",")[0] for one in refused} == {"out must be a new or empty folder", "resume must be free"}
    assert equal(mine.params, alone.params)
    assert fdp.resume("a", dpnfl(), data).finished
    assert not pathlib.Path("a/.lock").exists()


def test_a_run_does_not_begin_with_what_comes_into_its_folder_while_it_is_prepared(data, monkeypatch):
    begin = run_folder._begin

    def stored_meanwhile(path, *rest):
        (path / "checkpoints" / "1").mkdir(parents=True)
        begin(path, *rest)

    monkeypatch.setattr(run_folder, "_begin", stored_meanwhile)
    words = {"rounds": 1, "evaluate_every": 1, "delta": 1e-3}
    assert "a new or empty folder" in refusal(lambda: fdp.run(dpnfl(), data, out="a", **words))
    assert [path.name for path in pathlib.Path("a").iterdir()] == ["checkpoints"]


@pytest.mark.slow
def test_a_folder_of_two_runs_or_of_half_a_one_is_not_opened(data):
    words = {"rounds": 2, "evaluate_every": 1, "checkpoint_every": 1, "delta": 1e-3}
    fdp.run(dpnfl(), data, out="a", **words)
    fdp.run(dpnfl(noise_multiplier=4.0), data, out="b", **(words | {"rounds": 3, "delta": 1e-4}))
    fdp.open_run("a")
    for name in ("guarantee.json", "ledger.jsonl", "metrics.json", "run.json"):
        shutil.copytree("a", f"a {name}")
        shutil.copy(f"b/{name}", f"a {name}/{name}")
        with pytest.raises(errors.ConfigurationError, match=r"of two runs|changed since"):
            fdp.open_run(f"a {name}")
        pathlib.Path(f"a {name}", name).unlink()
        assert name in refusal(fdp.open_run, f"a {name}")
    assert "metrics.json" in refusal(fdp.resume, "a metrics.json", dpnfl(), data, rounds=4)


@pytest.mark.slow
def test_a_file_of_a_quieter_run_or_of_fewer_rounds_never_speaks_for_a_folder(data):
    """Same data, delta, rounds and seed: the files differ by the noise alone, or by the number of rounds."""
    words = {"rounds": 2, "evaluate_every": 1, "checkpoint_every": 1, "delta": 1e-3}
    fdp.run(dpnfl(noise_multiplier=0.5), data, out="loud", **words)
    fdp.run(dpnfl(noise_multiplier=4.0), data, out="quiet", **words)
    shutil.copytree("loud", "longer")
    fdp.resume("longer", dpnfl(noise_multiplier=0.5), data, rounds=4)
    doors = {
        "open": fdp.open_run,
        "report": lambda path: report_of(pathlib.Path(path)),
        "statement": lambda path: statement_of(pathlib.Path(path)),
        "resume": lambda path: fdp.resume(path, dpnfl(noise_multiplier=0.5), data, rounds=6),
        "finished": lambda path: fdp.resume(path, dpnfl(noise_multiplier=0.5), data),
        "account": lambda path: account_ledger(["--ledger", path]),
        "start": read_start,
        "checkpoint": lambda path: read_start(newest_checkpoint(pathlib.Path(path)) / "state"),
    }
    reports, ledgers = ("open", "report", "statement"), ("resume", "account", "start", "checkpoint")
    of_fewer_rounds = {
        "ledger.jsonl": (*reports, *ledgers),
        "run.json": ("open", "resume"),
        "guarantee.json": reports,
        "result.json": (),
        "checkpoints": (),  # it goes on from there
        "checkpoints/2/state": (),
    }
    of_a_quieter = of_fewer_rounds | {
        "run.json": (*reports, *ledgers),
        "result.json": ("open", "report", "finished"),
        "checkpoints": (*reports, *ledgers),
        "checkpoints/2/state": (*reports, *ledgers),
    }
    for folder, source, files in (("loud", "quiet", of_a_quieter), ("longer", "loud", of_fewer_rounds)):
        for name, door in ((name, door) for name, entered in files.items() for door in entered):
            mixed = f"{folder} {source} {name.replace('/', ' ')} {door}"
            shutil.copytree(folder, mixed)
            remove, copy = (shutil.rmtree, shutil.copytree) if "." not in name else (os.remove, shutil.copy)
            remove(f"{mixed}/{name}")
            copy(f"{source}/{name}", f"{mixed}/{name}")
            line = refusal(doors[door], mixed)
            words = ("of two runs", "of another run", "changed since", "of fewer rounds", "must be unchanged")
            assert any(one in line for one in words), (mixed, line)


@pytest.mark.slow
def test_a_stopped_run_of_values_goes_on_bit_for_bit(data):
    words = {"rounds": 4, "evaluate_every": 1, "checkpoint_every": 2, "delta": 1e-3}
    whole = fdp.run(dpnfl(), data, **words | {"checkpoint_every": None})
    in_turns(data, "x", 3, **words)
    seen = fdp.open_run("x")
    assert not seen.finished
    assert (seen.round, [point.round for point in seen.history]) == (2, [1, 2, 3])
    resumed = fdp.resume("x", dpnfl(), data)
    assert resumed.finished
    assert equal(resumed.params, whole.params)
    assert resumed.history == whole.history
    assert resumed.guarantee == whole.guarantee
    assert resumed.model == fdp.logistic_regression(data.record_shape, data.classes)
    names = {path.name for path in pathlib.Path("x").iterdir()}
    assert names == {
        "config.toml",
        "run.json",
        "guarantee.json",
        "ledger.jsonl",
        "ledger.csv",
        "clients.csv",
        "metrics.json",
        "result.json",
        "run.png",
        "checkpoints",
    }


@pytest.mark.slow
def test_a_run_of_values_goes_on_with_the_same_values_only(data):
    in_turns(data, "x", 2, rounds=4, evaluate_every=1, delta=1e-3)
    for given, told in (
        ((), "algorithm and data must be given again"),
        ((dpnfl(clip_norm=2.0), data), "algorithm of the run must be unchanged"),
        ((dpnfl(batch_size=11), data), "algorithm of the run must be unchanged"),
        ((dpnfl(), fdp.federate(fdp.load("digits"), np.array_split(np.arange(1000), 10))), "data of the run"),
    ):
        assert told in refusal(fdp.resume, "x", *given)
    assert "model of the run must be unchanged" in refusal(
        fdp.resume, "x", dpnfl(), data, model=fdp.mlp(data.record_shape, data.classes)
    )


@pytest.mark.slow
def test_a_run_of_values_goes_on_with_the_same_names_of_clients_only():
    """Else two clients exchange the budgets that their names say, in the middle of a run."""
    digits, names = fdp.load("digits"), ["north", "south"]
    data, swapped = (fdp.federate(digits, dict(zip(who, fdp.data.iid(digits, 2)))) for who in (names, names[::-1]))
    algorithm, words = dpnfl(cohort_size=2, noise_multiplier=0.0), {"epsilon": "north=1,south=4", "delta": 1e-3}
    run_killed(algorithm, data, "x", after=1, rounds=2, checkpoint_every=1, **words)
    assert "names of clients of the run must be unchanged" in refusal(fdp.resume, "x", algorithm, swapped)
    assert fdp.resume("x", algorithm, data).finished


@pytest.mark.slow
def test_more_rounds_are_the_longer_run_with_its_guarantee(data):
    words = {"evaluate_every": 1, "checkpoint_every": 1, "delta": 1e-3}
    fdp.run(dpnfl(), data, rounds=3, out="x", **words)
    longer = fdp.resume("x", dpnfl(), data, rounds=5)
    whole = fdp.run(dpnfl(), data, rounds=5, out="y", **words)
    assert equal(longer.params, whole.params)
    assert longer.guarantee == whole.guarantee
    assert longer.config["rounds"] == 5
    again = fdp.resume("x", dpnfl(), data)  # finished, and not refused
    assert again.history == longer.history
    assert "at least 5" in refusal(fdp.resume, "x", dpnfl(), data, rounds=4)


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(x):
    def seen():
        files = [path for path in pathlib.Path("x").rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = seen()
    assert fdp.resume("x").finished
    assert seen() == before


@pytest.mark.slow
@pytest.mark.parametrize("kept", usual([(), ("guarantee.json",), ("guarantee.json", "ledger.jsonl")], [()]))
def test_a_run_that_was_killed_before_it_began_says_so_and_starts_in_its_folder(kept, data):
    words = {"rounds": 2, "delta": 1e-3}
    whole = fdp.run(dpnfl(), data, out="whole", **words)
    pathlib.Path("x").mkdir()
    for name in kept:
        shutil.copy(f"whole/{name}", f"x/{name}")
    pathlib.Path("x/run.json.part").write_text('{"con')
    told = "got x, where nothing was stored before the run was stopped; start it again in the same folder"
    for go_on in (fdp.open_run, lambda folder: fdp.resume(folder, dpnfl(), data)):
        assert told in refusal(go_on, "x")
    again = fdp.run(dpnfl(), data, out="x", **words)
    assert equal(again.params, whole.params)
    assert {path.name for path in pathlib.Path("x").iterdir()} == {
        path.name for path in pathlib.Path("whole").iterdir()
    }


@pytest.mark.slow
def test_a_promise_is_never_of_fewer_rounds_wherever_a_longer_run_is_killed(data, monkeypatch):
    words = {"evaluate_every": 1, "checkpoint_every": 1, "delta": 1e-3}
    fdp.run(dpnfl(), data, rounds=2, out="x", **words)
    whole = fdp.run(dpnfl(), data, rounds=4, out="whole", **words)
    write = folders.write_atomically
    for moment in range(4):
        written = []

        def writing(path, text, moment=moment, written=written):
            if len(written) == moment:
                raise Stopped
            written.append(path)
            write(path, text)

        with monkeypatch.context() as patch, contextlib.suppress(Stopped):
            patch.setattr(folders, "write_atomically", writing)
            fdp.resume("x", dpnfl(), data, rounds=4)
        seen = fdp.open_run("x")
        assert seen.guarantee.epsilon >= fdp.guarantee(dpnfl(), data, rounds=seen.config["rounds"], delta=1e-3).epsilon
    longer = fdp.resume("x", dpnfl(), data, rounds=4)
    assert longer.guarantee == whole.guarantee
    assert pathlib.Path("x/config.toml").read_text() == pathlib.Path("whole/config.toml").read_text()


@pytest.mark.slow
def test_what_was_changed_is_named(x):
    def refused(file, change):
        shutil.copytree("x", "y")
        path = pathlib.Path("y") / file
        path.write_text(change(path.read_text()))
        with pytest.raises(fdp.ConfigurationError) as error:
            fdp.open_run("y").guarantee  # noqa: B018
        shutil.rmtree("y")
        return str(error.value)

    about = json.loads(pathlib.Path("x/run.json").read_text())
    changes = [{"config": about["config"] | {name: "other"}} for name in about["config"]]
    changes += [{"checksums": about["checksums"] | {name: "other"}} for name in about["checksums"]]
    for edited in [about | change for change in [*changes, {"made of": "values of Python"}]]:
        assert "y/run.json must be as the run wrote it" in refused(
            "run.json", lambda _, edited=edited: json.dumps(edited)
        )
    assert "readable JSON" in refused("run.json", lambda text: text[:100])
    promise = json.loads(pathlib.Path("x/guarantee.json").read_text())
    for change in ({"epsilons": [[0.1, 10]]}, {"statement": "all is well"}, {"warnings": ["none"]}, {"seal": None}):
        edited = json.dumps(promise | change)
        assert "y/guarantee.json must be as the run wrote it" in refused("guarantee.json", lambda _, text=edited: text)
    other = run_folder.seal_promise(promise, about | {"run": "of another"})
    assert "y/guarantee.json must be" in refused("guarantee.json", lambda _: json.dumps(other))


def test_a_run_that_names_an_option_of_another_version_is_refused_in_one_line(x):
    about = json.loads(pathlib.Path("x/run.json").read_text())
    about["config"]["start_clients"] = "same"
    run_folder.RUN_FOLDER.write(pathlib.Path("x"), about)
    promise = json.loads(pathlib.Path("x/guarantee.json").read_text())
    folders.write_json(pathlib.Path("x/guarantee.json"), run_folder.seal_promise(promise, about))
    for read in (fdp.resume, lambda folder: fdp.open_run(folder).model):
        assert "got 'start_clients'" in refusal(read, "x")


def test_the_configuration_for_people_decides_nothing(x):
    whole, file = fdp.open_run("x"), pathlib.Path("x/config.toml")
    written = file.read_text()
    assert written.startswith("# For people and for new runs. This one goes on by run.json")
    pathlib.Path("x/result.json").unlink()
    for edited in (written.replace("seed = 0", "seed = 1"), "\0", None):
        file.unlink() if edited is None else file.write_text(edited)
        seen = fdp.open_run("x")
        assert (seen.config, seen.guarantee) == (whole.config, whole.guarantee)
    resumed = fdp.resume("x")
    assert equal(resumed.params, whole.params)
    assert (resumed.config, resumed.guarantee, resumed.history) == (whole.config, whole.guarantee, whole.history)
    assert file.read_text() == written


def test_other_versions_are_told(x, capsys):
    pathlib.Path("x/result.json").unlink()
    about = json.loads(pathlib.Path("x/run.json").read_text())
    about["versions"]["jax"] = "0.1"
    pathlib.Path("x/run.json").write_text(json.dumps(about))
    fdp.resume("x", progress=True)
    assert "started with jax 0.1 (now " in capsys.readouterr().err


@pytest.mark.parametrize("name", usual(["x", "x/run.json", "x/config.toml", "x/checkpoints"], ["x/run.json"]))
@pytest.mark.slow
def test_a_file_is_no_folder_and_a_folder_no_file(name, data):
    fdp.run(dpnfl(), data, rounds=1, out="x", delta=1e-3)
    path = pathlib.Path(name)
    pathlib.Path("x/result.json").unlink()
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()
    with pytest.raises((fdp.ConfigurationError, errors.StorageError)):
        fdp.resume("x", dpnfl(), data)


def test_folders_of_others_are_not_written_to(data):
    pathlib.Path("full").mkdir()
    pathlib.Path("full/mine").write_text("")
    pathlib.Path("file").write_text("")
    pathlib.Path("dangling").symlink_to("nowhere")
    for out in ("full", "file", "dangling"):
        assert "out must be a new or empty folder" in refusal(fdp.run, dpnfl(), data, rounds=1, out=out, delta=1e-3)
    assert sorted(path.name for path in pathlib.Path().rglob("*")) == ["dangling", "file", "full", "mine"]


def test_parameters_are_exported_by_name(data):
    made = fdp.run(dpnfl(), data, rounds=1, out="x", delta=1e-3)
    saved = fdp.open_run("x")
    named = {f"Dense_0/{name}": value for name, value in made.params["Dense_0"].items()}
    for file, read in (("p.npz", np.load), ("p.safetensors", load_file)):
        held = read(saved.export(file))
        assert set(held) - {"__ledger__"} == set(named)
        assert all(np.array_equal(held[name], value) for name, value in named.items())
        assert "a new file" in refusal(saved.export, file)
    for bad in ("p.pt", "absent/p.npz", "p"):
        assert "file of parameters must be" in refusal(saved.export, bad)
    assert not pathlib.Path("absent").exists()


FIELDS = {  # of format 3; a folder with others is to be of another one
    "guarantee.json": "accountant adjacency alone assumptions attack caveat claims delta deployment elsewhere epsilon "
    "epsilon_max epsilon_median epsilon_min epsilons names noise_multiplier own phases reason rounds seal statement "
    "unit view warnings",
    "metrics.json": "client_mean client_variance clipped gradient_norm learnt_clip_norm noise_to_signal objective "
    "personal_mean personal_pooled personal_variance personal_worst_tenth round test_accuracy test_loss train_loss "
    "worst_tenth",
    "result.json": "algorithm baseline bytes_to_target classes config dataset device guarantee history probes rounds "
    "rounds_to_target run seed spending task test_accuracy test_loss timing traffic versions",
    "run.json": "checksums config device devices format halted_of made of model_devices records run seal task versions",
}


def test_files_of_a_folder_have_the_fields_of_its_format(data):
    fdp.run(dpnfl(), data, rounds=1, out="x", delta=1e-3)
    files = {name: json.loads(pathlib.Path("x", name).read_text()) for name in FIELDS}
    fields = {name: " ".join(sorted(one[0] if isinstance(one, list) else one)) for name, one in files.items()}
    assert (run_folder.RUN_FOLDER.format, fields) == (("format", 3), FIELDS), "raise the format with the fields"


def test_a_result_holds_the_share_of_the_most_frequent_class_and_folders_without_it_are_read(data):
    result = fdp.run(dpnfl(), data, rounds=1, out="x", delta=1e-3)
    share = np.bincount(data.y_test).max() / len(data.y_test)
    path = pathlib.Path("x/result.json")
    content = json.loads(path.read_text())
    words = "always naming the most frequent class"
    assert content["baseline"] == {"answer": words, "metric": "test_accuracy", "value": pytest.approx(share)}
    assert f"{words}: test accuracy {share:.4f}" in repr(result)
    del content["baseline"]
    path.write_text(json.dumps(content))
    assert fdp.open_run("x").test_accuracy == content["test_accuracy"]
    assert fdp.resume("x", dpnfl(), data, rounds=2).history[-1].round == 2
    assert "baseline" in json.loads(path.read_text())


class Told:
    def __init__(self):
        self.events = []

    def on_start(self, run):
        self.events.append(("start", run.rounds, run.guarantee))

    def on_evaluation(self, evaluation):
        self.events.append(evaluation)

    def on_finish(self, result):
        self.events.append(("finish", result.guarantee))


def test_callbacks_are_told_of_start_evaluations_and_end(data):
    told, plain = Told(), []
    result = fdp.run(dpnfl(), data, rounds=4, evaluate_every=2, delta=1e-3, callbacks=[told, plain.append])
    assert plain == result.history
    assert told.events == [("start", 4, result.guarantee), *result.history, ("finish", result.guarantee)]


def test_a_callback_that_fails_is_told_once_and_the_run_goes_on(data):
    calls = []

    def fails(evaluation):
        calls.append(evaluation)
        raise OSError("no space")

    with pytest.warns(RuntimeWarning, match=r"failed in on_evaluation and is not called again: OSError: no space"):
        result = fdp.run(dpnfl(), data, rounds=3, evaluate_every=1, delta=1e-3, callbacks=[fails])
    assert (len(calls), len(result.history)) == (1, 3)
    for none in (3, Told):
        assert "callback must be" in refusal(fdp.run, dpnfl(), data, rounds=1, callbacks=[none])


def test_a_file_that_holds_no_guarantee_is_refused():
    assert "a saved Guarantee must be" in refusal(Guarantee.from_full_dict, {"delta": 1.0})
