"""Sums of clipped per-record gradients, without building per-record gradients where the layers allow it."""

from fedjax_dp.gradients.clipped import BatchGradient, clipped_sum, describe, plain_sum

__all__ = ["BatchGradient", "clipped_sum", "describe", "plain_sum"]
