"""The built-in tasks: classes, sequences, several labels, binary, regression, user-defined targets; and their names."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import Dataset, FederatedData
from fedjax_dp.data.targets import OWN, Vocabulary, check_vocabulary
from fedjax_dp.tasks import losses
from fedjax_dp.tasks.names import APS, LOSSES_BY_TASK
from fedjax_dp.tasks.ranking import area_under_curve, average_precision, bucket_numbers
from fedjax_dp.tasks.task import LossWords, Metric, ScoreSums, Task, quotient, ratio

NATS = LossWords("cross-entropy", "nats")
Loss = Callable[[Any, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class Classes:
    """Classification with one label: softmax cross-entropy, accuracy, and perhaps top-k accuracy."""

    loss: Loss = losses.cross_entropy
    top_k: int | None = None

    name = "classes"
    loss_words = NATS
    keeps_scores = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        first = Metric("accuracy", "accuracy", 1, ratio("right"), share=True)
        return first, *_among(self.top_k, first, "among_likeliest")

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def sums(self, scores: jax.Array, target: jax.Array) -> Mapping[str, jax.Array]:
        found = {"right": (jnp.argmax(scores, -1) == target).astype(jnp.int32)}
        if self.top_k is not None:
            found["among_likeliest"] = _is_among(self.top_k, scores, target).astype(jnp.int32)
        return found

    def constant_answer(self, targets: np.ndarray) -> tuple[str, float]:
        return "always naming the most frequent class", _largest_share(targets)


def _largest_share(targets: np.ndarray) -> float:
    """The share of the most frequent value; NaN without any."""
    counts = np.unique(targets, return_counts=True)[1]
    return float(counts.max() / counts.sum()) if counts.size else math.nan


def _among(top_k: int | None, first: Metric, *sums: str) -> tuple[Metric, ...]:
    """The top-k accuracy that accompanies an accuracy, if k is set."""
    if top_k is None:
        return ()
    return (Metric(f"top_{top_k}_{first.name}", f"top-{top_k} {first.words}", 1, ratio(*sums), share=True),)


def _is_among(top_k: int, scores: jax.Array, target: jax.Array) -> jax.Array:
    """Whether targets are among the `top_k` largest scores; of equal scores the first come first, as for argmax."""
    return jnp.any(jax.lax.top_k(scores, top_k)[1] == target[..., None], -1)


def _perplexity(over: str, under: str) -> Callable[[ScoreSums], np.ndarray]:
    def of(seen: ScoreSums) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(quotient(seen.sums[over], seen.sums[under]))

    return of


@dataclasses.dataclass(frozen=True)
class Sequence:
    """The next token at every position of a record. Metrics count the tokens of all records equally, without padding.

    The most likely token may be any id, also a special one. Metrics named so leave out the ids of words outside of the
    vocabulary (oov) and of the end of a text (eos).
    """

    vocabulary: Vocabulary
    loss: Loss
    top_k: int | None = None

    name = "sequence"
    loss_words = LossWords("cross-entropy of a token", "nats")
    keeps_scores = False
    always = (
        Metric("token_accuracy", "token accuracy", 1, ratio("right", "tokens"), share=True),
        Metric("token_accuracy_no_oov", "token accuracy without OOV", 1, ratio("right_no_oov", "no_oov"), share=True),
        Metric(
            "token_accuracy_no_oov_eos",
            "token accuracy without OOV and EOS",
            1,
            ratio("right_no_oov_eos", "no_oov_eos"),
            share=True,
        ),
        Metric("perplexity", "perplexity", -1, _perplexity("nats", "tokens")),
        Metric("perplexity_no_oov", "perplexity without OOV", -1, _perplexity("nats_no_oov", "no_oov")),
    )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return *self.always, *_among(self.top_k, self.always[0], "among_likeliest", "tokens")

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (*target_shape, outputs)

    def sums(self, scores: jax.Array, target: jax.Array) -> Mapping[str, jax.Array]:
        known = self.vocabulary
        there = target != known.pad
        words = there & ~jnp.isin(target, jnp.asarray(known.oov, jnp.int32)) if known.oov else there
        no_eos = words if known.eos is None else words & (target != known.eos)
        right, each = jnp.argmax(scores, -1) == target, losses.cross_entropy(scores, target)
        counted = {"tokens": there, "no_oov": words, "no_oov_eos": no_eos}
        found = {name: among.sum(dtype=jnp.int32) for name, among in counted.items()}
        for name, among in (("right", there), ("right_no_oov", words), ("right_no_oov_eos", no_eos)):
            found[name] = (right & among).sum(dtype=jnp.int32)
        for name, among in (("nats", there), ("nats_no_oov", words)):
            found[name] = jnp.where(among, each, 0.0).sum()
        if self.top_k is not None:
            found["among_likeliest"] = (_is_among(self.top_k, scores, target) & there).sum(dtype=jnp.int32)
        return found

    def constant_answer(self, targets: np.ndarray) -> tuple[str, float]:
        return "always naming the most frequent token", _largest_share(targets[targets != self.vocabulary.pad])


def _by_label(seen: ScoreSums, scores: np.ndarray) -> np.ndarray:
    """Average precision of each label in each group `(groups, labels)`."""
    labels = scores.shape[1]
    group = seen.group_of[:, None] * labels + np.arange(labels)
    truth = np.asarray(seen.targets)
    found = average_precision(scores.ravel(), truth.ravel(), group.ravel(), seen.groups * labels)
    return found.reshape(seen.groups, labels)


def _scores_of(seen: ScoreSums) -> np.ndarray:
    if seen.scores is None:
        raise ValueError("a metric of ranks needs the scores of a task that keeps them")
    return seen.scores


def mean_ap(seen: ScoreSums) -> np.ndarray:
    """The mean of AP over the labels with a positive record; the others are left out."""
    found = _by_label(seen, _scores_of(seen))
    known = ~np.isnan(found)
    return quotient(np.where(known, found, 0).sum(1), known.sum(1))


def mean_ap_buckets200(seen: ScoreSums) -> np.ndarray:
    """Mean AP of probabilities in 200 buckets; a label without a positive record counts as 0."""
    return np.nan_to_num(_by_label(seen, bucket_numbers(_scores_of(seen)))).mean(1)


def labels_with_positives(seen: ScoreSums) -> np.ndarray:
    """Number of labels with a positive record, over which mean AP is the mean."""
    return (seen.sums["positives"] > 0).sum(1)


def micro_ap(seen: ScoreSums) -> np.ndarray:
    """AP of the scores and targets of all labels, pooled."""
    scores, truth = _scores_of(seen), np.asarray(seen.targets)
    group = np.broadcast_to(seen.group_of[:, None], scores.shape)
    return average_precision(scores.ravel(), truth.ravel(), group.ravel(), seen.groups)


def micro_f1(seen: ScoreSums) -> np.ndarray:
    """2 TP / (2 TP + FP + FN) of all labels, pooled."""
    return quotient(2 * seen.sums["hits"], seen.sums["predicted"] + seen.sums["positives"].sum(1))


@dataclasses.dataclass(frozen=True)
class MultiLabel:
    """Several labels, each present or not, with one logit each: mean average precision. Probability 0.5 is positive.

    ap  `exact`, or `buckets200` as in the FLAIR benchmark of pfl-research: mean_ap then uses 200 buckets of
        probabilities, and labels without a positive record count as 0.
    """

    loss: Loss
    ap: str = "exact"

    name = "multi_label"
    loss_words = NATS
    keeps_scores = True

    @property
    def metrics(self) -> tuple[Metric, ...]:
        means = {
            "exact": Metric("mean_ap", "mean average precision", 1, mean_ap, share=True),
            "buckets200": Metric("mean_ap", "mean average precision (200 buckets)", 1, mean_ap_buckets200, share=True),
        }
        return (
            means[self.ap],
            Metric("micro_ap", "micro average precision", 1, micro_ap, share=True),
            Metric("micro_f1", "micro F1 at 0.5", 1, micro_f1, share=True),
            Metric("labels_with_positives", "labels with a positive record", 0, labels_with_positives),
        )

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def sums(self, scores: jax.Array, target: jax.Array) -> Mapping[str, jax.Array]:
        predicted, truth = scores >= 0, target > 0
        return {
            "hits": (predicted & truth).sum(dtype=jnp.int32),
            "predicted": predicted.sum(dtype=jnp.int32),
            "positives": truth.astype(jnp.int32),
        }


def _of_logits(ranked: Callable[..., np.ndarray]) -> Callable[[ScoreSums], np.ndarray]:
    def of(seen: ScoreSums) -> np.ndarray:
        return ranked(_scores_of(seen)[:, 0], np.asarray(seen.targets), seen.group_of, seen.groups)

    return of


@dataclasses.dataclass(frozen=True)
class Binary:
    """Binary classification by one logit: accuracy, area under the ROC curve, average precision. 0.5 is positive."""

    name = "binary"
    loss_words = NATS
    keeps_scores = True
    metrics = (
        Metric("accuracy", "accuracy", 1, ratio("right"), share=True),
        Metric("auc", "area under the ROC curve", 1, _of_logits(area_under_curve), share=True),
        Metric("ap", "average precision", 1, _of_logits(average_precision), share=True),
    )
    loss: Loss = losses.one_logit

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (1,)

    def sums(self, scores: jax.Array, target: jax.Array) -> Mapping[str, jax.Array]:
        return {"right": ((scores[0] >= 0) == (target > 0)).astype(jnp.int32)}

    def constant_answer(self, targets: np.ndarray) -> tuple[str, float]:
        return "always giving the more frequent answer", _largest_share(targets > 0)


def mean_squared(seen: ScoreSums) -> np.ndarray:
    """Mean squared error over records and numbers of a target."""
    return quotient(seen.sums["squared"].mean(1), seen.sums["records"])


def r2(seen: ScoreSums) -> np.ndarray:
    """1 - SSE / SST of each number of a target, averaged over those that vary; SST uses the mean of the group."""
    counts, targets = seen.sums["records"], np.asarray(seen.targets, float)
    totals = np.zeros((2, seen.groups, targets.shape[1]))
    np.add.at(totals[0], seen.group_of, targets)
    means = totals[0] / np.maximum(counts, 1)[:, None]
    np.add.at(totals[1], seen.group_of, (targets - means[seen.group_of]) ** 2)
    found = 1 - quotient(seen.sums["squared"], totals[1])
    known = ~np.isnan(found)
    return quotient(np.where(known, found, 0).sum(1), known.sum(1))


@dataclasses.dataclass(frozen=True)
class Regression:
    """Numbers, a score each: the root of the mean squared error, and how much of the targets' variance is explained."""

    loss: Loss = losses.squared_error

    name = "regression"
    keeps_scores = False
    metrics = (
        Metric("rmse", "root mean squared error", -1, lambda seen: np.sqrt(mean_squared(seen))),
        Metric("mse", "mean squared error", -1, mean_squared),
        Metric("mae", "mean absolute error", -1, lambda seen: quotient(seen.sums["absolute"], seen.sums["records"])),
        Metric("r2", "R squared", 1, r2, signed=True),
    )

    @property
    def loss_words(self) -> LossWords:
        return LossWords("Huber loss" if self.loss is losses.huber else "squared error")

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def sums(self, scores: jax.Array, target: jax.Array) -> Mapping[str, jax.Array]:
        errors = losses.wide(scores) - target
        return {"squared": errors * errors, "absolute": jnp.mean(jnp.abs(errors))}

    def constant_answer(self, targets: np.ndarray) -> tuple[str, float]:
        return "always naming the mean", float(np.sqrt(np.var(np.asarray(targets, float), axis=0).mean()))


def _no_loss(scores: Any, target: Any) -> jax.Array:
    raise ValueError("user-defined targets need a user-defined loss: fedjax_dp.model(network, data, loss=...)")


@dataclasses.dataclass(frozen=True)
class Own:
    """User-defined targets, with no metric but the model's loss."""

    name = OWN
    loss_words = LossWords("loss", signed=True)
    keeps_scores = False
    metrics: tuple[Metric, ...] = ()
    loss: Loss = _no_loss

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> None:
        return None

    def sums(self, scores: Any, target: Any) -> Mapping[str, jax.Array]:
        return {}


# of the name of a loss, the kind of AP, the vocabulary, and k
Maker = Callable[[str, str, Vocabulary | None, int | None], Task]


def _sequence(loss: str, ap: str, vocabulary: Vocabulary | None, top_k: int | None) -> Task:
    known = check_vocabulary("vocabulary", vocabulary)
    return Sequence(known, losses.TokenCrossEntropy(known.pad, loss), top_k)


TASKS: dict[str, Maker] = {
    "classes": lambda loss, ap, vocabulary, top_k: Classes(top_k=top_k),
    "sequence": _sequence,
    "multi_label": lambda loss, ap, vocabulary, top_k: MultiLabel(losses.BinaryCrossEntropy(loss), ap),
    "binary": lambda loss, ap, vocabulary, top_k: Binary(),
    "regression": lambda loss, ap, vocabulary, top_k: Regression(
        losses.huber if loss == "huber" else losses.squared_error
    ),
    OWN: lambda loss, ap, vocabulary, top_k: Own(),
}


def task_named(
    data: Dataset | FederatedData, loss: str | None = None, ap: str | None = None, top_k: int | None = None
) -> Task:
    """The task of some data, with one of its losses by name; by default the first.

    loss  `mean` or `length` of a `sequence`, `mean` or `sum` of `multi_label`, `squared` or `huber` of `regression`;
    ap    `exact` or `buckets200`, of `multi_label`;
    top_k also measure top-k accuracy, of `classes` or the tokens of a `sequence`.
    Raises: ConfigurationError for a loss that the task does not have, and for k of at least the number of classes.
    """
    errors.require_choice("task", data.task, TASKS)
    known = LOSSES_BY_TASK.get(data.task, ())
    if loss is not None and loss not in known:
        listed = f"one of {', '.join(known)} for task {data.task}" if known else f"left out for task {data.task}"
        raise errors.refuse("loss", repr(loss), listed)
    if ap is not None:
        errors.require_choice("ap", ap, APS)
        if data.task != "multi_label":
            raise errors.refuse("ap", repr(ap), f"left out for task {data.task}", "it is for multi_label")
    if top_k is not None:
        if data.task not in ("classes", "sequence"):
            raise errors.refuse("top_k", top_k, f"left out for task {data.task}", "it is for classes and tokens")
        if data.classes < 3:
            raise errors.refuse("top_k", top_k, f"left out for {data.classes} classes, of which all are among two")
        errors.require_integer("top_k", top_k, 2, data.classes - 1, f"there are {data.classes} classes")
    return _make_task(data.task, loss or next(iter(known), ""), ap or APS[0], data.vocabulary, top_k)


@functools.cache
def _make_task(name: str, loss: str, ap: str, vocabulary: Any, top_k: int | None) -> Task:
    return TASKS[name](loss, ap, vocabulary, top_k)
