"""What the history of a run says, by the names that its picture and its report give to it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_dp.tasks.measures import Measures

Rows = Sequence[Mapping[str, Any]]
LOSS = {
    "test_loss": "test records",
    "train_loss": "cohort's batches (probe)",
    "objective": "all training records (probe)",
}
CLIENTS = {
    "client_mean": "mean of clients (probe)",
    "worst_tenth": "worst tenth of clients (probe)",
    "personal_mean": "mean of own models (probe)",
}


def quality(measures: Measures) -> dict[str, str]:
    """The main metric, and how it is spread over clients."""
    return {measures.main.name: "all test records"} | CLIENTS


def known(history: Rows, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that some evaluation knows."""
    return {field: label for field, label in fields.items() if any(row.get(field) is not None for row in history)}


def latest(history: Rows, field: str) -> Any:
    """The last known value of a field."""
    return next((row[field] for row in reversed(history) if row.get(field) is not None), None)
