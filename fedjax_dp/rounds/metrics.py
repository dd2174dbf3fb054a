"""Evaluation of a model: on the test set, by client, over all training records, and over a run's history."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.data.targets import rows_of
from fedjax_dp.display import Table
from fedjax_dp.models import Model, task_of
from fedjax_dp.pytrees import mask_rows
from fedjax_dp.rounds.comparison import Standing, standing
from fedjax_dp.rounds.state import RoundReport
from fedjax_dp.tasks import ScoreSums, Task, quotient
from fedjax_dp.tasks.measures import TEST, MetricTarget

ROWS = 2048  # largest number of records of a block
FLOATS = 2**23  # largest number of values in the forward pass of a block; bounds memory


class Evaluation(NamedTuple):
    """The evaluation after `round` rounds. Fields in `PROBES` are diagnostics (not private, not covered by epsilon).

    metrics  of the task on public test data, by name, the main one first; also as fields such as `test_accuracy`.
    Losses have no penalties. None: not computed, unknown, or not finite.
    """

    round: int
    metrics: dict[str, float | None]
    test_loss: float  # mean over the test set
    train_loss: float | None = None  # mean over the last round's cohort and local steps; None without participation
    clipped: float | None = None  # fraction of the last round's gradients that were scaled down, or of its updates
    learnt_clip_norm: float | None = None  # at the start of the last round, if rounds learn it
    noise_to_signal: float | None = None  # of the last round, see `noise_to_signal`
    objective: float | None = None  # sum_i p_i F_i: share-weighted mean loss over all training records
    gradient_norm: float | None = None  # |sum_i p_i grad F_i|, L2
    client_mean: float | None = None  # mean of the clients' main metrics, each on its own part of the test set
    worst_tenth: float | None = None  # mean of the main metric over the worst tenth of the clients
    client_variance: float | None = None  # of the clients' main metrics
    personal_mean: float | None = None  # main metric of personal models, each on its client's part: mean over clients
    personal_pooled: float | None = None  # over all their test records
    personal_worst_tenth: float | None = None
    personal_variance: float | None = None

    def __getattr__(self, name: str) -> Any:
        metrics = self.metrics
        if name.startswith(TEST) and name.removeprefix(TEST) in metrics:
            return metrics[name.removeprefix(TEST)]
        known = ", ".join(f"{TEST}{metric}" for metric in [*metrics, "loss"])
        raise AttributeError(f"an evaluation has no {name}; of the test set it has {known}")

    def row(self) -> dict[str, Any]:
        """A flat dictionary as in files: the round, each metric as `test_` and its name, then the other fields."""
        rest = self._asdict()
        first, metrics = rest.pop("round"), rest.pop("metrics")
        return {"round": first, **{TEST + name: value for name, value in metrics.items()}, **rest}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Evaluation":
        own = {name: value for name, value in row.items() if name in cls._fields}
        metrics = {name.removeprefix(TEST): value for name, value in row.items() if name not in own}
        return cls(**own, metrics=metrics)


def table(history: Sequence[Evaluation]) -> Table:
    """One row per evaluation, one column per number that any of them has."""
    rows = [evaluation.row() for evaluation in history]
    fields = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else []
    return Table(
        [name.replace("_", " ") for name in fields],
        [["" if (number := row[name]) is None else f"{number:.4g}" for name in fields] for row in rows],
    )


def main_metric(history: Sequence[Evaluation]) -> dict[str, str]:
    """The main metric of the last evaluation as text, by its name."""
    if not history:
        return {}
    last = history[-1]
    name, value = next(iter(last.metrics.items()), ("loss", last.test_loss))
    if last.personal_mean is not None:
        return {f"own models' {name.replace('_', ' ')}": f"{last.personal_mean:.4f}"}
    return {f"test {name.replace('_', ' ')}": "not known" if value is None else f"{value:.4f}"}


PROBES = Evaluation._fields[Evaluation._fields.index("train_loss") :]  # all fields after those of the test set


class MetricSums(NamedTuple):
    """Sums and scores of a model on the test set."""

    sums: dict[str, jax.Array]  # the task's sums over all records, and `loss`
    by_client: dict[str, jax.Array] | None  # the same over each client's part `(num_clients, ...)`; None without parts
    scores: jax.Array | None  # (test records, ...) if the task keeps them


class Measurement(NamedTuple):
    """Measurements of a model, on the device."""

    test: MetricSums
    train: tuple[jax.Array, jax.Array] | None  # objective and gradient norm, if requested
    personal: MetricSums | None = None  # of personal models, if there are any and clients have test parts


def record_sums(task: Task, model: Model, params: Any, x: jax.Array, y: Any) -> tuple[dict[str, jax.Array], Any]:
    """The sums of each record, and its scores, which are None if the task has no metrics."""
    losses = {"loss": gradients.losses(model, params, x, y)}
    if not task.metrics:
        return losses, None
    scores = gradients.logits(model, params, x)
    return {**jax.vmap(task.sums)(scores, y), **losses}, scores


@gradients.JitOfModel
def evaluate(params: Any, data: FederatedData, *, model: Model) -> MetricSums:
    """The sums behind the task's metrics on the test set, in one pass over blocks of records."""
    task, records, parts = task_of(model, data), data.x_test.shape[0], data.test_clients

    def sums_of(x: jax.Array, y: Any) -> tuple[dict[str, jax.Array], Any]:
        return record_sums(task, model, params, x, y)

    def block(total: Any, at: jax.Array, real: jax.Array) -> tuple[Any, Any]:
        sums, scores = sums_of(data.features(data.x_test[at]), rows_of(data.y_test, at))
        sums = {name: mask_rows(a, real) for name, a in sums.items()}
        total = {name: total[name] + a.sum(0, dtype=a.dtype) for name, a in sums.items()}
        return total, (None if parts is None else sums, scores if task.keeps_scores else None)

    one, _ = jax.eval_shape(sums_of, data.features(data.x_test[:1]), rows_of(data.y_test, slice(1)))
    start = {name: jnp.zeros(a.shape[1:], a.dtype) for name, a in one.items()}
    rows = rows_per_block(model, params, data, records)
    total, (apart, scores) = _fold_blocks(block, start, records, rows, data.sizes[0])
    by_client = None
    if parts is not None:
        by_client = {name: jax.ops.segment_sum(a, parts, data.num_clients) for name, a in apart.items()}
    return MetricSums(total, by_client, scores)


@gradients.JitOfModel
def train_metrics(params: Any, data: FederatedData, *, model: Model) -> tuple[jax.Array, jax.Array]:
    """The objective sum_i p_i F_i(w) and the norm of its gradient (diagnostics), in one pass over all training records.

    F_i is the mean loss over client i's records. A record of client i has weight p_i / n_i, so clients need no loop.
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
    (objective, gradient), _ = _fold_blocks(
        block, start, records, rows_per_block(model, params, data, records), data.sizes[0]
    )
    return objective, jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))


@functools.partial(gradients.JitOfModel, static=("by_gradient",))
def count_unscored(params: Any, data: FederatedData, *, model: Model, by_gradient: bool = False) -> jax.Array:
    """Number of training records whose loss, or gradient, is not finite (a diagnostic); `data` are without `rows`."""

    def block(total: jax.Array, at: jax.Array, real: jax.Array) -> tuple[jax.Array, None]:
        x, y = data.features(data.x[at]), data.targets(at)
        if by_gradient:
            return total + jnp.sum(gradients.clipped_sum(model, params, x, y, real, 1.0).lost), None
        return total + jnp.sum(real & ~jnp.isfinite(gradients.losses(model, params, x, y))), None

    records = data.x.shape[0]
    rows = rows_per_block(model, params, data, records)
    return jnp.asarray(_fold_blocks(block, jnp.int32(0), records, rows, data.sizes[0])[0])


def _fold_blocks(
    block: Callable[..., tuple[Any, Any]], start: Any, records: int, rows: int, some: jax.Array
) -> tuple[Any, Any]:
    """Fold `block(total, positions, real)` over all records; returns the total and the outputs by record.

    The last block is padded with copies of the last record, where `real` is False. `some` is any number of at least 1
    that the compiler does not know. So it does not know the number of blocks, cannot fuse a single block with the code
    around it, and a model has the same metrics bit for bit wherever it is evaluated.
    """
    blocks = math.ceil(records / rows)

    def one(total: Any, index: jax.Array) -> tuple[Any, Any]:
        at = index * rows + jnp.arange(rows)
        return block(total, jnp.minimum(at, records - 1), at < records)

    def step(index: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        total, out = one(carry[0], index)
        return total, jax.tree.map(lambda table, row: table.at[index].set(row), carry[1], out)

    shapes = jax.eval_shape(one, start, jnp.int32(0))[1]
    outputs = jax.tree.map(lambda a: jnp.zeros((blocks, *a.shape), a.dtype), shapes)
    total, outputs = lax.fori_loop(0, jnp.minimum(blocks, blocks * some), step, (start, outputs))
    return total, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:records], outputs)


def rows_per_block(model: Model, params: Any, data: FederatedData, records: int) -> int:
    """Records per block: a forward pass over them computes at most `FLOATS` numbers.

    The numbers are counted in the traced program as the difference that one more record makes, so blocks are small for
    images and convolutions and large for softmax regression. Loops count by their outputs.
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


def client_values(test: MetricSums, data: FederatedData, *, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Each client's main metric and number of test records, both `(num_clients,)`; NaN and 0 without any."""
    sums = _client_sums(test, data)
    return _main(task_of(model, data), sums), np.asarray(sums.sums["records"])


def client_metric(params: Any, data: FederatedData, *, model: Model) -> np.ndarray:
    """The main metric of each client on its own part of the test set `(num_clients,)` (a diagnostic); NaN without one.

    For instance the accuracy, or the mean loss if the task has no metrics.
    """
    return _main(task_of(model, data), _client_sums(evaluate(params, data, model=model), data))


def better_of(task: Task) -> int:
    """1 if larger values of the main metric are better, -1 if smaller ones are."""
    return task.metrics[0].better if task.metrics else -1


def values_of(task: Task, test: MetricSums, data: FederatedData) -> dict[str, float | None]:
    """The task's metrics on the whole test set, by name."""
    records = len(data.x_test)
    sums = _score_sums(test.sums, test.scores, data, np.zeros(records, int), np.array([float(records)]), whole=True)
    return {metric.name: _finite(np.float32(metric.of(sums)[0])) for metric in task.metrics}


def _client_sums(test: MetricSums, data: FederatedData) -> ScoreSums:
    parts = np.asarray(data.test_clients)
    counts = np.bincount(parts, minlength=data.num_clients).astype(float)
    return _score_sums(test.by_client or {}, test.scores, data, parts, counts)


def _score_sums(
    sums: Any, scores: Any, data: FederatedData, group_of: np.ndarray, counts: np.ndarray, whole: bool = False
) -> ScoreSums:
    wide = {name: np.asarray(a, float)[None] if whole else np.asarray(a, float) for name, a in sums.items()}
    kept = None if scores is None else np.asarray(scores, float)
    return ScoreSums(wide | {"records": counts}, kept, jax.tree.map(np.asarray, data.y_test), group_of)


def _main(task: Task, sums: ScoreSums) -> np.ndarray:
    return task.metrics[0].of(sums) if task.metrics else quotient(sums.sums["loss"], sums.sums["records"])


def measure(params: Any, data: FederatedData, *, model: Model, train: bool) -> Measurement:
    """The part of an evaluation that needs the model."""
    test = evaluate(params, data, model=model)
    return Measurement(test, train_metrics(params, data, model=model) if train else None)


def evaluation_of(
    rounds: int, measurement: Measurement, report: RoundReport, data: FederatedData, task: Task
) -> Evaluation:
    """The evaluation, computed on the host from measurements and the last round's report."""
    test, (objective, gradient_norm) = measurement.test, measurement.train or (None, None)
    shared = None if test.by_client is None else _summary(task, test, data)
    own = None if measurement.personal is None else _summary(task, measurement.personal, data)
    present = np.asarray(report.present)
    return Evaluation(
        rounds,
        values_of(task, test, data),
        float(np.asarray(test.sums["loss"]) / np.float32(len(data.x_test))),
        _mean(report.loss, present),
        _mean(report.clipped, present),
        _finite(report.learnt_clip_norm),
        noise_to_signal(report.noise, report.signal, present),
        _finite(objective),
        _finite(gradient_norm),
        *((None,) * 3 if shared is None else map(_finite, (shared.mean, shared.worst_tenth, shared.variance))),
        *((None,) * 4 if own is None else map(_finite, own)),
    )


def _summary(task: Task, test: MetricSums, data: FederatedData) -> Standing:
    """Summary of the main metric over clients; `pooled` is of all records, as roots and ranks are no mean."""
    clients = _client_sums(test, data)
    sums = {name: of_clients.sum(axis=0, keepdims=True) for name, of_clients in clients.sums.items()}
    pooled = _main(task, ScoreSums(sums, clients.scores, clients.targets, np.zeros_like(clients.group_of)))
    return standing(_main(task, clients), clients.sums["records"], better_of(task))._replace(pooled=float(pooled[0]))


def noise_to_signal(noise: Any, signal: Any, present: np.ndarray) -> float | None:
    """Noise-to-signal ratio of a round: sqrt(mean |noise|^2 / mean |signal|^2).

    Noise on gradients is compared with the bounded mean gradient, over the local steps of all clients that answered;
    server noise, with the mean update. Noise on an upload is in the round's last step, so it is compared with the root
    of the summed squares of all steps' gradients. Means come before the ratio, as a Poisson batch may be empty. The
    noise has its expected norm std * sqrt(size), so it need not be observed.

    | no noise: 0 | no answers, no signal, or noise in a secure sum: None |
    """
    noise, signal = (np.asarray(a, float)[present].sum() for a in (noise, signal))
    if not present.any() or not np.isfinite(noise) or not np.isfinite(signal):
        return None
    if noise == 0:
        return 0.0
    return math.sqrt(noise / signal) if signal > 0 else None


def rounds_to(history: Sequence[Evaluation], target: MetricTarget) -> int | None:
    """The first evaluated round whose metric is at least as good as `target`, None without one."""
    measure = target.measure
    return next((each.round for each in history if measure.reached(each.row()[measure.name], target.value)), None)


def _mean(probe: Any, present: np.ndarray) -> float | None:
    """Mean over the clients that answered; None without any."""
    return _finite(np.asarray(probe)[present].mean()) if present.any() else None


def _finite(number: Any) -> float | None:
    return None if number is None or not math.isfinite(float(number)) else float(number)
