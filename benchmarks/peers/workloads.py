"""What every contender computes: sizes, records, and weights at which clipped gradients are compared. NumPy only.

W1       100 clients x 600 records x 784 features, softmax regression (7,850 parameters), cohort 10, B=10, tau=50;
W2       100 clients x 500 records x 60 features, MLP 60-1200-10 (85,210 parameters), cohort 10, B=50, tau=50;
W3       100 clients x 600 images of 28x28, CNN (1,663,370 parameters), cohort 10, B=32, tau=10, without privacy;
W3dp     the CNN with clipping and noise, cohort 2, tau=5;
cifar    1,000 clients x 50 images of 32x32x3, CNN (1,626,442 parameters), cohort 50, B=10, one epoch (tau=5), rate 0.1:
         what pfl-research's benchmark of image classification runs for 1,500 rounds, without its dropout. Without
         privacy, with noise on the sum of clipped client updates ("cifar-client", clip norm 0.4 there), and with
         per-record clipping and noise ("cifar-record"). "cifar-images" is the benchmark itself on as many images of
         CIFAR-10 as are at hand: its dropout, and "cifar-images-client" with the noise of a deployment with cohorts of
         1,000 at epsilon 2, 0.616 there; those that look at the test set after a turn train on from turn to turn.

Clip norm 1 and noise multiplier 1, on records unless told otherwise; the update of a round is the mean over the cohort.
"""

import os
from typing import NamedTuple

import numpy as np

CLASSES, NOISE_MULTIPLIER = 10, 1.0


class Workload(NamedTuple):
    name: str
    clients: int
    records: int
    shape: tuple[int, ...]
    model: str  # of `layers`
    cohort: int
    batch: int
    steps: int
    private: str = "record"  # record, client, none
    rate: float = 0.01
    clip_norm: float = 1.0
    images: bool = False  # CIFAR-10 of $PEERS_IMAGES, with dropout
    noise_multiplier: float = NOISE_MULTIPLIER


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", 100, 600, (784,), "logistic", 10, 10, 50),
        Workload("W2", 100, 500, (60,), "mlp", 10, 50, 50),
        Workload("W3", 100, 600, (28, 28, 1), "cnn", 10, 32, 10, private="none"),
        Workload("W3dp", 100, 600, (28, 28, 1), "cnn", 2, 32, 5),
        Workload("cifar", 1000, 50, (32, 32, 3), "pfl", 50, 10, 5, private="none", rate=0.1),
        Workload("cifar-client", 1000, 50, (32, 32, 3), "pfl", 50, 10, 5, private="client", rate=0.1, clip_norm=0.4),
        Workload("cifar-record", 1000, 50, (32, 32, 3), "pfl", 50, 10, 5, rate=0.1),
        *(
            Workload(name, 250, 50, (32, 32, 3), "pfl", 50, 10, 5, private, 0.1, 0.4, True, 0.616 * 50 / 1000)
            for name, private in (("cifar-images", "none"), ("cifar-images-client", "client"))
        ),
    )
}


def named(item: str) -> Workload:
    """A workload by its name, or as NAME:COHORT with another cohort, of as many clients as that needs."""
    name, _, cohort = item.partition(":")
    w = WORKLOADS[name]
    return w._replace(cohort=int(cohort), clients=max(w.clients, int(cohort))) if cohort else w


def records(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random images `(clients, records, *shape)` uint8, labels `(clients, records)`; time does not depend on them."""
    if w.images:
        x, y = images()[:2]
        return x.reshape(w.clients, w.records, *w.shape), y.reshape(w.clients, w.records)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (w.clients, w.records, *w.shape)).astype(np.uint8)
    return x, rng.integers(0, CLASSES, (w.clients, w.records)).astype(np.int32)


def images() -> tuple[np.ndarray, ...]:
    """CIFAR-10: images and labels to train on, in the order of the clients, and those of the test set."""
    return tuple(np.load(os.environ["PEERS_IMAGES"]).values())


class Layer(NamedTuple):
    """A convolution (height, width, in, out) or a dense layer (in, out), with a bias (out,)."""

    shape: tuple[int, ...]
    padding: str = "SAME"
    relu: bool = True
    halve: bool = False  # the maximum over 2 x 2 afterwards


def layers(w: Workload) -> list[Layer]:
    if w.model == "logistic":
        return [Layer((*w.shape, CLASSES), relu=False)]
    if w.model == "mlp":
        return [Layer((*w.shape, 1200)), Layer((1200, CLASSES), relu=False)]
    if w.model == "cnn":
        return [
            Layer((5, 5, 1, 32), halve=True),
            Layer((5, 5, 32, 64), halve=True),
            Layer((3136, 512)),
            Layer((512, CLASSES), relu=False),
        ]
    return [
        Layer((3, 3, 3, 32), "VALID"),
        Layer((3, 3, 32, 64), "VALID", halve=True),
        Layer((12544, 128)),
        Layer((128, CLASSES), relu=False),
    ]


def weights(w: Workload) -> list[tuple[np.ndarray, np.ndarray]]:
    """Kernels and biases, random, at which all compute the clipped gradient of one batch."""
    rng = np.random.default_rng(1)
    return [
        (
            (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32),
            (0.1 * rng.normal(size=shape[-1])).astype(np.float32),
        )
        for shape in (layer.shape for layer in layers(w))
    ]


def one_batch(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The batch of that gradient: x `(B, *shape)` float32 in [0, 1] and labels."""
    x, y = records(w._replace(clients=1))
    return (x[0, : w.batch] / 255).astype(np.float32), y[0, : w.batch]
