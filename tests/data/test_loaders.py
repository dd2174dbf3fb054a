"""Loaders: what is written in a data set's own format is what is read, and damage is told in one line."""

import contextlib
import gzip
import io
import os
import pathlib
import pickle
import re
import struct
import tarfile
import tempfile
import types

import numpy as np
import pytest
from helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from fedjax_dp import data, errors
from fedjax_dp.data import cifar, pickles, tabular, tfds
from fedjax_dp.data.formats.sequences import cut_words, most_frequent, of_words, words_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for data, an empty cache, and no other place to look."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    monkeypatch.delenv("FEDJAX_DP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def real(mnist_dir):
    """Finds a file of the real data sets, or skips."""

    def find(*parts):
        path = mnist_dir.joinpath(*parts)
        if not path.is_file():
            pytest.skip(f"{path.name} is not at hand")
        return mnist_dir

    return find


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("adult", "adult.data"),
        ("adult_full", "adult.test"),
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar10_pca60", "cifar10_pca60.npz"),
        ("svhn", "train_32x32.mat"),
        ("sent140", "sent140_subset.csv"),
        ("femnist_digits", "femnist_digits_12clients.npz"),
    ],
)
def test_missing_data_set_says_which_file_belongs_where(folder, name, file):
    message = refusal(data.load, name, folder)
    assert f"dataset {name} must be on disk" in message
    assert f"put {file}" in message or f"and {file}" in message or f"or {file}" in message
    assert f"into {folder / name.removesuffix('_full')}" in message


@pytest.mark.parametrize("name", ["npz", "synthetic", "tfds", "mnist:x", "adult:x"])
def test_name_with_too_little_or_too_much_is_refused(name):
    assert "dataset must be" in refusal(data.load, name) or name == "npz"


# idx: the other splits of EMNIST


@pytest.mark.parametrize("place", ["own", "emnist", "emnist/gzip"])
@pytest.mark.parametrize("split", ["byclass", "balanced", "digits"])
def test_emnist_splits_are_read_from_their_own_or_the_archives_folder(folder, split, place):
    where = folder / (f"emnist_{split}" if place == "own" else place)
    where.mkdir(parents=True)
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([0, 2, 1, 0], np.uint8)
    for side in ("train", "test"):
        for part, array in (("images-idx3", x), ("labels-idx1", y)):
            head = b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
            (where / f"emnist-{split}-{side}-{part}-ubyte").write_bytes(head + array.tobytes())
    got = data.load(f"emnist_{split}", folder)
    np.testing.assert_array_equal(got.x_train, x.transpose(0, 2, 1))
    np.testing.assert_array_equal(got.y_test, y)
    assert got.classes == 3


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=20, deadline=None)
def test_idx_files_come_back_byte_by_byte(records, height, width, seed, packed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (records, height, width), np.uint8), rng.integers(0, 10, records).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "mnist").mkdir()
        for side in ("train", "t10k"):
            for part, array in (("images-idx3", x), ("labels-idx1", y)):
                raw = b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape) + array.tobytes()
                path = pathlib.Path(folder) / "mnist" / f"{side}-{part}-ubyte{'.gz' if packed else ''}"
                path.write_bytes(gzip.compress(raw) if packed else raw)
        got = data.load("mnist", folder)
    for read, written in zip((got.x_train, got.y_train, got.x_test, got.y_test), (x, y, x, y), strict=True):
        np.testing.assert_array_equal(read, written)


# Adult

RECORD = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
OTHER = "50, ?, 83311.5, HS-grad, 9, Widowed, ?, Wife, Black, Female, 0, 0, 13, "
GOOD = {
    "adult.data": RECORD + "United-States, <=50K\n" + OTHER + "?, >50K\n\n",
    "adult.test": "|1x3 Cross validator\n" + RECORD + "Cuba, >50K.\n" + OTHER + "Hong, <=50K.\n\n",
}


def write_adult(folder, **changes):
    (folder / "adult").mkdir(exist_ok=True)
    for file, content in (GOOD | {key.replace("_", "."): value for key, value in changes.items()}).items():
        (folder / "adult" / file).write_text(content, encoding="latin1")


def test_adult_is_read_from_both_of_its_dialects(folder):
    write_adult(folder)
    got = data.load("adult", folder)
    assert (got.x_train.shape, got.x_test.shape, got.x_train.dtype) == ((2, 102), (2, 102), np.uint8)
    assert (got.y_train.tolist(), got.y_test.tolist(), got.classes) == ([0, 1], [1, 0], 2)
    assert (got.x_train.sum(1) == 8).all()
    assert got.x_train[0, 5] == got.x_train[1, 8] == 1  # State-gov, and "?" as a category of its own
    full = data.load("adult_full", folder)
    np.testing.assert_array_equal(full.x_train[:, :102], got.x_train)
    np.testing.assert_allclose(full.x_train[:, 102:], [[-1, -1, 1, 1, 0, 1], [1, 1, -1, -1, 0, -1]], atol=1e-6)
    np.testing.assert_allclose(full.x_test[:, 102:], full.x_train[:, 102:], atol=1e-6)  # scaled as training is


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("State-gov", "Stategov"), "adult.data, line 1, workclass must be one of Private, "),
        (("77516", "many"), "adult.data, line 1, fnlwgt must be a finite number, got 'many'"),
        (("77516", "nan"), "fnlwgt must be a finite number, got 'nan'"),
        (("2174", "inf"), "capital-gain must be a finite number, got 'inf'"),
        (("<=50K", "<=50k"), "line 1, label must be one of <=50K, >50K, got '<=50k'"),
        ((", 2174", ""), "adult.data, line 1 must be 15 fields"),
        (("State-gov", "Stàte-gov"), "byte"),
    ],
)
def test_damaged_adult_is_refused_with_file_line_and_column(folder, change, words):
    write_adult(folder, adult_data=GOOD["adult.data"].replace(*change))
    assert words in refusal(data.load, "adult", folder)


@st.composite
def people(draw):
    """A record of Adult: words by column."""
    person = {name: draw(st.sampled_from(words)) for name, words in tabular.CATEGORIES.items()}
    return person | {name: str(draw(st.integers(0, 10**6))) for name in tabular.NUMERIC}


@given(st.lists(people(), min_size=1, max_size=6), st.integers(0, 2**6 - 1))
@settings(max_examples=20, deadline=None)
def test_every_record_of_adult_comes_back_word_by_word(records, labels):
    y = [labels >> place & 1 for place in range(len(records))]
    lines = [
        ", ".join([*(person[name] for name in tabular.COLUMNS), tabular.LABELS[label]])
        for person, label in zip(records, y)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_adult(pathlib.Path(folder), adult_data="\n".join(lines) + "\n")
        got, full = (data.load(name, folder) for name in ("adult", "adult_full"))
    assert got.y_train.tolist() == y
    ends = np.cumsum([len(words) for words in tabular.CATEGORIES.values()])[:-1]
    for person, x in zip(records, got.x_train, strict=True):
        for (name, words), block in zip(tabular.CATEGORIES.items(), np.split(x, ends), strict=True):
            assert block.sum() == 1
            assert words[int(block.argmax())] == person[name]
    numbers = np.array([[float(person[name]) for name in tabular.NUMERIC] for person in records])
    spread = np.where(numbers.std(0) > 0, numbers.std(0), 1)
    np.testing.assert_allclose(full.x_train[:, 102:] * spread + numbers.mean(0), numbers, atol=0.4)


def test_adult_without_records_is_refused(folder):
    write_adult(folder, adult_test="|1x3 Cross validator\n\n")
    assert "adult.test must be at least one, got no record" in refusal(data.load, "adult", folder)


def test_real_adult_has_the_published_counts_and_decodes_to_its_lines(real):
    where = real("adult", "adult.data")
    got = data.load("adult", where)
    # source: adult.names (48,842 records, 32,561 to train) and counts of the files
    assert (got.x_train.shape, got.x_test.shape) == ((32_561, 102), (16_281, 102))
    assert (got.y_train.sum(), got.y_test.sum()) == (7_841, 3_846)
    names = (where / "adult" / "adult.names").read_text()
    widths = [len(words) for words in tabular.CATEGORIES.values()]
    assert widths == [9, 16, 7, 15, 6, 5, 2, 42]
    for name, words in tabular.CATEGORIES.items():
        listed = re.search(rf"^{name}: (.*)\.$", names, re.M)
        assert listed.group(1).split(", ") == [word for word in words if word != "?"]
    line = (where / "adult" / "adult.data").read_text().splitlines()[123].split(", ")
    blocks = np.split(got.x_train[123], np.cumsum(widths)[:-1])
    for (name, words), block in zip(tabular.CATEGORIES.items(), blocks, strict=True):
        assert words[int(block.argmax())] == line[tabular.COLUMNS.index(name)]
    full = data.load("adult_full", where)
    assert full.x_train.shape == (32_561, 108)
    np.testing.assert_allclose(full.x_train[:, 102:].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(full.x_train[:, 102:].std(0), 1, atol=1e-4)


# CIFAR-10

FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture
def batches(monkeypatch):
    """Six files of two records instead of 10,000: pixels (12, 3072) and labels."""
    monkeypatch.setattr(cifar, "RECORDS", 2)
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (12, 3072), np.uint8), rng.integers(0, 10, 12)


def python2_pickle(pixels, labels):
    """The instructions that Python 2 wrote for {'data': array, 'labels': list}, with strings of bytes."""
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01K"
        + bytes([len(pixels)])
        + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


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


class Malicious:
    """Unpickled freely it would write a file."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [Malicious(), {"data": Malicious()}, np.array([Malicious()], object), np.dtype("O")])
def test_pickle_that_calls_something_is_refused_and_nothing_is_called(tmp_path, value, protocol):
    with pytest.raises(pickles.PickleError):
        pickles.bytes_only(pickle.dumps(value, protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [b"cbuiltins\neval\n", b"cnumpy\nload\n", b"cnumpy.core.multiarray\nfromfile\n"])
def test_pickle_may_not_even_name_another_function(name):
    with pytest.raises(pickles.PickleError, match="a call of"):
        pickles.bytes_only(name + b".")


@pytest.mark.parametrize(
    "name", ["numpy\nndarray", "numpy\ndtype", "numpy.core.multiarray\n_reconstruct", "_codecs\nencode"]
)
def test_pickle_cannot_change_what_stands_in(name):
    before = [dict(vars(stand_in)) for stand_in in pickles._STAND_INS.values()]
    for state in (b"}U\x07contentK\x01s", b"N}U\x07contentK\x01s\x86"):  # attributes in both ways that there are
        with pytest.raises(pickles.PickleError):
            pickles.bytes_only(b"c" + name.encode() + b"\n" + state + b"b.")
    assert [dict(vars(stand_in)) for stand_in in pickles._STAND_INS.values()] == before


def test_malicious_cifar_is_refused_in_one_line(folder, batches):
    files = contents("python 3", batches) | {"test_batch": pickle.dumps(Malicious())}
    write_cifar(folder, "python 3", "folder", files)
    assert "test_batch must be a pickle of plain values and arrays of bytes, got a call of posix.system" in (
        refusal(data.load, "cifar10", folder)
    )


@given(st.integers(0, 200), st.integers(0, 255), st.sampled_from(["python 2", "python 3", "python 3, old protocol"]))
@settings(max_examples=150, deadline=None)
def test_no_damage_of_a_pickle_does_more_than_fail(place, byte, form):
    pixels = np.zeros((2, 3072), np.uint8)
    labels = [1, 2]
    raw = (
        python2_pickle(pixels, labels)
        if form == "python 2"
        else pickle.dumps({"data": pixels, "labels": labels}, 2 if "old" in form else 4)
    )
    damaged = bytearray(raw)
    damaged[place] = byte
    with contextlib.suppress(pickles.PickleError):
        pickles.bytes_only(bytes(damaged))


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
    assert "cifar10_pca60.npz: x_test must be finite, got NaN or infinity" in refusal(
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


# SVHN


def write_svhn(folder, labels=(10, 1, 9), **changes):
    (folder / "svhn").mkdir(exist_ok=True)
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, len(labels)), np.uint8)
    for side in ("train", "test"):
        savemat(folder / "svhn" / f"{side}_32x32.mat", {"X": x, "y": np.array(labels, np.uint8)[:, None], **changes})
    return x


def test_svhn_matrices_are_turned_and_ten_means_zero(folder):
    x = write_svhn(folder)
    got = data.load("svhn", folder)
    np.testing.assert_array_equal(got.x_train, np.moveaxis(x, 3, 0))
    assert (got.y_train.tolist(), got.y_test.tolist(), got.name, got.classes) == ([0, 1, 9], [0, 1, 9], "svhn", 10)


def test_damaged_svhn_is_refused_by_name(folder):
    write_svhn(folder, labels=(10, 1, 11))
    assert "train_32x32.mat: y must be labels 1 to 10, got labels 1 to 11" in refusal(data.load, "svhn", folder)
    write_svhn(folder, labels=(0, 1, 9))
    assert "labels 1 to 10" in refusal(data.load, "svhn", folder)
    write_svhn(folder, X=np.zeros((32, 32, 3)))
    assert "train_32x32.mat" in refusal(data.load, "svhn", folder)
    path = folder / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:300])
    assert str(path) in refusal(data.load, "svhn", folder)
    path.unlink()
    assert "one is there, one is not" in refusal(data.load, "svhn", folder)


def test_real_part_of_svhn_says_that_it_is_one(real):
    got = data.load("svhn", real("svhn", "svhn_train_first1083.npz"))
    assert (got.name, len(got.y_train), len(got.y_test)) == ("svhn (first 1083)", 883, 200)


# Natural clients


def test_femnist_digits_keep_a_tenth_of_every_client(real):
    got = data.load("femnist_digits", real("femnist_glin20", "femnist_digits_12clients.npz"))
    train, test = np.bincount(got.client_ids), np.bincount(got.test_client_ids)
    assert (len(train), train.sum() + test.sum()) == (12, 5_997)
    assert (np.floor(0.9 * (train + test)) == train).all()
    assert (got.x_train.shape[1:], got.classes) == ((28, 28), 10)
    seen = (got.x_train.astype(float) - got.shift) * got.scale
    assert (seen.min(), seen.max()) == (0, 1)
    assert np.median(seen) == 0  # paper


def test_damaged_femnist_is_refused_by_name(folder):
    (folder / "femnist_digits").mkdir()
    path = folder / "femnist_digits" / "femnist_digits_12clients.npz"
    good = {"x": np.zeros((4, 2, 2), np.uint8), "y": np.arange(4), "client": np.array([0, 0, 1, 1])}
    np.savez(path, **good)
    assert data.load("femnist_digits", folder).client_ids.tolist() == [0, 1]
    for change in ({"y": np.full(4, 10)}, {"client": np.arange(3)}, {"x": np.zeros((4, 2, 2))}):
        np.savez(path, **good | change)
        assert "femnist_digits_12clients.npz" in refusal(data.load, "femnist_digits", folder)


def write_messages(folder, rows, header="user,positive,text"):
    (folder / "sent140").mkdir(exist_ok=True)
    (folder / "sent140" / "sent140_subset.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def test_words_are_those_of_the_basic_english_tokeniser():
    # source: the table of replacements in torchtext's documentation of "basic_english"
    assert words_of('Don\'t (you) "ever"; stop: NOW.<br />ok,fine!?') == [
        "don",
        "'",
        "t",
        "(",
        "you",
        ")",
        "ever",
        "stop",
        "now",
        ".",
        "ok",
        ",",
        "fine",
        "!",
        "?",
    ]


def test_vocabulary_is_of_training_messages_with_ties_in_alphabetical_order(folder):
    rows = [f'1,0,"b a b c message{i}"' for i in range(10)] + ["2,1,c c c lonely"]
    write_messages(folder, rows)
    got = data.load("sent140", folder)
    assert (got.tokens, got.x_train.dtype, got.x_train.shape, got.x_test.shape) == (True, np.int16, (10, 25), (1, 25))
    assert (got.test_client_ids.tolist(), sorted(got.client_ids.tolist())) == ([1], [1] * 9 + [2])
    # b 18 times, c 12, a 9 in training; the test message's own word was never seen
    assert got.x_test[0, :6].tolist() == [2, 4, 2, 3, 1, 0]
    lonely = got.x_train[got.client_ids == 2][0]
    assert lonely[:5].tolist() == [3, 3, 3, 5, 0]  # "lonely" comes before all "message..."
    assert of_words(most_frequent([["b", "a", "c"], ["c"]], 9)).known == {"c": 2, "a": 3, "b": 4}


def test_long_messages_are_cut_and_empty_ones_are_unknown():
    table = cut_words([["a"] * 40, []], of_words(["a"]), 25)
    assert table[0].tolist() == [2] * 25
    assert table[1].tolist() == [1] + [0] * 24


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,0"], "line 2 must be user,positive,text, got 2 fields"),
        (["x,0,a"], "line 2, user must be a number"),
        (["1,0,a", "1,4,a"], "line 3, positive must be 0 or 1, got '4'"),
        ([], "at least one"),
        (["1,0,a", "2,0,b"], "one message of every user"),
        (['1,0,"a'], "damaged"),
    ],
)
def test_damaged_messages_are_refused_with_file_line_and_field(folder, rows, words):
    write_messages(folder, rows)
    message = refusal(data.load, "sent140", folder)
    assert words in message
    assert "sent140_subset.csv" in message


def test_wrong_header_and_encoding_of_messages_are_refused(folder):
    write_messages(folder, ["1,0,a"], header="polarity,user,text")
    assert "line 1 must be user,positive,text" in refusal(data.load, "sent140", folder)
    (folder / "sent140" / "sent140_subset.csv").write_bytes(b"user,positive,text\n1,0,\xff\n")
    assert "UTF-8" in refusal(data.load, "sent140", folder)


def test_real_messages_fill_the_vocabulary(real):
    got = data.load("sent140", real("sent140", "sent140_subset.csv"))
    assert len(got.y_train) + len(got.y_test) == 29_871
    assert (got.x_train.min(), got.x_train.max()) == (0, 2999)
    assert len(np.union1d(got.client_ids, got.test_client_ids)) == len(np.unique(got.client_ids)) == 27_113
    assert (got.x_train[:, 0] > 0).all()  # no message is empty


# Synthetic


def test_synthetic_sizes_shapes_and_test_parts():
    got = data.load("synthetic:1,1", seed=3)
    train, test = np.bincount(got.client_ids), np.bincount(got.test_client_ids)
    assert (len(train), got.x_train.shape[1:], got.x_train.dtype, got.classes) == (100, (60,), np.float32, 10)
    assert (train + test).min() >= 50
    np.testing.assert_array_equal(train, np.floor(0.9 * (train + test) + 1e-9))
    # LogNormal(4, 2) has median e^4 = 54.6: the median of 100 draws lies within a factor e^(4.89 * 1.2533 * 2 / 10)
    assert abs(np.log(np.median(train + test) - 50) - 4) < 4.89 * 1.2533 * 0.2


@pytest.mark.parametrize("setting", ["1,1", "0,0", "5,0.5,var", "iid", "iid,7"])
def test_seed_alone_decides_what_is_drawn(setting):
    first, again, other = (data.load(f"synthetic:{setting}", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert first.x_train.shape != other.x_train.shape or (first.x_train != other.x_train).any()


def test_variances_are_squared_deviations():
    for deviations, variances in (("1,1", "1,1,var"), ("0,0", "0,0,var"), ("3,0.5", "9,0.25,var")):
        one, other = data.load(f"synthetic:{deviations},30"), data.load(f"synthetic:{variances},30")
        np.testing.assert_allclose(one.x_train, other.x_train, rtol=1e-6)
        np.testing.assert_array_equal(one.y_train, other.y_train)


def centres(dataset):
    """Mean of all features of each client."""
    return np.array([dataset.x_train[rows].mean() for rows in data.natural(dataset.client_ids)])


def test_v_is_the_deviation_of_client_centres():
    num_clients = 400
    measured = centres(data.load(f"synthetic:0,5,{num_clients}")).std()
    expected = np.sqrt(5**2 + 1 / 60)  # B_k, and the mean of 60 entries of v_k around it
    z = (measured / expected - 1) * np.sqrt(2 * num_clients)
    assert abs(z) < 4.89
    assert abs((measured / np.sqrt(5 + 1 / 60) - 1) * np.sqrt(2 * num_clients)) > 4.89  # were it the variance


def test_iid_clients_share_centre_model_and_decaying_variances():
    got = data.load("synthetic:iid", seed=1)
    records = len(got.x_train)
    variances = got.x_train.var(0)
    z = (variances * np.arange(1, 61) ** 1.2 - 1) / np.sqrt(2 / records)
    assert np.abs(z).max() < 5.6  # 60 features at once
    assert transfer(got) > 0.6  # one half's model serves the other
    assert transfer(data.load("synthetic:1,0", seed=1)) < 0.3


def transfer(dataset):
    """Accuracy on the last 50 clients of a linear model fitted on the first 50."""
    x = np.column_stack([dataset.x_train, np.ones(len(dataset.x_train))])
    first = dataset.client_ids < 50
    weights = np.linalg.lstsq(x[first].T @ x[first], x[first].T @ np.eye(10)[dataset.y_train[first]], rcond=None)[0]
    return ((x[~first] @ weights).argmax(1) == dataset.y_train[~first]).mean()


@pytest.mark.parametrize(
    "setting", ["1", "1,x", "1,1,1,1", "-1,1", "nan,1", "inf,0", "1,1,sd", "iid,0", "iid,x", ",", "1,1,var,0"]
)
def test_wrong_synthetic_setting_is_refused(setting):
    assert "synthetic" in refusal(data.load, f"synthetic:{setting}")


# TFDS


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


class Image_(types.SimpleNamespace):
    """Stands in for a feature; its class is named as TFDS names it."""


Image_.__name__ = "Image"


class ClassLabel(types.SimpleNamespace):
    """Likewise."""


def prepare(folder, monkeypatch, images, labels, features=None, splits=("train", "test"), version="1.0.0"):
    """A folder that looks prepared, and a builder that hands out these images."""
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
    (folder / "tfds" / "toy" / version).mkdir(parents=True)
    (folder / "tfds" / "toy" / version / "dataset_info.json").write_text("{}")
    channels = images[0].shape[2] if images[0].ndim == 3 else 1
    features = features or {
        "image": Image_(shape=(None, None, channels), np_dtype=np.uint8),
        "label": ClassLabel(num_classes=3),
    }
    records = [{"image": png(image), "label": label} for image, label in zip(images, labels)]

    class Source(list):
        def __getitems__(self, places):
            return [self[place] for place in places]

    builder = types.SimpleNamespace(
        info=types.SimpleNamespace(features=features, splits=dict.fromkeys(splits)),
        as_data_source=lambda split, decoders: Source(records),
    )
    monkeypatch.setattr(tensorflow_datasets, "builder_from_directory", lambda path: builder)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 4)])
def test_tfds_images_are_decoded_exactly(folder, monkeypatch, shape):
    images = list(np.random.default_rng(0).integers(0, 256, (7, *shape), np.uint8))
    monkeypatch.setattr(tfds, "BLOCK", 3)
    prepare(folder, monkeypatch, images, [0, 1, 2, 0, 1, 2, 0])
    got = data.load("tfds:toy", folder)
    np.testing.assert_array_equal(got.x_train, np.stack(images))
    assert (got.y_train.tolist(), got.classes, got.name, got.scale) == ([0, 1, 2, 0, 1, 2, 0], 3, "tfds:toy", 1 / 255)
    assert data.load("tfds:toy:1.0.0", folder).name == "tfds:toy:1.0.0"
    refusal(data.load, "tfds:toy:2.0.0", folder)


def test_newest_version_is_taken_by_number(folder):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        (folder / "tfds" / "toy" / version).mkdir(parents=True)
        (folder / "tfds" / "toy" / version / "dataset_info.json").write_text("{}")
    assert tfds._prepared("toy", [folder / "tfds"]).name == "1.10.0"


def test_unprepared_tfds_says_how_to_prepare_it(folder):
    message = refusal(data.load, "tfds:cifar10", folder)
    assert "where TensorFlow is installed run" in message
    assert f"tfds.builder('cifar10', data_dir='{folder / 'tfds'}', file_format='array_record')" in message
    for name in ("../mnist", "a/b/c", "a b", "a:1/../2"):
        assert "tfds:NAME" in refusal(data.load, f"tfds:{name}", folder)


GRAY, DEEP = np.zeros((2, 2), np.uint8), Image_(shape=(2, 2, 1), np_dtype=np.uint16)


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        ([GRAY, np.zeros((2, 3), np.uint8)], {}, "must be (2, 2), as the first, got (2, 3)"),
        ([GRAY] * 2, {"features": {"image": ClassLabel(num_classes=2)}}, "image (Image) and label (ClassLabel)"),
        ([GRAY] * 2, {"features": {"text": Image_(), "label": ClassLabel()}}, "got text (Image), label (ClassLabel)"),
        ([GRAY] * 2, {"features": {"image": DEEP, "label": ClassLabel()}}, "uint16"),
        ([GRAY] * 2, {"splits": ("train",)}, "splits train"),
    ],
)
def test_tfds_that_is_no_image_classification_is_refused(folder, monkeypatch, images, options, words):
    prepare(folder, monkeypatch, images, [0, 1], **options)
    message = refusal(data.load, "tfds:toy", folder)
    assert words in message
    assert "tfds:toy" in message


def test_damaged_tfds_folder_is_refused_by_name(folder):
    pytest.importorskip("tensorflow_datasets")
    (folder / "tfds" / "toy" / "1.0.0").mkdir(parents=True)
    (folder / "tfds" / "toy" / "1.0.0" / "dataset_info.json").write_text("{")
    assert str(folder / "tfds" / "toy" / "1.0.0") in refusal(data.load, "tfds:toy", folder)


def test_tfds_without_its_library_says_what_to_install(folder, monkeypatch):
    prepare(folder, monkeypatch, [GRAY], [0])
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_datasets", None)
    assert 'pip install "fedjax-dp[tfds]"' in refusal(data.load, "tfds:toy", folder)


@pytest.mark.slow
def test_prepared_mnist_equals_the_idx_files_as_a_multiset(real):
    where = real("tfds", "mnist", "3.0.1", "dataset_info.json")
    one, other = data.load("tfds:mnist", where), data.load("mnist", where)
    for side in ("train", "test"):
        rows = [
            np.sort(np.array([hash(x.tobytes() + bytes([y])) for x, y in zip(getattr(got, f"x_{side}"), labels)]))
            for got, labels in ((one, getattr(one, f"y_{side}")), (other, getattr(other, f"y_{side}")))
        ]
        np.testing.assert_array_equal(*rows)


def test_every_refusal_of_a_loader_is_a_value_error():
    assert issubclass(errors.ConfigurationError, ValueError)
