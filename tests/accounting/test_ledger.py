"""A run's ledger, read without the run."""

import json
import re

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, AnyOf, Composed, FullBatch, GaussianSteps, Past, Unit, epsilon_of, repeated
from fedjax_dp.accounting.ledger import (
    VERSION,
    decode_event,
    encode_event,
    ids_of,
    phases_in,
    ranges,
    read_rounds,
    text_of,
)
from fedjax_dp.errors import ConfigurationError

REPLACE, PHASE = Adjacency.REPLACE_ONE, {"clients": {"count": 5}}


FIVE = accounting.WithoutReplacement(5, 40)


def steps(z, sampling=FIVE, count=2, unit=Unit.RECORD):
    return GaussianSteps(z, sampling, REPLACE, count, unit)


EVENTS = [
    steps(1.5),
    steps(2.0, FullBatch()),
    steps(2.0, accounting.WithReplacement(3, 9)),
    steps(2.0, accounting.AnyStep(accounting.WithoutReplacement(2, 9), 3)),
    steps(2.0, accounting.Shuffled(4, 9, "keep"), 6),
    GaussianSteps(2.0, accounting.Poisson(0.1), Adjacency.ADD_REMOVE, 3, Unit.CLIENT),
    accounting.SkellamSums(40.0, 2.0, 3.0, REPLACE, 2),
    Composed((steps(3.0), steps(4.0, FullBatch()))),
    accounting.RandomParticipation(steps(3.0), 0.25, 4),
    accounting.BoundedRange(0.5, REPLACE, 2),
    accounting.StatedPrivacy(0.5, 1e-6, REPLACE, 2),
    Composed((steps(3.0), Past((steps(4.0), accounting.StatedPrivacy(1.0, 0.0, REPLACE))))),
    AnyOf((steps(3.0), steps(4.0, FullBatch()))),
    GaussianSteps(2.0, accounting.RandomAllocation(2, 5), Adjacency.ADD_REMOVE, 10),
    GaussianSteps(2.0, accounting.BallsInBins(5), Adjacency.ZERO_OUT, 10),
    GaussianSteps(2.0, accounting.TruncatedPoisson(0.1, 3, 9), Adjacency.ZERO_OUT, 3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_the_same_after_it_was_written_and_read(event):
    leaf = next(iter(event.leaves()))[0]
    content = json.loads(json.dumps(encode_event(event)))
    assert decode_event(content, leaf.adjacency, leaf.unit) == event


def test_an_event_that_another_version_wrote_is_one_line():
    content = encode_event(steps(2.0))
    for other in (content | {"later": 1}, {name: content[name] for name in content if name != "group"}):
        with pytest.raises(ConfigurationError, match="gaussian with the fields of another version; run the config"):
            decode_event(other, REPLACE, Unit.RECORD)


def test_ids_are_short_where_they_follow_one_another():
    for ids in ([], [0], [0, 1], [0, 1, 2], [1, 3, 4, 5, 9]):
        assert ids_of(ranges(np.array(ids, int)), 10).tolist() == ids
    assert ranges(np.arange(1_000_000)) == [[0, 999_999]]
    with pytest.raises(ValueError, match="client 10 of 10"):
        ids_of([[8, 10]], 10)


def line(index, **more):
    made = {"ledger": VERSION, "kind": "round", "round": index, "clients": [[[0, 2], 0], [[3], 1]], "so_far": False}
    made |= {"events": [encode_event(steps(1.5)), encode_event(steps(2.5))], "unit": "record", "view": "uploads"}
    made |= {"adjacency": "replace-one", "colluders": 0, "delta": 1e-3, "accountant": "pld", "epsilon_planned": 1.0}
    made |= {"priced_at": index + 1, "law": {}, **dict.fromkeys(("epsilon_at_any_time", "budget", "left", "halt"))}
    made |= {"deployment": None, **more}
    return {name: value for name, value in made.items() if value is not ...}


def text(*lines):
    return text_of(lines)


SAME = {"events": ..., "clients": ..., "so_far": ...}


def test_clients_pay_for_the_rounds_that_name_them():
    ledger = read_rounds(text(line(0), line(1, as_round=0, **SAME), line(2, clients=[[[0], 1]])), PHASE, "x")
    a, b = steps(1.5), steps(2.5)
    wanted = [Composed((repeated(a, 2), b)), Composed(()), repeated(a, 2), repeated(b, 2), Composed(())]
    assert [list(event.leaves()) for event in ledger.events()] == [list(event.leaves()) for event in wanted]
    assert ledger.epsilons() == [epsilon_of(event, 1e-3) for event in wanted]
    assert ledger.epsilons(rounds=1)[0] == epsilon_of(a, 1e-3)
    assert ledger.epsilons(delta=1e-2, accountant="rdp")[3] == epsilon_of(repeated(b, 2), 1e-2, "rdp")


def test_events_of_everything_so_far_take_the_place_of_those_before():
    now = [encode_event(repeated(steps(1.5), 7))]
    ledger = read_rounds(text(line(0, so_far=True), line(1, events=now, clients=[[[2], 0]], so_far=True)), PHASE, "x")
    assert [sum(n for _, n in event.leaves()) for event in ledger.events()] == [2, 0, 14, 2, 0]


def test_who_trains_twice_in_a_round_pays_twice():
    ledger = read_rounds(text(line(0, clients=[[[0, 2], 0], [[2], 0]])), PHASE, "x")
    assert [sum(n for _, n in event.leaves()) for event in ledger.events()] == [2, 0, 4, 0, 0]


def test_the_last_whole_line_counts():
    whole = text(line(0), line(1))
    ledger = read_rounds(whole[:-30], PHASE, "x")
    assert (ledger.rounds, ledger.is_cut) == (1, True)
    assert read_rounds(whole, PHASE, "x").is_cut is False
    assert read_rounds("", PHASE, "x").rounds == 0


def test_phases_stand_before_rounds():
    phases = '{"ledger":2,"kind":"run"}\n'
    assert phases_in(phases + text(line(0))) == phases
    assert read_rounds(phases + text(line(0)), PHASE, "x").rounds == 1


WHOLE = text(line(0), line(1), line(2))
BAD = {
    "left out": ("".join(WHOLE.splitlines(keepends=True)[::2]), "round 1 must be as the run wrote it"),
    "of before": (text(line(0, ledger=1)), "must be of version 2, .* got of version 1; read it with"),
    "a phase": (text(line(0), line(1, kind="run")), "kind 'run'"),
    "another view": (text(line(0, view="all")), "'all' is not a valid View"),
    "another accountant": (text(line(0, accountant="x")), "accountant 'x'"),
    "no delta": (text(line(0, delta=2.0)), "at delta 2.0"),
    "not a number": (text(line(0)).replace("1.5", "NaN", 1), "no number of JSON"),
    "beyond numbers": (text(line(0)).replace("1.5", "1e999", 1), "1e999, which is no number"),
    "other rounds": (text(line(1)), "round 1"),
    "no epsilon": (text(line(0, epsilon_planned="1")), "epsilon_planned '1'"),
    "no events": (text(line(0, events=...)), "edited"),
    "as a later one": (text(line(0, as_round=0, **SAME)), "edited"),
    "words": (text(line(0)) + "words\n", "round 1 .*edited"),
    "a list": (text(line(0)) + "[]\n", "no phase"),
}


@pytest.mark.parametrize("kind", BAD)
def test_lines_that_are_not_as_a_run_wrote_them_are_refused_in_one_line(kind):
    content, words = BAD[kind]
    assert re.search(words, refusal(read_rounds, content, PHASE, "x"))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"kind": "own", "name": "Laplace"}, "of the package, got Laplace, code of its user"),
        ({"kind": "truncated"}, "kind of an event of the ledger must be one of gaussian"),
        ({"kind": "composed", "parts": 7}, "ledger must be as the run wrote it, got edited since"),
        (
            {"kind": "gaussian", "noise_multiplier": -1.0, "sampling": {"kind": "none"}, "count": 1, "group": 1},
            "noise_multiplier",
        ),
    ],
)
def test_events_that_are_not_known_here_have_no_price(event, words):
    ledger = read_rounds(text(line(0, events=[event], clients=[[[0], 0]])), PHASE, "x")
    with pytest.raises(ConfigurationError, match=words):
        ledger.epsilons()


def test_a_ledger_without_events_or_rounds_has_no_epsilon():
    for content, words in (("", "no rounds"), (text(line(0, events=[], clients=[])), "of a run that has an epsilon")):
        with pytest.raises(ConfigurationError, match=words):
            read_rounds(content, PHASE, "x").epsilons()
