"""Differentially private federated learning, simulated: clients are an axis, a round is one compiled program.

Names are loaded when first used, so that `fedjax_dp.accounting` works without JAX.
"""

import importlib
import sys
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "accounting": ["Adjacency", "Claim", "Guarantee", "Unit", "Verdict", "View"],
    "aggregate": ["ESTIMATORS", "Estimator"],
    "algorithm": ["Algorithm", "ServerState", "run_round"],
    "batches": ["FixedBatches", "FullBatches", "PoissonBatches", "ReplacementBatches"],
    "catalogue": ["addpnfl", "dpnfl", "fedavg"],
    "clients": ["Execution", "all_devices"],
    "cohort": ["AllClients", "UniformCohort"],
    "correction": ["L2Penalty"],
    "data": [
        "Dataset", "FederatedData", "equal_sizes", "federate", "iid", "labels_per_client", "load", "natural",
        "power_law_sizes",
    ],
    "errors": ["ConfigurationError", "DivergedError"],
    "local": ["LocalSgd"],
    "models": ["FlaxModel", "logistic_regression"],
    "plots": ["plot_claims", "plot_epsilon", "plot_run"],
    "privacy": ["calibrate", "guarantee", "participations"],
    "privatizer": ["NonPrivate", "RecordGaussian", "WhiteNoise"],
    "runs": ["Result", "run"],
    "server": ["Server"],
    "simulation": ["Evaluation", "Simulation", "simulate"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedjax_dp' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedjax_dp.{_MODULE_OF[name]}"), name)


if sys.modules.get("jax") is not None:  # then it may be used before any of the names above
    importlib.import_module("fedjax_dp.values")
