"""A deployment that describes a run of this program has that run's epsilons, to the last digit."""

import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp.tools.deployments import Deployment, check

ROUNDS, DELTA, SIZES = 3, 1e-3, [8, 8, 8, 10, 12, 9]


NOISES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
OF_UPDATES = {
    "unit": "client",
    "clip": {"of": "update", "norm": "l2", "bound": 0.5},
    "noise": {"law": "gaussian", "std": 1.0, "on": "sum", "by": "server"},
}
OF_RECORDS = {
    "unit": "record",
    "clients": {"law": "fixed", "size": 3, "of": 6},
    "clip": {"of": "record", "norm": "l2", "bound": 0.5},
}
CASES = {  # the entry, its options, the terms of its guarantee, and the deployment
    "dp_fedavg of Poisson cohorts": (
        (fdp.dp_fedavg, {"cohort": "poisson"}, {}),
        OF_UPDATES | {"clients": {"law": "poisson", "rate": 0.5, "of": 6}, "weights": {"denominator": "fixed"}},
    ),
    "dp_fedavg of cohorts of one size": (  # a client knows whether it takes part itself
        (fdp.dp_fedavg, {"cohort": "uniform"}, {}),
        OF_UPDATES | {"clients": {"law": "fixed", "size": 3, "of": 6}},
    ),
    "dp_fedavg of the first to answer": (  # who is invited may be seen, also if its answer is dropped
        (fdp.dp_fedavg, {"cohort": "uniform", "cohort_size": 4, "first": 3}, {}),
        OF_UPDATES | {"clients": {"law": "fixed", "size": 4, "of": 6}},
    ),
    "dp_fedavg in secure sums, whose members know each other": (
        (fdp.dp_fedavg, {"cohort": "uniform", "secure": True}, {"participation": "worst"}),
        OF_UPDATES | {"clients": {"law": "fixed", "size": 3, "of": 6, "members": "known"}},
    ),
    "mr_mtl, whose clients keep a state": (
        (fdp.mr_mtl, {"cohort": "uniform", "noise_on": "clients"}, {"participation": "worst"}),
        OF_UPDATES | {"clients": {"law": "fixed", "size": 3, "of": 6, "members": "known"}},
    ),
    "dpnfl with several local steps": (
        (fdp.dpnfl, {"local_steps": 4}, {"participation": "worst"}),
        OF_RECORDS
        | {
            "records": {"law": "fixed", "size": 2, "of": SIZES, "steps": 4},
            "noise": {"law": "gaussian", "std": 0.5, "on": "mean", "by": "client"},
        },
    ),
    "cpfed, whose server sees uploads": (
        (fdp.cpfed, {"noise_multiplier": NOISES}, {"participation": "worst", "view": "uploads"}),
        OF_RECORDS
        | {
            "records": {"law": "fixed", "size": 2, "of": SIZES, "steps": 2},
            "noise": {"law": "gaussian", "std": [0.5 * z for z in NOISES], "on": "sum", "by": "client"},
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_deployment_that_describes_a_run_has_its_epsilons(case):
    (entry, options, terms), facts = CASES[case]
    usual = {"clip_norm": 0.5, "noise_multiplier": 2.0, "cohort_size": 3, "batch_size": 2, "local_steps": 2}
    algorithm = entry(**usual | options, learning_rate=0.1)
    ours = fdp.guarantee(algorithm, ragged_data(SIZES), rounds=ROUNDS, delta=DELTA, **terms)
    checked = check(Deployment(delta=DELTA, rounds=ROUNDS, **facts))
    assert checked.findings == ()
    for fact in ("epsilons", "delta", "unit", "adjacency", "view", "accountant"):
        assert getattr(checked.mechanism, fact) == getattr(ours, fact), fact
