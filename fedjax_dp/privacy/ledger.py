"""The events of a run: what of each client is released, read off the very value that is simulated."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Composed, Event, FullBatch, RandomParticipation, Unit, View
from fedjax_dp.accounting.events import distinct, each, repeated
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model, logistic_regression
from fedjax_dp.parts.client_privacy import Attendance
from fedjax_dp.parts.cohorts import SEEN, Members
from fedjax_dp.parts.facts import of_the_project, require_facts
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import draw_cohorts
from fedjax_dp.rounds.simulation import run_key

PARTICIPATION = ("schedule", "expected", "worst", "once", "law")


def unit_of(algorithm: Algorithm) -> Unit:
    """Whom the noise is meant to hide."""
    return algorithm.upload.unit or Unit.RECORD


def natural_view(algorithm: Algorithm) -> View:
    """The strongest adversary against whom the algorithm was made."""
    if unit_of(algorithm) is Unit.CLIENT and not algorithm.upload.shared_noise:
        return View.BROADCAST
    return View.SECURE_SUM if algorithm.transport.secret else View.UPLOADS


def view_of(algorithm: Algorithm, view: str | None) -> View:
    """The view asked for, or the natural one; refuses one that the algorithm does not hide from."""
    if view is None:
        return natural_view(algorithm)
    errors.require_choice("view", view, [known.value for known in View])
    if view == View.SECURE_SUM.value and not algorithm.transport.secret:
        raise errors.refuse(
            "view", view, "used with a secure sum: here the server sees every upload", "set secure, or use view uploads"
        )
    return View(view)


def unprotected(algorithm: Algorithm, view: View) -> str | None:
    """Why no epsilon exists, where none does."""
    if algorithm.cohort.gap:
        return algorithm.cohort.gap
    if algorithm.local.leak:
        return algorithm.local.leak
    part = algorithm.local.privatizer if unit_of(algorithm) is Unit.RECORD else algorithm.upload
    if noise_of(algorithm) is None and not getattr(part, "gap", None):
        return f"{type(part).__name__} has no noise_multiplier, so that nothing is known of its noise"
    if algorithm.aggregate.needs_loss:
        return "clients send the loss of the received model on their records as it is"
    if unit_of(algorithm) is Unit.RECORD:
        return algorithm.local.privatizer.gap
    if algorithm.upload.shared_noise:
        return "a single upload carries only a share of the noise" if view is View.UPLOADS else None
    if view in (View.UPLOADS, View.SECURE_SUM):
        return f"{view} sees clipped updates before the server adds noise; the noise protects against view broadcast"
    return None


def noise_of(algorithm: Algorithm) -> Any:
    """The noise multiplier: one number, or one per client."""
    part = algorithm.local.privatizer if unit_of(algorithm) is Unit.RECORD else algorithm.upload
    return getattr(part, "noise_multiplier", None)


def with_noise(algorithm: Algorithm, noise_multiplier: Any) -> Algorithm:
    """The same algorithm with other noise."""
    if unit_of(algorithm) is Unit.CLIENT:
        return changed(algorithm, upload=changed(algorithm.upload, noise_multiplier=noise_multiplier))
    privatizer = changed(algorithm.local.privatizer, noise_multiplier=noise_multiplier)
    return changed(algorithm, local=changed(algorithm.local, privatizer=privatizer))


def participations(algorithm: Algorithm, data: FederatedData, rounds: int, seed: int) -> np.ndarray:
    """How often each client trains in `rounds` rounds, for a seed; shape `(num_clients,)`.

    Cohorts depend on the seed and on public numbers, never on data, so the whole schedule can be known, and published,
    ahead. Whoever was drawn is counted, also if its message is lost or late: it may have been seen on its way.
    """
    ids, drawn = draw_cohorts(algorithm.cohort, run_key(seed), jnp.arange(rounds), jnp.asarray(data.shares))
    return np.bincount(np.asarray(ids)[np.asarray(drawn)], minlength=data.num_clients)


def ledger_of(
    algorithm: Algorithm,
    data: FederatedData,
    rounds: int,
    seed: int,
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    at_least: int = 0,
    model: Model | None = None,
) -> list[Event]:
    """The event of each client: what `view` receives that depends on it. See `privacy.guarantees` for the options.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    counted = counted_as(algorithm, participation)
    training = training_of(algorithm, data, rounds, seed, counted, view, colluders, at_least, model)
    paid = algorithm.cohort.paid
    if paid is None:
        return training
    released = {event: Composed((paid, event)) for event in distinct(training)}
    return each(training, released.__getitem__)


def counted_as(algorithm: Algorithm, participation: str) -> str:
    """How rounds are counted: in the worst case where cohorts follow what clients told of their records.

    Such a schedule is one of the things that were released, and neighbours would have had another one. What it could
    have been at most holds for all of them.
    """
    errors.require_choice("participation", participation, PARTICIPATION)
    return participation if algorithm.cohort.paid is None or participation == "once" else "worst"


def training_of(
    algorithm: Algorithm,
    data: FederatedData,
    rounds: int,
    seed: int,
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    at_least: int = 0,
    model: Model | None = None,
) -> list[Event]:
    """The same without what clients paid before for how they are drawn: what rounds release, given their cohorts."""
    errors.require_choice("participation", participation, PARTICIPATION)
    require_facts(algorithm)
    seen = view_of(algorithm, view)
    if colluders and seen is View.UPLOADS:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    if unit_of(algorithm) is Unit.CLIENT:
        return _of_clients(algorithm, data, rounds, seed, participation, seen, colluders, at_least, model)
    return _of_records(algorithm, data, rounds, seed, participation, seen, colluders, at_least)


def helpers_of(algorithm: Algorithm, data: FederatedData, view: View, colluders: int) -> int:
    """Members of a cohort that help the adversary. In view broadcast it is itself a client that knows its own part."""
    members = algorithm.cohort.members(data.num_clients)
    errors.require_integer("colluders", colluders, 0, members - 1, "at least one client of the cohort is honest")
    return max(colluders, 1) if view is View.BROADCAST else colluders


def honest_of(algorithm: Algorithm, data: FederatedData, view: View, helpers: int) -> int:
    """Members of a cohort of which the adversary sees no more than the sum.

    Where it is the server, the helpers' masks may cut honest members out of what is hidden together.
    Raises: ConfigurationError where one of them may stand alone though there are others.
    """
    members = algorithm.cohort.members(data.num_clients)
    others = max(members - helpers, 1)
    if view is not View.SECURE_SUM:
        return others
    hidden = algorithm.transport.hidden_among(members, helpers)
    if hidden < min(others, 2):
        raise errors.refuse(
            "colluders",
            helpers,
            f"so few that no honest client of {members} is left alone between them in a round",
            "give every client more neighbours (None masks every pair), or use view uploads",
        )
    return min(hidden, others)


def _times(
    algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, participation: str, at_least: int
) -> list[float]:
    """Rounds that each client is counted for."""
    if participation == "schedule":
        return np.maximum(participations(algorithm, data, rounds, seed), at_least).tolist()
    cohort = algorithm.cohort
    if participation in ("worst", "once"):
        return [(rounds if participation == "worst" else 1) * cohort.turns] * data.num_clients
    shares = np.asarray(data.shares, float)
    chance, draws = cohort.law(shares) if cohort.drawn else (cohort.base.rates(shares), 1)
    return [max(rounds * draws * float(rate), 1.0) for rate in np.broadcast_to(chance, (data.num_clients,))]


def _of_records(
    algorithm: Algorithm,
    data: FederatedData,
    rounds: int,
    seed: int,
    participation: str,
    view: View,
    colluders: int,
    at_least: int,
) -> list[Event]:
    local, num_clients = algorithm.local, data.num_clients
    sizes, noises = np.asarray(data.sizes).tolist(), local.privatizer.client_noise(num_clients)
    rates = last_rates(algorithm, data.largest, rounds)

    @functools.cache
    def round_of(noise: float, records: int, more: int) -> Event:
        return local.privatizer.event(
            noise, local.batches, records, local.batches.count(local.steps, records) + more, rates
        )

    @functools.cache  # a million clients are of a few kinds
    def own_round(noise: float, records: int, gain: float) -> Event:
        return round_of(noise, records, local.extra_gradients).scaled(float(np.sqrt(gain)))

    @functools.cache
    def own_rounds(kind: tuple[float, int, float], count: float) -> Event:
        return repeated(own_round(*kind), count)

    gains = np.asarray(noise_gains(algorithm, data, view, colluders, rounds)).tolist()
    kinds = list(zip(noises, sizes, gains, strict=True))
    before: list[Event] = [round_of(z, n, 0) for z, n, _ in kinds] if local.warm else []
    if participation == "law" and algorithm.cohort.drawn:
        chance, draws = algorithm.cohort.law(np.asarray(data.shares, float))
        later: list[Event] = [
            RandomParticipation(own_round(*kind), min(float(rate), 1.0), rounds * draws)
            for kind, rate in zip(kinds, np.broadcast_to(chance, (num_clients,)), strict=True)
        ]
    else:
        counted = "worst" if participation == "law" else participation
        times = _times(algorithm, data, rounds, seed, counted, at_least)
        later = [own_rounds(kind, count) for kind, count in zip(kinds, times, strict=True)]
    return [Composed((first, event)) for first, event in zip(before, later, strict=True)] if before else later


def last_rates(algorithm: Algorithm, largest: int, rounds: int) -> np.ndarray:
    """Learning rate of the last step of every round."""
    return np.asarray(jax.vmap(lambda t: algorithm.local.rates(t, largest)[-1])(jnp.arange(rounds)), float)


def noise_gains(algorithm: Algorithm, data: FederatedData, view: View, colluders: int, rounds: int = 1) -> np.ndarray:
    """How much more noise variance than its own each client's message is hidden under in `view`; `(num_clients,)`.

    After one plain local step, noises add up in the sum of a cohort. Client i's message has weight a_i, so relative to
    what its record can change the others bring (a_j z_j u_j)^2 to its own (a_i z_i u_i)^2, with u the unit of the bound
    (C / B where records are clipped); the cohort is taken to be the least noisy one that contains i. In view broadcast
    the adversary is a client that knows its own noise.
    Noise must span some steps of the ring, or rounding would swallow it: else nothing is gained.
    Nothing is gained with more local steps (`accounting.seen` says why), where cohorts vary in size or multiplicity, or
    where clients keep something: a control variate carries a client's own noise from one sum into the next alone; nor
    where a part that is not the project's own stands between the noise and the sum.
    """
    ones, local = np.ones(data.num_clients), algorithm.local
    cohort = algorithm.cohort
    helpers = helpers_of(algorithm, data, view, colluders)
    aggregate, privatizer = algorithm.aggregate, local.privatizer
    between = (
        local,
        local.batches,
        privatizer,
        *(part for _, part in local.parts),
        algorithm.upload,
        aggregate,
        getattr(aggregate, "weigh", aggregate),
        algorithm.transport,
    )
    one_step = local.batches.even and local.batches.count(local.steps, data.largest) == 1 and local.plain
    if getattr(privatizer, "literal", False):  # its noise shrinks by another rate, which the ring may swallow
        return ones
    if view is View.UPLOADS or not (cohort.fixed and one_step) or local.keeps:
        return ones
    if not all(map(of_the_project, between)):
        return ones
    others = honest_of(algorithm, data, view, helpers) - 1
    everyone = Members(jnp.arange(data.num_clients), jnp.ones(data.num_clients), *(jnp.zeros(data.num_clients),) * 2)
    shares = jnp.asarray(data.shares)
    weight = np.asarray(algorithm.aggregate.weights(everyone, shares, cohort.rates(shares)), float)
    unit = np.array([local.privatizer.unit(local.batches.divisor(n)) for n in np.asarray(data.sizes).tolist()])
    own = (weight * np.asarray(local.privatizer.client_noise(data.num_clients), float) * unit) ** 2
    rate = last_rates(algorithm, data.largest, rounds).min()
    clip = float(getattr(local.privatizer, "clip_norm", 0.0))
    coarse = np.sqrt(own.min()) * clip * rate < 4 * algorithm.transport.resolution
    if not np.all(own > 0) or coarse:  # noise that rounding to the ring swallows adds up to nothing
        return ones
    ranked = np.sort(own)
    least = np.concatenate([[0.0], np.cumsum(ranked)])
    among = own <= ranked[others - 1] if others else np.zeros(len(own), bool)  # a client that is one of the least noisy
    brought = np.where(among, least[min(others + 1, len(own))] - own, least[others])
    return 1 + brought / own


def _of_clients(
    algorithm: Algorithm,
    data: FederatedData,
    rounds: int,
    seed: int,
    participation: str,
    view: View,
    colluders: int,
    at_least: int,
    model: Model | None,
) -> list[Event]:
    upload: Any = algorithm.upload
    # who of those drawn does not answer, for reasons that know no data, pays no more than the others
    num_clients, cohort = data.num_clients, algorithm.cohort
    rounds, participation = (1, "worst") if participation == "once" else (rounds, participation)
    noise = float(np.float32(upload.noise_multiplier))
    known = helpers_of(algorithm, data, view, colluders)
    sampling, adjacency = cohort.hidden(num_clients, known) if upload.amplified else SEEN
    counted = "worst" if participation == "law" or not isinstance(sampling, FullBatch) else participation
    size = _parameters(model or logistic_regression(data.record_shape, data.classes))
    members = cohort.members(num_clients)
    honest = honest_of(algorithm, data, view, min(known, members - 1)) if upload.shared_noise else members

    @functools.cache
    def of(times: float) -> Event:
        return upload.event(
            noise,
            Attendance(
                sampling,
                adjacency,
                rounds,
                times,
                cohort.spacing(num_clients),
                members,
                honest,
                algorithm.transport.resolution,
                size,
            ),
        )

    return [of(times) for times in _times(algorithm, data, rounds, seed, counted, at_least)]


def _parameters(model: Model) -> int:
    """Of a model."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(jax.eval_shape(model.init, run_key(0))))
