"""The catalogue as a table: for each entry its source, whom it protects from whom, what is kept, and what travels."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.data.store import Dataset, FederatedData, federate
from fedjax_dp.experiments.communication import traffic
from fedjax_dp.models import logistic_regression, mlp
from fedjax_dp.parts.facts import parts_of
from fedjax_dp.privacy.protection import natural_view, unit_of, unprotected
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.rounds.state import initial_state

STEP = (
    "cohort",
    "batches",
    "bound",
    "noise source",
    "privatizer",
    "correction",
    "local rule",
    "local",
    "client models",
)
ROUND = ("upload", "transport", "estimator", "server")
FEATURED = ("rfedavg", "rfedavg_plus", "fedper", "fedrep")  # on a model with a hidden layer of 64


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


def rows() -> list[EntryRow]:
    """The table, computed from the algorithms themselves."""
    data = _population()
    return [_row(entry, data) for entry in CATALOGUE]


def algorithm_of(entry: str) -> Algorithm:
    """The algorithm of an entry with its defaults, for cohorts of 10."""
    options: dict[str, Any] = {"cohort_size": 10, "batch_size": 1, "local_steps": 1, "learning_rate": 0.1}
    if CATALOGUE[entry].private:
        options |= {"clip_norm": 1.0, "noise_multiplier": 1.0}
    return CATALOGUE[entry](**options)


def equations(algorithm: Algorithm) -> list[tuple[str, str]]:
    """What its parts do, as LaTeX by slot, in the order of a round; what a part does not say in its `equation` is left
    out, and so is a term of strength 0."""
    parts = [*parts_of(algorithm), ("server", algorithm.server)]
    stated = [(slot, part.equation) for slot, part in parts if hasattr(part, "equation") and _acts(part)]
    return sorted(stated, key=lambda one: (*STEP, *ROUND).index(one[0]))


def _acts(part: Any) -> bool:
    return not np.all(np.asarray(getattr(part, "strength", 1.0)) == 0)


def _population() -> FederatedData:
    x, y = np.zeros((100, 784), np.uint8), np.arange(100, dtype=np.int32) % 10
    return federate(Dataset("shape", x, y, x[:1], y[:1], classes=10), np.split(np.arange(100), 100))


def _row(entry: str, data: FederatedData) -> EntryRow:
    algorithm = algorithm_of(entry)
    model = mlp((784,), 10) if entry in FEATURED else logistic_regression((784,), 10)
    state = jax.eval_shape(lambda: initial_state(algorithm, model, data, run_key(0)))
    view = natural_view(algorithm)
    private = unprotected(algorithm, view) is None
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


def cells(row: EntryRow) -> list[str]:
    """A row in words, below `HEADER`."""
    numbers = (row.server, row.client, row.down, row.up)
    return [row.entry, row.source, row.unit, row.view, *(f"{number:,}" for number in numbers)]


def markdown(table: list[EntryRow]) -> str:
    """The table as pages show it."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for row in table:
        entry, *rest = cells(row)
        lines.append(f"| `{entry}` | {' | '.join(rest)} |")
    return "\n".join(lines)
