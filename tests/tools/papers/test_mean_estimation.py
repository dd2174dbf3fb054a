"""The benchmark of mean estimation: what it runs is what the closed form is of, and a wrong closed form stops it."""

import helpers
import numpy as np
import pytest

RUNS, SEED = 250, 5  # means within 4.9 standard errors: a right form is refused once in ten thousand files


@pytest.fixture(scope="module", name="benchmark")
def _benchmark():
    return helpers.benchmark("mean_estimation")


def test_calibrated_noise_is_that_of_the_closed_form(benchmark):
    setting = benchmark.Setting((200, 100), (1.0, 4.0), 0.1)
    for entry in ("local", "dp_fedavg_local", "mr_mtl"):
        found = benchmark.calibrated(entry, setting, benchmark.store(setting.sizes))
        wanted = [benchmark.noise_for(epsilon, benchmark.DELTA) for epsilon in setting.epsilons]
        np.testing.assert_allclose(found.local.privatizer.noise_multiplier, wanted, rtol=1e-3)


@pytest.mark.slow
def test_the_shared_model_is_the_mean_of_what_clients_release(benchmark):
    setting = benchmark.Setting((20, 10, 40), (8.0, 2.0, 4.0), 0.1)
    _, _, alone = benchmark.runs_of("local", setting, 3, 0)
    _, mean, own = benchmark.runs_of("mr_mtl", setting, 3, 0)
    _, federated, none = benchmark.runs_of("dp_fedavg_local", setting, 3, 0)
    assert none is None
    np.testing.assert_array_equal(own, alone)
    np.testing.assert_allclose(own.mean(1), mean, atol=1e-6)
    np.testing.assert_allclose(federated, mean, atol=1e-6)
    shares = np.array([0.5, 0.2, 0.3])
    _, weighed, own = benchmark.runs_of("mr_mtl", setting, 3, 0, shares)
    np.testing.assert_allclose(own @ shares, weighed, atol=1e-6)


def test_the_pull_ends_where_both_distances_are_least(benchmark):
    own, shared, strengths = np.array([[0.3, -0.2]]), np.array([0.1]), np.array([0.5, 4.0])
    expected = (own + strengths * shared[:, None]) / (1 + strengths)
    np.testing.assert_allclose(benchmark.pulled(own, shared, strengths), expected, rtol=1e-6)


@pytest.mark.exhaustive  # CI: their parts, above, and that another closed form is refused
def test_runs_agree_with_the_closed_form(benchmark):
    benchmark.require_close(benchmark.alike(1.0, 0.03, RUNS, SEED))


@pytest.mark.slow
def test_a_closed_form_whose_mean_is_as_noisy_as_one_client_is_refused(benchmark):
    """250 runs of five clients: the right form is within 4.9 standard errors, the wrong one is 2.8 times the right."""
    setting, strength = benchmark.Setting((200,) * 5, (1.0,) * 5, 0.03), 4.0
    means, shared, own = benchmark.runs_of("mr_mtl", setting, RUNS, SEED)
    squared = benchmark.errors_of(benchmark.pulled(own, shared, strength), means)
    right = benchmark.errors_at(strength, setting.variances, setting.spread)[0]
    benchmark.require_close([benchmark.row("mr_mtl", squared, right)])
    wrong = right + (1 - 1 / 5) * setting.variances[0]
    with pytest.raises(SystemExit, match="standard errors off the closed form"):
        benchmark.require_close([benchmark.row("mr_mtl", squared, wrong)])
