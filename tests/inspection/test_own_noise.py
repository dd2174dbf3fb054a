"""Noise of another law, from somebody else's file: looked into, priced, trained with and audited like any."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from helpers import ragged_data
from own_laplace import LaplaceRecords, LaplaceSteps
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp.accounting import Adjacency, WithoutReplacement, epsilon_of
from fedjax_dp.tools.testing import check_algorithm

DATA = ragged_data([20] * 6)
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)
COMMON = {"cohort_size": 3, "batch_size": 5, "local_steps": 2, "learning_rate": 0.3}
RUN = {"rounds": 3, "delta": 1e-3, "model": MODEL}


def with_records(privatizer):
    private = fdp.dpnfl(**COMMON, clip_norm=1.0, noise_multiplier=2.0)
    return dataclasses.replace(private, local=dataclasses.replace(private.local, privatizer=privatizer))


LAPLACE = with_records(LaplaceRecords(clip_norm=1.0, noise_multiplier=3.0))


@pytest.mark.slow
def test_its_guarantee_is_that_of_its_event():
    promise = fdp.guarantee(LAPLACE, DATA, participation="worst", **RUN)
    steps = LaplaceSteps(3.0, WithoutReplacement(5, 20), Adjacency.REPLACE_ONE, 6)
    assert promise.epsilon == pytest.approx(epsilon_of(steps, 1e-3), rel=1e-9)
    assert not promise.claims
    assert any("LaplaceRecords" in line for line in promise.assumptions)


@pytest.mark.slow
def test_few_draws_refuse_no_right_part():
    """Records that move few parameters, whose noise is measured in few numbers."""
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits, [100] * 6, seed=0))
    model = fdp.logistic_regression(data.record_shape, data.classes)
    assert fdp.guarantee(LAPLACE, data, **RUN | {"model": model}).epsilon < 1


def liar(**members):
    return with_records(lying(LAPLACE.local.privatizer, **members))


def in_l2(self, rows):
    return jnp.linalg.norm(rows, axis=-1, keepdims=True)


def fainter(self, key, step, model, params, records):
    quiet = dataclasses.replace(LAPLACE.local.privatizer, noise_multiplier=0.8 * self.noise_multiplier)
    return quiet.gradient(key, step, model, params, records)


def normal(self, key, step, model, params, records):
    mean, report = self.clipped(model, params, records)
    noise = 2**0.5 * jax.random.normal(jax.random.fold_in(key, step.number), mean.shape)
    return mean + self.noise_multiplier * self.clip_norm / records.divisor * noise, report


def again(self, key, step, model, params, records):
    return LaplaceRecords.gradient(self, key, step._replace(number=jnp.uint32(0)), model, params, records)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        pytest.param(
            {"size": in_l2},
            "standard deviation of its noise over that of its event",
            id="norm",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"gradient": fainter},
            "standard deviation of its noise over that of its event",
            id="size",
            marks=pytest.mark.exhaustive,  # CI: the same line of a wrong norm
        ),
        pytest.param({"gradient": normal}, "of the noise", id="law"),
        pytest.param({"gradient": again}, "independent between", id="steps", marks=pytest.mark.slow),
    ],
)
def test_what_is_not_as_its_event_says_is_refused(members, message):
    with pytest.raises(fdp.ConfigurationError, match=message):
        fdp.guarantee(liar(**members), DATA, **RUN)


def test_an_event_that_states_no_law_is_refused_in_one_line():
    class Silent(LaplaceSteps):
        as_normal = fdp.accounting.Release.as_normal

    def event(self, *step):
        return Silent(**vars(LaplaceRecords.event(self, *step)))

    with pytest.raises(
        fdp.ConfigurationError, match="Laplace noise has no as_normal, which the check of its law needs"
    ):
        fdp.guarantee(liar(event=event), DATA, **RUN)


# CI: test_what_is_not_as_its_event_says_is_refused
@pytest.mark.exhaustive
def test_conformance_looks_at_its_law_and_its_norm():
    assert check_algorithm(LAPLACE, DATA, model=MODEL, only=("sensitivity", "noise"))
    with pytest.raises(AssertionError, match="by at most the sensitivity"):
        check_algorithm(liar(size=in_l2), DATA, model=MODEL, only="sensitivity")
    with pytest.raises(AssertionError, match="of the noise"):
        check_algorithm(liar(gradient=normal), DATA, model=MODEL, only="noise")


@pytest.mark.exhaustive
def test_an_audit_takes_it_and_finds_what_is_less_than_stated():
    honest = fdp.audit(LAPLACE, DATA, trials=2000, parameters=4, **RUN)
    assert not honest.violated
    one = fdp.dpnfl(**COMMON | {"batch_size": 20, "local_steps": 1}, clip_norm=1.0, noise_multiplier=1.0)
    privatizer = LaplaceRecords(clip_norm=1.0, noise_multiplier=1.0)
    one = dataclasses.replace(one, local=dataclasses.replace(one.local, privatizer=privatizer))
    assert 1 < fdp.audit(one, DATA, trials=3000, **RUN | {"rounds": 1}).lower <= 2
    found = fdp.audit(liar(gradient=fainter), DATA, trials=1000, parameters=4, **RUN)
    assert found.violated
    assert found.contradiction
