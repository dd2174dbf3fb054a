"""Laws of what is proved of a deployment, whatever its numbers."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy

from fedjax_dp.accounting import Adjacency, epsilon_of
from fedjax_dp.accounting.events import RandomParticipation
from fedjax_dp.tools.deployments import Deployment, check
from fedjax_dp.tools.deployments.mechanism import mechanism_of
from fedjax_dp.tools.deployments.rules import Case, hypothetical_epsilon

RECORD = {
    "unit": "record",
    "delta": 1e-5,
    "rounds": 4,
    "clients": {"law": "all", "of": 3},
    "records": {"law": "poisson", "rate": 0.05, "steps": 5},
    "clip": {"of": "record", "norm": "l2", "bound": 2.0},
    "noise": {"law": "gaussian", "std": 2.0, "on": "sum", "by": "client"},
}
CENTRAL = {
    "unit": "client",
    "delta": 1e-5,
    "rounds": 10,
    "clients": {"law": "fixed", "size": 10, "of": 100},
    "clip": {"of": "update", "norm": "l2", "bound": 2.0},
    "noise": {"law": "gaussian", "std": 0.2, "on": "mean", "by": "server"},
    "weights": {"largest": 0.1, "denominator": "fixed"},
}
MESSAGE = {
    "unit": "client",
    "delta": 1e-5,
    "rounds": 3,
    "clients": {"law": "all", "of": 3},
    "clip": {"of": "update", "norm": "l2", "bound": 1.0},
    "noise": {"law": "gaussian", "std": 4.0, "on": "message", "by": "client"},
}
ALL = (RECORD, CENTRAL, MESSAGE)


def merged(facts, changes):
    """The facts with others in their place, named `group__fact` or `fact`."""
    made = {name: dict(value) if isinstance(value, dict) else value for name, value in facts.items()}
    for name, value in changes.items():
        group, _, fact = name.partition("__")
        if fact:
            made.setdefault(group, {})[fact] = value
        else:
            made[group] = dict(value) if isinstance(value, dict) else value
    return made


def replace(facts, **changes):
    """The deployment with other facts."""
    return Deployment(**merged(facts, changes))


def epsilon(facts, **changes):
    return check(replace(facts, **changes)).mechanism.epsilon


@pytest.mark.parametrize("facts", ALL)
def test_noise_and_bound_scaled_together_change_nothing(facts):
    twice = {"noise__std": 2 * facts["noise"]["std"], "clip__bound": 2 * facts["clip"]["bound"]}
    assert epsilon(facts, **twice) == epsilon(facts)


@pytest.mark.parametrize("facts", ALL)
def test_more_noise_costs_less_and_a_larger_bound_or_more_rounds_cost_more(facts):
    usual = epsilon(facts)
    assert epsilon(facts, noise__std=1.2 * facts["noise"]["std"]) < usual
    assert epsilon(facts, clip__bound=1.2 * facts["clip"]["bound"]) > usual
    assert epsilon(facts, rounds=facts["rounds"] + 1) > usual


def test_a_larger_share_costs_more_and_is_named():
    checked = check(replace(CENTRAL, weights__largest=0.2))
    assert checked.mechanism.epsilon > epsilon(CENTRAL)
    assert "cohort_mismatch" in checked.reasons
    assert "cohort_mismatch" not in check(replace(CENTRAL)).reasons


@pytest.mark.parametrize(
    ("facts", "group", "laws"),
    [
        (RECORD, "records", ("full", "poisson", "fixed", "with-replacement", "shuffled", "once")),
        (CENTRAL, "clients", ("all", "poisson", "fixed", "with-replacement", "round-robin", "schedule")),
    ],
)
def test_an_unknown_law_costs_no_less_than_every_law_of_the_same_sizes(facts, group, laws):
    sizes = {"size": 5, "of": 100}
    steps = {"steps": 5} if group == "records" else {}
    at = {law: epsilon(facts, **{group: {**steps, **sizes, "law": law}}) for law in (*laws, "unknown")}
    assert at["unknown"] >= max(at.values())
    assert check(replace(facts, **{group: {**steps, **sizes, "law": "unknown"}})).missing == (f"{group}.law",)


def test_what_else_leaves_never_lowers_the_epsilon_of_everything():
    also = [
        {"kind": "counts", "text": "clipped", "to": "server", "epsilon": 0.5},
        {"kind": "norm", "text": "before clipping", "to": "clients", "epsilon": 1.0},
        {"kind": "metrics", "text": "loss", "to": "server"},
    ]
    alone = check(replace(CENTRAL)).mechanism.epsilon
    epsilons = []
    for count in range(len(also) + 1):
        checked = check(replace(CENTRAL, also=also[:count]))
        assert checked.mechanism.epsilon == alone
        epsilons.append(math.inf if checked.total is None else checked.total.epsilon)
    assert epsilons == [alone, alone + 0.5, alone + 1.5, math.inf]


def test_clients_that_are_drawn_hide_nothing_from_a_server_and_nothing_of_records():
    for facts in (RECORD, MESSAGE):
        seldom = {"clients": {"law": "poisson", "rate": 0.01, "of": 3}}
        assert epsilon(facts, **seldom) == epsilon(facts)
    assert epsilon(CENTRAL) < epsilon(CENTRAL, clients={"law": "all", "of": 100})


@pytest.mark.parametrize("draw", [{"law": "fixed", "size": 10}, {"law": "poisson", "rate": 0.1}])
@pytest.mark.parametrize("members", ["known", "unknown"])
def test_draws_that_clients_know_amplify_nothing(draw, members):
    """As in secure sums, whose members agree on masks by name."""
    seen = {"clients": {**draw, "of": 100, "members": members}}
    claim = {"epsilon": 1.0, "per": "run", "assumes": {"clients": draw["law"]}}
    assert epsilon(CENTRAL, **seen) == epsilon(CENTRAL, clients={"law": "all", "of": 100})
    assert epsilon(CENTRAL, **seen, weights={"largest": 0.1}) == epsilon(CENTRAL, **seen)  # as no neighbour is missing
    assert "amplification_from_visible_clients" in check(replace(CENTRAL, **seen, claim=claim)).reasons


def test_noise_of_the_server_hides_nothing_from_it():
    checked = check(replace(CENTRAL), view="server")
    assert checked.verdict == "no privacy"
    assert checked.reasons == ("no_noise:server",)


def test_one_draw_for_the_run_is_revealed():
    """delta of one draw is the chance to be drawn times that of the Gaussian (a closed form)."""
    deployment = replace(RECORD, records={"law": "once", "rate": 0.05, "steps": 5})
    (event,) = mechanism_of(deployment).costs[0].events
    assert isinstance(event, RandomParticipation)
    assert check(deployment).mechanism.epsilon == pytest.approx(epsilon_of(event.each, 1e-5 / 0.05), rel=1e-3)
    claim = {"epsilon": 1e9, "per": "run", "assumes": {"records": "poisson"}}
    assert "amplification_of_one_draw" in check(dataclasses.replace(deployment, claim=claim)).reasons


def test_tensors_clipped_one_by_one_have_the_square_root_of_their_number_times_the_bound():
    parts = epsilon(MESSAGE, clip__scope="tensor", clip__tensors=9)
    assert parts == epsilon(MESSAGE, clip__bound=3.0)


def test_laplace_noise_is_counted_by_its_l1_norm():
    laplace = {"law": "laplace", "std": math.sqrt(2), "on": "message", "by": "client"}  # scale 1
    assert epsilon(MESSAGE, noise=laplace, clip__norm="l1") == pytest.approx(2 * 3)
    ball = check(replace(MESSAGE, noise=laplace, clip__coordinates=100))
    assert ball.mechanism.epsilon == pytest.approx(2 * 10 * 3)
    assert "norm_mismatch" in ball.reasons
    assert ball.mechanism.delta == 0
    assert epsilon(MESSAGE, noise=laplace, clip__norm="coordinate", clip__coordinates=100) == pytest.approx(600)


def test_counts_with_noise_take_their_part_of_an_adaptive_bound():
    """Andrew et al. 2021, Theorem 1."""
    adaptive = replace(CENTRAL, clip__threshold="adaptive", clip__count_noise=1.0, noise__scale="bound")
    (z,) = mechanism_of(adaptive).multipliers
    assert z**-2 == pytest.approx(1.0**-2 + 2.0**-2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise__law": "none"}, "no_noise"),
        ({"noise__std": 0.0}, "no_noise"),
        ({"clip__of": "nothing"}, "unclipped"),
        ({"clip__of": "batch"}, "unclipped"),
        ({"clip__of": "aggregate"}, "clip_after_aggregate"),
        ({"clip__threshold": "private"}, "private_threshold"),
        ({"clip__threshold": "unknown"}, "private_threshold"),
        ({"noise__scale": "private"}, "private_scale"),
        (
            {"noise__scale": "next-bound", "clip__threshold": "adaptive", "clip__count_noise": 1.0},
            "noise_of_next_bound",
        ),
        ({"ignored": ["noise"]}, "ignored_setting"),
    ],
)
def test_what_bounds_nothing_has_no_epsilon_and_no_claim_about_it_is_true(changes, reason):
    checked = check(replace(CENTRAL, **changes))
    assert checked.reasons[0] == reason
    assert checked.verdict == "no privacy"
    assert checked.total is None
    assert checked.fails
    claim = {"epsilon": 1e5, "per": "run"}
    assert check(replace(CENTRAL, **changes, claim=claim)).verdict == "wrong"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise__misses": ["counters"]}, "unnoised_tensor"),
        ({"also": [{"kind": "preprocessing", "text": "a scaler", "to": "server"}]}, "private_preprocessing"),
        ({"also": [{"kind": "batchnorm", "text": "means", "to": "server"}]}, "extra_release:batchnorm"),
        ({"also": [{"kind": "threshold", "text": "zeroing", "to": "clients"}]}, "private_threshold:zeroing"),
    ],
)
def test_what_no_noise_covers_leaves_the_noisy_updates_their_epsilon(changes, reason):
    checked = check(replace(CENTRAL, **changes, claim={"epsilon": 1e4, "per": "run"}))
    assert checked.reasons == (reason,)
    assert checked.mechanism.epsilon == epsilon(CENTRAL)
    assert checked.total is None
    assert checked.verdict == "conditional"


def test_a_claim_holds_from_what_is_proved_on_and_is_wrong_below_what_is_attained():
    proved = epsilon(MESSAGE)
    verdicts = {
        factor: check(replace(MESSAGE, claim={"epsilon": factor * proved, "per": "run"})).verdict
        for factor in (0.9, 0.9995, 1.0, 1.1)
    }
    assert verdicts == {0.9: "wrong", 0.9995: "conditional", 1.0: "holds", 1.1: "holds"}


@pytest.mark.parametrize("facts", [RECORD, MESSAGE])
@pytest.mark.parametrize("law", ["fixed", "poisson", "schedule", "round-robin", "with-replacement", "unknown"])
def test_who_is_not_surely_in_every_round_attains_less_than_all_of_them(facts, law):
    """Of seen draws all rounds are counted; what neighbours attain is at most the mean of delta over the draw."""
    certain = mechanism_of(replace(facts)).attained_epsilon(1e-5)
    seldom = mechanism_of(replace(facts, clients={"law": law, "size": 4, "of": 10}))
    assert seldom.epsilon(1e-5) == pytest.approx(epsilon(facts)) or law == "round-robin"
    assert seldom.attained_epsilon(1e-5) < certain
    if law in ("fixed", "poisson") and facts is MESSAGE:
        e, normal = seldom.attained_epsilon(1e-5), scipy.stats.norm
        mus = 2 / 4 * np.sqrt([1, 2, 3])  # of as many rounds
        gaps = normal.cdf(mus / 2 - e / mus) - math.exp(e) * normal.cdf(-mus / 2 - e / mus)
        assert 1e-5 <= scipy.stats.binom.pmf([1, 2, 3], 3, 0.4) @ gaps <= 1.01e-5
    elif law not in ("fixed", "poisson"):
        assert seldom.attained_epsilon(1e-5) == 0


def test_a_pass_that_ends_early_does_not_have_every_record():
    passes = {"law": "shuffled", "size": 5, "of": 50}
    ends, whole = (mechanism_of(replace(RECORD, records={**passes, "steps": steps})) for steps in (11, 20))
    assert ends.epsilon(1e-5) == whole.epsilon(1e-5)
    assert ends.attained_epsilon(1e-5) == 0 < whole.attained_epsilon(1e-5)


def test_laplace_noise_on_many_coordinates_is_attained_coordinate_by_coordinate():
    """10,000 numbers of epsilon .01 each are at most (4.376, 1e-5)-private by the theorem on composition (Kairouz, Oh,
    Viswanath 2015): no test attains 100 but by chance 2^-10000."""
    laplace = {"law": "laplace", "std": 200 * math.sqrt(2), "on": "message", "by": "client"}
    facts = {"noise": laplace, "clip__bound": 1.0, "rounds": 1, "claim": {"epsilon": 10.0, "per": "run"}}
    by_tensor = {"clip__norm": "l1", "clip__scope": "tensor", "clip__tensors": 10_000}
    for norm in ({"clip__norm": "coordinate", "clip__coordinates": 10_000}, by_tensor):
        checked = check(replace(MESSAGE, **facts, **norm))
        assert epsilon(MESSAGE, **facts, **norm) == pytest.approx(100)
        assert checked.claim.verdict == "conditional"
        assert "not proved" in checked.claim.reason


def test_a_fact_that_is_counted_at_its_worst_is_attained_by_nobody_known():
    facts = {"weights": {"largest": "unknown"}, "noise__std": 1.0, "claim": {"epsilon": 1.0, "per": "run"}}
    checked = check(replace(CENTRAL, **facts))
    assert epsilon(CENTRAL, **facts) > 1
    assert checked.claim.verdict == "conditional"


def test_laplace_noise_of_clients_that_are_perhaps_absent_has_no_attained_epsilon():
    laplace = {"noise": {"law": "laplace", "std": 3.0, "on": "message", "by": "client"}, "clip__norm": "l1"}
    selection = {"epsilon": 1.0, "of": 100, "fraction": 0.1, "release": 0.1}
    chosen = {"noise": {"law": "laplace", "on": "message", "by": "client"}, "selection": selection}
    for facts in (laplace, chosen):
        everybody = mechanism_of(replace(MESSAGE, **facts))
        seldom = mechanism_of(replace(MESSAGE, **facts, clients={"law": "fixed", "size": 4, "of": 10}))
        assert seldom.epsilon(1e-5) == pytest.approx(everybody.epsilon(1e-5))
        assert seldom.attained_epsilon(1e-5) == 0 < everybody.attained_epsilon(1e-5)


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"clients": {"law": "all", "of": 100}}, True),
        ({"clients": {"law": "fixed", "size": 10, "of": 100, "members": "known"}}, True),
        ({"clients": {"law": "fixed", "size": 10, "of": 100}}, False),
        ({"clients": {"law": "all", "of": 100}, "clip__threshold": "adaptive", "clip__count_noise": 1.0}, False),
    ],
)
def test_zero_updates_have_half_the_sensitivity_where_nothing_is_sampled_or_counted(changes, holds):
    """Of 20 of 1,000, in whose place others are drawn, 200 rounds of multiplier 2 attain 1.27, not half: 0.64."""
    scale = {"noise__scale": "bound"} if "clip__threshold" in changes else {}
    half = epsilon(CENTRAL, **changes, **scale, noise__std=0.4)
    checked = check(replace(CENTRAL, **changes, **scale, claim={"epsilon": half, "per": "run"}))
    assert ("adjacency_of_fixed_cohorts" in checked.reasons) is holds


@pytest.mark.parametrize("law", ["poisson", "fixed", "with-replacement", "all", None])
def test_a_population_that_a_claim_assumes_costs_what_a_description_of_it_does(law):
    claim = {"epsilon": 3.0, "per": "run", "assumes": {"population": 10**4, "cohort": 100}}
    claim["assumes"] |= {"clients": law} if law else {}
    case = Case(replace(CENTRAL), replace(CENTRAL, claim=claim).claim, mechanism_of(replace(CENTRAL)))
    of_that_size = {"law": law or "unknown", "size": 100, "of": 10**4}
    assert hypothetical_epsilon(case) == epsilon(CENTRAL, clients=of_that_size, weights__largest=0.01)
    summed = replace(CENTRAL, noise__on="sum", noise__std=2.0)
    assert hypothetical_epsilon(case._replace(deployment=summed)) == hypothetical_epsilon(case)
    seen = replace(CENTRAL, clients__members="known")
    assert hypothetical_epsilon(case._replace(deployment=seen)) is None


def test_a_claim_of_fewer_steps_than_are_taken_is_wrong_and_says_how_many_it_is_of():
    two = epsilon(RECORD, rounds=2)
    checked = check(replace(RECORD, claim={"epsilon": two, "per": "run"}))
    assert checked.verdict == "wrong"
    assert checked.reasons == ("steps_exceed_plan",)
    assert "20 noisy steps per client, but noise for 10" in checked.claim.reason


def test_divisors_that_count_who_came_leave_no_amplification():
    poisson = {"clients": {"law": "poisson", "rate": 0.1, "of": 100}}
    fixed = check(replace(CENTRAL, **poisson))
    counts = check(replace(CENTRAL, **poisson, weights__denominator="count"))
    assert fixed.mechanism.adjacency is Adjacency.ADD_REMOVE
    assert counts.mechanism.adjacency is Adjacency.REPLACE_ONE
    assert "count_denominator" in counts.reasons
    assert counts.mechanism.epsilon == epsilon(CENTRAL, clients={"law": "all", "of": 100})


def test_gaussian_noise_has_no_epsilon_at_delta_zero():
    checked = check(replace(MESSAGE, claim={"epsilon": 1e5, "delta": 0.0, "per": "run"}))
    assert checked.verdict == "wrong"
    assert "no epsilon is finite at delta 0" in checked.claim.reason


def test_a_large_delta_is_no_claim():
    checked = check(replace(MESSAGE, claim={"epsilon": 1e5, "delta": 0.2, "per": "run"}))
    assert checked.verdict == "wrong"
    assert "delta_not_small" in checked.reasons


def test_every_statement_says_unit_neighbours_view_and_what_was_not_mentioned():
    for facts, view in itertools.product(ALL, ("server", "clients")):
        if facts is CENTRAL and view == "server":
            continue
        checked = check(replace(facts), view=view)
        assert f"for one {checked.mechanism.unit}" in checked.statement
        assert str(checked.mechanism.view) in checked.statement
        assert "assumed not sent" in checked.other_releases[-1]
        assert checked.to_dict()["verdict"] == "no claim"
