"""Noise is fresh wherever it should be, and the stated combination where it is not."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import noise_of_steps
from scipy.linalg import toeplitz

from fedjax_dp import errors, prng
from fedjax_dp.accounting import Buffers, inverse_root_bands
from fedjax_dp.parts.client_privacy import server_noise
from fedjax_dp.parts.noise import BandedNoise, BufferedNoise, StrategyNoise, WhiteNoise, strategy_of
from fedjax_dp.parts.record_privacy import RecordGaussian


@pytest.mark.slow
def test_noise_of_clients_steps_and_rounds_is_independent():
    noise = noise_of_steps(size=4_000, rounds=3, num_clients=4).reshape(12, -1)
    limit = 5.6 / np.sqrt(noise.shape[1])  # 66 pairs at 1e-6 together
    correlations = np.corrcoef(noise)[np.triu_indices(12, 1)]
    assert np.abs(correlations).max() < limit < np.abs(np.corrcoef(noise[0], noise[0])[0, 1])
    two_steps = noise_of_steps(size=13_000, rounds=1, num_clients=1, steps=2)[0, 0]
    ratio = two_steps.std() / (3.0 * 0.5 / 2)
    assert abs(ratio**2 / 2 - 1) * np.sqrt(13_000 / 2) < 4.89  # variances add; a reused key would double them


CASES = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "correlated.json").read_text())["cases"]
BUFFERS = Buffers(np.array([0.95, 0.6]), np.array([0.15, 0.25]))
SOURCES = {
    "white": WhiteNoise(),
    "banded inverse": BandedNoise(bands=np.array([1.0, -0.5, -0.125])),
    "strategy": StrategyNoise.of([1.0, 0.6, 0.3], 12),
    "strategy of one band": StrategyNoise.of([1.0], 12),
    "buffers": BufferedNoise.of(BUFFERS),
}


def source_of(params):
    """The source of a case of the specification."""
    if params["kind"] == "blt":
        return BufferedNoise.of(Buffers(np.array(params["theta"]), np.array(params["omega"])))
    if params["kind"] == "banded":
        return StrategyNoise.of(params["coefficients"], 12)
    return BandedNoise(bands=np.array(params.get("noise", inverse_root_bands(params.get("bands", 1)))))


def drawn(source, key, rounds, size):
    """The noise of rounds 0, 1, ... `(rounds, size)`."""
    state, result = source.init(size), []
    for t in range(rounds):
        noise, state = server_noise(source, key, jnp.int32(t), size, state)
        result.append(noise)
    return jnp.stack(result)


def matrix_of(source, rounds):
    """What a source makes of white noise `(rounds, rounds)`, by its coefficients."""
    coefficients = np.append(source.coefficients(rounds), np.zeros(rounds))[:rounds]
    return toeplitz(coefficients, np.eye(1, rounds)[0])


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "stream"], ids=lambda case: case["id"])
def test_streams_are_those_of_the_specification(case, monkeypatch):
    params, white = case["params"], np.array(case["params"]["white"], np.float32)
    monkeypatch.setattr(prng, "normals", lambda key, number, size: jnp.asarray(white)[number])
    source = source_of(params)
    if params["apply"] == "forward":  # C z, of which the noise is the inverse
        strategy = strategy_of(source, len(white))
        assert toeplitz(strategy, np.eye(1, len(white))[0]) @ white == pytest.approx(
            np.array(case["expect"]["output"]), abs=1e-6
        )
        return
    noise = np.asarray(drawn(source, jax.random.key(0), len(white), white.shape[1]))
    assert noise == pytest.approx(np.array(case["expect"]["output"]), abs=1e-6)


@pytest.mark.parametrize("name", SOURCES)
def test_noise_is_the_stated_combination_of_white_noise(name):
    """Of the same bits; and its variance is that of the combination."""
    source, key, rounds = SOURCES[name], jax.random.key(1, impl="threefry2x32"), 9
    white = np.asarray(drawn(WhiteNoise(), key, rounds, 50), float)
    inverse = matrix_of(source, rounds)
    np.testing.assert_allclose(drawn(source, key, rounds, 50), inverse @ white, atol=3e-6)
    stated = [float(source.variance(jnp.uint32(t))) for t in range(rounds)]
    np.testing.assert_allclose(stated, np.diag(inverse @ inverse.T), rtol=1e-5)
    np.testing.assert_allclose(strategy_of(source, rounds), np.linalg.inv(inverse)[:, 0], atol=1e-9)


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "covariance"], ids=lambda case: case["id"])
def test_the_covariance_of_the_combination_is_that_of_the_specification(case):
    rounds = case["params"]["n"]
    inverse = matrix_of(source_of(case["params"]), rounds)
    np.testing.assert_allclose(inverse @ inverse.T, case["expect"]["noise"], atol=1e-6)


def test_noise_with_a_state_is_refused_on_local_steps():
    for source in (SOURCES["strategy"], SOURCES["buffers"]):
        privatizer = RecordGaussian(clip_norm=1.0, noise_multiplier=1.0, source=source)
        with pytest.raises(errors.ConfigurationError, match="a source without state for noise on local steps"):
            privatizer.check(5)
