"""Bounds on the gradient of a batch before noise: per record, per batch, by assumption, or none.

A bound states how far one record can change the mean gradient; the noise of a privatizer is a multiple of that.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp import errors, gradients
from fedjax_dp.models import Model
from fedjax_dp.pytrees import number, ravel, structure, value


class Records(NamedTuple):
    """The records of one batch."""

    x: jax.Array  # (rows, ...) features
    y: Any  # (rows, *target_shape) targets of the task, such as int32 labels; or a pytree of targets
    mask: jax.Array  # (rows,) bool; False is padding
    divisor: jax.Array  # the public batch size
    keys: jax.Array | None = None  # (rows,) one key per record in this step, for dropout


class StepReport(NamedTuple):
    """Diagnostics of one local step (not private, not covered by epsilon)."""

    loss: jax.Array  # mean over the batch's records
    clipped: jax.Array  # fraction of records whose gradient was scaled down; NaN if a gradient was not finite
    signal: jax.Array | float = 0.0  # squared norm of the bounded mean gradient; 0 where it is not measured
    noise: jax.Array | float = 0.0  # expected squared norm of its noise


class Bounded(NamedTuple):
    """A bounded mean gradient, flat in the order of the parameters."""

    mean: jax.Array  # (size,)
    noise_unit: jax.Array  # noise standard deviation per noise multiplier: half the L2 change by replacing one record
    report: StepReport


class Bound(Protocol):
    """Computes a bounded mean gradient of a batch. Implementations use `fedjax_dp.value`.

    A method `check()` may refuse its numbers.
    """

    @property
    def no_epsilon_reason(self) -> str | None:
        """Required privacy property. Why noise in units of this bound has no epsilon; None if it has one."""
        ...

    @property
    def assumption(self) -> str | None:
        """Required privacy property. What the bound assumes about the data; None if it holds for all data."""
        ...

    @property
    def per_record(self) -> bool:
        """Required privacy property. Whether the gradient of each record has norm at most C.

        If so, adding or removing a record moves the sum by at most C, and the noise unit is C / B. If not, only the
        whole mean has norm at most C, and the noise unit is C.
        """
        ...

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        """The sum of the gradients at the tree `params` over `records.divisor`; traced.

        It must be finite for all records and ignore rows whose mask is False. The noise unit may not depend on records.
        """
        ...


@value
class ClipRecords(Bound):
    """Scales each record's gradient down to `clip_norm`; noise unit C / B.

    microbatch  see `gradients.clipped_sum`.
    """

    microbatch: int | None = structure(errors.require_count, default=None)

    equation = r"\bar g = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i \min(1, C / \|g_i\|),\ u = C / B"

    no_epsilon_reason = None
    assumption = None
    per_record = True

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        batch = gradients.clipped_sum(
            model, params, records.x, records.y, records.mask, clip_norm, self.microbatch, keys=records.keys
        )
        return _mean(batch, records, clip_norm, records.divisor)


@value
class ClipBatch(Bound):
    """Scales the batch's mean gradient down to `clip_norm` (acs_pldp as printed, dp_fedavg_output); noise unit C.

    One record may reverse the whole mean, so the same privacy takes B times the noise of `ClipRecords`.
    """

    equation = r"\bar g = m \min(1, C / \|m\|),\ m = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i,\ u = C"

    no_epsilon_reason = None
    assumption = None
    per_record = False

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask, keys=records.keys)
        mean = ravel(batch.total)[0] / records.divisor
        squared = jnp.sum(mean * mean)
        factor = gradients.clip_factors(squared, jnp.bool_(True), clip_norm)
        probes = report_of(batch, records)._replace(
            clipped=(factor < 1).astype(jnp.float32), signal=jnp.where(factor > 0, squared, 0.0) * factor**2
        )
        bounded = jnp.where(jnp.isfinite(squared), mean, 0.0) * factor
        return Bounded(bounded, jnp.asarray(clip_norm, jnp.float32), probes)


@value
class ScaleGradients(Bound):
    """Multiplies every gradient by clip_norm / gradient_bound without clipping (cpfed's Lipschitz assumption).

    The noise unit is C / B. `gradient_bound` is a number that no record's gradient norm may exceed; nothing checks it.
    For softmax regression on features of norm at most R it is sqrt(2 (R^2 + 1)). Up to the learning rate, scaling the
    gradients is scaling the features.
    """

    no_epsilon_reason = None
    per_record = True
    gradient_bound: float = number(errors.require_positive)

    equation = r"\bar g = \frac{C}{L B} \sum_{i \in \mathcal{B}} g_i,\ u = C / B"

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask, keys=records.keys)
        return _mean(batch, records, clip_norm, records.divisor * self.gradient_bound / clip_norm)

    @property
    def assumption(self) -> str:
        return f"no possible record has a gradient above {float(self.gradient_bound):g}; it is not clipped"


@value
class Unbounded(Bound):
    """The mean gradient without clipping, to which noise is still added (cpfed as printed); noise unit C / B."""

    equation = r"\bar g = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i,\ u = C / B"

    no_epsilon_reason = "gradients are noised but not clipped, so one record may change them without limit"
    assumption = None
    per_record = True

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask, keys=records.keys)
        return _mean(batch, records, clip_norm, records.divisor)


@value
class ClipTensorsAtMedian(Bound):
    """Scales each record's gradient of each tensor down to the batch's median norm of that tensor.

    As in the published code of DP-SCAFFOLD; `clip_norm` is not used. The noise unit of a tensor is its median over B,
    which depends on the records: there is no epsilon.
    """

    equation = (
        r"\bar g^{(l)} = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i^{(l)} \min(1, M_l / \|g_i^{(l)}\|),\ "
        r"M_l = \operatorname{median}_i \|g_i^{(l)}\|,\ u_l = M_l / B"
    )

    no_epsilon_reason = "the clip norm is the median of the batch's own gradient norms, which depends on the records"
    varies = True  # the noise unit depends on records, so no public number gives it
    assumption = None
    per_record = True

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        def one(x: jax.Array, y: jax.Array, key: jax.Array | None) -> tuple[jax.Array, Any]:
            return jax.value_and_grad(lambda p: model.loss(p, x, y, key))(params)

        losses, per_record = jax.vmap(one)(records.x, records.y, records.keys)
        wide = (*records.mask.shape, 1)

        def clip(g: jax.Array) -> tuple[jax.Array, jax.Array]:
            rows = g.reshape(wide[0], -1)
            norms = jnp.sqrt(jnp.sum(rows * rows, axis=-1))
            median = jnp.nanmedian(jnp.where(records.mask, norms, jnp.nan))
            factors = gradients.clip_factors(norms * norms, records.mask, median)
            total = factors @ jnp.where((factors > 0)[:, None], rows, 0.0)
            return total.reshape(g.shape[1:]) / records.divisor, jnp.full(g.shape[1:], median) / records.divisor

        structure_of_pairs = jax.tree.structure(per_record), jax.tree.structure((0, 0))
        mean, unit = jax.tree.transpose(*structure_of_pairs, jax.tree.map(clip, per_record))
        present = jnp.maximum(records.mask.sum(), 1)
        flat = ravel(mean)[0]
        loss = jnp.where(records.mask, losses, 0.0).sum() / present
        probes = StepReport(loss, jnp.float32(0.5), jnp.vdot(flat, flat))
        return Bounded(flat, ravel(unit)[0], probes)


def report_of(batch: gradients.BatchGradient, records: Records) -> StepReport:
    present = jnp.maximum(records.mask.sum(), 1)
    clipped = jnp.where(batch.lost, jnp.nan, batch.clipped)  # NaN shows that records were left out
    return StepReport(batch.losses.sum() / present, clipped.sum() / present)


def _mean(
    batch: gradients.BatchGradient, records: Records, clip_norm: jax.Array | float, divisor: jax.Array
) -> Bounded:
    """The batch's total over `divisor`, with noise unit C / B.

    `signal` is computed from the total, so that the division still fuses with noise and step: it costs 2% of a round.
    """
    total = ravel(batch.total)[0]
    report = report_of(batch, records)._replace(signal=jnp.vdot(total, total) / divisor**2)
    return Bounded(total / divisor, clip_norm / records.divisor, report)
