"""The events of a run: what is released of each client, derived from the algorithm that is simulated.

`ReleaseTable` has the releases of the rounds for given cohorts. A row is a client: its kind, and its number of rounds
at each noise level. The release of one round for a kind and a level is computed once, for all clients of this kind.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

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
from fedjax_dp.parts.client_privacy import ClientPrivacy, Participation, amplified_sampling, released_noise
from fedjax_dp.parts.cohorts import SEEN
from fedjax_dp.parts.facts import of_the_project, own_methods, require_facts
from fedjax_dp.privacy.planned_run import PlannedRun, honest_of
from fedjax_dp.privacy.protection import unit_of
from fedjax_dp.privacy.terms import BY_NAME_ALONE
from fedjax_dp.pytrees import Part, field_of, tensor_sizes
from fedjax_dp.rounds.algorithm import Algorithm, mechanism_of
from fedjax_dp.rounds.simulation import run_key


def client_events(run: PlannedRun) -> list[Event]:
    """The event of each client: everything that depends on it and that the adversary of the run's view receives.

    For earlier phases the adversary is that of their own view.
    """
    return all_releases(run, training_events(run))


def all_releases(run: PlannedRun, events: list[Event], of_prior_runs: bool = True) -> list[Event]:
    """The events of all clients from those of the rounds, with releases before the first and those of prior runs."""
    for one in run.qualifiers:
        if of_prior_runs or one.in_run:
            events = one.releases(events)
    return events


def training_events(run: PlannedRun, at_least: int = 0) -> list[Event]:
    """The releases of the rounds alone, for given cohorts: without releases before the first round.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    require_facts(run.algorithm)
    colluders = run.terms.colluders
    if colluders and run.view is View.UPLOADS:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    table = ReleaseTable(run)
    if len(table.levels.factors) > 1 and table.participation in BY_NAME_ALONE:
        wanted = "schedule, law or worst where the noise differs from round to round"
        raise errors.refuse("participation", table.participation, wanted, "the rounds it counts are undefined")
    events = table.events(at_least)
    for one in run.qualifiers:
        events = one.rounds(events)
    return events


class ClientKind(NamedTuple):
    """Properties of clients with equal releases in a round; all clients are of one kind if noise protects clients."""

    noise_multiplier: float
    records: int = 0
    noise_amplification: float = 1.0


class Attendance(NamedTuple):
    """The rounds for which a client is counted."""

    counts: tuple[float, ...]  # of each noise level
    chance: float | None = None  # of taking part in each of them, by a public coin; None: it does
    pattern: tuple[int, ...] | None = None  # the very rounds, where a log says them

    def of(self, event: Event, count: float) -> Event:
        """The event of so many rounds, each with this event."""
        return repeated(event, count) if self.chance is None else RandomParticipation(event, self.chance, int(count))


class ReleaseTable:
    """The releases of a planned run under its privacy terms.

    participation  how rounds are counted, see `participation_mode`;
    rounds         number of rounds of each noise level.
    """

    def __init__(self, run: PlannedRun) -> None:
        self.run, self.levels = run, run.noise_levels
        self.participation = participation_mode(run)
        self.rounds = [1] if self.participation == "once" else self.levels.rounds
        self.by_client = unit_of(run.algorithm) is Unit.CLIENT

    def events(self, at_least: int = 0) -> list[Event]:
        """The event of each client in the rounds; at least `at_least` rounds, even if it is never drawn."""
        of_rounds = functools.cache(self._sums() if self.by_client else self._messages())
        return [of_rounds(*row) for row in zip(self.kinds(), self.attendance(at_least), strict=True)]

    def kinds(self) -> list[ClientKind]:
        """The kind of each client."""
        run, num_clients, upload = self.run, self.run.data.num_clients, cast(ClientPrivacy, self.run.algorithm.upload)
        if self.by_client:
            of_deployment = run.terms.deployment is not None
            noise = float(np.float32(upload.noise_multiplier)) if of_deployment else released_noise(upload)
            return [ClientKind(noise)] * num_clients
        noises, sizes = run.algorithm.local.privatizer.client_noise(num_clients), np.asarray(run.data.sizes).tolist()
        return [ClientKind(*one) for one in zip(noises, sizes, run.noise_amplification.tolist(), strict=True)]

    def attendance(self, at_least: int = 0) -> list[Attendance]:
        """The attendance of each client."""
        run, cohort, num_clients = self.run, self.run.algorithm.cohort, self.run.data.num_clients
        if run.terms.deployment is not None:  # one noise level, or all rounds of each: more than there can be
            apart = run.population.cohort.min_separation(run.population.num_clients)
            counts = (-(-run.rounds // apart),) if len(self.rounds) == 1 else tuple(self.rounds)
            return [Attendance(counts)] * num_clients
        if self.participation == "schedule":
            drawn = run.attendance.astype(float)
            drawn[:, 0] += np.maximum(at_least - drawn.sum(1), 0)  # with the least noise
            every = map(Attendance, map(tuple, drawn.tolist()))
            log = cohort.log(num_clients) if self.by_client else None
            if log is None:
                return list(every)
            within = (tuple(at for at in rounds if at < run.rounds) for rounds in log.patterns)
            first = tuple(range(min(at_least, run.rounds)))
            return [one._replace(pattern=rounds or first) for one, rounds in zip(every, within, strict=True)]
        if self.participation in ("worst", "once"):
            return [
                Attendance(tuple(float(rounds * cohort.max_participations) for rounds in self.rounds))
            ] * num_clients
        shares = np.asarray(run.data.shares, float)
        chance, draws = cohort.inclusion_probability(shares) if cohort.is_random else (cohort.base.rates(shares), 1)
        chances = np.broadcast_to(chance, (num_clients,)).tolist()
        if self.participation == "law":
            counts = tuple(rounds * draws for rounds in self.rounds)
            return [Attendance(counts, min(chance, 1.0)) for chance in chances]
        return [Attendance((max(run.rounds * draws * chance, 1.0),)) for chance in chances]

    def _messages(self) -> Callable[[ClientKind, Attendance], Event]:
        """What is released of a client whose local steps are noised."""
        local, levels = self.run.algorithm.local, self.levels
        # Who sees uploads, or what is made of them, sees nothing of what acts on a client's own model alone.
        whole = self.run.view is View.DEPLOYED
        additional = [one for one in local.additional_releases if one.sent or whole]
        rare = [one for one in additional if one.final or one.most is not None]  # nobody knows in which rounds
        # A client whose message is lost chooses again, and an adversary may have seen the message.
        cohort = self.run.algorithm.cohort
        answers = cohort.base is cohort and of_the_project(cohort)

        def rates() -> np.ndarray:
            return self.run.last_rates

        @functools.cache
        def steps(noise: float, records: int, more: int) -> Event:
            count = local.batches.count(local.steps, records) + more
            return local.privatizer.event(noise, local.batches, records, count, rates)

        @functools.cache
        def one_round(kind: ClientKind, factor: float) -> Event:
            noise, amplification = kind.noise_multiplier * factor, float(np.sqrt(kind.noise_amplification))
            own = steps(noise, kind.records, local.extra_gradients).scaled(amplification)
            others = [one.event(local, noise, kind.records, rates) for one in additional if one not in rare]
            return joined([own, *others] if local.sends_steps or whole else others)

        def of_rounds(kind: ClientKind, attendance: Attendance) -> Event:
            noise, records, _ = kind
            factors = levels.factors.astype(float).tolist()
            counted = [one for one in zip(factors, attendance.counts, strict=True) if one[1]] or [(factors[0], 0.0)]
            rounds = joined([attendance.of(one_round(kind, factor), count) for factor, count in counted])
            taken = sum(attendance.counts)
            seldom = [  # what comes last has the noise of round 0, where its schedule begins again
                repeated(
                    one.event(local, noise if one.final else noise * levels.least, records, rates),
                    one.times(taken) if one.final or answers else taken,
                )
                for one in rare
            ]
            event = Composed((rounds, *seldom)) if seldom else rounds
            return Composed((steps(noise, records, 0), event)) if local.initial_release else event

        return of_rounds

    def _sums(self) -> Callable[[ClientKind, Attendance], Event]:
        """What is released of a client that sums of updates hide."""
        run, upload, transport = self.run, self.run.algorithm.upload, self.run.algorithm.transport
        # who of those drawn does not answer, for reasons that know no data, pays no more than the others
        cohort, num_clients = run.population
        sampling, adjacency = client_sampling(run)
        of_pass = 1 if isinstance(sampling, FullBatch) else cohort.rounds_per_pass(num_clients)
        size = message_size(run)
        members = cohort.capacity(num_clients)
        shared = upload.shared_noise
        honest = honest_of(run.algorithm, run.data, run.view, min(run.helpers, members - 1)) if shared else members
        apart = cohort.min_separation(num_clients)

        def of_rounds(kind: ClientKind, attendance: Attendance) -> Event:
            def at_level(factor: Any, rounds: int, times: float) -> Event:
                sums = -(-rounds // of_pass) * sampling.steps_per_epoch
                place = (apart, members, honest, transport.resolution, size, attendance.pattern)
                participation = Participation(sampling, adjacency, sums, times, *place)
                return upload.event(kind.noise_multiplier * float(factor), participation)

            return joined(list(map(at_level, self.levels.factors, self.rounds, attendance.counts)))

        return of_rounds


def message_size(run: PlannedRun) -> int:
    """Number of parameters in an update that a client sends."""
    tensors = tensor_sizes(jax.eval_shape(run.model.init, run_key(0)))
    return Part(tensors, run.algorithm.local.sent_tensors(run.model)).size


def participation_mode(run: PlannedRun) -> str:
    """How rounds are counted: by the privacy terms, or all rounds if nothing less is proved.

    Cohorts that depend on messages about records are releases, and neighbours would have other cohorts: so all rounds
    count. Hidden cohorts amplify every round instead. A law is known for records, and for cohorts that are drawn.
    """
    wanted, cohort, by_client = run.terms.participation, run.algorithm.cohort, unit_of(run.algorithm) is Unit.CLIENT
    if run.terms.deployment is not None:  # whose schedule nobody knows
        return "worst"
    if wanted == "once":
        return wanted
    together = run.bound.clients > 1  # of whose clients one draw decides
    lawless = wanted == "law" and (by_client or together or not cohort.is_random)
    hidden = by_client and not isinstance(_hidden_sampling(run)[0], FullBatch)
    return "worst" if cohort.setup_event is not None or lawless or hidden else wanted


def client_sampling(run: PlannedRun) -> tuple[Sampling, Adjacency]:
    """The sampling of clients from the adversary's point of view, under the adjacency of the terms.

    Raises: ConfigurationError for an adjacency that the sampling does not have.
    """
    sampling, adjacency = _hidden_sampling(run)
    if run.terms.adjacency is not None:
        if not isinstance(sampling, FullBatch):
            wanted = f"left out where clients are hidden by {sampling}"
            raise errors.refuse("adjacency", run.terms.adjacency, wanted, f"its neighbours are {adjacency.value}")
        adjacency = Adjacency(run.terms.adjacency)
    if adjacency is Adjacency.ZERO_OUT and run.algorithm.upload.extra:
        wanted, remedy = "another where clients also send a bit on their norm", "a client of zeros sends one too"
        raise errors.refuse("adjacency", adjacency.value, wanted, remedy)
    return sampling, adjacency


def _hidden_sampling(run: PlannedRun) -> tuple[Sampling, Adjacency]:
    """The sampling that hides clients; `SEEN` if none does.

    Client state reveals later how often a client was drawn. If each client draws independently, this costs nothing: all
    other draws and states may be known (proof in docs/epsilon.md). If the draw of one client affects others, no
    amplification is proved, and the cohorts count as public; nor is it for a pass of rounds with different noise.
    """
    cohort, num_clients = run.population
    of_one_noise = (
        cohort.rounds_per_pass(num_clients) == 1 or field_of(mechanism_of(run.algorithm), "noise_by_round") is None
    )
    if not of_one_noise:
        return SEEN
    if run.algorithm.transport.secret and run.helpers:  # masks are agreed on with named members
        return SEEN
    sampling, adjacency = amplified_sampling(run.algorithm.upload, cohort, num_clients, run.rounds, run.helpers)
    return (sampling, adjacency) if isinstance(sampling, Poisson) or not remembers(run.algorithm) else SEEN


def remembers(algorithm: Algorithm) -> bool:
    """Whether client state may act on later messages; it is assumed for user-defined parts."""
    local = algorithm.local
    parts = (local, *(part for _, part in local.parts))
    own = own_methods(parts, "init")
    if not own and all(map(of_the_project, parts)):
        return local.state_affects_messages
    own_models = any(slot == "client models" and not of_the_project(part) for slot, part in local.parts)
    return local.has_client_state or own_models or bool(own)
