"""Many runs as few compiled programs: points are grouped by structure, dealt to devices, and run a stretch at a time.

On a CPU a device runs its points one after another, with the arithmetic of a single run, so that a point's numbers are
those of its single run bit for bit; an accelerator runs as many at once as suit it, which is what fills it.
"""

import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.memory import free_memory, most_at_once
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.gradients import split
from fedjax_dp.models import task_of
from fedjax_dp.models.model import size_of
from fedjax_dp.parts.batches import Batches
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import metrics, unscored
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.final import final_model
from fedjax_dp.rounds.metrics import Evaluation, Measurement
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.sweeps.program import AXIS, Executables, Observation, Points, Program, Running
from fedjax_dp.sweeps.record_cache import RecordCache as RecordCache
from fedjax_dp.sweeps.record_cache import base_of, records_of

DISPATCH_S = 1.0  # aimed at: long beside what a dispatch costs, short for somebody who waits for results
MOST = 64  # points that a device holds where they run one after another: more would save nothing
TOGETHER_ON_CPU = 8  # points that a CPU core runs at once, where it does: more do not fit its caches
LOOKED_AT = 8  # points of a device whose numbers are compared
TRIAL_S = 120.0  # seconds of work from which another way to run is tried
WORTH = 0.9  # of the time, to be preferred


class Job(NamedTuple):
    """One point, ready to run: a run that has its noise, and how the engine runs it."""

    run: PlannedRun
    evaluate_every: int | None = None  # default: about 20 times
    train_metrics: bool = False
    chunk_size: int | None = None
    parts: int | None = None  # of a cohort that are added up in order; None: as many as devices

    @property
    def marks(self) -> list[int]:
        """Rounds after which it is evaluated, those of `simulate`."""
        return marks_of(self.run.rounds, self.evaluate_every)


def marks_of(rounds: int, evaluate_every: int | None) -> list[int]:
    """Rounds after which a run is evaluated."""
    every = evaluate_every or max(1, rounds // 20)
    return [*range(every, rounds, every), rounds]


class PointEnd(NamedTuple):
    """What became of a point."""

    history: list[Evaluation]
    reason: str | None  # why it did not reach its end
    diverged: bool  # by itself: a number is not finite, or does not fit into a ring
    seconds: float  # its part of the time of the dispatches that it shared
    params: Any = None  # of the trained model, NumPy arrays, with `with_params`
    clients: dict[str, Any] | None = None  # how they fare at the end, see `_clients`
    running: Running | None = None  # where it stands, NumPy arrays, if it was to stop before its end

    @classmethod
    def failed(cls, error: BaseException) -> Self:
        """Of a point that an error ended."""
        return cls([], " ".join(f"{type(error).__name__}: {error}".split())[:300], False, 0.0)

    @property
    def status(self) -> str:
        if self.running is not None:
            return "stopped"
        return "done" if self.reason is None else "diverged" if self.diverged else "failed"


class _Stretch(NamedTuple):
    """What of their marks jobs go through, and what is kept of them."""

    until: int | None  # marks after which they stop; None: their last
    before: Mapping[int, PointEnd]  # of jobs that go on from where they had stopped
    with_params: bool

    def marks_before(self, index: int) -> int:
        return len(self.before[index].history) if index in self.before else 0


def grouped(jobs: Sequence[Job]) -> list[list[int]]:
    """Numbers of the jobs that share a program: those of equal structure and equal shapes."""
    found: dict[Any, list[int]] = {}
    for index, job in enumerate(jobs):
        found.setdefault(structure(job), []).append(index)
    return list(found.values())


def structure(job: Job) -> Any:
    """Equal for jobs that share a program."""

    def shapes(tree: Any) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        return treedef, tuple(np.shape(leaf) for leaf in leaves)

    run = job.run
    kinds = tuple(np.result_type(leaf) for leaf in jax.tree.leaves(run.data))
    largest = run.data.largest if _follows_largest(run.algorithm, run.data.largest) else 0
    smallest = _of_smallest(run.algorithm, run.data.smallest)
    data = replace(run.data, name="", learnt=(), overlap="", largest=largest, smallest=smallest)
    return shapes(run.algorithm), shapes(data), kinds, run.model, job.train_metrics, job.chunk_size, job.parts


def _follows_largest(algorithm: Algorithm, largest: int) -> bool:
    """Whether steps or arrays depend on the number of records of the largest client."""
    local = algorithm.local
    apart = local.batches.even and _rows(local.batches, largest) == _rows(local.batches, 2 * largest)
    plain = all(map(of_the_project, (local, *(part for _, part in local.parts)))) and not (
        local.has_client_state or local.reads_records_outside_round
    )
    return not (apart and plain) or algorithm.aggregate.needs_loss


def _rows(batches: Batches, largest: int) -> int:
    """Of a batch, where the largest client has so many records."""
    drawn = jax.eval_shape(lambda key: batches.sample(key, jnp.int32(largest), 1, largest, 1), jax.random.key(0))
    return int(drawn.positions.shape[1])


def _of_smallest(algorithm: Algorithm, smallest: int) -> int:
    """What a program depends on of the records of the smallest client: whether a batch has more, or their number."""
    local = algorithm.local
    known = all(map(of_the_project, (local, local.batches, *(part for _, part in local.parts))))
    return int(smallest < getattr(local.batches, "size", 0)) if known else smallest


class _Numbers(NamedTuple):
    """A job's leaves on the host."""

    algorithm: list[np.ndarray]
    words: np.ndarray  # of the run's key
    partition: list[np.ndarray]
    marks: list[int]


class JobGroup:
    """Jobs that share a program. Executables when made.

    together  whether a device runs many of its points at once; None: on accelerators only;
    memory    bytes that a device may use; None: most of what is free;
    parts     in which the sum over a cohort is taken; None: as many as devices, like a single run here;
    cache     records on the devices, which groups may share.
    Raises ConfigurationError if not even one point fits.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        together: bool | None = None,
        memory: float | None = None,
        parts: int | None = None,
        cache: RecordCache | None = None,
    ):
        self.jobs, self.devices = list(jobs), jax.local_devices()
        self._numbers = [_numbers(job) for job in self.jobs]
        self._frozen: Any = None  # placed when they are first needed
        self._shelf = cache or RecordCache()
        self._largest = max(job.run.data.largest for job in self.jobs)
        self._smallest = min(job.run.data.smallest for job in self.jobs)
        self._options: dict[str, Any] = {"memory": memory, "parts": parts, "cache": self._shelf}
        on_cpu = self.devices[0].platform == "cpu"
        together = not on_cpu if together is None else together
        first, share = self.jobs[0], math.ceil(len(self.jobs) / len(self.devices))
        shares, signal = first.parts or parts or len(self.devices), first.train_metrics or None
        execution = Execution(chunk_size=first.chunk_size, parts=shares, signal=signal)
        run = first.run
        members, size = run.algorithm.cohort.capacity(run.data.num_clients), size_of(run.model)
        most = (TOGETHER_ON_CPU if together else MOST) if on_cpu else execution.runs(share, members, size)
        limit = free_memory(self.devices) if memory is None else memory
        self.program = Program(
            mesh=Mesh(self.devices, (AXIS,)),
            model=split(run.model)[0],
            train_metrics=first.train_metrics,
            execution=execution,
            together=together,
            slots=math.ceil(share / math.ceil(share / most)),
            marks=max(len(job.marks) for job in self.jobs),
        )
        slots, self.compiled = most_at_once(
            self._compiled,
            limit,
            first=self.program.slots,
            share=share,
            needs=lambda compiled: compiled.bytes,
            what="points",
        )
        self.program = dataclasses.replace(self.program, slots=slots)

    def all_at_once(self) -> "JobGroup":
        """The same jobs with a device's points all at once."""
        return JobGroup(self.jobs, together=True, **self._options)

    def of(self, jobs: Sequence[Job]) -> "JobGroup":
        """Other jobs of the same structure with the same program; with one of their own where it does not suit them."""
        sizes = [size for job in jobs for size in (job.run.data.smallest, job.run.data.largest)]
        slots = math.ceil(len(jobs) / len(self.devices))  # empty ones cost time where all run at once
        if (
            (self.program.together and slots < self.program.slots)
            or not self._smallest <= min(sizes) <= max(sizes) <= self._largest
            or max(len(job.marks) for job in jobs) > self.program.marks
        ):
            return JobGroup(jobs, together=self.program.together, **self._options)
        group = copy.copy(self)
        group.jobs, group._numbers = list(jobs), [_numbers(job) for job in jobs]
        return group

    @property
    def batches(self) -> int:
        """Fillings of all slots that the jobs take."""
        return math.ceil(len(self.jobs) / (self.program.slots * len(self.devices)))

    def _compiled(self, slots: int) -> Executables:
        """The executables for so many points of a device."""
        program, run = dataclasses.replace(self.program, slots=slots), self.jobs[0].run
        records = records_of(run.data, self._largest, self._smallest)
        return program.compile(*program.shapes(run.algorithm, run.data.partition, records, split(run.model)[1]))

    def sample(self) -> "Sample":
        """Seconds of a round and of an evaluation, and what the first points show after two rounds."""
        lanes = [[at % len(self.jobs) for at in range(d, d + LOOKED_AT)] for d in range(len(self.devices))]
        lanes = [lane[: self.program.slots] for lane in lanes]
        points, records, frozen, count = self._place(lanes)
        running = self.compiled.begin(points, records, frozen, count)
        one = jnp.ones_like(count)

        def visited(rounds: int, count: jax.Array) -> tuple[float, Observation]:
            nonlocal running
            marks = jax.device_put(np.full(points.marks.shape, rounds, np.int32), points.marks.sharding)
            began = time.perf_counter()
            running, seen = self.compiled.visit(
                points._replace(marks=marks), running, records, frozen, count, np.int32(0), np.int32(1)
            )
            seen = jax.tree.map(lambda a: np.asarray(a)[:, 0], seen)
            return time.perf_counter() - began, seen

        _, seen = visited(2, count)  # the first time also touches memory
        running = self.compiled.begin(points, records, frozen, count)
        visited(1, one)
        look_s, _ = visited(1, one)  # already there: an evaluation alone
        both_s, _ = visited(2, one)
        width = len(self.devices) * (self.program.slots if self.program.together else 1)
        slots = [d * self.program.slots + s for d, lane in enumerate(lanes) for s in range(min(LOOKED_AT, len(lane)))]
        shown = {job: jax.tree.map(lambda a: a[slot], seen) for slot, job in zip(slots, itertools.chain(*lanes))}  # noqa: B023
        return Sample(max(both_s - look_s, 0.0) / width, look_s / width, shown)

    def run(
        self,
        progress: Callable[[float], Any] = lambda done: None,
        *,
        with_params: bool = False,
        until: int | None = None,
        before: Mapping[int, PointEnd] | None = None,
    ) -> Iterator[tuple[int, PointEnd]]:
        """Run all jobs; yields the number of a job and its outcome, as they finish.

        progress     called after every dispatch with the number of jobs done, unfinished ones in part;
        with_params  outcomes hold the trained parameters;
        until        marks after which jobs stop, where they do not go to their last one;
        before       outcomes of such a stop, by the number of the job, which goes on from there bit for bit.
        A dispatch that fails takes down its own points only, one at a time.
        """
        stretch = _Stretch(until, before or {}, with_params)
        waiting = sorted(
            range(len(self.jobs)), key=lambda index: (*self._kind(stretch, index), len(self.jobs[index].marks))
        )
        at_once = self.program.slots if self.program.together else 1
        done = 0
        while waiting:
            lanes, waiting = self._deal(waiting, at_once, stretch)
            batch, began = list(itertools.chain(*lanes)), time.perf_counter()
            try:
                outcomes = self._outcomes(lanes, lambda part: progress(done + part), stretch)  # noqa: B023
            except Exception as error:  # whatever it is, the other points have nothing to do with it
                outcomes = self._one_by_one(lanes, error, stretch)
            spent = time.perf_counter() - began
            done += len(batch)
            for index, outcome in zip(batch, outcomes, strict=True):
                earlier = stretch.before[index].seconds if index in stretch.before else 0.0
                yield index, outcome._replace(seconds=earlier + spent / len(batch))
            if not self.program.together:
                at_once = max(1, min(self.program.slots, int(DISPATCH_S / (spent / max(map(len, lanes))))))
            progress(done)

    def _one_by_one(self, lanes: list[list[int]], error: Exception, stretch: _Stretch) -> list[PointEnd]:
        """The jobs of a batch that failed, each alone; a single one has failed by itself."""
        if sum(map(len, lanes)) == 1:
            return [PointEnd.failed(error)]
        outcomes = []
        for at, index in ((at, index) for at, lane in enumerate(lanes) for index in lane):
            alone = [[index] if lane == at else [] for lane in range(len(lanes))]
            try:
                outcomes += self._outcomes(alone, lambda part: None, stretch)
            except Exception as own:
                outcomes += self._one_by_one(alone, own, stretch)
        return outcomes

    def _kind(self, stretch: _Stretch, index: int) -> tuple[int, tuple[float, ...]]:
        """Marks that are behind a job, which a batch shares, and its records, which a device's jobs share."""
        return stretch.marks_before(index), base_of(self.jobs[index].run.data)

    def _deal(self, waiting: list[int], at_once: int, stretch: _Stretch) -> tuple[list[list[int]], list[int]]:
        """At most `at_once` jobs for each device, all of a device on the same records; and the jobs left."""
        lanes: list[list[int]] = []
        fair = min(at_once, math.ceil(len(waiting) / len(self.devices)))
        behind = stretch.marks_before(waiting[0])
        for _ in self.devices:
            kinds = [self._kind(stretch, index) for index in waiting[:fair]]
            alike = sum(1 for kind in itertools.takewhile(lambda kind: kind == kinds[0], kinds) if kind[0] == behind)  # noqa: B023
            lanes.append(waiting[:alike])
            waiting = waiting[alike:]
        return lanes, waiting

    def _outcomes(self, lanes: list[list[int]], progress: Callable[[float], Any], stretch: _Stretch) -> list[PointEnd]:
        """The jobs in the lanes, in their order, from where they stand to their last mark or the one to stop at."""
        points, records, frozen, count = self._place(lanes)
        batch = [index for lane in lanes for index in lane]
        jobs = [self.jobs[index] for index in batch]
        slots = [d * self.program.slots + s for d, lane in enumerate(lanes) for s in range(len(lane))]
        first = stretch.marks_before(batch[0])
        if first:
            held = [stretch.before[index].running for index in self._in_slots(lanes)]
            running = jax.tree.map(lambda *rows: np.stack(rows), *held)
            running = jax.device_put(running, NamedSharding(self.program.mesh, P(AXIS)))
        else:
            running = self.compiled.begin(points, records, frozen, count)
        marks = min(max(len(job.marks) for job in jobs), stretch.until or self.program.marks)
        windows, at, stride = [], first, 1 if max(map(len, lanes)) == 1 else marks
        while at < marks:
            until = min(at + stride, marks)
            began = time.perf_counter()
            running, seen = self.compiled.visit(points, running, records, frozen, count, np.int32(at), np.int32(until))
            windows.append(jax.tree.map(lambda a: np.asarray(a)[slots, at:until], seen))  # noqa: B023
            stride = max(1, int(DISPATCH_S * (until - at) / (time.perf_counter() - began)))
            at = until
            progress(len(slots) * (at - first) / (marks - first))
        shown = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *windows)
        ends = []
        for row, (index, job) in enumerate(zip(batch, jobs)):
            history = list(stretch.before[index].history) if first else []
            ends.append(_outcome(job, history, jax.tree.map(lambda a: a[row], shown), marks))  # noqa: B023
        if stretch.until is not None:
            stopped = jax.tree.map(np.asarray, running)
            ends = [
                end._replace(running=jax.tree.map(lambda a: a[slot].copy(), stopped))  # noqa: B023
                if end.reason is not None and not end.diverged
                else end
                for slot, end in zip(slots, ends)
            ]
        if not stretch.with_params:
            return ends
        params = jax.tree.map(np.asarray, jax.vmap(final_model)(points.algorithm, running.state))
        return [end._replace(params=jax.tree.map(lambda a: a[slot], params)) for slot, end in zip(slots, ends)]  # noqa: B023

    def _place(self, lanes: list[list[int]]) -> tuple[Points, FederatedData, Any, jax.Array]:
        """The arrays of jobs in the slots of each device."""
        host, count = jax.device_put(self._points(lanes), NamedSharding(self.program.mesh, P(AXIS)))
        spare = next(lane[0] for lane in lanes if lane)
        datas = [self.jobs[lane[0] if lane else spare].run.data for lane in lanes]
        records = self._shelf.records(datas, self._largest, self._smallest, self.program.mesh)
        if self._frozen is None:
            self._frozen = jax.device_put(split(self.jobs[0].run.model)[1], NamedSharding(self.program.mesh, P()))
        keys = jax.random.wrap_key_data(host.key, impl="threefry2x32")
        return host._replace(key=keys), records, self._frozen, count

    def _in_slots(self, lanes: list[list[int]]) -> list[int]:
        """The job in each slot of each device; one of them stands in those that are empty."""
        slots, spare = self.program.slots, next(lane[0] for lane in lanes if lane)
        return [index for lane in lanes for index in (lane + [spare] * slots)[:slots]]

    def _points(self, lanes: list[list[int]]) -> tuple[Points, np.ndarray]:
        """Jobs in slots, keys as words, and their number on each device; empty slots hold a point of no rounds."""
        slots, marks, first = self.program.slots, self.program.marks, self.jobs[0].run
        numbers = [self._numbers[index] for index in self._in_slots(lanes)]
        real = [slot < len(lane) for lane in lanes for slot in range(slots)]
        until = [n.marks + n.marks[-1:] * (marks - len(n.marks)) if r else [0] * marks for n, r in zip(numbers, real)]
        points = Points(
            jax.tree.unflatten(jax.tree.structure(first.algorithm), _stacked([n.algorithm for n in numbers])),
            np.stack([n.words for n in numbers]),
            jax.tree.unflatten(jax.tree.structure(first.data.partition), _stacked([n.partition for n in numbers])),
            np.array(until, np.int32),
        )
        return points, np.array([len(lane) for lane in lanes], np.int32)


class Sample(NamedTuple):
    """What was measured of a group's program: seconds for a round and for an evaluation of one point."""

    round_s: float
    look_s: float
    seen: dict[int, Observation]  # of some jobs, after two rounds

    def seconds(self, jobs: Sequence[Job]) -> float:
        """An estimate for jobs."""
        return sum(self.round_s * job.run.rounds + self.look_s * len(job.marks) for job in jobs)


def fastest(group: JobGroup) -> tuple[JobGroup, Sample]:
    """The group, or one that runs its points all at once where that is faster and shows the very same numbers.

    Tried on a CPU only, for groups that take long enough to repay the compilation; elsewhere many at once are the rule.
    """
    sample = group.sample()
    if group.program.together or sample.seconds(group.jobs) < TRIAL_S or len(group.jobs) <= len(group.devices):
        return group, sample
    rival = group.all_at_once()
    measured = rival.sample()
    both = sample.seen.keys() & measured.seen.keys()
    same = all(
        np.array_equal(a, b)
        for job in both
        for a, b in zip(jax.tree.leaves(sample.seen[job]), jax.tree.leaves(measured.seen[job]))
    )
    faster = measured.seconds(rival.jobs) < WORTH * sample.seconds(group.jobs)
    return (rival, measured) if same and faster else (group, sample)


def _numbers(job: Job) -> _Numbers:
    return _Numbers(
        [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(job.run.algorithm)],
        np.asarray(jax.random.key_data(run_key(job.run.draw_seed))),
        [np.asarray(leaf) for leaf in jax.tree.leaves(job.run.data.partition)],
        job.marks,
    )


def _stacked(rows: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _outcome(job: Job, history: list[Evaluation], seen: Observation, until: int) -> PointEnd:
    """The history of a job, up to so many marks, from what was seen at those after `history`, `(marks, ...)`."""
    task = task_of(job.run.model, job.run.data)
    for at in range(min(len(job.marks), until) - len(history)):
        done, look, report = jax.tree.map(lambda a: a[at], seen)  # noqa: B023
        clients = report.clients[~report.finite].tolist()
        if clients or not math.isfinite(look.test.sums["loss"]):
            return PointEnd(history, _divergence(job, int(done) - 1, clients), True, 0.0)
        if report.overflow.any():
            swamped = report.clients[report.overflow].tolist()
            reason = str(errors.RingOverflowError(int(done) - 1, swamped, job.run.data.called))
            return PointEnd(history, reason, True, 0.0)
        history.append(metrics.evaluation_of(int(done), look, report, job.run.data, task))
    if until < len(job.marks):
        return PointEnd(history, f"after {history[-1].round} of {job.run.rounds} rounds", False, 0.0)
    return PointEnd(history, None, False, 0.0, clients=_clients(job, look))


def _divergence(job: Job, done: int, clients: list[int]) -> str:
    """Why a loss or an update is not finite: data and model made it so before the first round, or training did."""
    run = job.run
    try:
        unscored.require_scores(run.model, run.data, run_key(run.draw_seed), tolerated=not clients)
    except errors.ConfigurationError as error:
        return str(error)
    return str(errors.DivergedError(done, clients, run.data.called))


def _clients(job: Job, look: Measurement) -> dict[str, Any] | None:
    """The main metric of each client on its own test part, of its own model where it has one; None without parts."""
    data = job.run.data
    if data.test_clients is None:
        return None
    own = look.personal is not None
    values, records = metrics.client_values(look.personal or look.test, data, model=job.run.model)
    numbers = [None if math.isnan(value) else float(value) for value in values]
    return {"own": own, "values": numbers, "records": [int(count) for count in records]}
