"""What clients keep, on the host: the same as on devices, and room only for who has taken part."""

import dataclasses

import jax
import numpy as np
import pytest
from on_host import COMMON, FEATURES, data, end  # noqa: F401

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.execution.host_tables import HostTable
from fedjax_dp.models import logistic_regression
from fedjax_dp.parts.corrections import ControlVariates
from fedjax_dp.pytrees import value
from fedjax_dp.rounds import prefetch, simulation
from fedjax_dp.rounds.checkpoint import Checkpoints

MODEL = logistic_regression((FEATURES,), 3)
CONTROLS = fdp.scaffold(**COMMON)


def test_rows_are_what_was_written_and_the_first_row_elsewhere():
    rng, plain = np.random.default_rng(0), np.tile(np.float32([1, 2, 3]), (50, 1))
    table = HostTable(50, np.float32([1, 2, 3]))
    for _ in range(5):
        clients = rng.permutation(50)[:7]
        plain[clients] = rng.normal(size=(7, 3))
        table.write(clients, plain[clients])
        asked = rng.permutation(50)[:9]
        found = table.read(asked, 12)
        np.testing.assert_array_equal(found[:9], plain[asked])
        np.testing.assert_array_equal(found[9:], 0)
    np.testing.assert_array_equal(np.asarray(table), plain)
    again = HostTable(50, np.float32([1, 2, 3])).with_rows(table.written_rows())
    np.testing.assert_array_equal(np.asarray(again), plain)
    copy = table.copy()
    table.write(np.arange(50), np.zeros((50, 3)))
    np.testing.assert_array_equal(np.asarray(copy), plain)


def test_a_table_of_a_million_clients_takes_the_room_of_few():
    table = HostTable(1_000_000, np.zeros(100_000, np.float32))  # 400 GB
    table.write(np.array([999_999, 3]), np.ones((2, 100_000), np.float32))
    assert table.written_rows()["rows"].nbytes == 800_000
    assert table.read(np.array([3, 4]), 2).mean(1).tolist() == [1, 0]


def test_only_the_rows_of_a_block_are_on_devices(data, monkeypatch):  # noqa: F811
    monkeypatch.setattr(prefetch, "MOST", 2)
    run, state = simulation.initialize(CONTROLS, data, MODEL, fdp.execution.all_devices(), on_host=True)
    rows = prefetch.load_rows(state, run.prefetcher.block(0), run.execution)
    members = COMMON["cohort_size"]
    assert [table.shape[0] for table in jax.tree.leaves(rows.clients)] == [2 * members]
    run.close()


@pytest.mark.slow
def test_a_run_goes_on_from_its_state_which_stays_the_callers(data):  # noqa: F811
    whole = end(CONTROLS, data, True)
    half = fdp.simulate(CONTROLS, data, rounds=3, evaluate_every=3, on_host=True).state
    before = [np.array(leaf) for leaf in jax.tree.leaves(half)]
    for on_host in (True, False):
        for a, b in zip(end(CONTROLS, data, on_host, start=half), whole, strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(before, jax.tree.leaves(half), strict=True):
        np.testing.assert_array_equal(a, np.asarray(b))


@pytest.mark.slow
def test_checkpoints_hold_the_rows(data, tmp_path):  # noqa: F811
    half = fdp.simulate(CONTROLS, data, rounds=3, on_host=True).state
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(half)
    back = checkpoints.restore(simulation.initial_server_state(CONTROLS, data, MODEL, 0, True))
    assert jax.tree.structure(back) == jax.tree.structure(half)
    for a, b in zip(*map(jax.tree.leaves, (half, back)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    with pytest.raises(errors.ConfigurationError, match="checkpoint of round 3"):
        checkpoints.restore(simulation.initial_server_state(CONTROLS, data, MODEL, 0, False))
    checkpoints.close()


def test_what_looks_at_rows_of_others_keeps_its_tables_on_devices(data):  # noqa: F811
    @value
    class Nosy(ControlVariates):
        def send(self, state, members):
            return state.clients[members.ids].mean(0)

    local = dataclasses.replace(CONTROLS.local, corrections=(Nosy(),))
    assert CONTROLS.local.separable_state
    assert not local.separable_state
