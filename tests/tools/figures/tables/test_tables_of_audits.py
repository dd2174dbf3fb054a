"""Rows of an audit."""

import numpy as np
import pytest

from fedjax_dp.tools.figures.tables import audits


def test_the_region_of_errors_is_that_of_epsilon_and_delta():
    """The four inequalities of (epsilon, delta), and that one of them is tight."""
    for epsilon, delta in ((0.5, 0.0), (1.0, 0.01), (4.0, 1e-3)):
        for alpha in np.linspace(0, 1, 11):
            beta = audits.least_error(epsilon, delta, alpha)
            slack = [
                alpha + np.exp(epsilon) * beta - (1 - delta),
                np.exp(epsilon) * alpha + beta - (1 - delta),
                beta,
            ]
            assert min(slack) == pytest.approx(0, abs=1e-12)
