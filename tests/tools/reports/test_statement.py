"""The page for those who answer for data protection: every number with its meaning, and nothing left out."""

import json
import math
import re

import pytest
from helpers import refusal

from fedjax_dp.accounting import AttackBounds, Guarantee, Unit, View
from fedjax_dp.accounting.guarantee import FLOAT_NOISE, DeploymentSummary, no_privacy
from fedjax_dp.accounting.neighbours import Adjacency
from fedjax_dp.accounting.plain_words import at_most
from fedjax_dp.tools import cli
from fedjax_dp.tools.reports import report_statement
from fedjax_dp.tools.reports.page import MARK, page
from fedjax_dp.tools.reports.statement import markdown, statement

CONFIG = {"algorithm": "dpnfl", "dataset": "digits", "rounds": 10}
PARTS = ["The promise", "What it means", "It holds if all of these are true", "What is not covered", "Words", "Origin"]


def _of(epsilon=1.0, unit=Unit.RECORD, adjacency=Adjacency.REPLACE_ONE, view=View.UPLOADS, epsilons=(), **more):
    bounds = AttackBounds(0.7, 0.1, of_curve=True)
    assumed, every = ("cohorts are drawn", FLOAT_NOISE), epsilons or (epsilon,)
    return Guarantee(every, 1e-3, unit, adjacency, view, "exact", assumed, attacks=(bounds,), **more).to_full_dict()


def _text(saved):
    return markdown(statement(saved, CONFIG, "mine, seal 1"))


def test_it_says_whom_what_how_much_and_who_is_trusted():
    made = _text(_of())
    assert re.findall(r"^## (.*)$", made, re.M) == PARTS
    for label in ("protected", "against", "compared", "epsilon", "delta", "trusted", "computed by"):
        assert f"- **{label}**: " in made
    assert "right in at most 70% of cases" in made
    assert f"No result becomes more than {math.ceil(math.e * 100) / 100:g} times as likely" in made
    assert "that is 1 in 1,000" in made
    assert "replace-one" in made
    assert "Each client, for its own data only" in made
    assert FLOAT_NOISE[1:] not in made  # said in words, once
    assert "simulation" in made


@pytest.mark.parametrize("view", [view for view in View if view not in (View.UPLOADS, View.SECURE_SUM)])
def test_where_the_server_is_not_the_adversary_it_is_trusted(view):
    assert "The server: these numbers do not cover the messages" in _text(_of(view=view, unit=Unit.CLIENT))


def test_whatever_the_neighbours_are_they_are_put_into_words():
    assert len({_text(_of(adjacency=adjacency)).split("compared")[1].split("\n")[0] for adjacency in Adjacency}) == 3


def test_large_epsilons_are_not_made_small():
    made = _text(_of(epsilon=20.0))
    assert "more than a million times as likely" in made
    assert "No result" not in made


def test_caveats_and_warnings_come_with_the_promise():
    made = _text(_of(caveat="for a single round, which is no guarantee for the run", warnings=("delta is large",)))
    promise = made[: made.index("## What it means")]
    assert "**Read first:** For a single round" in promise
    assert "**Warning:** Delta is large." in promise


def test_a_run_that_stands_for_a_deployment_promises_nothing_to_the_people_in_its_data():
    deployment = DeploymentSummary(1000, 10**6, 100, "Poisson cohorts", 0.005, 5, 50)
    text = _text(_of(unit=Unit.CLIENT, view=View.BROADCAST, deployment=deployment, own=20.5))
    before = text[: text.index("right in at most")]
    assert "no promise to the people whose data this run used" in before
    assert "of a deployment with cohorts of 1,000 out of 1,000,000" in before
    assert "epsilon 20.5 of its own" in before
    assert "the training promises" not in text
    assert "the same training" not in text


def test_without_privacy_nothing_is_promised():
    made = _text(no_privacy(3, "no noise is added").to_full_dict())
    assert "Nothing is promised, because no noise is added" in made
    assert "not covered" not in made


def test_names_that_are_marks_stay_text():
    report = statement(_of(), CONFIG | {"dataset": "csv:<b>*a*.csv"}, "mine")
    assert r"csv:\<b\>\*a\*.csv" in markdown(report)
    made = page(report)
    assert "<b>*a*" not in made
    assert len(made) < 50_000  # nothing is drawn, so that nothing draws


@pytest.mark.slow
def test_the_command_writes_both_and_replaces_them(run_folder, tmp_path, capsys):
    out = tmp_path / "officer.html"
    for _ in range(2):
        capsys.readouterr()
        assert cli.main(["report", str(run_folder), "--statement", "-o", str(out)]) == 0
        assert capsys.readouterr().out.split() == [str(out), str(out.with_suffix(".md"))]
    held = json.loads((run_folder / "guarantee.json").read_text())["attack"]
    for path in (out, out.with_suffix(".md")):
        assert MARK in path.read_text()[:100]
        assert f"{at_most(held['right'])} of cases" in path.read_text()


@pytest.mark.slow
def test_what_it_did_not_write_stays(run_folder, tmp_path):
    own = tmp_path / "own.md"
    own.write_text("mine")
    assert "an earlier report" in refusal(report_statement, run_folder, tmp_path / "own.html")
    assert own.read_text() == "mine"
    assert not (tmp_path / "own.html").exists()


def test_every_client_has_its_epsilon_where_they_differ():
    apart = {"epsilons": (1.0, 2.0, 3.5)}
    assert "- **epsilon of client 2**: 3.5" in _text(_of(**apart))
    assert "- **epsilon of west**: 3.5" in _text(_of(**apart, names=("north", "south", "west")))
    assert "- **epsilon of client" not in _text(_of(epsilons=(1.0, 1.0)))
    assert "clients.csv" in _text(_of(epsilons=tuple(range(1, 300))))


def test_constants_that_a_run_takes_for_public_are_listed_and_those_of_its_records_are_not():
    config = CONFIG | {"fill": "dose=0", "normalise": "0.1,0.3", "standardise": "records"}
    written = markdown(statement(_of(), config, "mine, seal 1"))
    for line in ("replace missing ones are public: dose=0", "normalise features are public: 0.1,0.3"):
        assert line in written
    assert "standardise" not in written
