"""How the record gradients of a model are computed, in words and bytes."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_dp.display import count
from fedjax_dp.gradients.analysis import GradientPlan, WeightMatrix
from fedjax_dp.gradients.clipped import MEMORY, loss_plan
from fedjax_dp.gradients.model import Model


class Weight(NamedTuple):
    """A group of parameters whose gradients are computed together."""

    parameters: tuple[str, ...]
    size: int  # numbers
    way: str  # "factored", "direct" or "unused"
    reason: str  # for this way, or how the norm is computed
    bytes: int  # per record, for the arrays it needs


class Explanation(NamedTuple):
    """How the record gradients of a model are computed; bytes count norms and sums, not activations."""

    weights: tuple[Weight, ...]
    dtype: str  # of gradients
    bytes_per_record: int
    records_at_once: int  # as many as the memory bound allows

    @property
    def table(self) -> list[str]:
        """One line per weight, after a heading."""
        rows = [("parameters", "numbers", "way", "bytes/record", "how")]
        rows += [(" + ".join(w.parameters), f"{w.size:,}", w.way, f"{w.bytes:,}", w.reason) for w in self.weights]
        widths = [max(len(row[at]) for row in rows) for at in range(4)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0])).rstrip() for row in rows]

    def __str__(self) -> str:
        return "\n".join([*self.table, self.summary])

    @property
    def summary(self) -> str:
        """The explanation in one line."""
        counts = {way: sum(len(w.parameters) for w in self.weights if w.way == way) for way in ("factored", "direct")}
        factored, direct = counts["factored"], counts["direct"]
        words = f"norms in the backward pass, for all {count(factored, 'parameter array')}"
        if direct:
            arrays = count(factored + direct, "parameter array")
            words = f"norms in the backward pass for {factored} of {arrays}, gradients of single records for {direct}"
        words += f", {self.bytes_per_record:,} bytes a record" if self.bytes_per_record else ""
        words += f", {self.records_at_once:,} records at once" if self.records_at_once < 10**6 else ""
        return words if self.dtype == "float32" else f"{words}, of gradients computed in {self.dtype}"

    def cost(self, records: int) -> int:
        """Bytes of a batch in addition to its activations."""
        return self.bytes_per_record * min(records, self.records_at_once)

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON content."""
        return self._asdict() | {"weights": [weight._asdict() for weight in self.weights]}


def explain(model: Model, params: Any, x: Any, y: Any) -> Explanation:
    """How `clipped_sum` computes the record gradients of a model on batches like x and y `(records, ...)`."""
    plan = loss_plan(model, params, x, y)
    weights = [_weight(plan, weight) for weight in plan.weights]
    for leaf, why in (plan.direct | dict.fromkeys(plan.unused, "the loss does not depend on it")).items():
        size, used = math.prod(plan.shapes[leaf].shape), leaf in plan.direct
        weights.append(Weight((plan.names[leaf],), size, "direct" if used else "unused", why, 4 * size if used else 0))
    at_once = MEMORY // max(1, plan.bytes_per_record)
    dtype = jnp.dtype(getattr(model, "dtype", jnp.float32)).name
    return Explanation(tuple(weights), dtype, plan.bytes_per_record, max(1, at_once))


def describe(model: Model, params: Any, x: Any, y: Any) -> str:
    """How `clipped_sum` computes the record gradients of a model, for the log of a run."""
    return explain(model, params, x, y).summary


def _weight(plan: GradientPlan, weight: WeightMatrix) -> Weight:
    blocks, k, o = weight.shape
    uses = [f"{use.outer_product.name}{' (transposed)' if use.swapped else ''}" for use in weight.uses]
    times = {name: uses.count(name) for name in dict.fromkeys(uses)}
    outer_products = " + ".join(name if count == 1 else f"{count} x {name}" for name, count in times.items())
    shape = f"{blocks} x {k} x {o}" if blocks > 1 else f"{k} x {o}"
    if weight.positions == 1:
        norm = "|u| |v|"
    else:
        norm = "gradients of single records" if weight.by_kernel else "pairs of positions"
    reason = f"{outer_products}, {shape}, {weight.positions} position{'s' * (weight.positions > 1)}: {norm}"
    names = tuple(plan.names[leaf] for leaf in sorted(weight.leaves))
    return Weight(names, blocks * k * o, "factored", reason, 4 * weight.floats)
