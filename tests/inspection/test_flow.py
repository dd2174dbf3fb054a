"""Private gradients of a client's round are counted by the stream of their draws, and no stream is drawn twice."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest
from helpers import ragged_data
from own_parts import lying
from test_local_steps import HONEST

import fedjax_dp as fdp
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.inspection.flow import check, stated_gradients
from fedjax_dp.parts import ClientModels, LocalSgd, LocalTraining, ModelBeside, OwnSteps, PersonalSgd, Pull
from fedjax_dp.prng import role_key

DATA = ragged_data([8] * 6)
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)


@fdp.value
class Runs(LocalTraining):
    """Runs of plain steps, one for each of `keys`, whose ways add up."""

    privatizer: Any
    batches: Any
    learning_rate: float
    steps: int = fdp.structure(default=4)
    keys: tuple[str, ...] = fdp.structure(default=("",))
    beside: bool = fdp.structure(default=False)
    no_epsilon_reason, initial_release, extra_gradients, is_sgd, parts = None, False, 0, False, ()

    @property
    def sgd(self):
        steps = self.steps // len(self.keys)
        given = {name: getattr(self, name) for name in ("privatizer", "batches", "learning_rate")}
        if self.beside:
            return PersonalSgd(**given, steps=steps, models=ModelBeside(pull=Pull(strength=0.0), steps=2))
        return LocalSgd(**given, steps=steps)

    def rates(self, round_index, largest):
        return jnp.full(self.batches.count(self.steps, largest), self.learning_rate)

    def run(self, client):
        start = client.received.params
        own = ((), {"model": jnp.zeros_like(start), "steps": ()}) if self.beside else ()
        server = ((), ()) if self.beside else ()
        keys = [role_key(client.key, name) if name else client.key for name in self.keys]
        ends = [self.sgd.run(client._replace(key=key).receiving(start, server, own)) for key in keys]
        return ends[0]._replace(update=sum(end.update for end in ends), client_state=(), auxiliary=())


def local(**changes):
    given = {name: getattr(HONEST.local, name) for name in ("privatizer", "batches", "learning_rate")}
    return dataclasses.replace(HONEST, local=Runs(**given, **changes))


@pytest.mark.exhaustive  # CI: what is drawn once too often or too seldom, below
def test_a_run_of_steps_and_two_of_half_as_many_with_other_draws_are_counted_alike():
    asked = {"rounds": 3, "delta": 1e-3, "model": MODEL}
    one, two = (fdp.guarantee(local(keys=keys), DATA, **asked) for keys in (("",), ("one", "other")))
    assert one.epsilon == two.epsilon


@pytest.mark.slow
def test_a_stream_that_is_drawn_twice_is_refused():
    with pytest.raises(ConfigurationError, match=r"key and step of a noise.*used again"):
        fdp.guarantee(local(keys=("", "")), DATA, rounds=3, delta=1e-3, model=MODEL)


def test_more_gradients_of_a_stream_than_are_stated_are_refused():
    def sgd(self):
        return dataclasses.replace(Runs.sgd.fget(self), steps=self.steps)

    wrong = local(keys=("one", "other"))
    with pytest.raises(ConfigurationError, match=r"of stream 0.*at most the 4 that are stated, got 8"):
        fdp.guarantee(
            dataclasses.replace(wrong, local=lying(wrong.local, sgd=property(sgd))),
            DATA,
            rounds=3,
            delta=1e-3,
            model=MODEL,
        )


def test_a_second_stream_that_is_not_stated_is_refused():
    """A release that was forgotten would lower epsilon without a word."""
    with pytest.raises(
        ConfigurationError, match=r"of stream 1.*at most the 0 that are stated, got 2.*additional_releases"
    ):
        fdp.guarantee(local(beside=True), DATA, rounds=3, delta=1e-3, model=MODEL)


@pytest.mark.slow
def test_what_ditto_states_is_what_it_draws():
    right = fdp.algorithms.ditto(
        cohort_size=3, batch_size=2, local_steps=2, learning_rate=0.1, clip_norm=1.0, personal_steps=3
    )
    assert stated_gradients(right.local, DATA.largest) == {0: 2, 1: 3}
    check(right, DATA, MODEL)
    fewer = dataclasses.replace(right.local, models=dataclasses.replace(right.local.models, steps=4))
    stated = right.local.additional_releases
    with pytest.raises(ConfigurationError, match=r"of stream 1.*at most the 3 that are stated, got 4"):
        check(dataclasses.replace(right, local=lying(fewer, additional_releases=stated)), DATA, MODEL)


class Models(ClientModels):
    """Of a client that keeps nothing and ends with what it receives."""

    has_client_state = False

    def model_of(self, sgd, client, server, own):
        return client.received.params


@fdp.value
class Twice(Models):
    """Two runs of half the steps, with the same batches and noise."""

    def run(self, sgd, client, server, own):
        ends = [dataclasses.replace(sgd, steps=sgd.steps // 2).run(client) for _ in range(2)]
        return ends[0]._replace(update=ends[0].update + ends[1].update), (), ()


@fdp.value
class OnceMore(Models):
    """The first gradient is taken again, beside a run that is a step shorter."""

    def run(self, sgd, client, server, own):
        result, gradients = dataclasses.replace(sgd, steps=sgd.steps - 1).run(client), sgd.draw(client)
        again = gradients.gradient_at(client.received.params, gradients.step_draw(jnp.uint32(0)))[0]
        return result._replace(update=result.update - again), (), ()


@fdp.value
class Forgets(Models):
    """A second stream of steps, of which `own_steps` says nothing."""

    def run(self, sgd, client, server, own):
        steps = OwnSteps()
        more = steps.of(sgd).run(steps.context(client).receiving(client.received.params))
        result = sgd.run(client)
        return result._replace(update=result.update + more.update), (), ()


@pytest.mark.parametrize(
    ("models", "told"),
    [
        pytest.param(Twice(), "stream 0 must be drawn once.*some drawn twice", id="twice"),
        pytest.param(
            OnceMore(), "stream 0 must be drawn once.*some drawn twice", id="once more", marks=pytest.mark.exhaustive
        ),
        pytest.param(Forgets(), "of stream 1.*at most the 0 that are stated, got 4", id="forgotten"),
    ],
)
def test_models_that_draw_a_stream_twice_or_forget_one_are_refused(models, told):
    steps = {**vars(HONEST.local), "steps": 4, "corrections": ()}
    wrong = dataclasses.replace(HONEST, local=PersonalSgd(**steps, models=models))
    with pytest.raises(ConfigurationError, match=told):
        fdp.guarantee(wrong, DATA, rounds=3, delta=1e-3, model=MODEL)
