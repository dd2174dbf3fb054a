"""How far neighbours can move what is noised: searched for, with records that are meant to do the worst."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Unit
from fedjax_dp.accounting.sampling import WithReplacement
from fedjax_dp.audits.wrappers import CanaryCohort
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.neighbours import neighbouring_stores, require_bounded, worst_models, worst_records
from fedjax_dp.inspection.trials import keys_of
from fedjax_dp.inspection.verdict import CheckReport
from fedjax_dp.models import Model
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.parts.batches import FixedBatches
from fedjax_dp.parts.client_privacy import UpdatePrivatizer
from fedjax_dp.privacy.protection import unit_of
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing import instruments
from fedjax_dp.testing.checks import run_check, usable_model
from fedjax_dp.testing.instruments import TrialInputs
from fedjax_dp.testing.mutation import WrongProgram, mutated_part
from fedjax_dp.testing.wrong_programs import clip_per_batch, unclipped_bias

TRIALS = 256
ROUNDING = 1e-4  # relative: float32 sums over a batch


def loose_clip(algorithm: Algorithm) -> Algorithm:
    """Clips at 1.1 times the clip norm that is stated. For every algorithm with a clip norm.

    Where what is stated is not attained, it is so much wider: twice for the estimator f_c, B times for clipped records
    under noise on the upload.
    """
    if algorithm.upload.unit is not None:
        mutation = _loose_message if getattr(algorithm.aggregate, "least", None) is None else _looser_message
        return changed(algorithm, upload=mutated_part(algorithm.upload, "message", mutation))
    instruments.gradient_clip_of(algorithm)  # refuses one that does not clip
    local = algorithm.local
    return changed(algorithm, local=changed(local, privatizer=mutated_part(local.privatizer, "gradient", _loose_clip)))


def _loose_clip(right: Any, key: jax.Array, step: Any, model: Model, params: Any, records: Any) -> Any:
    apart = right.on_upload and right.bound.per_record
    factor = 1.1 * records.divisor if apart else 1.1
    wide = changed(right, clip_norm=factor * right.clip_norm, noise_multiplier=right.noise_multiplier / factor)
    return wide.gradient(key, step, model, params, records)


def _loose_message(right: UpdatePrivatizer, key: jax.Array, update: jax.Array, *rest: Any) -> Any:
    kept, extra = right.message(key, update, *rest)
    return 1.1 * kept, extra


def _looser_message(right: UpdatePrivatizer, key: jax.Array, update: jax.Array, *rest: Any) -> Any:
    kept, extra = right.message(key, update, *rest)
    return 2.2 * kept, extra


LOOSE = (loose_clip, unclipped_bias, clip_per_batch)


def check_sensitivity(
    subject: Algorithm | Callable[[Any], Any],
    data: FederatedData | None = None,
    *,
    model: Model | None = None,
    sensitivity: float | None = None,
    adjacency: Adjacency | None = None,
    records: Any = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = LOOSE,
    seed: int = 0,
    trials: int = TRIALS,
) -> list[CheckReport]:
    """Neighbours move what is noised by no more than stated, and the search came near the bound.

    subject  an algorithm with its data. Noise on records: the mean gradient of every local step, at random models, in
             runs of the same keys without noise; a record that is drawn is exchanged, or left out of its batch, as the
             adjacency of the ledger's event says; clients have one record more than a batch, so that it is drawn
             often, and once where batches are drawn with replacement. Noise on the upload (dp_fedavg_output): the whole
             update. Noise on whole clients: the mean of updates, one client's records being exchanged for the worst,
             or its message missing.
             Or a function from records (a pytree of arrays with a leading axis) to a vector, by JAX, with
             `sensitivity`, `adjacency` and some `records`; by add-remove it is also called with one record less;
    wrong    programs that the same check must reject; those that do not apply are left out. By default clipping 10%
             too wide, biases unclipped, and the batch clipped instead of its records; for a function 1.1 times it.
    Searched: features that are normal, sparse, even, of one sign, whole or as they are stored, of scale 0 to 1e30,
             infinite and NaN; opposite signs; all targets; models as they start, 0, and up to 1e3 away.
    Errors:  the search proves nothing that it did not find: a right program fails only by more than a relative 1e-4 of
             rounding; a wrong one passes if no neighbour was bad enough. How far the search came, the report tells, and
             the wrong programs by being rejected.
    Raises:  AssertionError; ConfigurationError for an algorithm without an epsilon, or a function without bounds.
    """
    errors.require_count("trials", trials)
    remedy = "raise trials, or give data and model that fill the bound"
    if isinstance(subject, Algorithm):
        model = usable_model(subject, data, model)
        instruments.require_private(subject)
        of_unit = _of_clients if unit_of(subject) is Unit.CLIENT else _of_records
        return run_check(of_unit, subject, wrong, remedy, data, model, seed, trials)
    if sensitivity is None or not isinstance(adjacency, Adjacency) or records is None:
        raise errors.refuse("sensitivity, adjacency and records", "not all", "given with a function")
    if adjacency is Adjacency.ZERO_OUT:
        wanted = "add-remove or replace-one for a function, which has no contribution to put to zero"
        raise errors.refuse("adjacency", adjacency.value, wanted)
    errors.require_positive("sensitivity", sensitivity)
    wrong = _loose if wrong is LOOSE else wrong
    return run_check(_of_function, subject, wrong, remedy, sensitivity, adjacency, records, seed, trials)


def _loose(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda records: jax.tree.map(lambda a: 1.1 * a, function(records))


_loose.__name__ = "1.1 times the function"


def _of_function(
    function: Callable[[Any], Any], sensitivity: float, adjacency: Adjacency, records: Any, seed: int, trials: int
) -> None:
    rng = numpy_stream("neighbours of a function", seed)
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, records))
    count = len(leaves[0])
    at, drawn = rng.integers(0, count, (2, trials))

    def pair_of(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integers may be codes, so that none is made up."""
        theirs = a[drawn]
        return worst_records(rng, theirs, a) if np.issubdtype(a.dtype, np.floating) else (theirs, np.roll(theirs, 1, 0))

    pairs = [pair_of(a) for a in leaves]

    def stores(which: int) -> Any:
        wide = [np.repeat(a[None], trials, 0) for a in leaves]
        for a, pair in zip(wide, pairs):
            a[np.arange(trials), at] = pair[which]
        return jax.tree.unflatten(structure, wide)

    def flat(records: Any) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(function(records))])

    run = jax.jit(jax.vmap(flat))
    base = stores(0)
    if adjacency is Adjacency.REPLACE_ONE:
        others = stores(1)
    else:
        keep = np.array([np.delete(np.arange(count), i) for i in at])
        others = jax.tree.map(lambda a: a[np.arange(trials)[:, None], keep], base)
    one, other = (np.asarray(run(some), float) for some in (base, others))
    _require_bounded("the function", one, other, sensitivity, adjacency)


def _require_bounded(
    what: str, one: np.ndarray, other: np.ndarray, bound: Any, adjacency: Adjacency, order: int = 2
) -> None:
    """The bound is one number, or one by trial; beside a relative ROUNDING, the vectors' own in float32 is allowed."""
    law = f"{what} moves between {adjacency.value} neighbours by at most the sensitivity"
    slack = ROUNDING + np.finfo(np.float32).eps * np.linalg.norm(one, ord=order, axis=-1) / bound
    require_bounded(law, one, other, bound, order, slack)


def _of_records(algorithm: Algorithm, data: FederatedData, model: Model, seed: int, trials: int) -> None:
    rng = numpy_stream("neighbouring records", seed)
    algorithm, data = instruments.subsample_clients(instruments.without_server(algorithm), data, most=2)
    claim = instruments.claim_of(algorithm, data, 1, model)
    adjacency = claim.adjacency
    local, batch = algorithm.local, getattr(algorithm.local.batches, "size", None)
    if isinstance(local.batches.sampling(int(data.largest)), WithReplacement):
        # the event counts how often a record is drawn; the bound is that of a record that is drawn once
        algorithm = changed(algorithm, local=changed(local, batches=FixedBatches(size=int(batch or 1))))
    # what a record can do does not depend on how many others are not drawn
    data = instruments.own_records(data, None if batch is None else int(batch) + 1)
    at = rng.integers(0, np.asarray(data.sizes).min(), trials)  # the same position of every client
    params = worst_models(rng, model, trials)
    theirs = np.zeros((trials, len(data.x)), bool)
    theirs[np.arange(trials)[:, None], np.asarray(data.offsets)[None] + at[:, None]] = True
    keys, stores = keys_of(trials, "runs", seed), neighbouring_stores(rng, data, theirs)
    none, gone = np.full(trials, -1, np.float32), at.astype(np.float32)
    if adjacency is not Adjacency.REPLACE_ONE:
        setups = [TrialInputs(keys, *stores[0], params, missing) for missing in (none, gone)]
    else:
        setups = [TrialInputs(keys, *store, params, none) for store in stores]
    quiet = instruments.without_noise(algorithm)
    if algorithm.local.privatizer.on_upload:
        once = changed(quiet, local=changed(quiet.local, steps=1))
        for twin in (once, quiet):
            _examine_uploads(twin, data, model, setups, adjacency)
        return
    watched = instruments.frozen_updates(quiet, data)
    one, other = (np.asarray(instruments.observe(watched, data, model, s).gradients[:, 0], float) for s in setups)
    unit = adjacency.sensitivity * np.broadcast_to(instruments.step_units(algorithm, data)[0], one.shape[:-1])
    taken = unit > 0
    law, order = "the mean gradient of a step", claim.release.norm
    _require_bounded(law, one[taken], other[taken], unit[taken], adjacency, order)


def _examine_uploads(
    quiet: Algorithm, data: FederatedData, model: Model, setups: list[TrialInputs], adjacency: Adjacency
) -> None:
    """What dp_fedavg_output's upload moves by, over the clipped steps' reach, one client alone."""
    alone = changed(data, offsets=data.offsets[:1], sizes=data.sizes[:1], shares=np.ones(1, np.float32))
    one, other = (np.asarray(instruments.observe(quiet, alone, model, s).params[:, 1], float) for s in setups)
    rates = np.asarray(quiet.local.rates(jnp.int32(0), alone.largest), float)
    reach = adjacency.sensitivity * instruments.gradient_clip_of(quiet) * rates.sum()
    _require_bounded(f"the upload of {rates.size} steps", one, other, reach, adjacency)


def _of_clients(algorithm: Algorithm, data: FederatedData, model: Model, seed: int, trials: int) -> None:
    rng = numpy_stream("neighbouring clients", seed)
    claim = instruments.claim_of(algorithm, data, 1, model)
    data = instruments.own_records(data)
    trials = min(trials, max(8, 2**24 // max(data.x.size, 1)))
    largest = int(np.argmax(np.asarray(data.shares)))  # who can do most where shares are weights
    client = np.where(np.arange(trials) % 2, largest, rng.integers(0, data.num_clients, trials))
    params = worst_models(rng, model, trials)
    owner = np.repeat(np.arange(data.num_clients), np.asarray(data.sizes))
    keys, stores = keys_of(trials, "runs", seed), neighbouring_stores(rng, data, owner[None] == client[:, None])
    quiet = changed(instruments.without_noise(algorithm), server=instruments.additive_server())

    def cohort(missing: np.ndarray) -> Any:
        wide = jax.tree.map(lambda a: np.repeat(np.asarray(a, np.float32)[None], trials, 0), algorithm.cohort)
        return CanaryCohort(cohort=wide, schedule=None, gone=missing[:, None] == np.arange(data.num_clients))

    nobody = np.full(trials, -1)
    if claim.adjacency is not Adjacency.REPLACE_ONE:
        setups = [TrialInputs(keys, *stores[0], params, None, cohort(who)) for who in (nobody, client)]
    else:
        setups = [TrialInputs(keys, *store, params, None, cohort(nobody)) for store in stores]
    one, other = (np.asarray(instruments.observe(quiet, data, model, s).params[:, 1], float) for s in setups)
    clip = instruments.clip_of(algorithm) * claim.norm
    reach = claim.adjacency.sensitivity * instruments.mean_unit(algorithm, data, clip)
    _require_bounded("the mean of the updates", one, other, reach, claim.adjacency)
