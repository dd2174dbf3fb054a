"""Sensitivity of whole runs, searched with worst-case records."""

import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Adjacency
from fedjax_dp.accounting.sampling import WithReplacement
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import runs
from fedjax_dp.inspection.neighbours import neighbouring_stores, require_moved_within, worst_models
from fedjax_dp.inspection.runs import TrialInputs
from fedjax_dp.inspection.trials import Place, keys_of
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.parts.batches import FixedBatches
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.algorithm import Algorithm, without_noise

NEIGHBOURS = 256


def examine_sensitivity(place: Place) -> None:
    """Compare runs of neighbours with equal keys and without noise, at random models.

    For noise in local steps, one drawn record is replaced, or removed from its batch, by the adjacency of the event,
    and the mean gradients of all steps are compared. Clients have one record more than a batch, so that it is drawn
    often, and once if batches are drawn with replacement. For noise on the upload the whole updates are compared. For
    noise on whole clients, one client's records are replaced by the worst, or its message is missing, and means of
    updates are compared.
    """
    (_examine_clients if place.by_client else _examine_records)(place)


def _examine_records(place: Place) -> None:
    rng, trials, model = numpy_stream("neighbouring records", place.seed), NEIGHBOURS, place.model
    algorithm, data = runs.select_clients(runs.with_plain_mean(place.algorithm), place.data, most=2)
    release = runs.claim_of(place, algorithm, data, 1).release
    local, batch = algorithm.local, getattr(algorithm.local.batches, "size", None)
    if isinstance(local.batches.sampling(int(data.largest)), WithReplacement):
        # the event counts how often a record is drawn; the bound is for one draw
        algorithm = replace(algorithm, local=replace(local, batches=FixedBatches(size=int(batch or 1))))
    # the influence of a record does not depend on records that are not drawn
    data = runs.flat_records(data, None if batch is None else int(batch) + 1)
    at = rng.integers(0, np.asarray(data.sizes).min(), trials)  # the same position of every client
    params = worst_models(rng, model, trials)
    theirs = np.zeros((trials, len(data.x)), bool)
    theirs[np.arange(trials)[:, None], np.asarray(data.offsets)[None] + at[:, None]] = True
    keys, stores = keys_of(trials, "runs", place.seed), neighbouring_stores(rng, data, theirs)
    none, gone = np.full(trials, -1, np.float32), at.astype(np.float32)
    setups = [TrialInputs(keys, *store, params, none) for store in stores]
    if release.adjacency is not Adjacency.REPLACE_ONE:
        setups[1] = setups[0]._replace(record=gone)
    quiet = without_noise(algorithm)
    if algorithm.local.privatizer.on_upload:
        for twin in (replace(quiet, local=replace(quiet.local, steps=1)), quiet):
            _examine_uploads(twin, data, place, setups, release.adjacency)
        return
    watched = runs.record_gradients(quiet, data)
    one, other = (np.asarray(runs.observe(watched, data, model, s).gradients[:, 0], float) for s in setups)
    unit = release.adjacency.sensitivity * np.broadcast_to(runs.step_units(algorithm, data)[0], one.shape[:-1])
    taken, what = unit > 0, "the mean gradient of a step"
    require_moved_within(what, one[taken], other[taken], unit[taken], release.adjacency, release.norm)


def _examine_uploads(
    quiet: Algorithm, data: FederatedData, place: Place, setups: list[TrialInputs], adjacency: Adjacency
) -> None:
    """Compare the move of dp_fedavg_output's upload with the clipped steps' reach, for one client alone."""
    alone = replace(data, offsets=data.offsets[:1], sizes=data.sizes[:1], shares=np.ones(1, np.float32))
    one, other = (np.asarray(runs.observe(quiet, alone, place.model, s).params[:, 1], float) for s in setups)
    rates = np.asarray(quiet.local.rates(jnp.int32(0), alone.largest), float)
    reach = adjacency.sensitivity * runs.gradient_clip_of(quiet) * rates.sum()
    require_moved_within(f"the upload of {rates.size} steps", one, other, reach, adjacency)


def _examine_clients(place: Place) -> None:
    rng, model = numpy_stream("neighbouring clients", place.seed), place.model
    claim, data = runs.claim_of(place, place.algorithm, place.data, 1), runs.flat_records(place.data)
    adjacency = claim.release.adjacency
    trials = min(NEIGHBOURS, max(8, 2**24 // max(data.x.size, 1)))
    largest = int(np.argmax(np.asarray(data.shares)))  # the most influential client if shares are weights
    client = np.where(np.arange(trials) % 2, largest, rng.integers(0, data.num_clients, trials))
    params = worst_models(rng, model, trials)
    owner = np.repeat(np.arange(data.num_clients), np.asarray(data.sizes))
    keys, stores = keys_of(trials, "runs", place.seed), neighbouring_stores(rng, data, owner[None] == client[:, None])
    nobody = np.full(trials, -1)
    setups = [TrialInputs(keys, *store, params, None, nobody) for store in stores]
    if adjacency is not Adjacency.REPLACE_ONE:
        setups[1] = setups[0]._replace(client=client)
    quiet = runs.with_plain_server(without_noise(place.algorithm))
    one, other = (np.asarray(runs.observe(quiet, data, model, s).params[:, 1], float) for s in setups)
    clip = runs.clip_of(place.algorithm) * claim.norm
    reach = adjacency.sensitivity * runs.mean_unit(place.algorithm, data, clip)
    require_moved_within("the mean of the updates", one, other, reach, adjacency)
