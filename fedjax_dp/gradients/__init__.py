"""Clipped sums of record gradients, for any function of one record, with few record gradients in memory."""

from fedjax_dp.gradients.clipped import (
    BatchGradient,
    clip_factors,
    clipped_sum,
    features,
    logits,
    loss_plan,
    losses,
    plain_sum,
    start_shapes,
)
from fedjax_dp.gradients.explain import Explanation, describe, explain
from fedjax_dp.gradients.model import FeatureModel, JitOfModel, Model, PartlyFrozenModel, joined, require_model, split

__all__ = [
    "BatchGradient",
    "Explanation",
    "FeatureModel",
    "JitOfModel",
    "Model",
    "PartlyFrozenModel",
    "clip_factors",
    "clipped_sum",
    "describe",
    "explain",
    "features",
    "joined",
    "logits",
    "loss_plan",
    "losses",
    "plain_sum",
    "require_model",
    "split",
    "start_shapes",
]
