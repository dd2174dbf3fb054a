"""`fedjax-dp account`, `calibrate` and `claims`: the library's numbers, readable, and refusals in one line."""

import json
import pathlib

import pytest

from fedjax_dp import accounting
from fedjax_dp.accounting import ACCOUNTANTS, Adjacency, GaussianSteps, WithoutReplacement, epsilon_of
from fedjax_dp.tools import cli

FIXED = ["--sampling", "without-replacement", "--batch-size", "10", "--records", "600", "--adjacency", "replace-one"]
COMMON = ["--steps", "600", "--delta", "1e-3"]
POISSON = ["--sampling", "poisson", "--rate", "0.01", "--adjacency", "add-remove"]


def json_of(capsys, *words):
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_account_gives_every_accountants_number_or_reason(capsys):
    content = json_of(capsys, "account", "--noise-multiplier", "2", *COMMON, *FIXED)
    event = GaussianSteps(2.0, WithoutReplacement(10, 600), Adjacency.REPLACE_ONE, 600)
    by_name = {entry["accountant"]: entry for entry in content["guarantees"]}
    assert list(by_name) == list(ACCOUNTANTS)
    for name in ("pld", "rdp", "zcdp"):
        assert by_name[name]["epsilon"] == epsilon_of(event, 1e-3, name)
        assert by_name[name]["reason"] is None
    assert by_name["gaussian"]["epsilon"] is None
    assert "needs unsampled sums" in by_name["gaussian"]["reason"]
    assert "rho <= 0.1" in by_name["tcdp"]["reason"]
    assert content["lower_bound"]["epsilon"] == epsilon_of(event, 1e-3, accounting.ATTAINED)
    assert content["inputs"]["noise_multiplier"] == 2.0
    assert content["inputs"]["batch_size"] == 10
    assert content["inputs"]["unit"] == "record"
    assert content["warnings"] == []


def test_plain_words_of_an_epsilon_are_those_of_the_same_event(capsys):
    words = ["account", "--noise-multiplier", "2", *COMMON, *FIXED, "--plain"]
    event = GaussianSteps(2.0, WithoutReplacement(10, 600), Adjacency.REPLACE_ONE, 600)
    bounds = accounting.attack_bounds(event, epsilon_of(event, 1e-3), 1e-3)
    assert json_of(capsys, *words)["attack"] == bounds.to_dict(accounting.Unit.RECORD, Adjacency.REPLACE_ONE)
    assert cli.main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(line in printed for line in bounds.in_words(accounting.Unit.RECORD, Adjacency.REPLACE_ONE))


def test_account_knows_every_option(capsys):
    words = "--steps 1 --delta 1e-3 --sampling none --adjacency replace-one --view secure_sum --cohort-size 10"
    words += " --colluders 1 --local-steps 1 --rounds 20 --participation 0.5 --unit client"
    content = json_of(capsys, "account", "--noise-multiplier", "2", *words.split())
    own = GaussianSteps(6.0, accounting.FullBatch(), Adjacency.REPLACE_ONE, 1, accounting.Unit.CLIENT)
    law = accounting.RandomParticipation(own, 0.5, 20)
    assert content["guarantees"][0]["epsilon"] == pytest.approx(epsilon_of(law, 1e-3), rel=1e-9)
    assert "client with all its records" in content["statement"]
    for sampling in ("with-replacement", "shuffled"):
        words = ["account", "--noise-multiplier", "9", *COMMON, "--sampling", sampling, *FIXED[2:]]
        assert json_of(capsys, *words)["guarantees"][0]["epsilon"] > 0


@pytest.mark.parametrize(
    ("words", "sampling", "adjacency"),
    [
        (["allocation", "--chosen", "2", "--of", "6"], accounting.RandomAllocation(2, 6), "add-remove"),
        (["bins", "--of", "6", "--records", "9"], accounting.BallsInBins(6), "zero-out"),
        (
            ["truncated", "--rate", "0.1", "--capacity", "3", "--records", "9"],
            accounting.TruncatedPoisson(0.1, 3, 9),
            "zero-out",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_account_knows_laws_that_span_sums(words, sampling, adjacency, capsys):
    event = GaussianSteps(2.0, sampling, Adjacency(adjacency), 12)
    common = ["--steps", "12", "--delta", "1e-5", "--adjacency", adjacency]
    content = json_of(capsys, "account", "--noise-multiplier", "2", *common, "--sampling", *words)
    assert content["guarantees"][0]["epsilon"] == epsilon_of(event, 1e-5)
    assert str(sampling) in content["statement"]


def test_calibrate_inverts_account(capsys):
    content = json_of(capsys, "calibrate", "--epsilon", "1", *COMMON, *POISSON)
    for entry in content["noise_multipliers"]:
        if entry["noise_multiplier"] is None:
            assert entry["reason"]
            continue
        noise = repr(entry["noise_multiplier"])
        back = json_of(capsys, "account", "--noise-multiplier", noise, *COMMON, *POISSON)
        (spent,) = [e["epsilon"] for e in back["guarantees"] if e["accountant"] == entry["accountant"]]
        assert 0.999 < spent <= 1.0


def test_people_read_unit_adjacency_view_and_reasons(capsys):
    assert cli.main(["account", "--noise-multiplier", "2", "--steps", "600", "--delta", "0.01", *FIXED]) == 0
    out = capsys.readouterr().out
    for words in (
        "one record of one client",
        "replace-one neighbours",
        "whoever sees every noisy sum",
        "the true epsilon lies between",
        "delta 0.01",
        "10 of 600 without replacement",
        "lower bound",
        "warning: delta 0.01 is above 1/600",
    ):
        assert words in out


@pytest.mark.slow
def test_pictures_are_written(capsys):
    assert cli.main(["account", "--noise-multiplier", "2", *COMMON, *FIXED, "--plot", "a.png"]) == 0
    assert cli.main(["calibrate", "--epsilon", "1", *COMMON, *POISSON, "--plot", "b.png"]) == 0
    for name in ("a.png", "b.png"):
        assert pathlib.Path(name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_claims_prints_and_draws_the_table_of_one_paper(capsys):
    """All papers' numbers: tests/tools/papers/test_claims.py."""
    assert cli.main(["claims", "--paper", "acs_pldp", "--plot", "c.png"]) == 0
    out = capsys.readouterr().out
    assert "acs_pldp" in out
    assert "…" not in out  # nothing is cut off
    assert pathlib.Path("c.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    content = json_of(capsys, "claims", "--paper", "acs_pldp")["claims"]
    assert {row["paper"] for row in content} == {"acs_pldp"}
    assert {"claimed_epsilon", "provable_epsilon", "noise_ratio", "verdict", "reason"} <= set(content[0])


Z = ["account", "--noise-multiplier", "2"]
POISSON_OF, ONE = ["--sampling", "poisson", "--adjacency", "add-remove"], "positive and finite, got"
BROADCAST = [*Z, *COMMON, *FIXED, "--view", "broadcast", "--cohort-size", "9"]
ALLOCATION = "--adjacency add-remove --sampling allocation --of 4"
UNREACHABLE = "calibrate --epsilon 1e-9 --steps 100000000 --delta 1e-12 --adjacency add-remove"
BAD = [  # each ends in one line with code 2: test_cli.py
    (["account", *COMMON, *POISSON], "noise_multiplier must be given, got nothing; add --noise-multiplier"),
    ([*Z[:2], "0", *COMMON, *POISSON], f"noise_multiplier must be {ONE} 0.0"),
    ([*Z[:2], "nan", *COMMON, *POISSON], f"noise_multiplier must be {ONE} nan"),
    ([*Z, *COMMON, *POISSON_OF], "rate must be given for poisson sampling, got"),
    ([*Z, *COMMON, *FIXED[:4], "--records", "5", *FIXED[6:], "--unit", "client"], "at most the 5 records, got 10"),
    ([*Z, *COMMON, *FIXED, "--last", "keep"], "last must be left out for sampling without-replacement"),
    ([*Z, *COMMON, *FIXED, "--rate", "0.1"], "rate must be left out for sampling without-replacement"),
    ([*Z, *COMMON, *ALLOCATION.split(), "--chosen", "5"], "chosen must be at most the 4 sums of a pass, got 5"),
    ([*Z, "--steps", "1.5", "--delta", "1e-5", *POISSON], "--steps must be an integer, got '1.5'"),
    ([*Z, "--steps", "5", *POISSON], "delta must be given"),
    ([*Z, *COMMON, *POISSON[:-1], "replace"], "did you mean replace-one?"),
    ([*Z, *COMMON, *POISSON[:-2]], "adjacency must be given"),
    ([*Z, *COMMON, "--sampling", "poison", "--adjacency", "add-remove"], "did you mean poisson?"),
    (
        [*Z, *COMMON, *POISSON, "--rounds", "4"],
        "rounds and participation must be given together, or neither, got rounds alone; add --participation",
    ),
    ([*Z, *COMMON, *POISSON, "--colluders", "1"], "colluders must be left out in view uploads"),
    ([*Z, *COMMON, *POISSON, "--nosie", "1"], "argument must be an option of fedjax-dp account"),
    ([*Z, *COMMON, *POISSON, "my_run"], "argument must be left out, got 'my_run'; fedjax-dp account takes no other"),
    (["calibrate", "--epsilon", "-1", *COMMON, *POISSON], f"epsilon must be {ONE} -1"),
    ([*Z], "steps and delta and adjacency must be given, got nothing; add --steps --delta --adjacency"),
    ([*Z, *COMMON, *POISSON, "--noise", "1"], "did you mean --noise-multiplier?"),
    (BROADCAST, "local_steps must be given together"),
    ([*BROADCAST, "--local-steps", "1", "--colluders", "9"], "colluders must be an integer from 0 to 8"),
    (UNREACHABLE.split(), "the budget must be reachable"),
    (["claims", "--paper", "9"], "paper must be one of dpnfl"),
    (["claims", "--paper", "rfedavg", "--plot", "x.png"], "drawn for a paper with calibrated noise"),
    ([*Z, *COMMON, *FIXED, "--accountant", "pld"], "accountant must be left out without --ledger"),
]


LOG = [*Z, "--steps", "1", "--delta", "1e-5", "--adjacency", "replace-one", "--participation-log", "log.csv"]


def test_a_participation_log_counts_the_rounds_of_its_busiest_client(capsys, tmp_path, monkeypatch):
    """The first case `participation_log` of the specification's participation_vectors.json; 40 digits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("round,client\n0,0\n0,1\n1,2\n2,0\n3,1\n4,0\n5,2\n7,0\n")
    content = json_of(capsys, *["5" if word == "2" else word for word in LOG], "--unit", "client")
    by_name = {entry["accountant"]: entry["epsilon"] for entry in content["guarantees"]}
    assert by_name["gaussian"] == pytest.approx(3.3869331861562646, rel=1e-9)
    assert "4 rounds of the busiest of 3 clients by log.csv" in content["statement"]
    hidden = ["--unit", "client", "--view", "broadcast", "--sampling", "poisson", "--rate", "0.1"]
    for more, words in (
        (["--rounds", "3"], "rounds must be left out beside a participation log"),
        (["--participation", "0.5"], "participation must be left out beside a participation log"),
        (hidden, "a log that is public amplifies nothing"),
        (["--view", "final_model", "--cohort-size", "2", "--local-steps", "1"], "above the 1 in a round of log.csv"),
    ):
        assert cli.main([*LOG, *more]) == 2
        content = capsys.readouterr()
        assert (content.out, words in content.err, content.err.count("\n")) == ("", True, 1), content.err


PLAIN_USER = [*Z, "--steps", "2", "--delta", "1e-5", "--adjacency", "replace-one", "--unit", "user"]
TOGETHER = ["--view", "secure_sum", "--cohort-size", "2", "--local-steps", "1"]
FEWER = (
    "--steps 2 --delta 1e-5 --adjacency replace-one --unit client --view broadcast --sampling without-replacement "
    "--batch-size 10 --records 100 --cohort-size 50 --local-steps 1"
)
TURNS = "calibrate --epsilon 2 --steps 64 --records 1024 --batch-size 64 --delta 1e-6 --adjacency add-remove"
CORRELATED = [*TURNS.split(), "--correlation", "none"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*PLAIN_USER, "--records-per-user", "3,3", *TOGETHER], "must be left out for a user at several clients"),
        ([*Z, *FEWER.split()], "cohort_size must be 10, the clients that are drawn, got 50"),
        (
            [*PLAIN_USER, "--records-per-user", "1,1", "--rounds", "9", "--participation", "0.1"],
            "must be left out for a user at several clients",
        ),
        (
            [
                *Z,
                "--steps",
                "2",
                "--delta",
                "1e-5",
                "--adjacency",
                "add-remove",
                "--unit",
                "client",
                "--view",
                "deployed",
            ],
            "clients' own models have no noise of the sum of updates",
        ),
        (
            [*CORRELATED, "--view", "broadcast"],
            "view must be left out with --correlation",
        ),
        ([*CORRELATED, "--rounds", "9"], "rounds must be left out with --correlation"),
    ],
)
def test_what_no_law_covers_together_is_refused_in_one_line(capsys, words, line):
    assert cli.main(words) == 2
    content = capsys.readouterr()
    assert (content.out, line in content.err, content.err.count("\n")) == ("", True, 1), content.err


def test_a_client_that_knows_its_own_draw_knows_more_of_a_fixed_number(capsys):
    """Of two of whom one is drawn, the other knows who: no sampling hides anybody from it."""
    common = [*Z, "--steps", "10", "--delta", "1e-5", "--adjacency", "replace-one", "--unit", "client"]
    one_of_two = ["--sampling", "without-replacement", "--batch-size", "1", "--records", "2"]
    known = json_of(capsys, *common, *one_of_two, "--view", "broadcast")["guarantees"][0]["epsilon"]
    hidden = json_of(capsys, *common, *one_of_two, "--view", "final_model")["guarantees"][0]["epsilon"]
    seen = json_of(capsys, *common)["guarantees"][0]["epsilon"]
    assert hidden < known == pytest.approx(seen, rel=1e-3)


def test_a_pass_that_is_not_finished_has_no_lower_bound(capsys):
    words = [*Z, "--steps", "1", "--sampling", "allocation", "--of", "20", "--chosen", "1", "--delta", "0.01"]
    content = json_of(capsys, *words, "--adjacency", "add-remove")
    assert content["lower_bound"]["epsilon"] is None
    assert content["guarantees"][0]["epsilon"] > 0
