"""Every entry takes every server, with whatever privacy, or says in one line that it has one of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp.algorithms import CATALOGUE, PERSONAL
from fedjax_dp.algorithms.assemble import ADAPTIVE
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.options import REQUIRED
from fedjax_dp.parts.choices import SERVERS
from fedjax_dp.privacy.terms import PrivacyTerms

PLAIN = {"cohort_size": 3, "batch_size": 2, "local_steps": 1, "learning_rate": 0.3}
NOISED = {"clip_norm": 0.7, "noise_multiplier": 2.0}
DATA = ragged_data([8, 8, 8, 10, 12, 9])
FIXED = {"fedavgm", "fedadam", "fedyogi", "addpnfl"}  # are their servers
MEANS = {"local", "mr_mtl", "ifca"}  # whose server holds a mean of models


def settings(entry):
    needed = {name for name, option in CATALOGUE[entry].options.items() if option.default is REQUIRED}
    return PLAIN | (NOISED if CATALOGUE[entry].private else {name: NOISED[name] for name in needed & NOISED.keys()})


def same(one, other):
    leaves, structure = jax.tree.flatten(one)
    others, its = jax.tree.flatten(other)
    return structure == its and all(map(np.array_equal, leaves, others))


@pytest.mark.parametrize("entry", CATALOGUE)
def test_a_server_is_free_and_changes_nothing_else_or_is_refused_in_one_line(entry):
    made, options = CATALOGUE[entry], settings(entry)
    if "server" not in made.options:
        line = refusal(lambda: made(**options, server="adam"))
        assert f"server must be left out for {entry}" in line
        assert "server must be left out for" in refusal(RunSpec.of, {"algorithm": entry, "server": "adam"})
        return
    plain = made(**options)
    for name in SERVERS:
        other = made(**options, server=name)
        assert same(dataclasses.replace(other, server=plain.server), plain)
        assert (other.server == plain.server) == (name == "sgd")
        assert RunSpec.of({"algorithm": entry, "server": name}).options["server"] == name
    moved = made.of({**options, "server": "adam", "server_learning_rate": 0.2, "b1": 0.5, "b2": 0.7, "pi": 0.1}).server
    assert moved.hyperparameters == {"learning_rate": 0.2, "b1": 0.5, "b2": 0.7, "pi": 0.1}
    assert made.of({**options, "momentum": 0.4}).server.hyperparameters == {"learning_rate": 1.0, "momentum": 0.4}
    for wrong, words in (
        ({"server": "adam", "momentum": 0.5}, "momentum must be left out unless server is sgd"),
        ({"b1": 0.5}, "b1 must be left out unless server is adam or yogi or adagrad"),
        ({"server": "adagrad", "b2": 0.5}, "b2 must be left out unless server is adam or yogi"),
        ({"server": "adm"}, "did you mean adam"),
    ):
        assert words in refusal(lambda wrong=wrong: made.of({**options, **wrong}))


def test_the_entries_whose_server_is_fixed():
    assert {name for name, made in CATALOGUE.items() if "server" not in made.options} == FIXED | MEANS


@pytest.mark.parametrize("entry", [name for name, made in CATALOGUE.items() if made.private and name not in MEANS])
def test_no_epsilon_depends_on_the_server(entry):
    """A server sees what is released, and nothing else: post-processing."""

    def epsilons(algorithm):
        terms = PrivacyTerms(delta=1e-3, accountant="rdp")
        promise = fdp.guarantee(algorithm, DATA, rounds=3, delta=terms.delta, accountant=terms.accountant)
        return [*promise.epsilons], promise.unit, promise.view

    made, options = CATALOGUE[entry], settings(entry)
    free = "server" in made.options
    others = [{"server": name} for name in ADAPTIVE] if free else [{"server_learning_rate": 0.3}]
    others += [{"second_moment": "unbiased"}] if "second_moment" in made.options else []
    others = others if entry not in PERSONAL else others[:1]  # their parts are the same
    usual = epsilons(made(**options))
    assert np.all(np.isfinite(usual[0]))
    for other in others:
        assert epsilons(made.of({**options, **other})) == usual


def test_named_entries_are_their_servers():
    like = {"adam": "fedadam", "yogi": "fedyogi"}
    for name, entry in like.items():
        assert fdp.fedavg(**PLAIN, server=name) == CATALOGUE[entry].of(PLAIN)
    assert fdp.fedavg.of({**PLAIN, "momentum": 0.9}) == fdp.fedavgm(**PLAIN)
    assert fdp.dp_ftrl(**PLAIN, **NOISED).server == fdp.fedavgm(**PLAIN).server


def test_adagrad_sums_squares():
    server = fdp.dp_fedavg.of({**PLAIN, **NOISED, "server": "adagrad", "server_learning_rate": 0.1, "b1": 0.0}).server
    start = server.init(jnp.zeros(2))
    moved, kept = server.move(jnp.int32(0), jnp.array([0.3, 0.0]), lambda: jnp.float32(0), start, jnp.zeros(2))
    np.testing.assert_allclose(kept.nu, [1e-6 + 0.09, 1e-6], rtol=1e-5)
    np.testing.assert_allclose(moved, [0.1 * 0.3 / (np.sqrt(0.09 + 1e-6) + 1e-3), 0.0], rtol=1e-5)


def test_the_rate_of_a_data_set_is_taken_by_adaptive_servers_alone():
    for entry in ("fedavg", "dp_fedavg", "dp_fedavg_record"):
        assert "server_learning_rate" not in RunSpec.of({"algorithm": entry}).options
        for name in ADAPTIVE:
            assert RunSpec.of({"algorithm": entry, "server": name}).options["server_learning_rate"] == 0.05
    for entry in ("fedadam", "addpnfl"):
        assert RunSpec.of({"algorithm": entry}).options["server_learning_rate"] == 0.05
