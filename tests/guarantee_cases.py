"""Combinations of parts of the catalogue whose Guarantees are on file (`golden/guarantees.json`)."""

import numpy as np
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, GaussianSteps
from fedjax_dp.accounting.sampling import FullBatch
from fedjax_dp.algorithms import CATALOGUE

SIZES = [8, 8, 8, 10, 12, 9]
VIEWS = (None, "uploads", "secure_sum", "broadcast", "final_model")
COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 3, "learning_rate": 0.3}
CLIP = {"clip_norm": 0.7, "noise_multiplier": 2.0}
PAID = GaussianSteps(4.0, FullBatch(), Adjacency.REPLACE_ONE, 1)
CHANCES = np.array([0.1, 0.1, 0.2, 0.2, 0.2, 0.2])
RECORD = ("dpnfl", "addpnfl", "dp_fedavg_local", "dp_scaffold", "dp_sgd", "cpfed", "acs_pldp", "dp_fedavg_output")
CLIENT = ("dp_fedavg", "dp_ftrl")

VARIANTS = {
    "batches": [{"batches": b} for b in ("with-replacement", "poisson", "epochs")]
    + [{"batches": "full", "batch_size": None}],
    "cohorts": [
        {"cohort": "poisson"},
        {"cohort": "md"},
        {"cohort": "md", "one_by_one": True},
        {"cohort": "cyclic"},
        {"cohort_size": None},
        {"dropout": 0.2},
        {"cohort_size": 4, "first": 3},
    ],
    "sums": [
        {"secure": True},
        {"secure": True, "local_steps": 1},
        {"secure": True, "local_steps": 1, "batches": "full", "batch_size": None},
        {"secure": True, "local_steps": 1, "estimator": "mean"},
    ],
    "noise": [
        {"noise_multiplier": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
        {"noise_multiplier": 0.0},
        {"schedule": "inverse_sqrt"},
        {"local_rule": "momentum"},
    ],
}
OWN = {
    "dp_scaffold": [{"controls": "gradient"}, {"warm_start": True}, {"clipping": "tensor-median"}],
    "cpfed": [{"clipping": "scale", "gradient_bound": 3.0}, {"clipping": "none"}, {"secure": False}],
    "acs_pldp": [{"clipping": "batch"}, {"clipping": "batch", "batches": "poisson"}, {"sampling": "uniform"}],
    "dp_fedavg_output": [{"noise_space": "literal"}, {"noise_at": "every"}, {"clipping": "record"}, {"local_steps": 1}],
    "dp_fedavg": [
        {"noise": "shared", "secure": True},
        {"adaptive_clip": True},
        {"clip_by": "tensor"},
        {"weight_cap": 0.2, "least_weight": 0.5},
        {"cohort": "uniform", "secure": True},
    ],
    "dp_ftrl": [{"bands": 1}, {"cohort": "uniform"}],
}
LEARNT = {"sampling": "optimal", "probabilities": CHANCES}
CHANGED = {
    "acs_pldp of unnoised norms": ({**LEARNT}, {}),
    "acs_pldp of noised norms": ({**LEARNT, "setup_event": PAID}, {}),
}


def cases():
    """Names, and (entry, options, options of the Guarantee)."""
    for entry in CATALOGUE:
        base = CLIP if entry in RECORD + CLIENT else {}
        base = base | ({"local_steps": 1} if entry == "dp_sgd" else {})
        for view in VIEWS:
            yield f"{entry}, view {view}", entry, base, {"view": view}
        if not base:
            continue
        for participation in ("law", "worst", "expected", "once"):
            yield f"{entry}, {participation}", entry, base, {"participation": participation}
        variants = [v for name in VARIANTS for v in VARIANTS[name]] + OWN.get(entry, [])
        for variant in variants:
            counted = {"participation": "law"} if variant.get("cohort") == "poisson" else {}  # draws may change
            yield f"{entry}, {variant}", entry, base | variant, {"accountant": "rdp", **counted}
            secure = variant.get("secure", entry == "cpfed")
            if secure:
                for more in ({"colluders": 1}, {"view": "broadcast"}, {"view": "final_model", "colluders": 1}):
                    yield f"{entry}, {variant}, {more}", entry, base | variant, {"accountant": "rdp", **counted, **more}


def told(entry, options, more):
    """What a Guarantee says, or the line of its refusal."""
    data = ragged_data(SIZES)
    try:
        algorithm = CATALOGUE[entry].of({**COMMON, **options})
        promise = fdp.guarantee(algorithm, data, rounds=6, delta=1e-3, seed=3, **more)
    except errors.ConfigurationError as error:
        return f"refused: {error}"
    if promise.reason:
        return f"no epsilon: {promise.reason}"
    neighbours = promise.adjacency and promise.adjacency.value
    return [f"{promise.unit.value}, {neighbours}, {promise.view.value}", *(f"{e:.10g}" for e in promise.epsilons)]
