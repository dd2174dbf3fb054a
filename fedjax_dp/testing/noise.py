"""The law of the noise: is it the one that the accountants count?"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Unit
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.noise_law import examine_noise
from fedjax_dp.inspection.schedule_points import whitened
from fedjax_dp.inspection.trials import keys_of
from fedjax_dp.inspection.verdict import CheckReport, require
from fedjax_dp.models import Model
from fedjax_dp.models.model import size_of
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.privacy.protection import unit_of
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing import instruments
from fedjax_dp.testing.checks import run_check, usable_model
from fedjax_dp.testing.instruments import TrialInputs
from fedjax_dp.testing.mutation import WrongProgram
from fedjax_dp.testing.wrong_programs import faint_noise

DRAWS = 20_000  # numbers; 12,743 miss a standard deviation off by 5% once in a thousand times
PAIRED = 1_500  # numbers that each pair of places is compared by
SMOOTH = 50  # steps of the ring in a standard deviation, from which integer noise is compared with a normal law


def check_noise(
    subject: Algorithm | Callable[[jax.Array], Any],
    data: FederatedData | None = None,
    *,
    model: Model | None = None,
    std: float | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = faint_noise,
    seed: int = 0,
    draws: int = DRAWS,
) -> list[CheckReport]:
    """The noise is white, of the law that its event states (the normal one), and of its standard deviation.

    subject  an algorithm with its data: the difference of two runs of the same keys, with its noise and with none, is
             divided by (noise multiplier of the ledger's event) x (what a member can change), for all local steps of
             two rounds of up to 6 clients, or, for noise on whole clients, for three moves of the server. Correlated
             noise is whitened first. Or a function from a key to a noise vector, with the `std` it should have;
    wrong    programs that the same check must reject; by default noise 5% too small;
    draws    least number of noise values that are drawn.
    Looked at: the variance (chi-square, exact), of all and by place and by coordinate; means; correlations between
    places (client, round, step), between coordinates, and from run to run; the law (Kolmogorov-Smirnov, kurtosis).
    Errors:  each assertion fails for right noise with probability at most 1e-6 (Bonferroni over what it looks at); with
             the default draws a standard deviation off by 5% passes with probability below 0.001.
    Not covered: the noise on the bits of an adaptive clip norm; one more gradient that a control variate releases.
    Raises:  AssertionError; ConfigurationError for an algorithm without an epsilon, or a function without std.
    """
    errors.require_count("draws", draws)
    if isinstance(subject, Algorithm):
        model = usable_model(subject, data, model)
        instruments.require_private(subject)
        return run_check(_of_algorithm, subject, wrong, "raise draws", data, model, seed, draws)
    if std is None:
        raise errors.refuse("std", None, "given with a function")
    errors.require_positive("std", std)
    wrong = _faint if wrong is faint_noise else wrong
    return run_check(_of_function, subject, wrong, "raise draws", std, seed, draws)


def _faint(draw: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
    def faint_noise(key: jax.Array) -> Any:
        return jax.tree.map(lambda a: 0.95 * a, draw(key))

    return faint_noise


_faint.__name__ = "faint_noise"


def _of_function(draw: Callable[[jax.Array], Any], std: float, seed: int, draws: int) -> None:
    def flat(key: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(draw(key))])

    size = jax.eval_shape(flat, keys_of(1, "runs", seed)[0]).size
    trials = max(math.ceil(draws / size), 32)
    noise = np.asarray(jax.jit(jax.vmap(flat))(keys_of(trials, "runs", seed)), float) / std
    examine_noise(noise[:, None], ["the vector"])


def _of_algorithm(algorithm: Algorithm, data: FederatedData, model: Model, seed: int, draws: int) -> None:
    if unit_of(algorithm) is Unit.CLIENT:
        _of_server(algorithm, data, model, seed, draws)
        return
    rounds = 2
    algorithm, data = instruments.subsample_clients(instruments.without_server(algorithm), data)
    claim = instruments.claim_of(algorithm, data, rounds, model)
    wanted = instruments.step_units(algorithm, data, rounds) * claim.noise[:, None]
    size = size_of(model)
    places = [(t, i, s) for t, i, s in np.ndindex(wanted.shape) if wanted[t, i, s] > 0]
    trials = max(math.ceil(draws / (size * len(places))), math.ceil(PAIRED / size), 8)
    trials *= 1 if claim.release.normal else 2  # of another law two make a normal one
    watched = instruments.frozen_updates(algorithm, data)
    setup = TrialInputs(keys_of(trials, "runs", seed))
    loud = instruments.observe(watched, data, model, setup, rounds).gradients
    noise = (
        np.asarray(loud, float)
        - instruments.observe(instruments.without_noise(watched), data, model, setup, rounds).gradients
    )
    source = correlated_source(algorithm.local.privatizer)
    if source is not None:
        noise = whitened(noise, np.asarray(source.bands, float))
    rows = np.stack([noise[:, t, i, s] / wanted[t, i, s] for t, i, s in places], 1)
    if not claim.release.normal:
        differences = (rows[: trials // 2] - rows[trials // 2 : trials // 2 * 2]) / math.sqrt(2)
        rows = claim.release.as_normal(differences / claim.release.deviation)
    examine_noise(rows, [f"round {t}, client {i}, step {s}" for t, i, s in places])
    silent = noise[:, wanted == 0]
    largest = np.abs(silent).max(initial=0)
    require(not np.any(silent), "no noise where none is counted", f"up to {largest:.3g}", "0")


def _of_server(algorithm: Algorithm, data: FederatedData, model: Model, seed: int, draws: int) -> None:
    """Three moves of a server whose clients do not move."""
    rounds, upload = 3, algorithm.upload
    clip = instruments.clip_of(algorithm)
    claim = instruments.claim_of(algorithm, data, rounds, model)
    size = size_of(model)
    trials = max(math.ceil(draws / (size * rounds)), math.ceil(PAIRED / size), 8)
    watched = instruments.frozen_updates(changed(algorithm, server=instruments.additive_server()), data)
    setup = TrialInputs(keys_of(trials, "runs", seed), params=jnp.zeros((trials, size)))
    seen = instruments.observe(watched, data, model, setup, rounds)
    noise = np.diff(np.asarray(seen.params, float), axis=1)
    learnt = getattr(seen.upload, "clip_norm", None)  # (trials, rounds)
    multiplier: Any = instruments.stated_multiplier(algorithm, claim)[0]
    unit = instruments.mean_unit(algorithm, data, clip if learnt is None else learnt[..., None])
    source = correlated_source(upload)
    if source is not None:
        noise = whitened(noise, np.asarray(source.bands, float))
    ring = claim.resolution and clip * multiplier / claim.resolution
    examine_noise(noise / (multiplier * unit), [f"round {t}" for t in range(rounds)], not 0 < ring < SMOOTH)
