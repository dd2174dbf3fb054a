"""Sampling for personal budgets (acs_pldp): worked examples, closed forms, and the conditions of an optimum."""

import dataclasses
import json
import pathlib
import time

import numpy as np
import pytest
from helpers import ragged_data
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import errors
from fedjax_dp.accounting import (
    epsilon_of,
    gaussian_epsilon,
    noise_terms,
    participation_quantile,
    sampling_probabilities,
)
from fedjax_dp.accounting.personal import RAREST
from fedjax_dp.algorithms import optimal_probabilities
from fedjax_dp.tools.papers.theorems import acs_pldp_lemma1

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "worked_examples.json").read_text())["expected"]
WORKED = GOLDEN["acs_q"]
SHARES, NORMS, TERMS = (np.array(WORKED[name]) for name in "pGB")


def close(values, expected):
    return values == pytest.approx(np.array(expected), abs=1e-6)


def test_worked_examples_without_a_cap():
    """Those with one, and the noise terms: tests/algorithms/test_worked_examples.py."""
    assert close(sampling_probabilities(SHARES, NORMS, TERMS, 1), WORKED["q_lambda1_nocap"])
    assert close(sampling_probabilities(SHARES, NORMS, TERMS, 1, strength=0), WORKED["q_lambda0_nocap"])
    assert close(sampling_probabilities(SHARES, 0 * NORMS, TERMS, 1), WORKED["q_onlyB_nocap"])


def test_a_cap_that_binds_is_reached_exactly():
    case = GOLDEN["acs_q_capbinding"]
    assert sampling_probabilities(case["p"], case["G"], case["B"], case["K"])[2] == 1 / case["K"]


def test_the_usual_slope_is_above_the_exact_quantile():
    for rate in (0.1, 0.3):
        assert acs_pldp_lemma1(210, rate, 2.5e-4) >= participation_quantile(210, rate, 2.5e-4)


positive = st.floats(0.01, 100.0)


@st.composite
def clients(draw):
    count = draw(st.integers(1, 12))
    columns = [np.array(draw(st.lists(positive, min_size=count, max_size=count))) for _ in range(3)]
    return *columns, draw(st.integers(1, count)), draw(st.sampled_from([0.0, 0.1, 1.0, 10.0]))


def slopes_of(shares, norms, terms, strength, q):
    return (shares * norms / q) ** 2 + strength / 2 * (shares * terms) ** 2 / q**1.5


@given(clients())
@settings(max_examples=200, deadline=None)
def test_conditions_of_an_optimum_hold(case):
    shares, norms, terms, draws, strength = case
    q = sampling_probabilities(shares, norms, terms, draws, strength)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    assert (q > 0).all()
    assert (q <= 1 / draws).all()
    slopes = slopes_of(shares, norms, terms, strength, q)
    inside = (q < 1 / draws) & (q > RAREST / len(q))
    if inside.any():
        multiplier = slopes[inside].mean()
        assert slopes[inside] == pytest.approx(multiplier, rel=1e-9)
        assert (slopes[q == 1 / draws] >= multiplier * (1 - 1e-9)).all()  # these would like more
        assert (slopes[q == RAREST / len(q)] <= multiplier * (1 + 1e-9)).all()  # and these less


@pytest.mark.parametrize("scale", [1e-150, 1e-5, 1e100])
def test_units_do_not_matter(scale):
    q = sampling_probabilities(SHARES, NORMS, TERMS, 2)
    assert sampling_probabilities(SHARES, scale * NORMS, scale * TERMS, 2) == pytest.approx(q, rel=1e-12)
    assert sampling_probabilities(scale * SHARES, NORMS, TERMS, 2) == pytest.approx(q, rel=1e-12)


def test_closed_forms():
    rng = np.random.default_rng(0)
    shares, norms, terms = rng.dirichlet(np.ones(50)), rng.lognormal(size=50), rng.lognormal(size=50)
    for q, weight in (
        (sampling_probabilities(shares, norms, terms, 1, strength=0), shares * norms),
        (sampling_probabilities(shares, norms, 0 * terms, 1), shares * norms),
        (sampling_probabilities(shares, 0 * norms, terms, 1), (shares * terms) ** (4 / 3)),
    ):
        assert q == pytest.approx(weight / weight.sum(), rel=1e-11)
    assert sampling_probabilities(shares, norms, terms, 50).tolist() == [1 / 50] * 50
    assert sampling_probabilities([0.3], [1.0], [2.0], 1).tolist() == [1.0]


def test_clients_without_gradient_or_noise_are_still_drawn():
    norms, nothing = np.array([0.0, 3.0, 1.0, 0.0]), np.zeros(4)
    equal = np.full(4, 0.25)
    least = RAREST / 4
    rare = sampling_probabilities(equal, norms, nothing, 1)
    assert rare == pytest.approx([least, 0.75 * (1 - 2 * least), 0.25 * (1 - 2 * least), least], rel=1e-9)
    filled = sampling_probabilities(equal, norms, nothing, 2)  # the cap leaves nothing for the others
    assert filled == pytest.approx([least, 0.5, 0.5 - 2 * least, least], rel=1e-9)
    assert sampling_probabilities(equal, norms, nothing, 3) == pytest.approx([1 / 6, 1 / 3, 1 / 3, 1 / 6], rel=1e-12)
    assert sampling_probabilities(equal, nothing, nothing, 2).tolist() == [0.25] * 4
    assert sampling_probabilities(nothing, norms, norms, 2).tolist() == [0.25] * 4


def test_a_hundred_thousand_clients():
    rng = np.random.default_rng(1)
    count = 100_000
    columns = rng.dirichlet(np.ones(count)), *rng.lognormal(sigma=2, size=(2, count))
    start = time.perf_counter()
    q = sampling_probabilities(*columns, 1000)
    assert time.perf_counter() - start < 5  # 0.3 s on an idle core
    assert q.sum() == pytest.approx(1, abs=1e-12)
    assert q.max() == 1 / 1000
    inside = (q < 1 / 1000) & (q > RAREST / count)
    slopes = slopes_of(*columns, 1.0, q)[inside]
    assert slopes == pytest.approx(slopes[0], rel=1e-9)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"draws": 4}, "draws must be an integer from 1 to 3, got 4"),
        ({"draws": 0}, "draws must be"),
        ({"shares": [0.5, -0.5, 1.0]}, "shares must be zero or positive, and finite, got -0.5 for client 1"),
        ({"gradient_norms": [1.0, 1.0, np.nan]}, "gradient_norms must be .* for client 2"),
        ({"noise_terms": [np.inf, 1.0, 1.0]}, "noise_terms must be .* for client 0"),
        ({"noise_terms": [1.0, 1.0]}, "equally many, got 3, 3 and 2"),
        ({"strength": -1.0}, "strength must be"),
        ({"strength": np.nan}, "strength must be"),
        ({"shares": [[0.5], [0.5], [0.5]]}, "one number per client"),
    ],
)
def test_refusals(change, told):
    given = {"shares": SHARES, "gradient_norms": NORMS, "noise_terms": TERMS, "draws": 2} | change
    with pytest.raises(errors.ConfigurationError, match=told) as caught:
        sampling_probabilities(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"epsilons": [0.0]}, {"epsilons": [np.nan]}, {"rates": [-1.0]}, {"delta": 1.0}])
def test_noise_terms_refuse(change):
    with pytest.raises(errors.ConfigurationError):
        noise_terms(**({"epsilons": [1.0], "rates": [0.1], "draws": 2, "rounds": 7, "delta": 1e-3} | change))


def test_an_infinite_budget_needs_no_noise():
    assert noise_terms([np.inf, 1.0], 0.1, 2, 7, 1e-3)[0] == 0


def test_a_slope_must_be_positive():
    with pytest.raises(errors.ConfigurationError, match="slope must be positive"):
        acs_pldp_lemma1(14, 0.1, 1e-3, slope=0.0)


def sampling_of(batch_size, scale=1.0, **options):
    """Of a client with two records and one with four; `scale` multiplies the features of one record of the first."""
    data = ragged_data((2, 4))
    x = np.array(data.x)
    x[0] *= scale
    settings = {"epsilons": 1.0, "delta": 1e-3, "rounds": 3, "draws": 1, "local_steps": 1, "learning_rate": 0.5}
    return optimal_probabilities(dataclasses.replace(data, x=x), batch_size=batch_size, **settings | options)


@pytest.mark.slow
def test_a_client_smaller_than_a_batch_releases_the_norm_of_all_its_records():
    small, large = sampling_of(2), sampling_of(4)
    assert small.norms[0] == pytest.approx(large.norms[0], rel=1e-6)
    assert sampling_of(9).probabilities == pytest.approx(large.probabilities, rel=1e-6)  # nor is its rate above one


def test_one_record_moves_the_norm_by_no_more_than_its_event_counts():
    clip, noise = 0.1, 0.7
    base, moved = (sampling_of(3, scale, norm_noise=noise, norm_clip=clip) for scale in (0.0, 1e6))
    assert abs(moved.norms - base.norms)[0] <= clip * (1 + 1e-6)
    assert epsilon_of(base.setup_event, 1e-5) == pytest.approx(gaussian_epsilon(1e-5, noise), rel=1e-6)
