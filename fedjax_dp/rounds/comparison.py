"""Metrics over clients, each on its own part of the test set, and comparisons of their models."""

import math
from typing import NamedTuple

import numpy as np

from fedjax_dp import errors


class Standing(NamedTuple):
    """A metric over the clients that have test records."""

    mean: float  # over clients
    pooled: float  # over clients weighted by their records
    worst_tenth: float  # mean over the worst tenth of the clients, rounded up, so at least one
    variance: float  # over clients (divided by their number, not one less), squared


class Gain(NamedTuple):
    """Comparison of each client's personal model with the better of two other models."""

    no_worse: float  # share of clients whose personal model is at least as good as both
    regret: float  # mean advantage of the better one over the personal model; negative if personal models are better


def standing(values: np.ndarray, records: np.ndarray, better: int = 1) -> Standing:
    """Summary of a metric by client `(clients,)`, with each client's number of test records `(clients,)`.

    Clients without records are left out; NaN is left out except in `pooled`.
    better  1 if larger is better, -1 if smaller is.
    """
    there = _with_records(records)
    kept, weights = np.asarray(values, float)[there], np.asarray(records, float)[there]
    known = np.sort(kept[~np.isnan(kept)])
    tenth = math.ceil(known.size / 10)
    worst = known[:tenth] if better > 0 else known[known.size - tenth :]
    pooled = float(kept @ weights / weights.sum())
    return Standing(float(known.mean()), pooled, float(worst.mean()), float(known.var()))


def gain(personal: np.ndarray, others: list[np.ndarray], records: np.ndarray, better: int = 1) -> Gain:
    """Compare personal models with the better of the others for each client; arrays `(clients,)`."""
    there = _with_records(records)
    own, *rest = (better * np.asarray(each, float)[there] for each in (personal, *others))
    best = np.max(rest, axis=0)
    return Gain(float(np.mean(own >= best)), float(np.mean(best - own)))


def _with_records(records: np.ndarray) -> np.ndarray:
    there = np.asarray(records) > 0
    if not there.any():
        raise errors.refuse("test records of clients", "none", "some", "hold out records of each client")
    return there
