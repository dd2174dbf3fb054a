"""What it costs in privacy to choose among the points of a sweep."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import NegativeBinomialTrials, NotCoveredError, Trials, selection_cost
from fedjax_dp.ledger import ledger_of
from fedjax_dp.screen import Screen
from fedjax_dp.sweeps.conduct import Entry


def cost_of_choosing(entries: Sequence[Entry], law: Trials | None, screen: Screen) -> dict[str, Any] | None:
    """The cost as one JSON object with a `statement`; None for a sweep without privacy.

    law  from which the number of trials was drawn, if it was. Else a geometric one is shown for comparison.
    Seeds are part of a trial: a setting is judged by the mean over them.
    """
    private = [entry for entry in entries if math.isfinite(entry.guarantee.epsilon)]
    if not private:
        return None
    left_out = len(entries) - len(private)
    note = f" {left_out} points without privacy are not counted: publishing one of them costs everything." * bool(
        left_out
    )
    settings = len({str([v for name, v in entry.values.items() if name != "seed"]) for entry in private})
    trials = law or NegativeBinomialTrials.of_mean(settings)
    accountants = {entry.counted["accountant"] for entry in private}
    try:
        with screen.bar("cost of choosing", total=1) as show:
            cost = selection_cost(
                [_ledger(entry) for entry in private], max(entry.counted["delta"] for entry in private),
                accountants.pop() if len(accountants) == 1 else "rdp", trials, drawn=law is not None,
                moving=_moving(private), parts=[entry.values["seed"] for entry in private],
                progress=lambda done, total: show(done / total, f"{done} of {total}"),
            )  # fmt: skip
    except (errors.ConfigurationError, NotCoveredError) as error:
        return {"epsilon": None, "statement": f"The cost of choosing is not known: {error}.{note}"}
    told = cost.to_dict()
    return told | {"settings": settings, "statement": told["statement"] + note}


def _ledger(entry: Entry) -> list[Any]:
    job, counted = entry.job, entry.counted
    return ledger_of(
        job.algorithm, job.data, job.rounds, job.seed, "law" if counted["participation"] == "law" else "schedule",
        counted["view"], counted["colluders"], model=job.model,
    )  # fmt: skip


def _moving(entries: Sequence[Entry]) -> bool:
    """Whether some record belongs to different clients in different points."""
    first = entries[0].job.data
    return any(
        not np.array_equal(a, b)
        for entry in entries[1:] if entry.job.data is not first
        for a, b in ((entry.job.data.rows, first.rows), (entry.job.data.offsets, first.offsets))
    )  # fmt: skip
