"""Models of images `(records, height, width)` or `(records, height, width, channels)`."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_dp import errors
from fedjax_dp.models.model import NetworkModel, require_sizes
from fedjax_dp.models.networks import Linen


def _with_channels(x: jax.Array) -> jax.Array:
    return x[..., None] if x.ndim == 3 else x


def halve(x: jax.Array) -> jax.Array:
    """Max pooling over 2 x 2 windows without an odd last row or column, by a reshape, fast under every transform."""
    records, height, width, channels = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    return even.reshape(records, height // 2, 2, width // 2, 2, channels).max((2, 4))


class _Cnn(nn.Module):
    """5x5 convolutions of 32 and 64 channels, each halved after ReLU, a dense layer of 512, class scores."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _with_channels(x)
        for channels in (32, 64):
            x = halve(nn.relu(nn.Conv(channels, (5, 5))(x)))
        x = nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.classes)(x)


def cnn(record_shape: tuple[int, ...], classes: int) -> NetworkModel:
    """McMahan's network, the CNN of rfedavg and, as acs_pldp gives no sizes, of acs_pldp.

    1,663,370 parameters on 28x28 and 10 labels. Its features (rfedavg's phi) are the 512 units before the output.
    """
    _require_image(record_shape, classes, 4)
    return NetworkModel(Linen(_Cnn(classes)), tuple(record_shape))


class _TutorialCnn(nn.Module):
    """Convolutions 8x8 and 4x4 of 16 and 32 channels, stride 2, each with a maximum over 2 x 2; dense layer of 32."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _with_channels(x)
        for channels, size, padding in ((16, 8, "SAME"), (32, 4, "VALID")):
            x = nn.relu(nn.Conv(channels, (size, size), (2, 2), padding)(x))
            x = jnp.maximum(x[:, 1:], x[:, :-1])  # overlapping windows, by slices
            x = jnp.maximum(x[:, :, 1:], x[:, :, :-1])
        x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.classes)(x)


def tutorial_cnn(record_shape: tuple[int, ...], classes: int) -> NetworkModel:
    """The network of the MNIST tutorials of TensorFlow Privacy and Opacus: 26,010 parameters on 28x28 and 10 labels."""
    _require_image(record_shape, classes, 13)
    return NetworkModel(Linen(_TutorialCnn(classes)), tuple(record_shape))


class _LeNet(nn.Module):
    """5x5 convolutions of 6 and 16 channels without padding, each halved after ReLU; dense layers of 120 and 84."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _with_channels(x)
        for channels in (6, 16):
            x = halve(nn.relu(nn.Conv(channels, (5, 5), padding="VALID")(x)))
        x = x.reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


def lenet(record_shape: tuple[int, ...], classes: int) -> NetworkModel:
    """The network of niid_bench, LeNet-5 with ReLU and maxima: 44,426 parameters on 28x28, 62,006 on 32x32x3."""
    _require_image(record_shape, classes, 16)
    return NetworkModel(Linen(_LeNet(classes)), tuple(record_shape))


class _SimpleCnn(nn.Module):
    """3x3 convolutions of 32 and 64 channels without padding, halved once; a dense layer of 128; dropout after both."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        init = nn.initializers.xavier_uniform()
        x = _with_channels(x)
        for channels in (32, 64):
            x = nn.relu(nn.Conv(channels, (3, 3), padding="VALID", kernel_init=init)(x))
        x = nn.Dropout(0.25, deterministic=not train)(halve(x)).reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(128, kernel_init=init)(x))
        return nn.Dense(self.classes, kernel_init=init)(nn.Dropout(0.5, deterministic=not train)(x))


def simple_cnn(record_shape: tuple[int, ...], classes: int) -> NetworkModel:
    """The network of pfl-research's benchmark on CIFAR-10: 1,626,442 parameters there."""
    _require_image(record_shape, classes, 6)
    return NetworkModel(Linen(_SimpleCnn(classes), mode="train"), tuple(record_shape))


class _GroupNormCnn(nn.Module):
    """3x3 convolutions with group normalisation, halved three times, averaged over positions."""

    classes: int
    widths: tuple[int, ...] = (16, 32, 64)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _with_channels(x)
        for width in self.widths:
            x = halve(nn.relu(nn.GroupNorm(num_groups=8)(nn.Conv(width, (3, 3), use_bias=False)(x))))
        return nn.Dense(self.classes)(jnp.mean(x, (1, 2)))


def group_norm_cnn(record_shape: tuple[int, ...], classes: int) -> NetworkModel:
    """A small network without batch statistics, which would mix records: 24,346 parameters on 32x32x3 and 10 labels."""
    _require_image(record_shape, classes, 8)
    return NetworkModel(Linen(_GroupNormCnn(classes)), tuple(record_shape))


def _require_image(record_shape: tuple[int, ...], classes: int, least: int) -> None:
    require_sizes(record_shape, classes)
    if len(record_shape) not in (2, 3) or min(record_shape[:2]) < least:
        wanted = f"images of at least {least} x {least}, with or without channels"
        remedy = "channels stand last, np.moveaxis(x, 1, -1); or use an mlp"
        raise errors.refuse("record_shape", tuple(record_shape), wanted, remedy)
