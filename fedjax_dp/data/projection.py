"""Fewer features in front of a model: principal components, as in dpnfl, or the low frequencies of images."""

from collections.abc import Iterator

import numpy as np
from scipy import fft

from fedjax_dp import errors
from fedjax_dp.data.store import Dataset

BLOCK = 8192  # records at once


def principal_components(dataset: Dataset, count: int, fit_rows: np.ndarray | None = None) -> Dataset:
    """Every record as its first `count` principal components of all training records, centred (dpnfl, section V).

    `fit_rows` are the training records that they are computed from, all unless given. That is done without privacy;
    `learnt` says so, and a Guarantee repeats it.
    """
    errors.require_count("pca", count)
    rows = dataset.x_train.reshape(len(dataset.x_train), -1)
    fitted = rows if fit_rows is None else rows[fit_rows]
    if dataset.tokens or count > min(fitted.shape):
        raise errors.refuse(
            "pca", count, f"at most {min(fitted.shape)}, the smaller of records and features, and no tokens", "lower it"
        )

    def flat(x: np.ndarray) -> Iterator[np.ndarray]:
        return (block.reshape(len(block), -1) for block in _blocks(dataset, x))

    mean = sum(block.sum(0) for block in flat(fitted)) / len(fitted)
    spread = sum((block - mean).T @ (block - mean) for block in flat(fitted))
    vectors = np.linalg.eigh(spread)[1][:, : -count - 1 : -1]
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(count)])  # eigenvectors have no sign

    def project(x: np.ndarray) -> np.ndarray:
        parts = [((block - mean) @ vectors).astype(np.float32) for block in flat(x)]
        return np.concatenate(parts) if parts else np.zeros((0, count), np.float32)

    fitted_on = "principal components of all training records"
    return dataset._replace(
        x_train=project(dataset.x_train),
        x_test=project(dataset.x_test),
        scale=1.0,
        shift=0.0,
        learnt=(*dataset.learnt, fitted_on),
    )


def low_frequencies(dataset: Dataset, count: int) -> Dataset:
    """Every image as its `count` x `count` lowest cosine frequencies (orthonormal DCT-II).

    A fixed linear map that learns nothing from records, so it costs no privacy. Noise on a linear model then falls on
    smooth images only, where nearly all of the signal is: a model of fewer numbers needs less of it.
    """
    errors.require_count("cosines", count)
    shape = dataset.x_train.shape[1:]
    if dataset.tokens or len(shape) not in (2, 3) or not 1 < count <= min(shape[:2]):
        wanted = "from 2 to the side of an image, which records must be"
        raise errors.refuse("cosines", f"{count} for records of shape {shape}", wanted, "leave it out")

    # Two products with few cosines are many times faster than all frequencies by a fast transform.
    down, across = (fft.dct(np.eye(side), axis=0, norm="ortho")[:count] for side in shape[:2])

    def transform(x: np.ndarray) -> np.ndarray:
        parts = []
        for block in _blocks(dataset, x):
            low = np.einsum("ri,nij...,sj->nrs...", down, block, across, optimize=True)
            parts.append(low.reshape(len(low), -1).astype(np.float32))
        return np.concatenate(parts)

    return dataset._replace(x_train=transform(dataset.x_train), x_test=transform(dataset.x_test), scale=1.0, shift=0.0)


def _blocks(dataset: Dataset, x: np.ndarray) -> Iterator[np.ndarray]:
    """The records as the model's input in float64, block by block."""
    for start in range(0, len(x), BLOCK):
        yield (x[start : start + BLOCK].astype(np.float64) - dataset.shift) * dataset.scale
