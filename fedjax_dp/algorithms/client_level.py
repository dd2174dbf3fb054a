"""Entries that noise the updates of whole clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from fedjax_dp import errors, parts
from fedjax_dp.algorithms.assemble import ClientClipNorm, ClientNoiseMultiplier, Common, assemble
from fedjax_dp.algorithms.entry import entry
from fedjax_dp.options import about

if TYPE_CHECKING:
    from fedjax_dp.rounds.algorithm import Algorithm

WHOLE_CLIENTS = {
    "num_clients": 100,
    "cohort_size": 50,
    "batch_size": 5,
    "local_steps": 10,
    "learning_rate": 0.3,
    "clip_norm": 0.5,
    "epsilon": 8.0,
    "delta": 1e-3,
}


def _by_noise(explicit: Mapping[str, Any]) -> dict[str, Any]:
    if explicit.get("noise") != "shared":
        return {"cohort": "poisson"}
    # the fixed point is the noise's, too: float32 carries its integers up to a size
    return {"cohort": "uniform", "secure": True, "fractional_bits": 10}


def _presets(explicit: Mapping[str, Any]) -> dict[str, Any]:  # integer noise has one accountant
    integers = {"accountant": "rdp"} if explicit.get("noise") == "shared" else {}
    deployed = explicit.get("deployment_cohort")  # whose bits are noised, not those of a cohort that stands for it
    return WHOLE_CLIENTS | integers | ({"bit_noise": _bit_noise(deployed)} if isinstance(deployed, int) else {})


def _bit_noise(cohort_size: int) -> float:
    return max(cohort_size / 20, 1.0)


@entry("McMahan et al. 2018; Andrew et al. 2021", defaults=_by_noise, presets=_presets, fixes=("estimator",))
def dp_fedavg(
    *,
    clip_norm: ClientClipNorm,
    noise_multiplier: ClientNoiseMultiplier = 0.0,
    noise: Annotated[Literal["server", "shared"], about("", group="privacy")] = "server",
    clip_by: Annotated[Literal["update", "tensor"], about("", group="privacy")] = "update",
    adaptive_clip: Annotated[bool, about("", group="privacy")] = False,
    clip_quantile: Annotated[float, about("", group="privacy", beside={"adaptive_clip": True})] = 0.5,
    clip_rate: Annotated[float, about("", group="privacy", beside={"adaptive_clip": True})] = 0.2,
    bit_noise: Annotated[float | None, about("", group="privacy", beside={"adaptive_clip": True})] = None,
    weight_cap: float | None = None,
    least_weight: float | None = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """DP-FedAvg at client level (McMahan et al. 2018): clipped updates, bounded weights, noise on their mean.

    Default cohort: Poisson.

    Args:
        noise: "server", or "shared": each client adds integer Skellam noise before a secure sum
        clip_by: "update", or "tensor": each of m tensors to S / sqrt(m)
        adaptive_clip: the clip norm follows a quantile of the updates' norms (Andrew et al. 2021)
        clip_quantile: which quantile the clip norm follows
        clip_rate: how fast it follows
        bit_noise: noise on the sum of the bits that tell it, a twentieth of the cohort unless given
        weight_cap: share of all records from which a client has full weight (w_hat / n); all alike unless given
        least_weight: estimator f_f, over the expected weight q W, unless given; a number m: f_c, over max(m q W,
            realised weight), whose sensitivity is twice as large
    """
    if adaptive_clip and (clip_by == "tensor" or noise == "shared"):
        raise errors.refuse("adaptive_clip", True, "used with clip_by update and noise server")
    upload: parts.UpdatePrivatizer = parts.ClientGaussian(
        clip_norm=clip_norm, noise_multiplier=noise_multiplier, by_tensor=clip_by == "tensor"
    )
    if noise == "shared":
        upload = parts.ClientSkellam(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    if adaptive_clip:
        upload = parts.AdaptiveClientGaussian(
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            quantile=clip_quantile,
            rate=clip_rate,
            bit_noise=_bit_noise(common["cohort_size"] or 20) if bit_noise is None else bit_noise,
        )
    aggregate = parts.BoundedMean(cap=weight_cap, least=least_weight)
    return assemble(common, upload=upload, aggregate=aggregate)


def _apart(explicit: Mapping[str, Any]) -> dict[str, Any]:
    momentum = {"momentum": 0.9} if explicit.get("server", "sgd") == "sgd" else {}
    return {"cohort": "cyclic", "estimator": "mean"} | momentum


@entry("Kairouz et al. 2021", defaults=_apart, presets=WHOLE_CLIENTS)
def dp_ftrl(
    *,
    clip_norm: ClientClipNorm,
    noise_multiplier: ClientNoiseMultiplier = 0.0,
    bands: Annotated[int, about("", group="privacy")] = 8,
    **common: Unpack[Common],
) -> "Algorithm":
    """DP-FTRL at client level (Kairouz et al. 2021): noise correlated over rounds, so that sums of it stay small.

    Default cohort: cyclic, so that a client's rounds are far apart; the server has momentum.

    Args:
        bands: rounds whose noise is taken back by later noise, a banded inverse square root; 1 is white noise
    """
    from fedjax_dp.accounting.correlated import inverse_root_bands

    errors.require_integer("bands", bands, 1, 10_000)  # each is held beside the model
    source = parts.BandedNoise(coefficients=inverse_root_bands(bands))
    upload = parts.ClientGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, source=source)
    return assemble(common, upload=upload)
