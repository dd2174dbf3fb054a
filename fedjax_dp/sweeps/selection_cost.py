"""The privacy cost of choosing among the points of a sweep."""

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import NegativeBinomialTrials, NotCoveredError, Trials, View, selection_cost
from fedjax_dp.display import count, upward
from fedjax_dp.experiments.console import Screen
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.initialization import EARLIER
from fedjax_dp.privacy.terms import BY_NAME_ALONE
from fedjax_dp.pytrees import field_of
from fedjax_dp.rounds.algorithm import mechanism_of
from fedjax_dp.sweeps.preparation import PreparedPoint
from fedjax_dp.sweeps.records import without_epsilon

# Fields that may vary between trials without changing what is released, if these trials release the same.
FREE = {
    "learning_rate",
    "clip_norm",
    "server_learning_rate",
    "momentum",
    "b1",
    "b2",
    "pi",
    "nu_init",
    "average",
    "average_decay",
    "average_from",
    "average_power",
    "l2",
    "mu",
    "model",
    "hidden",
    "width",
    "layers",
    "heads",
    "patch",
    "schedule",
    "local_rule",
    "local_decay",
    "local_b1",
    "local_b2",
    "local_eps",
    "local_floor",
    "local_weight_decay",
}
ByResults = Literal["growth", "halving", "search"]
BY_PROBES = (
    "Test records are taken as public. A choice by a probe, such as the loss of clients' batches, has no epsilon."
)
SIMULATED = (
    "Points of this simulation share the noise, batches and cohorts of their seed; in a real deployment each would "
    "need to draw them afresh."
)
SHOW_ROUNDS = (View.UPLOADS, View.SECURE_SUM, View.BROADCAST)  # views in which every round's model is released
STOPPED = (
    "Runs that a rung stopped are counted to their planned end, which covers fewer rounds: the stop follows from "
    "released models and the test records. This is not random repetition, as trials stop each other."
)
UNSEEN = (
    "no epsilon is stated, as {points} by what is not released: {what}, against {view}. The sum bounds the cost only "
    "of what is released; {remedy} to have it stated"
)
SEARCHED = (
    "no epsilon is stated, as trials were chosen by the results of those before them: the sum bounds the cost only if "
    "these are no private data"
)
GROWN = (
    "no epsilon is stated, as the sweep grew when points of it had been seen: the sum bounds the cost only if these "
    "decided nothing about what was added"
)


def cost_of_choosing(
    entries: Sequence[PreparedPoint],
    is_random: bool,
    law: Trials | None,
    screen: Screen,
    by_results: ByResults | None = None,
) -> dict[str, Any] | None:
    """The cost as one JSON object with a `statement`; None for a sweep without privacy. Its epsilon may be None.

    is_random  whether the points were drawn at random: other points that could have been drawn are unknown;
    law    distribution of their number, if it was drawn. For a fixed grid a geometric one is shown for comparison.
    by_results  the decision that depended on results of points, if any.
        growth, search  which points there are. The sum of all is then no epsilon: composition theorems need the budget
                        to be fixed before the mechanisms are chosen (Rogers et al. 2016), and random repetition needs
                        the law.
        halving         where points stop. The releases are then post-processing of those of all points to their end,
                        whose sum bounds them, if the results are released too.
    Seeds are part of a trial: a setting is judged by the mean over them.
    """
    private = [entry for entry in entries if math.isfinite(entry.guarantee.epsilon)]
    if not private:
        return None
    tests = [entry.job.run.data for entry in entries]
    if (what := next(filter(None, (entry.job.run.private_tests for entry in entries)), None)) is not None:
        remedies = ["keep the records at their clients"] if what == EARLIER else []
        return without_epsilon(what, *remedies)
    first = tests[0].x_test
    # Test records of one point may be training records of another.
    if not all(data.x_test is first or np.array_equal(data.x_test, first) for data in tests):
        return without_epsilon("different test records, which others may train on", "test all on the same records")
    settings = len({str(sorted((n, v) for n, v in e.values.items() if n != "seed")) for e in private})
    terms = [entry.job.run.terms for entry in private]
    views = {(entry.guarantee.view, one.colluders) for entry, one in zip(private, terms)}
    accountants, deployments = {one.accountant for one in terms}, {entry.guarantee.deployment for entry in private}
    if len(deployments) > 1:
        return _unknown_cost("its points stand for different deployments")
    if len(views) > 1:
        return _unknown_cost("its points are counted against different adversaries")
    ledgers, seeds = [_ledger(entry) for entry in private], [entry.values["seed"] for entry in private]
    alike = len({(seed, tuple(ledger)) for seed, ledger in zip(seeds, ledgers)}) == len(set(seeds))
    varied = {name.split(".")[-1] for entry in private for name in entry.values if name != "seed"}
    alike = alike and varied <= FREE and not any(map(_prices_values, private))
    known = not by_results and (alike or not is_random)  # all releases of a trial are known
    trials = (law or NegativeBinomialTrials.of_mean(settings)) if known else None
    try:
        with screen.bar("cost of choosing", total=1) as show:
            cost = selection_cost(
                ledgers,
                max(one.delta or 0.0 for one in terms),
                accountants.pop() if len(accountants) == 1 else "rdp",
                trials,
                drawn=law is not None and known,
                moving=_records_move(private),
                parts=seeds,
                progress=lambda done, total: show(done / total, f"{done} of {total}"),
            )
    except (errors.ConfigurationError, NotCoveredError) as error:
        return _unknown_cost(str(error))
    ((view, colluders),) = views
    unstated = {"growth": GROWN, "search": SEARCHED}.get(by_results or "") or _unreleased_reason(
        private, view, by_results
    )
    notes = [f"All against {view}" + (f" with {colluders} colluders." if colluders else ".")]
    mark = private[0].guarantee.mark
    if mark:
        notes.append(f"This holds if all points are trained in the {mark}; it is not the cost of the simulated runs.")
    if cost.applies == "repetition":
        notes.append(
            "Whoever sees this folder sees all points and their number, so for them the cost is that of composition."
        )
    if any(one.participation in BY_NAME_ALONE for one in terms):
        notes.append("Every client is counted for the rounds in which it takes part.")
    if unstated:
        notes.append(f"{unstated[0].upper()}{unstated[1:]}.")
    elif by_results:
        notes.append(STOPPED)
    elif not known:
        notes.append("Random repetition is not counted: points that were not drawn could cost more.")
    summary = cost.to_dict() | {"settings": settings}
    if unstated:
        summary["epsilon"] = None
    if len(entries) > len(private):
        summary["epsilon"] = None
        others = len(entries) - len(private)
        notes.append(
            f"This covers choosing among the private points only: comparing them with the {others} points without "
            "privacy has no finite cost."
        )
    runs = f"{len(private)} private runs"
    if len(set(seeds)) > 1 and len(private) == settings * len(set(seeds)):
        runs += f" ({count(settings, 'setting')} x {len(set(seeds))} seeds)"
    costs = "adds up to" if unstated else "costs at most" if by_results else "costs"
    short = (
        f"comparing these {runs} {costs} {_words(cost.composition)} at delta "
        f"{cost.delta:g} for one {cost.unit}; one run fixed in advance costs at most {_words(cost.single)}"
    )
    if unstated:
        short += f"; {unstated}"
    if mark:
        short += f"; this holds if the points are trained in the {mark}"
    return summary | {"short": short, "statement": " ".join([summary["statement"], *notes, BY_PROBES, SIMULATED])}


def _unreleased_reason(entries: Sequence[PreparedPoint], view: View, by_results: ByResults | None) -> str | None:
    """Why no epsilon is stated if points are compared by models that are not released; None if all are released."""
    if by_results == "halving" and view not in SHOW_ROUNDS:
        return UNSEEN.format(
            points="rungs compared points", what="models of rounds", view=view, remedy="leave out halving"
        )
    if view is View.DEPLOYED and any(entry.job.run.algorithm.local.personal for entry in entries):
        return UNSEEN.format(points="points are compared", what="shared models", view=view, remedy="take another view")
    return None


def _words(epsilon: float) -> str:
    return f"epsilon {upward(epsilon)}" if math.isfinite(epsilon) else "an infinite epsilon"


def _prices_values(entry: PreparedPoint) -> bool:
    """Whether what a run releases also depends on FREE fields, such as where they choose its noise or cohorts."""
    algorithm, point = entry.job.run.algorithm, entry.point
    prepares = point is not None and point.config.entry.prepare is not None
    return bool(prepares or algorithm.transport.resolution or field_of(mechanism_of(algorithm), "literal"))


def _unknown_cost(reason: str) -> dict[str, Any]:
    text = f"what choosing costs is not known: {reason}"
    return {"epsilon": None, "short": text, "statement": text}


def _ledger(entry: PreparedPoint) -> list[Any]:
    run = entry.job.run
    return client_events(run.with_terms(participation="schedule") if run.terms.participation in BY_NAME_ALONE else run)


def _records_move(entries: Sequence[PreparedPoint]) -> bool:
    """Whether some record belongs to different clients in different points."""
    first = entries[0].job.run.data
    return any(
        data is not first
        and not (
            data.x is first.x
            and all(map(operator.is_, jax.tree.leaves(data.y), jax.tree.leaves(first.y)))
            and np.array_equal(data.rows, first.rows)
            and np.array_equal(data.offsets, first.offsets)
        )
        for data in (entry.job.run.data for entry in entries)
    )
