"""Checkpoints of other versions, and those that fail."""

import gc
import logging
import os
import pathlib
import resource
import shutil
import signal
import threading
import time
from concurrent.futures import thread as pools
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp import errors, folders
from fedjax_dp.models import starts
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.checkpoint import STATE, Checkpoints


class Before(NamedTuple):
    """A state when what corrections and local rules keep were two things."""

    params: Any
    optimizer: Any
    round: Any
    upload: Any
    memories: Any
    rules: Any


def state_of(entry):
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits.y_train, np.full(4, 100), seed=0))
    algorithm = fdp.CATALOGUE[entry](cohort_size=2, batch_size=5, local_steps=1, learning_rate=0.1)
    return simulation.initial_server_state(algorithm, data, fdp.logistic_regression(data.record_shape, data.classes), 0)


@pytest.fixture
def state():
    return state_of("fedavg")


def test_parameters_of_a_damaged_checkpoint_are_refused_in_one_line(state, tmp_path):
    store = Checkpoints(tmp_path)
    store.save(state._replace(round=np.int32(3)))
    shutil.rmtree(tmp_path / "checkpoints/3" / STATE / "d")
    with pytest.raises(errors.ConfigurationError, match="checkpoint of round 3 must be written") as found:
        store.params()
    assert len(str(found.value).splitlines()) == 1
    store.close()


def test_parameters_are_read_while_the_run_goes_on_and_removes_their_checkpoint(state, tmp_path, monkeypatch):
    reader, writer, rounds = Checkpoints(tmp_path), Checkpoints(tmp_path), iter((5, 6, 7))
    writer.save(state._replace(round=np.int32(4)))
    reader._manager.reload()

    def read(path):
        for round_index in rounds:
            writer.save(state._replace(round=np.int32(round_index)))
        return starts.arrays_of(path)

    monkeypatch.setattr("fedjax_dp.rounds.checkpoint.arrays_of", read)
    assert reader.params()[0] == 7
    reader.close()
    writer.close()


@pytest.mark.parametrize("entry", ["fedavg", "scaffold"])
def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(entry, tmp_path):
    state = state_of(entry)
    pairs = tuple({"server": one, "clients": other} for one, other in zip(state.shared, state.clients, strict=True))
    store = Checkpoints(tmp_path)
    save = store._orbax.args.StandardSave(Before(*state[:4], memories=pairs, rules=()))
    store._manager.save(3, args=store._orbax.args.Composite(**{STATE: save}))
    store._manager.wait_until_finished()
    with pytest.raises(errors.ConfigurationError, match="round 3 must be written by this version") as found:
        store.restore(state)
    assert len(str(found.value).splitlines()) == 1
    store.close()


def waiting():
    """Threads that keep a process from ending: not those of pools, which Python ends."""
    return [one for one in threading.enumerate() if not one.daemon and one not in pools._threads_queues]


def file_in_the_way(folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("")


def files_cannot_grow(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize("fail", [file_in_the_way, files_cannot_grow])
def test_a_checkpoint_that_fails_is_one_error_and_no_thread_waits_for_it(fail, state, tmp_path, capfd, caplog):
    limit, before, asyncio_level = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        waiting(),
        logging.getLogger("asyncio").level,
    )
    for attempt in range(3):
        store = Checkpoints(tmp_path / str(attempt))
        try:
            fail(tmp_path / str(attempt))
            with pytest.raises(errors.StorageError), folders.storage_errors(tmp_path):
                store.save(state._replace(round=np.int32(1)))
            store.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    gc.collect()
    until = time.monotonic() + 5
    while waiting() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert waiting() == before
    assert capfd.readouterr().err == ""
    assert not [record for record in caplog.records if record.name == "asyncio"]
    logging.getLogger("asyncio").setLevel(asyncio_level)


def test_an_interrupt_waits_until_a_checkpoint_is_whole(state, tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)
    save = store._manager.save

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return save(*args, **kwargs)

    monkeypatch.setattr(store._manager, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(state._replace(round=np.int32(1)))
    store.close()
    assert Checkpoints(tmp_path).latest() == 1


def test_a_checkpoint_under_the_name_of_another_round_is_refused(state, tmp_path):
    store = Checkpoints(tmp_path)
    store.save(state._replace(round=np.int32(1)))
    store.close()
    pathlib.Path(tmp_path, "checkpoints/1").rename(tmp_path / "checkpoints/7")
    with pytest.raises(
        errors.ConfigurationError, match="must be of round 7, got one of round 1; give it its name back"
    ):
        Checkpoints(tmp_path).restore(state)
