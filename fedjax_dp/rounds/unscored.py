"""Records whose loss is not finite: whether data and model are the cause, or the training.

With privacy such a record contributes zero, so a run continues without it. Nothing here is called if all losses are
finite.
"""

from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import metrics

CAUSES = "such as token ids outside the model's table, a log of 0, or a division by 0"
OF_GRADIENTS = "such as that of a square root or a norm at 0, or one too large to square"
BYTES = 2**27  # of records that are evaluated at once
PROBE = "(diagnostics: not private, not covered by epsilon)"


def require_scores(model: Model, data: FederatedData, key: jax.Array, tolerated: bool = True) -> int:
    """Number of training records without a finite loss at the initial parameters.

    key        the run's;
    tolerated  whether some training records may have none, as they contribute zero with privacy.
    Raises: ConfigurationError for any other training record, for all of them, and for any test record.
    """
    params = jax.tree.map(np.asarray, model.init(role_key(key, "init")))
    records, tests = int(np.sum(data.sizes)), len(data.x_test)
    lost = _count(params, data, model)
    test_set = replace(data, x=data.x_test, y=data.y_test, rows=None)
    for what, count, among, most in (
        ("training", lost, records, records if tolerated else 1),
        ("test", _count(params, test_set, model), tests, 1),
    ):
        if count >= most:
            got = f"{count:,} of {among:,} {what} records without one before the first round"
            raise errors.refuse("model", got, "a finite loss for each record", f"look at data and model, {CAUSES}")
    return lost


def warning_on(params: Any, model: Model, data: FederatedData, key: jax.Array, rounds: int) -> str | None:
    """A warning about training records without a finite loss, at the start or at `params` after `rounds` rounds.

    Raises: as `require_scores`.
    """
    before = require_scores(model, data, key)
    if before:
        return (
            f"{before:,} of {int(np.sum(data.sizes)):,} training records have no finite loss before the first round, "
            f"{CAUSES}; they contribute zero {PROBE}"
        )
    now = _count(params, data, model)
    if not now:
        lost = _count(params, data, model, by_gradient=True)
        what = f"{lost:,} of {int(np.sum(data.sizes)):,} training records have a finite loss but no finite gradient"
        return f"{what} after round {rounds}, {OF_GRADIENTS}; they contribute zero {PROBE}" if lost else None
    return (
        f"{now:,} training records have no finite loss after round {rounds}, and contribute zero; before the first "
        f"round all losses were finite: lower the learning rate {PROBE}"
    )


def _count(params: Any, data: FederatedData, model: Model, by_gradient: bool = False) -> int:
    """Number of training records without a finite loss, or gradient, in chunks, as they may be on the host."""
    rows = np.arange(len(data.x)) if data.rows is None else np.asarray(data.rows)
    many = max(1, BYTES // max(1, sum(a[:1].nbytes for a in jax.tree.leaves((data.x, data.y)))))
    total = 0
    for first in range(0, len(rows), many):
        x, y = jax.tree.map(lambda a: a[rows[first : first + many]], (data.x, data.y))  # noqa: B023
        total += int(
            metrics.count_unscored(params, replace(data, x=x, y=y, rows=None), model=model, by_gradient=by_gradient)
        )
    return total
