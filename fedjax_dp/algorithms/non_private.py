"""Entries without privacy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from fedjax_dp import errors, parts
from fedjax_dp.algorithms.assemble import Common, assemble
from fedjax_dp.algorithms.entry import entry
from fedjax_dp.options import about

if TYPE_CHECKING:
    from fedjax_dp.rounds.algorithm import Algorithm


@entry("McMahan et al. 2017")
def fedavg(**common: Unpack[Common]) -> "Algorithm":
    """Federated averaging (McMahan et al. 2017), with any cohort and estimator."""
    return assemble(common)


@entry("Li et al. 2020")
def fedprox(*, mu: float = 1.0, prox_form: Literal["half", "full"] = "half", **common: Unpack[Common]) -> "Algorithm":
    """FedAvg whose steps are pulled to the received model by mu/2 |w - w_start|^2 (Li et al. 2020).

    Args:
        mu: strength of the pull to the received model
        prox_form: "half": gradient mu (w - w_start); "full": mu |w - w_start|^2, as in rfedavg's code, so twice that
    """
    return assemble(common, corrections=(parts.Proximal(strength=mu * (1 if prox_form == "half" else 2)),))


@entry("Karimireddy et al. 2020", defaults={"estimator": "mean"})
def scaffold(
    *, controls: Literal["update", "gradient"] = "update", warm_start: bool = False, **common: Unpack[Common]
) -> "Algorithm":
    """SCAFFOLD (Karimireddy et al. 2020), estimator `mean`.

    Args:
        controls: "update": option II, new control variates are read off the update; "gradient": option I, a gradient at
            the received model
        warm_start: control variates begin as gradients at the first model, not zero
    """
    correction = parts.ControlVariates(again=controls == "gradient", warm_start=warm_start)
    return assemble(common, corrections=(correction,))


@entry("Li et al. 2020", fixes=("estimator",))
def q_fedavg(
    *, q: float = 1.0, fair_norm: Literal["update", "weighted"] = "update", **common: Unpack[Common]
) -> "Algorithm":
    """q-FedAvg (Li et al. 2020, "Fair resource allocation"): clients of large loss count more; q = 0 is the mean.

    Args:
        q: how much large losses count
        fair_norm: "update": the norm of L Delta_k; "weighted": of F_k^q L Delta_k, a mistake in rfedavg's code
    """
    return assemble(common, aggregate=parts.FairRatio(q=q, of_weighted=fair_norm == "weighted"))


Scope = Annotated[
    Literal["participants", "all"],
    about("participants: targets from this round's cohort; all: the last delta of every client"),
]
Strength = Annotated[float, about("lambda, on the mean over the other clients")]
LeaveOneOut = Annotated[bool, about("a client's own features are left out of its target")]
DeltaBatch = Annotated[int, about("records that mean features are taken over; 0 all")]
FeatureClipNorm = Annotated[float, about("bound on one record's features, with noise", group="privacy")]
FeatureNoise = Annotated[float, about("sigma_2 on mean features; no epsilon follows", group="privacy")]


@entry("rfedavg, Algorithm 1", defaults={"estimator": "renorm"}, presets={"model": "mlp"})
def rfedavg(
    *,
    feature_strength: Strength = 1e-4,
    delta_at: Literal["local_after", "global_before"] = "local_after",
    delta_scope: Scope = "participants",
    leave_one_out: LeaveOneOut = True,
    delta_batch: DeltaBatch = 0,
    feature_clip_norm: FeatureClipNorm = 1.0,
    feature_noise: FeatureNoise = 0.0,
    **common: Unpack[Common],
) -> "Algorithm":
    """rFedAvg (rfedavg, Algorithm 1): local steps also pull the mean feature towards the other clients'.

    Args:
        feature_strength: lambda, on the mean over the others (the text drops 1/(N-1) in places; the code divides)
        delta_at: "local_after": delta^k at the client's own trained model, as theory and code have it; "global_before":
            at the received model, as line 10 prints
        delta_scope: "participants": targets from this round's cohort; "all": the last delta of every client
        leave_one_out: False keeps a client's own delta in its target, as the paper's code does
        delta_batch: records that delta is a mean of; 0 takes all (the paper's code: one batch)
        feature_noise: sigma_2 of the paper's privacy evaluation, with features clipped to `feature_clip_norm`; no
            epsilon follows, because model uploads carry no noise
    """
    means = {"when": delta_at, "scope": delta_scope, "leave_one_out": leave_one_out, "one_batch": delta_batch}
    return _match_features(common, feature_clip_norm, feature_noise, strength=feature_strength, **means)


@entry("rfedavg, Algorithm 2", defaults={"estimator": "renorm"}, presets={"model": "mlp"})
def rfedavg_plus(
    *,
    feature_strength: Strength = 1e-4,
    delta_scope: Scope = "participants",
    leave_one_out: LeaveOneOut = True,
    delta_batch: DeltaBatch = 0,
    feature_clip_norm: FeatureClipNorm = 1.0,
    feature_noise: FeatureNoise = 0.0,
    **common: Unpack[Common],
) -> "Algorithm":
    """rFedAvg+ (rfedavg, Algorithm 2): as rFedAvg, with every delta at the same new model, in a second exchange.

    A client receives one target instead of the table of all deltas.
    """
    means = {"when": "global_after", "scope": delta_scope, "leave_one_out": leave_one_out, "one_batch": delta_batch}
    return _match_features(common, feature_clip_norm, feature_noise, strength=feature_strength, **means)


def _match_features(common: Mapping[str, Any], clip_norm: float, noise: float, **matching: Any) -> "Algorithm":
    """`matching`: what `FeatureMatching` takes beside the release that clip norm and noise make."""
    release: parts.FeatureRelease = parts.PlainFeatures()
    if noise:
        if (size := common["batch_size"]) is None:
            remedy = "the paper divides the noise by the batch size"
            raise errors.refuse("feature_noise", noise, "0 for full batches", remedy)
        release = parts.NoisyFeatures(clip_norm=clip_norm, noise_multiplier=noise, batch_size=float(size))
    return assemble(common, corrections=(parts.FeatureMatching(release=release, **matching),))


@entry("Hsu et al. 2019", defaults={"momentum": 0.9}, fixes=("server",))
def fedavgm(**common: Unpack[Common]) -> "Algorithm":
    """FedAvg whose server has momentum: v <- momentum v + Delta, w <- w + rate v (Hsu et al. 2019)."""
    return assemble(common)


@entry("Reddi et al. 2021", defaults={"server": "adam"}, fixes=("server",))
def fedadam(**common: Unpack[Common]) -> "Algorithm":
    """FedAvg whose server moves by Adam without bias correction (Reddi et al. 2021, Algorithm 2; pi is their tau)."""
    return assemble(common)


@entry("Reddi et al. 2021", defaults={"server": "yogi"}, fixes=("server",))
def fedyogi(**common: Unpack[Common]) -> "Algorithm":
    """FedAvg whose server moves by Yogi (Reddi et al. 2021, Algorithm 2)."""
    return assemble(common)
