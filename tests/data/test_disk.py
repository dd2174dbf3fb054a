"""A store on disk holds the same clients as memory does, and one that is damaged is refused."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pyarrow as pa
import pytest
from helpers import refusal, scattered_data, target_data

import fedjax_dp as fdp
from fedjax_dp.accounting import Unit
from fedjax_dp.data import TARGETS, Dataset, UnitBound, federate, load, noted_checksum, open_store, save_store
from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.tools.cli import main

NAMES = ("H0", "ward \u20ac", "H1")
WRITTEN = {
    "numbers": scattered_data,
    "bytes": lambda: scattered_data(np.uint8),
    "tokens": lambda: scattered_data(np.int32, tokens=True),
    "test records of clients": lambda: scattered_data(np.float16, tested=True),
    **{task: functools.partial(target_data, task) for task in TARGETS if task != "own"},
    "names": lambda: dataclasses.replace(
        target_data("classes"), names=ClientNames(NAMES), class_names=ClientNames(("cat", "cow", "dog"))
    ),
    "bounds": lambda: dataclasses.replace(
        target_data("sequence"), overlap="one", bounds=(UnitBound(Unit.TOKEN, 2), UnitBound(Unit.TEXT, 3, 2))
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_written_is_read(case, tmp_path):
    data = WRITTEN[case]()
    save_store(data, tmp_path / "store")
    back = open_store(tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    for i in range(data.num_clients):
        for a, b in (data, back), (back, data):
            own, other = (d.row_numbers[d.offsets[i] : d.offsets[i] + d.sizes[i]] for d in (a, b))
            np.testing.assert_array_equal(a.x[own], b.x[other])
            np.testing.assert_array_equal(a.y[own], b.y[other])
    for field in dataclasses.fields(data):
        if field.name not in ("x", "y", "rows", "offsets", "notes"):
            one, other = (getattr(d, field.name) for d in (data, back))
            if isinstance(one, np.ndarray):
                np.testing.assert_array_equal(one, other)
            else:
                assert getattr(one, "listed", one) == getattr(other, "listed", other)
    assert (back.x.dtype, back.y.dtype) == (data.x.dtype, data.y.dtype)
    assert back.record_shape == data.record_shape


def test_truth_values_are_read_as_they_are_written(tmp_path):
    x, y = np.arange(24).reshape(8, 3) % 5 < 2, np.arange(8) % 3 < 1
    for targets in (y, y[:, None], x):
        folder = tmp_path / str(targets.shape)
        dataset = fdp.dataset(x, targets, x[:2], targets[:2], task="own", classes=2)
        save_store(fdp.federate(dataset, [np.arange(8)]), folder)
        back = open_store(folder)
        for array, other in ((back.x, x), (back.y, targets), (back.x_test, x[:2]), (back.y_test, targets[:2])):
            assert (array.dtype, array.tolist()) == (other.dtype, other.tolist())


def test_targets_of_several_arrays_are_in_no_store(tmp_path):
    told = refusal(save_store, target_data("own"), tmp_path / "store")
    assert "one array, for which a store has a column" in told


def test_records_stay_on_disk_until_they_are_used(tmp_path):
    x, y = np.ones((20_000, 50), np.float32), np.zeros(20_000, np.int32)
    data = federate(Dataset("ones", x, y, x[:1], y[:1], classes=1), np.split(np.arange(20_000), 100))
    save_store(data, tmp_path / "store")
    before = pa.total_allocated_bytes()
    back = open_store(tmp_path / "store")
    assert pa.total_allocated_bytes() - before < x.nbytes / 100
    assert not back.x.flags.owndata


@pytest.mark.slow
def test_disk_equals_memory_bit_for_bit(tmp_path):
    data = scattered_data()
    save_store(data, tmp_path / "store")
    algorithm = fdp.fedavg(cohort_size=3, batch_size=1, local_steps=2, learning_rate=0.1)
    ends = [fdp.simulate(algorithm, d, rounds=3).params for d in (data, open_store(tmp_path / "store"))]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)


def test_converted_clients_are_those_of_the_same_options(tmp_path, capsys):
    options = ["--num-clients", "20", "--partition", "dirichlet"]
    assert main(["data", "convert", "digits", *options, "--out", "store"]) == 0
    capsys.readouterr()
    told = [
        main(["data", *named, "--json"]) or json.loads(capsys.readouterr().out)
        for named in (["digits", *options], ["store:store"])
    ]
    assert {**told[0], "options": None} == {**told[1], "options": None}


@pytest.mark.slow
def test_a_run_goes_on_from_a_store_only_while_its_records_are_the_same(tmp_path, capsys):
    assert main(["data", "convert", "digits", "--out", "store"]) == 0
    run = ["run", "--algorithm", "fedavg", "--dataset", "store:store", "--rounds", "2", "--out", "run"]
    assert main(run) == 0
    assert main(["run", "--resume", "run"]) == 0
    data = open_store("store")
    y = np.array(data.y)
    y[0] = (y[0] + 1) % data.classes
    shutil.rmtree("store")
    save_store(dataclasses.replace(data, y=y), "store")
    capsys.readouterr()
    pathlib.Path("run/result.json").unlink()  # else nothing is left to do
    assert main(["run", "--resume", "run"]) == 2
    assert "data of the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "change", "wanted"),
    [
        ("store.json", None, "store.json"),
        ("store.json", lambda raw: b"[1", "readable JSON"),
        ("store.json", lambda raw: b"[1]", "of another version"),
        ("store.json", lambda raw: json.dumps(json.loads(raw) | {"version": 99}).encode(), "of another version"),
        ("store.json", lambda raw: b'{"version": 3}', "of another version"),
        ("store.json", lambda raw: json.dumps(json.loads(raw) | {"largest": 99}).encode(), "sizes of clients"),
        ("store.json", lambda raw: json.dumps(json.loads(raw) | {"records": 10}).encode(), "as in store.json"),
        ("records.arrow", lambda raw: raw[: len(raw) // 2], "records.arrow"),
        ("records.arrow", lambda raw: b"", "records.arrow"),
        ("clients.arrow", None, "clients.arrow"),
    ],
)
def test_a_damaged_store_is_refused_in_one_line(file, change, wanted, tmp_path):
    save_store(scattered_data(), tmp_path / "store")
    path = tmp_path / "store" / file
    raw = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(raw))
    assert wanted in refusal(open_store, tmp_path / "store")


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (["data", "convert", "digits"], "data convert"),
        (["data", "digits", "--out", "x"], "data convert"),
        (["run", "--dataset", "store:"], "store:FOLDER"),
        (["run", "--dataset", "store:absent", "--out", "run"], "store folder must be an existing folder"),
        (["run", "--dataset", "store:s", "--pca", "3"], "pca"),
        (["run", "--dataset", "store:s", "--num-clients", "3"], "num_clients"),
    ],
)
def test_bad_input_is_one_line(asked, wanted, capsys):
    assert main(asked) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert wanted in told[0]
    assert not pathlib.Path("run").exists()


def test_nothing_is_overwritten(tmp_path):
    save_store(scattered_data(), tmp_path / "store")
    assert "a new or empty folder" in refusal(save_store, scattered_data(), tmp_path / "store")
    assert "open_store" in refusal(load, "store:store")


def test_a_store_is_written_where_it_is_asked_for_and_nothing_beside_it_is_touched(tmp_path, monkeypatch):
    beside = tmp_path / "store.part" / "precious"
    beside.parent.mkdir()
    beside.write_text("")
    save_store(scattered_data(), tmp_path / "store")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other")
    save_store(scattered_data(), tmp_path / "link")
    (tmp_path / "here" / ".part").mkdir(parents=True)  # as a kill leaves it
    monkeypatch.chdir(tmp_path / "here")
    save_store(scattered_data(), ".")
    files = ["clients.arrow", "records.arrow", "store.json", "test.arrow"]
    for name in ("store", "other", "here"):
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == files
        assert open_store(tmp_path / name).num_clients == scattered_data().num_clients
    assert beside.exists()
    assert (tmp_path / "link").is_symlink()


def test_a_store_knows_the_checksum_of_its_records(tmp_path):
    data = scattered_data()
    for name, held in (("one", data), ("same", data), ("other", dataclasses.replace(data, y=data.y[::-1].copy()))):
        save_store(held, tmp_path / name)
    one, same, other = (noted_checksum(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same != other
    assert one == data.checksum == open_store(tmp_path / "one").checksum  # one function for all of them
