"""Nothing but the records, the clients and the keys may matter: neither padding nor any order."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.inspection.trials import keys_of
from fedjax_dp.inspection.verdict import CheckReport, require
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batch, Batches
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.cohorts import AllClients, Cohort, CohortKeys, Members
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.record_privacy import Privatizer
from fedjax_dp.privacy.protection import clips_records
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing import instruments
from fedjax_dp.testing.checks import run_check, usable_model
from fedjax_dp.testing.instruments import TrialInputs
from fedjax_dp.testing.mutation import WrongProgram, mutated, mutated_part, wrong_program

TRIALS = 4
ROUNDING = 2e-5  # relative to the largest number


@wrong_program("privatizer", "gradient", applies=lambda algorithm: None)
def counts_padding(
    right: Privatizer, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
) -> Any:
    """Rows of a batch that are padding count like records."""
    return right.gradient(key, step, model, params, records._replace(mask=jnp.ones_like(records.mask)))


def _require_order(algorithm: Algorithm) -> None:
    if getattr(algorithm.local.batches, "size", 2) < 2:
        raise errors.refuse("batch_size", 1, "at least 2 for this wrong program", "one record has no order")


@wrong_program("privatizer", "gradient", _require_order)
def drops_first(
    right: Privatizer, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
) -> Any:
    """The first row of every batch is left out. For batches of several records, where their order shows it."""
    return right.gradient(key, step, model, params, records._replace(mask=records.mask.at[0].set(False)))


def check_padding(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    model: Model | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = counts_padding,
    seed: int = 0,
) -> list[CheckReport]:
    """Padding contributes exactly zero: rows that no record fills, and positions of a cohort that no client fills.

    Batches get two more rows that point to a record of enormous features and to one of NaN (only where each record is
    clipped: a plain mean does not promise to survive NaN), marked as padding; every step's gradient must stay as it is.
    Cohorts get two more positions that point to a client of NaN, marked as not invited; the new model must stay.
    wrong    a program that the same check must reject: padding that counts.
    Errors:  none by chance; sums may differ by a relative 2e-5, because more rows are added in another order.
    Raises:  AssertionError; ConfigurationError if the algorithm cannot run on the data.
    """
    model = usable_model(algorithm, data, model)
    return run_check(_examine_padding, algorithm, wrong, "give records with larger gradients", data, model, seed)


def check_order(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    model: Model | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = drops_first,
    seed: int = 0,
) -> list[CheckReport]:
    """The order of a batch's records, of a cohort's clients, and the portions they run in change only rounding.

    Every step's gradient with the rows of all batches turned round; the new model with the positions of the cohort
    turned round (clients keep their ids, hence keys), and with two clients at a time.
    wrong    a program that the same check must reject: one that loses the first row of a batch.
    Errors:  none by chance; a relative 2e-5 of rounding is allowed, and the resolution of a secure sum.
    Raises:  AssertionError; ConfigurationError if the algorithm cannot run on the data.
    """
    model = usable_model(algorithm, data, model)
    return run_check(_examine_order, algorithm, wrong, "give batches of several different records", data, model, seed)


def _require_same(law: str, pair: list[np.ndarray], resolution: float = 0.0) -> None:
    """Equal up to rounding, NaN nowhere."""
    one, other = pair
    with np.errstate(invalid="ignore"):
        apart = float(np.max(np.abs(one.astype(float) - other), initial=0.0))
        allowed = ROUNDING * float(np.max(np.abs(one), initial=0.0)) + resolution
    require(apart <= allowed, law, f"numbers {apart:.2g} apart", f"at most {allowed:.2g}, rounding", "no chance in it")


def _with_padding(right: Batches, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
    batch = right.sample(key, records, steps, largest, smallest)
    shape = (batch.positions.shape[0], 2)
    more = jnp.broadcast_to(jnp.asarray(records, batch.positions.dtype), shape)  # the row after the client's own
    return batch._replace(
        positions=jnp.concatenate([batch.positions, more], 1),
        mask=jnp.concatenate([batch.mask, jnp.zeros(shape, bool)], 1),
    )


def _turned(right: Batches, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
    batch = right.sample(key, records, steps, largest, smallest)
    return batch._replace(positions=batch.positions[:, ::-1], mask=batch.mask[:, ::-1])


def _turned_members(right: Cohort, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
    return jax.tree.map(lambda a: a[::-1], right.sample(keys, round_index, shares))


def _all_but_last(right: Cohort, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
    return jax.tree.map(lambda a: a[:-1], right.sample(keys, round_index, shares))


def _last_as_padding(right: Cohort, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
    members = right.sample(keys, round_index, shares)
    last = Members(members.ids[-1:], jnp.zeros(1), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))
    others = jax.tree.map(lambda a: a[:-1], members)
    return jax.tree.map(lambda *a: jnp.concatenate(a), others, last, last)


def _examine_padding(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    _padded_batches(algorithm, data, model, seed)
    if data.num_clients > 1:
        _padded_cohort(algorithm, data, model, seed)


def _padded_batches(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    algorithm, data = instruments.subsample_clients(instruments.without_server(algorithm), data, most=1)
    data = instruments.own_records(data)
    clips = clips_records(algorithm)
    poisons = (
        [data.x[0]] if data.tokens else [1e4 * (1 + np.abs(data.x[0]))] + [np.full_like(data.x[0], np.nan)] * clips
    )
    # Each with several targets and models: an enormous record of the class that a model is sure of weighs nothing.
    targets = np.arange(min(TRIALS, len(data.x)))
    x = np.stack([np.concatenate([data.x, p[None]]).astype(data.x.dtype) for p in poisons for _ in targets])
    y = jax.tree.map(lambda a: np.stack([np.concatenate([a, a[i : i + 1]]) for _ in poisons for i in targets]), data.y)
    longer = changed(data, rows=np.arange(len(data.x) + 1, dtype=np.int32))
    setup = TrialInputs(keys_of(len(x), "runs", seed), x, y)
    seen = [
        np.asarray(instruments.observe(instruments.frozen_updates(twin, data), longer, model, setup).gradients)
        for twin in (algorithm, mutated(algorithm, "batches", "sample", _with_padding))
    ]
    _require_same("padding rows of a batch contribute nothing", seen)


def _padded_cohort(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    algorithm, data = instruments.subsample_clients(
        changed(instruments.without_noise(algorithm), server=instruments.additive_server()), data
    )
    data = instruments.own_records(data)
    x = np.array(data.x)
    if not data.tokens:
        x[int(data.offsets[-1]) :] = np.nan
    spoiled, setup = changed(data, x=x), TrialInputs(keys_of(TRIALS, "runs", seed))
    seen = [
        np.asarray(
            instruments.observe(
                changed(algorithm, cohort=mutated_part(AllClients(), "sample", mutation)), spoiled, model, setup
            ).params
        )
        for mutation in (_all_but_last, _last_as_padding)
    ]
    _require_same("padding of a cohort contributes nothing", seen, _grain(algorithm, data))


def _examine_order(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    _turned_batches(algorithm, data, model, seed)
    _turned_cohort(algorithm, data, model, seed)


def _turned_batches(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    algorithm, data = instruments.subsample_clients(instruments.without_server(algorithm), data, most=3)
    setup = TrialInputs(keys_of(TRIALS, "runs", seed))
    seen = [
        np.asarray(instruments.observe(instruments.frozen_updates(twin, data), data, model, setup).gradients)
        for twin in (algorithm, mutated(algorithm, "batches", "sample", _turned))
    ]
    _require_same("the order of a batch's records changes only rounding", seen)


def _turned_cohort(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    algorithm = changed(instruments.without_noise(algorithm), server=instruments.additive_server())
    setup = TrialInputs(keys_of(TRIALS, "runs", seed))
    turned = mutated(algorithm, "cohort", "sample", _turned_members)
    whole, back, portions = (
        np.asarray(instruments.observe(twin, data, model, setup, execution=execution).params)
        for twin, execution in ((algorithm, None), (turned, None), (algorithm, Execution(chunk_size=2)))
    )
    grain = _grain(algorithm, data)
    _require_same("the order of a cohort's clients changes only rounding", [whole, back], grain)
    _require_same("the portions in which clients run change only rounding", [whole, portions], grain)


def _grain(algorithm: Algorithm, data: FederatedData) -> float:
    """What rounding to a ring may change in a sum."""
    return 2 * algorithm.transport.resolution * min(data.num_clients, algorithm.cohort.capacity(data.num_clients))
