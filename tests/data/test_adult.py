"""Adult: categories one-hot, numbers normalised on the training set, damage named by file, line and column."""

import pathlib
import re
import tempfile

import numpy as np
import pytest
from helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import data
from fedjax_dp.data import adult

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
    person = {name: draw(st.sampled_from(words)) for name, words in adult.CATEGORIES.items()}
    return person | {name: str(draw(st.integers(0, 10**6))) for name in adult.NUMERIC}


@given(st.lists(people(), min_size=1, max_size=6), st.integers(0, 2**6 - 1))
@settings(max_examples=20, deadline=None)
def test_every_record_of_adult_comes_back_word_by_word(records, labels):
    y = [labels >> place & 1 for place in range(len(records))]
    lines = [
        ", ".join([*(person[name] for name in adult.COLUMNS), adult.LABELS[label]]) for person, label in zip(records, y)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_adult(pathlib.Path(folder), adult_data="\n".join(lines) + "\n")
        got, full = (data.load(name, folder) for name in ("adult", "adult_full"))
    assert got.y_train.tolist() == y
    ends = np.cumsum([len(words) for words in adult.CATEGORIES.values()])[:-1]
    for person, x in zip(records, got.x_train, strict=True):
        for (name, words), block in zip(adult.CATEGORIES.items(), np.split(x, ends), strict=True):
            assert block.sum() == 1
            assert words[int(block.argmax())] == person[name]
    numbers = np.array([[float(person[name]) for name in adult.NUMERIC] for person in records])
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
    widths = [len(words) for words in adult.CATEGORIES.values()]
    assert widths == [9, 16, 7, 15, 6, 5, 2, 42]
    for name, words in adult.CATEGORIES.items():
        listed = re.search(rf"^{name}: (.*)\.$", names, re.M)
        assert listed.group(1).split(", ") == [word for word in words if word != "?"]
    line = (where / "adult" / "adult.data").read_text().splitlines()[123].split(", ")
    blocks = np.split(got.x_train[123], np.cumsum(widths)[:-1])
    for (name, words), block in zip(adult.CATEGORIES.items(), blocks, strict=True):
        assert words[int(block.argmax())] == line[adult.COLUMNS.index(name)]
    full = data.load("adult_full", where)
    assert full.x_train.shape == (32_561, 108)
    np.testing.assert_allclose(full.x_train[:, 102:].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(full.x_train[:, 102:].std(0), 1, atol=1e-4)
