"""The door of own data from every side: files say what Python says, and what a run needs of its data."""

import resource

import numpy as np
import pandas as pd
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import errors, models
from fedjax_dp.data import Dataset, federate, load, save_store
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.population import build_data, notes
from fedjax_dp.experiments.presets import population_of, resolve_population
from fedjax_dp.rounds.simulation import check

X, Y = np.linspace(-1, 1, 24).reshape(8, 3), np.arange(8) % 3
GOOD = {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4]}
ROWS = [[0, 1, 2], [3, 4]]


WRONG = [
    ({"y_train": Y - 1}, "integer labels from 0, got int64 from -1"),
    ({"y_train": Y.astype(float)}, "got float64; .astype(int)"),
    ({"y_train": Y == 0}, "got bool; .astype(int)"),
    ({"y_train": Y + 0.5}, "with fractions"),
    ({"y_train": np.where(Y > 0, Y, np.nan)}, "records, counted from 0: 0, "),
    ({"y_train": Y.astype(str)}, "np.unique"),
    ({"y_train": Y[:3]}, "(records, ...) and (records,)"),
    ({"y_train": Y + 1, "y_test": Y[:4] + 1}, "counted from 0, got 1 to 3; subtract 1"),
    ({"y_train": np.where(Y == 2, 200, Y)}, "got 4 labels up to 200 without 3"),
    ({"y_train": np.where(Y == 2, 10**9, Y)}, "got 4 labels up to 1000000000 without 3"),
    ({"classes": 2}, "labels 0 to 1 of 2 classes, got label 2"),
    ({"classes": 10**9}, "classes must be an integer from 1 to 1,000,000"),
    ({"classes": 0}, "classes must be an integer"),
    ({"classes": 3.0}, "classes must be an integer"),
    ({"x_train": np.where(X > 0, np.nan, X)}, "x_train must be finite"),
    ({"x_test": np.full((4, 3), np.inf)}, "x_test must be finite"),
    ({"x_train": X.astype(str)}, "real numbers"),
    ({"x_train": np.arange(24).reshape(8, 3) << 30}, "32 bits, got 24696061952 in int64; .astype(np.float32)"),
    ({"x_train": X[:, :2]}, "x_test must be shaped like (8, 2)"),
    ({"x_train": X[:, :0], "x_test": X[:4, :0]}, "at least one feature"),
    ({"x_train": X.astype(np.uint8)}, "both uint8 or neither"),
    ({"x_test": X[:0], "y_test": Y[:0]}, "x_test must be at least one record, got empty"),
    ({"client_ids": np.arange(7)}, "(8,), one per record, got (7,)"),
    ({"client_ids": np.full(8, np.nan)}, "an id for every record, got NaN"),
    ({"client_ids": np.zeros(8)}, "client_ids must be integers or text"),
    ({"client_ids": Y, "test_client_ids": Y}, "test_client_ids must be (4,)"),
    ({"client_ids": Y, "test_client_ids": Y[:4].astype(str)}, "test_client_ids must be integers, as client_ids are"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_arrays_are_refused_in_one_line(changes, words, tmp_path):
    """From Python, and as a file: the same line, after the file's name."""
    arrays = GOOD | changes
    told = refusal(fdp.dataset, **arrays)
    assert words in told
    np.savez(tmp_path / "a.npz", **arrays)
    read = refusal(load, f"npz:{tmp_path / 'a.npz'}")
    assert read == f"a.npz: {told}" or "classes" in changes


@pytest.mark.parametrize(("changes", "words"), [row for row in WRONG if "got 4 labels" not in row[1]], ids=str)
def test_a_hand_made_data_set_passes_the_same_door(changes, words):
    arrays = GOOD | {"classes": 3} | changes
    refusal(federate, Dataset("hand", **arrays), ROWS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": None}, "y_train must be given"),
        ({"x_train": [[1, 2], [3]]}, "lists of different lengths"),
        ({"label": "y"}, "left out for arrays"),
        ({"test": 0.5}, "left out for arrays"),
        ({"test_client_ids": Y[:4]}, "client_ids must be given where test_client_ids are"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_one_another_are_refused(changes, words):
    assert words in refusal(fdp.dataset, **GOOD | changes)


def test_good_arrays_pass_unchanged_and_lists_and_words_do_too():
    made = fdp.dataset(X.tolist(), Y.tolist(), X[:4], Y[:4], classes=5, client_ids=list("aabbccdd"))
    np.testing.assert_array_equal(made.x_train, X)
    assert (made.classes, made.y_train.dtype, made.client_ids.tolist()) == (5, np.int32, list("aabbccdd"))
    large = fdp.dataset(X.astype(np.float16) + 60_000, Y, X[:4].astype(np.float16), Y[:4])
    with np.errstate(over="ignore"):
        assert np.isinf(large.x_train.sum())  # a sum may overflow where every number is finite


# Tables


def table(**changes):
    """Five clients with four records each."""
    columns = {"age": np.arange(20), "pay": np.arange(20) / 4, "who": list("abcde") * 4, "label": ["no", "yes"] * 10}
    return pd.DataFrame({name: column for name, column in (columns | changes).items() if column is not None})


def test_a_frame_is_split_by_a_column_or_by_another_frame():
    split = ["train"] * 15 + ["test"] * 5
    said = fdp.dataset(table(split=split), client="who", label="label")
    apart = fdp.dataset(table()[:15], client="who", label="label", test=table()[15:])
    for made in (said, apart):
        assert (made.x_train[:, 0].tolist(), made.x_test[:, 0].tolist()) == (list(range(15)), list(range(15, 20)))


WRONG_TABLES = [
    (table(age=[1.0, None] * 10), "column age must be given in every row, got nothing in row 2"),
    (table(label=["a", None] * 10), "column label must be given in every row"),
    (table(who=["a", None] * 10), "column who must be given in every row"),
    (table(label=np.arange(20) / 3), "column label must be whole numbers or words"),
    (table(label=None), "column label must be one of age, pay, who"),
    (table(job=["x"] * 20), "column job must be numeric"),
    (table(pay=[1e300] * 20), "column pay must be finite in float32, got 1e+300 in row 1"),
    (table(split=["valid"] * 20), "train or test in every row, got 'valid'"),
    (table(split=["train"] * 20), "train in some rows and test in others, got no test"),
    (table(age=None, pay=None), "columns must be more than these"),
    (table()[:0], "at least one"),
]


@pytest.mark.parametrize(("frame", "words"), WRONG_TABLES, ids=[words for _, words in WRONG_TABLES])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_wrong_tables_are_refused_in_one_line(frame, words, kind, tmp_path):
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    assert words in refusal(load, f"{kind}:{path}", client_column="who")
    assert words in refusal(fdp.dataset, frame, label="label", client="who")


# Files of arrays


def config_of(**changes):
    made = PopulationConfig(dataset="npz:mine.npz", **changes)
    return resolve_population(made, population_of("npz"))


def test_ids_in_an_npz_are_the_clients_unless_told_otherwise():
    np.savez("mine.npz", **GOOD)
    assert config_of().partition == "iid"
    (told,) = notes(config_of(num_clients=2), build_data(config_of(num_clients=2)))
    assert told == "nobody says whose records they are: dealt to 2 clients; client_ids in the file would"
    np.savez("mine.npz", **GOOD, client_ids=Y)
    made = build_data(config_of())
    assert (config_of().partition, made.sizes.tolist()) == ("natural", [3, 3, 2])
    assert '"client_ids" (partition natural)' in notes(config_of(), made)[0]
    other = config_of(partition="iid", num_clients=2)
    assert build_data(other).sizes.tolist() == [4, 4]
    assert '"client_ids" of the data is not used' in notes(other, build_data(other))[0]
    assert "or give another partition" in refusal(config_of, num_clients=2)


def test_an_npz_may_say_its_number_of_classes():
    np.savez("mine.npz", **GOOD, classes=7)
    assert load("npz:mine.npz").classes == 7
    np.savez("mine.npz", **GOOD, classes=[7, 8])
    assert "mine.npz: classes must be one integer" in refusal(load, "npz:mine.npz")


# What a run needs of its data


def test_a_store_on_a_full_disk_is_refused_and_nothing_is_left(tmp_path):
    x = np.zeros((5000, 20))
    data = federate(Dataset("zeros", x, np.zeros(5000, int), x[:1], np.zeros(1, int), 1), [range(5000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # files cannot grow beyond
    try:
        with pytest.raises(errors.StorageError, match="store could not be written: file too large; make room"):
            save_store(data, tmp_path / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_classifier_has_one_score_for_each_class():
    data = federate(fdp.dataset(**GOOD), ROWS)
    algorithm = fdp.fedavg(cohort_size=1, batch_size=1, local_steps=1, learning_rate=0.1)
    check(algorithm, data, 1, fdp.logistic_regression((3,), 3))
    for outputs in (2, 5):
        told = refusal(check, algorithm, data, 1, fdp.logistic_regression((3,), outputs))
        assert f"scores of the model must be (3,), as the loss of task classes takes them, got ({outputs},)" in told
    pair = (lambda key: {"w": np.zeros(3, np.float32)}, lambda params, x: (params["w"] * x).sum(keepdims=True))
    own = models.model(pair, (3,), loss=lambda scores, y: (scores[0] - y) ** 2)  # a regression of the label
    check(algorithm, data, 1, own)


@pytest.mark.parametrize("what", GOOD)
def test_masked_entries_are_no_values(what):
    """NumPy would drop the mask, and what a masked place happens to hold would count."""
    masked = np.ma.masked_array(GOOD[what], mask=GOOD[what] == GOOD[what].max())
    assert "masked entries; .filled(...)" in refusal(fdp.dataset, **GOOD | {what: masked})
    whole = fdp.dataset(**GOOD | {what: np.ma.masked_array(GOOD[what])})
    np.testing.assert_array_equal(getattr(whole, what), GOOD[what])


def test_numbers_that_32_bits_do_not_hold_reach_no_device():
    """JAX would keep their lower half: 2^32 + 5 would be 5, a date in milliseconds any number."""
    for number, kind in ((2**31, np.int64), (-(2**31) - 1, np.int64), (2**32, np.uint64)):
        wide = np.full((8, 3), number, kind)
        assert f"got {number}" in refusal(fdp.dataset, wide, Y, wide, Y)
        raw = Dataset("raw", wide, Y, X, Y, 3)
        assert f"got {number}" in refusal(federate, raw, ROWS)
        assert f"got {number}" in refusal(fdp.dataset, X, wide, X, wide, task="own", classes=3)
    for kind in (np.int64, np.uint32, np.uint64):
        wide = np.full((8, 3), np.iinfo(f"{np.dtype(kind).kind}4").max, kind)
        assert fdp.dataset(wide, Y, wide, Y).x_train[0, 0] == wide[0, 0]


def test_tokens_have_no_fractions():
    ids = np.arange(24).reshape(8, 3) % 5
    vocabulary = fdp.data.Vocabulary(size=5)
    assert "with fractions; .astype(int)" in refusal(fdp.dataset, ids + 0.5, Y, ids, Y, vocabulary=vocabulary)
    assert fdp.dataset(ids + 0.0, Y, ids, Y, vocabulary=vocabulary).tokens
