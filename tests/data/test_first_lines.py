"""A first line that is a record is not taken for names, and what stands for nothing is nothing."""

import pytest
from helpers import refusal

import fedjax_dp as fdp

ROWS = ["63,3,0", "37,?,1", "41,2,0", "56,-9,1", "57,1,0", "44,2,1", "52,3,0", "54,1,1", "48,2,0", "49,3,1"]


def written(folder, *lines, name="t.csv"):
    (folder / name).write_text("\n".join(lines) + "\n")
    return f"csv:{folder / name}"


def records(dataset):
    return len(dataset.x_train) + len(dataset.x_test)


@pytest.mark.parametrize("first", ["63,145,0", "6.5,-1e3,0", "63, 145 ,0", "1,?,0", "63,male,?"])
def test_a_first_line_of_numbers_or_of_nothing_is_refused(tmp_path, first):
    told = refusal(lambda: fdp.load(written(tmp_path, first, *ROWS), label_column=first.split(",")[-1]))
    assert "must be names in the first line" in told
    assert "--no-header" in told


@pytest.mark.parametrize("first", ["age,pain,sick", "2019,2020,sick", '"63",pain,sick'])
def test_names_are_names_and_numbers_among_them_are_noticed(tmp_path, first):
    name = written(tmp_path, first, *[row for row in ROWS if "?" not in row])
    found = fdp.load(name, label_column="sick")
    assert records(found) == 9
    assert any("--no-header if it is a record" in note for note in found.notes) == (first != "age,pain,sick")


def test_without_a_header_no_record_is_lost_and_columns_are_numbered(tmp_path):
    name = written(tmp_path, *ROWS)
    found = fdp.load(name, label_column="c2", fill="c1=0", no_header=True)
    assert records(found) == len(ROWS)
    assert "features: c0, c1" in found.notes
    assert "must be one of c0, c1, c2" in refusal(lambda: fdp.load(name, label_column="age", no_header=True))
    second = written(tmp_path, "c0,c1,c2", *ROWS[2:], name="named.csv").removeprefix("csv:")
    both = f"{name},{second}"
    assert "names in the first line" in refusal(lambda: fdp.load(both, label_column="c2", fill="c1=0"))


@pytest.mark.parametrize("missing", [None, "-9", "-9,unknown"])
def test_words_for_nothing_are_filled_or_refused(tmp_path, missing):
    name = written(tmp_path, "age,pain,sick", *ROWS)
    words = {} if missing is None else {"missing": missing}
    assert "nothing in row 2" in refusal(lambda: fdp.load(name, label_column="sick", **words))
    found = fdp.load(name, label_column="sick", fill="pain=7", **words)
    values = sorted([*found.x_train[:, 1], *found.x_test[:, 1]])
    assert values.count(7) == (1 if missing is None else 2)
    assert (-9 in values) == (missing is None)


def test_a_category_for_nothing_is_nothing_unless_it_is_stated(tmp_path):
    rows = [f"{age},{word},{age % 2}" for age, word in zip(range(40, 50), ["a", "b", "?", "a", "none"] * 2)]
    name = written(tmp_path, "age,kind,sick", *rows)
    how = {"label_column": "sick", "missing": "none"}
    assert "nothing in row 3" in refusal(lambda: fdp.load(name, categories="kind=a|b", **how))
    assert fdp.load(name, categories="kind=a|b", fill="kind=a", **how).x_train.shape[1] == 3
    assert fdp.load(name, categories="kind=a|b|?", fill="kind=b", **how).x_train.shape[1] == 4


def test_files_that_have_names_need_no_word(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"a": range(10), "label": [0, 1] * 5}).to_parquet(tmp_path / "t.parquet")
    assert "left out for parquet" in refusal(lambda: fdp.load(f"parquet:{tmp_path / 't.parquet'}", no_header=True))
    assert "left out for digits" in refusal(lambda: fdp.load("digits", missing="?"))
