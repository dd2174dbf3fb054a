"""The events of a run: what of each client is released, read off the very value that is simulated."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Composed, Event, FullBatch, RandomParticipation, Unit, View
from fedjax_dp.accounting.events import Poisson, SkellamSums, WithoutReplacement, repeated
from fedjax_dp.algorithm import Algorithm, draw_cohorts
from fedjax_dp.bound import ClipBatch
from fedjax_dp.cohort import CyclicCohort, Members, PoissonCohort, UniformCohort
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model, logistic_regression
from fedjax_dp.noise import BandedNoise, priced
from fedjax_dp.simulation import run_key
from fedjax_dp.upload import ClientSkellam, PlainUpload
from fedjax_dp.values import changed

PARTICIPATION = ("schedule", "expected", "worst", "once", "law")


def unit_of(algorithm: Algorithm) -> Unit:
    """Whom the noise is meant to hide."""
    return Unit.RECORD if isinstance(algorithm.upload, PlainUpload) else Unit.CLIENT


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
    for correction in algorithm.local.corrections:
        if correction.leak:
            return correction.leak
    if algorithm.aggregate.needs_loss:
        return "clients send the loss of the received model on their records as it is"
    if unit_of(algorithm) is Unit.RECORD:
        return algorithm.local.privatizer.gap
    if algorithm.upload.shared_noise:
        return "a single upload carries only a share of the noise" if view is View.UPLOADS else None
    if view in (View.UPLOADS, View.SECURE_SUM):
        return f"{view} sees clipped updates before the server adds noise; the noise protects against view broadcast"
    return None


def paid_for(algorithm: Algorithm) -> Any:
    """The event by which clients told what the cohort's probabilities are made of, if it is known."""
    return getattr(algorithm.cohort.base, "paid", None)


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
    algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, participation: str = "schedule",
    view: str | None = None, colluders: int = 0, at_least: int = 0, model: Model | None = None,
) -> list[Event]:  # fmt: skip
    """The event of each client: what `view` receives that depends on it. See `privacy.guarantee` for the options.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    errors.require_choice("participation", participation, PARTICIPATION)
    seen = view_of(algorithm, view)
    if colluders and seen is View.UPLOADS:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    if unit_of(algorithm) is Unit.CLIENT:
        return _of_clients(algorithm, data, rounds, seed, participation, seen, colluders, at_least, model)
    return _of_records(algorithm, data, rounds, seed, participation, seen, colluders, at_least)


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
    algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, participation: str, view: View, colluders: int,
    at_least: int,
) -> list[Event]:  # fmt: skip
    local, num_clients = algorithm.local, data.num_clients
    sizes, noises = np.asarray(data.sizes).tolist(), local.privatizer.client_noise(num_clients)
    rates = last_rates(algorithm, data.largest, rounds)
    extra = sum(correction.extra_gradients for correction in local.corrections)

    @functools.cache
    def round_of(noise: float, records: int, more: int) -> Event:
        return local.privatizer.event(noise, local.batches, records, local.batches.count(local.steps, records) + more,
                                      rates)  # fmt: skip

    @functools.cache  # a million clients are of a few kinds
    def own_round(noise: float, records: int, gain: float) -> Event:
        return round_of(noise, records, extra).scaled(float(np.sqrt(gain)))

    @functools.cache
    def own_rounds(kind: tuple[float, int, float], count: float) -> Event:
        return repeated(own_round(*kind), count)

    gains = np.asarray(noise_gains(algorithm, data, view, colluders, rounds)).tolist()
    kinds = list(zip(noises, sizes, gains, strict=True))
    before: list[Event] = [round_of(z, n, 0) for z, n, _ in kinds] if any(c.warm for c in local.corrections) else []
    paid = paid_for(algorithm)
    if paid is not None:
        before = [Composed((paid, first)) for first in before] or [paid] * num_clients
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
    where clients keep something: a control variate carries a client's own noise from one sum into the next alone.
    """
    ones, local = np.ones(data.num_clients), algorithm.local
    cohort, members = algorithm.cohort, algorithm.cohort.members(data.num_clients)
    errors.require_integer("colluders", colluders, 0, members - 1, "at least one client of the cohort is honest")
    one_step = local.batches.count(local.steps, data.largest) == 1 and local.rule.plain
    if view is View.UPLOADS or not (cohort.fixed and one_step) or any(c.keeps for c in local.corrections):
        return ones
    helpers = max(colluders, 1) if view is View.BROADCAST else colluders
    others = max(members - helpers, 1) - 1
    everyone = Members(jnp.arange(data.num_clients), jnp.ones(data.num_clients), *(jnp.zeros(data.num_clients),) * 2)
    shares = jnp.asarray(data.shares)
    weight = np.asarray(algorithm.aggregate.weights(everyone, shares, cohort.rates(shares)), float)
    by_record = not isinstance(getattr(local.privatizer, "bound", None), ClipBatch)
    batch = np.array([getattr(local.batches, "size", n) if by_record else 1 for n in np.asarray(data.sizes)], float)
    own = (weight * np.asarray(local.privatizer.client_noise(data.num_clients), float) / batch) ** 2
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
    algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, participation: str, view: View, colluders: int,
    at_least: int, model: Model | None,
) -> list[Event]:  # fmt: skip
    upload: Any = algorithm.upload
    # who of those drawn does not answer, for reasons that know no data, pays no more than the others
    num_clients, cohort = data.num_clients, algorithm.cohort.base
    rounds, participation = (1, "worst") if participation == "once" else (rounds, participation)
    noise = float(np.float32(upload.noise_multiplier))
    members = cohort.members(num_clients)
    errors.require_integer("colluders", colluders, 0, members - 1, "at least one client of the cohort is honest")
    # in view broadcast the adversary is a client that knows its own share and when it takes part itself
    known = max(colluders, 1) if view is View.BROADCAST else colluders
    one: Event
    if isinstance(upload, ClientSkellam):
        helpers = min(known, members - 1)
        one = skellam_round(upload, noise, algorithm.transport.resolution, members, helpers, model, data)
    elif isinstance(upload.source, BandedNoise):
        separation = num_clients // members if isinstance(cohort, CyclicCohort) else 1
        counted = "worst" if participation == "law" else participation
        times = _times(algorithm, data, rounds, seed, counted, at_least)
        most = -(-rounds // separation)
        return [
            priced(upload.source, noise, FullBatch(), Adjacency.REPLACE_ONE, rounds, min(int(np.ceil(k)), most),
                   separation, Unit.CLIENT)
            for k in times
        ]  # fmt: skip
    elif isinstance(cohort, PoissonCohort):
        steps = priced(
            upload.source, noise, Poisson(cohort.size / num_clients), Adjacency.ADD_REMOVE, rounds, rounds, 1,
            Unit.CLIENT,
        )  # fmt: skip
        return [steps] * num_clients
    elif isinstance(cohort, UniformCohort):
        others = max(num_clients - known, 1)
        sampling = WithoutReplacement(min(cohort.size, others), others)
        return [
            priced(upload.source, noise, sampling, Adjacency.REPLACE_ONE, rounds, rounds, 1, Unit.CLIENT)
        ] * num_clients
    else:
        one = priced(upload.source, noise, FullBatch(), Adjacency.REPLACE_ONE, 1, 1, 1, Unit.CLIENT)
    counted = "worst" if participation == "law" else participation
    return [repeated(one, k) for k in _times(algorithm, data, rounds, seed, counted, at_least)]


def skellam_round(
    upload: ClientSkellam, noise: float, resolution: float, members: int, colluders: int, model: Model | None,
    data: FederatedData,
) -> SkellamSums:  # fmt: skip
    """One secure sum with the honest clients' shares of the noise, in units of the ring.

    Rounding to the ring adds at most 1/2 to each of d coordinates, so norms grow by sqrt(d)/2.
    """
    model = model or logistic_regression(data.record_shape, data.classes)
    shapes = jax.eval_shape(model.init, run_key(0))
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    clip = float(upload.clip_norm) / resolution
    l2 = clip + np.sqrt(size) / 2
    variance = (noise * clip) ** 2 * (members - colluders) / members
    return SkellamSums(
        variance=variance, l2=l2, l1=min(np.sqrt(size) * l2, l2 * l2), adjacency=Adjacency.REPLACE_ONE, count=1,
        unit=Unit.CLIENT,
    )  # fmt: skip
