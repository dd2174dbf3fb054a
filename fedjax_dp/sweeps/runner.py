"""A sweep from plan to outcomes: groups are compiled, the plan is printed, points are run and recorded as they end."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_dp.display import count, duration
from fedjax_dp.experiments import parameters, phases
from fedjax_dp.experiments.console import Screen
from fedjax_dp.figures.tables.settings import measures_of_records
from fedjax_dp.models import task_of
from fedjax_dp.sweeps.axes import Values, in_words
from fedjax_dp.sweeps.engine import JobGroup, PointEnd, RecordCache, fastest, grouped
from fedjax_dp.sweeps.preparation import PreparedPoint
from fedjax_dp.sweeps.records import Record
from fedjax_dp.tasks import describe_task
from fedjax_dp.tasks.measures import Measure


class Trained(NamedTuple):
    """What is kept of a point's model; without hashes of records, which would be read for every point."""

    params: Any
    ledger: str


Keep = Callable[[Record, Trained | None], None]  # called with each point's record and model as soon as it ends
MOST_BYTES = 2**30  # of parameters that a sweep keeps


def record(entry: PreparedPoint, outcome: PointEnd) -> Record:
    """What is kept of a point: one JSON object."""
    return {
        "point": entry.id,
        "index": entry.index,
        "values": entry.values,
        "config": dict(entry.config),
        "status": outcome.status,
        "reason": outcome.reason,
        "task": describe_task(task_of(entry.job.run.model, entry.job.run.data)),
        "history": [point.row() for point in outcome.history],
        "clients": outcome.clients,
        "guarantee": entry.guarantee.to_dict(),
        "seconds": round(outcome.seconds, 4),
    }


class Plan(NamedTuple):
    """The groups of a sweep, compiled, and the entries of each."""

    groups: list[JobGroup]
    entries: list[list[PreparedPoint]]
    seconds: list[float]  # estimates
    prepare_s: float

    def lines(self) -> list[str]:
        """The plan in words."""
        if not self.groups:
            return ["nothing left to run"]
        points, several = sum(map(len, self.entries)), len(self.groups) > 1
        total = (
            f"plan: {count(points, 'point')} in {count(len(self.groups), 'program')}"
            + ("" if several else f", {self._how(0)}")
            + f"; compiled and measured in {self.prepare_s:.1f} s, about {duration(sum(self.seconds))} to run"
        )
        return [total, *(self._line(number) for number in range(len(self.groups)) if several)]

    def _line(self, number: int) -> str:
        return (
            f"program {number + 1}: {self._apart(number)}{count(len(self.entries[number]), 'point')}, "
            f"{self._how(number)}; about {duration(self.seconds[number])}"
        )

    def _how(self, number: int) -> str:
        """`one after another on each of 2 cpu devices, 0.3 MB each`."""
        group = self.groups[number]
        order = f"up to {group.program.slots:,} at once" if group.program.together else "one after another"
        many, platform = len(group.devices), group.devices[0].platform
        where = f"on each of {many} {platform} devices" if many > 1 else f"on a {platform} device"
        return f"{order} {where}, {group.compiled.bytes / 1e6:,.1f} MB" + (" each" if many > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bytes of a device, estimated seconds."""
        programs = [
            {
                "points": len(entries),
                "apart": self._apart(number),
                "slots": group.program.slots,
                "batches": group.batches,
                "at_once": group.program.together,
                "bytes": group.compiled.bytes,
                "seconds": self.seconds[number],
            }
            for number, (group, entries) in enumerate(zip(self.groups, self.entries, strict=True))
        ]
        return {"programs": programs, "prepare_s": self.prepare_s, "seconds": sum(self.seconds)}

    def _apart(self, number: int) -> str:
        """The axes that have one value in this group and others elsewhere."""
        if len(self.groups) == 1:
            return ""
        kinds = [
            {name: {str(entry.values.get(name)) for entry in entries} for name in entries[0].values}
            for entries in self.entries
        ]
        own = {
            name: next(iter(found))
            for name, found in kinds[number].items()
            if len(found) == 1 and any(other.get(name) != found for other in kinds)
        }
        return in_words(own) + ": " if own else ""


def planned(
    entries: Sequence[PreparedPoint],
    screen: Screen,
    *,
    together: bool | None = None,
    memory: float | None = None,
    parts: int | None = None,
) -> Plan:
    """Groups of the entries, compiled and timed; see `JobGroup` for the options.

    Raises: ConfigurationError if a point does not fit the memory.
    """
    if not entries:
        return Plan([], [], [], 0.0)
    kinds = [[entries[index] for index in numbers] for numbers in grouped([entry.job for entry in entries])]
    cache, began, groups, seconds = RecordCache(), time.perf_counter(), [], []
    options: dict[str, Any] = {"together": together, "memory": memory, "parts": parts, "cache": cache}
    with screen.bar("compiling", total=len(kinds)) as show:
        for done, kind in enumerate(kinds):
            group, sample = fastest(JobGroup([entry.job for entry in kind], **options))
            groups.append(group)
            seconds.append(sample.seconds(group.jobs))
            show(done + 1, f"{len(kind)} points")
    return Plan(groups, kinds, seconds, time.perf_counter() - began)


def execute(plan: Plan, keep: Keep, screen: Screen, *, with_params: bool = False) -> None:
    """Run a plan; `with_params` keeps the parameters of its points, unless they are more than MOST_BYTES."""
    size = sum(map(_bytes, itertools.chain(*plan.entries))) if with_params else 0
    if size > MOST_BYTES:
        screen.say(
            f"no parameters are kept: those of all points are {size / 1e9:,.1f} GB, more than {MOST_BYTES / 1e9:.1f}"
        )
    with_params = with_params and size <= MOST_BYTES
    watch = Watch(sum(map(len, plan.entries)))
    with screen.live("sweep") as show:
        for group, entries in zip(plan.groups, plan.entries, strict=True):

            def progress(done: float, before: int = watch.done) -> None:
                show(watch.texts(before + done))

            for index, outcome in group.run(progress, with_params=with_params):
                kept = record(entries[index], outcome)
                keep(kept, _trained(entries[index], outcome) if outcome.params is not None else None)
                watch.add(kept)
                show(watch.texts(watch.done))


def _trained(entry: PreparedPoint, outcome: PointEnd) -> Trained | None:
    if outcome.status != "done":
        return None
    name, run = str(entry.config.get("algorithm", "algorithm")), entry.job.run
    ledger = phases.ledger_of(name, run, entry.guarantee, in_sweep=True)
    return Trained(outcome.params, phases.exported(ledger, parameters.by_name(outcome.params), run.rounds))


def _bytes(entry: PreparedPoint) -> int:
    """Of a point's parameters."""
    params = jax.eval_shape(entry.job.run.model.init, jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


class Watch:
    """What somebody who waits wants to know."""

    def __init__(self, total: int):
        self.total, self.done, self.lost = total, 0, 0
        self._best: tuple[float, Measure, Values] | None = None
        self._began = time.perf_counter()

    def add(self, record: Record) -> None:
        """Count a finished point."""
        self.done += 1
        self.lost += record["status"] != "done"
        main = measures_of_records([record]).main if self._best is None else self._best[1]
        value = record["history"][-1].get(main.name) if record["history"] else None
        if record["status"] != "done" or value is None:
            return
        if self._best is None or main.better * (value - self._best[0]) > 0:
            self._best = (value, main, record["values"])

    def texts(self, done: float) -> dict[str, str]:
        """Lines of a table; `done` counts unfinished points in part."""
        spent = time.perf_counter() - self._began
        pace = done / spent if spent > 0 else 0.0
        texts = {"points": f"{self.done:,} of {self.total:,}" + (f", {self.lost} failed" if self.lost else "")}
        if pace > 0:
            texts |= {"rate": f"{60 * pace:,.1f} points a minute", "left": duration((self.total - done) / pace)}
        if self._best:
            value, main, values = self._best
            texts["best so far"] = f"{main.name} {value:.4f} ({in_words(values)})"
        return texts
