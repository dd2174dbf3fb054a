"""Checks that results do not depend on padding or on any order, only on records, clients and keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.inspection import runs
from fedjax_dp.inspection.runs import TrialInputs
from fedjax_dp.inspection.trials import Place, keys_of
from fedjax_dp.inspection.verdict import require
from fedjax_dp.parts.batches import Batch
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.algorithm import Algorithm, without_noise

TRIALS = 4
ROUNDING = 2e-5  # relative to the largest number


def _add_padding(batch: Batch, which: int, key: jax.Array, records: jax.Array, *rest: int) -> Batch:
    shape = (batch.positions.shape[0], 2)
    more = jnp.broadcast_to(jnp.asarray(records, batch.positions.dtype), shape)  # the row after the client's own
    return batch._replace(
        positions=jnp.concatenate([batch.positions, more], 1),
        mask=jnp.concatenate([batch.mask, jnp.zeros(shape, bool)], 1),
    )


def _reverse_batch(batch: Batch, *rest: Any) -> Batch:
    return batch._replace(positions=batch.positions[:, ::-1], mask=batch.mask[:, ::-1])


def _reverse_members(members: Members, *rest: Any) -> Members:
    return jax.tree.map(lambda a: a[::-1], members)


def _drop_last(members: Members, *rest: Any) -> Members:
    return jax.tree.map(lambda a: a[:-1], members)


def _pad_last(members: Members, *rest: Any) -> Members:
    last = Members(members.ids[-1:], jnp.zeros(1), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))
    return jax.tree.map(lambda *a: jnp.concatenate(a), _drop_last(members), last, last)


def _require_same(law: str, one: Any, other: Any, resolution: float = 0.0) -> None:
    """Require equality up to rounding, and no NaN."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    with np.errstate(invalid="ignore"):
        apart = float(np.max(np.abs(one - other), initial=0.0))
        allowed = ROUNDING * float(np.max(np.abs(one), initial=0.0)) + resolution
    require(apart <= allowed, law, f"numbers {apart:.2g} apart", f"at most {allowed:.2g}, rounding", "no chance in it")


def _sum_resolution(algorithm: Algorithm, data: FederatedData) -> float:
    """How much rounding to a ring may change a sum."""
    return 2 * algorithm.transport.resolution * min(data.num_clients, algorithm.cohort.capacity(data.num_clients))


def examine_padding(place: Place) -> None:
    """Padding contributes exactly zero: empty rows of batches, and empty positions of cohorts.

    Batches get two padding rows that point to a record with enormous features and to one of NaN (only if each record is
    clipped: a plain mean need not survive NaN); the gradient of every step must not change. Cohorts get two more
    positions, marked as not selected, that point to a client of NaN; the new model must not change.
    """
    algorithm, data = runs.select_clients(runs.with_plain_mean(place.algorithm), place.data, most=1)
    data, privatizer = runs.flat_records(data), algorithm.local.privatizer
    poisons: list[Any] = [data.x[0] if data.tokens else 1e4 * (1 + np.abs(data.x[0]))]
    bound: Any = getattr(privatizer, "bound", None)
    clipped = bound is not None and bound.per_record and not (bound.no_epsilon_reason or bound.assumption)
    if clipped and not privatizer.on_upload and not data.tokens:
        poisons += [np.full_like(data.x[0], np.nan)]
    # Each with several targets and models: a model that is sure of the class has no gradient at an enormous record.
    targets = np.arange(min(TRIALS, len(data.x)))
    x = np.stack([np.concatenate([data.x, p[None]]).astype(data.x.dtype) for p in poisons for _ in targets])
    y = jax.tree.map(lambda a: np.stack([np.concatenate([a, a[i : i + 1]]) for _ in poisons for i in targets]), data.y)
    longer = replace(data, rows=np.arange(len(data.x) + 1, dtype=np.int32))
    setup = TrialInputs(keys_of(len(x), "runs", place.seed), x, y)
    seen = [
        runs.observe(runs.record_gradients(twin, data), longer, place.model, setup).gradients
        for twin in (algorithm, runs.with_batches(algorithm, _add_padding))
    ]
    _require_same("padding rows of a batch contribute nothing", *seen)
    if place.data.num_clients > 1:
        _examine_padded_cohort(place)


def _examine_padded_cohort(place: Place) -> None:
    algorithm, data = runs.select_clients(runs.with_plain_server(without_noise(place.algorithm)), place.data)
    data = runs.flat_records(data)
    x = np.array(data.x)
    if not data.tokens:
        x[int(data.offsets[-1]) :] = np.nan
    spoiled, setup = replace(data, x=x), TrialInputs(keys_of(TRIALS, "runs", place.seed))
    one, other = (
        runs.observe(runs.with_cohort(algorithm, layout), spoiled, place.model, setup).params
        for layout in (_drop_last, _pad_last)
    )
    _require_same("padding of a cohort contributes nothing", one, other, _sum_resolution(algorithm, data))


def examine_order(place: Place) -> None:
    """The order of records in a batch and of clients in a cohort, and the chunks they run in, change only rounding.

    Every step's gradient with the rows of all batches reversed; the new model with the positions of the cohort
    reversed (clients keep their ids, hence keys), and with two clients at a time.
    """
    setup = TrialInputs(keys_of(TRIALS, "runs", place.seed))
    algorithm, data = runs.select_clients(runs.with_plain_mean(place.algorithm), place.data, most=3)
    seen = [
        runs.observe(runs.record_gradients(twin, data), data, place.model, setup).gradients
        for twin in (algorithm, runs.with_batches(algorithm, _reverse_batch))
    ]
    _require_same("the order of a batch's records changes only rounding", *seen)
    algorithm, data = runs.with_plain_server(without_noise(place.algorithm)), place.data
    turned = runs.with_cohort(algorithm, _reverse_members)
    whole, back, portions = (
        runs.observe(twin, data, place.model, setup, execution=execution).params
        for twin, execution in ((algorithm, None), (turned, None), (algorithm, Execution(chunk_size=2)))
    )
    grain = _sum_resolution(algorithm, data)
    _require_same("the order of a cohort's clients changes only rounding", whole, back, grain)
    _require_same("the portions in which clients run change only rounding", whole, portions, grain)
