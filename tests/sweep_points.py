"""Points of sweeps as a folder has them, with made numbers."""

import contextlib
import json
import math
import pathlib

import pytest
from helpers import CLASSES
from scipy import stats
from small_runs import Stopped

from fedjax_dp.rounds.metrics import Evaluation
from fedjax_dp.sweeps.records import SWEEP_FOLDER, read_records, seal_cost


def point(index, values, accuracies=(0.5, 0.6), status="done", epsilon=1.0, reason=None, config=None, **last):
    """A record whose test accuracy goes through `accuracies`; `last` are metrics of the last evaluation."""
    history = [
        Evaluation(10 * (place + 1), {"accuracy": accuracy}, 2.0 - accuracy).row()
        for place, accuracy in enumerate(accuracies)
    ]
    if history:
        history[-1].update(last)
    guarantee = (
        {}
        if epsilon is None
        else {
            "epsilon": None if math.isinf(epsilon) else epsilon,
            "delta": None if math.isinf(epsilon) else 1e-3,
            "unit": "record",
            "adjacency": "replace-one",
            "view": "uploads",
            "statement": f"epsilon {epsilon:g} and so on",
        }
    )
    return {
        "point": f"{index:012x}",
        "index": index,
        "values": values,
        "config": {} if config is None else config,
        "status": status,
        "reason": reason,
        "task": CLASSES,
        "history": history,
        "guarantee": guarantee,
        "seconds": 0.5,
    }


def sweep_folder(records, axes=("learning_rate",), **more):
    folder = pathlib.Path("sweep")
    folder.mkdir()
    about = {"axes": list(axes), "digest": "0", "points": len(records), "name": "mine"}
    SWEEP_FOLDER.write(folder, about | more)
    (folder / "points.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def write_cost(folder, **cost):
    """The cost of choosing among the points of a folder."""
    about, records = read_records(folder)
    (folder / "selection.json").write_text(json.dumps(seal_cost(cost, about, records)))


def of_all_but_times(records):
    """Records of points without the seconds that these took."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def textbook_interval(numbers):
    """The textbook, one line at a time, in float64."""
    n = len(numbers)
    mean = sum(numbers) / n
    std = math.sqrt(sum((x - mean) ** 2 for x in numbers) / (n - 1))
    t = stats.t(df=n - 1).ppf(0.975)
    return mean, std, mean - t * std / math.sqrt(n), mean + t * std / math.sqrt(n)


@contextlib.contextmanager
def recorded(stop=None):
    """Yields the list of points that sweeps record in the block; after `stop` of them something like a kill comes."""
    from fedjax_dp.sweeps import runner  # loads JAX

    record, ids = runner.record, []

    def record_until(entry, outcome):
        if len(ids) == stop:
            raise Stopped
        ids.append(entry.id)
        return record(entry, outcome)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "record", record_until)
        yield ids
