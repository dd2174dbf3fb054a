"""Differentially private federated learning, simulated: clients are an axis, a round is one compiled program.

Names are loaded when first used, so that `fedjax_dp.accounting` works without JAX.
"""

import importlib
from typing import Any

from fedjax_dp import devices

__version__ = "0.1.0"

_HOME = {
    "accounting": ["Adjacency", "Claim", "Guarantee", "Unit", "Verdict", "View"],
    "parts.aggregation": ["ESTIMATORS", "BoundedMean", "Estimator", "FairRatio"],
    "rounds.algorithm": ["Algorithm"],
    "rounds.round": ["ServerState", "run_round"],
    "parts.answers": ["Dropout", "FirstResponders"],
    "audits.audit": ["Audit", "audit", "audit_mechanism"],
    "audits.plots": ["plot_audit"],
    "parts.batches": ["EpochBatches", "FixedBatches", "FullBatches", "PoissonBatches", "ReplacementBatches"],
    "parts.clipping": ["ClipBatch", "ClipRecords", "ClipTensorsAtMedian", "ScaleGradients", "Unbounded"],
    "algorithms": [
        "CATALOGUE",
        "acs_pldp",
        "addpnfl",
        "cpfed",
        "dp_fedavg",
        "dp_fedavg_local",
        "dp_fedavg_output",
        "dp_ftrl",
        "dp_scaffold",
        "dp_sgd",
        "dpnfl",
        "fedadam",
        "fedavg",
        "fedavgm",
        "fedprox",
        "fedyogi",
        "q_fedavg",
        "rfedavg",
        "rfedavg_plus",
        "scaffold",
    ],
    "execution.mesh": ["Execution", "all_devices", "some_devices"],
    "parts.cohorts": [
        "AllClients",
        "CyclicCohort",
        "MultinomialCohort",
        "PoissonCohort",
        "UniformCohort",
    ],
    "parts.corrections": ["ControlVariates", "Correction", "L2Penalty", "Proximal"],
    "data": [
        "Dataset",
        "FederatedData",
        "dirichlet",
        "equal_sizes",
        "federate",
        "hold_out",
        "iid",
        "label_counts",
        "labels_per_client",
        "load",
        "natural",
        "natural_parts",
        "one_class_per_client",
        "one_class_sizes",
        "open_store",
        "pooled",
        "power_law_sizes",
        "save_store",
        "similarity",
        "summarise",
        "zipf_sizes",
    ],
    "errors": ["ConfigurationError", "DivergedError", "RingOverflowError"],
    "parts.feature_matching": ["FeatureMatching", "NoisyFeatures", "PlainFeatures"],
    "privacy.ledger": ["ledger_of"],
    "privacy.planned_run": ["PlannedRun", "participations", "plan_run"],
    "privacy.terms": ["PrivacyTerms"],
    "parts.local_sgd": ["LocalRule", "LocalSgd"],
    "parts.local_training": ["LocalResult", "LocalTraining", "Received"],
    "rounds.metrics": ["client_accuracies", "rounds_to"],
    "models": [
        "NetworkModel",
        "cnn",
        "explain_gradients",
        "group_norm_cnn",
        "logistic_regression",
        "lstm",
        "mlp",
        "model",
    ],
    "parts.noise": ["BandedNoise", "WhiteNoise"],
    "algorithms.importance_sampling": ["optimal_probabilities"],
    "experiments.plots": ["plot_claims", "plot_clients", "plot_epsilon", "plot_run"],
    "privacy.guarantees": ["calibrate", "guarantee"],
    "parts.record_privacy": ["NonPrivate", "OutputGaussian", "RecordGaussian"],
    "reproductions.recipe": ["recipes"],
    "reproductions.found": ["Reproduction"],
    "reproductions.reproduce": ["reproduce"],
    "experiments.run": ["Result", "run"],
    "parts.secure_aggregation": ["SecureSum"],
    "parts.server_optimizers": ["Server"],
    "rounds.simulation": ["Evaluation", "Simulation", "simulate"],
    "sweeps.plan": ["SweepConfig", "read_sweep"],
    "sweeps.sweep": ["Sweep", "run_sweep", "sweep"],
    "parts.transport": ["PlainSum"],
    "pytrees": ["structure", "value"],
    "parts.client_privacy": ["AdaptiveClientGaussian", "ClientGaussian", "ClientSkellam", "PlainUpload"],
    "experiments.communication": ["Traffic", "traffic"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedjax_dp' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedjax_dp.{_MODULE_OF[name]}"), name)


devices.use_all_cores()  # before JAX makes its devices
