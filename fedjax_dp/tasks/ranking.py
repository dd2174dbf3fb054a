"""Metrics of ranks: average precision and the area under the ROC curve, of many groups of records at once.

Functions take flat arrays `(records,)`: scores, truth (0 or 1), and the group of each record; they return one number
per group. NumPy, as they sort all scores.
"""

from typing import NamedTuple

import numpy as np

from fedjax_dp.tasks.task import quotient

BUCKETS = 200  # of probabilities, in the approximate variant


class _Blocks(NamedTuple):
    """Records of one group with one score, in falling order of scores within each group."""

    group: np.ndarray  # (blocks,)
    hits: np.ndarray  # positives in the block, and in those above it, itself among them
    hits_so_far: np.ndarray
    records: np.ndarray
    records_so_far: np.ndarray


def average_precision(scores: np.ndarray, truth: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """AP = sum over distinct scores, falling, of (R_k - R_(k-1)) P_k, `(groups,)`; NaN without a positive."""
    blocks = _blocks(scores, truth, group)
    positives = np.bincount(group, truth, groups)
    found = np.bincount(blocks.group, blocks.hits * blocks.hits_so_far / blocks.records_so_far, groups)
    return quotient(found, positives)


def area_under_curve(scores: np.ndarray, truth: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Probability that a positive scores above a negative, ties counting half, `(groups,)`; NaN without one of each."""
    blocks = _blocks(scores, truth, group)
    positives = np.bincount(group, truth, groups)
    negatives = np.bincount(group, minlength=groups) - positives
    above = blocks.hits_so_far - blocks.hits
    found = np.bincount(blocks.group, (blocks.records - blocks.hits) * (above + blocks.hits / 2), groups)
    return quotient(found, positives * negatives)


def bucket_numbers(scores: np.ndarray) -> np.ndarray:
    """The bucket of each logit's probability, of BUCKETS buckets of equal width."""
    with np.errstate(over="ignore"):
        probabilities = 1 / (1 + np.exp(-scores))
    return np.minimum(np.floor(probabilities * BUCKETS), BUCKETS - 1)


def _blocks(scores: np.ndarray, truth: np.ndarray, group: np.ndarray) -> _Blocks:
    order = np.lexsort((-scores, group))
    scores, truth, group = scores[order], truth[order].astype(float), group[order]
    last = np.ones(len(scores), bool)
    last[:-1] = (scores[1:] != scores[:-1]) | (group[1:] != group[:-1])
    ends = np.flatnonzero(last)
    hits, records = np.diff(np.cumsum(truth)[ends], prepend=0.0), np.diff(ends, prepend=-1)
    of = group[ends]
    begins = np.flatnonzero(np.diff(of, prepend=-1))  # the first block of each group that is there
    which = np.cumsum(np.diff(of, prepend=-1) != 0) - 1

    def so_far(counts: np.ndarray) -> np.ndarray:
        total = np.cumsum(counts)
        return total - (total - counts)[begins][which]

    return _Blocks(of, hits, so_far(hits), records, so_far(records))
