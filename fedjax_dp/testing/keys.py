"""Is every draw fresh, and the same again for the same seed?"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Unit
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.inspection.trials import QUICK, keys_of
from fedjax_dp.inspection.verdict import CheckReport, recorded, require
from fedjax_dp.models import Model
from fedjax_dp.models.model import size_of
from fedjax_dp.parts.client_privacy import UpdatePrivatizer
from fedjax_dp.privacy.protection import noise_of, unit_of
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import numbers
from fedjax_dp.rounds.state import initial_state
from fedjax_dp.testing import instruments
from fedjax_dp.testing.checks import run_check, usable_model
from fedjax_dp.testing.instruments import TrialInputs
from fedjax_dp.testing.mutation import WrongProgram, wrong_program
from fedjax_dp.testing.wrong_programs import frozen_server_noise, reused_round_key

TRIALS, ROUNDS = 4, 12  # runs whose noise is compared, and rounds of each
CLOSE = 1e-3  # standard deviations within which two noise vectors count as one, in every coordinate, up to a factor
COORDINATES = 64  # compared


def _require_server_noise(algorithm: Algorithm) -> None:
    if algorithm.upload.unit is None or algorithm.upload.shared_noise:
        raise errors.refuse("upload", type(algorithm.upload).__name__, "one that the server noises")


@wrong_program("upload", "release", _require_server_noise)
def noise_every_four_rounds(right: UpdatePrivatizer, key: jax.Array, round_index: jax.Array, *rest: Any) -> Any:
    """The server draws its noise of every four rounds again in the next four."""
    return right.release(key, round_index % 4, *rest)


REUSED = (reused_round_key, frozen_server_noise, noise_every_four_rounds)


def check_keys(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    model: Model | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = REUSED,
    seed: int = 0,
) -> list[CheckReport]:
    """No noise vector is used twice; the same seed gives the same bits, another one others.

    Looked at: the noise of every (run, round, client, local step) among 4 runs, 12 rounds and up to 6 clients, or of
    every (run, round) for noise on whole clients, each against each other; one run traced and run twice. Batches and
    their keys are the matter of `check_sampling`.
    wrong    programs that the same check must reject, those that do not apply left out: the same noise every round, by
             clients or by the server, or every four rounds.
    Errors:  distinct noise is taken for equal with probability below 1e-12 a pair from 6 coordinates on, equal noise is
             always found. Models of fewer than 6 parameters are refused.
    Raises:  AssertionError; ConfigurationError.
    """
    model = usable_model(algorithm, data, model)
    if size_of(model) < 6:
        raise errors.refuse("model", f"{size_of(model)} parameters", "of at least 6, to tell noise apart")
    with recorded() as reports:
        _twice(algorithm, data, model, seed)
    noise = noise_of(algorithm)
    if noise is None or not np.any(np.asarray(noise) > 0):
        return reports  # there is nothing to be used again
    return reports + run_check(_examine_noise, algorithm, wrong, "this should not happen", data, model, seed)


def _examine_noise(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    rounds = ROUNDS
    if unit_of(algorithm) is Unit.CLIENT:
        size = size_of(model)
        watched = instruments.frozen_updates(changed(algorithm, server=instruments.additive_server()), data)
        setup = TrialInputs(keys_of(TRIALS, "runs", seed), params=jnp.zeros((TRIALS, size)))
        noise = np.diff(np.asarray(instruments.observe(watched, data, model, setup, rounds).params, float), axis=1)
        names = [f"run {r}, round {t}" for r, t in np.ndindex(noise.shape[:2])]
    else:
        algorithm, data = instruments.subsample_clients(instruments.without_server(algorithm), data)
        watched, setup = instruments.frozen_updates(algorithm, data), TrialInputs(keys_of(TRIALS, "runs", seed))
        loud, quiet = (
            np.asarray(instruments.observe(twin, data, model, setup, rounds).gradients, float)
            for twin in (watched, instruments.without_noise(watched))
        )
        noise = loud - quiet
        names = [f"run {r}, round {t}, client {i}, step {s}" for r, t, i, s in np.ndindex(noise.shape[:-1])]
    size = noise.shape[-1]
    rows = noise.reshape(-1, size)[:, np.unique(np.linspace(0, size - 1, min(size, COORDINATES)).astype(int))]
    used = np.flatnonzero(np.any(rows != 0, -1))
    rows = rows[used]
    scale = np.sqrt(np.mean(rows**2, -1, keepdims=True))
    rows = rows / np.where(rows[:, :1] < 0, -scale, scale)  # the same noise at another scale is the same noise
    # equal vectors are neighbours in the order of any coordinate, up to others that come as close there
    equal = None
    order = np.argsort(rows[:, 0], kind="stable")
    for gap in range(1, min(8, len(rows))):
        near = np.flatnonzero(np.abs(rows[order[gap:]] - rows[order[:-gap]]).max(-1) < CLOSE)
        if near.size:
            equal = sorted((int(used[order[near[0]]]), int(used[order[near[0] + gap]])))
            break
    repeated = "none" if equal is None else f"that of {names[equal[0]]} again at {names[equal[1]]}"
    require(
        equal is None,
        f"no noise is used twice, among {len(rows)} places",
        repeated,
        "none",
        "distinct noise is taken for equal with probability below 1e-12 a pair",
    )


def _twice(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    """Traces and runs a round twice, so that a draw made while tracing would show.

    All that a round hands on is compared: clients may change only what they and the server keep beside the parameters.
    """
    arguments = (numbers(algorithm), data, keys_of(2, "runs", seed))

    def advance(algorithm: Algorithm, data: FederatedData, key: jax.Array) -> tuple[Any, Any]:
        begun = jax.tree.map(jnp.asarray, initial_state(algorithm, model, data, key))
        return begun, run_round(algorithm, model, data, key, begun, Execution())[0]

    def trace() -> Any:
        return jax.jit(jax.vmap(advance, (None, None, 0)), compiler_options=QUICK).lower(*arguments)

    def changes(program: Any) -> np.ndarray:
        """(runs, numbers)"""
        begun, ended = map(jax.tree.leaves, program(*arguments))
        return np.concatenate([np.reshape(b - a, (2, -1)) for a, b in zip(begun, ended, strict=True)], 1)

    first, second = trace(), trace()
    run = first.compile()
    again = run if first.as_text() == second.as_text() else second.compile()
    one, other = changes(run), changes(again)
    differ = f"{np.mean(one != other):.1%} of numbers differ"
    require(np.array_equal(one, other, equal_nan=True), "the same seed gives the same bits", differ, "none")
    if noise_of(algorithm) is not None:
        same = np.array_equal(*one)
        require(not same, "another seed gives other bits", "the same" if same else "others", "others")
