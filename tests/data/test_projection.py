"""Principal components against NumPy's singular values, low frequencies against the cosines themselves."""

import numpy as np
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp.data import Dataset, federate
from fedjax_dp.data.projection import low_frequencies, principal_components


def images(records=40, test=7):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (records + test, 4, 3)).astype(np.uint8), rng.integers(0, 3, records + test)
    return Dataset("toy", x[:records], y[:records], x[records:], y[records:], classes=3, scale=1 / 255, shift=10.0)


def test_components_are_those_of_the_centred_training_records():
    dataset = images()
    found = principal_components(dataset, 5)
    seen = (dataset.x_train.reshape(40, -1).astype(float) - 10.0) / 255
    centred = seen - seen.mean(0)
    u, s, vt = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(found.x_train), np.abs(u[:, :5] * s[:5]), rtol=1e-4, atol=1e-6)
    test = (dataset.x_test.reshape(7, -1).astype(float) - 10.0) / 255 - seen.mean(0)
    np.testing.assert_allclose(np.abs(found.x_test), np.abs(test @ vt[:5].T), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.x_train.mean(0), 0, atol=1e-6)  # centred by training, not test, records


def test_a_guarantee_says_that_the_components_were_not_private():
    data = federate(principal_components(images(), 3), np.split(np.arange(40), 4))
    value = fdp.dpnfl(
        cohort_size=2, batch_size=2, local_steps=2, learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0
    )
    promise = fdp.guarantee(value, data, rounds=3, delta=1e-2)
    assert "principal components of all training records" in " ".join(promise.warnings)
    plain = fdp.guarantee(value, federate(images(), np.split(np.arange(40), 4)), rounds=3, delta=1e-2)
    assert plain.epsilon == promise.epsilon
    assert "components" not in " ".join(plain.warnings)


def test_low_frequencies_are_products_with_cosines_and_learn_nothing():
    dataset = images()
    found = low_frequencies(dataset, 2)
    seen = (dataset.x_test.astype(float) - 10.0) / 255
    down, across = (np.cos(np.pi * np.outer(range(2), np.arange(n) + 0.5) / n) for n in (4, 3))
    scales = np.outer(np.sqrt([1 / 4, 2 / 4]), np.sqrt([1 / 3, 2 / 3]))
    expected = scales * np.einsum("ri,nij,sj->nrs", down, seen, across)
    np.testing.assert_allclose(found.x_test, expected.reshape(7, 4), rtol=1e-5, atol=1e-6)
    assert (found.learnt, found.scale, found.shift) == ((), 1.0, 0.0)


@pytest.mark.parametrize(
    ("project", "counts", "words"),
    [(principal_components, (0, 13, 2.5), "pca must be"), (low_frequencies, (0, 1, 4), "cosines must be")],
)
def test_impossible_numbers_of_features_are_refused(project, counts, words):
    assert all(words in refusal(project, images(), count) for count in counts)
