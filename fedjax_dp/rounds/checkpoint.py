"""Server state on disk, written atomically by orbax; a resumed run ends bit for bit like an uninterrupted one."""

import contextlib
import logging
import pathlib
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import jax

from fedjax_dp import errors, folders
from fedjax_dp.execution import distributed
from fedjax_dp.execution.host_tables import HostTable
from fedjax_dp.models.origins import LEDGER
from fedjax_dp.models.run_files import CHECKPOINTS, FINAL, NAME, RUN, STATE, arrays_at, name_of
from fedjax_dp.models.starts import arrays_of
from fedjax_dp.rounds import prefetch
from fedjax_dp.rounds.state import ServerState

KEPT = 2
TABLES = "tables"


class Checkpoints:
    """The last checkpoints of a run folder. Orbax writes beside and renames, so a killed run leaves whole ones only."""

    def __init__(self, folder: pathlib.Path):
        where = folder / CHECKPOINTS
        if where.exists() and not where.is_dir():  # orbax would wait for it, or fail in a thread
            raise errors.refuse(str(where), "a file", "a folder", "remove it")
        import orbax.checkpoint as orbax  # slow to import, and only needed by runs with a folder

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what fails is raised too
        self._orbax, self._folder = orbax, folder
        # Not in the background: after a failure its threads would wait for one another, and the process would not end.
        options = orbax.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False)
        self._manager = orbax.CheckpointManager(where.absolute(), options=options)
        self._thread = futures.ThreadPoolExecutor(1)  # an interrupt comes to the main one, and never into a checkpoint
        self._thread.submit(int).result()  # begins it: nor into that

    def save(self, state: ServerState, params: Any = None) -> None:
        """Store the state after `state.round` rounds, and the final model's `params` where they are others than its.

        Returns when it is on disk.
        """
        save = self._orbax.args.StandardSave
        parts = {STATE: save(_light(state))}
        if (self._folder / RUN).is_file():
            parts[NAME] = self._orbax.args.JsonSave({NAME: name_of(self._folder)})
        if tables := prefetch.tables_of(state):
            parts[TABLES] = save([table.written_rows() for table in tables])
        if params is not None and params is not state.params:
            parts[FINAL] = save(params)
        round_index, args = int(state.round), self._orbax.args.Composite(**parts)
        with _without_strays():
            self._thread.submit(self._manager.save, round_index, args=args).result()
        ledger = self._folder / LEDGER
        if ledger.is_file() and distributed.is_first():  # so that a copy of the arrays alone says what they are
            for part in {STATE, FINAL} & parts.keys():
                copy = pathlib.Path(self._manager.directory) / str(round_index) / part / LEDGER
                folders.write_atomically(copy, ledger.read_text())

    def latest(self) -> int | None:
        """Number of finished rounds in the newest complete checkpoint."""
        return self._manager.latest_step()

    def restore(self, like: ServerState) -> ServerState:
        """The newest checkpoint, with the shapes and devices of `like`."""
        step = self._newest()
        restore, tables = self._orbax.args.StandardRestore, prefetch.tables_of(like)
        template: Any = jax.tree.map(self._orbax.utils.to_shape_dtype_struct, _light(like))
        parts = {STATE: restore(template)} | ({TABLES: restore()} if tables else {})
        try:
            with _without_strays():
                saved = self._manager.restore(step, args=self._orbax.args.Composite(**parts))
            held, others = saved[TABLES] if tables else [], jax.tree.leaves(saved[STATE])
            if len(others) != len(jax.tree.leaves(_light(like))):
                raise ValueError("client state is stored elsewhere")
        except MemoryError:
            raise
        except Exception as error:  # of orbax and tensorstore, without a common base
            raise _unreadable(step, error) from None
        rows, rest = iter(held), iter(others)
        state = jax.tree.map(lambda a: a.with_rows(next(rows)) if isinstance(a, HostTable) else next(rest), like)
        if int(state.round) != step:
            where = f"checkpoint {pathlib.Path(self._manager.directory) / str(step)}"
            raise errors.refuse(where, f"one of round {int(state.round)}", f"of round {step}", "give it its name back")
        return state

    def params(self) -> tuple[int, Any]:
        """Round and final model's parameters of the newest checkpoint, as NumPy arrays; nothing else is read."""
        while True:
            step = self._newest()
            try:
                with _without_strays():
                    return step, arrays_of(arrays_at(pathlib.Path(self._manager.directory) / str(step)))
            except MemoryError:
                raise
            except Exception as error:  # of orbax and tensorstore, without a common base
                self._manager.reload()
                if self.latest() == step:  # else the run goes on meanwhile, and has removed it
                    raise _unreadable(step, error) from None

    def _newest(self) -> int:
        step = self.latest()
        if step is None:
            raise errors.refuse("checkpoint", "none", "present in the run folder", "start the run again")
        return step

    def close(self) -> None:
        """Close it, after a checkpoint that was interrupted is complete."""
        self._thread.shutdown()
        self._manager.close()


def _unreadable(step: int, error: Exception) -> errors.ConfigurationError:
    reason = (" ".join(str(error).split()) or type(error).__name__)[:120]
    return errors.refuse(
        f"checkpoint of round {step}",
        "one of another shape or a damaged one",
        "written by this version and configuration",
        f"start again in a new folder ({reason})",
    )


@contextlib.contextmanager
def _without_strays() -> Iterator[None]:
    """After a failure, other pending reads or writes report to an event loop that orbax has already closed, and each
    would print a traceback. The first error is raised and is enough. After a failure the silence remains."""
    log, before = logging.getLogger("asyncio"), sys.unraisablehook
    level = log.level

    def hook(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)
        if str(unraisable.exc_value) != "Event loop is closed" and "orbax" not in getattr(code, "co_filename", ""):
            before(unraisable)

    log.setLevel(logging.CRITICAL)
    sys.unraisablehook = hook
    yield
    log.setLevel(level)
    sys.unraisablehook = before


def _light(state: ServerState) -> ServerState:
    return prefetch.over_tables(state, lambda table: () if isinstance(table, HostTable) else table)
