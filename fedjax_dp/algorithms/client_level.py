"""Entries that noise the updates of whole clients."""

from typing import Any, Unpack

import optax

from fedjax_dp import errors
from fedjax_dp.accounting.correlated import inverse_root_bands
from fedjax_dp.algorithms.assemble import Common, add_update, assemble, require_common
from fedjax_dp.parts.aggregation import BoundedMean
from fedjax_dp.parts.client_privacy import AdaptiveClientGaussian, ClientGaussian, ClientSkellam, Upload
from fedjax_dp.parts.noise import BandedNoise
from fedjax_dp.parts.server_optimizers import Server
from fedjax_dp.rounds.algorithm import Algorithm


def dp_fedavg(
    *,
    clip_norm: float,
    noise_multiplier: float = 0.0,
    weight_cap: float | None = None,
    least_weight: float | None = None,
    clip_by: str = "update",
    adaptive_clip: bool = False,
    clip_quantile: float = 0.5,
    clip_rate: float = 0.2,
    bit_noise: float | None = None,
    noise: str = "server",
    server_learning_rate: float = 1.0,
    momentum: float = 0.0,
    **common: Unpack[Common],
) -> Algorithm:
    """DP-FedAvg at client level (McMahan et al. 2018): clipped updates, bounded weights, noise on their mean.

    weight_cap     share of all records from which a client has full weight (w_hat / n); None weighs all alike;
    least_weight   None: estimator f_f, over the expected weight q W; a number m: f_c, over max(m q W, realised weight),
                   whose sensitivity is twice as large;
    clip_by        "update", or "tensor": each of m tensors to S / sqrt(m);
    adaptive_clip  the clip norm follows the `clip_quantile` of the updates' norms at `clip_rate`; `bit_noise` on the
                   sum of the bits, a twentieth of the cohort unless given (Andrew et al. 2021);
    noise          "server", or "shared": each client adds integer Skellam noise before a secure sum.
    Default cohort: Poisson.
    """
    errors.require_choice("clip_by", clip_by, ("update", "tensor"))
    errors.require_choice("noise", noise, ("server", "shared"))
    if adaptive_clip and (clip_by == "tensor" or noise == "shared"):
        raise errors.refuse("adaptive_clip", True, "used with clip_by update and noise server")
    require_common(common)
    upload: Upload = ClientGaussian(
        clip_norm=clip_norm, noise_multiplier=noise_multiplier, by_tensor=clip_by == "tensor"
    )
    if noise == "shared":
        upload = ClientSkellam(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    if adaptive_clip:
        upload = AdaptiveClientGaussian(
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            quantile=clip_quantile,
            rate=clip_rate,
            bit_noise=max((common["cohort_size"] or 20) / 20, 1.0) if bit_noise is None else bit_noise,
        )
    aggregate = BoundedMean(cap=weight_cap, least=least_weight)
    own: dict[str, Any] = {"cohort": "uniform" if noise == "shared" else "poisson", "secure": noise == "shared"}
    if noise == "shared":
        own["fractional_bits"] = 10  # of the noise, too: float32 carries its integers up to a size
    return assemble(common, own, upload=upload, aggregate=aggregate, server=add_update(server_learning_rate, momentum))


def dp_ftrl(
    *,
    clip_norm: float,
    noise_multiplier: float = 0.0,
    bands: int = 8,
    server_learning_rate: float = 1.0,
    momentum: float = 0.9,
    **common: Unpack[Common],
) -> Algorithm:
    """DP-FTRL at client level (Kairouz et al. 2021): noise correlated over rounds, so that sums of it stay small.

    bands  rounds whose noise is taken back by later noise, a banded inverse square root; 1 is white noise.
    Default cohort: cyclic, so that a client's rounds are far apart; the server has momentum.
    """
    errors.require_count("bands", bands)
    source = BandedNoise(coefficients=inverse_root_bands(bands))
    upload = ClientGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier, source=source)
    server = Server(hyperparameters={"learning_rate": server_learning_rate, "momentum": momentum}, factory=optax.sgd)
    return assemble(common, {"cohort": "cyclic", "estimator": "mean"}, upload=upload, server=server)
