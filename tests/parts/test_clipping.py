"""Bounds on the gradient of a batch are what they state, whatever the records."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import QuadraticModel

from fedjax_dp.parts.clipping import ClipBatch, ClipRecords, ClipTensorsAtMedian, Records, ScaleGradients, Unbounded

MODEL, START, C, B = QuadraticModel(), jnp.array([0.5, -0.5]), 0.8, 5
X = np.array([[0.1, 0.2], [3.0, -2.0], [np.nan, 1.0], [0.4, -0.4], [9.0, 9.0]], np.float32)
PRESENT = np.array([True, True, True, True, False])
GRADIENTS = np.array([1.0, 0.5]) * (np.array([0.5, -0.5]) - X)


def applied(bound, x=X):
    return bound.apply(MODEL, START, Records(jnp.asarray(x), jnp.zeros(5), jnp.asarray(PRESENT), jnp.int32(B)), C)


def scaled(g, norm):
    return g * np.minimum(1, norm / np.linalg.norm(g, axis=-1, keepdims=True))


def test_clipped_records_add_up_to_the_mean_and_what_is_not_finite_counts_nothing():
    bounded = applied(ClipRecords())
    np.testing.assert_allclose(bounded.mean, scaled(GRADIENTS[[0, 1, 3]], C).sum(0) / B, rtol=1e-5)
    assert float(bounded.noise_unit) == pytest.approx(C / B)


@pytest.mark.parametrize("bound", [ScaleGradients(gradient_bound=4.0), Unbounded(), ClipBatch()])
def test_other_bounds_are_what_their_equations_say(bound):
    x = np.where(np.isnan(X), 0.0, X)
    mean = (np.array([1.0, 0.5]) * (np.array([0.5, -0.5]) - x))[PRESENT].sum(0) / B
    wanted = {"ScaleGradients": mean * C / 4.0, "Unbounded": mean, "ClipBatch": scaled(mean, C)}[type(bound).__name__]
    bounded = applied(bound, x)
    np.testing.assert_allclose(bounded.mean, wanted, rtol=1e-5)
    assert float(bounded.noise_unit) == pytest.approx(C if bound == ClipBatch() else C / B)


def test_a_batch_whose_mean_is_not_finite_is_no_gradient_at_all():
    np.testing.assert_array_equal(applied(ClipBatch()).mean, 0.0)


def test_the_median_is_of_the_records_that_are_there():
    bounded = applied(ClipTensorsAtMedian())
    median = np.median(np.linalg.norm(GRADIENTS[[0, 1, 3]], axis=1))
    np.testing.assert_allclose(bounded.noise_unit, median / B, rtol=1e-5)
    np.testing.assert_allclose(bounded.mean, scaled(GRADIENTS[[0, 1, 3]], median).sum(0) / B, rtol=1e-5)
