"""Several processes that share a run, on one or more machines, connected by `jax.distributed`.

Each process runs the same program with the same configuration on the devices of its machine. During a round they only
exchange the sums.
"""

import contextlib
import errno
import json
import os
import pathlib
import socket
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from fedjax_dp import errors

T = TypeVar("T")
LOST_S = 30  # without a heartbeat until a process counts as dead
LOST_WORDS = ("Gloo", "NCCL", "oordination", "arrier")  # in messages about others, not about memory or numbers
OPEN = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)  # why a port cannot be opened


class ProcessGroup(NamedTuple):
    """How the processes of a run find each other. JAX fills in None under SLURM, Kubernetes, Open MPI and on TPUs.

    coordinator  HOST:PORT of process 0;
    timeout      seconds until all processes must be connected.
    """

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    timeout: int = 300


def group_of(coordinator: str, processes: int | None, process: int | None, timeout: int = 300) -> ProcessGroup:
    """The group of checked arguments; with the coordinator `auto`, JAX finds the others.

    Raises: ConfigurationError.
    """
    group = ProcessGroup(None if coordinator == "auto" else coordinator, processes, process, timeout)
    if group.coordinator is not None:
        host, _, port = group.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise errors.refuse("coordinator", repr(coordinator), "HOST:PORT of process 0, or auto")
        if group.processes is None or group.process is None:
            raise errors.refuse(
                "processes and process", "not both", "given with a coordinator", "or let --coordinator auto find them"
            )
    if group.processes is not None:
        errors.require_count("processes", group.processes)
        if group.process is not None and not 0 <= group.process < group.processes:
            raise errors.refuse(
                "process", group.process, f"a number from 0 to {group.processes - 1}", "they count from 0"
            )
    errors.require_count("timeout", group.timeout)
    return group


@contextlib.contextmanager
def join_processes(group: ProcessGroup | None) -> Iterator[None]:
    """Run the block in a group of processes, or in a single one without a group. Call it before JAX is first used.

    Raises: ConfigurationError if the other processes are unknown, or the port is in use; errors.LostError if another
            process has ended. If not all connect in time, JAX ends this process.
    """
    if group is None:
        yield
        return
    _join(group)
    try:
        with _own_stdout():
            yield
    except (errors.ConfigurationError, errors.DivergedError, errors.RingOverflowError):
        jax.distributed.shutdown()  # all processes have stopped; one that leaves without waiting would end the others
        raise
    except (jax.errors.JaxRuntimeError, TimeoutError, ValueError) as error:  # XLA raises the last too, orbax the second
        if "context initialization failed" in str(error):
            name = socket.gethostname()
            raise errors.refuse(
                f"address of this machine, {name},",
                _address(name),
                "one that the other processes reach",
                "see /etc/hosts of each machine",
            ) from None
        if any(word in str(error) for word in LOST_WORDS):
            raise errors.LostError("another of its processes is gone") from None
        raise
    jax.distributed.shutdown()


def _join(group: ProcessGroup) -> None:
    """Wait for the other processes."""
    if group.process == 0 and group.coordinator is not None:
        _check_port(int(group.coordinator.rpartition(":")[2]))
    jax.config.update("jax_enable_preemption_service", False)  # which would keep SIGTERM from ending this process
    try:
        with warnings.catch_warnings():  # the refusal says what to do, in one line
            warnings.filterwarnings("ignore", r"\s*Kubernetes environment detected")
            jax.distributed.initialize(
                group.coordinator,
                group.processes,
                group.process,
                initialization_timeout=group.timeout,
                heartbeat_timeout_seconds=LOST_S,
            )
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise errors.refuse("coordinator", str(group.coordinator), "a port that process 0 can open", reason) from None
    except Exception as error:  # each kind of cluster fails in its own way: Slurm, Open MPI, Kubernetes, TPU
        if group.coordinator is not None:
            raise
        got, wanted = "auto where JAX finds no cluster", "HOST:PORT, with --processes and --process"
        raise errors.refuse("coordinator", got, wanted, " ".join(f"{type(error).__name__}: {error}".split())) from None


@contextlib.contextmanager
def _own_stdout() -> Iterator[None]:
    """Send output that libraries such as Gloo print to stdout to stderr; Python's own stays on stdout."""
    sys.stdout.flush()
    held = os.dup(1)
    with os.fdopen(held, "w", buffering=1) as out, contextlib.redirect_stdout(out):
        os.dup2(2, 1)
        try:
            yield
        finally:
            out.flush()
            os.dup2(held, 1)


def is_first() -> bool:
    """Whether this process writes files and messages."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def run_in_agreement(prepare: Callable[[], T], facts: Callable[[T], dict[str, str]]) -> T:
    """The result of `prepare`, if it succeeds in all processes and they agree on its `facts`; else all refuse.

    Raises: ConfigurationError in every process if it is raised in one, or if a fact differs; errors.StorageError in the
            process where it is raised.
    """
    if not jax.distributed.is_initialized():
        return prepare()
    mine: errors.ConfigurationError | errors.StorageError | None = None
    try:
        result = prepare()
        own_facts = facts(result)
    except (errors.ConfigurationError, errors.StorageError) as error:
        mine, own_facts = error, {"refused": str(error)}
    everyone = _gather(own_facts)
    if mine is not None:
        raise mine
    for process, other in enumerate(everyone):
        if "refused" in other:
            raise errors.ConfigurationError(f"process {process} has stopped: {other['refused']}")
    for process, other in enumerate(everyone):
        for name in sorted(everyone[0].keys() | other.keys()):
            here, wanted = (of.get(name, "not given") for of in (other, everyone[0]))
            if here != wanted:
                raise errors.refuse(
                    f"{name} of process {process}", here, f"that of process 0, {wanted}", "start all processes alike"
                )
    return result


def broadcast_from_first(value: str) -> str:
    """The value of the first process."""
    return _gather({"value": value})[0]["value"] if jax.distributed.is_initialized() else value


def code_checksum() -> str:
    """A checksum of this package's source code."""
    root, total = pathlib.Path(__file__).parent.parent, 0
    for path in sorted(root.rglob("*.py")):
        total = zlib.crc32(path.read_bytes(), zlib.crc32(path.relative_to(root).as_posix().encode(), total))
    return f"{total:08x}"


def _gather(facts: dict[str, str]) -> list[dict[str, str]]:
    """The facts of every process, in their order."""
    from jax.experimental import multihost_utils

    words = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(words.size))
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: words.size] = words
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return "none"


def _check_port(port: int) -> None:
    """Refuse a port on which another program listens; JAX would share it with another run's coordinator."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in OPEN:
                remedy = f"choose another for all processes ({error.strerror})"
                raise errors.refuse(
                    "port of the coordinator", port, "free on the machine of process 0", remedy
                ) from None
