"""What is divided by, what becomes of a rest, what counts are made of: against reckonings of their own."""

import math

import numpy as np
import pytest
import scipy
from helpers import refusal
from test_judgement import CENTRAL, RECORD, replace

from fedjax_dp.accounting import Adjacency
from fedjax_dp.tools.deployments import check, plan
from fedjax_dp.tools.deployments.mechanism import mechanism_of, missing_facts

BY_MEAN = {
    "delta": 1e-5,
    "rounds": 1,
    "clip__bound": 1.0,
    "noise": {"law": "gaussian", "std": 0.1, "on": "mean", "by": "client"},
    "records": {"law": "poisson", "rate": 0.01, "of": 1000, "steps": 1000},
}
PASSES = {**BY_MEAN, "records": {"law": "shuffled", "size": 4, "of": 6, "steps": 2}, "noise__std": 1.0}
ADAPTIVE = {"clip__threshold": "adaptive", "clip__count_noise": 1.0, "noise__scale": "bound"}
FAINT = {  # a count, and updates under so much noise that they tell nothing
    "rounds": 1,
    "clients": {"law": "poisson", "rate": 1.0, "of": 100},
    "noise__on": "sum",
    "noise__std": 1e6,
    **ADAPTIVE,
}


def epsilon(facts, changes, **more):
    return check(replace(facts, **changes, **more)).mechanism.epsilon


def gaussian_epsilon(mu, delta):
    """The exact epsilon of a Gaussian pair at distance mu, by its closed form."""
    normal = scipy.stats.norm

    def gap(e):
        return normal.cdf(mu / 2 - e / mu) - math.exp(e) * normal.cdf(-mu / 2 - e / mu) - delta

    return scipy.optimize.brentq(gap, 0, 600)


def proved_by_a_test(n=1000, rate=0.01, std=0.1, steps=1000, delta=1e-5):
    """Epsilon that the test "some mean is above t" proves of a record of gradient 1 among others of gradient 0.

    It counts only the batches that the record has for itself, all other steps as if they never passed t. Without the
    record every mean is noise alone.
    """
    alone = rate * (1 - rate) ** (n - 1)
    t = np.linspace(1, 1.4, 401)
    power = -np.expm1(steps * np.log1p(-alone * scipy.stats.norm.sf((t - 1) / std)))
    level = math.log(steps) + scipy.stats.norm.logsf(t / std)
    return max(np.log(power[power > delta] - delta) - level[power > delta])


def test_noise_on_a_mean_over_those_who_came_costs_at_least_what_a_test_proves():
    proved = proved_by_a_test()
    assert proved == pytest.approx(54.4, abs=0.5)
    for divisor in ("count", "unknown"):
        checked = check(replace(RECORD, **BY_MEAN, weights__denominator=divisor, claim__epsilon=2.0, claim__per="run"))
        assert checked.mechanism.epsilon > proved
        assert checked.mechanism.adjacency is Adjacency.REPLACE_ONE
        assert checked.verdict == "wrong"
        assert "two real neighbours attain 54.3" in checked.claim.reason
        assert "count_denominator" in checked.reasons
    assert epsilon(RECORD, BY_MEAN, weights__denominator="fixed") == pytest.approx(1.83, abs=0.01)


@pytest.mark.parametrize(
    "records",
    [
        {"law": "poisson", "rate": 0.01, "of": 1000, "steps": 1},
        {"law": "poisson", "size": 10, "of": 1000, "steps": 1},
        {"law": "once", "rate": 0.01, "of": 1000, "steps": 1},
        {"law": "unknown", "size": 10, "of": 1000, "steps": 1},
    ],
)
def test_by_what_a_mean_is_divided_is_asked_for_where_batches_vary(records):
    assert "weights.denominator must be given" in refusal(epsilon, RECORD, {**BY_MEAN, "records": records})
    worst = epsilon(RECORD, {**BY_MEAN, "records": records}, weights__denominator="count")
    alone = {"law": "poisson" if records["law"] == "unknown" else records["law"], "rate": 1.0, "steps": 1, "of": 1}
    if records["law"] != "once":  # a batch of one record, certainly
        assert worst >= epsilon(RECORD, {**BY_MEAN, "records": alone}, weights__denominator="fixed")
    assert worst > 1.5 * epsilon(RECORD, {**BY_MEAN, "records": records}, weights__denominator="fixed")


def test_a_sum_that_is_divided_by_those_who_came_has_no_amplification():
    summed = {**BY_MEAN, "noise__on": "sum", "noise__std": 4.0}
    counted = check(replace(RECORD, **summed, weights__denominator="count"))
    assert counted.mechanism.epsilon == pytest.approx(gaussian_epsilon(2 / 4 * math.sqrt(1000), 1e-5), rel=1e-3)
    assert epsilon(RECORD, summed) == epsilon(RECORD, summed, weights__denominator="fixed")


def test_a_rest_that_is_kept_and_divided_by_its_own_number_weighs_more():
    """4 and 2 of 6 records, in one pass: the record is exchanged in the mean of 2, at distance 2 / 2 of noise 1."""
    kept = epsilon(RECORD, PASSES, records__last="keep", weights__denominator="count")
    assert kept == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-4)
    assert kept == pytest.approx(4.377, abs=1e-3)
    divided = epsilon(RECORD, PASSES, records__last="keep", weights__denominator="fixed")
    assert divided == pytest.approx(gaussian_epsilon(2 / 4, 1e-5), rel=1e-4)
    dropped = epsilon(RECORD, PASSES, records__last="drop")  # its two steps are two passes
    assert dropped == pytest.approx(gaussian_epsilon(2 / 4 * math.sqrt(2), 1e-5), rel=1e-4)
    assert epsilon(RECORD, PASSES, records__last="unknown", weights__denominator="count") >= max(kept, dropped)


def test_what_becomes_of_a_rest_is_asked_for_where_there_is_one():
    deployment = replace(RECORD, **PASSES)
    assert missing_facts(deployment) == ["records.last"]
    keeps = replace(RECORD, **PASSES, records__last="keep")
    assert missing_facts(keeps) == ["weights.denominator"]
    whole = {**PASSES, "records": {"law": "shuffled", "size": 3, "of": 6, "steps": 2}}
    assert missing_facts(replace(RECORD, **whole)) == []


@pytest.mark.parametrize(("bits", "moved"), [("zero-one", 1.0), ("unknown", 1.0), ("half", 0.5)])
def test_a_count_costs_what_a_client_that_comes_moves_it_by(bits, moved):
    told = epsilon(CENTRAL, FAINT, clip__count_bits=bits)
    assert told == pytest.approx(gaussian_epsilon(moved, 1e-5), rel=1e-3)
    if moved == 1.0:
        assert told == pytest.approx(4.377, abs=2e-3)


def test_what_bits_are_is_asked_for_where_clients_come_and_go():
    assert "clip.count_bits must be given" in refusal(epsilon, CENTRAL, FAINT)
    exchanged = {**FAINT, "clients": {"law": "all", "of": 100}, "noise__on": "mean"}
    assert epsilon(CENTRAL, exchanged) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)


def test_tensors_with_bounds_of_their_own_have_a_count_each():
    parts = {**FAINT, "clip__scope": "tensor", "clip__tensors": 4}
    assert epsilon(CENTRAL, parts, clip__count_bits="half") == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)


def test_a_plan_keeps_the_part_of_counts_whatever_their_bits_are():
    rate = {"clients": {"law": "poisson", "rate": 0.1, "of": 100}, **ADAPTIVE, "clip__count_noise": 5.0}
    for bits in ("zero-one", "half"):
        deployment = replace(CENTRAL, **rate, clip__count_bits=bits)
        assert 1.998 < plan(deployment, epsilon=2.0).check.mechanism.epsilon <= 2.0


def test_groups_of_clients_that_leave_a_rest_out_come_round_sooner():
    """4 of 10 in turn, 2 left out: the same four come in rounds 1, 3 and 5."""
    turns = replace(CENTRAL, rounds=5, clients={"law": "round-robin", "size": 4, "of": 10})
    assert [event.count for event in mechanism_of(turns).costs[0].events] == [3]


@pytest.mark.parametrize("law", ["with-replacement", "unknown"])
def test_a_client_that_is_drawn_twice_weighs_twice_for_its_records_too(law):
    central = {"noise__on": "sum", "clients": {"law": law, "size": 50, "of": 100}, "noise__std": 8.0}
    assert epsilon(CENTRAL, central, unit="record") == epsilon(CENTRAL, central)


def test_a_clip_or_noise_that_is_ignored_in_part_is_ignored():
    for name in ("clip.bound", "noise.std"):
        checked = check(replace(CENTRAL, ignored=[name]))
        assert checked.verdict == "no privacy"
        assert checked.reasons == ("ignored_setting",)


def test_a_log_has_the_worst_of_an_unknown_law_and_one_kind_of_neighbours(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("round,client,steps,batch,of,sampling\n0,a,1,50,100,unknown\n")
    unknown = check(replace(RECORD, noise__std=8.0), log=path).mechanism.epsilon
    path.write_text("round,client,steps,batch,of,sampling\n0,a,1,50,100,with-replacement\n")
    assert unknown >= check(replace(RECORD, noise__std=8.0), log=path).mechanism.epsilon
    path.write_text("round,client,steps,batch,of,sampling\n0,a,1,50,100,poisson\n0,b,1,50,100,fixed\n")
    assert "one kind of neighbours" in refusal(check, replace(RECORD), log=path)
    path.write_text("round,client,steps,batch,of,sampling\n0,a,1,50,100,poisson\n")
    assert "weights.denominator" in refusal(check, replace(RECORD, noise__on="mean"), log=path)


def test_the_rests_of_passes_may_differ_from_client_to_client():
    lists = {**PASSES, "records__of": (6, 8, 7), "records__last": "keep", "weights__denominator": "count"}
    apart = [epsilon(RECORD, {**lists, "records__of": of}) for of in lists["records__of"]]
    assert check(replace(RECORD, **lists)).mechanism.epsilons == tuple(apart)
    assert len({*apart}) == 3


def test_means_of_records_may_differ_from_client_to_client():
    lists = {**BY_MEAN, "records": {"law": "fixed", "size": [10, 20, 40], "of": [50, 100, 100], "steps": 2}}
    apart = [
        epsilon(RECORD, {**BY_MEAN, "records": {"law": "fixed", "size": size, "of": of, "steps": 2}})
        for size, of in ((10, 50), (20, 100), (40, 100))
    ]
    assert check(replace(RECORD, **lists)).mechanism.epsilons == tuple(apart)


def test_a_share_that_is_rounded_down_counts_as_an_equal_one():
    def of_share(share):
        return epsilon(CENTRAL, {"clients": {"law": "all", "of": 3}, "weights": {"largest": share}})

    assert of_share(0.331) == of_share(1 / 3) < of_share(0.34)


def test_how_often_a_client_may_be_in_a_count_is_asked_for_where_its_draw_is_unknown():
    unknown = {"clients": {"law": "unknown"}, "weights__denominator": None, **ADAPTIVE}
    assert missing_facts(replace(CENTRAL, **unknown)) == ["clients.size", "clients.of"]
    sized = {**unknown, "clients": {"law": "unknown", "size": 10, "of": 20}}
    drawn_again = {**sized, "clients": {"law": "with-replacement", "size": 10, "of": 20}}
    assert epsilon(CENTRAL, sized) >= epsilon(CENTRAL, drawn_again)


def test_laplace_noise_does_not_cover_records_that_may_be_in_a_sum_several_times():
    laplace = {"noise__law": "laplace", "noise__std": 0.5, "clip__norm": "l1", "clip__bound": 1.0, "rounds": 1}
    unknown = {**laplace, "records": {"law": "unknown", "size": 10, "of": 10, "steps": 1}}
    assert "gaussian where records are sampled" in refusal(epsilon, RECORD, unknown)
    full = check(replace(RECORD, **laplace, records={"law": "full", "of": 10, "steps": 1}))
    assert full.mechanism.epsilon == pytest.approx(2 * math.sqrt(2) / 0.5)
    assert "records.of: Laplace noise has delta 0" in full.idle


def test_where_a_rate_stands_the_number_of_records_is_asked_for_and_no_size():
    """A size is refused beside a rate."""
    facts = {**BY_MEAN, "weights__denominator": "count", "records": {"law": "poisson", "rate": 0.01, "steps": 9}}
    lacks = missing_facts(replace(RECORD, **facts))
    assert "records.of" in lacks
    assert "records.size" not in lacks
