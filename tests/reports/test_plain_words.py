"""Epsilon in plain words, where people read it: beside the number in a report, and in the terminal."""

import json

from test_reports import unspent

from fedjax_dp import cli
from fedjax_dp.accounting.plain_words import at_most
from fedjax_dp.reports import kinds
from fedjax_dp.reports.page import page


def test_a_report_and_plain_print_the_bounds_of_the_curve(run_folder, capsys):
    held = json.loads((run_folder / "guarantee.json").read_text())["attack"]
    assert held["of_curve"]
    assert 0.5 < held["right"] < 1
    sentence = f"right in at most {at_most(held['right'])} of cases"
    made = page(kinds.read_report(run_folder, unspent))
    assert "In plain words:" in made
    assert sentence in made
    capsys.readouterr()
    assert cli.main(["run", "--resume", str(run_folder)]) == 0
    assert sentence not in capsys.readouterr().out
    assert cli.main(["run", "--resume", str(run_folder), "--plain"]) == 0
    assert sentence in capsys.readouterr().out
