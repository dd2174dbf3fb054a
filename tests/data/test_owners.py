"""Lists of rows that are none."""

import os
import pathlib

import pytest
from helpers import refusal

from fedjax_dp.data.owners import file_parts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no client"),
        ("[]", "an object"),
        ('{"0": [0, 1], "1": [1]}', "row 1 again"),
        ('{"0": [0, 0]}', "row 0 again"),
        ('{"0": [3]}', "rows 0 to 2 of 3 records, got row 3"),
        ('{"0": [-1]}', "got row -1"),
        ('{"0": [' + "9" * 100 + "]}", "got row 999"),
        ('{"0": []}', "at least one"),
        ('{"0": [true]}', "row numbers"),
        ('{"0": [0.0]}', "row numbers"),
        ('{"0": 1}', "row numbers"),
        ('{"0": [0], "0": [1]}', "twice in one object, '0'"),
    ],
)
def test_lists_of_rows_that_are_none(tmp_path, text, words):
    (tmp_path / "a.json").write_text(text)
    assert words in refusal(file_parts, tmp_path / "a.json", 3)


def test_given_bad_partition():
    path = pathlib.Path(os.environ.get("FEDJAX_DP_DATA", "")) / "formats/bad/partition.json"
    if not path.is_file():
        pytest.skip(f"{path} is not at hand: FEDJAX_DP_DATA names the folder that holds formats")
    assert "row 1 again" in refusal(file_parts, path, 6)
