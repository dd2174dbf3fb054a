"""Whatever is chosen by private records has no epsilon, in one line with the remedy; by public ones it is as it was."""

import dataclasses
import inspect
import json
import math
import re

import numpy as np
import pytest
from helpers import CLASSES, refusal
from small_runs import QUIET
from sweep_points import point, sweep_folder, write_cost

import fedjax_dp as fdp
from fedjax_dp.accounting import NegativeBinomialTrials
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.models import logistic_regression
from fedjax_dp.privacy.guarantees import verified_guarantee
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.sweeps.engine import Job
from fedjax_dp.sweeps.plan import Point
from fedjax_dp.sweeps.preparation import PreparedPoint
from fedjax_dp.sweeps.records import SWEEP_FOLDER, read_records, read_selection_cost
from fedjax_dp.sweeps.selection_cost import cost_of_choosing
from fedjax_dp.tasks.measures import PUBLIC_TESTS, measures_of, private_records
from fedjax_dp.tools import cli
from fedjax_dp.tools.reports.sweeps import _selection_cost

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)).astype(np.float32), RNG.integers(0, 3, 60)


def federated(tests=slice(40, 60), held=False, clients=5):
    dataset = fdp.dataset(X[:40], Y[:40], X[tests], Y[tests], classes=3, name="own")
    owners = np.arange(len(X[tests])) % clients if held else None
    return fdp.federate(dataset, np.array_split(np.arange(40), clients), test_clients=owners)


PUBLIC, HELD = federated(), federated(held=True)
MODEL = logistic_regression((3,), 3)


def algorithm(rate=0.3, entry=fdp.dpnfl):
    numbers = {"learning_rate": rate, "clip_norm": 1.0, "noise_multiplier": 4.0}
    return entry(cohort_size=None, batch_size=4, local_steps=1, **numbers)


def entries(*datas, entry=fdp.dpnfl, **terms):
    """Points with rates 0.1, 0.2, ... and one seed, on these data."""
    made = []
    for at, data in enumerate(datas):
        rate, counted = 0.1 * (at + 1), PrivacyTerms(delta=1e-2, **terms)
        run = plan_run(algorithm(rate, entry), data, rounds=2, terms=counted, model=MODEL)
        values = {"learning_rate": rate, "seed": 0}
        made.append(PreparedPoint(at, str(at), values, {}, Job(run, None, False, None), verified_guarantee(run)))
    return made


def cost(*datas, drawn=False, law=None, by_results=None, **terms):
    return cost_of_choosing(entries(*datas, **terms), drawn, law, QUIET, by_results)


WAYS = {
    "grid": {},
    "random": {"drawn": True},
    "random number of trials": {"drawn": True, "law": NegativeBinomialTrials.of_mean(2)},
    "growing": {"by_results": "growth"},
    "halving": {"by_results": "halving"},
    "tpe": {"drawn": True, "by_results": "search"},
}
FREE = ("grid", "random", "random number of trials", "halving")


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_choosing_by_held_out_records_has_an_epsilon(way):
    for datas in ((HELD, HELD), (PUBLIC, HELD), (HELD, PUBLIC)):
        found = cost(*datas, **WAYS[way])
        assert found["epsilon"] is None
        assert not any("epsilon_" in name for name in found)
        for line in (found["short"], found["statement"]):
            assert line.startswith("no epsilon is stated")
            assert "records that clients hold out" in line
            assert line.endswith(PUBLIC_TESTS)
            assert "\n" not in line


@pytest.mark.parametrize("stranger", [False, True])
def test_test_records_of_clients_are_theirs_also_where_they_are_not_divided(stranger, tmp_path):
    """Clients of one person or of four, tests of some who train and perhaps of one who does not; no run may stop by
    these."""
    ids, tests = np.repeat(np.arange(8), 5), np.append(np.arange(19) % 8, 9 if stranger else 3)
    dataset = fdp.dataset(X[:40], Y[:40], X[40:], Y[40:], classes=3, client_ids=ids, test_client_ids=tests)
    four = fdp.federate(dataset, np.split(np.arange(40), 2))
    fdp.data.save_store(four, tmp_path / "store")
    for found in (four, fdp.federate(*fdp.data.natural_parts(dataset)[:2]), fdp.data.open_store(tmp_path / "store")):
        assert (found.test_clients is None) is stranger
        assert found.holds_tests
    assert cost(four, four)["epsilon"] is None
    (one,) = entries(four, stop="accuracy=0.5")
    assert "records that clients hold out" in one.guarantee.reason
    strangers = fdp.dataset(X[:40], Y[:40], X[40:], Y[40:], classes=3, client_ids=ids, test_client_ids=tests + 10)
    for public in (strangers, dataset):  # of the latter, records are dealt anew
        assert not fdp.federate(public, np.split(np.argsort(np.arange(40) % 5), 5)).holds_tests
    assert not fdp.federate(strangers, fdp.data.natural(ids)).holds_tests


def test_the_remedy_names_every_option_by_which_test_records_belong_to_clients():
    """A first user had none of those that the line named, and could not leave them out."""
    options = {*inspect.signature(fdp.dataset).parameters, *inspect.signature(fdp.federate).parameters, "holdout"}
    owners = {name for name in options if name.startswith("test_client") or name == "holdout"}
    assert owners <= {*re.findall(r"\w+", PUBLIC_TESTS)}
    assert "tables" in PUBLIC_TESTS  # whose files hold out a fifth of every client's records


@pytest.mark.parametrize("way", WAYS)
def test_by_a_public_test_set_a_choice_costs_what_it_did(way):
    found = cost(PUBLIC, PUBLIC, **WAYS[way])
    assert found["epsilon_composition"] > found["epsilon_single"] > 0
    assert (found["epsilon"] is not None) is (way in FREE)
    assert "records that clients hold out" not in found["statement"]


def test_test_records_of_one_point_may_be_training_records_of_another():
    """As where each seed splits its own: one point's public records are then the other's clients'."""
    found = cost(PUBLIC, federated(slice(20, 40)))
    assert found["epsilon"] is None
    assert "different test records" in found["short"]
    assert cost(PUBLIC, federated())["epsilon"] is not None  # the same records once more


def test_shared_models_that_nobody_is_given_are_no_release_to_choose_by():
    for entry, view, seen in (
        (fdp.mr_mtl, "deployed", False),
        (fdp.mr_mtl, "owner", True),
        (fdp.dpnfl, "uploads", True),
        (fdp.dpnfl, "final_model", True),
    ):
        found = cost(PUBLIC, PUBLIC, entry=entry, view=view)
        assert (found["epsilon"] is not None) is seen
        assert ("shared models, against everybody" in found["short"]) is not seen


def test_every_metric_but_those_of_a_public_test_set_looks_at_private_records():
    """Losses of batches, fractions clipped, objectives, clients one by one, their own models, spreads over them."""
    for name, measure in measures_of(CLASSES).by_name.items():
        assert private_records(True, measure) is not None
        assert (private_records(False, measure) is None) is name.startswith("test_"), name
    assert (private_records(True) is None, private_records(False)) == (False, None)


def folder_of(**more):
    """A finished sweep whose file states a finite cost."""
    values = [("dpnfl", 0.1), ("dpnfl", 0.3), ("addpnfl", 0.1), ("addpnfl", 0.3)]
    records = [
        point(
            at,
            {"algorithm": name, "learning_rate": rate, "seed": 0},
            (0.5, 0.6 + at / 100),
            config={"algorithm": name, "learning_rate": rate, "seed": 0},
            train_loss=0.5,
            objective=0.4,
        )
        | more
        for at, (name, rate) in enumerate(values)
    ]
    folder = sweep_folder(records, ["algorithm", "learning_rate"])
    words = {"short": "seeing these costs epsilon 2.253", "statement": "it costs epsilon 2.253"}
    write_cost(folder, epsilon=2.253, **words)
    return folder


CLIENTS = {"clients": {"own": False, "values": [0.5, 0.7], "records": [3, 4]}}
DOORS = {
    "best": ["best", "sweep"],
    "best as JSON": ["best", "sweep", "--json"],
    "best of each": ["best", "sweep", "--by", "algorithm"],
    "best of each as JSON": ["best", "sweep", "--by", "algorithm", "--json"],
    "best of each for LaTeX": ["best", "sweep", "--table", "latex"],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("more", "metric", "free"),
    [
        ({}, [], True),
        ({}, ["--metric", "test_loss"], True),
        ({}, ["--metric", "train_loss"], False),
        ({}, ["--metric", "objective"], False),
        (CLIENTS, [], False),
        (CLIENTS, ["--metric", "test_loss"], False),
    ],
)
def test_the_best_asks_by_what_it_was_chosen(door, more, metric, free, capsys):
    folder_of(**more)
    assert cli.main([*DOORS[door], *metric]) == 0
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert ("epsilon 2.253" in text) is free
    assert ("no epsilon is stated for choosing among these runs" in text) is not free


@pytest.mark.parametrize("more", [{}, CLIENTS], ids=["public", "held out"])
def test_an_opened_sweep_and_its_report_ask_it_too(more):
    folder, free = folder_of(**more), not more
    assert (fdp.open_sweep(folder).choosing["epsilon"] is not None) is free
    text = repr(_selection_cost(folder, read_records(folder)[1], finished=True))
    assert ("epsilon 2.253" in text) is free


OTHERS = {
    "more points": lambda about, records: (about, [*records, records[0] | {"point": "another"}]),
    "fewer points": lambda about, records: (about, records[1:]),
    "another sweep": lambda about, records: (about | {"digest": "grown"}, records),
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_cost_of_choosing_holds_for_the_points_of_its_own_sweep_alone(change):
    """Foreign points, lost points, a file put back into a sweep that has grown, and an epsilon written by hand."""
    folder = folder_of()
    about, records = read_records(folder)
    assert read_selection_cost(folder, records)["epsilon"] == 2.253
    about, records = OTHERS[change](about, records)
    SWEEP_FOLDER.write(folder, about)
    (folder / "points.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    line = "selection.json must be as the sweep wrote it, got one of other points, or one that was changed since"
    assert line in refusal(fdp.open_sweep, folder)
    write_cost(folder, epsilon=2.253)
    written = (folder / "selection.json").read_text()
    (folder / "selection.json").write_text(written.replace("2.253", "1.0"))
    assert line in refusal(fdp.open_sweep, folder)


def test_a_choice_among_runs_without_privacy_has_none_to_state():
    folder = folder_of(guarantee={"epsilon": None, "statement": "no privacy"}, **CLIENTS)
    write_cost(folder, epsilon=None, short="no point is private")
    assert fdp.open_sweep(folder).choosing["short"] == "no point is private"


@pytest.mark.parametrize("held", [True, False])
def test_a_stop_of_a_run_asks_it_too(held):
    terms = PrivacyTerms(delta=1e-2, stop="accuracy=0.5")
    promise = verified_guarantee(plan_run(algorithm(), HELD if held else PUBLIC, rounds=4, terms=terms, model=MODEL))
    assert (promise.reason is not None) is held
    assert ("records that clients hold out" in (promise.reason or "")) is held


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False])
def test_a_sweep_states_it_as_soon_as_it_is_complete(held, tmp_path):
    words = {"rounds": 1, "axes": {"learning_rate": [0.1, 0.3]}, "delta": 1e-2, "model": MODEL, "progress": False}
    found = fdp.sweep(algorithm(), HELD if held else PUBLIC, out=tmp_path / "s" if held else None, **words)
    assert (found.choosing["epsilon"] is None) is held


def test_a_cost_says_what_it_does_not_cover():
    private, shown = entries(PUBLIC, PUBLIC), entries(PUBLIC, entry=fdp.cpfed, view="secure_sum")
    statement = cost_of_choosing(private, False, None, QUIET)["statement"]
    for words in (
        "if every run draws its noise, batches and cohorts afresh",
        "its noise, batches and cohorts afresh, trials were ranked",
        "share the noise, batches and cohorts of their seed",
        "All against a server that sees every upload",
        "not for a fixed grid",
    ):
        assert words in statement
    assert "records change clients" in cost(PUBLIC, federated(clients=4))["statement"]
    told = cost_of_choosing([*private[:1], *shown], False, None, QUIET)
    assert "not known: its points are counted against different adversaries" in told["statement"]
    without = dataclasses.replace(private[1].guarantee, epsilons=(math.inf,))
    plain = dataclasses.replace(private[1], guarantee=without)
    told = cost_of_choosing([private[0], plain], False, None, QUIET)
    assert told["epsilon"] is None
    assert "comparing them with the 1 points without privacy has no finite cost" in told["statement"]


def test_random_search_prices_repetition_only_where_all_trials_cost_alike():
    law = NegativeBinomialTrials.of_mean(2)
    told = cost(PUBLIC, PUBLIC, drawn=True, law=law)
    assert told["applies"] == "repetition"
    assert "Whoever sees this folder sees all points" in told["statement"]
    told = cost(PUBLIC, federated(clients=4), drawn=True, law=law)
    assert (told["applies"], told["epsilon_repetition"]) == ("composition", None)


def test_repetition_has_no_price_where_an_entry_chooses_noise_by_values_that_a_trial_may_draw():
    """DP-FTRL takes the noise with the least error for its momentum: with another one it releases something else."""
    for name, applies in (("dp_fedavg", "repetition"), ("dp_ftrl", "composition")):
        point = Point(0, "", {}, RunSpec.of({"algorithm": name}))
        made = [dataclasses.replace(one, point=point) for one in entries(PUBLIC, PUBLIC, entry=fdp.dp_fedavg)]
        assert cost_of_choosing(made, True, NegativeBinomialTrials.of_mean(2), QUIET)["applies"] == applies


def test_repetition_has_no_price_where_an_event_depends_on_values_that_a_trial_may_draw():
    """Integer noise costs by the clip norm: points that were not drawn may cost more than all that were."""
    made = entries(PUBLIC, PUBLIC, entry=fdp.dp_fedavg)
    assert cost_of_choosing(made, True, NegativeBinomialTrials.of_mean(2), QUIET)["applies"] == "repetition"
    options = {"clip_norm": 1.0, "noise_multiplier": 8.0, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1}
    integer = fdp.dp_fedavg(cohort_size=2, noise="shared", secure=fdp.parts.SecureSum(fractional_bits=4), **options)
    terms = PrivacyTerms(delta=1e-2, accountant="rdp")
    runs = [plan_run(integer, PUBLIC, rounds=2, terms=terms, model=MODEL) for _ in made]
    jobs = [
        dataclasses.replace(one, job=Job(run, None, False, None), guarantee=verified_guarantee(run))
        for one, run in zip(made, runs)
    ]
    found = cost_of_choosing(jobs, True, NegativeBinomialTrials.of_mean(2), QUIET)
    assert (found["applies"], found["epsilon_repetition"]) == ("composition", None)
