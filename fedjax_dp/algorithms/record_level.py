"""Entries that add noise to clipped record gradients, in every local step or once per round."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np

from fedjax_dp import errors, parts
from fedjax_dp.algorithms.assemble import ClipNorm, Common, NoiseMultiplier, assemble, bound_of
from fedjax_dp.algorithms.entry import PrepareContext, entry
from fedjax_dp.options import about

if TYPE_CHECKING:
    from fedjax_dp.rounds.algorithm import Algorithm

SECOND_MOMENTS = ("delta", "mu", "unbiased")  # as in `parts`, which loads JAX
_DPNFL = {"schedule": "inverse_sqrt", "l2": 1e-3}
_ONE_STEP = {"local_steps": 1, "rounds": 100}


@entry("Noble et al. 2022, DP-FedAvg")
def dp_fedavg_record(
    *, clip_norm: ClipNorm, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]
) -> "Algorithm":
    """DP-FedAvg at record level (Noble, Bellet, Dieuleveut 2022): DP-SGD in every local step, a mean of the updates.

    It has no settings of any paper: the learning rate is constant, and there is no penalty.
    """
    return assemble(common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier))


@entry("dpnfl, Algorithm 1", defaults=_DPNFL)
def dpnfl(*, clip_norm: ClipNorm, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]) -> "Algorithm":
    """DPNFL (dpnfl, Algorithm 1): every local step clips each record's gradient and adds noise to the batch.

    `noise_multiplier` z is the noise on the sum divided by the clip norm (the paper's sigma is z G / B); one number, or
    one per client. `calibrate` finds it for a budget; its default of 0 gives no privacy, and the Guarantee says so.
    Defaults: schedule inverse_sqrt, l2 = 1e-3.
    """
    return assemble(common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier))


@entry("dpnfl, Algorithm 2", defaults=_DPNFL | {"server": "adam"}, fixes=("server",))
def addpnfl(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    nu_init: Annotated[float | None, about("", group="server", default="pi^2")] = None,
    second_moment: Annotated[str, about("", group="server", choices=SECOND_MOMENTS)] = "delta",
    **common: Unpack[Common],
) -> "Algorithm":
    """AdDPNFL (dpnfl, Algorithm 2): DPNFL with server optimizer Adam, without bias correction.

    Both learning rates follow `schedule`.

    Args:
        second_moment: what the second moment averages; "delta": the squared update (Algorithm 2); "mu": the squared
            first moment (the displayed equation, with first steps up to ten times larger); "unbiased": the squared
            update minus the variance of its noise (DP-AdamBC), with steps bounded by pi
        nu_init: initial second moment (the paper: at least pi^2)
    """
    from fedjax_dp.pytrees import replace  # loads JAX

    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    start = {} if nu_init is None else {"nu_init": nu_init}

    def with_second_moment(server: parts.Server, schedule: Mapping[str, Any]) -> parts.Server:
        numbers = server.hyperparameters | start
        return replace(server, hyperparameters=numbers, factory=parts.SECOND_MOMENTS[second_moment], **schedule)

    return assemble(common, privatizer=privatizer, of_server=with_second_moment)


@entry("dpnfl, baseline", defaults=_DPNFL | {"estimator": "renorm"})
def dp_fedavg_local(
    *, clip_norm: ClipNorm, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]
) -> "Algorithm":
    """DPFedAvg at record level, the baseline of dpnfl: DPNFL's local steps, updates weighted by records (`renorm`)."""
    return assemble(common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier))


@entry("Noble et al. 2022; dpnfl, baseline", defaults={"estimator": "mean"})
def dp_scaffold(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    clipping: Annotated[Literal["record", "tensor-median"], about("", group="privacy")] = "record",
    controls: Literal["update", "gradient"] = "update",
    warm_start: bool = False,
    **common: Unpack[Common],
) -> "Algorithm":
    """DP-SCAFFOLD (Noble et al. 2022): SCAFFOLD with clipped, noisy gradients; estimator `mean`, or `renorm`.

    Args:
        clipping: what is clipped; "record": each record's gradient; "tensor-median", as in the published code: each
            parameter tensor, at the median norm of the batch, which gives no privacy at all
        controls: how control variates are computed; "update": from the update (option II); "gradient": as a gradient at
            the received model (option I)
        warm_start: start control variates from tau noisy gradients at the initial model, released by every client
    """
    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound_of(clipping))
    correction = parts.ControlVariates(again=controls == "gradient", warm_start=warm_start)
    return assemble(common, privatizer=privatizer, corrections=(correction,))


@entry("cpfed, baseline", defaults={"estimator": "mean"}, presets=_ONE_STEP)
def dp_sgd(
    *, clip_norm: ClipNorm = 1.0, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]
) -> "Algorithm":
    """Distributed DP-SGD, the baseline of cpfed: one noisy step per round (`local_steps` must be 1), plain mean."""
    if common["local_steps"] != 1:
        raise errors.refuse("local_steps", common["local_steps"], "1 for dp_sgd", "use cpfed for more")
    return assemble(common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier))


@entry("cpfed", defaults={"estimator": "mean", "secure": True}, presets=_ONE_STEP)
def cpfed(
    *,
    clip_norm: ClipNorm = 1.0,
    noise_multiplier: NoiseMultiplier = 0.0,
    clipping: Annotated[Literal["record", "scale", "none"], about("", group="privacy")] = "record",
    gradient_bound: Annotated[float | None, about("", group="privacy", beside={"clipping": "scale"})] = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """CPFed: noisy local steps, updates averaged by secure aggregation (or in the clear if `secure` is false).

    Secure sums hide single uploads; under view secure_sum the Guarantee counts the other clients' noise.

    Args:
        clipping: how gradients are kept below L = clip_norm, which the paper assumes; "record": clip each record's
            gradient; "scale": multiply by clip_norm / gradient_bound; "none", as printed: no bound, so no epsilon
        gradient_bound: norm that no record's gradient exceeds
    """
    if clipping == "scale" and gradient_bound is None:
        remedy = "state a norm that no gradient exceeds"
        raise errors.refuse("gradient_bound", "nothing", "given for clipping scale", remedy)
    bound = bound_of(clipping, gradient_bound)
    return assemble(
        common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound)
    )


def _optimal_sampling(
    known: PrepareContext,
    options: Mapping[str, Any],
    *,
    strength: Annotated[
        float, about("weight lambda of the privacy budgets in optimal sampling", beside={"sampling": "optimal"})
    ] = 1.0,
    norm_noise: Annotated[
        float,
        about(
            "noise multiplier of the gradient norms that clients send for optimal sampling; 0: no epsilon",
            "privacy",
            beside={"sampling": "optimal"},
        ),
    ] = 0.0,
) -> dict[str, Any]:
    """The sampling probabilities from gradient norms and budgets, if sampling is optimal."""
    if options.get("sampling") != "optimal":
        return {}
    if known.epsilon is None:
        raise errors.refuse("sampling", "optimal", "used with privacy budgets, which it weighs", "give --epsilon")
    from fedjax_dp.algorithms.importance_sampling import optimal_probabilities  # loads JAX

    optimal = optimal_probabilities(
        known.data,
        epsilons=known.epsilon,
        delta=known.delta or 0.0,
        rounds=known.rounds,
        draws=options["cohort_size"],
        batch_size=options.get("batch_size") or int(np.min(known.data.sizes)),
        local_steps=options["local_steps"],
        learning_rate=options["learning_rate"],
        strength=strength,
        norm_noise=norm_noise,
        norm_clip=options["clip_norm"],
        seed=known.seed,
        model=known.model,
    )
    return {"probabilities": optimal.probabilities, "setup_event": optimal.setup_event}


_BUDGETS = {"epsilon": 16.0, "epsilon_high": 32.0, "sampling": "optimal", "norm_noise": 1.0}


@entry("acs_pldp", defaults={"cohort": "md"}, presets=_BUDGETS, prepare=_optimal_sampling)
def acs_pldp(
    *,
    clip_norm: ClipNorm = 1.0,
    noise_multiplier: NoiseMultiplier = 0.0,
    clipping: Annotated[Literal["record", "batch"], about("", group="privacy")] = "record",
    sampling: Literal["weighted", "uniform", "optimal"] = "weighted",
    probabilities: Any = None,
    setup_event: Any = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """ACS-PLDP-FL: K draws with replacement, unbiased updates p_i / (K q_i), a privacy budget for each client.

    Args:
        noise_multiplier: noise multiplier, one per client: `calibrate` with one epsilon per client finds them
        clipping: what is clipped; "record": each record's gradient; "batch", as in line 12: the mean gradient, which
            needs B times the noise for the same privacy
        sampling: probabilities q of the draws; "weighted": by shares; "uniform"; "optimal": the paper's trade-off of
            gradient norms and budgets (in Python, pass `probabilities` and `setup_event` of `optimal_probabilities`)
    """
    if (sampling == "optimal") != (probabilities is not None):
        raise errors.refuse(
            "probabilities",
            "none" if probabilities is None else "some",
            "given for sampling optimal, and only then",
            "compute them with fedjax_dp.algorithms.optimal_probabilities",
        )
    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound_of(clipping))
    drawn = {
        "probabilities": None if probabilities is None else np.asarray(probabilities),
        "equal": sampling == "uniform",
        "setup_event": setup_event,
    }
    return assemble(common, privatizer=privatizer, drawn=drawn)


@entry(
    "dp_fedavg_output",
    defaults={"estimator": "wor_model", "schedule": "inverse_sqrt", "per_step": True},
    presets={"local_steps": 5, "learning_rate": 0.05},
)
def dp_fedavg_output(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    clipping: Annotated[Literal["batch", "record"], about("", group="privacy")] = "batch",
    noise_space: Annotated[Literal["model", "literal"], about("", group="privacy")] = "model",
    noise_at: Annotated[Literal["last", "every"], about("", group="privacy")] = "last",
    **common: Unpack[Common],
) -> "Algorithm":
    """DP-FedAvg with noise on the upload (dp_fedavg_output): clipped steps, noise at the synchronisation step.

    The estimator is `wor_model`, and the learning rate changes with every step.

    Args:
        noise_multiplier: standard deviation of the noise, divided by the largest possible move G * sum of rates
        clipping: what is clipped; "batch", as in the paper: the mean gradient; "record": each record's gradient
        noise_space: size of the noise; "model": as accounted; "literal": multiplied by the learning rate, as in
            equation (13), which does not give the epsilon it was computed for
        noise_at: when noise is added: in the "last" step of a round, or in "every" step
    """
    privatizer = parts.OutputGaussian(
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        bound=bound_of(clipping),
        literal=noise_space == "literal",
        every_step=noise_at == "every",
    )
    return assemble(common, privatizer=privatizer)
