"""From three files of hospitals to a report, as the page on tables has it."""

import json
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
from test_docs import PAGES, blocks, commands

from fedjax_dp.tools import cli

PAGE = PAGES["guides/tables.md"]


@pytest.fixture
def hospitals():
    draws = np.random.default_rng(0)
    for number, records in enumerate((60, 40, 90)):
        sick = draws.integers(0, 2, records)
        columns = {"id": draws.choice(10**6, records, replace=False) + 0.0, "age": 50 + 20 * draws.normal(size=records)}
        columns |= {"dose": draws.normal(size=records) + 3 * sick, "stage": draws.choice(["I", "II", "III"], records)}
        frame = pd.DataFrame(columns | {"sick": np.where(sick, "yes", "no")})
        frame.loc[3, "dose"] = None
        frame.to_csv(f"hospital_{number}.csv", index=False)


@pytest.mark.slow
def test_the_page_leads_from_three_files_to_a_report(hospitals, capsys):
    block = blocks(PAGE, "sh")[0]
    assert block.count("\n") <= 10
    for words in commands(f"```sh\n{block}\n```\n"):
        assert cli.main(words) == 0
    said = capsys.readouterr()
    assert "features: age, dose, stage (3 categories)" in said.err
    assert "looks like an id" not in said.err
    result = json.loads(pathlib.Path("hospitals/result.json").read_text())
    assert result["test_accuracy"] > 0.7
    page = pathlib.Path("hospitals.html").read_text()
    assert re.search("epsilon", page)
    statement = pathlib.Path("hospitals-statement.md").read_text()
    assert "The values that replace missing ones are public" in statement
