"""What clients with models of their own pay in each view, counted from the entries themselves."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import accounting
from fedjax_dp.accounting import View
from fedjax_dp.algorithms import CATALOGUE, PERSONAL
from fedjax_dp.data.store import Dataset, FederatedData, federate
from fedjax_dp.models import mlp
from fedjax_dp.privacy.ledger import ledger_of
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms

ROUNDS, STEPS, NOISE, DELTA = 20, 5, 40.0, 1e-5
VIEWS = (View.UPLOADS, View.BROADCAST, View.OWNER, View.DEPLOYED)


class Paid(NamedTuple):
    """Of one record of a client that takes part in every round, in one view."""

    releases: int  # noised looks that can touch it
    epsilon: float


class ViewsRow(NamedTuple):
    """One entry."""

    entry: str
    paid: dict[str, Paid]  # by view
    clean: bool  # whether its personal steps may go without noise, where only their client sees them


def rows() -> list[ViewsRow]:
    """Of the entries whose clients end with models of their own, under noise on records."""
    data = _population()
    return [_row(entry, data) for entry in PERSONAL]


def _row(entry: str, data: FederatedData) -> ViewsRow:
    options: dict[str, Any] = {"cohort_size": None, "batches": "full", "batch_size": None, "local_steps": STEPS}
    made = CATALOGUE[entry](**options, learning_rate=0.1, clip_norm=1.0, noise_multiplier=NOISE)
    model, paid = mlp(data.record_shape, data.classes, (4,)), {}
    for view in VIEWS:
        terms = PrivacyTerms(delta=DELTA, view=view.value)
        event = ledger_of(plan_run(made, data, rounds=ROUNDS, terms=terms, model=model))[0]
        count = sum(times for _, times in event.leaves())
        paid[view.value] = Paid(count, accounting.epsilon_of(event, DELTA))
    return ViewsRow(entry, paid, "personal_noise" in CATALOGUE[entry].options)


def _population() -> FederatedData:
    x, y = np.zeros((8, 4), np.float32), np.arange(8, dtype=np.int32) % 2
    return federate(Dataset("shape", x, y, x[:1], y[:1], classes=2), np.split(np.arange(8), 2))


HEADER = ("entry", *(view.value for view in VIEWS), "clean steps for the owner")
ABOUT = (
    f"Clients with models of their own: noised looks that can touch a record, and their epsilon at delta {DELTA:g}, in "
    f"{ROUNDS} rounds of {STEPS} steps on all records with noise multiplier {NOISE:g} (ifca chooses in every round). "
    "owner is another client with its own model: a record is no secret to the client that holds it. With noise on "
    "whole clients (--unit client) each round is one release, and deployed has no epsilon."
)


def cells(row: ViewsRow) -> list[str]:
    """A row in words, below `HEADER`."""
    paid = [f"{row.paid[view.value].releases} ({row.paid[view.value].epsilon:.3f})" for view in VIEWS]
    return [row.entry, *paid, "allowed" if row.clean else "no"]


def markdown(table: list[ViewsRow]) -> str:
    """The table as pages show it."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for row in table:
        entry, *rest = cells(row)
        lines.append(f"| `{entry}` | {' | '.join(rest)} |")
    return "\n".join(lines)
