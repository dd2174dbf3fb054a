"""Checks that noise is white, normal, independent, and of the stated standard deviation, by NumPy and SciPy."""

import math
from collections.abc import Callable

import numpy as np
import scipy

from fedjax_dp.inspection.verdict import (
    certainty,
    detectable_deviation,
    largest_deviate,
    limit,
    require,
    require_usual,
    square_deviate,
    variance_deviate,
)

COORDINATES = 32  # coordinates that are compared in pairs
PAIRED = 4096  # rows that are compared in pairs


def examine_noise(noise: np.ndarray, places: list[str], smooth: bool = True) -> None:
    """Check that noise `(trials, places, size)` consists of independent standard normals.

    smooth  whether its law is compared with the normal law too; not for integer noise of few steps.
    """
    _, count, size = noise.shape
    error = 1 / math.sqrt(2 * noise.size)
    require_usual(
        "standard deviation of the noise",
        variance_deviate(noise),
        "1",
        f"{math.sqrt(np.mean(noise**2)):.4g} of what the accountants count",
        f", off by {detectable_deviation(error):.1%} is missed once in 1000",
    )
    across = noise.transpose(1, 0, 2).reshape(count, -1)
    require_uncorrelated("clients, rounds and steps", across, places)
    some = np.unique(np.linspace(0, size - 1, min(size, COORDINATES)).astype(int))
    require_uncorrelated("coordinates", noise[..., some].reshape(-1, some.size).T, [f"coordinate {j}" for j in some])
    require_uncorrelated("runs", np.stack([noise[:-1].ravel(), noise[1:].ravel()]), ["a run", "the next"])
    for what, axes, names in (
        ("place", (0, 2), places),
        ("coordinate", (0, 1), [f"coordinate {j}" for j in range(size)]),
    ):
        off = np.asarray(variance_deviate(noise, axes))
        worst = int(np.argmax(np.abs(off)))
        value = math.sqrt(np.mean(noise**2, axes)[worst])
        error = math.sqrt(off.size / (2 * noise.size))
        require_usual(
            f"standard deviation of the noise by {what}",
            off,
            "1",
            f"{value:.4g} of what is stated at {names[worst]}",
            f", off by {detectable_deviation(error, off.size):.0%} is missed once in 1000",
        )
        means = noise.mean(axes) * math.sqrt(noise.size / off.size)
        off_by = f"{largest_deviate(means):.3g} standard errors at {names[int(np.argmax(np.abs(means)))]}"
        require_usual(f"mean of the noise by {what}", means, "0", off_by)
    if smooth:
        flat = noise.ravel()
        kurtosis = (np.mean(flat**4) - 3) * math.sqrt(flat.size / 96)
        p = float(scipy.stats.kstest(flat, "norm").pvalue)
        require(p > 1e-6, "law of the noise (Kolmogorov-Smirnov)", f"p = {p:.2g}", "above 1e-06", certainty())
        require_usual("fourth moment of the noise", kurtosis, "3", f"{np.mean(flat**4):.4g}")


def examine_sizes(squares: np.ndarray, numbers: int, name: Callable[[int], str], least: bool = False) -> None:
    """Check sums of squares `(places,)` of `numbers` standard normals each, alone and in blocks of 2, 4, 8, ...

    name   names a place;
    least  whether larger ones are accepted too.
    """
    blocks, length = squares, 1
    while True:
        away = np.asarray(square_deviate(blocks, numbers * length))
        worst = int(np.argmin(away) if least else np.argmax(np.abs(away)))
        require(
            away[worst] > -limit(2 * squares.size) and (least or away[worst] < limit(2 * squares.size)),
            f"standard deviation of the noise at {length} place{'s' if length > 1 else ''}",
            f"{math.sqrt(blocks[worst] / numbers / length):.4g} of what is stated from {name(worst * length)} on",
            "1 or more" if least else "1",
            certainty(2 * squares.size),
        )
        if blocks.size < 2:
            return
        blocks, length = blocks[: blocks.size // 2 * 2].reshape(-1, 2).sum(1), 2 * length


def require_uncorrelated(what: str, rows: np.ndarray, names: list[str], allowed: float = 0.0) -> None:
    """Check that pairs of rows have the correlation of independent standard normals, up to `allowed`.

    If there are many rows, only some pairs are compared.
    """
    if len(rows) < 2:
        return
    if len(rows) > PAIRED:  # the first rows, and others evenly spaced
        some = np.unique([*range(PAIRED // 2), *np.linspace(0, len(rows) - 1, PAIRED // 2).astype(int)])
        rows, names = rows[some], [names[i] for i in some]
    length = rows.shape[1]
    products = np.triu(rows @ rows.T / length, 1)
    a, b = np.unravel_index(np.argmax(np.abs(products)), products.shape)
    pairs = len(rows) * (len(rows) - 1) // 2
    # products of normals have heavier tails than a normal: r with Student's law, as for a correlation coefficient
    size = math.sqrt(float(np.mean(rows[a] ** 2)) * float(np.mean(rows[b] ** 2)))  # 0 where there is no noise
    r = float(products[a, b]) / max(size, 1e-150)
    chance = 1 / math.sqrt(1 + (length - 1) / scipy.stats.t.isf(0.5e-6 / pairs, length - 1) ** 2)
    bound = max(chance, allowed)
    require(
        abs(r) < bound,
        f"noise is independent between {what}",
        f"correlation {r:.3g} of {names[a]} and {names[b]}",
        "0",
        f"{certainty(pairs)}, {bound + 3.1 / math.sqrt(length):.2g} is missed once in 1000",
    )
