"""Records whose loss is not finite: whether data and model are the cause, or the training.

Under privacy such a record counts as nothing, so a run ends well without it. Nothing here is called where losses are
finite.
"""

from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.prng import role_key
from fedjax_dp.rounds import metrics

CAUSES = "such as token ids outside the model's table, a log of 0, or a division by 0"
PROBE = "(what only the simulator sees, in no epsilon)"


def require_scores(model: Model, data: FederatedData, key: jax.Array, tolerated: bool = True) -> int:
    """How many training records have no finite loss at the values that training begins with.

    key        the run's;
    tolerated  whether some may have none, as under privacy they count as nothing.
    Raises: ConfigurationError where it is too many of them, or one of the test records.
    """
    params = jax.tree.map(np.asarray, model.init(role_key(key, "init")))
    lost, tested = map(int, metrics.count_unscored(params, data, model=model))
    for what, count, among, most in (
        ("training", lost, _records(data), _records(data) if tolerated else 1),
        ("test", tested, data.x_test.shape[0], 1),
    ):
        if count >= most:
            got = f"{count:,} of {among:,} {what} records without one before the first round"
            raise errors.refuse("model", got, "a finite loss for each record", f"look at data and model, {CAUSES}")
    return lost


def warning_on(params: Any, model: Model, data: FederatedData, key: jax.Array, rounds: int) -> str | None:
    """What to say of training records without a finite loss, at the start or at the values after so many rounds.

    Raises: as `require_scores`.
    """
    before = require_scores(model, data, key)
    if before:
        return (
            f"{before:,} of {_records(data):,} training records have no finite loss before the first round, {CAUSES}; "
            f"they count as nothing {PROBE}"
        )
    now = int(metrics.count_unscored(params, data, model=model)[0])
    if not now:
        return None
    return (
        f"{now:,} training records have no finite loss after round {rounds}, and count as nothing; before the first "
        f"round all losses were finite: lower the learning rate {PROBE}"
    )


def _records(data: FederatedData) -> int:
    held = data.x if data.rows is None else data.rows
    return int(held.shape[0])
