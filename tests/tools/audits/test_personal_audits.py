"""Audits of algorithms whose clients have models of their own: the stated epsilons hold, smaller ones are refuted."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import View
from fedjax_dp.execution import Execution
from fedjax_dp.models import mlp
from fedjax_dp.parts import PersonalSgd
from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import ravel, value
from fedjax_dp.rounds import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves, begin, run_key
from fedjax_dp.tools.audits.audit import audit

DELTA = 1e-5
TEN = (10, 10, 10, 10)
STEPS = {"batch_size": None, "batches": "full", "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
UPLOADS, DEPLOYED = "uploads", "deployed"
TWO_LAYERS = mlp((3,), 3, hidden=(4,))
PERSONAL = {  # the views in which each is audited, and the share of epsilon that is proved
    "local": {DEPLOYED: 0.7},
    "finetune": {UPLOADS: 0.7, DEPLOYED: 0.7},
    "ditto": {UPLOADS: 0.7, DEPLOYED: 0.7},
    "ditto_joint": {UPLOADS: 0.4, DEPLOYED: 0.7},  # half of the gradient's square is the shared model's
    "mr_mtl": {UPLOADS: 0.7, DEPLOYED: 0.7},
    "fedper": {UPLOADS: 0.4, DEPLOYED: 0.7},  # and here that of what is shared
    "fedrep": {UPLOADS: 0.4, DEPLOYED: 0.6},
    "apfl": {UPLOADS: 0.7, DEPLOYED: 0.7},
    "ppsgd": {UPLOADS: 0.7, DEPLOYED: 0.7},
    "ifca": {UPLOADS: 0.4, DEPLOYED: 0.4},  # choices are counted, and tell nothing of this canary
}
CASES = [(name, view) for name, views in PERSONAL.items() for view in views]


def personal(name, **options):
    return fdp.CATALOGUE[name](**{"cohort_size": 2, "noise_multiplier": 6.0, **STEPS, **options})


def audited(algorithm, **options):
    usual = {"rounds": 10, "delta": DELTA, "trials": 2_000, "model": TWO_LAYERS}
    return audit(algorithm, ragged_data(TEN), **usual | options)


@pytest.mark.exhaustive
def test_messages_are_observed_with_zeros_for_what_clients_keep():
    algorithm, data = as_float32_leaves(personal("fedper", cohort_size=None)), ragged_data((4, 6, 5))
    state = begin(algorithm, data, run_key(0), model=TWO_LAYERS)
    transcript = run_round(
        algorithm, TWO_LAYERS, data, run_key(0), state, Execution(), lambda params, flat: ravel(params)[1](flat)
    )[1].transcript
    for sent in transcript:
        kept, shared = (jax.tree.leaves(sent[layer]) for layer in ("Dense_1", "Dense_0"))
        assert not any(np.any(tensor) for tensor in kept)
        assert all(np.any(tensor) for tensor in shared)


@pytest.mark.exhaustive  # CI: test_two_models_of_a_client_are_not_told_for_the_price_of_one
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_clients_own_models_are_as_private_as_stated(case):
    name, view = case
    found = audited(personal(name), view=view)
    assert found.guarantee.view is View(view)
    assert not found.violated, found.verdict
    assert found.lower > PERSONAL[name][view] * found.epsilon, found.verdict


VARIANTS = {
    "Poisson batches": ("ditto", DEPLOYED, {"batches": "poisson", "batch_size": 5, "noise_multiplier": 2.0}),
    "other noise": ("ditto", DEPLOYED, {"personal_noise": 2.0, "personal_steps": 3}),
    "strong pull": ("ditto", DEPLOYED, {"strength": 5.0}),
    "clean": ("ditto", "owner", {"personal_noise": 0.0}),
    "alpha moves": ("apfl", DEPLOYED, {"alpha_learning_rate": 0.1}),
    "clusters": ("ifca", "owner", {}),
    "client level": ("fedper", "owner", {"noise_on": "clients", "noise_multiplier": 1.0}),
    "own model of fedper": ("fedper", DEPLOYED, {}),
    "own model of ditto": ("ditto", DEPLOYED, {}),
    "own model of ifca": ("ifca", UPLOADS, {}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_them_are_audited(variant):
    name, view, options = VARIANTS[variant]
    own = variant.startswith("own model")
    found = audited(personal(name, **options), view=view, **({"canary": "label-flip"} if own else {}))
    assert not found.violated, found.verdict
    assert found.lower > (0.3 * found.epsilon if own else 0), found.verdict


@pytest.mark.exhaustive
def test_one_run_observes_the_models_too():
    found = audit(
        personal("local", cohort_size=None), ragged_data((200, 200)), rounds=6, delta=DELTA, view=DEPLOYED, one_run=150
    )
    assert not found.violated
    assert found.lower > 0.15 * found.epsilon


@pytest.mark.slow
def test_two_models_of_a_client_are_not_told_for_the_price_of_one():
    """Ditto moves its models by two gradients of a record; counted as one, as if clipped together, it is refuted."""
    price = fdp.guarantee(personal("ditto_joint"), ragged_data(TEN), rounds=10, delta=DELTA, view=DEPLOYED)
    claim = max(price.epsilons)
    found = audited(personal("ditto"), view=DEPLOYED, claim=claim, significance=1e-3)
    assert found.epsilon > found.lower > claim
    assert found.violated, found.verdict


@pytest.mark.exhaustive
def test_a_ledger_without_the_personal_steps_is_refuted():
    right = personal("ditto")
    deaf = value(restates(PersonalSgd)(type("Uncounted", (PersonalSgd,), {"additional_releases": ()})))
    local = deaf(**{field.name: getattr(right.local, field.name) for field in dataclasses.fields(right.local)})
    wrong = dataclasses.replace(right, local=local)
    assert audited(wrong, view=DEPLOYED, significance=1e-3).proved
    assert not audited(wrong, view=UPLOADS, significance=1e-3).proved


def test_where_nothing_of_records_is_told_there_is_nothing_to_audit():
    with pytest.raises(
        errors.ConfigurationError, match="view must be one that receives anything computed from records"
    ):
        audited(personal("local"), view=UPLOADS)
    with pytest.raises(errors.ConfigurationError, match="given away as they are"):
        audited(personal("ditto", personal_noise=0.0), view=DEPLOYED)
