"""Models of dense layers: softmax regression and the multilayer perceptron."""

import math

import jax
from flax import linen as nn

from fedjax_dp.data.store import FederatedData
from fedjax_dp.models.model import NetworkModel, require_sizes
from fedjax_dp.models.networks import Linen


class _Softmax(nn.Module):
    """Flattened features to class scores."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        return nn.Dense(self.classes, kernel_init=nn.initializers.zeros)(flat)


def logistic_regression(record_shape: tuple[int, ...], classes: int) -> NetworkModel:
    """Multinomial logistic regression on flattened features, started at zero (dpnfl's LR; 7,850 numbers on MNIST)."""
    require_sizes(record_shape, classes)
    return NetworkModel(Linen(_Softmax(classes)), tuple(record_shape))


def usual_model(data: FederatedData) -> NetworkModel:
    """The default model: `logistic_regression` with the loss of the data's task."""
    return logistic_regression(data.record_shape, data.classes).for_data(data)


class _Mlp(nn.Module):
    """Dense layers with ReLU between them."""

    hidden: tuple[int, ...]
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


def mlp(record_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (64,)) -> NetworkModel:
    """A multilayer perceptron; its features are the last hidden layer.

    dpnfl's network is hidden=(1200,) on 60 principal components (85,210 parameters), cpfed's hidden=(64, 32) on Adult's
    102 columns (8,738).
    """
    require_sizes(record_shape, classes, hidden)
    return NetworkModel(Linen(_Mlp(tuple(hidden), classes)), tuple(record_shape))
