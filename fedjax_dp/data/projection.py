"""Principal components in front of a small network, as in 000."""

from collections.abc import Iterator

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import Dataset

BLOCK = 8192  # records at once


def principal_components(dataset: Dataset, count: int, fit_rows: np.ndarray | None = None) -> Dataset:
    """Every record as its first `count` principal components of the pooled training records, centred (000, section V).

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

    def blocks(x: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(x), BLOCK):
            block = x[start : start + BLOCK].reshape(-1, rows.shape[1])
            yield (block.astype(np.float64) - dataset.shift) * dataset.scale

    mean = sum(block.sum(0) for block in blocks(fitted)) / len(fitted)
    spread = sum((block - mean).T @ (block - mean) for block in blocks(fitted))
    vectors = np.linalg.eigh(spread)[1][:, : -count - 1 : -1]
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(count)])  # eigenvectors have no sign

    def project(x: np.ndarray) -> np.ndarray:
        parts = [((block - mean) @ vectors).astype(np.float32) for block in blocks(x)]
        return np.concatenate(parts) if parts else np.zeros((0, count), np.float32)

    told = "principal components of all training records"
    return dataset._replace(
        x_train=project(dataset.x_train), x_test=project(dataset.x_test), scale=1.0, shift=0.0,
        learnt=(*dataset.learnt, told),
    )  # fmt: skip
