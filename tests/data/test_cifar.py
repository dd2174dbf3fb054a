"""CIFAR-10 from every form in which it is handed out."""

import io
import pickle
import tarfile

import numpy as np
import pytest
from helpers import refusal
from test_pickles import Malicious, python2_pickle

from fedjax_dp import data
from fedjax_dp.data import cifar

FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture
def batches(monkeypatch):
    """Six files of two records instead of 10,000: pixels (12, 3072) and labels."""
    monkeypatch.setattr(cifar, "RECORDS", 2)
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (12, 3072), np.uint8), rng.integers(0, 10, 12)


def contents(form, batches):
    """File name -> bytes."""
    pixels, labels = batches
    parts = [(pixels[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2]) for i in range(6)]
    if form == "binary":
        return {
            f"{file}.bin": np.concatenate([y[:, None].astype(np.uint8), x], 1).tobytes()
            for file, (x, y) in zip(FILES, parts)
        }
    if form == "python 2":
        return {file: python2_pickle(x, y.tolist()) for file, (x, y) in zip(FILES, parts)}
    made = {file: {"data": x, "labels": y.tolist()} for file, (x, y) in zip(FILES, parts)}
    if form == "python 3, columns":
        made = {file: batch | {"data": np.asfortranarray(batch["data"])} for file, batch in made.items()}
    protocol = 2 if form == "python 3, old protocol" else 4
    return {file: pickle.dumps(batch, protocol) for file, batch in made.items()}


FORMS = ["binary", "python 2", "python 3", "python 3, old protocol", "python 3, columns"]


def write_cifar(folder, form, place, files):
    part, archive = (
        ("cifar-10-batches-bin", "cifar-10-binary") if form == "binary" else ("cifar-10-batches-py", "cifar-10-python")
    )
    (folder / "cifar10").mkdir(exist_ok=True)
    if place == "archive":
        with tarfile.open(folder / "cifar10" / f"{archive}.tar.gz", "w:gz") as tar:
            for file, content in files.items():
                member = tarfile.TarInfo(f"{part}/{file}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return
    where = folder / "cifar10" / (part if place == "subfolder" else "")
    where.mkdir(exist_ok=True)
    for file, content in files.items():
        (where / file).write_bytes(content)


@pytest.mark.parametrize("place", ["folder", "subfolder", "archive"])
@pytest.mark.parametrize("form", FORMS)
def test_cifar10_is_the_same_from_every_form(folder, batches, form, place):
    write_cifar(folder, form, place, contents(form, batches))
    got = data.load("cifar10", folder)
    pixels, labels = batches
    assert (got.x_train.shape, got.x_test.shape, got.x_train.dtype) == ((10, 32, 32, 3), (2, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(np.concatenate([got.y_train, got.y_test]), labels)
    planes = np.concatenate([got.x_train, got.x_test]).transpose(0, 3, 1, 2)  # the files keep colours apart
    np.testing.assert_array_equal(planes.reshape(12, 3072), pixels)
    assert (got.name, got.classes, got.scale) == ("cifar10", 10, 1 / 255)


@pytest.mark.parametrize("place", ["folder", "subfolder", "archive"])
@pytest.mark.parametrize("form", ["binary", "python 3"])
def test_missing_batch_is_named(folder, batches, form, place):
    files = contents(form, batches)
    missing = list(files)[2]
    del files[missing]
    write_cifar(folder, form, place, files)
    assert f"got no {missing};" in refusal(data.load, "cifar10", folder)


@pytest.mark.parametrize(
    ("form", "change", "words"),
    [
        ("binary", lambda raw: raw[:-1], "6145 bytes"),
        ("binary", lambda raw: b"\x0a" + raw[1:], "labels 0 to 9"),
        ("python 3", lambda raw: raw[:-9], "damaged"),
        ("python 3", lambda raw: b"", "damaged"),
        ("python 3", lambda raw: pickle.dumps([1]), "data"),
        ("python 3", lambda raw: pickle.dumps({"data": 1}), "data"),
        ("python 3", lambda raw: pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}), "labels"),
        ("python 3", lambda raw: pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}), "labels"),
        ("python 3", lambda raw: pickle.dumps({"data": np.zeros((2, 3072), np.float32), "labels": [1, 1]}), "'f4'"),
    ],
)
def test_damaged_batch_is_refused_by_name(folder, batches, form, change, words):
    files = contents(form, batches)
    file = list(files)[1]
    files[file] = change(files[file])
    write_cifar(folder, form, "archive", files)
    message = refusal(data.load, "cifar10", folder)
    assert words in message
    assert file in message


def test_damaged_archive_is_refused_by_name(folder, batches):
    write_cifar(folder, "binary", "archive", contents("binary", batches))
    path = folder / "cifar10" / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:-200])
    assert str(path) in refusal(data.load, "cifar10", folder)


def test_malicious_cifar_is_refused_in_one_line(folder, batches):
    files = contents("python 3", batches) | {"test_batch": pickle.dumps(Malicious())}
    write_cifar(folder, "python 3", "folder", files)
    assert "test_batch must be a pickle of plain values and arrays of bytes, got a call of posix.system" in (
        refusal(data.load, "cifar10", folder)
    )


def test_cifar_arrays_are_read_and_a_part_is_called_so(folder):
    (folder / "cifar10").mkdir()
    arrays = {
        "x_train": np.ones((3, 32, 32, 3), np.uint8),
        "y_train": np.array([1, 9, 0], np.uint8),
        "x_test": np.zeros((2, 32, 32, 3), np.uint8),
        "y_test": np.array([3, 4], np.uint8),
    }
    path = folder / "cifar10" / "cifar10.npz"
    np.savez(path, **arrays)
    got = data.load("cifar10", folder)
    assert (got.name, got.scale, got.classes, got.y_train.tolist()) == ("cifar10 (first 3)", 1 / 255, 10, [1, 9, 0])
    for key, wrong, words in (
        ("y_train", np.array([1, 10, 0]), "labels 0 to 9"),
        ("x_test", np.zeros((2, 32, 32), np.uint8), "(32, 32, 3)"),
        ("x_test", np.zeros((2, 32, 32, 3)), "uint8"),
        ("x_train", np.full((3, 32, 32, 3), np.nan), "finite"),
    ):
        np.savez(path, **arrays | {key: wrong})
        message = refusal(data.load, "cifar10", folder)
        assert words in message
        assert "cifar10.npz" in message
    np.savez(path, x_train=arrays["x_train"])
    assert "no array y_train" in refusal(data.load, "cifar10", folder)


def test_projected_cifar_keeps_its_type_and_refuses_nan(folder):
    (folder / "cifar10").mkdir()
    x, y = np.ones((4, 60), np.float16), np.arange(4)
    path = folder / "cifar10" / "cifar10_pca60.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    got = data.load("cifar10_pca60", folder)
    assert (got.x_train.dtype, got.x_train.shape, got.scale) == (np.float16, (4, 60), 1)
    np.savez(path, x_train=x, y_train=y, x_test=x * np.float16(np.nan), y_test=y)
    assert "cifar10_pca60.npz: x_test must be finite, got NaN in 4 of 4 records" in refusal(
        data.load, "cifar10_pca60", folder
    )
    np.savez(path, x_train=x[:, :9], y_train=y, x_test=x[:, :9], y_test=y)
    assert "records (60,)" in refusal(data.load, "cifar10_pca60", folder)


def test_real_projected_cifar_is_complete(real):
    got = data.load("cifar10_pca60", real("cifar10", "cifar10_pca60.npz"))
    assert (got.x_train.shape, got.x_test.shape) == ((50_000, 60), (10_000, 60))
    assert np.bincount(got.y_train).tolist() == [5000] * 10
    assert np.bincount(got.y_test).tolist() == [1000] * 10


@pytest.mark.slow
def test_real_part_of_cifar_is_read(real):
    got = data.load("cifar10", real("cifar10", "cifar10_quarter.npz"))
    assert (got.name, got.x_train.shape) == ("cifar10 (first 12500)", (12_500, 32, 32, 3))
