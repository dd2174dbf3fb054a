"""Real MNIST in the setting of the dpnfl paper: 100 clients, 7 labels each, tau=300, B=10, cohort 10, 50 rounds.

Reference accuracies: an independent NumPy run (one seed, mean of the last
ten rounds for the non-private ones).
"""

import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp.experiments import build, config, population

pytestmark = pytest.mark.exhaustive  # half a minute each on real MNIST; CI has the recipes of the papers


def setting(mnist_dir, **changes):
    resolved = config.RunSpec.of({"dataset": "mnist", "data_dir": str(mnist_dir), **changes})
    data = population.build_data(resolved.data)
    return resolved.training, data, build.build_algorithm(resolved, data)


@pytest.mark.parametrize(("sizes", "reference"), [("equal", 0.895), ("power-law", 0.89)])
def test_non_private_accuracy_is_within_a_point_of_the_reference(mnist_dir, sizes, reference):
    resolved, data, value = setting(mnist_dir, algorithm="fedavg", sizes=sizes)
    result = fdp.run(value, data, rounds=resolved.rounds, evaluate_every=1)
    assert np.mean([point.test_accuracy for point in result.history[-10:]]) == pytest.approx(reference, abs=0.01)


@pytest.mark.parametrize(("accountant", "low", "high"), [("tcdp", 0.30, 0.45), ("pld", 0.75, 0.85)])
def test_private_accuracy_at_the_papers_budget(mnist_dir, accountant, low, high):
    resolved, data, value = setting(mnist_dir, accountant=accountant)
    budget = {"epsilon": 0.3, "delta": 1e-2, "accountant": accountant}
    result = fdp.run(value, data, rounds=resolved.rounds, **budget)
    assert low <= result.test_accuracy <= high
    counts = fdp.privacy.participations(value, data, resolved.rounds, 0)
    spent = np.array(result.guarantee.epsilons)[counts > 0]
    assert spent.max() <= 0.3 * (1 + 1e-6)
    assert spent.min() > 0.299
