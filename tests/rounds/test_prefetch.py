"""Records on the host: the same run, with no more of them on the devices than the next cohorts need."""

import numpy as np
import pytest
from helpers import refusal, usual
from on_host import COMMON, FEATURES, NOISE, SIZES, data, end  # noqa: F401

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.data import FederatedData
from fedjax_dp.execution.mesh import CohortLayout, Execution
from fedjax_dp.models import logistic_regression, mlp
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import prefetch, simulation

CASES = {  # every client, cohorts that vary, draws one by one, tables, masks, losses on all records, epochs
    "uniform": (fdp.dpnfl, NOISE),
    "all": (fdp.dpnfl, NOISE | {"cohort_size": None}),
    "poisson": (fdp.dp_fedavg, NOISE),
    "multiset": (fdp.fedavg, {"cohort": "md", "one_by_one": True}),
    "tables": (fdp.scaffold, {}),
    "tables of a rule": (fdp.fedavg, {"local_rule": "momentum", "keep_rule": True}),
    "tables, dropout": (fdp.scaffold, {"cohort_size": 4, "dropout": 0.4}),
    "masks": (fdp.cpfed, NOISE),
    "losses": (fdp.q_fedavg, {"q": 1.0}),
    "epochs": (fdp.fedavg, {"batches": "epochs"}),
    "dropout": (fdp.fedavg, {"dropout": 0.5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(CASES, ("multiset",)))
def test_host_equals_devices_bit_for_bit(name, data, monkeypatch):  # noqa: F811
    make, options = CASES[name]
    algorithm = make.of(COMMON | options)
    monkeypatch.setattr(prefetch, "MOST", 2)  # blocks end elsewhere than evaluations
    for a, b in zip(end(algorithm, data, False), end(algorithm, data, True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_block_may_hold_nobody(data, monkeypatch):  # noqa: F811
    monkeypatch.setattr(prefetch, "MOST", 1)
    algorithm = simulation.as_float32_leaves(fdp.dp_fedavg(**COMMON | NOISE))
    key = simulation.run_key(0)
    there = np.asarray(prefetch.draw_cohorts(algorithm.cohort, key, np.arange(200), data.shares)[1])
    empty = int(np.flatnonzero(~there.any(1))[0])
    run, state = simulation.initialize(
        algorithm,
        data,
        logistic_regression((FEATURES,), 3),
        fdp.execution.all_devices(),
        on_host=True,
        start=simulation.begin(algorithm, data, key, model=logistic_regression((FEATURES,), 3))._replace(round=empty),
    )
    state, _ = run.advance(state, empty + 1)
    run.close()
    assert int(state.round) == empty + 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("parts", [None, 3])
def test_any_layout_of_the_cohort_gets_its_records(parts, data):  # noqa: F811
    algorithm = fdp.dpnfl(**COMMON | NOISE | {"cohort_size": 5})
    for chunk in (1, 2):
        execution = fdp.execution.all_devices(chunk, parts=parts)
        pairs = zip(*(end(algorithm, data, host, 3, execution=execution) for host in (False, True)), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("count", "in_turn", "parts"), [(5, False, None), (5, True, None), (9, True, 4), (1, False, 2)]
)
def test_homes_are_where_positions_are_computed(count, in_turn, parts):
    execution = fdp.execution.all_devices(2, parts=parts)
    deal = CohortLayout(count, execution, 10, None, in_turn)
    rows = np.asarray(deal.out(np.arange(count)))
    for part, found in enumerate(rows[: deal.parts]):
        real = found.reshape(-1)
        there = [p for p in np.unique(real) if p or part == deal.device_of_position[0] * deal.each]  # 0 also fills up
        assert all(deal.device_of_position[p] == part // deal.each for p in there)
    np.testing.assert_array_equal(deal.back(deal.out(np.arange(count))), np.arange(count))


def test_a_device_holds_the_clients_that_it_computes_and_no_others(data):  # noqa: F811
    algorithm, execution = simulation.as_float32_leaves(fdp.dpnfl(**COMMON | NOISE)), fdp.execution.all_devices()
    source = prefetch.Prefetcher(algorithm, data, execution, simulation.run_key(0), 21)
    block = source.block(0)
    ids = np.asarray(
        prefetch.draw_cohorts(algorithm.cohort, simulation.run_key(0), np.arange(block.until), data.shares)[0]
    )
    owner = {tuple(data.x[row]): i for i in range(len(SIZES)) for row in rows_of(data, i)}
    for device in range(execution.devices):
        held = {owner[tuple(row)] for row in np.asarray(block.records.held.x)[device] if row.any()}
        assert held == set(ids[:, source._homes == device].ravel())
    source.close()


def test_each_process_reads_the_records_of_its_own_clients(data, monkeypatch):  # noqa: F811
    """Three processes of a device each, which compute the positions of a cohort in parts."""
    algorithm, key = simulation.as_float32_leaves(fdp.fedavg(**COMMON | {"cohort_size": 7})), simulation.run_key(0)
    monkeypatch.setattr(Execution, "groups", 3)
    read = []
    for process in range(3):
        monkeypatch.setattr(Execution, "own", {"the device": process})
        source = prefetch.Prefetcher(algorithm, data, Execution(), key, 21)
        drawn = tuple(np.asarray(part)[:1] for part in source._draw(0))
        monkeypatch.setattr(source, "_copy_rows", lambda rows: read.append(rows.tolist()))
        monkeypatch.setattr(source, "_spread", lambda parts: parts)
        source._read(0, drawn)
        source.close()
    (ids,) = drawn[0]
    wanted = [np.concatenate([rows_of(data, client) for client in ids[source._homes == at]]) for at in range(3)]
    assert [sorted(rows) for rows in read] == [sorted(rows.tolist()) for rows in wanted]


def rows_of(data, client):  # noqa: F811
    return data.rows[data.offsets[client] : data.offsets[client] + data.sizes[client]]


def test_records_of_others_are_never_read(data, monkeypatch):  # noqa: F811
    """With NaN for the records of all who are in no cohort, nothing changes."""
    monkeypatch.setattr(prefetch, "MOST", 3)
    algorithm = fdp.dpnfl(**COMMON | NOISE)
    key = simulation.run_key(0)
    ids = np.asarray(
        prefetch.draw_cohorts(simulation.as_float32_leaves(algorithm).cohort, key, np.arange(3), data.shares)[0]
    )
    others = np.setdiff1d(np.arange(len(SIZES)), ids)
    assert others.size
    x = np.array(data.x)
    x[np.concatenate([rows_of(data, i) for i in others])] = np.nan
    spoilt = replace(data, x=x)
    source = prefetch.Prefetcher(simulation.as_float32_leaves(algorithm), spoilt, fdp.execution.all_devices(), key, 21)
    assert np.isfinite(np.asarray(source.block(0).records.held.x)).all()
    source.close()


@pytest.mark.exhaustive
def test_a_longer_run_compiles_once(data, monkeypatch):  # noqa: F811
    monkeypatch.setattr(prefetch, "MOST", 4)
    algorithm, model = fdp.dpnfl(**COMMON | NOISE | {"cohort_size": 4}), logistic_regression((FEATURES,), 3)
    before = simulation.advance._cache_size()
    run, state = simulation.initialize(algorithm, data, model, fdp.execution.all_devices(), on_host=True)
    for until in (1, 3, 10, 40):
        state, _ = run.advance(state, until)
    run.close()
    assert int(state.round) == 40
    assert simulation.advance._cache_size() <= before + 2  # once more if a block needs more room


@pytest.mark.slow
def test_divergence_is_told_in_its_round(data, monkeypatch):  # noqa: F811
    monkeypatch.setattr(prefetch, "MOST", 2)
    algorithm = fdp.fedavg(**COMMON | {"learning_rate": 1e38, "l2": 0.4})
    told = []
    for host in (False, True):
        with pytest.raises(errors.DivergedError) as found:
            fdp.simulate(algorithm, data, rounds=30, evaluate_every=30, on_host=host)
        told.append(str(found.value))
    assert told[0] == told[1]


def test_what_looks_at_other_clients_is_refused(data):  # noqa: F811
    plus, network = fdp.rfedavg_plus(**COMMON), mlp((FEATURES,), 3, (4,))
    assert "records must be devices for this algorithm" in refusal(end, plus, data, True, model=network)
    assert "outside local steps" in refusal(end, fdp.fedavg(**COMMON), data, True, train_metrics=True)
    assert "one of auto, host, devices" in refusal(fdp.run, fdp.fedavg(**COMMON), data, rounds=1, records="disk")


def test_rows_are_numbered_beyond_32_bits():
    """Two giants of 1.2e9 records, which take no memory as all are one, and small clients behind them."""
    giants, taken = 2_400_000_000, []
    sizes = np.array([giants // 2, giants // 2, 3, 3, 3, 3])
    ends = np.cumsum(sizes)
    one = np.zeros((1, 1), np.float32)
    data = FederatedData(  # noqa: F811
        x=np.lib.stride_tricks.as_strided(one, (int(ends[-1]), 1), (0, 0)),
        y=np.zeros(1, np.int32),
        rows=None,
        offsets=ends - sizes,
        sizes=sizes,
        shares=np.full(6, 1 / 6),
        x_test=one,
        y_test=np.zeros(1, np.int32),
        scale=1.0,
        shift=0.0,
        largest=giants // 2,
        classes=2,
    )
    algorithm = simulation.as_float32_leaves(fdp.fedavg(**COMMON))
    source = prefetch.Prefetcher(algorithm, data, fdp.execution.some_devices(1), simulation.run_key(0), 2)
    source._copy_rows = lambda rows: taken.append(rows) or (np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.int32))
    source._read(0, (np.array([[2, 3, 5]]), np.ones((1, 3), bool)))
    assert taken[0].tolist() == [giants + i for i in (0, 1, 2, 3, 4, 5, 9, 10, 11)]
    source.close()


@pytest.mark.slow
def test_too_many_records_for_devices_are_refused(data, monkeypatch):  # noqa: F811
    monkeypatch.setattr(simulation, "MOST_ON_DEVICES", 100)
    with pytest.raises(
        errors.ConfigurationError, match="records must be at most 100, got 121 on devices; keep them on the host"
    ):
        end(fdp.dpnfl(**COMMON | NOISE), data, False)
