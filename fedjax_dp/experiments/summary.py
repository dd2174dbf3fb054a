"""The JSON object that describes a finished run."""

from typing import Any

from fedjax_dp.display import finite
from fedjax_dp.experiments import environment
from fedjax_dp.experiments.communication import traffic
from fedjax_dp.experiments.training import Experiment, Result
from fedjax_dp.rounds import metrics
from fedjax_dp.tasks import constant_baseline, describe_task, measures_of_task
from fedjax_dp.tasks.measures import TEST, target_of


def spending_of(ready: Experiment) -> dict[str, Any]:
    """The privacy spent by round, from the run's ledger, and why the run ended."""
    spending, budget = ready.spending, ready.planned.terms.common_budget
    known = spending.priced_rounds if spending.private else []
    any_time = spending.at_any_time(ready.rounds)
    epsilon = finite(ready.guarantee.epsilon)
    return {
        "planned": [[rounds, finite(spending.epsilon(rounds))] for rounds in known],
        "at_any_time": any_time,
        "budget": budget,
        "left": None if budget is None or epsilon is None else budget - epsilon,
        "halt": ready.end[1],
        "rounds_wanted": ready.halted_of or ready.rounds,
    }


def summarise_run(result: Result) -> dict[str, Any]:
    """The JSON object of a run. `probes` names the diagnostics in `history`."""
    ready, reached = result.ready, None
    run, target = ready.planned, ready.spec.output.target
    if target is not None:
        reached = metrics.rounds_to(result.history, target_of(target, measures_of_task(ready.task)))
    baseline = constant_baseline(ready.task, run.data.y_test)
    last, sent = result.history[-1].row(), traffic(run.algorithm, run.model, run.data)
    return {
        "algorithm": ready.name,
        "dataset": ready.dataset,
        "rounds": ready.rounds,
        "seed": ready.seed,
        "classes": run.data.classes,
        "task": describe_task(ready.task),
        **{name: value for name, value in last.items() if name.startswith(TEST)},
        "baseline": None if baseline is None else baseline._asdict(),
        "history": [point.row() for point in result.history],
        "probes": list(metrics.PROBES),
        "rounds_to_target": reached,
        "bytes_to_target": None if reached is None else sent.total(reached),
        "guarantee": result.guarantee.to_dict(),
        "spending": spending_of(ready),
        "timing": result.timing._asdict(),
        "traffic": sent.to_dict() | {"total": sent.total(result.history[-1].round)},
        "versions": environment.versions(),
        "device": environment.device(),
        "config": ready.spec.to_dict(),
    }
