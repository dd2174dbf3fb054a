"""Sums of clipped per-record gradients, without building per-record gradients where the layers allow it."""

from fedjax_dp.gradients.apart import require_records_apart
from fedjax_dp.gradients.clipped import BatchGradient, clip_factors, clipped_sum, describe, plain_sum

__all__ = ["BatchGradient", "clip_factors", "clipped_sum", "describe", "plain_sum", "require_records_apart"]
