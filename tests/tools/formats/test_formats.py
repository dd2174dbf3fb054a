"""Client data in formats of other systems: what the given files hold is what is read."""

import json
import lzma
import os
import pathlib

import numpy as np
import pyarrow as pa
import pytest
from client_files import (
    SNIPPETS,
    WINDOW,
    database,
    everything,
    example,
    hdf5,
    leaf_file,
    posts,
    saved,
    snippet_file,
    windows,
)
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp.accounting import Unit
from fedjax_dp.data import UnitBound, Vocabulary, federate, load, natural_parts, open_store
from fedjax_dp.data.owners import file_parts
from fedjax_dp.data.sequences import LEAF_CHARACTERS
from fedjax_dp.tools import cli

PIXELS = np.linspace(0, 1, 784, dtype=np.float32)


@pytest.fixture
def given():
    """The folder of given files, or a skip that says where it was looked for."""
    folder = pathlib.Path(os.environ.get("FEDJAX_DP_DATA", "")) / "formats"
    if not (folder / "expected.json").is_file():
        pytest.skip("files of other systems are not at hand: FEDJAX_DP_DATA has no formats/expected.json")
    return folder, json.loads((folder / "expected.json").read_text())


def parts_of(found):
    yield "train", found.x_train, found.y_train, found.client_ids
    yield "test", found.x_test, found.y_test, found.test_client_ids


def clients_and_sizes(ids):
    names, sizes = np.unique(ids, return_counts=True)
    return names.tolist(), sizes.tolist()


@pytest.mark.parametrize("name", ["leaf/femnist", "tff/fed_emnist_train.h5"])
def test_given_drawings(given, name):
    folder, expected = given
    told = expected[name].get("train", expected[name])
    found = load(f"{name.split('/')[0]}:{folder / name}")
    x, y, ids = everything(found)
    assert clients_and_sizes(ids) == (told["clients"], told["sizes"])
    sums = told.get("sum_of_x", told.get("sum_of_pixels"))
    assert sorted(x.sum(tuple(range(1, x.ndim)))) == pytest.approx(sorted(sums), abs=0.01)
    assert sorted(y) == sorted(told.get("y", told.get("label")))
    assert found.classes == 62
    assert x.dtype == np.float32
    assert list(x.shape[1:]) == told.get("record_shape", told.get("pixels_shape"))


def letters(ids):
    return "".join(LEAF_CHARACTERS[one] for one in ids)


def test_given_plays_of_leaf(given):
    folder, expected = given
    found = load(f"leaf:{folder / 'leaf/shakespeare'}")
    for split, x, y, ids in parts_of(found):
        told = expected["leaf/shakespeare"][split]
        assert clients_and_sizes(ids) == (told["clients"], told["sizes"])
        order = np.argsort(ids, kind="stable")
        assert letters(x[order[0]]) == told["first_x_of_first_client"]
        assert [letters(row[-1:]) for row in y[order]] == told["y"]
        assert (x[:, 1:] == y[:, :-1]).all()


def test_given_messages_of_leaf(given):
    folder, expected = given
    told = expected["leaf/sent140"]["train"]
    found = load(f"leaf:{folder / 'leaf/sent140'}")
    _, y, ids = everything(found)
    assert clients_and_sizes(ids) == (told["clients"], told["sizes"])
    assert sorted(y) == sorted(told["y"])
    assert found.learnt


def test_given_comments_of_leaf(given, tmp_path):
    folder, expected = given
    told = expected["leaf/reddit"]["train"]
    (tmp_path / "words.txt").write_text("a\nb\nc\n")
    found = load(f"leaf:{folder / 'leaf/reddit'}", vocabulary=str(tmp_path / "words.txt"))
    x, y, ids = everything(found)
    assert clients_and_sizes(ids) == (told["clients"], told["sequences"])
    ids_of = {"<PAD>": 0, "a": 1, "b": 2, "c": 3, "<BOS>": 5, "<EOS>": 6}
    first = [ids_of[token] for token in told["first_inputs"]]
    row = [list(one) for one in x].index(first)
    assert y[row].tolist() == [ids_of[token] for token in told["first_targets"]]
    assert [int((y[ids == name] != 0).sum()) for name in told["clients"]] == told["target_tokens_that_are_no_padding"]


@pytest.mark.parametrize("name", ["tff/shakespeare_train.h5", "tff/stackoverflow_train.h5"])
def test_given_text_in_hdf5(given, name):
    folder, expected = given
    x, y, ids = everything(load(f"tff:{folder / name}", length=200 if "shakespeare" in name else None))
    assert clients_and_sizes(ids) == (expected[name]["clients"], expected[name]["sizes"])
    texts = expected[name].get("snippets", expected[name].get("tokens"))
    sizes = [len(text) if "snippets" in expected[name] else len(text.split()) for text in texts]
    assert sorted((y != 0).sum(1)) == sorted(size + 1 for size in sizes)  # and EOS
    assert ((x != 0).sum(1) == (y != 0).sum(1) + 1).all()


@pytest.mark.parametrize("name", ["emnist_all", "shakespeare", "stackoverflow"])
def test_given_databases(given, name):
    folder, expected = given
    splits = expected[f"tff/{name}.sqlite.lzma"]["splits"]
    found = load(f"tff:{folder / 'tff' / name}.sqlite.lzma", **({"length": 200} if name == "shakespeare" else {}))
    train, test = splits.values()
    assert clients_and_sizes(found.client_ids) == (train["clients"], train["sizes"])
    assert len(found.x_test) == sum(test["sizes"])
    if "label" in train:
        assert found.y_train.tolist() == train["label"]
        assert found.y_test.tolist() == test["label"]
    if "snippets" in test:
        assert found.test_client_ids is None
        assert [(y != 0).sum() for y in found.y_test] == [len(text) + 1 for text in test["snippets"]]


def test_given_pixels_are_the_same_in_both_containers(given):
    folder, _ = given
    in_sqlite = load(f"tff:{folder / 'tff/emnist_all.sqlite.lzma'}")
    x, y, _ = everything(load(f"tff:{folder / 'tff/fed_emnist_train.h5'}"))
    for pixels, label in zip(in_sqlite.x_train, in_sqlite.y_train, strict=True):
        np.testing.assert_array_equal(x[y == label][0], pixels)


def test_given_folders_of_hugging_face(given):
    folder, expected = given
    told = expected["hf/digits"]
    found = load(f"hf:{folder / 'hf/digits'}", client_column="writer")
    for split, x, y, ids in parts_of(found):
        assert y.tolist() == told["splits"][split]["label"]
        assert ids.tolist() == told["splits"][split]["writer"]
        assert x.shape[1:] == (28, 28)
        assert set(x.sum((1, 2))) <= set(told["sum_of_bytes"])
    assert found.classes == len(told["names"])
    told = expected["hf/regression"]["splits"][""]
    found = load(f"hf:{folder / 'hf/regression'}", client_column="user", label_column="target")
    x, y, ids = everything(found)
    assert sorted(ids) == told["user"]
    assert sorted(map(list, x)) == sorted(told["features"])
    assert sorted(y.ravel()) == sorted(told["target"])
    assert found.task == "regression"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_given_tables(given, kind):
    folder, expected = given
    told = expected[f"table/clients.{kind}"]
    found = load(f"{kind}:{folder / 'table/clients'}.{kind}", label_column="target", client_column="client")
    for split, x, y, ids in parts_of(found):
        order = np.argsort(ids, kind="stable")
        assert clients_and_sizes(ids) == (told[split]["clients"], told[split]["sizes"])
        assert x[order].tolist() == told[split]["x"]
        assert y[order].tolist() == told[split]["y"]


def test_given_lists_of_rows(given):
    folder, expected = given
    told = expected["table/partition.json"]
    parts = file_parts(folder / "table/partition.json", 6).values()
    assert [part.tolist() for part in parts] == told["rows"]
    assert [len(part) for part in parts] == told["sizes"]


def play(tmp_path, first=0, count=12, split="train"):
    leaf_file(tmp_path / "play/data" / split / "b.json", {"BEN": windows(WINDOW[2:], 0, 3)})
    leaf_file(tmp_path / "play/data" / split / "a.json", {"ANNA": windows(WINDOW, first, count)})
    return tmp_path / "play"


def both(tmp_path):
    """The same play to train and to test."""
    play(tmp_path)
    return f"leaf:{play(tmp_path, split='test')}"


def test_windows_are_thinned_by_a_stride(tmp_path):
    found = load(both(tmp_path), stride=5)
    assert [letters(row) for row in found.x_train[:3]] == [WINDOW[at : at + 80] for at in (0, 5, 10)]
    assert clients_and_sizes(found.client_ids) == (["ANNA", "BEN"], [3, 1])
    assert found.vocabulary.pad == -1
    assert found.classes == 80
    assert "stride 5: 4 of 15 windows are kept" in found.notes


def test_windows_that_are_held_out_share_no_character_with_those_that_train(tmp_path):
    text = WINDOW * 12
    leaf_file(tmp_path / "long/train/a.json", {"ANNA": windows(text, 0, 1000)})
    found = load(f"leaf:{tmp_path / 'long'}")
    assert (len(found.x_train), len(found.x_test)) == (820, 100)
    assert letters(found.x_test[0]) == text[900:980]
    assert "windows of some client" in refusal(load, f"leaf:{play(tmp_path)}")


def test_an_unknown_character_is_refused_by_leaf_and_has_an_id_elsewhere(tmp_path):
    for split in ("train", "test"):
        leaf_file(tmp_path / "odd" / split / "a.json", {"a": (["é" * 4], ["b"])})
    assert "character must be one of LEAF's 80, got 'é'" in refusal(load, f"leaf:{tmp_path / 'odd'}")
    found = load(f"leaf:{tmp_path / 'odd'}", convention="fedjax")
    assert found.x_train.tolist() == [[89] * 4]


def test_users_are_spread_over_files_in_any_order(tmp_path):
    for number, user in enumerate("cab"):
        leaf_file(tmp_path / f"data/train/{number}.json", {user: ([[0.5, number], [1, 2]], [0, 1])})
    found = load(f"leaf:{tmp_path}")
    _, clients, _ = natural_parts(found)
    assert np.unique(found.client_ids).tolist() == ["a", "b", "c"]
    assert found.x_train[clients[0]].tolist() in ([[0.5, 1.0]], [[1.0, 2.0]])
    assert found.classes == 2


def of_leaf(folder, train, test):
    for split, names in (("train", train), ("test", test)):
        leaf_file(folder / f"data/{split}/a.json", {name: ([[0.5], [1.5]], [0, 1]) for name in names})
    return f"leaf:{folder}"


def of_hdf5(folder, train, test):
    for split, names in (("train", train), ("test", test)):
        hdf5(folder / f"a_{split}.h5", {name: {"tokens": ["it depends"]} for name in names})
    return f"tff:{folder / 'a_train.h5'}"


def of_sqlite(folder, train, test):
    rows = [(split, name) for split, names in (("train", train), ("test", test)) for name in names]
    return f"tff:{database(folder / 'a.sqlite', [(*row, example(tokens=[b'it depends'])) for row in rows])}"


@pytest.mark.parametrize("written", [of_leaf, of_hdf5, of_sqlite])
def test_a_client_is_one_however_each_split_spells_its_name(tmp_path, written):
    """Else its test records would be nobody's, so that a run may stop by them for free."""
    found = load(written(tmp_path, ["u0", "u1"], ["u0 ", "u1\u200b"]))
    assert {*found.client_ids} == {*found.test_client_ids} == {"u0", "u1"}
    (tmp_path / "b").mkdir()
    told = refusal(load, written(tmp_path / "b", ["u0", "u1", "u1 "], ["u0"]))
    assert "one spelling" in told or "each user once" in told


def test_images_have_the_shape_that_is_asked_for(tmp_path):
    path = leaf_file(tmp_path / "a.json", {"a": ([[1, 2, 3, 4], [0.5, 0, 0, 0]], [0, 1])})
    assert load(f"leaf:{path}", record_shape="2,2").x_train.shape == (1, 2, 2)
    for wrong in ("3,1", "0", "2,-2", "a", "", "2,,2", "1" * 30):
        assert "record_shape" in refusal(load, f"leaf:{path}", record_shape=wrong)


def test_messages_leave_the_name_of_the_user_out(tmp_path):
    for split in ("train", "test"):
        record = ["1", "Mon", "NO_QUERY", "the_name", "good morning", "training"]
        leaf_file(tmp_path / split / "a.json", {"the_name": ([record, record], [1, 0])})
    (tmp_path / "words").write_text("morning\ngood\n")
    found = load(f"leaf:{tmp_path}", vocabulary=str(tmp_path / "words"), length=3, oov_buckets=2)
    assert found.x_train.tolist() == [[4, 3, 0]] * 2  # 0 pads, 1 and 2 are unknown
    assert found.vocabulary == Vocabulary(5, 0, (1, 2))
    assert (found.task, found.classes, found.tokens) == ("classes", 2, True)


def drawings(split, *clients):
    return [(split, name, example(label=[number], pixels=PIXELS.tolist())) for number, name in enumerate(clients)]


@pytest.mark.parametrize("packed", [None, lzma.FORMAT_ALONE, lzma.FORMAT_XZ])
def test_a_database_is_known_by_its_beginning_however_it_is_named(tmp_path, packed):
    path = database(tmp_path / "file.bin", drawings("train", "b", "a") + drawings("test", "a"), packed=packed)
    found = load(f"tff:{path}")
    assert found.client_ids.tolist() == ["b", "a"]
    assert found.test_client_ids.tolist() == ["a"]
    np.testing.assert_array_equal(found.x_train[0], PIXELS.reshape(28, 28))


def test_the_splits_of_a_database_are_chosen_by_name(tmp_path):
    rows = drawings("all_train", "a", "b") + drawings("all_test", "b") + drawings("digits_only_train", "c")
    path = database(tmp_path / "e.sqlite", rows + drawings("digits_only_test", "c") + drawings("all_extra", "x"))
    found = load(f"tff:{path}")
    assert found.client_ids.tolist() == ["a", "b"]
    assert "splits that are not used: all_extra, digits_only_test, digits_only_train" in found.notes
    assert load(f"tff:{path}", subset="digits_only").client_ids.tolist() == ["c"]
    assert "digits_train among them" in refusal(load, f"tff:{path}", subset="digits")


def test_a_file_of_test_records_beside_one_in_hdf5_is_read(tmp_path):
    records = {"label": np.arange(2), "pixels": np.stack([PIXELS.reshape(28, 28)] * 2)}
    path = hdf5(tmp_path / "fed_emnist_train.h5", {"a": records, "b": records})
    hdf5(tmp_path / "fed_emnist_test.h5", {"a": records})
    found = load(f"tff:{path}")
    assert (len(found.x_train), len(found.x_test)) == (4, 2)
    assert "test records are those of fed_emnist_test.h5" in found.notes
    assert found.classes == 10
    assert "subset must be left out for HDF5" in refusal(load, f"tff:{path}", subset="all")
    records["label"] = records["label"] + 2**32
    wide = hdf5(tmp_path / "wide.h5", {"a": records, "b": records})
    assert "429496729" in refusal(load, f"tff:{wide}")


def table(**columns):
    return pa.table(columns)


VALUE = {"_type": "Value", "dtype": "float32"}

LABEL = {"_type": "ClassLabel", "names": ["no", "yes", "perhaps"]}


def test_a_saved_folder_has_several_files_and_columns_side_by_side(tmp_path):
    rows = table(a=[0.0, 1, 2, 3], b=[[1.0, 2.0]] * 4, y=[0, 1, 2, 0], who=["x", "x", "y", "y"])
    features = {"a": VALUE, "b": {"_type": "List", "feature": VALUE}, "y": LABEL, "who": VALUE}
    found = load(f"hf:{saved(tmp_path / 'd', rows, features)}", client_column="who")
    x, y, _ = everything(found)
    assert sorted(x.tolist()) == [[0, 1, 2], [1, 1, 2], [2, 1, 2], [3, 1, 2]]
    assert (found.classes, sorted(y)) == (3, [0, 0, 1, 2])
    found = load(f"hf:{tmp_path / 'd'}", feature_columns="b")
    assert found.client_ids is None
    assert found.x_train.shape[1:] == (2,)


def test_lists_of_classes_are_many_labels(tmp_path):
    rows = table(a=[0.0, 1, 2, 3], y=[[0, 2], [], [1], [2]])
    features = {"a": VALUE, "y": {"_type": "Sequence", "feature": LABEL}}
    found = load(f"hf:{saved(tmp_path / 'd', rows, features)}", label_column="y")
    _, y = np.concatenate([found.x_train, found.x_test]), np.concatenate([found.y_train, found.y_test])
    assert found.task == "multi_label"
    assert sorted(y.tolist()) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_text_is_classified_or_goes_on(tmp_path):
    rows = table(text=["Good day", "bad day", "day", "good"], y=[1, 0, 1, 1])
    path = saved(tmp_path / "d", rows, {"text": {"_type": "Value", "dtype": "string"}, "y": LABEL})
    found = load(f"hf:{path}", length=3)
    assert (found.task, found.tokens, found.classes, found.x_train.shape[1:]) == ("classes", True, 3, (3,))
    path = saved(tmp_path / "e", rows.drop_columns(["y"]), {"text": {"_type": "Value", "dtype": "string"}})
    found = load(f"hf:{path}", length=4)
    assert (found.task, found.y_train.shape[1:]) == ("sequence", (4,))


def test_names_of_clients_in_csv_stay_text_unless_all_are_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who,f,label\n007,1,0\n7,2,1\n007,3,0\n7,4,1\n")
    found = load(f"csv:{path}", client_column="who")
    assert np.unique(found.client_ids).tolist() == ["007", "7"]
    path.write_text("who,f,label\n10,1,0\n9,2,1\n10,3,0\n9,4,1\n")
    assert np.unique(load(f"csv:{path}", client_column="who").client_ids).tolist() == [9, 10]


def test_columns_of_a_table_are_chosen_by_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,word,part,label\n1,2,x,train,0\n3,4,,test,1\n5,6,z,train,1\n7,8,z,test,0\n")
    found = load(f"csv:{path}", feature_columns="b,a", split_column="part", record_shape="2,1")
    assert found.x_train.tolist() == [[[2], [1]], [[6], [5]]]
    assert found.y_test.tolist() == [1, 0]
    for wrong in ({"feature_columns": "a,a"}, {"feature_columns": "label"}, {"split_column": "parts"}):
        refusal(load, f"csv:{path}", **{"split_column": "part", "feature_columns": "a", **wrong})


def test_a_task_says_what_the_targets_of_a_table_are(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("f,a,b,word,split\n1,0,0.5,x,train\n2,1,1.5,y,train\n3,1,-2,x,test\n")
    asked = {"feature_columns": "f"}
    found = load(f"csv:{path}", label_column="b,a", task="regression", **asked)
    assert (found.task, found.classes, found.y_train.tolist()) == ("regression", 2, [[0.5, 0], [1.5, 1]])
    found = load(f"csv:{path}", label_column="word", task="binary", **asked)
    assert (found.task, found.classes, found.y_train.tolist()) == ("binary", 1, [0, 1])
    found = load(f"csv:{path}", label_column="a", task="multi_label", **asked)
    assert (found.task, found.classes, found.y_test.tolist()) == ("multi_label", 1, [[1]])
    for label, task, told in (
        ("b", "classes", "or task regression"),
        ("b", "multi_label", "whole numbers for task multi_label"),
        ("f,a", "multi_label", "f twice"),
        ("word", "regression", "must be numeric"),
        ("a", "sequence", "task must be one of classes, binary, regression, multi_label"),
        ("a,b", "classes", "column a,b must be one of"),
    ):
        assert told in refusal(load, f"csv:{path}", label_column=label, task=task, **asked)


def test_arrays_have_a_task(tmp_path):
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4.0)[:, None]
    found = fdp.dataset(x, y, x, y, task="regression")
    assert (found.task, found.classes, found.y_train.dtype) == ("regression", 1, np.float32)
    ids = np.array([[5, 1, 2], [5, 2, 0]])
    words = Vocabulary(6, bos=5)
    found = fdp.dataset(ids[:, :-1], ids[:, 1:], ids[:, :-1], ids[:, 1:], task="sequence", vocabulary=words)
    assert (found.tokens, found.classes, found.vocabulary) == (True, 6, words)
    own = {"a": y, "b": x}
    assert fdp.dataset(x, own, x, own, task="own", classes=3).task == "own"
    assert "0 or 1" in refusal(lambda: fdp.dataset(x, y[:, 0].astype(int), x, y[:, 0].astype(int), task="binary"))


def test_a_task_says_what_the_targets_of_other_files_are(tmp_path):
    path = leaf_file(tmp_path / "a.json", {"a": ([[1, 2], [3, 4], [5, 6]], [0, 1, 1])})
    for task, shape in (("regression", (1,)), ("binary", ()), ("classes", ())):
        found = load(f"leaf:{path}", task=task)
        assert (found.task, found.y_train.shape[1:]) == (task, shape)
    assert "lists of 0 and 1 for task multi_label" in refusal(load, f"leaf:{path}", task="multi_label")
    path = leaf_file(tmp_path / "b.json", {"a": ([[1, 2], [3, 4], [5, 6]], [[0, 1], [1, 1], [0, 0]])})
    assert load(f"leaf:{path}").task == "regression"
    assert load(f"leaf:{path}", task="multi_label").classes == 2
    found = load(both(tmp_path), task="classes")
    assert (found.task, found.classes) == ("classes", 80)
    assert letters(found.y_train[:3]) == WINDOW[80:83]
    rows = table(a=[0.0, 1, 2, 3], y=[0, 1, 1, 0])
    path = saved(tmp_path / "d", rows, {"a": VALUE, "y": VALUE})
    assert load(f"hf:{path}", label_column="y").task == "classes"
    for task in ("binary", "regression"):
        assert load(f"hf:{path}", label_column="y", task=task).task == task
    assert "task must be another" in refusal(load, f"hf:{path}", label_column="y", task="sequence")


def promise_of(data, entry=fdp.dpnfl):
    base = {"cohort_size": 1, "batch_size": 1, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.guarantee(entry(**base, noise_multiplier=2.0), data, rounds=1, delta=1e-3)


def warnings_of(found, entry=fdp.dpnfl):
    return promise_of(federate(found, fdp.data.natural(found.client_ids)), entry).warnings


@pytest.mark.parametrize(("stride", "windows_of_a_character"), [(None, 81), (5, 17), (80, 2)])
def test_a_guarantee_of_overlapping_windows_says_in_how_many_a_character_stands(
    tmp_path, stride, windows_of_a_character
):
    found = load(both(tmp_path), stride=stride)
    assert any(f"stands in up to {windows_of_a_character} windows" in note for note in found.notes) == (stride != 80)
    told = warnings_of(found)
    line = "epsilon is of one record: a record is a window of 81 characters; one character stands in up to "
    assert f"{line}{windows_of_a_character} windows" in told
    assert not any("window" in text for text in warnings_of(found, fdp.dp_fedavg))


def test_a_guarantee_of_windows_that_share_nothing_says_nothing_of_them(tmp_path):
    path = f"tff:{hdf5(tmp_path / 'play.h5', {name: {'snippets': lines} for name, lines in SNIPPETS.items()})}"
    for convention, shared in (("tff", False), ("fedjax", True)):
        told = warnings_of(load(path, convention=convention))
        assert any("one character stands in up to 2 windows" in text for text in told) is shared


LINES = {"ANNA": [b"No, my lord.", b"Hark! " * 20, b""], "BEN": [b"Who's there? " * 9, b"Nay."]}


def lines_file(tmp_path):
    hdf5(tmp_path / "lines_test.h5", {"ANNA": {"snippets": [b"A piece of him."]}})
    return f"tff:{hdf5(tmp_path / 'lines_train.h5', {name: {'snippets': texts} for name, texts in LINES.items()})}"


def test_a_token_stands_in_no_more_windows_than_its_bound_says(tmp_path):
    """Counted over windows of numbered ids, of snippets and of all of a client's snippets."""
    path = lines_file(tmp_path)
    for convention, length, stride in (("tff", 5, 2), ("fedjax", 5, 2), ("fedjax", 7, 7), ("tff", 4, 5)):
        found = load(path, convention=convention, length=length, stride=stride)
        texts, counts = np.unique(found.unit_ids, return_counts=True)
        assert len(texts) == {"tff": 5, "fedjax": 2}[convention]
        for count in counts:
            over = np.zeros((count - 1) * stride + length + 1, int)
            for at in range(count):
                over[at * stride : at * stride + length + 1] += 1
            assert over.max() <= found.bounds[0].records == -(-(length + 1) // stride)


def test_of_each_text_the_first_windows_are_kept(tmp_path):
    path, how = lines_file(tmp_path), {"convention": "tff", "length": 5, "stride": 3}
    whole, found = load(path, **how), load(path, **how, windows_per_text=2)
    assert found.bounds == (UnitBound(Unit.TOKEN, 2), UnitBound(Unit.TEXT, 2))
    data = federate(found, fdp.data.natural(found.client_ids))
    kept = np.concatenate([np.flatnonzero(whole.unit_ids == text)[:2] for text in np.unique(whole.unit_ids)])
    assert sorted(data.row_numbers.tolist()) == sorted(kept.tolist())
    stated = promise_of(data)
    assert stated.unit is Unit.TEXT
    assert any("a text has at most 2 records" in line for line in stated.assumptions)


def test_windows_of_one_text_go_to_one_side(tmp_path):
    path = both(tmp_path)
    assert "left out where test windows are of the training clients' texts" in refusal(load, path, windows_per_text=3)
    leaf_file(tmp_path / "apart/train/a.json", {"ANNA": windows(WINDOW, 0, 12)})
    leaf_file(tmp_path / "apart/test/b.json", {"BEN": windows(WINDOW[2:], 0, 3)})
    found = load(f"leaf:{tmp_path / 'apart'}", windows_per_text=3, stride=2)
    assert found.bounds == (UnitBound(Unit.TOKEN, 41), UnitBound(Unit.TEXT, 3))
    assert federate(found, fdp.data.natural(found.client_ids)).sizes.tolist() == [3]
    assert "windows_per_text must be an integer" in refusal(load, f"leaf:{tmp_path / 'apart'}", windows_per_text=0)


def test_windows_in_another_order_bound_no_token(tmp_path):
    """Nobody then knows which of them overlap."""
    x, y = windows(WINDOW, 0, 12)
    leaf_file(tmp_path / "mixed/train/a.json", {"ANNA": (x[::-1], y[::-1])})
    leaf_file(tmp_path / "mixed/test/b.json", {"BEN": windows(WINDOW[2:], 0, 3)})
    assert load(f"leaf:{tmp_path / 'mixed'}").bounds == ()


@pytest.mark.parametrize(
    ("name", "option", "told"),
    [
        ("digits", {"length": 3}, "length must be left out for digits, got 3; it is for csv:PATH, parquet:PATH, "),
        ("leaf", {"subset": "x"}, "subset must be left out for leaf, got 'x'; it is for tff:PATH"),
        ("leaf", {"length": 3}, "length must be left out for LEAF's Shakespeare"),
        ("leaf", {"vocabulary": "f"}, "vocabulary must be left out for LEAF's Shakespeare"),
        ("leaf", {"stride": 0}, "stride must be an integer from 1 to 80"),
        ("leaf", {"stride": 81}, "stride must be an integer from 1 to 80"),
        ("leaf", {"convention": "pfl"}, "convention must be one of tff, fedjax, leaf"),
        ("leaf", {"nonsense": 1}, "option must be one of"),
        ("leaf", {"stride": "1"}, "stride must be an integer"),
        ("tff", {"vocabulary_size": 0}, "vocabulary_size must be an integer from 1"),
        ("tff", {"oov_buckets": 0}, "oov_buckets must be an integer from 1"),
        ("tff", {"length": 0}, "length must be an integer from 1"),
        ("tff", {"windows_per_text": 3}, "windows_per_text must be left out for a data set of tokens"),
        ("tff", {"stride": 3}, "stride must be left out for a data set of tokens"),
        ("tff", {"record_shape": "2"}, "record_shape must be left out for a data set of tokens"),
    ],
)
def test_an_option_that_means_nothing_is_refused(tmp_path, name, option, told):
    asked = {"digits": lambda: name, "leaf": lambda: both(tmp_path), "tff": lambda: f"tff:{posts(tmp_path)}"}[name]()
    assert told in refusal(load, asked, **option)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty"),
        ("a\n\nb\n", "line 2 must be a word"),
        ("a\nb\na\n", "line 3 must be another word, got 'a', as in line 1"),
        ("a b\n", "a count behind it, got 'a b'"),
        ("a 1 2\n", "a count behind it"),
        (b"\xff\n", "UTF-8"),
    ],
)
def test_a_list_of_words_that_is_none_is_refused(tmp_path, content, told):
    (tmp_path / "words").write_bytes(content if isinstance(content, bytes) else content.encode())
    path = posts(tmp_path)
    assert told in refusal(load, f"tff:{path}", vocabulary=str(tmp_path / "words"))
    assert "existing file" in refusal(load, f"tff:{path}", vocabulary=str(tmp_path / "absent"))


def test_every_format_becomes_a_store(tmp_path, capsys):
    leaf_file(tmp_path / "numbers.json", {"a": ([[0.5, 1], [1, 2]], [0, 1]), "b": ([[0, 1], [1, 1]], [1, 0])})
    rows = table(a=[0.0, 1, 2, 3], y=[0.5, 1, 2, 3], who=[7, 7, 8, 8])
    saved(tmp_path / "hf", rows, dict.fromkeys(("a", "y", "who"), VALUE))
    asked = {
        "leaf:numbers.json": [],
        f"tff:{posts(tmp_path)}": ["--length", "5"],
        f"tff:{snippet_file(tmp_path)}": ["--convention", "fedjax"],
        "hf:hf": ["--label-column", "y", "--client-column", "who"],
    }
    for number, (name, options) in enumerate(asked.items()):
        assert cli.main(["data", "convert", name, *options, "--out", f"store{number}"]) == 0
        options = {options[at][2:].replace("-", "_"): options[at + 1] for at in range(0, len(options), 2)}
        options = {key: int(value) if value.isdecimal() else value for key, value in options.items()}
        dataset, clients, tests = natural_parts(load(name, **options))
        wanted, found = federate(dataset, clients, test_clients=tests), open_store(f"store{number}")
        np.testing.assert_array_equal(np.asarray(wanted.x)[wanted.row_numbers], found.x)
        np.testing.assert_array_equal(np.asarray(wanted.y)[wanted.row_numbers], found.y)
        for fact in ("task", "classes", "vocabulary", "tokens", "learnt", "scale"):
            assert getattr(found, fact) == getattr(wanted, fact), fact
    assert "clients are those of the files" in capsys.readouterr().err


def test_lists_of_rows_of_other_libraries_make_clients_with_their_names(tmp_path, capsys):
    (tmp_path / "lists.json").write_text('{"10": [1], "9": [2, 0]}')
    assert [part.tolist() for part in file_parts(tmp_path / "lists.json", 4).values()] == [[2, 0], [1]]  # 9 before 10
    (tmp_path / "lists.json").write_text('{"10": [1], "9": [2, 0], "b": [3]}')
    assert [part.tolist() for part in file_parts(tmp_path / "lists.json", 4).values()] == [[1], [2, 0], [3]]
    flags = ["--partition", "given", "--client-ids", "lists.json"]
    for words in (flags, [*flags, "--holdout", "0.5"]):
        assert cli.main(["data", "digits", *words]) == 0
        assert "10, 9, b" in capsys.readouterr().out
