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
    """FedAvg with the proximal term mu/2 |w - w_start|^2, a pull to the received model (Li et al. 2020).

    Args:
        mu: weight of the proximal term
        prox_form: the proximal term; "half": mu/2 |w - w_start|^2; "full": mu |w - w_start|^2, as in rfedavg's code
    """
    return assemble(common, corrections=(parts.Proximal(strength=mu * (1 if prox_form == "half" else 2)),))


@entry("Karimireddy et al. 2020", defaults={"estimator": "mean"})
def scaffold(
    *, controls: Literal["update", "gradient"] = "update", warm_start: bool = False, **common: Unpack[Common]
) -> "Algorithm":
    """SCAFFOLD (Karimireddy et al. 2020), estimator `mean`.

    Args:
        controls: how control variates are computed; "update": from the update (option II); "gradient": as a gradient at
            the received model (option I)
        warm_start: start control variates as gradients at the initial model instead of zero
    """
    correction = parts.ControlVariates(again=controls == "gradient", warm_start=warm_start)
    return assemble(common, corrections=(correction,))


@entry("Li et al. 2020", fixes=("estimator",))
def q_fedavg(
    *, q: float = 1.0, fair_norm: Literal["update", "weighted"] = "update", **common: Unpack[Common]
) -> "Algorithm":
    """q-FedAvg (Li et al. 2020, "Fair resource allocation"): clients with a larger loss weigh more; q = 0: plain mean.

    Args:
        q: fairness; larger values give clients with a large loss more weight
        fair_norm: norm in the step size; "update": of L Delta_k; "weighted": of F_k^q L Delta_k, rfedavg's mistake
    """
    return assemble(common, aggregate=parts.FairRatio(q=q, of_weighted=fair_norm == "weighted"))


Scope = Annotated[
    Literal["participants", "all"],
    about(
        "clients whose mean features make the targets; participants: this round's cohort; all: the last of every client"
    ),
]
Strength = Annotated[float, about("weight lambda of the pull to the mean features of the other clients")]
LeaveOneOut = Annotated[bool, about("leave a client's own features out of its target")]
DeltaBatch = Annotated[int, about("number of records that the mean features are taken over; 0: all")]
FeatureClipNorm = Annotated[
    float, about("clipping norm of one record's features, used with feature_noise", group="privacy")
]
FeatureNoise = Annotated[float, about("noise sigma_2 on the mean features; gives no epsilon", group="privacy")]


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
    """rFedAvg (rfedavg, Algorithm 1): local steps also pull a client's mean features delta to those of the others.

    Args:
        feature_strength: weight lambda of the pull to the mean over the other clients (the paper's text drops 1/(N-1)
            in places, its code divides)
        delta_at: model for the mean features; "local_after": the client's trained model, as in the paper's theory and
            code; "global_before": the received model, as in its line 10
        delta_scope: clients in a target; "participants": this round's cohort; "all": the last delta of every client
        leave_one_out: leave a client's own delta out of its target; the paper's code keeps it
        delta_batch: number of records in the mean delta; 0: all (the paper's code: one batch)
        feature_noise: noise sigma_2 of the paper's privacy evaluation on features clipped to `feature_clip_norm`;
            gives no epsilon, because model uploads carry no noise
    """
    matching = {"when": delta_at, "scope": delta_scope, "leave_one_out": leave_one_out, "one_batch": delta_batch}
    return _match_features(common, feature_clip_norm, feature_noise, strength=feature_strength, **matching)


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
    """rFedAvg+ (rfedavg, Algorithm 2): rFedAvg that computes every delta at the same new model, in a second exchange.

    A client receives one target instead of the table of all deltas.
    """
    matching = {"when": "global_after", "scope": delta_scope, "leave_one_out": leave_one_out, "one_batch": delta_batch}
    return _match_features(common, feature_clip_norm, feature_noise, strength=feature_strength, **matching)


def _match_features(common: Mapping[str, Any], clip_norm: float, noise: float, **matching: Any) -> "Algorithm":
    """FedAvg with feature matching; `matching`: fields of `FeatureMatching` other than its release."""
    release: parts.FeatureRelease = parts.PlainFeatures()
    if noise:
        if (size := common["batch_size"]) is None:
            remedy = "the paper divides the noise by the batch size"
            raise errors.refuse("feature_noise", noise, "0 for full batches", remedy)
        release = parts.NoisyFeatures(clip_norm=clip_norm, noise_multiplier=noise, batch_size=float(size))
    return assemble(common, corrections=(parts.FeatureMatching(release=release, **matching),))


@entry("Hsu et al. 2019", defaults={"momentum": 0.9}, fixes=("server",))
def fedavgm(**common: Unpack[Common]) -> "Algorithm":
    """FedAvg with server momentum: v <- momentum v + Delta, w <- w + rate v (Hsu et al. 2019)."""
    return assemble(common)


@entry("Reddi et al. 2021", defaults={"server": "adam"}, fixes=("server",))
def fedadam(**common: Unpack[Common]) -> "Algorithm":
    """FedAvg with server optimizer Adam, without bias correction (Reddi et al. 2021, Algorithm 2; pi is their tau)."""
    return assemble(common)


@entry("Reddi et al. 2021", defaults={"server": "yogi"}, fixes=("server",))
def fedyogi(**common: Unpack[Common]) -> "Algorithm":
    """FedAvg with server optimizer Yogi (Reddi et al. 2021, Algorithm 2)."""
    return assemble(common)
