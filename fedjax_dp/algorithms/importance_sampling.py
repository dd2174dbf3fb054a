"""Client sampling of acs_pldp: probabilities from the clients' gradient norms and personal privacy budgets."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors, gradients, prng
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, personal
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model, usual_model
from fedjax_dp.models.origins import draw_seed
from fedjax_dp.parts.batches import Batch, FixedBatches
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import check_part, ravel
from fedjax_dp.rounds.simulation import run_key


class Sampling(NamedTuple):
    """The probabilities of one draw, and the privacy that finding them costs."""

    probabilities: np.ndarray  # (num_clients,)
    norms: np.ndarray  # G_i, as the server received them
    setup_event: GaussianSteps | None  # each client's release; None: norms without noise, which no epsilon covers


def optimal_probabilities(
    data: FederatedData,
    *,
    epsilons: float | Sequence[float] | np.ndarray,
    delta: float,
    rounds: int,
    draws: int,
    batch_size: int,
    local_steps: int,
    learning_rate: float,
    strength: float = 1.0,
    norm_noise: float = 0.0,
    norm_clip: float = 1.0,
    seed: int = 0,
    model: Model | None = None,
) -> Sampling:
    """acs_pldp's optimal q: min sum p^2 G^2 / q + strength p^2 B^2 / sqrt(q), q at most 1/K (`accounting.personal`).

    Every client first takes the local steps of two rounds, which nobody sees, and then sends one number: the mean norm
    G_i of its batch gradients.
    norm_noise  0: as in acs_pldp, clients send the norms without noise; no epsilon covers that, and the Guarantee of
                an algorithm with these probabilities says so. z > 0: each norm is clipped to `norm_clip`, and the mean
                gets noise of standard deviation z * norm_clip: one Gaussian release per client, which is accounted.
    """
    errors.require_not_negative("norm_noise", norm_noise)
    errors.require_positive("norm_clip", norm_clip)
    model = model or usual_model(data)
    batches = FixedBatches(size=batch_size)
    check_part(batches, np.asarray(data.sizes))
    private = norm_noise > 0
    norms = np.asarray(
        _norms(
            data,
            run_key(draw_seed(seed, model)),
            jnp.float32(learning_rate),
            jnp.float32(norm_clip if private else jnp.inf),
            jnp.float32(norm_noise * norm_clip),
            model=model,
            batches=batches,
            steps=2 * local_steps,
        ),
        float,
    )
    norms = np.maximum(norms, 1e-3 * (norm_clip if private else norms.max()))
    budgets = np.asarray(epsilons, float)
    if budgets.shape not in ((), (data.num_clients,)):
        raise errors.refuse("epsilons", f"shape {budgets.shape}", f"one budget or {data.num_clients}, one per client")
    budgets = np.broadcast_to(budgets, (data.num_clients,))
    rates = np.minimum(batch_size / np.asarray(data.sizes, float), 1)
    terms = personal.noise_terms(budgets, rates, draws, rounds, delta)
    probabilities = personal.sampling_probabilities(
        np.asarray(data.shares, float), norms, terms, draws, strength=strength
    )
    # The mean lies in [0, norm_clip], so replacing a record moves it by at most norm_clip: half a replace-one 2C.
    setup_event = GaussianSteps(2 * norm_noise, FullBatch(), Adjacency.REPLACE_ONE, 1) if private else None
    return Sampling(probabilities, norms, setup_event)


def _norms(
    data: FederatedData,
    key: jax.Array,
    rate: jax.Array,
    clip: jax.Array,
    std: jax.Array,
    *,
    model: Model,
    batches: FixedBatches,
    steps: int,
) -> jax.Array:
    """Mean norm of each client's batch gradients along its own local steps `(num_clients,)`."""
    stored = jax.tree.map(jnp.asarray, data)
    start, unravel = ravel(model.init(role_key(key, "init")))

    def mean_norm(i: jax.Array) -> jax.Array:
        client_key = jax.random.fold_in(role_key(key, "norms"), i)
        client = stored.client(i)
        sampled = batches.sample(role_key(client_key, "batch"), client.size, steps, data.largest, data.smallest)

        def step(params: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
            x, y = stored.gather(client, batch.positions)
            gradient = ravel(gradients.plain_sum(model, unravel(params), x, y, batch.mask).total)[0] / batch.divisor
            norm = jnp.linalg.norm(gradient)
            return params - rate * gradient, jnp.where(jnp.isfinite(norm), jnp.minimum(norm, clip), clip)

        norms = lax.scan(step, start, sampled)[1]
        return norms.mean() + std * prng.normals(role_key(client_key, "noise"), 0, 1)[0]

    return jax.lax.map(mean_norm, jnp.arange(data.num_clients))
