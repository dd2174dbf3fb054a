"""Entries that noise the gradients of records, in every local step or once per round."""

from typing import Any, Unpack

import numpy as np

from fedjax_dp import errors
from fedjax_dp.algorithms.assemble import Common, add_update, assemble, bound_named, require_common
from fedjax_dp.algorithms.non_private import control_variates
from fedjax_dp.parts.record_privacy import OutputGaussian, RecordGaussian
from fedjax_dp.parts.server_optimizers import SECOND_MOMENTS, Server
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.schedules import SCHEDULES

_OF_DPNFL: dict[str, Any] = {"schedule": "inverse_sqrt", "l2": 1e-3}


def dpnfl(
    *, clip_norm: float, noise_multiplier: Any = 0.0, momentum: float = 0.0, **common: Unpack[Common]
) -> Algorithm:
    """DPNFL (dpnfl, Algorithm 1): every local step clips each record's gradient and adds noise to the batch.

    `noise_multiplier` z is the noise on the sum over the clip norm (dpnfl's sigma is z G / B); one number, or one per
    client. `calibrate` finds it for a budget; at its default of 0 there is no privacy, and the Guarantee says so.
    The server adds the update, or with `momentum` the running sum v <- momentum v + Delta.
    Defaults: schedule inverse_sqrt, l2 = 1e-3.
    """
    privatizer = RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return assemble(common, _OF_DPNFL, privatizer=privatizer, server=add_update(momentum=momentum))


def addpnfl(
    *,
    clip_norm: float,
    noise_multiplier: Any = 0.0,
    server_learning_rate: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.99,
    pi: float = 1e-3,
    nu_init: float | None = None,
    second_moment: str = "delta",
    **common: Unpack[Common],
) -> Algorithm:
    """AdDPNFL (dpnfl, Algorithm 2): DPNFL whose server moves by an Adam rule without bias correction.

    second_moment  "delta" squares the update (Algorithm 2), "mu" squares the first moment (dpnfl's displayed equation,
                   whose first steps are up to ten times larger);
    nu_init        where the second moment starts, pi^2 unless given (dpnfl: at least pi^2).
    Both rates follow `schedule`.
    """
    errors.require_choice("second_moment", second_moment, SECOND_MOMENTS)
    numbers = {"learning_rate": server_learning_rate, "b1": b1, "b2": b2, "pi": pi}
    numbers |= {} if nu_init is None else {"nu_init": nu_init}
    schedule = common.get("schedule", _OF_DPNFL["schedule"])
    errors.require_choice("schedule", schedule, SCHEDULES)
    server = Server(hyperparameters=numbers, factory=SECOND_MOMENTS[second_moment], schedule=SCHEDULES[schedule])
    privatizer = RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return assemble(common, _OF_DPNFL, privatizer=privatizer, server=server)


def dp_fedavg_local(*, clip_norm: float, noise_multiplier: Any = 0.0, **common: Unpack[Common]) -> Algorithm:
    """DPFedAvg at record level, the baseline of dpnfl: DPNFL's steps, updates averaged by records (`renorm`)."""
    privatizer = RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return assemble(common, {**_OF_DPNFL, "estimator": "renorm"}, privatizer=privatizer)


def dp_scaffold(
    *,
    clip_norm: float,
    noise_multiplier: Any = 0.0,
    controls: str = "update",
    warm_start: bool = False,
    server_learning_rate: float = 1.0,
    clipping: str = "record",
    **common: Unpack[Common],
) -> Algorithm:
    """DP-SCAFFOLD (Noble et al. 2022): SCAFFOLD with clipped and noised gradients; estimator `mean`, or `renorm`.

    warm_start  every client first releases tau noisy gradients at the first model;
    clipping    "record", or "tensor-median" as in the published code: each parameter tensor at the median norm of the
                batch, which is no privacy at all.
    """
    privatizer = RecordGaussian(
        clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound_named(clipping, ("record", "tensor-median"))
    )
    return assemble(
        common,
        {"estimator": "mean"},
        privatizer=privatizer,
        corrections=(control_variates(controls, warm_start),),
        server=add_update(server_learning_rate),
    )


def cpfed(
    *,
    clip_norm: float = 1.0,
    noise_multiplier: Any = 0.0,
    clipping: str = "record",
    gradient_bound: float | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """CPFed (cpfed): noisy local steps, updates averaged through a secure sum (`secure=False` leaves it out).

    clipping  cpfed assumes gradients below L = clip_norm without saying how: "record" clips them; "scale" multiplies
              them by clip_norm / gradient_bound, where no gradient may exceed `gradient_bound`; "none" is cpfed as
              printed, which bounds nothing and has no epsilon.
    Secure sums hide single uploads; the Guarantee counts the others' noise under view secure_sum.
    """
    privatizer = RecordGaussian(
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        bound=bound_named(clipping, ("record", "scale", "none"), gradient_bound),
    )
    return assemble(common, {"estimator": "mean", "secure": True}, privatizer=privatizer)


def dp_sgd(*, clip_norm: float = 1.0, noise_multiplier: Any = 0.0, **common: Unpack[Common]) -> Algorithm:
    """Distributed DP-SGD, the baseline of cpfed: one noisy step a round (`local_steps` must be 1), plain mean."""
    require_common(common)
    if common["local_steps"] != 1:
        raise errors.refuse("local_steps", common["local_steps"], "1 for dp_sgd", "use cpfed for more")
    privatizer = RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return assemble(common, {"estimator": "mean"}, privatizer=privatizer)


def acs_pldp(
    *,
    clip_norm: float = 1.0,
    noise_multiplier: Any = 0.0,
    sampling: str = "weighted",
    probabilities: Any = None,
    paid: Any = None,
    clipping: str = "record",
    **common: Unpack[Common],
) -> Algorithm:
    """ACS-PLDP-FL (acs_pldp): K draws with replacement, unbiased updates p_i / (K q_i), a budget of its own per client.

    noise_multiplier  one per client: `calibrate` with one epsilon per client finds them;
    sampling          q of the draws: "weighted" by shares, "uniform", or "optimal": `probabilities`, and what was
                      `paid` for them, from `optimal_probabilities`: acs_pldp's trade of gradient norms against budgets;
    clipping          "record", or "batch" as line 12 prints: the mean gradient is clipped, which takes B times the
                      noise for the same privacy.
    """
    errors.require_choice("sampling", sampling, ("weighted", "uniform", "optimal"))
    if (sampling == "optimal") != (probabilities is not None):
        raise errors.refuse(
            "probabilities",
            "none" if probabilities is None else "some",
            "given for sampling optimal, and only then",
            "find them with fedjax_dp.optimal_probabilities",
        )
    privatizer = RecordGaussian(
        clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound_named(clipping, ("record", "batch"))
    )
    drawn = {
        "probabilities": None if probabilities is None else np.asarray(probabilities),
        "equal": sampling == "uniform",
        "paid": paid,
    }
    return assemble(common, {"cohort": "md"}, privatizer=privatizer, drawn=drawn)


def dp_fedavg_output(
    *,
    clip_norm: float,
    noise_multiplier: Any = 0.0,
    noise_space: str = "model",
    noise_at: str = "last",
    clipping: str = "batch",
    **common: Unpack[Common],
) -> Algorithm:
    """DP-FedAvg of dp_fedavg_output: clipped steps, noise in the last; estimator `wor_model`, rates per step.

    noise_multiplier  z in units of the farthest that the clipped steps can go, G * sum of rates;
    noise_space       "model": that noise joins the uploaded model; "literal": it is multiplied by the learning rate,
                      as equation (13) prints, and does not give the epsilon it was computed for;
    noise_at          "last" step of a round, or "every" step;
    clipping          "batch" as in dp_fedavg_output, or "record".
    """
    errors.require_choice("noise_space", noise_space, ("model", "literal"))
    errors.require_choice("noise_at", noise_at, ("last", "every"))
    privatizer = OutputGaussian(
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        bound=bound_named(clipping, ("batch", "record")),
        literal=noise_space == "literal",
        every_step=noise_at == "every",
    )
    own = {"estimator": "wor_model", "schedule": "inverse_sqrt", "per_step": True}
    return assemble(common, own, privatizer=privatizer)
