"""A process of several is watched by a parent, so that whatever ends it is reported in one line.

When one process dies, JAX ends the others from within, by a signal and with a page about its own insides.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import IO, Any

from fedjax_dp import errors


def watched(work: Callable[[], int]) -> int:
    """The exit code of `work`, which is done in a child; 1 with a line if a signal has ended it."""
    with tempfile.TemporaryFile() as log:
        return _watched(work, log)


def _watched(work: Callable[[], int], log: IO[bytes]) -> int:
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        _apart(log)
        threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing is left to do, and JAX would wait for processes that may be dead
    os.close(alive)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child gets it too, and says so
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    log.seek(0)
    error = _why(-code, log.read().decode(errors="replace"))
    print(f"fedjax-dp: {error}", file=sys.stderr)
    return 2 if isinstance(error, errors.ConfigurationError) else 1


def _apart(log: IO[bytes]) -> None:
    """What C++ libraries print goes to the log; what Python prints goes where it went."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        ours: Any = os.fdopen(os.dup(descriptor), "w", buffering=1)
        setattr(sys, name, ours)
        os.dup2(log.fileno(), descriptor)


def _end_with_parent(alive: int) -> None:
    os.read(alive, 1)  # returns when nobody holds the other end
    os._exit(1)


def _why(number: int, log: str) -> errors.ConfigurationError | errors.LostError:
    """What has ended a child by a signal, from what JAX has left in its log."""
    if "distributed service detected fatal errors" not in log:
        return errors.LostError(f"this process was stopped by {signal.Signals(number).name}")
    if "RegisterTask" not in log:
        return errors.LostError("another of its processes is gone")
    if "DEADLINE_EXCEEDED" in log:
        return errors.refuse("processes", "fewer in time", "all started", "check HOST:PORT and --processes of each")
    reason = log.split("absl::Status:", 1)[-1].split("\n", 1)[0].strip()
    return errors.refuse("process", "one that the coordinator refuses", "one of --processes", reason[:160])
