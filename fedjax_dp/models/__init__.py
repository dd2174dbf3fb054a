"""Models: what the simulator needs to know about one, and the ones that ship with it."""

from fedjax_dp.models.model import FeatureModel, FlaxModel, Model, cross_entropy, logistic_regression, mean_loss, mlp

__all__ = ["FeatureModel", "FlaxModel", "Model", "cross_entropy", "logistic_regression", "mean_loss", "mlp"]
