"""Synthetic(u, v): sizes, seeds, and the deviations that its papers state."""

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp import data


def test_synthetic_sizes_shapes_and_test_parts():
    got = data.load("synthetic:1,1", seed=3)
    train, test = np.bincount(got.client_ids), np.bincount(got.test_client_ids)
    assert (len(train), got.x_train.shape[1:], got.x_train.dtype, got.classes) == (100, (60,), np.float32, 10)
    assert (train + test).min() >= 50
    np.testing.assert_array_equal(train, np.floor(0.9 * (train + test) + 1e-9))
    # LogNormal(4, 2) has median e^4 = 54.6: the median of 100 draws lies within a factor e^(4.89 * 1.2533 * 2 / 10)
    assert abs(np.log(np.median(train + test) - 50) - 4) < 4.89 * 1.2533 * 0.2


@pytest.mark.parametrize("setting", ["1,1", "0,0", "5,0.5,var", "iid", "iid,7"])
def test_seed_alone_decides_what_is_drawn(setting):
    first, again, other = (data.load(f"synthetic:{setting}", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert first.x_train.shape != other.x_train.shape or (first.x_train != other.x_train).any()


def test_variances_are_squared_deviations():
    for deviations, variances in (("1,1", "1,1,var"), ("0,0", "0,0,var"), ("3,0.5", "9,0.25,var")):
        one, other = data.load(f"synthetic:{deviations},30"), data.load(f"synthetic:{variances},30")
        np.testing.assert_allclose(one.x_train, other.x_train, rtol=1e-6)
        np.testing.assert_array_equal(one.y_train, other.y_train)


def centres(dataset):
    """Mean of all features of each client."""
    return np.array([dataset.x_train[rows].mean() for rows in data.natural(dataset.client_ids)])


def test_v_is_the_deviation_of_client_centres():
    num_clients = 400
    measured = centres(data.load(f"synthetic:0,5,{num_clients}")).std()
    expected = np.sqrt(5**2 + 1 / 60)  # B_k, and the mean of 60 entries of v_k around it
    z = (measured / expected - 1) * np.sqrt(2 * num_clients)
    assert abs(z) < 4.89
    assert abs((measured / np.sqrt(5 + 1 / 60) - 1) * np.sqrt(2 * num_clients)) > 4.89  # were it the variance


def test_iid_clients_share_centre_model_and_decaying_variances():
    got = data.load("synthetic:iid", seed=1)
    records = len(got.x_train)
    variances = got.x_train.var(0)
    z = (variances * np.arange(1, 61) ** 1.2 - 1) / np.sqrt(2 / records)
    assert np.abs(z).max() < 5.6  # 60 features at once
    assert transfer(got) > 0.6  # one half's model serves the other
    assert transfer(data.load("synthetic:1,0", seed=1)) < 0.3


def transfer(dataset):
    """Accuracy on the last 50 clients of a linear model fitted on the first 50."""
    x = np.column_stack([dataset.x_train, np.ones(len(dataset.x_train))])
    first = dataset.client_ids < 50
    weights = np.linalg.lstsq(x[first].T @ x[first], x[first].T @ np.eye(10)[dataset.y_train[first]], rcond=None)[0]
    return ((x[~first] @ weights).argmax(1) == dataset.y_train[~first]).mean()


@pytest.mark.parametrize(
    "setting", ["1", "1,x", "1,1,1,1", "-1,1", "nan,1", "inf,0", "1,1,sd", "iid,0", "iid,x", ",", "1,1,var,0"]
)
def test_wrong_synthetic_setting_is_refused(setting):
    assert "synthetic" in refusal(data.load, f"synthetic:{setting}")
