"""Free memory of a device, and how many clients, points or trials it computes at once so that they fit."""

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from fedjax_dp import errors
from fedjax_dp.execution.mesh import Execution

T = TypeVar("T")
SHARE_OF_MEMORY = 0.8  # of what is free


def free_memory(devices: Sequence[jax.Device]) -> float:
    """Bytes that each device may still use."""
    stats_of = [device.memory_stats() for device in devices]
    if all(stats and "bytes_limit" in stats for stats in stats_of):
        return SHARE_OF_MEMORY * float(min(stats["bytes_limit"] - stats["bytes_in_use"] for stats in stats_of))
    return SHARE_OF_MEMORY * _free_on_host() / len(devices)


def fit_execution(
    compiled: Callable[[Execution], Any], execution: Execution, cohort: int, size: int, memory: float, *, placed: bool
) -> tuple[Execution, Any]:
    """An execution whose program needs at most `memory` bytes of a device by the compiler's plan, and that program.

    compiled  compiles the program for an execution;
    size      parameters of a client's model;
    placed    whether the arguments are already on the device, so that `memory` is for everything else.
    A given `chunk_size` is kept. Otherwise the first try is the usual chunk of the device, and each further try the
    number of clients that should fit by the last one.
    Raises: ConfigurationError, with the needed and the available bytes, if not even one client fits.
    """
    first, share = execution.portion(cohort, size), math.ceil(cohort / execution.shares)
    given = execution.chunk_size is not None

    def of(portion: int) -> Execution:
        return execution if portion == first else dataclasses.replace(execution, chunk_size=portion)

    portion, program = most_at_once(
        lambda portion: compiled(of(portion)),
        memory,
        first=first,
        share=share,
        needs=lambda program: bytes_of(program, placed),
        what="clients",
        given=given,
    )
    return of(portion), program


def most_at_once(
    compiled: Callable[[int], T],
    memory: float,
    *,
    first: int,
    share: int,
    needs: Callable[[T], float],
    what: str,
    given: bool = False,
) -> tuple[int, T]:
    """How many of a device's share it computes at once so that they fit into its memory, and the program for that.

    first  is tried first, and kept if it is `given`; each further try is the number that should fit by the last one;
    needs  bytes that a program needs;
    what   is counted, for the refusal.
    Raises: ConfigurationError, with the needed and the available bytes, if not even one fits.
    """
    at_once = first
    while True:
        try:
            program = compiled(at_once)
            needed = needs(program)
            if given or needed <= memory:
                return at_once, program
        except jax.errors.JaxRuntimeError as error:  # a compiler without a plan reports the bytes of the best
            if (in_message := _bytes_in(str(error))) is None:
                raise
            needed = max(in_message, 1.1 * memory, 1.0)
        if given or at_once == 1:
            raise memory_error(memory, needed, f"{at_once} at once of its {what} need")
        at_once = smaller_portion(at_once, share, memory / needed)


def memory_error(memory: float, needed: float, of: str) -> errors.ConfigurationError:
    """The error to raise if a device has `memory` bytes and `of`, such as `a model needs`, takes more."""
    wanted = f"at least the {needed / 1e9:.3g} GB that" if needed > memory else "more than there is for what"
    remedy = "lower chunk_size, microbatch or batch_size, or take more devices"
    return errors.refuse("memory of a device", f"{memory / 1e9:.3g} GB", f"{wanted} {of}", remedy)


def smaller_portion(at_once: int, share: int, room: float) -> int:
    """The next chunk size to try if `at_once` need 1 / `room` of the memory, so that chunks of a share are equal."""
    most = max(1, min(at_once - 1, int(at_once * room)))
    return math.ceil(share / math.ceil(share / most))


def bytes_of(program: Any, placed: bool) -> int:
    """Bytes of a device that a compiled program plans to use, with its arguments unless they are already `placed`."""
    plan = program.memory_analysis()
    without_arguments = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return without_arguments if placed else without_arguments + plan.argument_size_in_bytes


def _bytes_in(error: str) -> float | None:
    """The bytes in the error of a compiler without enough memory; None for any other error."""
    if "RESOURCE_EXHAUSTED" not in error:
        return None
    used = re.search(r"[Uu]sed ([\d.]+)([KMGT]?)|\(([\d.]+)([KMGT]?)\) exceeds", error)
    if used is None:
        return 0.0
    number, unit = used.group(1) or used.group(3), used.group(2) or used.group(4) or "_"
    return float(number) * 1024.0 ** "_KMGT".index(unit)


def _free_on_host() -> float:
    """Bytes of available memory of the host."""
    meminfo = pathlib.Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return 1024.0 * int(fields["MemAvailable"].split()[0])
    return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
