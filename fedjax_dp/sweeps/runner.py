"""A sweep from plan to results: groups are compiled, the plan is printed, points run and are recorded as they end."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_dp import own_code
from fedjax_dp.display import count, duration
from fedjax_dp.experiments import parameters, phases
from fedjax_dp.experiments.console import Screen
from fedjax_dp.models import task_of
from fedjax_dp.sweeps.axes import Values, in_words
from fedjax_dp.sweeps.engine import JobGroup, PointEnd, RecordCache, Sample, choose_fastest, group_jobs, structure
from fedjax_dp.sweeps.halving import Halving, is_done_until, key_of
from fedjax_dp.sweeps.plan import refuse_points
from fedjax_dp.sweeps.preparation import PreparedPoint
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.settings import measures_of_records
from fedjax_dp.tasks import constant_baseline, describe_task
from fedjax_dp.tasks.measures import Measure


class Trained(NamedTuple):
    """A point's trained model. Its ledger has no checksum of the records, which would be read for every point."""

    params: Any
    ledger: str


Keep = Callable[[Record, Trained | None], None]  # called with each point's record and model as soon as it ends
MOST_BYTES = 2**30  # of parameters that a sweep keeps, and of states of points between two rungs


def record(entry: PreparedPoint, outcome: PointEnd) -> Record:
    """The record of a point, one JSON object."""
    data = entry.job.run.data
    task = task_of(entry.job.run.model, data)
    baseline = constant_baseline(task, data.y_test)
    return {
        "point": entry.id,
        "index": entry.index,
        "values": entry.values,
        "config": dict(entry.config),
        "status": outcome.status,
        "reason": outcome.reason,
        "task": describe_task(task),
        "baseline": None if baseline is None else baseline._asdict(),
        "history": [point.row() for point in outcome.history],
        "clients": outcome.clients,
        "guarantee": entry.guarantee.to_dict(),
        "seconds": round(outcome.seconds, 4),
    }


class SweepPlan(NamedTuple):
    """The groups of a sweep, compiled, and the entries of each."""

    groups: list[JobGroup]
    entries: list[list[PreparedPoint]]
    seconds: list[float]  # estimates, if all points run to their end
    prepare_s: float
    halving: Halving | None = None  # stops most points early
    search: str | None = None  # the progress of a search in words

    @property
    def total_s(self) -> float:
        """The estimated seconds of all points."""
        return sum(self.seconds) * (self.halving.share if self.halving else 1.0)

    def lines(self) -> list[str]:
        """The plan in words."""
        if not self.groups:
            return ["nothing left to run"]
        points, several = sum(map(len, self.entries)), len(self.groups) > 1
        total = (
            f"plan: {count(points, 'point')} in {count(len(self.groups), 'program')}"
            + ("" if several else f", {self._how(0)}")
            + f"; compiled and measured in {self.prepare_s:.1f} s, about {duration(self.total_s)} to run"
        )
        extra = [*([self.halving.line()] if self.halving else []), *([self.search] if self.search else [])]
        return [total, *extra, *(self._line(number) for number in range(len(self.groups)) if several)]

    def _line(self, number: int) -> str:
        return (
            f"program {number + 1}: {self._distinct_axes(number)}{count(len(self.entries[number]), 'point')}, "
            f"{self._how(number)}; about {duration(self.seconds[number])}" + (" to the end" if self.halving else "")
        )

    def _how(self, number: int) -> str:
        """`one after another on each of 2 cpu devices, 0.3 MB each`."""
        group = self.groups[number]
        order = f"up to {group.program.slots:,} at once" if group.program.vmapped else "one after another"
        many, platform = len(group.devices), group.devices[0].platform
        where = f"on each of {many} {platform} devices" if many > 1 else f"on a {platform} device"
        return f"{order} {where}, {group.compiled.bytes / 1e6:,.1f} MB" + (" each" if many > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON: bytes on a device, estimated seconds."""
        programs = [
            {
                "points": len(entries),
                "apart": self._distinct_axes(number),
                "slots": group.program.slots,
                "batches": group.batches,
                "at_once": group.program.vmapped,
                "bytes": group.compiled.bytes,
                "seconds": self.seconds[number],
            }
            for number, (group, entries) in enumerate(zip(self.groups, self.entries, strict=True))
        ]
        extra: dict[str, Any] = {"halving": self.halving.to_dict()} if self.halving else {}
        extra |= {"search": self.search} if self.search else {}
        return {"programs": programs, "prepare_s": self.prepare_s, "seconds": self.total_s} | extra

    def _distinct_axes(self, number: int) -> str:
        """The axes that have one value in this group and others elsewhere."""
        if len(self.groups) == 1:
            return ""
        kinds = [
            {name: {str(value := entry.values.get(name)): value for entry in entries} for name in entries[0].values}
            for entries in self.entries
        ]
        own = {
            name: next(iter(values.values()))
            for name, values in kinds[number].items()
            if len(values) == 1 and any(other.get(name) != values for other in kinds)
        }
        return in_words(own) + ": " if own else ""


def compile_plan(
    entries: Sequence[PreparedPoint],
    screen: Screen,
    *,
    parts: int | None = None,
    known: dict[Any, tuple[JobGroup, Sample]] | None = None,
) -> SweepPlan:
    """Group, compile and time the entries.

    parts  number of partial sums over a cohort, see `JobGroup`;
    known  groups by structure, which are reused and extended.
    Raises: ConfigurationError if a point does not fit the memory, and for all points where user-defined code fails
            while a program is compiled.
    """
    if not entries:
        return SweepPlan([], [], [], 0.0)
    kinds = [[entries[index] for index in numbers] for numbers in group_jobs([entry.job for entry in entries])]
    cache, began, groups, seconds = RecordCache(), time.perf_counter(), [], []
    refused: list[tuple[Values, str]] = []
    with screen.bar("compiling", total=len(kinds)) as show:
        for done, kind in enumerate(kinds):
            jobs = [entry.job for entry in kind]
            shape, known = structure(jobs[0]), {} if known is None else known
            if shape not in known:
                try:
                    known[shape] = choose_fastest(JobGroup(jobs, parts=parts, cache=cache))
                except Exception as error:
                    if not own_code.own_frames(error):
                        raise
                    refused += [(entry.values, own_code.describe_error(error)) for entry in kind]
                    continue
            group, sample = known[shape][0].of(jobs), known[shape][1]
            groups.append(group)
            seconds.append(sample.seconds(group.jobs))
            show(done + 1, f"{len(kind)} points")
    if refused:
        raise refuse_points(len(entries), refused)
    return SweepPlan(groups, kinds, seconds, time.perf_counter() - began)


def announce(plan: SweepPlan, screen: Screen) -> None:
    """Print the plan."""
    for line in plan.lines():
        screen.say(line)


def execute(
    plan: SweepPlan,
    keep: Keep,
    screen: Screen,
    *,
    with_params: bool = False,
    until: int | None = None,
    before: Mapping[str, PointEnd] | None = None,
) -> dict[str, PointEnd]:
    """Run a plan; `with_params` keeps the parameters of its points, unless they are more than MOST_BYTES.

    until, before  evaluations after which points stop, and their earlier ends, see `JobGroup.run`. Returns the states
                   of stopped points, up to MOST_BYTES of them; other points will begin again.
    """
    stopped: dict[str, PointEnd] = {}
    room, before = MOST_BYTES, before or {}
    size = sum(map(_bytes, itertools.chain(*plan.entries))) if with_params else 0
    if size > MOST_BYTES:
        screen.say(
            f"no parameters are kept: those of all points are {size / 1e9:,.1f} GB, more than {MOST_BYTES / 1e9:.1f}"
        )
    with_params = with_params and size <= MOST_BYTES
    watch, whole, begun = Watch(sum(map(len, plan.entries))), sum(plan.seconds), 0.0
    with screen.live("sweep") as show:
        for group, entries, seconds in zip(plan.groups, plan.entries, plan.seconds, strict=True):

            def progress(done: float, before: float = begun, each: float = seconds / len(entries)) -> None:
                show(watch.texts((before + done * each) / whole))

            earlier = {at: before[entry.id] for at, entry in enumerate(entries) if entry.id in before}
            for index, outcome in group.run(progress, with_params=with_params, until=until, before=earlier):
                if outcome.running is not None:
                    room -= sum(leaf.nbytes for leaf in jax.tree.leaves(outcome.running))
                    stopped |= {entries[index].id: outcome} if room >= 0 else {}
                kept = record(entries[index], outcome)
                keep(kept, _trained_model(entries[index], outcome) if outcome.params is not None else None)
                watch.add(kept)
            begun += seconds
    return stopped


def execute_rungs(
    entries: Sequence[PreparedPoint],
    held: Iterable[Record],
    halving: Halving,
    keep: Keep,
    screen: Screen,
    *,
    with_params: bool = False,
    parts: int | None = None,
) -> None:
    """Run points by successive halving, continuing from their stored records `held`.

    The records decide which settings continue, so an interruption changes nothing. Points continue from their states if
    these are in memory, else from round 0, with the same results bit for bit.
    """
    latest = {one["point"]: one for one in held}
    alive, known, before = list(entries), dict[Any, tuple[JobGroup, Sample]](), dict[str, PointEnd]()

    def keep_result(one: Record, trained: Trained | None) -> None:
        latest[one["point"]] = one
        keep(one, trained)

    for rung in (*halving.rungs, None):
        until = halving.rounds if rung is None else rung.round
        left = [entry for entry in alive if not is_done_until(latest.get(entry.id), until)]
        if left:
            first, last = not known, rung is None and with_params
            plan = compile_plan(left, screen, parts=parts, known=known)._replace(halving=halving)
            if first:
                announce(plan, screen)
            before = execute(
                plan, keep_result, screen, with_params=last, until=rung and rung.evaluations, before=before
            )
        if rung is not None:
            chosen = halving.survivors([latest[entry.id] for entry in alive], rung)
            alive = [entry for entry in alive if key_of(entry.values, halving.axes) in chosen]
            before = {entry.id: before[entry.id] for entry in alive if entry.id in before}


def _trained_model(entry: PreparedPoint, outcome: PointEnd) -> Trained | None:
    if outcome.status != "done":
        return None
    name, run = str(entry.config.get("algorithm", "algorithm")), entry.job.run
    ledger = phases.ledger_of(name, run, entry.guarantee, in_sweep=True)
    return Trained(outcome.params, phases.ledger_of_parameters(ledger, parameters.by_name(outcome.params), run.rounds))


def _bytes(entry: PreparedPoint) -> int:
    """The bytes of a point's parameters."""
    params = jax.eval_shape(entry.job.run.model.init, jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


class Watch:
    """Progress of a sweep for a user who waits."""

    def __init__(self, total: int):
        self.total, self.done, self.lost = total, 0, 0
        self._best: tuple[float, Measure, Values] | None = None
        self._began = time.perf_counter()

    def add(self, record: Record) -> None:
        """Count a finished point."""
        self.done += 1
        self.lost += record["status"] in ("diverged", "failed")
        main = measures_of_records([record]).main if self._best is None else self._best[1]
        value = record["history"][-1].get(main.name) if record["history"] else None
        if record["status"] not in ("done", "stopped") or value is None:
            return
        if self._best is None or main.better * (value - self._best[0]) > 0:
            self._best = (value, main, record["values"])

    def texts(self, share: float) -> dict[str, str]:
        """Lines of a table; `share`: of all the work, in time."""
        spent = time.perf_counter() - self._began
        texts = {"points": f"{self.done:,} of {self.total:,}" + (f", {self.lost} failed" if self.lost else "")}
        if self.done and spent > 0:
            texts["rate"] = f"{60 * self.done / spent:,.1f} points a minute"
        if share > 0:
            texts["left"] = duration(spent * (1 - share) / share)
        if self._best:
            value, main, values = self._best
            texts["best so far"] = f"{main.name} {value:.4f} ({in_words(values)})"
        return texts
