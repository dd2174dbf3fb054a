"""Features of clients' records in the last hidden layers of local models (rfedavg, Fig. 1)."""

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import folders, gradients
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import run_round

CLIENTS, RECORDS = 3, 150  # number of clients, and of records of each


class Cloud(NamedTuple):
    """Features of a few clients' records, by each client's local model after one more round."""

    features: np.ndarray  # (CLIENTS * RECORDS, features)
    clients: np.ndarray  # whose record
    labels: np.ndarray

    @property
    def separation(self) -> float:
        """The share of the variance between clients (%): near 0 if their features are alike, 100 if apart."""
        means = [self.features[self.clients == client].mean(0) for client in range(CLIENTS)]
        between = np.mean(np.sum((np.array(means) - self.features.mean(0)) ** 2, axis=1))
        return float(100 * between / np.sum(self.features.var(0)))

    def map(self) -> np.ndarray:
        """The cloud in the plane, by t-SNE; (records, 2)."""
        from sklearn.manifold import TSNE  # slow to import
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):  # few records: more threads would only wait for each other
            return TSNE(2, perplexity=30.0, init="pca", random_state=0).fit_transform(self.features)


def cloud_of(run: PlannedRun) -> Cloud:
    """Train, run the local steps of one more round, and compute features of each client's records.

    Clients have weight 1 (estimator mean), so that a message is an update.
    """
    trained = simulation.simulate(
        run.algorithm, run.data, rounds=run.rounds, seed=run.seed, model=run.model, evaluate_every=run.rounds
    )
    _, report = _one_more(simulation.as_float32_leaves(run.algorithm), run, trained.state)
    flat, unravel = ravel(trained.state.params)
    size, features, clients, labels = flat.size, [], [], []
    for place in range(CLIENTS):
        client = int(report.clients[place])
        own = unravel(flat + report.transcript.uploads[place][:size])
        rows = run.data.row_numbers[int(run.data.offsets[client]) :][: min(RECORDS, int(run.data.sizes[client]))]
        model: Any = run.model
        features.append(np.asarray(gradients.features(model, own, run.data.features(jnp.asarray(run.data.x)[rows]))))
        clients.append(np.full(len(rows), place))
        labels.append(np.asarray(run.data.y)[rows])
    return Cloud(np.concatenate(features), np.concatenate(clients), np.concatenate(labels))


def _one_more(algorithm: Algorithm, run: PlannedRun, state: Any) -> Any:
    def play(algorithm: Algorithm, state: Any) -> Any:
        key = simulation.run_key(run.seed)
        execution = Execution(chunk_size=1)
        return run_round(algorithm, run.model, run.data, key, state, execution, lambda _, message: message)

    return jax.jit(play)(algorithm, state)


def save(cloud: Cloud, path: pathlib.Path) -> None:
    with folders.draft_file(path) as draft, draft.open("wb") as file:
        np.savez(file, **cloud._asdict())


def load(path: pathlib.Path) -> Cloud | None:
    """A saved cloud, or None."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        return Cloud(**{name: arrays[name] for name in Cloud._fields})
