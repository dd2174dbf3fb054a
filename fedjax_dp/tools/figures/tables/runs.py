"""Fields of a run's history, with the labels that its picture and its report use."""

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
    "client_mean": "mean over clients (probe)",
    "worst_tenth": "worst tenth of clients (probe)",
    "personal_mean": "mean of personal models (probe)",
}


def quality(measures: Measures) -> dict[str, str]:
    """The main metric on test records, and its spread over clients."""
    return {measures.main.name: "all test records"} | CLIENTS


def known_fields(history: Rows, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that have a value in some evaluation."""
    return {field: label for field, label in fields.items() if any(row.get(field) is not None for row in history)}


def last_value(history: Rows, field: str) -> Any:
    """The last known value of a field."""
    return next((row[field] for row in reversed(history) if row.get(field) is not None), None)
