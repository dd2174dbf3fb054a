"""What cannot be a part is one line at the door; slots and members are read off the Protocols, none is listed here."""

import dataclasses
import inspect
import types

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import parts, validation
from fedjax_dp.parts.facts import SLOTS, parts_of

DATA = ragged_data([8] * 6)
COMMON = {"cohort_size": 3, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1}
PLAIN = fdp.fedavg(**COMMON)
KINDS = {**SLOTS, "server": parts.ServerOptimizer, "release": parts.FeatureRelease, "shared": parts.SharedNoise}


class Nothing:
    """A class of the user's that is no value and has no member."""


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(DATA.classes)(x)


WRONG = {
    "nothing": None,
    "a number": 5,
    "a name": "uniform",
    "a function": lambda key: key,
    "numbers": np.ones(3),
    "a class": Nothing,
    "an object": Nothing(),
    "a class of the project": parts.PoissonCohort,
    "an optimizer": optax.adam(0.1),
    "a maker of optimizers": optax.adam,
    "an entry": fdp.dpnfl,
    "a network": Net(),
    "a list": [],
}


def written(member):
    """As a member, but none of the Protocol's own, which is to be written."""
    if isinstance(member, property):
        return property(lambda self: None)
    if not inspect.isfunction(member):
        return member
    return types.FunctionType(member.__code__, member.__globals__, member.__name__, member.__defaults__)


def made_of(members):
    """A value of these members, of which some may be fields without a default."""
    fields = [name for name, member in members.items() if member is inspect.Parameter.empty]
    rest = {name: written(member) for name, member in members.items() if name not in fields}
    made = fdp.value(type("Own", (), {"__annotations__": dict.fromkeys(fields, object), **rest}))
    return made(**dict.fromkeys(fields, 1))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_member_that_lacks_is_named_all_at_once(kind):
    asked = validation.members(kind)
    assert not validation.missing_members(made_of(asked), kind)
    validation.require_part("slot", made_of(asked), kind)
    for name in asked:
        left = {other: member for other, member in asked.items() if other != name}
        told = refusal(validation.require_part, "slot", made_of(left), kind)
        assert f"which lacks {name}" in told
        assert validation.page_of(kind) in told
    told = refusal(validation.require_part, "slot", made_of({}), kind)
    assert f"which lacks {', '.join(asked)};" in told.replace(" (a field)", "")
    told = refusal(validation.require_part, "slot", Nothing(), kind)
    assert "put @fedjax_dp.value above Nothing" in told
    assert all(name in told for name in asked)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_members_of_another_form_are_named(kind):
    for name, member in validation.members(kind).items():
        other = made_of({**validation.members(kind), name: lambda self: None})
        if isinstance(member, property):
            told = refusal(validation.require_part, "slot", other, kind)
            assert f"{name} (a property or attribute, not a method)" in told
        elif inspect.isfunction(member) and len(inspect.signature(member).parameters) > 1:
            assert f"which lacks {name}(" in refusal(validation.require_part, "slot", other, kind)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_inherited_without_a_body_still_has_to_be_written(kind):
    own = fdp.value(type("Own", (kind,), {}))
    required = [name for name, member in validation.members(kind).items() if member is inspect.Parameter.empty]
    opened = validation._abstract_members(kind)
    if kind not in (parts.Correction, parts.ClientModels, parts.FeatureRelease):
        assert opened
    told = refusal(validation.require_part, "slot", own(), kind) if opened or required else ""
    assert all(name in told for name in opened)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_no_value_is_refused_everywhere(kind, name):
    told = refusal(validation.require_part, "slot", WRONG[name], kind)
    assert told.startswith(f"slot must be a value that follows {validation.public_name(kind)}, got ")


EXAMPLES = {
    type(part): part
    for entry in (
        PLAIN,
        fdp.dpnfl(**COMMON, clip_norm=1.0),
        fdp.rfedavg(**COMMON),
        fdp.dp_fedavg(**COMMON, clip_norm=1.0),
    )
    for _, part in [("algorithm", entry), *parts_of(entry)]
}
FIELDS = [(cls, name) for cls in EXAMPLES for name, (kind, _) in validation._kinds(cls).items() if kind is not dict]


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=[f"{cls.__name__}.{name}" for cls, name in FIELDS])
def test_a_field_takes_what_its_type_says(cls, name):
    kind, many = validation._kinds(cls)[name]
    for called, wrong in WRONG.items():
        if (many and called == "a list") or (callable(wrong) and not validation.page_of(kind)):
            continue
        told = refusal(dataclasses.replace, EXAMPLES[cls], **{name: wrong})
        assert told.startswith(name)


@pytest.mark.parametrize("entry", fdp.CATALOGUE.values(), ids=fdp.CATALOGUE)
def test_an_entry_tells_all_that_it_needs(entry):
    needed = [name for name, option in entry.options.items() if option.default is inspect.Parameter.empty]
    told = refusal(entry)
    assert all(f"{name}=" in told for name in needed)
    assert f"call it: {entry.name}(" in refusal(entry, 3)
    assert f"call it: {entry.name}(" in refusal(fdp.simulate, entry, DATA, rounds=1)
    assert "did you mean cohort_size?" in refusal(entry, cohort_siz=3)
    assert "did you mean learning_rate?" in refusal(entry, lr=3)


@pytest.mark.parametrize("door", [fdp.simulate, fdp.run, fdp.guarantee], ids=lambda door: door.__name__)
def test_doors_of_runs(door):
    asked = {"rounds": 1} | ({"delta": 1e-3} if door is fdp.guarantee else {})
    for name, wrong in WRONG.items():
        refusal(door, wrong, DATA, **asked)
        refusal(door, PLAIN, wrong, **asked)
        if name not in ("nothing", "a list"):
            refusal(door, PLAIN, DATA, model=wrong, **asked)
    assert "fedjax_dp.federate(dataset" in refusal(door, PLAIN, fdp.load("digits"), **asked)
    assert "write fedjax_dp.model(Net(...), data)" in refusal(door, PLAIN, DATA, model=Net(), **asked)


def test_a_servers_factory_and_numbers_are_looked_at():
    for given, told in (
        ({"hyperparameters": {}}, "with a learning_rate"),
        ({"hyperparameters": {"learning_rate": 0.1, "b3": 1}}, "unexpected keyword argument 'b3'"),
        (
            {"hyperparameters": {"learning_rate": 0.1}, "factory": lambda learning_rate: 3},
            "a function that returns an optax optimizer",
        ),
    ):
        server = parts.Server(**given)
        assert told in refusal(fdp.simulate, dataclasses.replace(PLAIN, server=server), DATA, rounds=1)


class NeedsFlag(nn.Module):
    @nn.compact
    def __call__(self, x, is_train):
        return nn.Dense(DATA.classes)(nn.Dropout(0.5, deterministic=not is_train)(x))


class NeedsRate(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(DATA.classes)(nn.Dropout(0.5)(x))


def test_networks_with_dropout_are_told_what_to_take():
    assert 'trained="is_train"' in refusal(fdp.model, NeedsFlag(), DATA)
    assert "deterministic=not train" in refusal(fdp.model, NeedsRate(), DATA)
    assert "give one that is made: Net(...)" in refusal(fdp.model, Net, DATA)
    model = fdp.model(NeedsFlag(), DATA, trained="is_train")
    params, record = model.init(jax.random.key(0)), (DATA.x[0], DATA.y[0])
    assert model.loss(params, *record, jax.random.key(1)) != model.loss(params, *record, jax.random.key(2))


def test_jax_may_put_anything_in_the_place_of_a_leaf():
    structure = jax.tree.structure(PLAIN)
    assert jax.tree.structure(jax.tree.unflatten(structure, [None] * structure.num_leaves)) is not None
    assert jax.tree.map(lambda leaf: "text", PLAIN).cohort == PLAIN.cohort
