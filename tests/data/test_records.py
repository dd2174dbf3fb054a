"""Laws of records: what stands beside a row stays beside it, and every way to a data set holds out alike."""

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp.data.records import (
    NumberColumn,
    RecordTable,
    choose_test,
    divide,
    hold_out_owners,
    make_dataset,
    split_owners,
)

CLIENTS = np.repeat(["b", "a", "c"], [10, 5, 1])


def records(**columns):
    x = np.arange(16.0)[:, None]
    return RecordTable(CLIENTS, np.arange(16) // 2, x=x, y=np.arange(16) % 2, **columns)


def test_clients_units_and_columns_stay_with_their_rows():
    rows = np.array([12, 3, 15])
    some = records(texts=[f"t{row}" for row in range(16)]).at(rows)
    assert some["x"][:, 0].tolist() == rows.tolist()
    assert some["texts"] == ["t12", "t3", "t15"]
    assert some.clients.tolist() == ["a", "b", "c"]
    assert some.units.tolist() == [6, 1, 7]
    assert some.with_columns(x=some["x"]).units.tolist() == [6, 1, 7]


def test_records_that_are_added_client_by_client_are_theirs():
    added = RecordTable(x=NumberColumn(np.float32), text=[])
    added.add("b", "file: 'b'", x=[[1, 2], [3, 4]], text=["one", "two"])
    added.add("a", "file: 'a'", x=[[5, 6]], text=["three"])
    assert added.clients.tolist() == ["b", "b", "a"]
    assert added["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert added["text"] == ["one", "two", "three"]
    message = refusal(lambda: added.add("c", "file: 'c'", x=[[7]], text=["four"]))
    assert message.startswith("file: 'c': x must be of shape (2,)")


def test_a_data_set_without_test_records_holds_out_what_divide_does():
    train, test = divide("file", records(), None)
    assert sorted([*train["x"][:, 0], *test["x"][:, 0]]) == list(range(16))
    assert [np.sum(test.clients == name) for name in "abc"] == [1, 1, 0]  # a client with one record keeps it
    dataset = make_dataset("name", "file", records(), None)
    np.testing.assert_array_equal(dataset.x_test, test["x"])
    np.testing.assert_array_equal(dataset.unit_ids, train.units)
    assert dataset.notes == ("no test split: 10% of every client's records, drawn at random, are held out",)


def test_test_records_of_a_file_are_kept_and_bounds_stay_with_training_records():
    train, test = records().split((np.arange(10), np.arange(10, 16)))
    assert divide("file", train, test) == (train, test)
    dataset = make_dataset("name", "file", train, test)
    assert dataset.unit_ids.tolist() == (np.arange(10) // 2).tolist()
    assert dataset.test_client_ids is None
    assert dataset.notes == ("the test set is not divided: 2 of its clients have no training records",)


def test_one_record_of_every_client_leaves_none_to_test_on():
    alone = RecordTable(np.arange(3), x=np.ones((3, 1)), y=np.arange(3))
    assert "two of some client, one to test on" in refusal(make_dataset, "name", "file", alone, None)


@pytest.mark.parametrize(
    ("splits", "test", "notes"),
    [
        ({"train"}, None, []),
        ({"train", "test"}, "test", []),
        ({"train", "test", "validation"}, "test", ["splits that are not used: validation"]),
        ({"train", "validation"}, "validation", ["tested on the split validation"]),
    ],
)
def test_the_first_candidate_is_tested_on_and_others_are_named(splits, test, notes):
    assert choose_test(splits, "train", ("test", "validation")) == (test, notes)


@pytest.mark.parametrize("owners", [4, 7, 40])
def test_whole_owners_are_held_out_whoever_else_is_there(owners):
    """Else a neighbour, without one user, would differ in the training records of others."""
    for begin in range(0, 400, owners):
        names = np.repeat([f"u{name}" for name in range(begin, begin + owners)], 3)
        whole, without = ({*ids[hold_out_owners("", ids, 0.2)[0]]} for ids in (names, names[3:]))
        assert len(whole ^ without) <= 1
        assert whole < {*names}
    ids = np.arange(4000) // 4
    train, test = hold_out_owners("", ids, 0.2)
    assert not {*ids[train]} & {*ids[test]}
    assert len({*ids[test]}) == pytest.approx(200, abs=4 * 13)  # deviations of a binomial
    assert "users must be one to train on, got 1, all held out" in refusal(hold_out_owners, "", np.zeros(3, int), 0.2)


def test_an_owner_is_split_by_itself():
    """Dropped, or called otherwise, it changes no other's split."""
    ids = np.repeat(["a", "b", "c", "d"], [9, 30, 30, 1])
    whole = split_owners(ids, len(ids), 0.2)
    for rest in (ids != "a", ids != "c", ids != "d"):
        rows, part = np.flatnonzero(rest), split_owners(ids[rest], rest.sum(), 0.2)
        for before, after in zip(whole, part, strict=True):
            assert rows[after].tolist() == [row for row in before if rest[row]]
    assert [len(part) for part in whole] == [7 + 24 + 24 + 1, 2 + 6 + 6]
    renamed = split_owners(np.where(ids == "a", "x", ids), len(ids), 0.2)
    assert [row for row in renamed[1] if row >= 9] == [row for row in whole[1] if row >= 9]
