"""The JSON object that a run leaves behind."""

from typing import Any

from fedjax_dp.experiments import environment
from fedjax_dp.experiments.communication import Traffic
from fedjax_dp.experiments.training import Ready, Result
from fedjax_dp.rounds import metrics


def of_run(ready: Ready, result: Result, traffic: Traffic) -> dict[str, Any]:
    """The JSON object of a run. `probes` names the fields of `history` that only the simulator can know."""
    target = ready.target
    reached = None if target is None else metrics.rounds_to(result.history, target)
    return {
        "algorithm": ready.name,
        "dataset": ready.dataset,
        "rounds": ready.rounds,
        "seed": ready.seed,
        "classes": ready.data.classes,
        "test_accuracy": result.test_accuracy,
        "test_loss": result.test_loss,
        "history": [point._asdict() for point in result.history],
        "probes": list(metrics.PROBES),
        "rounds_to_target": reached,
        "bytes_to_target": None if reached is None else traffic.total(reached),
        "guarantee": result.guarantee.to_dict(),
        "timing": result.timing._asdict(),
        "traffic": traffic.to_dict() | {"total": traffic.total(result.history[-1].round)},
        "versions": environment.versions(),
        "device": environment.device(),
        "config": dict(ready.shown),
    }
