"""Many runs as few compiled programs: points are grouped by structure, dealt to devices, and run a stretch at a time.

On a CPU a device runs its points one after another, with the arithmetic of a single run, so that a point's numbers are
those of its single run bit for bit; an accelerator runs all at once, which is what fills it.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp import errors, metrics
from fedjax_dp.algorithm import Algorithm
from fedjax_dp.batches import FixedBatches, PoissonBatches, ReplacementBatches
from fedjax_dp.clients import Execution
from fedjax_dp.correction import L2Penalty, Proximal
from fedjax_dp.data.store import FederatedData
from fedjax_dp.metrics import Evaluation
from fedjax_dp.models import Model
from fedjax_dp.simulation import run_key
from fedjax_dp.sweeps.program import AXIS, Compiled, Points, Program, Seen
from fedjax_dp.values import changed

DISPATCH_S = 1.0  # aimed at: long beside what a dispatch costs, short for somebody who waits for results
MOST = 64  # points that a device holds where they run one after another: more would save nothing
TOGETHER_ON_CPU = 8  # points that a CPU core runs at once, where it does: more do not fit its caches
TRIAL_S = 120.0  # seconds of work from which another way to run is tried
WORTH = 0.9  # of the time, to be preferred
SHARE_OF_MEMORY = 0.8  # of what is free


class Job(NamedTuple):
    """One point, ready to run: a checked algorithm with its noise, and what it runs on."""

    algorithm: Algorithm
    data: FederatedData
    model: Model
    rounds: int
    seed: int = 0
    evaluate_every: int | None = None  # default: about 20 times
    train_metrics: bool = False
    chunk_size: int | None = None

    @property
    def marks(self) -> list[int]:
        """Rounds after which it is evaluated, those of `simulate`."""
        every = self.evaluate_every or max(1, self.rounds // 20)
        return [*range(every, self.rounds, every), self.rounds]


class Outcome(NamedTuple):
    """What became of a point."""

    history: list[Evaluation]
    reason: str | None  # why it did not reach its end
    diverged: bool
    seconds: float  # its part of the time of the dispatches that it shared

    @property
    def status(self) -> str:
        return "done" if self.reason is None else "diverged" if self.diverged else "failed"


def grouped(jobs: Sequence[Job]) -> list[list[int]]:
    """Numbers of the jobs that share a program: those of equal structure and equal shapes."""
    found: dict[Any, list[int]] = {}
    for index, job in enumerate(jobs):
        found.setdefault(_structure(job), []).append(index)
    return list(found.values())


def _structure(job: Job) -> Any:
    def shapes(tree: Any) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        return treedef, tuple(np.shape(leaf) for leaf in leaves)

    kinds = tuple(np.result_type(leaf) for leaf in jax.tree.leaves(job.data))
    data = changed(job.data, name="", learnt=(), largest=job.data.largest if _follows_largest(job.algorithm) else 0)
    return shapes(job.algorithm), shapes(data), kinds, job.model, job.train_metrics, job.chunk_size


def _follows_largest(algorithm: Algorithm) -> bool:
    """Whether steps or arrays depend on the number of records of the largest client."""
    apart = isinstance(algorithm.local.batches, FixedBatches | ReplacementBatches | PoissonBatches)
    whole = [c for c in algorithm.local.corrections if not isinstance(c, L2Penalty | Proximal)]
    return not apart or bool(whole) or algorithm.aggregate.needs_loss


class Shelf:
    """The records that each device holds: those of the data set that it was last asked for."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, list[jax.Array]]] = {}

    def records(self, datas: Sequence[FederatedData], largest: int, mesh: Mesh) -> FederatedData:
        """The records of each device's data set `(devices, ...)`; those that a device already holds stay there."""
        for at, (data, device) in enumerate(zip(datas, mesh.devices.flat, strict=True)):
            if at not in self._held or self._held[at][0] != _base(data):
                self._held.pop(at, None)
                leaves = [np.asarray(a)[None] for a in jax.tree.leaves(_records_of(data, largest))]
                self._held[at] = (_base(data), jax.device_put(leaves, device))
        spread = NamedSharding(mesh, P(AXIS))
        columns = zip(*(self._held[at][1] for at in range(len(datas))), strict=True)
        whole = [
            jax.make_array_from_single_device_arrays((len(parts), *parts[0].shape[1:]), spread, list(parts))
            for parts in columns
        ]
        return jax.tree.unflatten(jax.tree.structure(_records_of(datas[0], largest)), whole)


class _Numbers(NamedTuple):
    """A job's leaves on the host."""

    algorithm: list[np.ndarray]
    key: np.ndarray
    partition: list[np.ndarray]
    marks: list[int]


class Group:
    """Jobs that share a program. Compiled when made.

    together  whether a device runs its points all at once; None: on accelerators only;
    memory    bytes that a device may use; None: most of what is free;
    parts     in which the sum over a cohort is taken; None: as many as devices, like a single run here;
    shelf     records on the devices, which groups may share.
    Raises ConfigurationError if not even one point fits.
    """

    def __init__(
        self, jobs: Sequence[Job], *, together: bool | None = None, memory: float | None = None,
        parts: int | None = None, shelf: Shelf | None = None,
    ):  # fmt: skip
        self.jobs, self.devices = list(jobs), jax.local_devices()
        self._numbers = [_numbers(job) for job in self.jobs]
        self._shelf = shelf or Shelf()
        self._largest = max(job.data.largest for job in self.jobs)
        self._options: dict[str, Any] = {"memory": memory, "parts": parts, "shelf": self._shelf}
        on_cpu = self.devices[0].platform == "cpu"
        together = not on_cpu if together is None else together
        first, share = self.jobs[0], math.ceil(len(self.jobs) / len(self.devices))
        most = (TOGETHER_ON_CPU if together else MOST) if on_cpu else share
        limit = _free_memory(self.devices) if memory is None else memory
        self.program = Program(
            mesh=Mesh(self.devices, (AXIS,)), model=first.model, train_metrics=first.train_metrics,
            execution=Execution(chunk_size=first.chunk_size, parts=parts or len(self.devices)), together=together,
            slots=math.ceil(share / math.ceil(share / most)), marks=max(len(job.marks) for job in self.jobs),
        )  # fmt: skip
        self.compiled = self._compile()
        while self.compiled.bytes > limit:
            slots = self.program.slots
            if slots == 1:
                raise errors.refuse(
                    "memory of a device", f"{limit / 1e9:.3g} GB",
                    f"at least the {self.compiled.bytes / 1e9:.3g} GB that one point needs",
                    "lower chunk_size, microbatch or batch_size",
                )  # fmt: skip
            fitting = max(1, min(slots - 1, int(slots * limit / self.compiled.bytes)))
            batches = math.ceil(share / fitting)  # of equal size
            self.program = dataclasses.replace(self.program, slots=math.ceil(share / batches))
            self.compiled = self._compile()

    def all_at_once(self) -> "Group":
        """The same jobs with a device's points all at once."""
        return Group(self.jobs, together=True, **self._options)

    @property
    def batches(self) -> int:
        """Fillings of all slots that the jobs take."""
        return math.ceil(len(self.jobs) / (self.program.slots * len(self.devices)))

    def _compile(self) -> Compiled:
        return self.program.compile(*self._place([[0] for _ in self.devices]))

    def sample(self) -> "Sample":
        """One round and one evaluation of the first job, in every slot."""
        points, records, count = self._place([[0] * self.program.slots for _ in self.devices])
        running = self.compiled.begin(points, records, count)
        if not self.program.together:
            count = jnp.ones_like(count)

        def timed(rounds: int) -> tuple[float, Seen]:
            nonlocal running
            marks = jax.device_put(np.full(points.marks.shape, rounds, np.int32), points.marks.sharding)
            began = time.perf_counter()
            running, seen = self.compiled.visit(
                points._replace(marks=marks), running, records, count, np.int32(0), np.int32(1)
            )
            seen = jax.tree.map(lambda a: np.asarray(a)[0, 0], seen)
            return time.perf_counter() - began, seen

        timed(1)  # the first touches memory
        look_s, _ = timed(1)  # already there: an evaluation alone
        both_s, seen = timed(2)
        width = len(self.devices) * (self.program.slots if self.program.together else 1)
        return Sample(max(both_s - look_s, 0.0) / width, look_s / width, seen)

    def run(self, progress: Callable[[float], Any] = lambda done: None) -> Iterator[tuple[int, Outcome]]:
        """Run all jobs; yields the number of a job and its outcome, as they finish.

        progress  called after every dispatch with the number of jobs done, unfinished ones in part.
        A dispatch that fails takes down its own points only, one at a time.
        """
        waiting = sorted(range(len(self.jobs)), key=lambda index: _base(self.jobs[index].data))
        at_once = self.program.slots if self.program.together else 1
        done = 0
        while waiting:
            lanes, left = self._deal(waiting, at_once)
            batch = list(itertools.chain(*lanes))
            began = time.perf_counter()
            try:
                seen = self._run(lanes, lambda part: progress(done + part))  # noqa: B023
            except Exception as error:  # whatever it is, the other points have nothing to do with it
                if at_once > 1:
                    at_once = 1
                    continue
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                outcomes = [Outcome([], reason, False, 0.0) for _ in batch]
            else:
                seconds = (time.perf_counter() - began) / len(batch)
                outcomes = [
                    _outcome(self.jobs[index], jax.tree.map(lambda a: a[at], seen), seconds)  # noqa: B023
                    for at, index in enumerate(batch)
                ]
                if not self.program.together:
                    longest = seconds * len(batch) / max(map(len, lanes))
                    at_once = max(1, min(self.program.slots, int(DISPATCH_S / longest)))
            waiting, done = left, done + len(batch)
            yield from zip(batch, outcomes, strict=True)
            progress(done)

    def _deal(self, waiting: list[int], at_once: int) -> tuple[list[list[int]], list[int]]:
        """At most `at_once` jobs for each device, all of a device on the same records; and the jobs left."""
        lanes: list[list[int]] = []
        fair = min(at_once, math.ceil(len(waiting) / len(self.devices)))
        for _ in self.devices:
            bases = [_base(self.jobs[index].data) for index in waiting[:fair]]
            alike = sum(1 for _ in itertools.takewhile(lambda base: base == bases[0], bases))  # noqa: B023
            lanes.append(waiting[:alike])
            waiting = waiting[alike:]
        return lanes, waiting

    def _run(self, lanes: list[list[int]], progress: Callable[[float], Any]) -> Seen:
        """All marks of the jobs in the lanes, in their order: arrays `(jobs, marks, ...)` on the host."""
        points, records, count = self._place(lanes)
        running = self.compiled.begin(points, records, count)
        slots = [d * self.program.slots + s for d, lane in enumerate(lanes) for s in range(len(lane))]
        marks, windows, at, stride = self.program.marks, [], 0, 1 if max(map(len, lanes)) == 1 else self.program.marks
        while at < marks:
            until = min(at + stride, marks)
            began = time.perf_counter()
            running, seen = self.compiled.visit(points, running, records, count, np.int32(at), np.int32(until))
            windows.append(jax.tree.map(lambda a: np.asarray(a)[slots, at:until], seen))  # noqa: B023
            stride = max(1, int(DISPATCH_S * (until - at) / (time.perf_counter() - began)))
            at = until
            progress(len(slots) * at / marks)
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *windows)

    def _place(self, lanes: list[list[int]]) -> tuple[Points, FederatedData, jax.Array]:
        """The arrays of jobs in the slots of each device; empty slots hold a point of no rounds."""
        slots, marks = self.program.slots, self.program.marks
        spare = next(lane[0] for lane in lanes if lane)
        held = [(lane + [spare] * slots)[:slots] for lane in lanes]
        numbers = [self._numbers[index] for lane in held for index in lane]
        real = [slot < len(lane) for lane in lanes for slot in range(slots)]
        first = self.jobs[0]
        until = [n.marks + n.marks[-1:] * (marks - len(n.marks)) if r else [0] * marks for n, r in zip(numbers, real)]
        host = (
            jax.tree.unflatten(jax.tree.structure(first.algorithm), _stacked([n.algorithm for n in numbers])),
            np.stack([n.key for n in numbers]),
            jax.tree.unflatten(jax.tree.structure(first.data.partition), _stacked([n.partition for n in numbers])),
            np.array(until, np.int32), np.array([len(lane) for lane in lanes], np.int32),
        )  # fmt: skip
        algorithm, key, partition, stops, count = jax.device_put(host, NamedSharding(self.program.mesh, P(AXIS)))
        points = Points(algorithm, jax.random.wrap_key_data(key, impl="threefry2x32"), partition, stops)
        datas = [self.jobs[lane[0]].data for lane in held]
        return points, self._shelf.records(datas, self._largest, self.program.mesh), count


class Sample(NamedTuple):
    """What was measured of a group's program: seconds for a round and for an evaluation of one point."""

    round_s: float
    look_s: float
    seen: Seen  # after two rounds

    def seconds(self, jobs: Sequence[Job]) -> float:
        """An estimate for jobs."""
        return sum(self.round_s * job.rounds + self.look_s * len(job.marks) for job in jobs)


def fastest(group: Group) -> tuple[Group, Sample]:
    """The group, or one that runs its points all at once where that is faster and shows the very same numbers.

    Tried on a CPU only, for groups that take long enough to repay the compilation; elsewhere all at once is the rule.
    """
    sample = group.sample()
    if group.program.together or sample.seconds(group.jobs) < TRIAL_S or len(group.jobs) <= len(group.devices):
        return group, sample
    rival = group.all_at_once()
    measured = rival.sample()
    same = all(map(np.array_equal, jax.tree.leaves(sample.seen), jax.tree.leaves(measured.seen)))
    faster = measured.seconds(rival.jobs) < WORTH * sample.seconds(group.jobs)
    return (rival, measured) if same and faster else (group, sample)


def _numbers(job: Job) -> _Numbers:
    return _Numbers(
        [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(job.algorithm)],
        np.asarray(jax.random.key_data(run_key(job.seed))),
        [np.asarray(leaf) for leaf in jax.tree.leaves(job.data.partition)], job.marks,
    )  # fmt: skip


def _stacked(rows: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _records_of(data: FederatedData, largest: int) -> FederatedData:
    """What all partitions of a data set share."""
    return changed(data, **dict.fromkeys(data.partition), name="", learnt=(), largest=largest)


def _base(data: FederatedData) -> tuple[int, ...]:
    """Tells the records of one data set from those of another."""
    return tuple(id(array) for array in (data.x, data.y, data.x_test, data.y_test))


def _outcome(job: Job, seen: Seen, seconds: float) -> Outcome:
    """The history of a job from what was seen at its marks, `(marks, ...)`."""
    history: list[Evaluation] = []
    for at in range(len(job.marks)):
        done, look, report = jax.tree.map(lambda a: a[at], seen)  # noqa: B023
        for lost, error in ((~report.finite, errors.DivergedError), (report.overflow, errors.RingOverflowError)):
            if lost.any():
                told = str(error(int(done) - 1, report.clients[lost].tolist()))
                return Outcome(history, told, error is errors.DivergedError, seconds)
        if not math.isfinite(look.test.loss):
            return Outcome(history, str(errors.DivergedError(int(done) - 1, [])), True, seconds)
        history.append(metrics.evaluation(int(done), look, report, job.data))
    return Outcome(history, None, False, seconds)


def _free_memory(devices: Sequence[jax.Device]) -> float:
    """Bytes that a device may use."""
    told = [device.memory_stats() for device in devices]
    if all(stats and "bytes_limit" in stats for stats in told):
        return SHARE_OF_MEMORY * min(stats["bytes_limit"] - stats["bytes_in_use"] for stats in told)
    return SHARE_OF_MEMORY * _free_on_host() / len(devices)


def _free_on_host() -> float:
    """Bytes of memory that the host has to spare."""
    meminfo = pathlib.Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return 1024.0 * int(fields["MemAvailable"].split()[0])
    return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
