"""What a data set brings to a run where nothing is said, beside its population."""

from typing import Any

from fedjax_dp.experiments.population import FILES, population_of

# `adaptive_learning_rate`: of servers such as Adam, whose steps are of the rate's own size.
_COMMON = {"batches": "without-replacement", "clip_norm": 1.0, "accountant": "pld"}
_DPNFL = _COMMON | {  # MNIST and its kin follow the paper
    "rounds": 50,
    "cohort_size": 10,
    "batch_size": 10,
    "local_steps": 300,
    "learning_rate": 0.01,
    "schedule": "inverse_sqrt",
    "l2": 1e-3,
    "adaptive_learning_rate": 0.01,
    "epsilon": 0.3,
    "delta": 1e-2,
}
_SMALL = _COMMON | {
    "rounds": 40,
    "cohort_size": 5,
    "batch_size": 20,
    "local_steps": 10,
    "learning_rate": 0.3,
    "schedule": "inverse_sqrt",
    "l2": 1e-3,
    "adaptive_learning_rate": 0.05,
    "epsilon": 4.0,
    "delta": 1e-3,
}
_LARGE = _SMALL | {"rounds": 50, "cohort_size": 10, "delta": 1e-4}
# Data of one's own: an option that Python may leave out means there what it means here.
_OWN = {name: value for name, value in _SMALL.items() if name not in ("schedule", "l2")}
_TRAINING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mnist", "fashion_mnist", "emnist_letters", "emnist_digits"), _DPNFL),
    **dict.fromkeys(("adult", "adult_full"), _LARGE),
    **dict.fromkeys(("emnist_byclass", "emnist_balanced", "cifar10_pca60"), _LARGE | {"learning_rate": 0.1}),
    "cifar10": _LARGE | {"model": "group_norm_cnn"},
    "tfds": _SMALL | {"learning_rate": 0.1},
    "svhn": _SMALL | {"model": "group_norm_cnn"},
    "sent140": _LARGE | {"model": "lstm"},
    **dict.fromkeys((*FILES, "store"), _OWN),
    "synthetic": _LARGE | {"batch_size": 10, "learning_rate": 0.1, "delta": 1e-3},
}


def paper_of(kind: str) -> str | None:
    """The paper whose setting a data set brings."""
    return "dpnfl" if _TRAINING.get(kind) is _DPNFL else None


def preset_of(kind: str) -> dict[str, Any]:
    """Everything that a data set brings."""
    return population_of(kind) | _TRAINING.get(kind, _SMALL)
