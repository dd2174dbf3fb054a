"""Which records a step sees, whoever else takes part."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_dp.parts import batches

RULES = [
    rule
    for name, rule in inspect.getmembers(batches, inspect.isclass)
    if rule.__module__ == batches.__name__ and hasattr(rule, "equation")
]


def drawn(rule, seed, records, steps, largest):
    """The steps that a client takes, each with its records in their order."""
    count = rule.count(steps, largest)
    batch = jax.device_get(rule.sample(jax.random.key(seed), jnp.int32(records), count, largest))
    return [
        (row[mask].tolist(), int(divisor))
        for row, mask, divisor, live in zip(batch.positions, batch.mask, batch.divisor, batch.live, strict=True)
        if live
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_draws_of_a_client_do_not_depend_on_the_size_of_the_largest(rule):
    made = rule(size=4) if "size" in inspect.signature(rule).parameters else rule()
    for seed in range(2):
        alone = drawn(made, seed, 12, 3, 12)
        assert alone
        for largest in (13, 37):
            assert drawn(made, seed, 12, 3, largest) == alone


def test_every_pass_is_a_shuffle_of_its_own():
    steps = [row for row, _ in drawn(batches.EpochBatches(size=4), 0, 12, 5, 14)]
    passes = [tuple(np.concatenate(steps[first : first + 3]).tolist()) for first in range(0, 15, 3)]
    assert all(sorted(one) == list(range(12)) for one in passes)
    assert len(set(passes)) == 5


def test_places_of_a_pass_are_uniform_in_every_pass():
    """20,000 keys: a record's place in the first and second pass, jointly; |z| below 4.9 for all 9 cells."""
    rule, keys = batches.EpochBatches(size=1), jax.random.split(jax.random.key(0), 20_000)
    positions = jax.jit(jax.vmap(lambda key: rule.sample(key, jnp.int32(3), 6, 3).positions[:, 0]))(keys)
    first, second = np.asarray(positions).reshape(-1, 2, 3).transpose(1, 0, 2)
    cells = np.bincount(3 * np.argmax(first == 0, 1) + np.argmax(second == 0, 1), minlength=9)
    expected = keys.size / 9
    assert np.all(np.abs(cells - expected) < 4.9 * np.sqrt(expected * (1 - 1 / 9)))
