"""The events of a run: what of each client is released, read off the very value that is simulated."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import (
    Adjacency,
    Composed,
    Event,
    FullBatch,
    Poisson,
    RandomParticipation,
    Sampling,
    Unit,
    View,
    repeated,
)
from fedjax_dp.accounting.events import joined
from fedjax_dp.parts.by_round import changes_of
from fedjax_dp.parts.client_privacy import Participation, released_noise
from fedjax_dp.parts.cohorts import SEEN
from fedjax_dp.parts.facts import of_the_project, require_facts
from fedjax_dp.privacy.planned_run import PlannedRun, honest_of
from fedjax_dp.privacy.protection import noised, unit_of
from fedjax_dp.privacy.terms import BY_NAME_ALONE
from fedjax_dp.pytrees import Part, tensor_sizes
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key

Kind = tuple[float, int, float]  # of clients: noise multiplier, records, gain of noise


def client_events(run: PlannedRun) -> list[Event]:
    """The event of each client: what the adversary of the run's view receives that depends on it.

    Of phases that the run goes on from it is what theirs received.
    """
    return qualified(run, training_of(run))


def qualified(run: PlannedRun, events: list[Event]) -> list[Event]:
    """The same, of what its rounds release."""
    for one in run.qualifiers:
        events = one.releases(events)
    return events


def own_events(run: PlannedRun, events: list[Event]) -> list[Event]:
    """The same without what prior runs released."""
    for one in run.qualifiers:
        if one.own:
            events = one.releases(events)
    return events


def counted_as(run: PlannedRun) -> str:
    """How rounds are counted: as the terms say, or in the worst case where no less is known.

    Cohorts that follow what clients sent of their records are one of the things that were released, and neighbours
    would have had others: what these could have been at most holds for all of them. Hidden cohorts are amplified in
    every round instead of counted. A law is known of records, and of cohorts that are drawn.
    """
    wanted, cohort, by_client = run.terms.participation, run.algorithm.cohort, unit_of(run.algorithm) is Unit.CLIENT
    if run.terms.deployment is not None:  # whose schedule nobody knows
        return "worst"
    if wanted == "once":
        return wanted
    together = run.bound.clients > 1  # of whose clients one draw decides
    lawless = wanted == "law" and (by_client or together or not cohort.drawn)
    hidden = by_client and not isinstance(_sampling_of(run)[0], FullBatch)
    return "worst" if cohort.prior_event is not None or lawless or hidden else wanted


def _sampling_of(run: PlannedRun) -> tuple[Sampling, Adjacency]:
    """How clients are drawn in the eyes of the adversary.

    What a client keeps tells later how often it was drawn. That is no matter where every client has coins of its own:
    all others' may be known, and their states with them (docs/epsilon.md has the proof). Where the draw of one decides
    who else is drawn, nothing is known but that published cohorts hide no less than these; nor is more known of a pass
    of rounds in which noise differs.
    """
    cohort, num_clients = run.promised
    of_one_noise = cohort.rounds_per_pass(num_clients) == 1 or changes_of(noised(run.algorithm)) is None
    if not (run.algorithm.upload.amplified and of_one_noise):
        return SEEN
    sampling, adjacency = cohort.amplified(num_clients, run.helpers)
    return (sampling, adjacency) if isinstance(sampling, Poisson) or not remembers(run.algorithm) else SEEN


def remembers(algorithm: Algorithm) -> bool:
    """Whether what clients keep may act on what they send later; others than the project's parts are not believed."""
    local = algorithm.local
    known = all(map(of_the_project, (local, *(part for _, part in local.parts))))
    return local.state_affects_messages if known else local.has_client_state


def training_of(run: PlannedRun, at_least: int = 0) -> list[Event]:
    """The same without what clients paid before for how they are drawn: what rounds release, given their cohorts.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    require_facts(run.algorithm)
    colluders = run.terms.colluders
    if colluders and run.view is View.UPLOADS:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    participation = counted_as(run)
    if len(run.noise_levels.factors) > 1 and participation in BY_NAME_ALONE:
        wanted = "schedule, law or worst where the noise differs from round to round"
        raise errors.refuse("participation", participation, wanted, "nobody says of which rounds it would be")
    if unit_of(run.algorithm) is Unit.CLIENT:
        return _of_clients(run, participation, at_least)
    events = _of_records(run, participation, at_least)
    for one in run.qualifiers:
        events = one.rounds(events)
    return events


def _times(run: PlannedRun, participation: str, at_least: int) -> list[tuple[float, ...]]:
    """Rounds of each noise level that each client is counted for."""
    cohort, rounds, num_clients = run.algorithm.cohort, run.rounds, run.data.num_clients
    if run.terms.deployment is not None:  # one noise level, or all rounds of each: more than there can be
        apart, counts = run.promised.cohort.min_separation(run.promised.num_clients), run.noise_levels.rounds
        return [(-(-rounds // apart),) if len(counts) == 1 else tuple(counts)] * num_clients
    if participation == "schedule":
        attended = run.attended.astype(float)
        attended[:, 0] += np.maximum(at_least - attended.sum(1), 0)  # with the least noise
        return list(map(tuple, attended.tolist()))
    if participation == "worst":
        return [tuple(float(count * cohort.max_participations) for count in run.noise_levels.rounds)] * num_clients
    if participation == "once":
        return [(float(cohort.max_participations),)] * num_clients
    shares = np.asarray(run.data.shares, float)
    chance, draws = cohort.inclusion_probability(shares) if cohort.drawn else (cohort.base.rates(shares), 1)
    return [(max(rounds * draws * float(rate), 1.0),) for rate in np.broadcast_to(chance, (num_clients,))]


def _of_records(run: PlannedRun, participation: str, at_least: int) -> list[Event]:
    algorithm, data, rounds = run.algorithm, run.data, run.rounds
    local, num_clients = algorithm.local, data.num_clients
    sizes, noises = np.asarray(data.sizes).tolist(), local.privatizer.client_noise(num_clients)
    rates = run.last_rates

    # Who sees uploads, or what is made of them, sees nothing of what acts on a client's own model alone.
    whole = run.view is View.DEPLOYED
    others = [one for one in local.additional_releases if one.sent or whole]
    often = [one for one in others if one.most is None and not one.final]
    seldom = [one for one in others if one not in often]

    @functools.cache
    def round_of(noise: float, records: int, more: int) -> Event:
        return local.privatizer.event(
            noise, local.batches, records, local.batches.count(local.steps, records) + more, rates
        )

    @functools.cache  # a million clients are of a few kinds
    def own_round(kind: Kind, factor: float) -> Event:
        own_noise, records, gain = kind
        noise = own_noise * factor
        steps = [round_of(noise, records, local.extra_gradients).scaled(float(np.sqrt(gain)))]
        parts = steps if local.sends_steps or whole else []
        parts += [one.event(local, noise, records, rates) for one in often]
        return joined(parts)

    @functools.cache
    def with_seldom(rounds_of: Event, kind: Kind, count: float) -> Event:
        """With what is not released in every round, of which it is not known which these are."""
        noise, records, _ = kind
        more = [
            repeated(
                one.event(local, noise * (levels.after if one.final else levels.least), records, rates),
                one.times(count),
            )
            for one in seldom
        ]
        return Composed((rounds_of, *more)) if more else rounds_of

    @functools.cache
    def own_rounds(kind: Kind, counts: tuple[float, ...]) -> Event:
        """Of a client that takes part so often at each level."""
        taken = [one for one in zip(factors, counts, strict=True) if one[1]] or [(factors[0], 0.0)]
        rounds_of = joined([repeated(own_round(kind, factor), count) for factor, count in taken])
        return with_seldom(rounds_of, kind, sum(counts))

    levels = run.noise_levels
    factors = [float(factor) for factor in levels.factors]
    kinds = list(zip(noises, sizes, run.gains.tolist(), strict=True))
    before: list[Event] = [round_of(z, n, 0) for z, n, _ in kinds] if local.initial_release else []
    if participation == "law":
        chance, draws = algorithm.cohort.inclusion_probability(np.asarray(data.shares, float))
        later: list[Event] = [
            with_seldom(
                joined(
                    [
                        RandomParticipation(own_round(kind, factor), min(float(rate), 1.0), count * draws)
                        for factor, count in zip(factors, levels.rounds, strict=True)
                    ]
                ),
                kind,
                rounds * draws,
            )
            for kind, rate in zip(kinds, np.broadcast_to(chance, (num_clients,)), strict=True)
        ]
    else:
        times = _times(run, participation, at_least)
        later = [own_rounds(kind, counts) for kind, counts in zip(kinds, times, strict=True)]
    return [Composed((first, event)) for first, event in zip(before, later, strict=True)] if before else later


def _of_clients(run: PlannedRun, participation: str, at_least: int) -> list[Event]:
    algorithm = run.algorithm
    upload: Any = algorithm.upload
    # who of those drawn does not answer, for reasons that know no data, pays no more than the others
    cohort, num_clients = run.promised
    if participation == "once":
        run, participation = dataclasses.replace(run, rounds=1, _drawn={}), "worst"
    noise = released_noise(upload) if run.terms.deployment is None else float(np.float32(upload.noise_multiplier))
    sampling, adjacency = _sampling_of(run)
    hidden = not isinstance(sampling, FullBatch)
    of_pass = cohort.rounds_per_pass(num_clients) if hidden else 1
    size = Part(tensor_sizes(jax.eval_shape(run.model.init, run_key(0))), algorithm.local.sent_tensors(run.model)).size
    members = cohort.capacity(num_clients)
    shared = upload.shared_noise
    honest = honest_of(algorithm, run.data, run.view, min(run.helpers, members - 1)) if shared else members

    @functools.cache
    def of(counts: tuple[float, ...], pattern: tuple[int, ...] | None) -> Event:
        """Of a client that takes part so often at each noise level, or in these very rounds."""
        levels = run.noise_levels
        each: list[Event] = [
            upload.event(
                noise * float(factor),
                Participation(
                    sampling,
                    adjacency,
                    -(-rounds // of_pass) * sampling.steps_per_epoch,
                    times,
                    cohort.min_separation(num_clients),
                    members,
                    honest,
                    algorithm.transport.resolution,
                    size,
                    pattern,
                ),
            )
            for factor, rounds, times in zip(levels.factors, levels.rounds, counts, strict=True)
        ]
        return joined(each)

    times = _times(run, participation, at_least)
    return list(map(of, times, _patterns(run, participation, at_least)))


def _patterns(run: PlannedRun, participation: str, at_least: int) -> Sequence[tuple[int, ...] | None]:
    """The very rounds of each client, where a log says them; the first for one that is in none and yet counts."""
    log = run.algorithm.cohort.log(run.data.num_clients)
    if participation != "schedule" or log is None or run.terms.deployment is not None:
        return [None] * run.data.num_clients
    done = ([at for at in rounds if at < run.rounds] for rounds in log.patterns)
    return [tuple(rounds or range(min(at_least, run.rounds))) for rounds in done]
