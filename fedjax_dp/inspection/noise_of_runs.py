"""Checks that the noise of whole runs is as accounted, new in every place, and reproducible from the seed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.inspection import runs
from fedjax_dp.inspection.noise_law import examine_noise
from fedjax_dp.inspection.runs import TrialInputs
from fedjax_dp.inspection.schedule_points import whiten
from fedjax_dp.inspection.trials import QUICK, Place, keys_of
from fedjax_dp.inspection.verdict import require
from fedjax_dp.models.model import size_of
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.rounds.algorithm import Algorithm, mechanism_of, without_noise
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves
from fedjax_dp.rounds.state import initial_state

DRAWS = 20_000  # numbers; 12,743 miss a standard deviation off by 5% once in a thousand times
PAIRED = 1_500  # numbers that each pair of places is compared by
SMOOTH = 50  # ring steps per standard deviation above which integer noise is compared with a normal law
SEEDS, ROUNDS = 4, 12  # runs whose noise is compared, and rounds of each
CLOSE = 1e-3  # standard deviations within which two noise vectors count as one, in every coordinate, up to a factor
COORDINATES = 64  # coordinates that are compared


def examine_law(place: Place) -> None:
    """Compare the noise, the difference of runs with and without it, with that of the event and the sensitivity.

    It covers all local steps of two rounds of up to 6 clients; for noise on whole clients, three server steps.
    """
    (_examine_server if place.by_client else _examine_steps)(place)


def _trials(size: int, places: int) -> int:
    """Enough trials that all places have DRAWS numbers of noise together, and each pair PAIRED."""
    return max(math.ceil(DRAWS / (size * places)), math.ceil(PAIRED / size), 8)


def _steps_noise(place: Place, algorithm: Algorithm, data: Any, trials: int, rounds: int) -> np.ndarray:
    """Noise of every local step `(trials, rounds, clients, steps, size)`."""
    watched, setup = runs.record_gradients(algorithm, data), TrialInputs(keys_of(trials, "runs", place.seed))
    loud, quiet = (
        np.asarray(runs.observe(twin, data, place.model, setup, rounds).gradients, float)
        for twin in (watched, without_noise(watched))
    )
    return loud - quiet


def _server_moves(place: Place, trials: int, rounds: int) -> tuple[np.ndarray, Any]:
    """Moves of a server whose clients do not move `(trials, rounds, size)`, and the upload's state."""
    watched = runs.record_gradients(runs.with_plain_server(place.algorithm), place.data)
    setup = TrialInputs(keys_of(trials, "runs", place.seed), params=jnp.zeros((trials, size_of(place.model))))
    seen = runs.observe(watched, place.data, place.model, setup, rounds)
    return np.diff(np.asarray(seen.params, float), axis=1), seen.upload


def _examine_steps(place: Place) -> None:
    rounds, size = 2, size_of(place.model)
    algorithm, data = runs.select_clients(runs.with_plain_mean(place.algorithm), place.data)
    claim = runs.claim_of(place, algorithm, data, rounds)
    wanted = runs.step_units(algorithm, data, rounds) * claim.noise[:, None]
    places = [(t, i, s) for t, i, s in np.ndindex(wanted.shape) if wanted[t, i, s] > 0]
    trials = _trials(size, len(places))
    trials *= 1 if claim.release.is_normal else 2  # two of another law make a normal one
    noise = _steps_noise(place, algorithm, data, trials, rounds)
    source = correlated_source(algorithm.local.privatizer)
    if source is not None:
        noise = whiten(noise, source)
    rows = np.stack([noise[:, t, i, s] / wanted[t, i, s] for t, i, s in places], 1)
    if not claim.release.is_normal:
        differences = (rows[: trials // 2] - rows[trials // 2 : trials // 2 * 2]) / math.sqrt(2)
        rows = claim.release.as_normal(differences / claim.release.deviation)
    examine_noise(rows, [f"round {t}, client {i}, step {s}" for t, i, s in places])
    silent = noise[:, wanted == 0]
    largest = np.abs(silent).max(initial=0)
    require(not np.any(silent), "no noise where none is counted", f"up to {largest:.3g}", "0")


def _examine_server(place: Place) -> None:
    rounds, size, upload = 3, size_of(place.model), place.algorithm.upload
    clip = runs.clip_of(place.algorithm)
    claim = runs.claim_of(place, place.algorithm, place.data, rounds)
    noise, kept = _server_moves(place, _trials(size, rounds), rounds)
    learnt, multiplier, bits = getattr(kept, "clip_norm", None), claim.noise[0], getattr(upload, "bit_noise", None)
    if bits is not None:  # an adaptive clip norm pays its bits from the same budget
        multiplier = (multiplier**-2 - (2 * float(bits)) ** -2) ** -0.5
    unit = runs.mean_unit(place.algorithm, place.data, clip if learnt is None else learnt[..., None])
    source = correlated_source(upload)
    if source is not None:
        noise = whiten(noise, source)
    ring = claim.resolution and clip * multiplier / claim.resolution
    examine_noise(noise / (multiplier * unit), [f"round {t}" for t in range(rounds)], not 0 < ring < SMOOTH)


def examine_keys(place: Place) -> None:
    """Run twice with one seed, and compare the noise of all places in 4 runs of 12 rounds with each other."""
    if size_of(place.model) < 6:
        raise errors.refuse("model", f"{size_of(place.model)} parameters", "of at least 6, to tell noise apart")
    multipliers = getattr(mechanism_of(place.algorithm), "noise_multiplier", None)
    _examine_seeds(place, random=multipliers is not None)
    if multipliers is None or not np.any(np.asarray(multipliers) > 0):
        return  # there is no noise to use again
    if place.by_client:
        noise = _server_moves(place, SEEDS, ROUNDS)[0]
        names = [f"run {r}, round {t}" for r, t in np.ndindex(noise.shape[:-1])]
    else:
        noise = _steps_noise(
            place, *runs.select_clients(runs.with_plain_mean(place.algorithm), place.data), SEEDS, ROUNDS
        )
        names = [f"run {r}, round {t}, client {i}, step {s}" for r, t, i, s in np.ndindex(noise.shape[:-1])]
    size = noise.shape[-1]
    rows = noise.reshape(-1, size)[:, np.unique(np.linspace(0, size - 1, min(size, COORDINATES)).astype(int))]
    used = np.flatnonzero(np.any(rows != 0, -1))
    equal = _equal_rows(rows[used])
    repeated = "none" if equal is None else "that of {} again at {}".format(*(names[used[at]] for at in equal))
    require(
        equal is None,
        f"no noise is used twice, among {used.size} places",
        repeated,
        "none",
        "distinct noise is taken for equal with probability below 1e-12 a pair",
    )


def _equal_rows(rows: np.ndarray) -> list[int] | None:
    """Two rows that are equal up to a factor, as one noise at two scales is; needs 6 coordinates."""
    scale = np.sqrt(np.mean(rows**2, -1, keepdims=True))
    rows = rows / np.where(rows[:, :1] < 0, -scale, scale)
    # equal vectors are neighbours in the order of any coordinate, up to others that come as close there
    order = np.argsort(rows[:, 0], kind="stable")
    for gap in range(1, min(8, len(rows))):
        near = np.flatnonzero(np.abs(rows[order[gap:]] - rows[order[:-gap]]).max(-1) < CLOSE)
        if near.size:
            return sorted((int(order[near[0]]), int(order[near[0] + gap])))
    return None


def _examine_seeds(place: Place, random: bool) -> None:
    """Trace and run a round twice, to find draws that are made while tracing.

    The whole state is compared, as local steps may change only the state and not the parameters.
    """
    arguments = (as_float32_leaves(place.algorithm), place.data, keys_of(2, "runs", place.seed))

    def advance(algorithm: Algorithm, data: Any, key: jax.Array) -> tuple[Any, Any]:
        start = jax.tree.map(jnp.asarray, initial_state(algorithm, place.model, data, key))
        return start, run_round(algorithm, place.model, data, key, start, Execution())[0]

    def trace() -> Any:
        return jax.jit(jax.vmap(advance, (None, None, 0)), compiler_options=QUICK).lower(*arguments)

    def changes(program: Any) -> np.ndarray:
        """(runs, numbers)"""
        starts, ends = map(jax.tree.leaves, program(*arguments))
        return np.concatenate([np.reshape(b - a, (2, -1)) for a, b in zip(starts, ends, strict=True)], 1)

    first, second = trace(), trace()
    run = first.compile()
    again = run if first.as_text() == second.as_text() else second.compile()
    one, other = changes(run), changes(again)
    differ = f"{np.mean(one != other):.1%} of numbers differ"
    require(np.array_equal(one, other, equal_nan=True), "the same seed gives the same bits", differ, "none")
    if random:
        same = np.array_equal(*one)
        require(not same, "another seed gives other bits", "the same" if same else "others", "others")
