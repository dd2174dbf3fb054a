"""The catalogue as its command prints it."""

import json

import pytest

from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.parts.facts import parts_of
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import catalogue_tables


def test_the_table_has_every_entry():
    assert [row.entry for row in catalogue_tables.entry_rows()] == list(CATALOGUE)


@pytest.mark.parametrize("entry", CATALOGUE)
def test_every_part_of_an_entry_says_its_equation(entry):
    algorithm = catalogue_tables.algorithm_of(entry)
    parts = [*parts_of(algorithm), ("server", algorithm.server)]
    slots = {slot for slot, part in parts if hasattr(part, "equation")}
    assert {"cohort", "batches", "privatizer", "local rule", "local", "upload", "transport", "estimator"} < slots
    assert "server" in slots
    assert ("noise source" in slots) == CATALOGUE[entry].private


@pytest.mark.slow
def test_catalogue_command_prints_the_table(capsys):
    assert cli.main(["catalogue", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["catalogue"]
    assert {row["entry"] for row in printed} == set(CATALOGUE)
    assert cli.main(["catalogue"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("| entry | source | hides | from | numbers the server keeps |")
    assert catalogue_tables.SHAPE in out
    assert cli.main(["catalogue", "dpnfl"]) == 2
    assert "fedjax-dp catalogue takes no other without a flag" in capsys.readouterr().err
