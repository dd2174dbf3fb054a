"""Do the parts behind a client's steps bound and noise its update as they state?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Adjacency, FullBatch
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.trials import NOISE_SLACK, QUICK, SCALES, SLACK, TRIALS, compiled, drawn_cohorts, keys_of
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.aggregation import Aggregate
from fedjax_dp.parts.client_privacy import Attendance, ClientPrivacy, Sent, Upload, hides_clients
from fedjax_dp.parts.cohorts import SEEN, Members
from fedjax_dp.parts.local_training import extreme_rates
from fedjax_dp.parts.noise import correlated_source, source_of
from fedjax_dp.parts.transport import Transport
from fedjax_dp.pytrees import ravel, tensor_sizes
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.statistics.noise import examine_noise
from fedjax_dp.statistics.verdict import require

HORIZON = 32  # rounds that are looked at


def examine_upload(upload: ClientPrivacy, algorithm: Algorithm, data: FederatedData, model: Model, rounds: int) -> None:
    """Round after round: how long a message can be, what noise joins the mean, and that the mean passes as it is."""
    if upload.shared_noise or upload.extra:
        raise AssertionError("shares of noise, and numbers beside an update, are understood of the project's alone")
    params = model.init(run_key(0))
    sizes, size = tensor_sizes(params), ravel(params)[0].size
    cohort, shares = algorithm.cohort, jnp.asarray(data.shares)
    members, rates = cohort.members(data.num_clients), cohort.rates(shares)
    reach = jnp.float32(algorithm.aggregate.reach(shares, rates, members))
    expected = jnp.float32(members) if rates is None else jnp.sum(rates)
    told = _told(upload, algorithm, data, rounds, size) * float(reach)
    rng, horizon = np.random.default_rng(0), min(rounds, HORIZON)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (rng.normal(size=(TRIALS, size)) * np.resize(SCALES, TRIALS)[:, None]).astype(np.float32)
    updates = jnp.asarray(scaled)
    means = rng.normal(size=(horizon, size)).astype(np.float32)
    sent = Sent(members, algorithm.transport.resolution, algorithm.transport.limit(members))

    def run(key: jax.Array, means: jax.Array) -> Any:
        def step(state: Any, now: Any) -> Any:
            t, mean = now
            found, more = jax.vmap(lambda update: upload.message(key, update, sizes, state, sent))(updates)
            if jax.tree.leaves(more):
                raise AssertionError("numbers travel beside an update, though `extra` is 0")
            update, state = upload.release(key, t, mean, (), state, reach, expected)
            return state, (update - mean, jnp.sqrt(jnp.max(jnp.sum(found * found, -1))))

        return jax.lax.scan(step, upload.init(), (jnp.arange(horizon), means))[1]

    many = int(np.clip(2**21 // (horizon * size), 64, 2000))
    keys = keys_of(many, "release")
    found = compiled(lambda key: run(key, jnp.asarray(means)))(keys)
    noise, longest = (np.asarray(a, float) for a in found)
    quiet = np.asarray(compiled(lambda key: run(key, jnp.zeros_like(means))[0])(keys[:4]), float)
    longest = longest.max(0)
    require(np.isfinite(longest).all(), "a message", "one that is not finite", "finite: else a run would stop", "exact")
    scale = max(1.0, float(np.abs(quiet).max()))
    error = float(np.abs(noise[:4] - quiet).max()) / scale
    require(error < 1e-3, "the mean that joins its noise", f"changed by {error:.2g}", "as it arrived", "exact")
    wanted = told * longest
    require(np.all(wanted > 0), "the noise multiplier of its event", f"{told:g}", "above 0", "exact")
    std = np.sqrt(np.mean(noise**2, (0, 2)))
    least = float(np.min(std / wanted))
    slack = max(NOISE_SLACK, 6 / np.sqrt(2 * many * size))
    require(
        least >= 1 - slack,
        "standard deviation of the noise over what its event says",
        f"{least:.4g}",
        "1 or more",
        f"{slack:.0%} may be chance",
    )
    if upload.amplified or source_of(upload) is None:
        examine_noise(noise / std[:, None], [f"round {t}" for t in range(horizon)])


def _told(upload: ClientPrivacy, algorithm: Algorithm, data: FederatedData, rounds: int, size: int) -> float:
    """The largest noise multiplier that its events speak of, for all rounds, the samples and neighbours at hand."""
    cohort, count = algorithm.cohort, data.num_clients
    members, resolution = cohort.members(count), algorithm.transport.resolution
    noise = float(np.float32(upload.noise_multiplier))
    found = []
    for sampling, adjacency in {SEEN, cohort.hidden(count, 0) if upload.amplified else SEEN}:
        attendance = Attendance(
            sampling, adjacency, rounds, rounds, cohort.spacing(count), members, members, resolution, size
        )
        leaves = list(upload.event(noise, attendance).leaves())
        source = correlated_source(upload)
        joined = source is not None and facts.of_the_project(source)
        for step, _ in leaves:
            known = step.sampling in (sampling, FullBatch())
            require(known, "sampling in its event", str(step.sampling), f"{sampling} of the cohorts", "exact")
            alike = step.adjacency is adjacency
            require(joined or alike, "neighbours", step.adjacency.value, adjacency.value, "exact")
        counted, least = sum(step.count for step, _ in leaves), -(-rounds // cohort.spacing(count))
        require(joined or counted >= least, "noisy sums in its event", f"{counted}", f"the {least} rounds", "exact")
        found += [step.noise_multiplier for step, _ in leaves]
    return max(found, default=np.inf)


def _longest(upload: Upload) -> float:
    """The length of messages that transports and means are tried with."""
    return float(upload.clip_norm) if hides_clients(upload) else 1.0


def examine_transport(transport: Transport, algorithm: Algorithm, data: FederatedData, model: Model) -> None:
    """The sum that arrives is that of the messages, or its noise would be of another size than they."""
    members, size = algorithm.cohort.members(data.num_clients), 8
    clip = _longest(algorithm.upload)
    ids, here = jnp.arange(members, dtype=jnp.int32), jnp.ones(members, bool)

    def off(key: jax.Array) -> jax.Array:
        flat = clip * jax.random.uniform(key, (members, size), minval=-1.0)

        def send(i: jax.Array) -> Any:
            return transport.message(key, jnp.int32(0), i, ids, here, flat[i])[0]

        summed = jax.tree.map(lambda a: a.sum(0, dtype=a.dtype), jax.vmap(send)(ids))
        return jnp.abs(transport.total(key, jnp.int32(0), ids, here, here, summed) - flat.sum(0)).max()

    worst = float(np.max(np.asarray(compiled(off)(keys_of(TRIALS, "transport")))))
    allowed = members * (0.51 * transport.resolution + 1e-5 * clip)
    require(worst <= allowed, "what arrives less the sum of the messages", f"{worst:.3g}", f"{allowed:.3g}", "exact")


def examine_estimator(aggregate: Aggregate, algorithm: Algorithm, data: FederatedData, rounds: int, seed: int) -> None:
    """The mean is linear in the messages, and one moves it by no more than is stated, in cohorts of the run."""
    shares, local = jnp.asarray(data.shares), algorithm.local
    rates = algorithm.cohort.rates(shares)
    schedule = drawn_cohorts(algorithm.cohort, run_key(seed), min(rounds, 200), shares)
    positions, size = schedule.ids.shape[1], 8
    clip = _longest(algorithm.upload)
    reach = float(aggregate.reach(shares, rates, positions))
    least, most = extreme_rates(local, data.largest, rounds)
    added = algorithm.upload.amplified and algorithm.cohort.hidden(data.num_clients, 0)[1] is Adjacency.ADD_REMOVE

    def mean(here: Members, updates: jax.Array, rate: jax.Array, params: jax.Array) -> jax.Array:
        weights = aggregate.weights(here, shares, rates)
        each = jax.vmap(lambda w, u: aggregate.contribution(w, u, jnp.float32(1), rate))(weights, updates)
        total = jax.tree.map(lambda a: jnp.where(here.present.reshape(-1, *[1] * (a.ndim - 1)), a, 0).sum(0), each)
        return aggregate.combine(total, here, shares, rates, params)

    def looked(members: Members, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        names = ("one", "other", "length", "rate", "params")
        keys = {name: jax.random.fold_in(key, i) for i, name in enumerate(names)}
        one, other = (jax.random.normal(keys[name], (positions, size)) for name in names[:2])
        lengths = clip * 10.0 ** jax.random.uniform(keys["length"], (positions, 1), minval=-3.0, maxval=0.0)
        one, other = (lengths * a / jnp.linalg.norm(a, axis=-1, keepdims=True) for a in (one, other))
        rate = jax.random.uniform(keys["rate"], minval=least, maxval=most)
        zero = jnp.zeros(size)
        rest = mean(members, 0 * one, rate, zero)
        parts = mean(members, one, rate, zero) - rest + mean(members, other, rate, zero) - rest
        whole = mean(members, one + other, rate, jax.random.normal(keys["params"], (size,))) - rest
        bent = jnp.abs(whole - parts).max() / (clip * reach)
        ahead = clip * jnp.broadcast_to(zero.at[0].set(1.0), (positions, size))

        def moves(position: jax.Array) -> jax.Array:
            full = mean(members, ahead, rate, zero)
            turned = mean(members, ahead.at[position].set(-ahead[0]), rate, zero)
            left = members._replace(drawn=members.drawn.at[position].set(0.0))
            joined = jnp.linalg.norm(full - mean(left, ahead, rate, zero))
            lone = jnp.linalg.norm(turned - mean(left, ahead, rate, zero))
            return jnp.maximum(joined, lone) if added else jnp.linalg.norm(full - turned) / 2

        some = np.unique(np.linspace(0, positions - 1, min(positions, 24)).astype(np.int32))
        return bent, jnp.max(jax.vmap(moves)(jnp.asarray(some))) / clip

    drawn = jax.tree.map(jnp.asarray, schedule)
    look = jax.jit(jax.vmap(looked), compiler_options=QUICK)
    bent, moved = (float(np.max(np.asarray(a))) for a in look(drawn, keys_of(len(schedule.ids), "estimator")))
    told = "in cohorts of this run"
    require(bent <= 1e-2, "the mean of two sums of messages less their means", f"{bent:.3g} reaches", "0: linear", told)
    require(
        moved <= reach * (1 + SLACK),
        "what a client of norm 1 moves the mean by",
        f"{moved:.4g}",
        f"at most its reach {reach:.4g}",
        told,
    )
