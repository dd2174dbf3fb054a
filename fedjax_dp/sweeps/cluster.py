"""A sweep over many machines: batches of points are tasks of a Ray cluster, and only the driver writes."""

import contextlib
import logging
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from fedjax_dp import devices, errors
from fedjax_dp.screen import Screen
from fedjax_dp.sweeps.conduct import Keep, Watch, conduct, entry_of, planned
from fedjax_dp.sweeps.engine import grouped
from fedjax_dp.sweeps.plan import Point
from fedjax_dp.sweeps.ready import Built, Sources, build, find_noise
from fedjax_dp.sweeps.records import Record

ANSWER_S = 5  # that a cluster has to answer
RETRIES = 5  # of a batch whose worker dies
BATCHES_PER_WORKER = 4  # so that the last ones end at about the same time, and little is lost with a worker


def run_points(points: Sequence[Point], parts: int) -> list[Record]:
    """What one task does: the records of its points, whatever becomes of them."""
    devices.cache_programs()
    screen = Screen(quiet=True)
    records: list[Record] = []
    ready = find_noise(build(points, Sources()), screen)
    conduct(planned([entry_of(one) for one in ready], screen, parts=parts), records.append, screen)
    return records


def spread(built: Sequence[Built], address: str, parts: int, cpus: int, keep: Keep, screen: Screen) -> None:
    """Run points on the Ray cluster at `address` ("local" starts one here), a batch of equal structure per task.

    parts  in which the sum over a cohort is taken: that of the machine that the sweep was begun on, so that points do
           not depend on where they run;
    cpus   cores of a task; on a cluster with GPUs a task takes one of them too.
    A batch whose worker dies runs again, elsewhere. Each batch is kept once, by this process.
    """
    with _connected(address) as ray:
        held = ray.cluster_resources()
        gpus = 1 if held.get("GPU", 0) >= 1 else 0
        workers = int(held["GPU"] if gpus else max(held.get("CPU", 0) // cpus, 1))
        batches = [
            [built[number].point for number in batch]
            for numbers in grouped([one.job for one in built])
            for batch in _cut(numbers, -(-len(built) // (workers * BATCHES_PER_WORKER)))
        ]
        screen.say(f"plan: {len(built):,} points in {len(batches)} tasks on {workers} workers of the Ray cluster")
        environment = {} if gpus else {"env_vars": {"JAX_NUM_CPU_DEVICES": str(cpus)}}
        task = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, runtime_env=environment
        )(run_points)  # fmt: skip
        running = {task.remote(batch, parts): batch for batch in batches}
        watch = Watch(len(built), "test_accuracy")
        with screen.live("sweep") as show:
            while running:
                (done, *_), _ = ray.wait(list(running), num_returns=1)
                batch = running.pop(done)
                try:
                    records = ray.get(done)
                except ray.exceptions.RayError as error:  # the others have nothing to do with it
                    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                    records = [_lost(point, reason) for point in batch]
                for record in records:
                    keep(record)
                    watch.add(record)
                show(watch.texts(watch.done))


def _cut(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[at : at + size] for at in range(0, len(numbers), size))


def _lost(point: Point, reason: str) -> Record:
    """The record of a point that nobody could run."""
    return {
        "point": point.id, "index": point.index, "values": point.values, "config": {}, "status": "failed",
        "reason": reason, "history": [], "guarantee": {}, "seconds": 0.0,
    }  # fmt: skip


def _require_answer(address: str) -> None:
    """Refuse a HOST:PORT where nobody answers: Ray itself would try for minutes and then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise errors.refuse("ray", address, "the address of a running Ray cluster, or local", str(error)) from None


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """The ray module, connected to a cluster."""
    try:
        import ray
    except ImportError:
        raise errors.refuse("ray", address, "installed", 'pip install "fedjax-dp[ray]"') from None
    _require_answer(address)
    where: dict[str, Any] = {} if address == "local" else {"address": address}
    try:
        with warnings.catch_warnings():  # Ray starts programs, which is safe: it runs nothing of ours between
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(**where, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:150]
        raise errors.refuse("ray", address, "the address of a running Ray cluster, or local", reason) from None
    try:
        yield ray
    finally:
        ray.shutdown()
