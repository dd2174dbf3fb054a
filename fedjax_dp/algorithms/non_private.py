"""Entries without privacy."""

from collections.abc import Mapping
from typing import Any, Unpack

import optax

from fedjax_dp import errors
from fedjax_dp.algorithms.assemble import Common, add_update, assemble, require_common
from fedjax_dp.parts.aggregation import FairRatio
from fedjax_dp.parts.corrections import ControlVariates, Proximal
from fedjax_dp.parts.feature_matching import FeatureMatching, FeatureRelease, NoisyFeatures, PlainFeatures
from fedjax_dp.parts.server_optimizers import Server, adaptive_delta, adaptive_yogi
from fedjax_dp.rounds.algorithm import Algorithm


def fedavg(**common: Unpack[Common]) -> Algorithm:
    """Federated averaging (McMahan et al. 2017), with any cohort and estimator."""
    return assemble(common, {})


def fedprox(*, mu: float = 1.0, prox_form: str = "half", **common: Unpack[Common]) -> Algorithm:
    """FedAvg whose steps are pulled to the received model by mu/2 |w - w_start|^2 (Li et al. 2020).

    prox_form  "half": gradient mu (w - w_start); "full": mu |w - w_start|^2, as in rfedavg's code, so twice that.
    """
    errors.require_choice("prox_form", prox_form, ("half", "full"))
    return assemble(common, {}, corrections=(Proximal(strength=mu * (1 if prox_form == "half" else 2)),))


def scaffold(
    *, controls: str = "update", server_learning_rate: float = 1.0, warm_start: bool = False, **common: Unpack[Common]
) -> Algorithm:
    """SCAFFOLD (Karimireddy et al. 2020), estimator `mean`.

    controls    "update": option II, new control variates are read off the update; "gradient": option I, a gradient at
                the received model;
    warm_start  control variates begin as gradients at the first model, not zero.
    """
    return assemble(
        common,
        {"estimator": "mean"},
        corrections=(control_variates(controls, warm_start),),
        server=add_update(server_learning_rate),
    )


def control_variates(controls: str, warm_start: bool) -> ControlVariates:
    errors.require_choice("controls", controls, ("update", "gradient"))
    return ControlVariates(again=controls == "gradient", warm_start=warm_start)


def q_fedavg(*, q: float = 1.0, fair_norm: str = "update", **common: Unpack[Common]) -> Algorithm:
    """q-FedAvg (Li et al. 2020, "Fair resource allocation"): clients of large loss count more; q = 0 is the mean.

    fair_norm  "update": the norm of L Delta_k; "weighted": of F_k^q L Delta_k, a mistake in rfedavg's code.
    """
    errors.require_choice("fair_norm", fair_norm, ("update", "weighted"))
    return assemble(common, {}, aggregate=FairRatio(q=q, of_weighted=fair_norm == "weighted"))


def rfedavg(
    *,
    feature_strength: float = 1e-4,
    delta_at: str = "local_after",
    delta_scope: str = "participants",
    leave_one_out: bool = True,
    delta_batch: int = 0,
    feature_clip_norm: float = 1.0,
    feature_noise: float = 0.0,
    **common: Unpack[Common],
) -> Algorithm:
    """rFedAvg (rfedavg, Algorithm 1): local steps also pull the mean feature towards the other clients'.

    feature_strength  lambda, on the mean over the others (rfedavg's text drops 1/(N-1) in places; its code divides);
    delta_at          "local_after": delta^k at the client's own trained model, as rfedavg's theory and code have it;
                      "global_before": at the received model, as line 10 prints;
    delta_scope       "participants": targets from this round's cohort; "all": the last delta of every client;
    leave_one_out     False keeps a client's own delta in its target, as rfedavg's code does;
    delta_batch       records that delta is a mean of; 0 takes all (rfedavg's code: one batch);
    feature_noise     sigma_2 of rfedavg's privacy evaluation, with features clipped to `feature_clip_norm`; no epsilon
                      follows, because model uploads carry no noise.
    """
    errors.require_choice("delta_at", delta_at, ("local_after", "global_before"))
    features = _features(feature_clip_norm, feature_noise, common)
    matching = FeatureMatching(
        strength=feature_strength,
        release=features,
        when=delta_at,
        scope=delta_scope,
        leave_one_out=leave_one_out,
        one_batch=delta_batch,
    )
    return assemble(common, {"estimator": "renorm"}, corrections=(matching,))


def rfedavg_plus(
    *,
    feature_strength: float = 1e-4,
    delta_scope: str = "participants",
    leave_one_out: bool = True,
    delta_batch: int = 0,
    feature_clip_norm: float = 1.0,
    feature_noise: float = 0.0,
    **common: Unpack[Common],
) -> Algorithm:
    """rFedAvg+ (rfedavg, Algorithm 2): as rFedAvg, but every delta is taken at one new model, in a second exchange.

    A client receives one target instead of the table of all deltas.
    """
    features = _features(feature_clip_norm, feature_noise, common)
    matching = FeatureMatching(
        strength=feature_strength,
        release=features,
        when="global_after",
        scope=delta_scope,
        leave_one_out=leave_one_out,
        one_batch=delta_batch,
    )
    return assemble(common, {"estimator": "renorm"}, corrections=(matching,))


def _features(clip_norm: float, noise: float, common: Mapping[str, Any]) -> FeatureRelease:
    if not noise:
        return PlainFeatures()
    require_common(common)
    if common["batch_size"] is None:
        raise errors.refuse("feature_noise", noise, "0 for full batches", "rfedavg divides the noise by the batch size")
    return NoisyFeatures(clip_norm=clip_norm, noise_multiplier=noise, batch_size=float(common["batch_size"]))


def fedavgm(*, server_learning_rate: float = 1.0, momentum: float = 0.9, **common: Unpack[Common]) -> Algorithm:
    """FedAvg whose server has momentum: v <- momentum v + Delta, w <- w + rate v (Hsu et al. 2019)."""
    numbers = {"learning_rate": server_learning_rate, "momentum": momentum}
    return assemble(common, {}, server=Server(hyperparameters=numbers, factory=optax.sgd))


def fedadam(
    *,
    server_learning_rate: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.99,
    pi: float = 1e-3,
    **common: Unpack[Common],
) -> Algorithm:
    """FedAvg whose server moves by Adam without bias correction (Reddi et al. 2021, Algorithm 2; pi is their tau)."""
    numbers = {"learning_rate": server_learning_rate, "b1": b1, "b2": b2, "pi": pi}
    return assemble(common, {}, server=Server(hyperparameters=numbers, factory=adaptive_delta))


def fedyogi(
    *,
    server_learning_rate: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.99,
    pi: float = 1e-3,
    **common: Unpack[Common],
) -> Algorithm:
    """FedAvg whose server moves by Yogi (Reddi et al. 2021, Algorithm 2)."""
    numbers = {"learning_rate": server_learning_rate, "b1": b1, "b2": b2, "pi": pi}
    return assemble(common, {}, server=Server(hyperparameters=numbers, factory=adaptive_yogi))
