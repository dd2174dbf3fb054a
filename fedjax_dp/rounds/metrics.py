"""What is measured of a model: on the test set, by client, over all training records, and along a run's history."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import Table
from fedjax_dp.models import Model
from fedjax_dp.rounds.round import RoundReport

ROWS = 2048  # records that are looked at together, at most
FLOATS = 2**23  # numbers that a forward pass over them may make, in all; bounds memory


class Evaluation(NamedTuple):
    """Where training stands after `round` rounds. Fields in `PROBES` are the simulator's view, which nobody else has.

    Losses are in nats, without penalties. None is what was not asked for, cannot be known, or is not finite.
    """

    round: int
    test_accuracy: float  # on public test data
    test_loss: float  # mean cross-entropy
    train_loss: float | None = None  # mean over the last round's cohort and local steps; None if nobody took part
    clipped: float | None = None  # fraction of the last round's records whose gradient was scaled down
    noise_to_signal: float | None = None  # of the last round, see `noise_to_signal`
    objective: float | None = None  # sum_i p_i F_i: share-weighted mean loss over all training records
    gradient_norm: float | None = None  # |sum_i p_i grad F_i|, L2
    client_mean: float | None = None  # mean of the clients' accuracies, each on its own part of the test set
    worst_tenth: float | None = None  # mean accuracy of the worst tenth of the clients
    client_variance: float | None = None  # of the clients' accuracies, which are fractions


def table(history: Sequence[Evaluation]) -> Table:
    """A row for each evaluation, a column for each field that any of them has."""
    fields = [name for name in Evaluation._fields if any(getattr(seen, name) is not None for seen in history)]
    return Table(
        [name.replace("_", " ") for name in fields],
        [["" if (told := getattr(seen, name)) is None else f"{told:.4g}" for name in fields] for seen in history],
    )


PROBES = (
    "train_loss",
    "clipped",
    "noise_to_signal",
    "objective",
    "gradient_norm",
    "client_mean",
    "worst_tenth",
    "client_variance",
)


class Scores(NamedTuple):
    """A model on the test set."""

    accuracy: jax.Array
    loss: jax.Array
    correct: jax.Array | None  # (num_clients,) records of each client's part that are right; None without parts


class Look(NamedTuple):
    """What is looked at of a model, on the device."""

    test: Scores
    train: tuple[jax.Array, jax.Array] | None  # objective and gradient norm, where they are asked for


class Fairness(NamedTuple):
    """How accuracy is spread over the clients that have test records."""

    mean: float
    worst_tenth: float  # mean over the worst tenth of them, rounded up, so at least one
    variance: float  # over clients (divided by their number, not one less), in squared fractions


@gradients.JitOfModel
def evaluate(params: Any, data: FederatedData, *, model: Model) -> Scores:
    """Accuracy, mean loss and right answers by client on the test set, in one pass."""
    records = data.y_test.shape[0]

    def block(total: jax.Array, at: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, y = data.features(data.x_test[at]), data.y_test[at]
        right = (jnp.argmax(gradients.logits(model, params, x), -1) == y) & real
        loss = jnp.where(real, gradients.losses(model, params, x, y), 0.0).sum()
        return total + jnp.stack([right.sum().astype(jnp.float32), loss]), right

    total, right = _over_blocks(
        block, jnp.zeros(2), records, rows_per_block(model, params, data, records), data.sizes[0]
    )
    correct = None
    if data.test_clients is not None:
        correct = jax.ops.segment_sum(right.astype(jnp.int32), data.test_clients, data.num_clients)
    return Scores(total[0] / records, total[1] / records, correct)


@gradients.JitOfModel
def train_metrics(params: Any, data: FederatedData, *, model: Model) -> tuple[jax.Array, jax.Array]:
    """The objective sum_i p_i F_i(w) and the norm of its gradient: one pass over all training records, probes.

    F_i is the mean loss over client i's records. A record of client i weighs p_i / n_i, so clients need no loop.
    """
    records = (data.x if data.rows is None else data.rows).shape[0]
    shares, sizes = jnp.asarray(data.shares), jnp.asarray(data.sizes)
    weights = jnp.repeat(shares / sizes, sizes, total_repeat_length=records)

    def block(total: tuple[jax.Array, Any], at: jax.Array, real: jax.Array) -> tuple[tuple[jax.Array, Any], None]:
        rows = at if data.rows is None else data.rows[at]
        x, y = data.features(data.x[rows]), data.targets(rows)

        def loss(params: Any) -> jax.Array:
            return jnp.vdot(jnp.where(real, weights[at], 0.0), gradients.losses(model, params, x, y))

        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params)), None

    start = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    (objective, gradient), _ = _over_blocks(
        block, start, records, rows_per_block(model, params, data, records), data.sizes[0]
    )
    return objective, jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))


def _over_blocks(
    block: Callable[..., tuple[Any, Any]], start: Any, records: int, rows: int, some: jax.Array
) -> tuple[Any, Any]:
    """Fold `block(total, positions, real)` over all records; returns the total and the outputs by record.

    The last block is filled up with copies of the last record, where `real` is False. `some` is any number of at least
    1 that the compiler does not know: then it cannot know the number of blocks either, unfold a single one and fuse it
    with its surroundings, and a model shows the same bits wherever it is looked at.
    """
    blocks = math.ceil(records / rows)

    def one(total: Any, index: jax.Array) -> tuple[Any, Any]:
        at = index * rows + jnp.arange(rows)
        return block(total, jnp.minimum(at, records - 1), at < records)

    def step(index: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        total, found = one(carry[0], index)
        return total, jax.tree.map(lambda table, row: table.at[index].set(row), carry[1], found)

    shapes = jax.eval_shape(one, start, jnp.int32(0))[1]
    outputs = jax.tree.map(lambda a: jnp.zeros((blocks, *a.shape), a.dtype), shapes)
    total, outputs = lax.fori_loop(0, jnp.minimum(blocks, blocks * some), step, (start, outputs))
    return total, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:records], outputs)


def rows_per_block(model: Model, params: Any, data: FederatedData, records: int) -> int:
    """How many records are looked at together: a forward pass over them makes at most `FLOATS` numbers.

    Counted from the traced program as the difference that one more record makes, so images through convolutions come
    in small blocks and softmax regression in large ones. Loops count by what comes out of them.
    """

    def numbers(rows: int) -> int:
        x = jax.ShapeDtypeStruct((rows, *data.record_shape), data.x.dtype)
        y = data.blank_targets(rows)
        program = jax.make_jaxpr(lambda params, x, y: gradients.losses(model, params, data.features(x), y))(
            params, x, y
        )
        return sum(math.prod(out.aval.shape) for line in program.jaxpr.eqns for out in line.outvars)

    one = max(numbers(3) - numbers(2), 1)
    return max(1, min(ROWS, records, FLOATS // one))


def client_accuracies(params: Any, data: FederatedData, *, model: Model) -> np.ndarray:
    """Accuracy of each client on its own part of the test set `(num_clients,)`, a probe; NaN where that is empty."""
    return _accuracies(np.asarray(evaluate(params, data, model=model).correct), data)


def fairness(accuracies: np.ndarray) -> Fairness:
    """The spread of accuracies `(num_clients,)` over the clients, those with NaN left out."""
    known = np.sort(accuracies[~np.isnan(accuracies)])
    worst = known[: math.ceil(known.size / 10)]
    return Fairness(float(known.mean()), float(worst.mean()), float(known.var()))


def _accuracies(correct: np.ndarray, data: FederatedData) -> np.ndarray:
    records = np.bincount(np.asarray(data.test_clients), minlength=data.num_clients)
    return np.where(records > 0, correct / np.maximum(records, 1), np.nan)


def measured(
    rounds: int, params: Any, data: FederatedData, report: RoundReport, *, model: Model, train: bool
) -> Evaluation:
    """The evaluation after `rounds` rounds, the last of which gave `report`; `train` adds `train_metrics`."""
    return evaluation(rounds, look(params, data, model=model, train=train), report, data)


def look(params: Any, data: FederatedData, *, model: Model, train: bool) -> Look:
    """The part of an evaluation that needs the model."""
    test = evaluate(params, data, model=model)
    return Look(test, train_metrics(params, data, model=model) if train else None)


def evaluation(rounds: int, seen: Look, report: RoundReport, data: FederatedData) -> Evaluation:
    """The rest of an evaluation, on the host."""
    test, (objective, gradient_norm) = seen.test, seen.train or (None, None)
    spread = (None, None, None) if test.correct is None else fairness(_accuracies(np.asarray(test.correct), data))
    present = np.asarray(report.present)
    return Evaluation(
        rounds,
        float(test.accuracy),
        float(test.loss),
        _mean(report.loss, present),
        _mean(report.clipped, present),
        noise_to_signal(report.noise, report.signal, present),
        _finite(objective),
        _finite(gradient_norm),
        *spread,
    )


def noise_to_signal(noise: Any, signal: Any, present: np.ndarray) -> float | None:
    """Norm of a round's noise over the norm of what it is added to: sqrt(mean |noise|^2 / mean |signal|^2).

    Noise on gradients is compared with the bounded mean gradient, over the local steps of all who answered; the noise
    that the server adds, with the mean update. Noise on an upload sits in the round's last step, so it is compared with
    the root of the summed squares of all steps' gradients. Means come before the ratio: a Poisson batch may be empty.
    The noise counts with its expected norm std * sqrt(size), so nothing needs to look at it.

    | no noise: 0 | nobody answered, no signal, or noise that comes with a secure sum: None |
    """
    noise, signal = (np.asarray(a, float)[present].sum() for a in (noise, signal))
    if not present.any() or not np.isfinite(noise) or not np.isfinite(signal):
        return None
    if noise == 0:
        return 0.0
    return math.sqrt(noise / signal) if signal > 0 else None


def rounds_to(history: Sequence[Evaluation], target: float) -> int | None:
    """The first evaluated round whose test accuracy reaches `target`, None if none does."""
    return next((point.round for point in history if point.test_accuracy >= target), None)


def _mean(probe: Any, present: np.ndarray) -> float | None:
    """Over those who answered; None where nobody did."""
    return _finite(np.asarray(probe)[present].mean()) if present.any() else None


def _finite(number: Any) -> float | None:
    return None if number is None or not math.isfinite(float(number)) else float(number)
