"""Entries that add noise to the updates of whole clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from fedjax_dp import errors, parts
from fedjax_dp.algorithms.assemble import ClientClipNorm, ClientNoiseMultiplier, Common, assemble
from fedjax_dp.algorithms.entry import PrepareContext, entry
from fedjax_dp.options import about, is_part
from fedjax_dp.parts.choices import choice_of

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


def _cohort_and_transport(explicit: Mapping[str, Any]) -> dict[str, Any]:
    if explicit.get("noise") != "shared":
        return {"cohort": "poisson"}
    # the noise has the same fixed point: float32 holds its integers exactly only up to a size
    return {"cohort": "uniform", "secure": True, "fractional_bits": 10}


def _presets(explicit: Mapping[str, Any]) -> dict[str, Any]:
    accountant = {"accountant": "rdp"} if explicit.get("noise") == "shared" else {}  # the only one for integer noise
    deployed = explicit.get("deployment_cohort")  # the noise is for its bits, not for those of the simulated cohort
    return WHOLE_CLIENTS | accountant | ({"bit_noise": _bit_noise(deployed)} if isinstance(deployed, int) else {})


def _bit_noise(cohort_size: int) -> float:
    return max(cohort_size / 20, 1.0)


@entry(
    "McMahan et al. 2018; Andrew et al. 2021", defaults=_cohort_and_transport, presets=_presets, fixes=("estimator",)
)
def dp_fedavg(
    *,
    clip_norm: ClientClipNorm,
    noise_multiplier: ClientNoiseMultiplier = 0.0,
    noise: Annotated[Literal["server", "shared"], about("", group="privacy")] = "server",
    clip_by: Annotated[Literal["update", "tensor"], about("", group="privacy")] = "update",
    adaptive_clip: Annotated[bool, about("", group="privacy")] = False,
    clip_quantile: Annotated[float, about("", group="privacy", beside={"adaptive_clip": True})] = 0.5,
    clip_rate: Annotated[float, about("", group="privacy", beside={"adaptive_clip": True})] = 0.2,
    bit_noise: Annotated[
        float | None, about("", group="privacy", beside={"adaptive_clip": True}, default="cohort_size / 20, at least 1")
    ] = None,
    weight_cap: Annotated[float | None, about("", default="equal weights")] = None,
    least_weight: Annotated[float | None, about("", default="estimator f_f")] = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """DP-FedAvg at client level (McMahan et al. 2018): clipped updates, bounded weights, noise on their mean.

    The default cohort is Poisson.

    Args:
        noise: who adds the noise; "server"; "shared": each client adds integer Skellam noise before the secure sum
        clip_by: what is clipped; "update": the whole update; "tensor": each of its m tensors, to S / sqrt(m)
        adaptive_clip: let the clip norm follow a quantile of the update norms (Andrew et al. 2021)
        clip_quantile: quantile of the update norms that the clip norm follows
        clip_rate: learning rate of the clip norm
        bit_noise: standard deviation of the noise on the number of updates within the clip norm
        weight_cap: share of all records from which on a client has full weight (w_hat / n)
        least_weight: m of estimator f_c, which divides by max(m q W, realised weight), with twice the sensitivity of
            f_f, which divides by the expected weight q W
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


def _ftrl_defaults(explicit: Mapping[str, Any]) -> dict[str, Any]:
    momentum = {"momentum": 0.9} if explicit.get("server", "sgd") == "sgd" else {}
    return {
        "cohort": "cyclic",
        "estimator": "mean" if _has_fixed_size(explicit.get("cohort")) else "wor_delta",
    } | momentum


def _has_fixed_size(cohort: Any) -> bool:
    """Whether a cohort, of a name or None for the default, has the same size in all rounds."""
    part = cohort if cohort is None or is_part(cohort) else choice_of("cohort", cohort).home
    return cohort is None or getattr(part, "fixed", False) is True


def _least_error_noise(
    known: PrepareContext,
    options: Mapping[str, Any],
    *,
    correlation: Annotated[
        Literal["auto", "none", "bands", "blt", "inverse-root"],
        about("how noise is correlated over rounds; auto: with the least error in the model at the budget", "privacy"),
    ] = "auto",
    buffers: Annotated[
        int | None,
        about("buffers of the noise", "privacy", beside={"correlation": "blt"}, default="the best of 1 to 3"),
    ] = None,
) -> dict[str, Any]:
    """The noise source with the least error, and the cohorts that it is for unless the run has its own."""
    from fedjax_dp.algorithms.noise_choice import choose_noise  # loads JAX

    own = {name: options[name] for name in ("cohort", "estimator", "bands") if name in known.explicit}
    _require_bands(own.get("bands", 1))
    return choose_noise(known, options, own, correlation, buffers)


def _require_bands(bands: Any) -> None:
    errors.require_integer("bands", bands, 1, 10_000)  # each round draws or reads this many noise vectors


@entry(
    "Kairouz et al. 2021",
    defaults=_ftrl_defaults,
    presets=WHOLE_CLIENTS,
    fixes=("source",),
    prepare=_least_error_noise,
)
def dp_ftrl(
    *,
    clip_norm: ClientClipNorm,
    noise_multiplier: ClientNoiseMultiplier = 0.0,
    bands: Annotated[int, about("", group="privacy", default="the best of powers of two")] = 8,
    source: Any = None,
    **common: Unpack[Common],
) -> "Algorithm":
    """DP-FTRL at client level (Kairouz et al. 2021): noise correlated over rounds, so that its sums stay small.

    The default cohort is cyclic, so that a client's rounds are far apart. The server has momentum. A run takes the
    noise with the least error at the budget (Choquette-Choo et al. 2023), and the cohort for which it was selected.

    Args:
        bands: number of rounds over which the noise is correlated; from Python of a banded inverse square root, where 1
            is independent noise
        source: where the noise comes from, a part
    """
    from fedjax_dp.accounting.correlated import inverse_root_bands

    _require_bands(bands)
    source = parts.BandedNoise(bands=inverse_root_bands(bands)) if source is None else source
    upload = parts.ClientGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, source=source)
    return assemble(common, upload=upload)
