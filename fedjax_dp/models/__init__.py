"""Models: what the simulator needs of one, and those of the papers."""

from fedjax_dp.models.dense import logistic_regression, mlp
from fedjax_dp.models.model import FeatureModel, FlaxModel, Model, cross_entropy, mean_loss
from fedjax_dp.models.text import Frozen, lstm, random_embedding
from fedjax_dp.models.vision import cnn, group_norm_cnn

__all__ = [
    "FeatureModel",
    "FlaxModel",
    "Frozen",
    "Model",
    "cnn",
    "cross_entropy",
    "group_norm_cnn",
    "logistic_regression",
    "lstm",
    "mean_loss",
    "mlp",
    "random_embedding",
]
