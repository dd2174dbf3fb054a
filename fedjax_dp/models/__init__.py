"""Models: what the simulator needs to know about one, and the ones that ship with it."""

from fedjax_dp.models.model import FlaxModel, Model, cross_entropy, logistic_regression

__all__ = ["FlaxModel", "Model", "cross_entropy", "logistic_regression"]
