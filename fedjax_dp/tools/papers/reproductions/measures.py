"""Measures of a finished run for tables and figures, by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fedjax_dp.sweeps.records import Record
from fedjax_dp.tasks.measures import measures_of, target_of

if TYPE_CHECKING:  # so that measures are listed without JAX
    from fedjax_dp.rounds.algorithm import Algorithm

LAST = 5  # evaluations
CLASSES = measures_of(  # the papers' task
    {
        "name": "classes",
        "loss": {"words": "cross-entropy", "unit": "nats", "signed": False},
        "metrics": [{"name": "accuracy", "words": "accuracy", "better": 1, "share": True, "unit": "", "signed": False}],
    }
)


class PaperMeasure(NamedTuple):
    """One number of a run, in the unit of the papers."""

    label: str
    better: int  # 1 if larger is better, -1 if smaller is
    of: Callable[[Record], float | None]
    digits: int = 2
    field: str | None = None  # of an evaluation, for a curve
    spread: float = 0.5  # of a published number without a standard deviation

    def curve(self, record: Record) -> list[tuple[int, float]]:
        """(round, number) of every evaluation that has it."""
        if self.field is None:
            return []
        known = [(row["round"], row.get(self.field)) for row in record["history"]]
        return [(at, CLASSES[self.field].shown(number)) for at, number in known if number is not None]


def _last(name: str, count: int = 1) -> Callable[[Record], float | None]:
    """The mean over the last evaluations."""

    def of(record: Record) -> float | None:
        numbers = [row.get(name) for row in record["history"][-count:]]
        if not numbers or any(number is None for number in numbers):
            return None
        return CLASSES[name].shown(1) * sum(numbers) / len(numbers)

    return of


def _best_accuracy(record: Record) -> float | None:
    """The largest of all evaluations, by the test set."""
    numbers = [row["test_accuracy"] for row in record["history"] if row.get("test_accuracy") is not None]
    return CLASSES["test_accuracy"].shown(1) * max(numbers) if numbers else None


def _rounds_to_target(record: Record) -> float | None:
    """The first evaluated round at the configuration's target; None if it is not reached."""
    measure, value = target_of(record["config"]["target"], CLASSES)
    return next((row["round"] for row in record["history"] if measure.reached(row[measure.name], value)), None)


def _squared_error(record: Record) -> float | None:
    """The final error over all test records, of personal models if there are any."""
    last = record["history"][-1]
    own: float | None = last["personal_pooled"]  # the root
    return last["test_mse"] if own is None else own**2


def _milliseconds(record: Record) -> float:
    """The run's share of the machine, evaluations included."""
    return 1000 * float(record["seconds"]) / int(record["config"]["rounds"])


MEASURES: dict[str, PaperMeasure] = {
    name: PaperMeasure(one.label, one.better, _last(name), 2 if one.share else 3, name)
    for name, one in CLASSES.by_name.items()
} | {
    "last5_accuracy": PaperMeasure(
        f"test accuracy (%), mean of the last {LAST} evaluations", 1, _last("test_accuracy", LAST), 2, "test_accuracy"
    ),
    "best_accuracy": PaperMeasure("test accuracy (%), best of all rounds", 1, _best_accuracy, 2, "test_accuracy"),
    "mean_squared_error": PaperMeasure("mean squared test error", -1, _squared_error, 5, spread=0.0005),
    "rounds_to_target": PaperMeasure("rounds to the target accuracy", -1, _rounds_to_target, 1),
    "milliseconds_per_round": PaperMeasure("time per round (ms, this machine)", -1, _milliseconds, 1),
}
SEPARATION = "feature_separation"  # see `features`
MEASURES[SEPARATION] = PaperMeasure("variance of features between clients (%)", -1, lambda _: None, 1)
BYTES = "feature_bytes"  # computed from the parts of an algorithm, without a run
MEASURES[BYTES] = PaperMeasure("mean features that one client receives in a round (bytes)", -1, lambda _: None, 0)


def message_bytes(algorithm: "Algorithm", params: int, features: int, members: int, clients: int) -> float:
    """BYTES of an algorithm: what local steps receive in addition to the model, four bytes a number."""
    return 4.0 * algorithm.local.floats(params, features, members, clients).down
