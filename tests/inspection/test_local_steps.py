"""Local steps of one's own that let records past their privatizer, each in another way: none gets an epsilon."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from helpers import ragged_data, thinned
from jax import lax
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp.parts import Records
from fedjax_dp.parts.contexts import LocalResult, LocalState, StepContext
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import structure

DATA = ragged_data([8, 8, 8, 10, 12, 9])
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)
OPTIONS = {"cohort_size": 3, "batch_size": 2, "learning_rate": 0.3, "clip_norm": 0.7, "noise_multiplier": 2.0}
OPTIONS |= {"l2": 0.0, "schedule": "constant"}
HONEST = fdp.dpnfl(**OPTIONS, local_steps=3)


@fdp.value
class Own(fdp.parts.LocalTraining):
    """Gradient descent by hand; what is wrong is put into one of its hooks."""

    privatizer: Any
    batches: Any
    learning_rate: float
    steps: int = structure(default=1)
    no_epsilon_reason, initial_release, extra_gradients, is_sgd, parts = None, False, 0, False, ()
    init = fdp.parts.LocalTraining.init

    def rates(self, round_index, largest):
        return jnp.full(self.batches.count(self.steps, largest), self.learning_rate)

    def point(self, params, records, model, unravel):
        return params

    def records(self, records, data, client):
        return records

    def drawn(self, batches, data, client):
        return batches

    def loss(self, model, data, client):
        return model

    def sent(self, update, data, client):
        return update

    def run(self, context):
        key, round_index, client, data, model, unravel, received, *_ = context
        rates = self.rates(round_index, data.largest)
        batches = self.batches.sample(role_key(key, "batch"), client.size, rates.size, data.largest, data.smallest)
        batches, model = self.drawn(batches, data, client), self.loss(model, data, client)
        start = received.params

        def step(moved, inputs):
            index, rate, batch = inputs
            x, y = data.gather(client, batch.positions)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(
                jax.random.fold_in(role_key(key, "model"), index), batch.positions
            )
            records = self.records(Records(x, y, batch.mask, batch.divisor, keys), data, client)
            params = unravel(self.point(start + moved, records, model, unravel))
            at = StepContext(client.id, round_index, index, rate, rates.sum(), index == rates.size - 1)
            gradient, report = self.privatizer.gradient(role_key(key, "noise"), at, model, params, records)
            live = (batch.step_mask > 0).astype(jnp.float32)
            return moved - rate * live * gradient, report

        indices = jnp.arange(rates.size, dtype=jnp.uint32)
        moved, reports = lax.scan(step, jnp.zeros_like(start), (indices, rates, batches))
        return LocalResult(self.sent(moved, data, client), (), (), jax.tree.map(jnp.mean, reports))


def own(base=HONEST, **members):
    steps = Own(**{name: getattr(base.local, name) for name in ("privatizer", "batches", "learning_rate", "steps")})
    return dataclasses.replace(base, local=lying(steps, **members) if members else steps)


def inner_step(self, params, records, model, unravel):
    def mean(flat):
        return jnp.mean(jax.vmap(lambda x, y: model.loss(unravel(flat), x, y, None))(records.x, records.y))

    return params - 0.5 * jax.grad(mean)(params)


class Balanced:
    """A model whose loss counts a client's rare labels more."""

    def __init__(self, model, counts):
        self.model, self.counts = model, counts

    def __getattr__(self, name):
        return getattr(self.model, name)

    def loss(self, params, x, y, key=None):
        return self.model.loss(params, x, y, key) * 8 / self.counts[y]


def balanced(self, model, data, client):
    _, labels = data.gather(client, jnp.arange(8))
    return Balanced(model, jnp.zeros(DATA.classes).at[labels].add(1.0) + 1.0)


def shifted(self, records, data, client):
    everything, _ = data.gather(client, jnp.arange(8))
    return records._replace(x=records.x + 1e-3 * everything.mean())


def by_label(self, batches, data, client):
    _, labels = data.gather(client, batches.positions)
    return batches._replace(mask=batches.mask & (labels == labels[0, 0]))


def wrapped_round(self, batches, data, client):
    """Small clients go on with their first batches until the largest has done an epoch."""
    own, most = jnp.maximum(client.size // 2, 1), data.largest // 2
    steps = jnp.arange(batches.positions.shape[0])
    return jax.tree.map(lambda a: a[(steps // most) * most + (steps % most) % own], batches)


def through_a_reference(self, update, data, client):
    x, _ = data.gather(client, jnp.arange(1))
    held = jax.new_ref(jnp.zeros(()))
    held[...] = x.sum()
    return update + held[...]


def after_all(self, memory, map_clients, members, upcoming):
    def see(key, params, client, data, model):
        x, y = data.gather(client, jnp.arange(8))
        records = Records(x, y, jnp.ones(8, bool), jnp.int32(8), jax.random.split(key, 8))
        at = StepContext(client.id, jnp.int32(0), jnp.uint32(0), jnp.float32(1), jnp.float32(1), True)
        return self.privatizer.gradient(role_key(key, "again"), at, model, params, records)[0]

    return memory._replace(server=map_clients(see, jnp.arange(6, dtype=jnp.int32)).sum(0))


EPOCHS = fdp.dpnfl(**OPTIONS, local_steps=1, batches="epochs")
WRONG = {
    "an inner step without noise": own(point=inner_step),
    "a divisor made of records": own(records=lambda self, r, d, c: r._replace(divisor=1.0 + jnp.abs(r.x).sum())),
    "a loss that knows all labels": own(loss=balanced),
    "labels by other records": own(records=lambda self, r, d, c: r._replace(y=jnp.where(r.y.sum() > 2, 0, r.y))),
    "records moved by a mean": own(records=shifted),
    "a batch by labels": own(drawn=by_label),
    "a record by a reference": own(sent=through_a_reference),
    "a record as it is": own(sent=lambda self, update, d, c: update + d.gather(c, jnp.arange(1))[0].sum()),
    "gradients after the round": own(
        init=lambda self, run: LocalState(jnp.zeros(run.size)), exchange=after_all, has_client_state=True
    ),
    "more steps than a small client's": own(EPOCHS, drawn=wrapped_round),
}


# CI: test_private_gradients_make_private_heads_on_the_word_of_whoever_wrote_them, tests/parts/test_local_training.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("base", [HONEST, pytest.param(EPOCHS, marks=pytest.mark.exhaustive)], ids=["steps", "epochs"])
def test_right_steps_are_priced_as_the_projects_own(base):
    found = fdp.guarantee(own(base), DATA, rounds=4, delta=1e-3, model=MODEL)
    assert found.epsilon == fdp.guarantee(base, DATA, rounds=4, delta=1e-3, model=MODEL).epsilon
    assert any("Own (local) is trusted" in words for words in found.assumptions)


@pytest.mark.parametrize("name", thinned(WRONG, list(WRONG)[:4], 4))
def test_what_lets_records_past_the_privatizer_has_no_epsilon(name):
    with pytest.raises(fdp.ConfigurationError) as refused:
        fdp.guarantee(WRONG[name], DATA, rounds=4, delta=1e-3, model=MODEL)
    assert len(str(refused.value).splitlines()) == 1


def test_a_model_is_needed_to_look_into_parts_that_see_it():
    with pytest.raises(fdp.ConfigurationError, match=r"model must be given to look into Own \(local\)"):
        fdp.guarantee(own(), DATA, rounds=4, delta=1e-3)


@pytest.mark.parametrize("count", [0, 2.0])
def test_steps_that_cannot_be_are_refused_though_the_slot_checks_nothing(count):
    wrong = dataclasses.replace(own(), local=dataclasses.replace(own().local, steps=count))
    with pytest.raises(fdp.ConfigurationError, match="local_steps"):
        fdp.guarantee(wrong, DATA, rounds=4, delta=1e-3, model=MODEL)
