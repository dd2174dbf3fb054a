"""Checks that cohorts and batches are drawn by their stated laws."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import FullBatch, ParticipationLog, Sampling
from fedjax_dp.inspection.noise_scale import scale_names
from fedjax_dp.inspection.sampling_law import examine_sampling, require_independent_draws
from fedjax_dp.inspection.trials import RUNS, Place, compile_trials, draw_cohorts, keys_of
from fedjax_dp.inspection.verdict import (
    count_deviate,
    largest_deviate,
    require,
    require_at_most,
    require_so,
    require_usual,
)
from fedjax_dp.parts.batches import Batches, divisors_of
from fedjax_dp.parts.client_privacy import amplified_sampling
from fedjax_dp.parts.cohorts import SEEN, Cohort, CohortKeys, Members
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import run_key

DISTINCT = 24  # sizes of clients that are tried
RUN = 10  # consecutive rounds that are compared together


def examine_cohort(cohort: Cohort, place: Place) -> None:
    """Check cohorts of the run, and of runs with other seeds."""
    algorithm, data, rounds, seed, effort = place.algorithm, place.data, place.rounds, place.seed, place.effort
    shares, num_clients = jnp.asarray(data.shares), data.num_clients
    positions = jax.eval_shape(lambda: draw_cohort(cohort, run_key(0), jnp.int32(0), shares)).ids.shape[0]
    stated = cohort.capacity(num_clients)
    require(positions == stated, "positions of a cohort", f"{positions}", f"the {stated} that `capacity` states")
    of_pass = cohort.rounds_per_pass(num_clients)
    independent = cohort.is_random and of_pass > 1
    require_so(not independent, "draws of cohorts that are drawn by passes", "inclusion_probability", "none of a round")
    count = max(min(effort.cohorts, 2**22 // max(num_clients, cohort.capacity(num_clients))), 50)
    separation, log = cohort.min_separation(num_clients), cohort.log(num_clients)
    amplified = amplified_sampling(algorithm.upload, cohort, num_clients, rounds, 0) is not SEEN
    rounds = rounds if log is None else min(rounds, log.num_rounds)  # nobody takes part in later rounds
    for first in range(0, rounds, count):
        some = np.arange(max(first - separation, 0), min(first + count, rounds))
        members = draw_cohorts(cohort, run_key(seed), some, shares)
        _examine_participation("the run's cohorts", cohort, members, num_clients)
        if log is not None:
            _examine_log(cohort, log, members, some)
    for first in range(0, max(rounds, count), count) if log is None else ():
        others = draw_cohorts(cohort, role_key(run_key(seed), "scrutiny"), first + np.arange(count), shares)
        _examine_participation("cohorts", cohort, others, num_clients)
        _examine_law(cohort, others, shares, amplified=amplified or effort.all_laws)
    for known in range(1, stated):
        hidden, alone = cohort.amplification(num_clients, known)[0], cohort.amplification(num_clients, 0)[0]
        require_so(hidden.rate >= alone.rate, "clients hidden among fewer", "less sampled", "sampled as much")
    if of_pass > 1:
        _examine_passes(cohort, shares, of_pass)
        return
    if not cohort.is_random:
        known = isinstance(cohort.amplification(num_clients, 0)[0], FullBatch)
        require_so(known, "how cohorts that are not drawn are hidden", "as by a draw", "FullBatch()")
        return
    some = np.arange(max(min(rounds, count), 64))  # fewer may agree by chance
    members, twin = (draw_cohorts(cohort, run_key((seed + more) % 2**32), some, shares) for more in (0, 1))
    twins = not (np.array_equal(members.ids, twin.ids) and np.array_equal(members.selected, twin.selected))
    if 0 < np.mean(counts_by_client(members, num_clients)[0] > 0) < 1:
        require_so(twins, "cohorts of another seed", "the same", "others")
    sample = scale_names(
        lambda key, now: cohort.sample(CohortKeys(key, key), now, shares), run_key(0), {"now": jnp.int32(0)}
    )
    if any("now" in trace.values | trace.scale for trace in sample):
        _examine_each_round(cohort, shares, rounds)


def _examine_participation(name: str, cohort: Cohort, members: Members, num_clients: int) -> None:
    """Check what must hold in each of some consecutive rounds."""
    times, counted = counts_by_client(members, num_clients)
    each = np.asarray(members.participation_count)
    whole = np.all((each >= 0) & (each == np.floor(each)))
    require_so(whole, f"{name}: times that a message counts", "not whole", "whole: weights belong to the estimator")
    require_at_most(f"{name}: times that a client trains in a round", times.max(initial=0), cohort.max_participations)
    if cohort.at_most_once:
        require_at_most(f"{name}: times that a client counts in a round", counted.max(initial=0.0), 1)
    if cohort.fixed:
        here = members.present.all()
        require_so(here, f"{name}: as many answer in every round", "fewer in some", "all positions")
    where = [np.flatnonzero(column) for column in times.T]
    gaps = min((int(np.diff(place).min()) for place in where if place.size > 1), default=10**9)
    separation = cohort.min_separation(num_clients)
    require(gaps >= separation, f"{name}: rounds between two of a client", f"{gaps}", f"{separation} or more")


def _examine_log(cohort: Cohort, log: ParticipationLog, members: Members, some: np.ndarray) -> None:
    """Check that the cohorts of some rounds are those of the log."""
    require_so(not cohort.is_random, "cohorts of a log", "drawn by a law too", "no law of draws")
    stated = np.zeros((log.num_rounds, log.num_clients), int)
    stated[log.rounds, log.clients] = 1
    alike = np.array_equal(counts_by_client(members, log.num_clients)[0], stated[some])
    require_so(alike, "who takes part", "others", "those of its `log`")


def _examine_law(cohort: Cohort, others: Members, shares: jax.Array, amplified: bool) -> None:
    """Check how often clients are drawn in consecutive rounds. `amplified`: whether sampling amplifies privacy."""
    count, num_clients, public = len(others.ids), shares.shape[0], np.asarray(shares, float)
    times, counted = counts_by_client(others, num_clients)
    if cohort.base is not cohort:
        selected = np.broadcast_to(np.asarray(cohort.base.rates(public), float), (num_clients,))
        error = np.maximum(times.std(0), 1e-6) / np.sqrt(count) + 1e-6
        require_usual("who is selected", (times.mean(0) - selected) / error, "its base", slack=1.5)
    rates = cohort.rates(public)
    if rates is not None:
        error = np.maximum(counted.std(0), 1e-6) / np.sqrt(count)
        off = (counted.mean(0) - np.broadcast_to(np.asarray(rates, float), (num_clients,))) / (error + 1e-6)
        require_usual("expected messages of a client", off, "its rates", slack=1.5)
    if not cohort.is_random:
        return
    chance, draws = cohort.inclusion_probability(public)
    chance = np.broadcast_to(np.asarray(chance, float), (num_clients,))
    away = count_deviate(times.sum(0), count * draws, np.clip(chance, 0, 1))
    require_usual("how often a client is drawn", away, "its law")
    hidden, _ = cohort.amplification(num_clients, 0)
    runs = (times[: count // RUN * RUN] > 0).astype(int).reshape(-1, RUN, num_clients)
    if isinstance(hidden, FullBatch):
        if np.any((chance > 0) & (chance < 1)):
            require_independent_draws("cohorts", runs)
    elif amplified:
        examine_sampling("cohorts", runs, hidden)


def _examine_passes(cohort: Cohort, shares: jax.Array, rounds: int) -> None:
    """Check two passes of `rounds` rounds, in runs with other seeds, against the stated law of a pass."""
    num_clients = shares.shape[0]
    hidden, _ = cohort.amplification(num_clients, 0)
    if isinstance(hidden, FullBatch):
        return
    trials = int(np.clip(2**20 // (rounds * num_clients), 64, 256))
    runs = np.array(
        [
            counts_by_client(draw_cohorts(cohort, key, np.arange(2 * rounds), shares), num_clients)[0]
            for key in keys_of(trials, "passes")
        ]
    )
    if hidden.steps_per_epoch == 1:  # a pass is one sum to a client, in a round that is public
        most = np.sum(runs.reshape(-1, rounds, num_clients).any(0), 0).max()
        require_at_most("rounds of a pass that a client may be in", most, 1)
        runs = runs.reshape(trials, 2, rounds, num_clients).sum(2)
    examine_sampling("cohorts", runs, hidden)


def _examine_each_round(cohort: Cohort, shares: jax.Array, rounds: int) -> None:
    """Check every round of the run on its own, as the law may depend on the round."""
    num_clients = shares.shape[0]
    chance, draws = cohort.inclusion_probability(np.asarray(shares, float))
    chance = np.clip(np.broadcast_to(np.asarray(chance, float), (num_clients,)), 0, 1)
    trials = int(np.clip(2**22 // (rounds * num_clients), 16, 256))
    some = np.zeros((rounds, num_clients), int)
    for key in keys_of(trials, "every round"):
        some += counts_by_client(draw_cohorts(cohort, key, np.arange(rounds), shares), num_clients)[0]
    away = count_deviate(some, trials * draws, chance)
    worst = int(np.argmax(np.abs(away).max(1)))
    off = f"{largest_deviate(away):.3g} standard errors off in round {worst}"
    require_usual("how often a client is drawn in each round", away, "its law", off)


def counts_by_client(members: Members, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each client is selected, and how often it counts, in each round; both `(rounds, num_clients)`."""
    rows = np.broadcast_to(np.arange(len(members.ids))[:, None], members.ids.shape)
    times, counted = np.zeros((2, len(members.ids), num_clients))
    ids = np.clip(members.ids, 0, num_clients - 1)
    np.add.at(times, (rows, ids), members.selected)
    np.add.at(counted, (rows, ids), members.participation_count)
    return times.astype(int), counted


def examine_batches(batches: Batches, place: Place) -> None:
    """Check batches of clients of every size, or of DISTINCT sizes if there are more."""
    local, data = place.algorithm.local, place.data
    steps = batches.count(local.steps, data.largest)
    distinct = np.unique(np.asarray(data.sizes))
    count = max(min(max(-(-place.effort.batches // steps), RUNS), 2**22 // (steps * data.largest)), 50)
    draw = compile_trials(lambda key, n: batches.sample(key, n, steps, data.largest, data.smallest), (0, None))
    some = np.unique(np.linspace(0, len(distinct) - 1, min(len(distinct), DISTINCT)).astype(int))
    for records in distinct[some].tolist():
        name = f"batches of {records} records"
        batch = jax.tree.map(np.asarray, draw(keys_of(count, "batches"), jnp.int32(records)))
        inside = (batch.positions >= 0) & (batch.positions < records)
        require_so(np.all(inside | ~batch.mask), f"{name} lie within a client's own", "others too", "its own")
        taken = batches.count(local.steps, records)
        lived = batch.step_mask > 0
        require_at_most(f"{name}: steps that are taken", lived.sum(1).max(), taken)
        if batches.even:
            require_so(lived.all(), f"{name}: all steps are taken", "not all", "all, where `even` is stated")
        number = np.clip(np.cumsum(lived, axis=1) - 1, 0, None)  # of a step among those that are taken
        public = batch.divisor == divisors_of(batches, records, taken)[np.minimum(number, taken - 1)]
        require_so(np.all(public[lived]), f"{name}: the divisor", "another", f"the stated {batches.divisor(records)}")
        times = np.zeros((count, steps, records), int)
        at = np.nonzero(batch.mask & lived[:, :, None])
        np.add.at(times, (at[0], at[1], batch.positions[at]), 1)
        first = np.argsort(~lived, axis=1, kind="stable")[:, :taken]  # the steps that are taken, in their order
        examine_records(name, np.take_along_axis(times, first[:, :, None], 1), batches.sampling(records))


def examine_records(name: str, times: np.ndarray, law: Sampling) -> None:
    """Compare how often each record is in each batch of each trial `(trials, steps, records)` with the law."""
    if isinstance(law, FullBatch):
        require_at_most(f"{name}: times that a record is in a batch", times.max(initial=0), 1)
    else:
        examine_sampling(name, times, law)
