"""Synthetic(u, v): softmax models and features that differ from client to client."""

import math
import re

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.checks import generator
from fedjax_dp.data.partition import natural
from fedjax_dp.data.records import RecordTable, make_dataset, split_rows
from fedjax_dp.data.store import Dataset

FEATURES, CLASSES, CLIENTS = 60, 10, 100
TEST_FRACTION = 0.1  # of every client's records


def synthetic(setting: str, seed: int) -> Dataset:
    """Synthetic(u, v) with natural clients; `setting` is `u,v` or `iid`, then perhaps `var` and a number of clients.

    Client k draws u_k ~ N(0, u) and B_k ~ N(0, v); W_k (60, 10) and b_k (10,) from N(u_k, 1), v_k (60,) from N(B_k, 1);
    its features from N(v_k, diag(j^-1.2)), and y = argmax(W_k' x + b_k). It has 50 + floor(LogNormal(4, 2)) records, a
    tenth of which is its part of the test set. With `iid` one W and b from N(0, 1) serve all, and v_k = 0. u and v are
    standard deviations as in the published code; with `var` they are variances, as the papers write them.
    Source: Li et al. 2020, arXiv:1812.06127, section 5.1, and its published code.
    """
    spread, num_clients = _parse(setting)
    rng = generator("synthetic", seed)
    sizes = 50 + np.floor(rng.lognormal(4.0, 2.0, num_clients)).astype(int)
    if spread is None:
        weights = np.broadcast_to(rng.normal(size=(FEATURES, CLASSES)), (num_clients, FEATURES, CLASSES))
        biases = np.broadcast_to(rng.normal(size=CLASSES), (num_clients, CLASSES))
        centres = np.zeros((num_clients, FEATURES))
    else:
        of_models, of_features = (deviation * rng.normal(size=num_clients) for deviation in spread)
        weights = of_models[:, None, None] + rng.normal(size=(num_clients, FEATURES, CLASSES))
        biases = of_models[:, None] + rng.normal(size=(num_clients, CLASSES))
        centres = of_features[:, None] + rng.normal(size=(num_clients, FEATURES))
    owners = np.repeat(np.arange(num_clients), sizes)
    deviations = np.arange(1, FEATURES + 1) ** -0.6
    x = centres[owners] + deviations * rng.normal(size=(len(owners), FEATURES))
    scores = [own @ weights[k] + biases[k] for k, own in enumerate(np.split(x, np.cumsum(sizes)[:-1]))]
    y = np.concatenate(scores).argmax(1).astype(np.int32)
    parts = RecordTable(owners, x=x.astype(np.float32), y=y).split(split_rows(natural(owners), TEST_FRACTION, seed))
    return make_dataset(f"synthetic:{setting}", "", *parts, classes=CLASSES)


def _parse(setting: str) -> tuple[tuple[float, float] | None, int]:
    """Standard deviations (None for iid) and the number of clients."""
    wanted = "synthetic:U,V, synthetic:U,V,var or synthetic:iid, perhaps with ,CLIENTS at the end"
    matched = re.fullmatch(r"(?:iid|([^,]+),([^,]+?)(,var)?)(?:,(\d+))?", setting)
    try:
        spread = [float(number) for number in matched.groups()[:2] if number is not None] if matched else [math.nan]
    except ValueError:
        spread = [math.nan]
    if matched is None or not all(0 <= number < math.inf for number in spread):
        raise errors.refuse("dataset", repr(f"synthetic:{setting}"), wanted, "U and V are not negative")
    num_clients = int(matched[4] or CLIENTS)
    errors.require_integer("clients of synthetic", num_clients, 1, 100_000)
    if not spread:
        return None, num_clients
    u, v = map(math.sqrt, spread) if matched[3] else spread
    return (u, v), num_clients
