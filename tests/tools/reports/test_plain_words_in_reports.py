"""Epsilon in plain words, where people read it: beside the number in a report, and in the terminal."""

import dataclasses
import json

import pytest

from fedjax_dp.accounting.guarantee import no_privacy
from fedjax_dp.accounting.plain_words import at_most
from fedjax_dp.display import upward
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli.run import within
from fedjax_dp.tools.reports import kinds, shared
from fedjax_dp.tools.reports.page import page


@pytest.mark.slow
@pytest.mark.usefixtures("unspent")
def test_a_report_and_plain_print_the_bounds_of_the_curve(run_folder, capsys):
    held = json.loads((run_folder / "guarantee.json").read_text())["attack"]
    assert held["of_curve"]
    assert 0.5 < held["right"] < 1
    sentence = f"right in at most {at_most(held['right'])} of cases"
    made = page(kinds.read_report(run_folder))
    assert "In plain words:" in made
    assert sentence in made
    capsys.readouterr()
    assert cli.main(["run", "--resume", str(run_folder)]) == 0
    assert sentence not in capsys.readouterr().out
    assert cli.main(["run", "--resume", str(run_folder), "--plain"]) == 0
    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize(
    ("epsilon", "budget", "shown"), [(7.999, 8.0, "within 8"), (8.01, 8.0, "8.01"), (3.0, 8.0, "3")]
)
def test_an_epsilon_that_uses_up_its_budget_is_within_it(epsilon, budget, shown):
    promise = {"epsilon": epsilon, "delta": 1e-3, "unit": "record", "adjacency": "replace-one"}
    (label, value, about), *_ = shared.tiles(promise, budget)
    assert (label, value) == ("epsilon", shown)
    assert upward(epsilon) in value + about
    assert shared.tiles(promise, None)[0][1] == upward(epsilon)


@pytest.mark.parametrize(
    ("epsilons", "words"),
    [
        ((7.9991, 7.9993), "the same for each of 2 clients; "),
        ((4.0,), "uploads; accountant"),
        ((0.0, 2.0), "over 2 clients epsilon is min 0 (clients that are never drawn), median 2, max 2; "),
    ],
)
def test_a_guarantee_says_how_clients_differ_if_they_do(epsilons, words):
    promise = no_privacy(1, "")
    promise = dataclasses.replace(promise, epsilons=epsilons, delta=1e-3, accountant="any")
    assert words in str(promise).replace("a server that sees every upload", "uploads")


def test_a_budget_that_a_number_does_not_show_is_named_in_the_terminal():
    assert within(7.999, 8.0) == "within 8: "
    assert within(8.0 - 1e-6, 8.0) == within(3.0, 8.0) == within(None, 8.0) == within(7.999, [8.0, 4.0]) == ""


def test_clients_that_differ_in_no_digit_have_one_number():
    apart = {"epsilon_min": 7.9991, "epsilon_median": 7.9992, "epsilon_max": 7.9993}
    assert shared.spread(apart) == "8 for each"  # rounded up
    assert "smallest" in shared.spread(apart | {"epsilon_min": 7.9})


@pytest.mark.slow
@pytest.mark.usefixtures("unspent")
def test_a_badge_is_for_figures_of_probes_alone(run_folder):
    figures = {
        block.name: block.probes
        for section in kinds.read_report(run_folder).sections
        for block in section.blocks
        if hasattr(block, "probes")
    }
    assert not figures["loss"]
    assert figures["noise"]
