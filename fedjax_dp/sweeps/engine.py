"""Many runs in few compiled programs: points are grouped by structure, divided among devices and run in segments.

On a CPU, a device runs its points one after another with the arithmetic of a single run, so that results equal the
single run bit for bit. An accelerator runs many points at once, which keeps it busy.
"""

import copy
import dataclasses
import itertools
import math
import operator
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
from fedjax_dp.parts.facts import of_the_project, parts_of
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of, noises_steps
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import metrics, unscored
from fedjax_dp.rounds.algorithm import Algorithm, with_noise
from fedjax_dp.rounds.metrics import Evaluation, Measurement
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.rounds.state import final_model
from fedjax_dp.sweeps.program import AXIS, Executables, Observation, Points, Program, Running
from fedjax_dp.sweeps.record_cache import RecordCache as RecordCache
from fedjax_dp.sweeps.record_cache import base_of, records_of

DISPATCH_S = 1.0  # the target: long compared with the cost of a dispatch, short for a user who waits
MAX_SLOTS = 64  # points on a device that runs them one after another: more would save nothing
MAX_VMAPPED_ON_CPU = 8  # points that a CPU core may run at once: more do not fit its caches
COMPARED_POINTS = 8  # points of each device
TRIAL_S, TRIALS = 120.0, 5  # seconds of work, and trials of its own length, above which another way to run is tried
MAX_TIME_RATIO = 0.9  # share of the time that makes the other way preferable


class Job(NamedTuple):
    """One point, ready to run: a run that has its noise, and how the engine runs it."""

    run: PlannedRun
    evaluate_every: int | None = None  # default: about 20 times
    train_metrics: bool = False
    chunk_size: int | None = None
    parts: int | None = None  # of a cohort that are added up in order; None: as many as devices

    @property
    def evaluation_rounds(self) -> list[int]:
        """Rounds after which it is evaluated, as in `simulate`."""
        return evaluation_rounds_of(self.run.rounds, self.evaluate_every)

    @property
    def algorithm(self) -> Algorithm:
        """That of the run; steps with noise have a noise multiplier for each client, as calibration finds it.

        So points with a noise multiplier and points with a budget share a program. A part of one's own may read the
        noise as one number.
        """
        algorithm, noise = self.run.algorithm, noise_of(self.run.algorithm)
        shared = noises_steps(algorithm) and algorithm.upload.unit is None and np.ndim(noise) == 0
        if not shared or not all(of_the_project(part) for _, part in parts_of(algorithm)):
            return algorithm
        return with_noise(algorithm, np.full(self.run.data.num_clients, noise, np.float32))


def evaluation_rounds_of(rounds: int, evaluate_every: int | None) -> list[int]:
    """Rounds after which a run is evaluated."""
    every = evaluate_every or max(1, rounds // 20)
    return [*range(every, rounds, every), rounds]


class PointEnd(NamedTuple):
    """How a point ended."""

    history: list[Evaluation]
    reason: str | None  # why it did not reach its end
    diverged: bool  # by itself: a number is not finite, or does not fit into a ring
    seconds: float  # its part of the time of the dispatches that it shared
    params: Any = None  # of the trained model, NumPy arrays, with `with_params`
    clients: dict[str, Any] | None = None  # metrics of each client at the end, see `_clients`
    running: Running | None = None  # its state, NumPy arrays, if it had to stop before its end

    @classmethod
    def of_error(cls, error: BaseException) -> Self:
        """The end of a point that raised an error."""
        return cls([], " ".join(f"{type(error).__name__}: {error}".split())[:300], False, 0.0)

    @property
    def status(self) -> str:
        if self.running is not None:
            return "stopped"
        return "done" if self.reason is None else "diverged" if self.diverged else "failed"


class _Segment(NamedTuple):
    """Where jobs start and stop, and whether their parameters are kept."""

    until: int | None  # evaluations after which jobs stop; None: their last
    before: Mapping[int, PointEnd]  # earlier ends of jobs that continue
    with_params: bool

    def evaluations_done(self, index: int) -> int:
        return len(self.before[index].history) if index in self.before else 0


def group_jobs(jobs: Sequence[Job]) -> list[list[int]]:
    """The indices of jobs by program. Jobs of equal structure and equal shapes share one."""
    groups: dict[Any, list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(structure(job), []).append(index)
    return list(groups.values())


def structure(job: Job) -> Any:
    """A key that is equal for jobs that share a program."""

    def shapes(tree: Any) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        return treedef, tuple(np.shape(leaf) for leaf in leaves)

    run = job.run
    kinds = tuple(np.result_type(leaf) for leaf in jax.tree.leaves(run.data))
    largest = run.data.largest if _depends_on_largest(run.algorithm, run.data.largest) else 0
    smallest = _smallest_that_matters(run.algorithm, run.data.smallest)
    data = replace(run.data, name="", learnt=(), overlap="", largest=largest, smallest=smallest)
    return shapes(job.algorithm), shapes(data), kinds, run.model, job.train_metrics, job.chunk_size, job.parts


def _depends_on_largest(algorithm: Algorithm, largest: int) -> bool:
    """Whether steps or arrays depend on the number of records of the largest client."""
    local = algorithm.local
    even = local.batches.even and _rows(local.batches, largest) == _rows(local.batches, 2 * largest)
    known_parts = all(map(of_the_project, (local, *(part for _, part in local.parts)))) and not (
        local.has_client_state or local.reads_records_outside_round
    )
    return not (even and known_parts) or algorithm.aggregate.needs_loss


def _rows(batches: Batches, largest: int) -> int:
    """The rows of a batch where the largest client has `largest` records."""
    batch = jax.eval_shape(lambda key: batches.sample(key, jnp.int32(largest), 1, largest, 1), jax.random.key(0))
    return int(batch.positions.shape[1])


def _smallest_that_matters(algorithm: Algorithm, smallest: int) -> int:
    """How a program depends on the smallest client: whether a batch has more records, or the number of its records."""
    local = algorithm.local
    known = all(map(of_the_project, (local, local.batches, *(part for _, part in local.parts))))
    return int(smallest < getattr(local.batches, "size", 0)) if known else smallest


class JobGroup:
    """Jobs that share a program. The constructor compiles it.

    vmapped   whether a device runs many of its points at once; None: on accelerators only;
    memory    bytes that a device may use; None: most of what is free;
    parts     number of partial sums over a cohort; None: one for each device, as in a single run;
    cache     records on the devices, which groups may share.
    Raises ConfigurationError if a single point does not fit the memory.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        vmapped: bool | None = None,
        memory: float | None = None,
        parts: int | None = None,
        cache: RecordCache | None = None,
    ):
        self.jobs, self.devices = list(jobs), jax.local_devices()
        self._frozen: Any = None  # placed when they are first needed
        self._records = cache or RecordCache()
        self._largest = max(job.run.data.largest for job in self.jobs)
        self._smallest = min(job.run.data.smallest for job in self.jobs)
        self._options: dict[str, Any] = {"memory": memory, "parts": parts, "cache": self._records}
        on_cpu = self.devices[0].platform == "cpu"
        vmapped = not on_cpu if vmapped is None else vmapped
        first, share = self.jobs[0], math.ceil(len(self.jobs) / len(self.devices))
        shares, signal = first.parts or parts or len(self.devices), first.train_metrics or None
        execution = Execution(chunk_size=first.chunk_size, parts=shares, signal=signal)
        run = first.run
        members, size = run.algorithm.cohort.capacity(run.data.num_clients), size_of(run.model)
        most = (
            (MAX_VMAPPED_ON_CPU if vmapped else MAX_SLOTS) if on_cpu else execution.runs_at_once(share, members, size)
        )
        limit = free_memory(self.devices) if memory is None else memory
        self.program = Program(
            mesh=Mesh(self.devices, (AXIS,)),
            model=split(run.model)[0],
            train_metrics=first.train_metrics,
            execution=execution,
            vmapped=vmapped,
            slots=math.ceil(share / math.ceil(share / most)),
            max_evaluations=max(len(job.evaluation_rounds) for job in self.jobs),
        )
        slots, self.compiled = most_at_once(
            self._compile,
            limit,
            first=self.program.slots,
            share=share,
            needs=lambda compiled: compiled.bytes,
            what="points",
        )
        self.program = dataclasses.replace(self.program, slots=slots)
        self._shape = jax.tree.structure(self._point_of(self.jobs[0]))
        self._leaves = [jax.tree.leaves(self._point_of(job)) for job in self.jobs]

    def vmapped_group(self) -> "JobGroup":
        """A group of the same jobs in which a device runs all its points at once."""
        return JobGroup(self.jobs, vmapped=True, **self._options)

    def of(self, jobs: Sequence[Job]) -> "JobGroup":
        """A group of other jobs of the same structure, with the same program if it suits them, else with a new one."""
        sizes = [size for job in jobs for size in (job.run.data.smallest, job.run.data.largest)]
        slots = math.ceil(len(jobs) / len(self.devices))  # empty ones cost time if all run at once
        if (
            (self.program.vmapped and slots < self.program.slots)
            or not self._smallest <= min(sizes) <= max(sizes) <= self._largest
            or max(len(job.evaluation_rounds) for job in jobs) > self.program.max_evaluations
        ):
            return JobGroup(jobs, vmapped=self.program.vmapped, **self._options)
        group = copy.copy(self)
        group.jobs, group._leaves = list(jobs), [jax.tree.leaves(self._point_of(job)) for job in jobs]
        return group

    @property
    def batches(self) -> int:
        """How many times the jobs fill all slots."""
        return math.ceil(len(self.jobs) / (self.program.slots * len(self.devices)))

    def _compile(self, slots: int) -> Executables:
        """The executables for `slots` points on each device."""
        program, first, run = dataclasses.replace(self.program, slots=slots), self.jobs[0], self.jobs[0].run
        records = records_of(run.data, self._largest, self._smallest)
        return program.compile(*program.shapes(first.algorithm, run.data.partition, records, split(run.model)[1]))

    def sample(self) -> "Sample":
        """Measure the seconds of a round and of an evaluation."""
        _, run = self._trial()
        one = np.ones(len(self.devices), np.int32)
        run(1, one)  # the first time also touches memory
        began = time.perf_counter()
        run(1, one)  # without a round: an evaluation alone
        evaluated = time.perf_counter()
        run(2, one)
        evaluation_s, both_s = evaluated - began, time.perf_counter() - evaluated
        width = len(self.devices) * (self.program.slots if self.program.vmapped else 1)
        return Sample(max(both_s - evaluation_s, 0.0) / width, evaluation_s / width)

    def observe(self) -> dict[int, Observation]:
        """What the first jobs show after two rounds."""
        queues, run = self._trial()
        observation = run(2, np.array([len(queue) for queue in queues], np.int32))
        jobs = zip(self._slots(queues), itertools.chain(*queues))
        return {job: jax.tree.map(operator.itemgetter(slot), observation) for slot, job in jobs}

    def _trial(self) -> tuple[list[list[int]], Callable[[int, np.ndarray], Observation]]:
        """The first jobs in queues, and what runs some of them to a round and observes them there."""
        queues = [[at % len(self.jobs) for at in range(d, d + COMPARED_POINTS)] for d in range(len(self.devices))]
        queues = [queue[: self.program.slots] for queue in queues]
        points, records, frozen, count = self._place(queues)
        running = self.compiled.begin(points, records, frozen, count)

        def run(rounds: int, some: np.ndarray) -> Observation:
            nonlocal running
            whole = points.evaluation_rounds
            evaluation_rounds = jax.device_put(np.full(whole.shape, rounds, np.int32), whole.sharding)
            until, number = points._replace(evaluation_rounds=evaluation_rounds), jax.device_put(some, count.sharding)
            ends = np.int32(0), np.int32(1)
            running, observation = self.compiled.run_segment(until, running, records, frozen, number, *ends)
            return jax.tree.map(lambda a: np.asarray(a)[:, 0], observation)

        return queues, run

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
        until        evaluations after which jobs stop, where they do not go to their last one;
        before       outcomes of an earlier call that stopped at `until`, by job: these jobs continue, bit for bit.
        If a dispatch fails, its points are retried one by one, and only those that fail again are lost.
        """
        segment = _Segment(until, before or {}, with_params)
        waiting = sorted(
            range(len(self.jobs)),
            key=lambda index: (*self._kind(segment, index), len(self.jobs[index].evaluation_rounds)),
        )
        at_once = self.program.slots if self.program.vmapped else 1
        done = 0
        while waiting:
            queues, waiting = self._schedule_jobs(waiting, at_once, segment)
            batch, began = list(itertools.chain(*queues)), time.perf_counter()
            try:
                outcomes = self._run_queues(queues, lambda part: progress(done + part), segment)  # noqa: B023
            except Exception as error:  # of any kind: the other points still run
                outcomes = self._retry_singly(queues, error, segment)
            spent = time.perf_counter() - began
            done += len(batch)
            for index, outcome in zip(batch, outcomes, strict=True):
                earlier = segment.before[index].seconds if index in segment.before else 0.0
                yield index, outcome._replace(seconds=earlier + spent / len(batch))
            if not self.program.vmapped:
                at_once = max(1, min(self.program.slots, int(DISPATCH_S / (spent / max(map(len, queues))))))
            progress(done)

    def _retry_singly(self, queues: list[list[int]], error: Exception, segment: _Segment) -> list[PointEnd]:
        """Run each job of a failed batch alone. A job that ran alone has failed."""
        if sum(map(len, queues)) == 1:
            return [PointEnd.of_error(error)]
        outcomes = []
        for at, index in ((at, index) for at, queue in enumerate(queues) for index in queue):
            one_job = [[index] if queue == at else [] for queue in range(len(queues))]
            try:
                outcomes += self._run_queues(one_job, lambda part: None, segment)
            except Exception as own:
                outcomes += self._retry_singly(one_job, own, segment)
        return outcomes

    def _kind(self, segment: _Segment, index: int) -> tuple[int, tuple[float, ...]]:
        """The evaluations that a job has done, equal within a batch, and its records, equal on a device."""
        return segment.evaluations_done(index), base_of(self.jobs[index].run.data)

    def _schedule_jobs(self, waiting: list[int], at_once: int, segment: _Segment) -> tuple[list[list[int]], list[int]]:
        """Queues of at most `at_once` jobs for each device, which share records, and the jobs that still wait."""
        queues: list[list[int]] = []
        fair = min(at_once, math.ceil(len(waiting) / len(self.devices)))
        behind = segment.evaluations_done(waiting[0])
        for _ in self.devices:
            kinds = [self._kind(segment, index) for index in waiting[:fair]]
            alike = sum(1 for kind in itertools.takewhile(lambda kind: kind == kinds[0], kinds) if kind[0] == behind)  # noqa: B023
            queues.append(waiting[:alike])
            waiting = waiting[alike:]
        return queues, waiting

    def _run_queues(
        self, queues: list[list[int]], progress: Callable[[float], Any], segment: _Segment
    ) -> list[PointEnd]:
        """Run the queued jobs, in their order, to their last evaluation or to the one where the segment stops."""
        points, records, frozen, count = self._place(queues)
        batch = [index for queue in queues for index in queue]
        jobs = [self.jobs[index] for index in batch]
        slots = self._slots(queues)
        first = segment.evaluations_done(batch[0])
        if first:
            states = [segment.before[index].running for index in self._slot_jobs(queues)]
            running = jax.tree.map(lambda *rows: np.stack(rows), *states)
            running = jax.device_put(running, NamedSharding(self.program.mesh, P(AXIS)))
        else:
            running = self.compiled.begin(points, records, frozen, count)
        last = min(max(len(job.evaluation_rounds) for job in jobs), segment.until or self.program.max_evaluations)
        windows, at, stride = [], first, 1 if max(map(len, queues)) == 1 else last
        while at < last:
            until = min(at + stride, last)
            began = time.perf_counter()
            running, observation = self.compiled.run_segment(
                points, running, records, frozen, count, np.int32(at), np.int32(until)
            )
            windows.append(jax.tree.map(lambda a: np.asarray(a)[slots, at:until], observation))  # noqa: B023
            stride = max(1, int(DISPATCH_S * (until - at) / (time.perf_counter() - began)))
            at = until
            progress(len(slots) * (at - first) / (last - first))
        observations = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *windows)
        ends = []
        for row, (index, job) in enumerate(zip(batch, jobs)):
            history = list(segment.before[index].history) if first else []
            ends.append(_outcome(job, history, jax.tree.map(operator.itemgetter(row), observations), last))
        if segment.until is not None:
            stopped = jax.tree.map(np.asarray, running)
            ends = [
                end._replace(running=jax.tree.map(lambda a: a[slot].copy(), stopped))  # noqa: B023
                if end.reason is not None and not end.diverged
                else end
                for slot, end in zip(slots, ends)
            ]
        if not segment.with_params:
            return ends
        params = jax.tree.map(np.asarray, jax.vmap(final_model)(points.algorithm, running.state))
        return [end._replace(params=jax.tree.map(operator.itemgetter(slot), params)) for slot, end in zip(slots, ends)]

    def _place(self, queues: list[list[int]]) -> tuple[Points, FederatedData, Any, jax.Array]:
        """The arrays of jobs in the slots of each device, and their number there. Empty slots run no round."""
        rows = [self._leaves[index] for index in self._slot_jobs(queues)]
        host: Points = jax.tree.unflatten(self._shape, map(np.stack, zip(*rows, strict=True)))
        real = [slot < len(queue) for queue in queues for slot in range(self.program.slots)]
        host = host._replace(evaluation_rounds=host.evaluation_rounds * np.array(real, np.int32)[:, None])
        counts = np.array([len(queue) for queue in queues], np.int32)
        host, count = jax.device_put((host, counts), NamedSharding(self.program.mesh, P(AXIS)))
        spare = next(queue[0] for queue in queues if queue)
        datas = [self.jobs[queue[0] if queue else spare].run.data for queue in queues]
        records = self._records.records(datas, self._largest, self._smallest, self.program.mesh)
        if self._frozen is None:
            self._frozen = jax.device_put(split(self.jobs[0].run.model)[1], NamedSharding(self.program.mesh, P()))
        keys = jax.random.wrap_key_data(host.key, impl="threefry2x32")
        return host._replace(key=keys), records, self._frozen, count

    def _slots(self, queues: list[list[int]]) -> list[int]:
        """The slot of each job in the queues, in their order."""
        return [d * self.program.slots + s for d, queue in enumerate(queues) for s in range(len(queue))]

    def _slot_jobs(self, queues: list[list[int]]) -> list[int]:
        """The job in each slot of each device. Empty slots hold a copy of some job."""
        slots, spare = self.program.slots, next(queue[0] for queue in queues if queue)
        return [index for queue in queues for index in (queue + [spare] * slots)[:slots]]

    def _point_of(self, job: Job) -> Points:
        """The numbers of a job on the host, with its key as words; its last evaluation is repeated."""
        rounds = job.evaluation_rounds
        return Points(
            jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), job.algorithm),
            np.asarray(jax.random.key_data(run_key(job.run.draw_seed))),
            jax.tree.map(np.asarray, job.run.data.partition),
            np.array(rounds + rounds[-1:] * (self.program.max_evaluations - len(rounds)), np.int32),
        )


class Sample(NamedTuple):
    """Measurements of a program: the seconds of a round and of an evaluation of one point."""

    round_s: float
    evaluation_s: float

    def seconds(self, jobs: Sequence[Job]) -> float:
        """The estimated seconds of jobs."""
        return sum(self.round_s * job.run.rounds + self.evaluation_s * len(job.evaluation_rounds) for job in jobs)

    def trial_seconds(self, group: JobGroup) -> float:
        """The estimated seconds of a trial of another way to run a group."""
        jobs = min(len(group.jobs), COMPARED_POINTS * len(group.devices))
        return 3 * jobs * (2 * self.round_s + self.evaluation_s)  # observed by both ways, and measured


def choose_fastest(group: JobGroup) -> tuple[JobGroup, Sample]:
    """The group, or one that runs its points all at once if that is faster and gives identical numbers.

    It is tried on a CPU only, for groups that run long enough to repay the compilation and the trial. Accelerators
    always do so.
    """
    sample = group.sample()
    repays = sample.seconds(group.jobs) > max(TRIAL_S, TRIALS * sample.trial_seconds(group))
    if group.program.vmapped or not repays or len(group.jobs) <= len(group.devices):
        return group, sample
    rival = group.vmapped_group()
    measured = rival.sample()
    if measured.seconds(rival.jobs) >= MAX_TIME_RATIO * sample.seconds(group.jobs):
        return group, sample
    one, other = group.observe(), rival.observe()
    pairs = (zip(jax.tree.leaves(one[job]), jax.tree.leaves(other[job])) for job in one.keys() & other.keys())
    same = all(np.array_equal(a, b) for a, b in itertools.chain.from_iterable(pairs))
    return (rival, measured) if same else (group, sample)


def _outcome(job: Job, history: list[Evaluation], observation: Observation, until: int) -> PointEnd:
    """The end of a job after `until` evaluations: `history`, continued by observations `(evaluations, ...)`."""
    task = task_of(job.run.model, job.run.data)
    for at in range(min(len(job.evaluation_rounds), until) - len(history)):
        done, measured, report = jax.tree.map(operator.itemgetter(at), observation)
        clients = report.clients[~report.finite].tolist()
        if clients or not math.isfinite(measured.test.sums["loss"]):
            return PointEnd(history, _divergence(job, int(done) - 1, clients), True, 0.0)
        if report.overflow.any():
            swamped = report.clients[report.overflow].tolist()
            reason = str(errors.RingOverflowError(int(done) - 1, swamped, job.run.data.called))
            return PointEnd(history, reason, True, 0.0)
        history.append(metrics.evaluation_of(int(done), measured, report, job.run.data, task))
    if until < len(job.evaluation_rounds):
        return PointEnd(history, f"after {history[-1].round} of {job.run.rounds} rounds", False, 0.0)
    return PointEnd(history, None, False, 0.0, clients=_clients(job, measured))


def _divergence(job: Job, done: int, clients: list[int]) -> str:
    """Why a loss or an update is not finite: data and model before the first round, or training."""
    run = job.run
    try:
        unscored.require_scores(run.model, run.data, run_key(run.draw_seed), tolerated=not clients)
    except errors.ConfigurationError as error:
        return str(error)
    return str(errors.DivergedError(done, clients, run.data.called))


def _clients(job: Job, measured: Measurement) -> dict[str, Any] | None:
    """The main metric of each client on its test records, of its personal model if any; None without such records."""
    data = job.run.data
    if data.test_clients is None:
        return None
    own = measured.personal is not None
    values, records = metrics.client_values(measured.personal or measured.test, data, model=job.run.model)
    numbers = [None if math.isnan(value) else float(value) for value in values]
    return {"own": own, "values": numbers, "records": [int(count) for count in records]}
