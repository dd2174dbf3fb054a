"""What a log of steps proves, against the laws that it takes the place of, and what no log may say."""

import json
import random
import tracemalloc

import pytest
from helpers import SPECS, refusal
from test_judgement import CENTRAL, MESSAGE, RECORD, replace

from fedjax_dp.tools.deployments import Deployment, check
from fedjax_dp.tools.deployments.log import mechanism_of_log

GOLDEN = json.loads((SPECS / "other_systems.json").read_text())["logs"]


@pytest.fixture
def written(tmp_path):
    def write(rows, text=None, encoding=None):
        path = tmp_path / "steps.csv"
        columns = list(rows[0]) if rows else []
        lines = [",".join(columns), *(",".join(str(row[name]) for name in columns) for row in rows)]
        path.write_text("\n".join(lines) + "\n" if text is None else text, encoding=encoding)
        return path

    return write


def epsilon(facts, log):
    return check(replace(facts), log=log).mechanism.epsilon


BARE = {
    "log-opacus": {
        "unit": "record",
        "clip": {"of": "record", "norm": "l2"},
        "noise": {"law": "gaussian", "on": "sum", "by": "client"},
    },
    "log-dropouts": {
        "unit": "client",
        "clip": {"of": "update", "norm": "l2"},
        "noise": {"law": "gaussian", "on": "mean", "by": "server"},
    },
}


@pytest.mark.parametrize("name", GOLDEN)
def test_logs_have_the_epsilon_of_the_oracle(name, written):
    log = GOLDEN[name]
    deployment = Deployment(delta=log["delta"], rounds=3, clients={"law": "all"}, **BARE[name])
    checked = check(deployment, log=written(log["rows"]))
    assert checked.mechanism.epsilon == pytest.approx(log["epsilon"], rel=0.005)
    assert checked.missing == ()


def record_rows(rounds=4, clients=3, **more):
    return [{"round": r, "client": c, "steps": 5, **more} for r in range(rounds) for c in range(clients)]


def share_rows(rounds=10, replies=10, **more):
    return [{"round": r, "client": c, "share": 1 / replies, **more} for r in range(rounds) for c in range(replies)]


def test_a_log_in_which_everybody_does_what_the_laws_say_changes_no_digit(written):
    assert epsilon(RECORD, written(record_rows())) == check(replace(RECORD)).mechanism.epsilon
    marked = written(record_rows(), encoding="utf-8-sig")  # by a mark in front, as spreadsheets write it
    assert epsilon(RECORD, marked) == check(replace(RECORD)).mechanism.epsilon
    everybody = check(replace(CENTRAL, clients={"law": "schedule", "of": 100})).mechanism.epsilon
    assert epsilon(CENTRAL, written(share_rows())) == everybody
    assert epsilon(CENTRAL, written([{"round": r, "replies": 10} for r in range(10)])) == everybody
    rows = [{"round": r, "client": c} for r in range(3) for c in range(3)]
    assert epsilon(MESSAGE, written(rows)) == check(replace(MESSAGE)).mechanism.epsilon


def test_rows_that_are_removed_never_raise_epsilon(written):
    rows, last = record_rows(), float("inf")
    shuffler = random.Random(1)
    while rows:
        now = epsilon(RECORD, written(rows))
        assert now <= last
        last = now
        rows.pop(shuffler.randrange(len(rows)))


def test_a_larger_share_one_more_step_and_one_more_round_never_lower_epsilon(written):
    usual = epsilon(RECORD, written(record_rows()))
    assert epsilon(RECORD, written([row | {"steps": 6} for row in record_rows()])) > usual
    assert epsilon(RECORD, written(record_rows(rounds=5))) > usual
    rounds = [{"round": r, "share": 0.1} for r in range(10)]
    fewer = epsilon(CENTRAL, written(rounds))
    assert epsilon(CENTRAL, written([*rounds[:-1], {"round": 9, "share": 0.2}])) > fewer


def test_clients_are_counted_for_their_own_rows_alone(written):
    rows = [row for row in record_rows() if row["client"] == 0 or row["round"] == 0]
    epsilons = check(replace(RECORD), log=written(rows)).mechanism.epsilons
    assert epsilons[0] == check(replace(RECORD)).mechanism.epsilon
    assert epsilons[1] == epsilons[2] == check(replace(RECORD, rounds=1)).mechanism.epsilon


def test_a_norm_above_the_bound_shows_that_nothing_was_clipped(written):
    rows = [row | {"clip": 2.0, "norm_after": 2.0} for row in share_rows()]
    assert check(replace(CENTRAL), log=written(rows)).verdict == "no claim"
    rows[7]["norm_after"] = 2.1
    checked = check(replace(CENTRAL), log=written(rows))
    assert checked.reasons == ("unclipped",)
    assert checked.verdict == "no privacy"


def test_noise_that_changes_under_one_bound_is_named_and_no_noise_ends_it(written):
    rows = [{"round": r, "replies": 10, "noise_std": 0.2, "clip": 2.0} for r in range(3)]
    rows[1]["noise_std"] = 0.3
    assert check(replace(CENTRAL), log=written(rows)).reasons == ("noise_changes",)
    rows[1]["noise_std"] = 0.0
    assert "no_noise" in check(replace(CENTRAL), log=written(rows)).reasons


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("round;replies\n0;10\n", "row 1"),
        ("round,noise_std\n0,0,2\n", "row 2"),
        ('round,noise_std\n0,"0,2"\n', "row 2, column noise_std"),
        ("round,replies\n0,ten\n", "row 2, column replies"),
        ("round,replies\n1,10\n0,10\n", "row 3, column round"),
        ("round,replies\n0,10\n0,10\n", "row 3"),
        ("round,client,share\n0,a,0.5\n0,b,0.4\n1,a,1\n", "shares of round 0"),
        ("round,client,share\n0,a,0.5\n0,b,0.4\n", "shares of round 0"),
        ("round,nose_std\n0,0.2\n", "row 1"),
        ("round,replies,replies\n0,10,10\n", "row 1"),
        ("replies\n10\n", "row 1"),
        ("round,replies\n", "rows"),
        ("", "row 1"),
        ("round,noise_std\n0,nan\n", "row 2, column noise_std"),
        ("round,noise_std\n0,-1\n", "row 2, column noise_std"),
        ("round,clip\n0,0\n", "row 2, column clip"),
        ("round,weights\n0,alike\n", "row 2, column weights"),
        ("round,weights\n0,equal\n", "replies"),
        ("round,share\n0,1.5\n", "row 2"),
        ("round,noise_std\n0,1_0\n", "row 2, column noise_std"),
        ("round,replies,weights\n0,1000,equal\n", "replies"),
        ("round,client,replies,weights\n0,a,100,equal\n0,b,100,equal\n", "shares of round 0"),
        ("round,replies,noise_multiplier\n0,10,1\n", "write noise_std"),
        ('round,client\n0,"a\n1,b\n2,c"\n', "row 2"),
        ('round,client\n0,a\n1,"b\n2,c\n', "row 3"),
    ],
)
def test_rows_that_cannot_be_true_are_refused_in_a_line_that_says_where(text, where, written):
    assert where in refusal(check, replace(CENTRAL), log=written([], text))


def test_a_log_may_not_say_less_than_the_description(written):
    counted = replace(CENTRAL, weights__denominator="count")
    assert "share" in refusal(check, counted, log=written([], "round,replies,share\n0,10,0.05\n"))
    assert "share" in refusal(check, counted, log=written([], "round,share\n0,0.005\n"))
    several = written([{"round": 0, "client": name} for name in "abcd"])
    assert "4 names" in refusal(check, replace(RECORD), log=several)
    for clip in ({"scope": "tensor", "tensors": 9}, {"norm": "coordinate", "coordinates": 100}):
        changed = replace(RECORD, clip={**RECORD["clip"], **clip})
        assert "write noise_std" in refusal(check, changed, log=written([], "round,noise_multiplier\n0,1\n"))


AVERAGED = {**CENTRAL, "weights": {"largest": 0.1}}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("round,replies\n0,10\n1,4\n", "row 3: weights.largest must be at least 1/4"),
        ("round,replies,share\n0,4,0.25\n1,4,\n", "row 3: weights.largest must be at least 1/4"),
        ("round,client\n" + "".join(f"{r},{c}\n" for r in range(2) for c in range(10 - r)), "shares of round 1"),
    ],
)
def test_a_described_share_of_more_replies_than_came_is_refused(text, where, written):
    assert where in refusal(check, replace(AVERAGED), log=written([], text))


def test_a_share_that_is_rounded_down_counts_as_an_equal_one_in_a_log_too(written):
    each = [epsilon(AVERAGED, written([{"round": 0, "replies": 3, "share": share}])) for share in (1 / 3, 0.33)]
    assert each[0] == each[1]


def test_noise_that_does_not_follow_an_adaptive_bound_is_refused(written):
    adaptive = {"threshold": "adaptive", "count_noise": 5.0, "count_bits": "half"}
    adaptive = {**CENTRAL, "clip": {**CENTRAL["clip"], **adaptive}, "noise": {**CENTRAL["noise"], "scale": "bound"}}
    rows = [{"round": r, "replies": 10, "clip": 2.0 * (1 + r), "noise_std": 0.2} for r in range(2)]
    assert "noise_std over clip" in refusal(check, replace(adaptive), log=written(rows))
    follows = epsilon(adaptive, written([row | {"noise_std": row["clip"] / 10} for row in rows]))
    assert follows == epsilon(adaptive, written([{"round": r, "replies": 10} for r in range(2)]))


@pytest.mark.parametrize("law", ["with-replacement", "unknown"])
def test_the_share_of_a_client_that_is_perhaps_drawn_twice_stands_in_its_row(law, written):
    twice = replace(AVERAGED, clients={"law": law, "size": 10, "of": 100})
    assert "share must be given" in refusal(check, twice, log=written([], "round,replies\n0,10\n"))
    assert check(twice, log=written([], "round,replies,share\n0,10,0.2\n")).verdict == "no claim"


def test_a_claim_is_judged_by_the_rows_where_the_description_is_blank(written):
    blank = {
        **RECORD,
        "noise": {"law": "gaussian", "on": "sum", "by": "client"},
        "claim": {"epsilon": 1.0, "per": "run"},
    }
    rows = [row | {"noise_multiplier": 1.0, "rate": 0.1, "steps": 100} for row in record_rows(clients=1)]
    assert check(replace(blank), log=written(rows)).verdict == "wrong"
    assumed = {"epsilon": 1.0, "per": "run", "assumes": {"population": 10**6, "cohort": 1000}}
    central = {**AVERAGED, "noise": {"law": "gaussian", "on": "mean", "by": "server"}, "claim": assumed}
    judged = check(replace(central), log=written([], "round,replies,noise_std\n0,10,0.2\n"))
    assert "hypothetical_population" not in judged.reasons


def test_rows_of_all_clients_do_not_say_who_was_there(written):
    """Every client is counted in every round, which is no proof that one was."""
    claim = {"claim": {"epsilon": 1.0, "per": "run"}}
    of_all = written([{"round": r, "replies": 10} for r in range(10)])
    assert check(replace(AVERAGED, **claim), log=of_all).verdict == "conditional"
    everybody = replace(AVERAGED, clients={"law": "all", "of": 10}, **claim)
    assert check(everybody, log=of_all).verdict == "wrong"
    assert check(everybody, log=written([{"round": r} for r in range(10)])).verdict == "wrong"
    assert check(replace(AVERAGED, **claim), log=written(share_rows())).verdict == "wrong"


def test_a_client_is_one_however_its_name_is_written(written):
    rows = record_rows(clients=1)
    several = [row | {"client": name} for row, name in zip(rows, ["A", "A\u200b", '"A"', " A"])]
    assert epsilon(RECORD, written(several)) == epsilon(RECORD, written(rows))


def test_rounds_that_a_log_does_not_have_are_assumed_to_be_none(written):
    lines = check(replace(RECORD), log=written(record_rows(rounds=3))).mechanism.assumptions
    assert "the log is whole: nothing is noised in the other 1 of 4 rounds" in lines


@pytest.mark.parametrize(
    ("facts", "changes", "name"),
    [
        (RECORD, {"records": {"law": "once", "rate": 0.1, "steps": 5}}, "records.law"),
        *(
            (CENTRAL, {"clients__law": law, "noise__on": "sum"}, "clients.law")
            for law in ("with-replacement", "unknown")
        ),
    ],
)
def test_draws_that_no_row_prices_are_refused(facts, changes, name, written):
    """A draw that is kept would count anew in each row, and a client that comes twice only once."""
    text = "round,client,steps\n0,a,5\n1,a,5\n" if facts is RECORD else "round,replies\n0,10\n1,10\n"
    message = refusal(check, replace(facts, **changes), log=written([], text))
    assert name in message
    assert "leave --log out" in message


def test_a_long_log_is_read_row_by_row(written):
    """20,000 rows of three kinds: what is kept is the kinds and how often each client has them."""
    rows = ((r, c, (0.5, 0.25, 0.25)[(r + c) % 3]) for r in range(5_000) for c in range(3))
    text = "round,client,share\n" + "".join(f"{r},{c},{share}\n" for r, c, share in rows)
    path = written([], text)
    tracemalloc.start()
    mechanism_of_log(replace(CENTRAL), path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(text)
