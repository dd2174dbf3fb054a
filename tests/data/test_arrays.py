"""The door that own data passes: arrays, tables, files and lists of rows; what is no data set is one line."""

import pathlib
import warnings
import zipfile

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp.tools import cli

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 4
GOOD = {"x_train": X, "y_train": Y, "x_test": X[:8], "y_test": Y[:8]}
IDS = np.repeat([7, 3], 10)


def test_classes_without_a_record_are_told():
    """A label of 200 makes 201 classes: who states so many is told how many nobody has."""
    sparse = GOOD | {"y_train": Y * 50, "y_test": Y[:8] * 50}
    for made in (fdp.dataset(**sparse, classes=151), fdp.dataset(**GOOD)._replace(classes=151, y_train=Y * 50)):
        (note,) = fdp.federate(made, [np.arange(20)]).notes
        assert note.startswith(f"warning: 14{7 if made.y_test.max() > 3 else 4} of 151 classes have no record: ")
    assert fdp.federate(fdp.dataset(**GOOD), [np.arange(20)]).notes == ()
    many = {"y_train": np.eye(3, dtype=int)[Y % 2], "y_test": np.eye(3, dtype=int)[Y[:8] % 2]}
    (note,) = fdp.federate(fdp.dataset(**GOOD | many, task="multi_label"), [np.arange(20)]).notes
    assert note == "warning: 1 of 3 labels have no record: 2"


@pytest.mark.parametrize("kind", [str, object])
def test_words_are_classes_with_the_same_numbers_in_both_parts(kind):
    """Numbered in sorted order over both parts, so that a word which one of them lacks shifts no other."""
    words = np.array(["cat", "dog", "elk", "fox"], kind)
    rare = Y[:8] % 3 + 1  # no cat
    for tests in (Y[:8], rare):
        named = fdp.dataset(**GOOD | {"y_train": words[Y], "y_test": words[tests]})
        np.testing.assert_array_equal(named.y_train, Y)
        np.testing.assert_array_equal(named.y_test, tests)
        assert named.classes == 4
        assert "labels in sorted order are classes 0 to 3: cat, dog, elk, fox" in named.notes
    np.savez("words.npz", **GOOD | {"y_train": words.astype(str)[Y], "y_test": words.astype(str)[rare]})
    np.testing.assert_array_equal(fdp.load("npz:words.npz").y_test, rare)
    empty = GOOD | {"y_train": words[Y], "y_test": np.where(Y[:8] == 1, "", words[Y[:8]]).astype(kind)}
    assert "y_test must be a label of every record, got 2 empty of 8" in refusal(fdp.dataset, **empty)


@pytest.mark.parametrize("value", [1e40, -1e40, 3.4028236e38])
def test_what_float32_does_not_hold_is_no_feature_and_no_target(value, recwarn):
    """Models compute in float32: it would become infinite on the way to a device."""
    large = X.astype(np.float64)
    large[7, 1] = value
    for changed in ({"x_train": large}, {"x_test": large[:8]}, {"y_train": large, "y_test": large[:8], "task": "own"}):
        options = GOOD | changed | ({"classes": 2} if "task" in changed else {})
        with pytest.raises(fdp.ConfigurationError, match=r"which is infinite in float32, in 1 of .*: 7"):
            fdp.dataset(**options)
    assert "infinite in float32" in refusal(fdp.federate, fdp.dataset(**GOOD)._replace(x_train=large), [np.arange(20)])
    large[7, 1] = 3.4028234e38
    assert fdp.dataset(**GOOD | {"x_train": large}).x_train[7, 1] > 3e38
    assert not recwarn


def test_what_is_not_finite_is_counted_and_placed():
    holes = X.copy()
    holes[[3, 5, 6, 8, 9, 11], 1], holes[5, 0] = np.nan, np.inf
    told = refusal(fdp.dataset, **GOOD | {"x_train": holes})
    assert "NaN and infinity in 6 of 20 records, counted from 0: 3, 5, 6, 8, 9, ...;" in told


@pytest.mark.parametrize(
    "clients", [{"b": [0, 1, 2], "a": range(3, 20)}, [[0, 1, 2], list(range(3, 20))], (np.arange(3), np.arange(3, 20))]
)
def test_rows_of_any_partitioner_make_clients(clients):
    data = fdp.federate(fdp.dataset(**GOOD), clients)
    assert data.sizes.tolist() == [3, 17]
    assert data.row_numbers.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ("abc", "lists of training rows"),
        ([[0.5]], "a list of row numbers"),
        ([np.ones(20, bool)], "np.flatnonzero(mask)"),
        (IDS, "fedjax_dp.data.natural(ids)"),
        ([[0, 1], [1, 2]], "distinct training rows"),
        ([[0], []], "client 1's records must be at least 1"),
        ([[0, 99]], "distinct training rows"),
        ([[0, 0]], "distinct training rows"),
        ([[-1]], "distinct training rows"),
        ([], "client 0's records must be at least 1"),
    ],
)
def test_what_is_no_list_of_rows_is_one_line(clients, told):
    assert told in refusal(fdp.federate, fdp.dataset(**GOOD), clients)


def table():
    columns = {f"f{i}": X[:, i] for i in range(3)}
    return pd.DataFrame(columns | {"kind": np.array(list("abcd"))[Y], "who": np.repeat(["x", "y"], 10)})


def test_a_frame_has_its_label_and_clients_by_name():
    made = fdp.dataset(table(), label="kind", client="who", test=0.2)
    assert (made.classes, made.x_train.shape[1], len(made.y_train) + len(made.y_test)) == (4, 3, 20)
    assert set(made.client_ids) == set(made.test_client_ids) == {"x", "y"}
    for row, label in zip(made.x_train, made.y_train, strict=True):
        assert Y[int(row[0]) // 3] == label
    assert "labels in sorted order are classes 0 to 3: a, b, c, d" in made.notes


def test_a_column_that_is_not_there_is_refused_with_the_nearest_name():
    assert "did you mean kind?" in refusal(fdp.dataset, table(), label="knd")


def test_the_command_line_says_whose_clients_are_in_a_column(capsys):
    table().to_parquet("t.parquet")
    named = ["data", "parquet:t.parquet", "--label-column", "kind", "--client-column", "who"]
    assert cli.main([*named, "--json"]) == 0
    assert 'clients are those of "who" (partition natural)' in capsys.readouterr().err


# A column that a header names twice, and bytes in the other order.


@pytest.mark.parametrize("twice", ["kind", "who", "f0"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_file_that_names_a_column_twice_is_refused_as_a_table_is(twice, suffix):
    """pandas would read the second as another column: of labels it would be the best of features."""
    doubled = pd.concat([table(), table()[[twice]]], axis=1)
    path = pathlib.Path(f"t.{suffix}")
    if suffix == "parquet":
        arrow = pa.table([pa.array(doubled.iloc[:, at]) for at in range(doubled.shape[1])], names=list(doubled.columns))
        pyarrow.parquet.write_table(arrow, path)
    else:
        doubled.to_csv(path, index=False)
    words = "columns must be of different names, got " + twice
    named = f"{suffix.partition('.')[0]}:{path}"
    assert words in refusal(fdp.load, named, label_column="kind", client_column="who")
    assert "columns must be of different names" in refusal(fdp.dataset, doubled, label="kind", client="who")


def test_a_column_that_is_called_like_a_second_one_is_a_column():
    named = table().rename(columns={"f1": "f0.1"})
    words = {"label_column": "kind", "client_column": "who"}
    named.to_csv("t.csv", index=False)
    assert fdp.load("csv:t.csv", **words).x_train.shape[1] == 3
    pd.concat([named, table()[["f0"]]], axis=1).to_csv("t.csv", index=False)
    assert "got f0 twice" in refusal(fdp.load, "csv:t.csv", **words)


def test_an_npz_that_holds_a_name_twice_is_refused():
    np.savez("own.npz", **GOOD)
    with zipfile.ZipFile("own.npz") as archive:
        copy = archive.read("y_train.npy")
    with warnings.catch_warnings(), zipfile.ZipFile("own.npz", "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("y_train.npy", copy)
    assert "y_train twice" in refusal(fdp.load, "npz:own.npz")


ORDERS = [
    {"x_train": ">f4", "x_test": ">f4"},
    {"x_train": ">f8", "x_test": ">f8"},
    {"x_train": ">i2"},
    {"x_test": ">u4"},
    {"y_train": ">i4", "y_test": ">u2"},
    {"client_ids": ">i8"},
    {"client_ids": ">U3"},
]


@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("door", ["python", "npz", "federate"])
def test_arrays_of_either_order_of_bytes_are_the_same_data(orders, door):
    here = {**GOOD, "client_ids": IDS}
    native = {what: here[what].astype(np.dtype(kind).newbyteorder("=")) for what, kind in orders.items()}
    other = {what: here[what].astype(kind) for what, kind in orders.items()}
    assert not any(array.dtype.isnative for array in other.values())
    found = []
    for arrays in (here | native, here | other):
        if door == "npz":
            np.savez("own.npz", **arrays)
            made = fdp.data.load("npz:own.npz")
        elif door == "python":
            made = fdp.dataset(**arrays)
        else:
            made = fdp.dataset(**here)._replace(**arrays)
        found.append(jax.tree.leaves(fdp.federate(made, fdp.data.natural(made.client_ids))))
    for left, right in zip(*found, strict=True):
        assert np.asarray(right).dtype.isnative
        np.testing.assert_array_equal(left, right)


def test_a_vocabulary_that_is_none_is_refused_for_every_task():
    tokens = {**GOOD, "x_train": X.astype(int), "x_test": X[:8].astype(int)}
    for wrong in (["a", "b"], 50, "words.txt"):
        told = refusal(fdp.dataset, **tokens, vocabulary=wrong)
        assert told.startswith("vocabulary must be a Vocabulary, got ")
        assert "Vocabulary(size=" in told


def test_names_in_arrays_are_those_of_tables():
    x, y = np.arange(8.0).reshape(4, 2), np.array(["no", "no ", "yes", "yes"])
    for ids in (["a", "a ", "b", "b"], [b"a", b"a", b"b", b"b "], ["Jos\u00e9", "Jose\u0301", "b", "b"]):
        dataset = fdp.dataset(x, y, x, y, client_ids=ids, test_client_ids=ids)
        assert dataset.classes == 2
        data = fdp.federate(dataset, fdp.data.natural(dataset))
        assert {*data.names.listed} in ({"a", "b"}, {"Jos\u00e9", "b"})
        assert data.test_clients is not None


def test_tables_with_columns_in_another_order_are_no_arrays_alike():
    x, y = pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]}), [0, 1]
    assert "x_test[x_train.columns]" in refusal(fdp.dataset, x, y, x[["b", "a"]], y)
    assert fdp.dataset(x, y, x, y).x_test[0].tolist() == [1.0, 3.0]


def test_numbers_that_no_device_has_become_some_that_it_has():
    x = np.arange(8, dtype=np.longdouble).reshape(4, 2)
    assert fdp.dataset(x, [0, 1] * 2, x, [0, 1] * 2).x_train.dtype == np.float64
