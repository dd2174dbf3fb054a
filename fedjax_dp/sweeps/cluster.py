"""A sweep on a Ray cluster: each task runs a batch of points, and only the driver writes files."""

import contextlib
import dataclasses
import logging
import math
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from fedjax_dp import devices, errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.experiments.console import Screen
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.sweeps.axes import in_words
from fedjax_dp.sweeps.engine import PointEnd, group_jobs
from fedjax_dp.sweeps.plan import Point
from fedjax_dp.sweeps.preparation import PreparedPoint, Sources, with_data, with_noise
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.runner import Keep, Watch, compile_plan, execute, record

ANSWER_S = 5  # seconds that a cluster has to answer
RETRIES = 5  # of a batch whose worker dies
BATCHES_PER_WORKER = 4  # small enough that all workers end together and little is lost with one


def run_points(tasks: Sequence[tuple[Point, Algorithm, Guarantee]], parts: int) -> list[Record]:
    """The work of one Ray task: run some points and return their records, failed ones included.

    tasks  points, their algorithms with noise, and their Guarantees. This process builds the data.
    """
    devices.cache_programs()
    screen, sources = Screen(quiet=True), Sources()
    records: list[Record] = []
    for (point, *_), own in zip(tasks, with_data([point for point, *_ in tasks], sources), strict=True):
        if own.id != point.id:
            what, remedy = f"data, code and files of {in_words(point.values)}", "put the same ones there"
            raise errors.refuse(what, f"others on {socket.gethostname()}", "those of the machine of the sweep", remedy)
    entries = [
        with_noise(point, dataclasses.replace(sources.plan_run(point.config), algorithm=algorithm), guarantee)
        for point, algorithm, guarantee in tasks
    ]
    execute(compile_plan(entries, screen, parts=parts), lambda record, params: records.append(record), screen)
    return records


def run_on(ready: Sequence[PreparedPoint], address: str, parts: int, cpus: int, keep: Keep, screen: Screen) -> None:
    """Run points on the Ray cluster at `address` ("local" starts one here), a batch of equal structure per task.

    parts  number of partial sums over a cohort, that of the machine where the sweep began, so that results do not
           depend on where points run;
    cpus   cores of a task. On a cluster with GPUs, a task also takes one GPU.
    If a worker dies, its batch runs again elsewhere. This process stores each batch once.
    """
    with _connect(address) as ray:
        gpus, workers = _workers(ray, cpus)
        size = -(-len(ready) // (workers * BATCHES_PER_WORKER))
        batches = [
            [ready[number] for number in numbers[at : at + size]]
            for numbers in group_jobs([one.job for one in ready])
            for at in range(0, len(numbers), size)
        ]
        screen.say(
            f"plan: {len(ready):,} points in {len(batches)} tasks on {workers} workers of the Ray cluster, of {cpus} "
            f"cores{' and a GPU' * gpus} each"
        )
        environment = {} if gpus else {"env_vars": {"JAX_NUM_CPU_DEVICES": str(cpus)}}
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, runtime_env=environment)(run_points)
        running = {}
        for batch in batches:
            remote = [(one.point, one.job.run.algorithm, one.guarantee) for one in batch]
            running[task.remote(remote, parts)] = batch
        watch = Watch(len(ready))
        with screen.live("sweep") as show:
            while running:
                (done, *_), _ = ray.wait(list(running), num_returns=1)
                batch = running.pop(done)
                try:
                    records = ray.get(done)
                except ray.exceptions.RayError as error:  # the other batches go on
                    end = PointEnd.of_error(getattr(error, "cause", None) or error)
                    records = [record(one, end) for one in batch]
                for one in records:
                    keep(one, None)
                    watch.add(one)
                show(watch.texts(watch.done / watch.total))


def _workers(ray: Any, cpus: int) -> tuple[int, int]:
    """The number of GPUs of a task (0 or 1), and the number of tasks that the cluster runs at once."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes))
    fitting = [int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) if gpus else math.inf)) for node in nodes]
    if not sum(fitting):
        most = max(int(node.get("CPU", 0)) for node in nodes)
        raise errors.refuse("ray_cpus", cpus, f"at most {most}, the cores of the cluster's largest machine")
    return gpus, sum(fitting)


def _require_answer(address: str) -> None:
    """Refuse a HOST:PORT that does not answer: Ray itself would retry for minutes and then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise errors.refuse("ray", address, "the address of a running Ray cluster, or local", str(error)) from None


@contextlib.contextmanager
def _connect(address: str) -> Iterator[Any]:
    """The ray module, connected to a cluster."""
    try:
        import ray
    except ImportError:
        raise errors.refuse("ray", address, "installed", 'pip install "fedjax-dp[ray]"') from None
    _require_answer(address)
    where: dict[str, Any] = {} if address == "local" else {"address": address}
    try:
        with warnings.catch_warnings():  # Ray forks programs, which is safe: none of our code runs in between
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(**where, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:150]
        raise errors.refuse("ray", address, "the address of a running Ray cluster, or local", reason) from None
    try:
        yield ray
    finally:
        ray.shutdown()
