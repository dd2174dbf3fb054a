"""Others, side by side: all compute the same, and who cannot take part stays in the table with the reason."""

import importlib
import json
import pathlib
import sys

import jax
import numpy as np
import pytest
from helpers import benchmark, usual

ROOT = pathlib.Path(__file__).parent.parent
PEERS, RESULTS = ROOT / "benchmarks" / "peers", ROOT / "benchmarks" / "results"
SHOWN = ("W1", "W2", "W3", "W3dp")
MODULES = (
    "workloads",
    "quiet",
    "run",
    "contenders",
    "contenders.ours",
    "contenders.jax_rounds",
    "contenders.plain_jax",
)


@pytest.fixture(scope="module")
def peers():
    sys.path.insert(0, str(PEERS))
    yield importlib.import_module("run")
    sys.path.remove(str(PEERS))
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [("W1", 7_850), ("W2", 85_210), ("W3", 1_663_370), ("W3dp", 1_663_370), ("cifar", 1_626_442)],
)
def test_models_have_the_stated_sizes(peers, workload, parameters):
    weights = peers.workloads.weights(peers.workloads.WORKLOADS[workload])
    assert sum(part.size for layer in weights for part in layer) == parameters


@pytest.mark.parametrize("workload", usual(["W1", "W2", "W3dp"], ["W1"]))
def test_ours_and_plain_jax_clip_alike(peers, workload):
    w = peers.workloads.WORKLOADS[workload]
    w = w._replace(clients=2, cohort=2, records=w.batch, batch=min(w.batch, 8))
    weights, (x, y) = peers.workloads.weights(w), peers.workloads.one_batch(w)
    with jax.numpy_rank_promotion("allow"):  # plain JAX as people write it
        makers = [importlib.import_module(f"contenders.{name}").make for name in ("ours", "plain_jax")]
        found = [make(w)[1](weights, x, y) for make in makers]
    scale = max(np.abs(part).max() for layer in found[0] for part in layer)
    for a, b in zip(*found, strict=True):
        for ours, theirs in zip(a, b, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5 * scale)


def test_who_cannot_run_gives_a_reason(peers, tmp_path, monkeypatch):
    absent = peers.Peer("absent", None, (), "")
    monkeypatch.setitem(peers.PEERS, "no_such_contender", absent)
    kept = []
    found = peers.compared("W1:10", ["no_such_contender"], 2, peers.Setting(tmp_path), kept.append)
    assert not found["rows"]
    assert found["reasons"]["no_such_contender"].startswith("ModuleNotFoundError: No module named")
    assert kept == [found]
    late = peers.compared("W1", ["ours"], 2, peers.Setting(tmp_path, until=0.0))
    assert late["reasons"] == {"ours": "no time left"}


class Turns:
    """A contender that answers without a process; the second one gives up in its second turn."""

    def __init__(self, name, workload, setting):
        self.name, self.ready, self.taken = name, {"gradient": None, "versions": {}}, 0

    def turn(self):
        self.taken += 1
        if self.name == "torch_func" and self.taken > 1:
            raise sys.modules["run"].Refused("out of memory")
        return {"ms": [10.0 if self.name == "ours" else 30.0], "peak_mb": 1.0, "accuracy": []}

    def stop(self):
        pass


def test_what_is_known_is_written_after_every_turn(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "Worker", Turns)
    monkeypatch.setattr(peers, "SETTLE_S", 0.0)
    kept = []
    names = ["ours", "plain_jax", "torch_func"]
    found = peers.compared("W2:100", names, 3, peers.Setting(tmp_path), kept.append)
    assert [list(one["rows"]) for one in kept[:3]] == [names[:1], names[:2], names]
    assert [len(one["rows"]["ours"]["turns"]) for one in kept] == [1, 1, 1, 2, 2, 2, 3, 3]
    assert found["reasons"] == {"torch_func": "out of memory"}
    assert {name: (row["ms"], len(row["turns"]), row["times_ours"]) for name, row in found["rows"].items()} == {
        "ours": (10.0, 3, 1.0),
        "plain_jax": (30.0, 3, 3.0),
    }
    assert (found["cohort"], found["clients"]) == (100, 100)


def test_without_a_gpu_a_comparison_there_is_refused_in_one_line(peers, tmp_path, monkeypatch):
    told = {"platform": "cpu", "kind": "cpu"}
    monkeypatch.setattr(peers.environment, "device", lambda: told)
    monkeypatch.setattr(peers.os, "environ", dict(peers.os.environ))
    monkeypatch.setattr(sys, "argv", ["run.py", "--device", "gpu", "--quick", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^peers: --device gpu: JAX \S+ sees no GPU here, only cpu$"):
        peers.main()
    assert not list(tmp_path.iterdir())


def test_a_gpu_has_workloads_and_contenders_of_its_own(peers):
    assert {"jax_privacy_step", "torch_func", "opacus_ghost", "pfl_rounds"} <= set(peers.ON_GPU) <= set(peers.PEERS)
    for item in (*peers.GPU_WORKLOADS, *peers.QUICK):
        w = peers.workloads.named(item)
        assert w.clients >= w.cohort == int(item.split(":")[1])
    assert sorted(["W2:10", "cifar:50", "W1:100", "W1:10"], key=peers.place) == ["W1:10", "W1:100", "W2:10", "cifar:50"]


def row(ms):
    times = {"ms": ms, "spread": 0.1, "times_ours": ms / 10, "turns": [ms] * 9}
    return times | {"peak_mb": 1.0, "gradient_gap": None}


def test_table_and_picture_tell_ratios_reasons_and_disturbance(peers, tmp_path):
    w = peers.workloads.WORKLOADS["W1"]._asdict()
    w["rows"] = {"ours": row(10.0), "torch_func": row(52.0)}
    results = {"W1": w | {"disturbed": ["torch_func"], "reasons": {"fedjax_rounds": "does not install: no wheel"}}}
    told = peers.table(results)
    assert "| fedjax_dp | 10 ms |" in told
    assert "| torch.func | 52 ms, 5.2x (disturbed) |" in told
    assert "| fedjax | no: does not install: no wheel |" in told
    peers.draw(results, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 5000


def test_a_wrong_gradient_stops_the_comparison(peers, tmp_path):
    class Ready:
        def __init__(self, name, scale):
            file = tmp_path / f"{name}.npz"
            np.savez(file, scale * np.ones(3), np.arange(2.0))
            self.ready = {"gradient": str(file)}

    ours, within = Ready("ours", 1.0), peers.WITHIN["cpu"]
    assert peers.gap("a", Ready("a", 1.0 + 1e-6), ours, within) < 1e-5
    with pytest.raises(SystemExit, match="does not compute the same clipped gradient"):
        peers.gap("b", Ready("b", 1.01), ours, within)


def test_a_measurement_is_taken_again_while_others_have_the_cores(peers, monkeypatch):
    """Ticks lost to others: 50 of 100 in the first attempt, 1 of 100 in the second."""
    ticks = iter([(0, 0), (50, 100), (50, 100), (51, 200)])
    monkeypatch.setattr(peers.quiet, "taken", lambda: next(ticks))
    found = iter(["disturbed", "quiet"])
    assert peers.quiet.undisturbed(lambda: next(found)) == "quiet"
    monkeypatch.setattr(peers.quiet, "taken", iter([(n * 50, n * 100) for n in range(100)]).__next__)
    calls = []
    peers.quiet.undisturbed(lambda: calls.append(1))
    assert len(calls) == peers.quiet.ATTEMPTS  # and no endless wait


def test_the_readme_shows_the_committed_comparison(peers):
    readme = (ROOT / "README.md").read_text()
    found = json.loads((RESULTS / "peers.json").read_text())["workloads"]
    lines = peers.table({name: found[name] for name in SHOWN}).splitlines()
    assert sum(line in readme for line in lines[2:]) == 5
    assert all(line in lines for line in readme.splitlines() if line.startswith(("| fedjax_dp", "| PyTorch")))
    assert "(benchmarks/results/peers.png)" in readme
    for name in SHOWN:
        gaps = [row["gradient_gap"] for row in found[name]["rows"].values()]
        assert all(gap is None or gap < 1e-4 for gap in gaps)
        assert "ours" not in found[name]["disturbed"]


def test_the_committed_table_of_rounds_on_a_gpu_is_that_of_its_files(peers):
    assert benchmark("h200").table() == (RESULTS / "h200" / "peers.md").read_text().strip()


def test_rounds_do_not_grow_with_the_population_and_bfloat16_moves_little():
    found = json.loads((RESULTS / "scaling.json").read_text())
    assert not found["disturbed"]
    population = [row["round_ms"] for row in found["curves"]["population"]]
    assert [row["clients"] for row in found["curves"]["population"]] == [10**n for n in range(2, 7)]
    assert max(population) / min(population) < 1.2
    moved = max(abs(row["difference"]) for row in json.loads((RESULTS / "bfloat16.json").read_text())["rows"])
    assert moved < 1e-3


def test_committed_weak_scaling_agrees_with_itself():
    told = json.loads((RESULTS / "weak_scaling.json").read_text())
    ms = {(row["devices"], row["order"]): row["ms"] for row in told["rows"]}
    assert {order for _, order in ms} == {"any_order", "in_order", "apart"}
    for row in told["rows"]:
        assert row["efficiency"] == pytest.approx(ms[1, "any_order"] / row["ms"], rel=0.1)  # median of ratios
        assert not row["disturbed"]
