"""How the gradient of a batch is bounded before noise: by record, as a whole, by assumption, or not at all.

The noise of a privatizer is measured in units of what one record can change, which these bounds state.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp import errors, gradients
from fedjax_dp.models import Model
from fedjax_dp.pytrees import ravel, structure, value


class Records(NamedTuple):
    """The records of one batch as the model sees them."""

    x: jax.Array  # (rows, ...) features
    y: Any  # (rows, *target_shape) targets of the task, such as int32 labels; or a pytree of such
    mask: jax.Array  # (rows,) bool; False is padding
    divisor: jax.Array  # the public batch size
    keys: jax.Array | None = None  # (rows,), of each record in this step, for dropout


class StepReport(NamedTuple):
    """Probes of one local step: what the simulator sees and nobody else may."""

    loss: jax.Array  # mean over the batch's records
    clipped: jax.Array  # fraction of the batch's records whose gradient was scaled down; NaN where one was left out
    signal: jax.Array | float = 0.0  # squared norm of the bounded mean gradient; 0 where it is not looked at
    noise: jax.Array | float = 0.0  # expected squared norm of the noise on it


class Bounded(NamedTuple):
    """A bounded mean gradient, flat in the order of the parameters."""

    mean: jax.Array  # (size,)
    noise_unit: jax.Array  # half of what exchanging one record can change, in L2: noise over noise_multiplier
    report: StepReport


class Bound(Protocol):
    """From a batch to a bounded mean gradient. Implementations are made with `fedjax_dp.value`."""

    @property
    def no_epsilon_reason(self) -> str | None:
        """Required privacy property. Why noise in these units proves nothing; None: it does."""
        ...

    @property
    def assumption(self) -> str | None:
        """Required privacy property. What must hold of the data; None: nothing, and the mean is within C."""
        ...

    @property
    def per_record(self) -> bool:
        """Required privacy property. Whether each record's part of the sum is within C.

        A record more or less then moves the sum by C, and the unit is C / B; else only the whole mean is, and it is C.
        """
        ...

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        """The mean over `records.divisor` of the gradients at the tree `params`, finite whatever the records, traced.

        Rows of `records` with mask False count nothing. What noise is measured in must not depend on records.
        """
        ...

    def check(self) -> None:
        """Raise ConfigurationError, in one line, for numbers that cannot be meant."""
        return None


@value
class ClipRecords(Bound):
    """Each record's gradient is scaled down to `clip_norm`; unit C / B.

    microbatch  see `gradients.clipped_sum`.
    """

    microbatch: int | None = structure(default=None)

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
    """The batch's mean gradient is scaled to `clip_norm` (acs_pldp as printed, dp_fedavg_output); unit C, not C / B.

    One record may turn the whole mean around, so the same privacy takes B times the noise of `ClipRecords`.
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
    """Every gradient times clip_norm / gradient_bound, unclipped (cpfed's Lipschitz assumption); unit C / B.

    `gradient_bound` is a number that no record's gradient may exceed; nothing checks it. Softmax regression on features
    of norm at most R has sqrt(2 (R^2 + 1)). Scaling gradients is, up to the learning rate, scaling the features.
    """

    no_epsilon_reason = None
    per_record = True
    gradient_bound: float

    equation = r"\bar g = \frac{C}{L B} \sum_{i \in \mathcal{B}} g_i,\ u = C / B"

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask, keys=records.keys)
        return _mean(batch, records, clip_norm, records.divisor * self.gradient_bound / clip_norm)

    @property
    def assumption(self) -> str:
        return f"no possible record has a gradient above {float(self.gradient_bound):g}; it is not clipped"

    def check(self) -> None:
        errors.require_positive("gradient_bound", self.gradient_bound)


@value
class Unbounded(Bound):
    """The plain mean gradient with noise all the same (cpfed as printed). Unit C / B, which bounds nothing."""

    equation = r"\bar g = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i,\ u = C / B"

    no_epsilon_reason = "gradients are noised but not clipped, so one record may change them without limit"
    assumption = None
    per_record = True

    def apply(self, model: Model, params: Any, records: Records, clip_norm: jax.Array | float) -> Bounded:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask, keys=records.keys)
        return _mean(batch, records, clip_norm, records.divisor)


@value
class ClipTensorsAtMedian(Bound):
    """Each record's gradient of each parameter tensor is scaled down to the batch's median norm of that tensor.

    As in the published code of DP-SCAFFOLD; `clip_norm` is not used. The unit is the median over B, by tensor. The
    median depends on the records, so the noise depends on them: nothing is proved.
    """

    equation = (
        r"\bar g^{(l)} = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i^{(l)} \min(1, M_l / \|g_i^{(l)}\|),\ "
        r"M_l = \operatorname{median}_i \|g_i^{(l)}\|,\ u_l = M_l / B"
    )

    no_epsilon_reason = "the clip norm is the median of the batch's own gradient norms, which depends on the records"
    varies = True  # so does the unit, which no public number gives
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

        pairs = jax.tree.map(clip, per_record)
        is_pair = lambda node: isinstance(node, tuple)  # noqa: E731
        mean, unit = (jax.tree.map(lambda pair, at=at: pair[at], pairs, is_leaf=is_pair) for at in (0, 1))
        present = jnp.maximum(records.mask.sum(), 1)
        flat = ravel(mean)[0]
        loss = jnp.where(records.mask, losses, 0.0).sum() / present
        probes = StepReport(loss, jnp.float32(0.5), jnp.vdot(flat, flat))
        return Bounded(flat, ravel(unit)[0], probes)


def report_of(batch: gradients.BatchGradient, records: Records) -> StepReport:
    present = jnp.maximum(records.mask.sum(), 1)
    clipped = jnp.where(batch.lost, jnp.nan, batch.clipped)  # who looks sees that records are left out
    return StepReport(batch.losses.sum() / present, clipped.sum() / present)


def _mean(
    batch: gradients.BatchGradient, records: Records, clip_norm: jax.Array | float, divisor: jax.Array
) -> Bounded:
    """The batch's total over `divisor`, of unit C / B.

    The probe looks at the total, so that the division still fuses with noise and step: it costs 2% of a round.
    """
    total = ravel(batch.total)[0]
    report = report_of(batch, records)._replace(signal=jnp.vdot(total, total) / divisor**2)
    return Bounded(total / divisor, clip_norm / records.divisor, report)
