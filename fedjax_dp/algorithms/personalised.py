"""Entries whose clients end with models of their own, under noise on records or on whole clients.

Where a client's own part was trained beside the last shared model and joins it, a mean of models means nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from fedjax_dp import errors, parts
from fedjax_dp.algorithms.assemble import AVERAGING, OF_SERVER, Common, NoiseMultiplier, assemble
from fedjax_dp.algorithms.client_level import WHOLE_CLIENTS
from fedjax_dp.algorithms.entry import entry
from fedjax_dp.options import about

if TYPE_CHECKING:
    from fedjax_dp.parts.clusters import ClusterChoice
    from fedjax_dp.rounds.algorithm import Algorithm

ClipNorm = Annotated[
    float, about("C, L2 bound on one record's gradient, or with noise_on clients on a client's update", group="privacy")
]
NoiseOn = Annotated[
    Literal["records", "clients"],
    about("records: in every step, so that it hides them; clients: in every round", group="privacy"),
]
Strength = Annotated[float, about("lambda, how strongly a client's own model is pulled to the shared one")]
PullForm = Annotated[
    Literal["after", "explicit", "implicit", "inside"],
    about("how the pull joins: after the noise (explicit while rate * lambda <= 1, else implicit), or inside the clip"),
]
Head = Annotated[str, about("parameters that clients keep: patterns of paths, or head, the last layer")]
PersonalSteps = Annotated[int | None, about("steps of a client's own model", default="local_steps")]
PersonalNoise = Annotated[
    float,
    about(
        "noise of the personal steps over that of the shared ones; 0: without clipping and noise, which only the "
        "client itself may see (view owner)",
        group="privacy",
    ),
]
PersonalRate = Annotated[float | None, about("of the personal steps", default="learning_rate")]
_PERSONAL = {"holdout": 0.2, "schedule": "constant", "l2": 0.0}


def _cohort_default(explicit: Mapping[str, Any]) -> dict[str, Any]:
    return {"cohort": "poisson"} if explicit.get("noise_on") == "clients" else {}


def _presets(known: Mapping[str, Any]) -> dict[str, Any]:
    """Clients are tested on records of their own, which those of a store cannot keep back."""
    brought = WHOLE_CLIENTS if known.get("noise_on") == "clients" else {}
    stored = str(known.get("dataset", "")).startswith("store")
    return brought | {name: value for name, value in _PERSONAL.items() if name != "holdout" or not stored}


def _model_default(known: Mapping[str, Any]) -> dict[str, Any]:
    """A head needs layers below it."""
    return _presets(known) | {"model": known.get("model") or "mlp"}


def _build(
    common: Mapping[str, Any],
    models: "parts.ClientModels",
    noise_on: str,
    clip_norm: float,
    noise_multiplier: Any,
    of_all: bool = False,  # a client that is absent counts with what it had, which has not moved
) -> "Algorithm":
    if noise_on == "clients":
        upload = parts.ClientGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
        return assemble(common, upload=upload, aggregate=parts.BoundedMean(), models=models)
    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    aggregate = parts.ESTIMATORS["biased"] if of_all else None
    return assemble(common, privatizer=privatizer, aggregate=aggregate, models=models)


def _beside(
    common: Mapping[str, Any], steps: int | None, noise: float, rate: float | None, noise_on: str
) -> dict[str, Any]:
    """What options say of personal steps; where whole clients are noised, nothing is noised there."""
    errors.require_not_negative("personal_noise", noise)
    clean = noise_on == "clients" or noise == 0
    if noise_on == "clients" and noise != 1:
        raise errors.refuse(
            "personal_noise", noise, "left out with noise_on clients", "no step of a client is noised there"
        )
    return {
        "steps": common["local_steps"] if steps is None else steps,
        "noise": 1.0 if noise == 0 else noise,
        "clean": clean and noise_on == "records",
        "speed": 1.0 if rate is None else rate / common["learning_rate"],
    }


@entry("Liu et al. 2022, baseline", presets=_presets, fixes=("estimator", "secure", *OF_SERVER))
def local(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    personal_noise: Annotated[Literal[0, 1], about("0: without clipping and noise (view owner)", "privacy")] = 1,
    **common: Unpack[Common],
) -> "Algorithm":
    """Every client trains a model of its own and sends nothing.

    `noise_multiplier` protects its records from those who get its model (view `deployed`).
    """
    models = parts.OwnModel(shared=False, clean=personal_noise == 0)
    return _build(common, models, "records", clip_norm, noise_multiplier, of_all=True)


@entry("McMahan et al. 2018, personalised", defaults=_cohort_default, presets=_presets)
def finetune(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    personal_steps: PersonalSteps = None,
    personal_noise: PersonalNoise = 1.0,
    personal_learning_rate: PersonalRate = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """FedAvg, after which every client goes on from the model on its own records."""
    models = parts.FineTuned(**_beside(common, personal_steps, personal_noise, personal_learning_rate, noise_on))
    return _build(common, models, noise_on, clip_norm, noise_multiplier)


@entry("Li et al. 2021", defaults=_cohort_default, presets=_presets)
def ditto(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    strength: Strength = 0.5,
    proximal: PullForm = "after",
    personal_steps: PersonalSteps = None,
    personal_noise: PersonalNoise = 1.0,
    personal_learning_rate: PersonalRate = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """Ditto (Li et al. 2021): beside FedAvg, a model of each client's own, pulled to the one it receives.

    Whoever gets the personal models sees twice the gradients of one who sees the uploads: `ditto_joint` makes them one.
    """
    beside = _beside(common, personal_steps, personal_noise, personal_learning_rate, noise_on)
    models = parts.ModelBeside(pull=parts.Pull(strength=strength, form=proximal), **beside)
    return _build(common, models, noise_on, clip_norm, noise_multiplier)


@entry("Li et al. 2021, one clip over both models", presets=_presets)
def ditto_joint(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    strength: Strength = 0.5,
    proximal: Annotated[Literal["after", "explicit", "implicit"], about("how the pull joins")] = "after",
    **common: Unpack[Common],
) -> "Algorithm":
    """Ditto whose two gradients of a record are clipped as one vector and noised once: one release a step."""
    models = parts.JointModels(pull=parts.Pull(strength=strength, form=proximal))
    return _build(common, models, "records", clip_norm, noise_multiplier)


@entry("Liu et al. 2022", defaults=_cohort_default, presets=_presets, fixes=("estimator", *OF_SERVER))
def mr_mtl(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    strength: Strength = 0.5,
    proximal: PullForm = "after",
    **common: Unpack[Common],
) -> "Algorithm":
    """Mean-regularised multi-task learning (Liu et al. 2022): every client's model is pulled to the mean of all.

    The server keeps the mean of all clients' models, those absent included.

    Args:
        strength: 0 is `local`; with more of it the models come as close to each other as FedAvg's, at no cost of
            privacy
    """
    models = parts.OwnModel(pull=parts.Pull(strength=strength, form=proximal))
    return _build(common, models, noise_on, clip_norm, noise_multiplier, of_all=True)


@entry("Arivazhagan et al. 2019", defaults=_cohort_default, presets=_model_default, fixes=AVERAGING)
def fedper(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    head: Head = "head",
    **common: Unpack[Common],
) -> "Algorithm":
    """FedPer (Arivazhagan et al. 2019): clients keep a head of their own and share the other layers."""
    return _build(common, parts.OwnPart(head=head), noise_on, clip_norm, noise_multiplier)


@entry("Collins et al. 2021", defaults=_cohort_default, presets=_model_default, fixes=AVERAGING)
def fedrep(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    head: Head = "head",
    head_steps: Annotated[
        int | None, about("steps on the head, before those on what is shared", default="local_steps")
    ] = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """FedRep (Collins et al. 2021): as FedPer, but the head is trained first, then `local_steps` on what is shared."""
    steps = common["local_steps"] if head_steps is None else head_steps
    errors.require_count("head_steps", steps)
    return _build(common, parts.OwnPart(head=head, head_steps=steps), noise_on, clip_norm, noise_multiplier)


@entry("Deng et al. 2020", defaults=_cohort_default, presets=_presets, fixes=AVERAGING)
def apfl(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    alpha: Annotated[float, about("weight of a client's own model in the mixture")] = 0.5,
    alpha_learning_rate: Annotated[float, about("of alpha, in the first step of a round; 0: it stays")] = 0.0,
    personal_noise: PersonalNoise = 1.0,
    **common: Unpack[Common],
) -> "Algorithm":
    """APFL (Deng et al. 2020): a client's model is a mixture of its own and the shared one."""
    beside = _beside(common, None, personal_noise, None, noise_on)
    models = parts.MixedModels(
        alpha=alpha, alpha_speed=alpha_learning_rate, noise=beside["noise"], clean=beside["clean"]
    )
    return _build(common, models, noise_on, clip_norm, noise_multiplier)


@entry("Bietti et al. 2022", defaults=_cohort_default, presets=_presets, fixes=AVERAGING)
def ppsgd(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    personal_learning_rate: PersonalRate = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """PPSGD (Bietti et al. 2022): a client adds an offset of its own; one gradient moves shared model and offset.

    At client level the paper clips a single gradient and steps at the server: local_steps 1, learning_rate 1.
    """
    speed = 1.0 if personal_learning_rate is None else personal_learning_rate / common["learning_rate"]
    return _build(common, parts.OwnOffset(speed=speed), noise_on, clip_norm, noise_multiplier)


@entry("Ghosh et al. 2020; Liu et al. 2022", presets=_presets, fixes=("estimator", *OF_SERVER))
def ifca(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    clusters: Annotated[int, about("models that the server keeps")] = 2,
    choice: Annotated[Literal["gaussian", "gumbel"], about("how a client chooses one", group="privacy")] = "gaussian",
    loss_bound: Annotated[float, about("b, to which each record's loss is cut for the choice", group="privacy")] = 2.0,
    choices: Annotated[int | None, about("rounds of a client in which it chooses, the first", default="all")] = None,
    choice_noise: Annotated[
        float, about("of a choice, over the noise multiplier", group="privacy", beside={"choice": "gaussian"})
    ] = 1.0,
    choice_epsilon: Annotated[
        float, about("of a choice, of the exponential mechanism", group="privacy", beside={"choice": "gumbel"})
    ] = 0.1,
    **common: Unpack[Common],
) -> "Algorithm":
    """IFCA (Ghosh et al. 2020) with a private choice: clients train the model, of several, that suits them best.

    Models are means within their cluster; one that nobody chose stays as it is.

    Args:
        choice: "gaussian": least mean loss with Gaussian noise; "gumbel": with Gumbel noise, which is the exponential
            mechanism (Liu et al. 2022), covered by accountants rdp and zcdp
    """
    rule: ClusterChoice = parts.GaussianChoice(bound=loss_bound, noise=choice_noise, rounds=choices)
    if choice == "gumbel":
        rule = parts.GumbelChoice(bound=loss_bound, epsilon=choice_epsilon, rounds=choices)
    models = parts.OwnClusters(number=clusters, choice=rule)
    return _build(common, models, "records", clip_norm, noise_multiplier, of_all=True)
