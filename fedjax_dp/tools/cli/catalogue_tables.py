"""The catalogue as tables, computed from the entries themselves: what each hides from whom, keeps and sends, and what
clients with models of their own pay in each view."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp import accounting
from fedjax_dp.accounting import View
from fedjax_dp.algorithms import CATALOGUE, PERSONAL
from fedjax_dp.data.store import Dataset, FederatedData, federate
from fedjax_dp.experiments.communication import traffic
from fedjax_dp.models import logistic_regression, mlp
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.protection import natural_view, no_epsilon_reason_of, unit_of
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.rounds.state import initial_state

FEATURED = ("rfedavg", "rfedavg_plus", "fedper", "fedrep")  # on a model with a hidden layer of 64
HEADER = (
    "entry",
    "source",
    "hides",
    "from",
    "numbers the server keeps",
    "numbers kept per client",
    "bytes down",
    "bytes up",
)
SHAPE = (
    f"Of softmax regression on 784 features and 10 classes ({', '.join(FEATURED)}: of a network with a hidden layer "
    "of 64), in float32. Numbers are those beside the model; bytes are those of one client in a round."
)
ROUNDS, STEPS, NOISE, DELTA = 20, 5, 40.0, 1e-5
VIEWS = (View.UPLOADS, View.BROADCAST, View.OWNER, View.DEPLOYED)
VIEWS_HEADER = ("entry", *(view.value for view in VIEWS), "clean steps for the owner")
ABOUT_VIEWS = (
    f"Clients with models of their own: noised looks that can touch a record, and their epsilon at delta {DELTA:g}, in "
    f"{ROUNDS} rounds of {STEPS} steps on all records with noise multiplier {NOISE:g} (ifca chooses in every round). "
    "owner is another client with its own model: a record is no secret to the client that holds it. With noise on "
    "whole clients (--noise-on clients) each round is one release, and deployed has no epsilon."
)


class EntryRow(NamedTuple):
    """One entry. Numbers are float32 parameters or bytes, on 784 features and 10 classes, cohorts of 10 of 100."""

    entry: str
    source: str
    unit: str  # "record", "client", or "none" without privacy
    view: str  # the strongest adversary that it was made for
    server: int  # numbers that the server keeps beside the model
    client: int  # numbers that are kept for each client, by it or by the server
    down: int  # bytes to a client of a round
    up: int  # bytes from it

    @property
    def cells(self) -> list[str]:
        """In words, below `HEADER`."""
        numbers = (self.server, self.client, self.down, self.up)
        return [self.entry, self.source, self.unit, self.view, *(f"{number:,}" for number in numbers)]


class Paid(NamedTuple):
    """Of one record of a client that takes part in every round, in one view."""

    releases: int  # noised looks that can touch it
    epsilon: float


class ViewsRow(NamedTuple):
    """One entry whose clients end with models of their own, under noise on records."""

    entry: str
    paid: dict[str, Paid]  # by view
    clean: bool  # whether its personal steps may go without noise, where only their client sees them

    @property
    def cells(self) -> list[str]:
        """In words, below `VIEWS_HEADER`."""
        paid = [f"{self.paid[view.value].releases} ({self.paid[view.value].epsilon:.3f})" for view in VIEWS]
        return [self.entry, *paid, "allowed" if self.clean else "no"]


def entry_rows() -> list[EntryRow]:
    """Every entry of the catalogue, below `HEADER`."""
    data = _population(np.zeros((100, 784), np.uint8), classes=10, clients=100)
    return [_entry_row(entry, data) for entry in CATALOGUE]


def views_rows() -> list[ViewsRow]:
    """The entries whose clients end with models of their own, below `VIEWS_HEADER`."""
    data = _population(np.zeros((8, 4), np.float32), classes=2, clients=2)
    return [_views_row(entry, data) for entry in PERSONAL]


def markdown(header: Sequence[str], rows: Iterable[EntryRow] | Iterable[ViewsRow]) -> str:
    """A table as pages show it."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in rows:
        entry, *rest = row.cells
        lines.append(f"| `{entry}` | {' | '.join(rest)} |")
    return "\n".join(lines)


def algorithm_of(entry: str) -> Algorithm:
    """The algorithm of an entry with its defaults, for cohorts of 10."""
    options: dict[str, Any] = {"cohort_size": 10, "batch_size": 1, "local_steps": 1, "learning_rate": 0.1}
    if CATALOGUE[entry].private:
        options |= {"clip_norm": 1.0, "noise_multiplier": 1.0}
    return CATALOGUE[entry](**options)


def _population(x: np.ndarray, classes: int, clients: int) -> FederatedData:
    y = np.arange(len(x), dtype=np.int32) % classes
    return federate(Dataset("shape", x, y, x[:1], y[:1], classes=classes), np.split(np.arange(len(x)), clients))


def _entry_row(entry: str, data: FederatedData) -> EntryRow:
    algorithm = algorithm_of(entry)
    model = mlp((784,), 10) if entry in FEATURED else logistic_regression((784,), 10)
    state = jax.eval_shape(lambda: initial_state(algorithm, model, data, run_key(0)))
    view = natural_view(algorithm)
    private = no_epsilon_reason_of(algorithm, view) is None
    sent = traffic(algorithm, model, data)
    server = _size(state.optimizer) + _size(state.upload) + _size(state.shared)
    return EntryRow(
        entry,
        CATALOGUE[entry].source,
        unit_of(algorithm).value if private else "none",
        view.value if private else "-",
        server,
        _size(state.clients) // data.num_clients,
        sent.down,
        sent.up,
    )


def _size(tree: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def _views_row(entry: str, data: FederatedData) -> ViewsRow:
    options: dict[str, Any] = {"cohort_size": None, "batches": "full", "batch_size": None, "local_steps": STEPS}
    made = CATALOGUE[entry](**options, learning_rate=0.1, clip_norm=1.0, noise_multiplier=NOISE)
    model, paid = mlp(data.record_shape, data.classes, (4,)), {}
    for view in VIEWS:
        terms = PrivacyTerms(delta=DELTA, view=view.value)
        event = client_events(plan_run(made, data, rounds=ROUNDS, terms=terms, model=model))[0]
        count = sum(times for _, times in event.leaves())
        paid[view.value] = Paid(count, accounting.epsilon_of(event, DELTA))
    return ViewsRow(entry, paid, "personal_noise" in CATALOGUE[entry].options)
