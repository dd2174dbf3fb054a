"""What tests of runs share."""

import numpy as np
import pytest

import fedjax_dp as fdp


@pytest.fixture(scope="session")
def data():
    """Ten clients of the digits."""
    digits = fdp.load("digits")
    return fdp.federate(digits, np.array_split(np.arange(len(digits.y_train)), 10))
