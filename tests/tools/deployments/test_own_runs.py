"""A deployment that describes a run of this program has that run's epsilons, to the last digit."""

import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp.tools.deployments import Deployment, check

ROUNDS, DELTA, SIZES = 3, 1e-3, [8, 8, 8, 10, 12, 9]


@pytest.fixture(scope="module")
def data():
    return ragged_data(SIZES)


def described(**facts):
    checked = check(Deployment(delta=DELTA, rounds=ROUNDS, **facts))
    assert checked.findings == ()
    return checked.mechanism


def alike(ours, theirs):
    assert theirs.epsilons == ours.epsilons
    for fact in ("delta", "unit", "adjacency", "view", "accountant"):
        assert getattr(theirs, fact) == getattr(ours, fact), fact


@pytest.mark.parametrize(
    ("cohort", "facts"),
    [
        ("poisson", {"clients": {"law": "poisson", "rate": 0.5, "of": 6}, "weights": {"denominator": "fixed"}}),
        ("uniform", {"clients": {"law": "fixed", "size": 3, "of": 6}}),  # a client knows whether it takes part itself
    ],
)
def test_dp_fedavg_by_each_law_of_its_cohorts(data, cohort, facts):
    algorithm = fdp.dp_fedavg(
        clip_norm=0.5,
        noise_multiplier=2.0,
        cohort=cohort,
        cohort_size=3,
        batch_size=2,
        local_steps=2,
        learning_rate=0.1,
    )
    ours = fdp.guarantee(algorithm, data, rounds=ROUNDS, delta=DELTA)
    theirs = described(
        unit="client",
        clip={"of": "update", "norm": "l2", "bound": 0.5},
        noise={"law": "gaussian", "std": 1.0, "on": "sum", "by": "server"},
        **facts,
    )
    alike(ours, theirs)


def test_dpnfl_with_several_local_steps(data):
    algorithm = fdp.dpnfl(
        clip_norm=0.5, noise_multiplier=2.0, cohort_size=3, batch_size=2, local_steps=4, learning_rate=0.1
    )
    ours = fdp.guarantee(algorithm, data, rounds=ROUNDS, delta=DELTA, participation="worst")
    theirs = described(
        unit="record",
        clients={"law": "fixed", "size": 3, "of": 6},
        records={"law": "fixed", "size": 2, "of": SIZES, "steps": 4},
        clip={"of": "record", "norm": "l2", "bound": 0.5},
        noise={"law": "gaussian", "std": 0.5, "on": "mean", "by": "client"},
    )
    alike(ours, theirs)


def test_cpfed_in_the_eyes_of_a_server_that_sees_uploads(data):
    noises = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    algorithm = fdp.cpfed(
        clip_norm=0.5, noise_multiplier=noises, cohort_size=3, batch_size=2, local_steps=2, learning_rate=0.1
    )
    terms = {"participation": "worst", "view": "uploads"}
    ours = fdp.guarantee(algorithm, data, rounds=ROUNDS, delta=DELTA, **terms)
    theirs = described(
        unit="record",
        clients={"law": "fixed", "size": 3, "of": 6},
        records={"law": "fixed", "size": 2, "of": SIZES, "steps": 2},
        clip={"of": "record", "norm": "l2", "bound": 0.5},
        noise={"law": "gaussian", "std": [0.5 * z for z in noises], "on": "sum", "by": "client"},
    )
    alike(ours, theirs)
