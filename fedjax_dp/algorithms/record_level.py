"""Entries that noise the gradients of records, in every local step or once per round."""

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

    Nothing of a paper comes along: the rate is constant, and there is no penalty.
    """
    return assemble(common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier))


@entry("dpnfl, Algorithm 1", defaults=_DPNFL)
def dpnfl(*, clip_norm: ClipNorm, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]) -> "Algorithm":
    """DPNFL (dpnfl, Algorithm 1): every local step clips each record's gradient and adds noise to the batch.

    `noise_multiplier` z is the noise on the sum over the clip norm (the paper's sigma is z G / B); one number, or one
    per client. `calibrate` finds it for a budget; at its default of 0 there is no privacy, and the Guarantee says so.
    Defaults: schedule inverse_sqrt, l2 = 1e-3.
    """
    return assemble(common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier))


@entry("dpnfl, Algorithm 2", defaults=_DPNFL | {"server": "adam"}, fixes=("server",))
def addpnfl(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    nu_init: Annotated[float | None, about("", group="server")] = None,
    second_moment: Annotated[str, about("", group="server", choices=SECOND_MOMENTS)] = "delta",
    **common: Unpack[Common],
) -> "Algorithm":
    """AdDPNFL (dpnfl, Algorithm 2): DPNFL whose server moves by an Adam rule without bias correction.

    Both rates follow `schedule`.

    Args:
        second_moment: "delta" squares the update (Algorithm 2), "mu" squares the first moment (the displayed equation,
            whose first steps are up to ten times larger), "unbiased" takes off the squared update what its noise brings
            into it (DP-AdamBC); pi then bounds the steps
        nu_init: where the second moment starts, pi^2 unless given (the paper: at least pi^2)
    """
    from fedjax_dp.pytrees import replace  # loads JAX

    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    start = {} if nu_init is None else {"nu_init": nu_init}

    def adam(server: parts.Server, schedule: Mapping[str, Any]) -> parts.Server:
        numbers = server.hyperparameters | start
        return replace(server, hyperparameters=numbers, factory=parts.SECOND_MOMENTS[second_moment], **schedule)

    return assemble(common, privatizer=privatizer, of_server=adam)


@entry("dpnfl, baseline", defaults=_DPNFL | {"estimator": "renorm"})
def dp_fedavg_local(
    *, clip_norm: ClipNorm, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]
) -> "Algorithm":
    """DPFedAvg at record level, the baseline of dpnfl: DPNFL's steps, updates averaged by records (`renorm`)."""
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
    """DP-SCAFFOLD (Noble et al. 2022): SCAFFOLD with clipped and noised gradients; estimator `mean`, or `renorm`.

    Args:
        clipping: "record", or "tensor-median" as in the published code: each parameter tensor at the median norm of the
            batch, which is no privacy at all
        controls: "update": option II, new control variates are read off the update; "gradient": option I, a gradient at
            the received model
        warm_start: every client first releases tau noisy gradients at the first model
    """
    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound_of(clipping))
    correction = parts.ControlVariates(again=controls == "gradient", warm_start=warm_start)
    return assemble(common, privatizer=privatizer, corrections=(correction,))


@entry("cpfed, baseline", defaults={"estimator": "mean"}, presets=_ONE_STEP)
def dp_sgd(
    *, clip_norm: ClipNorm = 1.0, noise_multiplier: NoiseMultiplier = 0.0, **common: Unpack[Common]
) -> "Algorithm":
    """Distributed DP-SGD, the baseline of cpfed: one noisy step a round (`local_steps` must be 1), plain mean."""
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
    """CPFed: noisy local steps, updates averaged through a secure sum, or plainly where secure is false.

    Secure sums hide single uploads; the Guarantee counts the others' noise under view secure_sum.

    Args:
        clipping: the paper assumes gradients below L = clip_norm without saying how: "record" clips them; "scale"
            multiplies them by clip_norm / gradient_bound; "none" is as printed, which bounds nothing and has no epsilon
        gradient_bound: what no gradient exceeds
    """
    if clipping == "scale" and gradient_bound is None:
        raise errors.refuse("gradient_bound", "nothing", "given for clipping scale", "say what no gradient exceeds")
    bound = bound_of(clipping, gradient_bound)
    return assemble(
        common, privatizer=parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, bound=bound)
    )


def _weigh_budgets(
    known: PrepareContext,
    options: Mapping[str, Any],
    *,
    strength: Annotated[float, about("lambda, the weight of the budgets", beside={"sampling": "optimal"})] = 1.0,
    norm_noise: Annotated[
        float, about("noise on the norms that clients tell; 0: no epsilon", "privacy", beside={"sampling": "optimal"})
    ] = 0.0,
) -> dict[str, Any]:
    """Probabilities of the draws from gradient norms and budgets, where sampling is optimal."""
    if options.get("sampling") != "optimal":
        return {}
    if known.epsilon is None:
        raise errors.refuse("sampling", "optimal", "used with budgets, which it weighs", "give --epsilon")
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


@entry("acs_pldp", defaults={"cohort": "md"}, presets=_BUDGETS, prepare=_weigh_budgets)
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
    """ACS-PLDP-FL: K draws with replacement, unbiased updates p_i / (K q_i), a budget of its own per client.

    Args:
        noise_multiplier: one per client: `calibrate` with one epsilon per client finds them
        clipping: "record", or "batch" as line 12 prints: the mean gradient is clipped, which takes B times the noise
            for the same privacy
        sampling: q of the draws: "weighted" by shares, "uniform", or "optimal": the paper's trade of gradient norms
            against budgets; from Python `probabilities`, and their `setup_event`, are given, from
            `optimal_probabilities`
    """
    if (sampling == "optimal") != (probabilities is not None):
        raise errors.refuse(
            "probabilities",
            "none" if probabilities is None else "some",
            "given for sampling optimal, and only then",
            "find them with fedjax_dp.algorithms.optimal_probabilities",
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

    Estimator `wor_model`, rates per step.

    Args:
        noise_multiplier: z in units of the farthest that the clipped steps can go, G * sum of rates
        clipping: "batch" as in the paper, or "record"
        noise_space: "model": that noise joins the uploaded model; "literal": it is multiplied by the learning rate, as
            equation (13) prints, and does not give the epsilon it was computed for
        noise_at: "last" step of a round, or "every" step
    """
    privatizer = parts.OutputGaussian(
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        bound=bound_of(clipping),
        literal=noise_space == "literal",
        every_step=noise_at == "every",
    )
    return assemble(common, privatizer=privatizer)
