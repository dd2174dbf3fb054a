"""Entries whose clients end with personal models, with noise on record gradients or on the updates of whole clients.

`average` is fixed for entries whose personal parts only fit the last shared model: they do not fit a mean of models.
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
    float,
    about("clipping norm: L2 bound on one record's gradient (noise_on clients: on a client's update)", group="privacy"),
]
NoiseOn = Annotated[
    Literal["records", "clients"],
    about("what noise protects; records: noise in every step; clients: noise on every upload", group="privacy"),
]
Strength = Annotated[float, about("weight lambda of the pull of a personal model to the shared model")]
PullForm = Annotated[
    Literal["after", "explicit", "implicit", "inside"],
    about("how the pull is added; after: after the noise, explicit while rate * lambda <= 1; inside: before clipping"),
]
Head = Annotated[str, about("parameters that stay on the clients: patterns of paths, or head, the last layer")]
PersonalSteps = Annotated[int | None, about("steps of the personal model per round", default="local_steps")]
PersonalNoise = Annotated[
    float,
    about(
        "noise of the personal steps divided by that of the shared steps; 0: no clipping and no noise, so that only "
        "the client itself may see its model (view owner)",
        group="privacy",
    ),
]
PersonalRate = Annotated[float | None, about("learning rate of the personal steps", default="learning_rate")]
_PERSONAL = {"holdout": 0.2, "schedule": "constant", "l2": 0.0}


def _cohort_default(explicit: Mapping[str, Any]) -> dict[str, Any]:
    return {"cohort": "poisson"} if explicit.get("noise_on") == "clients" else {}


def _presets(known: Mapping[str, Any]) -> dict[str, Any]:
    """Each client is tested on its own held-out records; a store cannot hold records out."""
    whole_clients = WHOLE_CLIENTS if known.get("noise_on") == "clients" else {}
    from_store = str(known.get("dataset", "")).startswith("store")
    return whole_clients | {name: value for name, value in _PERSONAL.items() if name != "holdout" or not from_store}


def _model_default(known: Mapping[str, Any]) -> dict[str, Any]:
    """A head needs layers below it."""
    return _presets(known) | {"model": known.get("model") or "mlp"}


def _build(
    common: Mapping[str, Any],
    models: "parts.ClientModels",
    noise_on: str,
    clip_norm: float,
    noise_multiplier: Any,
    of_all: bool = False,  # the mean is over all clients; the models of absent ones have not changed
) -> "Algorithm":
    if noise_on == "clients":
        upload = parts.ClientGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
        return assemble(common, upload=upload, aggregate=parts.BoundedMean(), models=models)
    privatizer = parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    aggregate = parts.ESTIMATORS["biased"] if of_all else None
    return assemble(common, privatizer=privatizer, aggregate=aggregate, models=models)


def _personal_steps(
    common: Mapping[str, Any], steps: int | None, noise: float, rate: float | None, noise_on: str
) -> dict[str, Any]:
    """Arguments of a part with personal steps; with noise on whole clients, these steps have no noise."""
    errors.require_not_negative("personal_noise", noise)
    clean = noise_on == "clients" or noise == 0
    if noise_on == "clients" and noise != 1:
        raise errors.refuse("personal_noise", noise, "left out with noise_on clients", "no local step has noise there")
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
    personal_noise: Annotated[
        Literal[0, 1], about("1: clipping and noise in every step; 0: neither (view owner)", "privacy")
    ] = 1,
    **common: Unpack[Common],
) -> "Algorithm":
    """Every client trains its own model and sends nothing.

    `noise_multiplier` protects its records from those who receive its model (view `deployed`).
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
    """FedAvg, after which every client fine-tunes the shared model on its own records."""
    personal = _personal_steps(common, personal_steps, personal_noise, personal_learning_rate, noise_on)
    return _build(common, parts.FineTuned(**personal), noise_on, clip_norm, noise_multiplier)


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
    """Ditto (Li et al. 2021): FedAvg, while each client also trains a personal model, pulled to the received model.

    The personal models reveal a second noisy gradient for each one in the uploads: `ditto_joint` releases both as one.
    """
    personal = _personal_steps(common, personal_steps, personal_noise, personal_learning_rate, noise_on)
    models = parts.ModelBeside(pull=parts.Pull(strength=strength, form=proximal), **personal)
    return _build(common, models, noise_on, clip_norm, noise_multiplier)


@entry("Li et al. 2021, one clip over both models", presets=_presets)
def ditto_joint(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    strength: Strength = 0.5,
    proximal: Annotated[Literal["after", "explicit", "implicit"], about("how the pull is added")] = "after",
    **common: Unpack[Common],
) -> "Algorithm":
    """Ditto that clips a record's two gradients as one vector and adds noise once: one release per step."""
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

    The server keeps the mean of all clients' models, including absent clients.

    Args:
        strength: weight lambda of the pull to the mean, at no cost of privacy; 0: `local`; large: close to FedAvg
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
    """FedPer (Arivazhagan et al. 2019): every client keeps its own head, and all share the other layers."""
    return _build(common, parts.OwnPart(head=head), noise_on, clip_norm, noise_multiplier)


@entry("Collins et al. 2021", defaults=_cohort_default, presets=_model_default, fixes=AVERAGING)
def fedrep(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    noise_on: NoiseOn = "records",
    head: Head = "head",
    head_steps: Annotated[
        int | None, about("steps on the head, before the steps on the shared layers", default="local_steps")
    ] = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """FedRep (Collins et al. 2021): FedPer that trains the head first, then the shared layers for `local_steps`."""
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
    alpha_learning_rate: Annotated[
        float, about("learning rate of alpha, which moves in the first step of a round; 0: alpha is fixed")
    ] = 0.0,
    personal_noise: PersonalNoise = 1.0,
    **common: Unpack[Common],
) -> "Algorithm":
    """APFL (Deng et al. 2020): a client's model is a mixture of its own model and the shared model."""
    personal = _personal_steps(common, None, personal_noise, None, noise_on)
    models = parts.MixedModels(
        alpha=alpha, alpha_speed=alpha_learning_rate, noise=personal["noise"], clean=personal["clean"]
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
    """PPSGD (Bietti et al. 2022): a client adds its own offset to the shared model; one gradient moves both.

    At client level the paper clips a single gradient and steps at the server: local_steps 1, learning_rate 1.
    """
    speed = 1.0 if personal_learning_rate is None else personal_learning_rate / common["learning_rate"]
    return _build(common, parts.OwnOffset(speed=speed), noise_on, clip_norm, noise_multiplier)


@entry("Ghosh et al. 2020; Liu et al. 2022", presets=_presets, fixes=("estimator", *OF_SERVER))
def ifca(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    clusters: Annotated[int, about("number of models that the server keeps")] = 2,
    choice: Annotated[Literal["gaussian", "gumbel"], about("", group="privacy")] = "gaussian",
    loss_bound: Annotated[float, about("bound b at which each record's loss is cut for the choice", "privacy")] = 2.0,
    choices: Annotated[
        int | None, about("number of a client's first rounds in which it chooses a model", default="all")
    ] = None,
    choice_noise: Annotated[
        float,
        about("noise of a choice, divided by the noise multiplier", group="privacy", beside={"choice": "gaussian"}),
    ] = 1.0,
    choice_epsilon: Annotated[
        float, about("epsilon of the exponential mechanism of one choice", group="privacy", beside={"choice": "gumbel"})
    ] = 0.1,
    **common: Unpack[Common],
) -> "Algorithm":
    """IFCA (Ghosh et al. 2020) with a private choice: each client trains the one of several models that fits it best.

    Each model is the mean over the clients that chose it; a model that nobody chose does not change.

    Args:
        choice: how a client chooses a model; "gaussian": least mean loss with Gaussian noise; "gumbel": with Gumbel
            noise, the exponential mechanism (Liu et al. 2022), which accountants rdp and zcdp cover
    """
    mechanism: ClusterChoice = parts.GaussianChoice(bound=loss_bound, noise=choice_noise, rounds=choices)
    if choice == "gumbel":
        mechanism = parts.GumbelChoice(bound=loss_bound, epsilon=choice_epsilon, rounds=choices)
    models = parts.OwnClusters(number=clusters, choice=mechanism)
    return _build(common, models, "records", clip_norm, noise_multiplier, of_all=True)
