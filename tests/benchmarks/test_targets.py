"""Programs compiled for accelerators that are not here, and what is read off them."""

import json
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forecast import compiled, program_text, sweeps, targets
from forecast.compiled import compiled_audit, compiled_sweep
from forecast.program_text import Program
from helpers import benchmark, refusal, small_algorithm

import fedjax_dp as fdp
from fedjax_dp.sweeps import runner
from fedjax_dp.tools.latency.floor import work_of

DIGITS = fdp.load("digits")
DATA = fdp.federate(DIGITS, fdp.data.iid(DIGITS.y_train, [20] * 10, 0))


TEXT = """HloModule a
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %x = f32[4]{0} get-tuple-element(%p), index=1
  %f = f32[4]{0} fusion(%x), metadata={op_name="jit(a)/local_step/add"}, backend_config={"estimated_cycles":"70"}
  %g = f32[4]{0} fusion(%f), metadata={op_name="jit(a)/local_step/mul"}, backend_config={"estimated_cycles":"30"}
  %i = s32[] add(%n, %one)
  ROOT %t = (s32[], f32[4]) tuple(%i, %g)
}

%until (p: (s32[], f32[4])) -> pred[] {
  %last = s32[]{:T(128)} constant(5)
  %n = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%n, %last), direction=LT
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %d = s32[8]{0} sort(%a), metadata={op_name="jit(a)/cohort_draw/sort"}
  %w = (s32[], f32[4]) while(%t), condition=%until, body=%body
  %r = f32[4]{0} all-reduce-start(%y), metadata={op_name="jit(a)/client_sum/psum"}
  ROOT %e = f32[4]{0} all-reduce-done(%r)
}
"""


def counts_of(text, loops=1):
    return program_text.counted(Program(text, loops), compiled.PARTS, compiled.STEP)


def test_launches_cycles_and_exchanges_are_counted_with_their_loops():
    found = counts_of(TEXT)
    assert found.launches == {"cohort_draw": 1, "local_step": 15, "client_sum": 1}
    assert found.cycles["local_step"] == 500
    assert (found.per_step, found.step_cycles) == (3, 100)
    assert found.collectives == (program_text.Collective("all-reduce", 16, 1, "client_sum"),)
    rounds = TEXT.replace("%lt = pred[] compare(%n, %last)", "%lt = pred[] compare(%n, %n)")  # an end that is not told
    assert counts_of(rounds).launches == {"local_step": 2, "other": 2}
    marks = "%marks (p: (s32[])) -> (s32[]) {\n  %w = (s32[]) while(%t), condition=%until, body=%body\n"
    marks += "  %look = f32[] dot(%a, %a)\n}\n\nENTRY"
    nested = rounds.replace("body=%body\n", "body=%marks\n").replace("ENTRY", marks)  # stretches of a sweep
    for loops, others in ((1, 4), (2, 2)):  # the end of each loop is looked at twice, and one evaluation
        found = counts_of(nested, loops).launches
        assert found == {"local_step": 2, "other": others}
    assert counts_of(nested, 0).launches["cohort_draw"] == 1
    known = TEXT.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
    assert counts_of(known).launches["local_step"] == 21


def test_what_cannot_be_compiled_for_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "must be installed, got no jax_cuda12_plugin" in refusal(targets.target_of, "h200")
    assert "pip install" in refusal(targets.target_of, "v5e")
    assert "did you mean v5e?" in refusal(targets.target_of, "v5")
    monkeypatch.undo()
    assert "multiple of the 2" in refusal(lambda: targets.execution_on(targets.TARGETS["v5e"], 3, model_devices=2))


@pytest.fixture
def here(monkeypatch):
    """A target whose devices and compiler are those of this machine."""
    monkeypatch.setattr(targets, "missing", lambda platform: None)
    monkeypatch.setattr(targets, "_gpus", lambda target, count: jax.devices()[:count])
    monkeypatch.setitem(targets.COMPILER_OPTIONS, "cuda", {})
    return "h200"


def run_script(monkeypatch, name, text, *words):
    """What `compiled.py` does with a file of a user's own."""
    pathlib.Path("own.toml").write_text(text)
    monkeypatch.setattr(sys, "argv", ["compiled.py", f"--{name}", "own.toml", *words])
    benchmark("compiled").main()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('model = "mlp"\nhidden = "300000,300000"', "at least the 720 GB that a model and a client's copy of it need"),
        ('records = "host"', 'devices, as no other round is compiled, got host; set records = "devices"'),
        ("cohort_size = 4\ndevices = 5", "devices must be at most the 4 clients"),
        ("cohort_size = 4\ndeterministic = 5", "deterministic must be at most the 4 clients"),
    ],
)
def test_a_configuration_that_cannot_be_compiled_is_one_line(text, expected, here, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, "run", text, "--targets", here)
    assert ended.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_configuration_is_compiled_as_its_fields_say(here, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    taken = {}

    def compiled_round(*given, **options):
        taken.update(options)
        raise fdp.ConfigurationError("taken")

    monkeypatch.setattr(compiled, "compiled_round", compiled_round)
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "run", "cohort_size = 4\ndeterministic = 2\nchunk_size = 3", "--targets", here)
    assert taken == {"target": here, "devices": 1, "model_devices": 1, "chunk_size": 3, "parts": 2}


@pytest.mark.exhaustive
def test_a_round_and_a_sweep_of_ones_own_are_printed(here, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_script(monkeypatch, "run", "cohort_size = 4", "--targets", here)
    assert "| dpnfl on digits | h200 |" in capsys.readouterr().out
    run_script(monkeypatch, "sweep", "[base]\ncohort_size = 4\n[axes]\nclip_norm = [1.0, 2.0]", "--targets", here)
    assert "up to 2 points at once" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_sweep_is_compiled_with_as_many_points_at_once_as_fit(here, monkeypatch):
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a)), DATA)
    algorithm = small_algorithm("dpnfl")
    sweep = compiled_sweep(algorithm, shapes, points=6, target=here)
    assert (sweep.runs, sweep.runs_at_once, sweep.turns) == (6, 6, 1)
    assert sweep.work.flops == 6 * work_of(algorithm, DATA, fdp.logistic_regression(DATA.record_shape, 10)).flops
    assert sum(sweep.launches.values()) > sweep.step_launches > 0
    monkeypatch.setitem(targets.TARGETS, here, targets.TARGETS[here]._replace(memory=sweep.needed_bytes - 1))
    fewer = compiled_sweep(algorithm, shapes, points=6, target=here)
    assert (fewer.runs_at_once, fewer.turns) == (3, 2)


@pytest.mark.parametrize("name", ["h200", "a100"])
def test_a_planned_sweep_has_hours_and_money_where_a_time_is_predicted(name, monkeypatch):
    """Of one H200 alone; a batch runs as long as its point of most rounds."""
    taken = []

    def compiled_for(algorithm, data, model, **options):
        taken.append(options)
        predicted = 36.0 if name == "h200" else None
        target = types.SimpleNamespace(memory=10**11)
        counts = {"runs": options["points"], "runs_at_once": 2, "needed_bytes": 2 * 10**9}
        return types.SimpleNamespace(predicted_ms=predicted, about_time="how near", target=target, **counts)

    monkeypatch.setattr(sweeps, "compiled_sweep", compiled_for)
    monkeypatch.setattr(sweeps, "target_of", lambda name: types.SimpleNamespace(name=name))
    jobs = [
        types.SimpleNamespace(chunk_size=None, run=types.SimpleNamespace(algorithm=1, data=2, model=3, rounds=rounds))
        for rounds in (10_000, 40_000, 50_000)
    ]
    entries = [types.SimpleNamespace(job=job) for job in jobs]
    found = sweeps.forecast_sweep(runner.SweepPlan([], [entries[:2], entries[2:]], [], 0.0), name, 3.5)
    assert [one["points"] for one in taken] == [2, 1]
    text = " ".join(found.lines())
    assert "2 GB of 100, up to 2 points at once" in text
    if name == "h200":
        assert found.hours == pytest.approx(36e-3 * (40_000 + 50_000) / 3600)
        assert "about 54 min (0.9 device hours), 3.15 at 3.5 an hour" in text
        assert "evaluations are not in it" in text
    else:
        assert (found.hours, found.cost) == (None, None)
        assert "how near, and no money" in text
        assert "device hours" not in text
    assert sweeps.forecast_sweep(runner.SweepPlan([], [], [], 0.0), name).lines() == []


@pytest.mark.exhaustive
def test_an_audit_is_compiled_with_all_rounds_of_its_trials(here):
    asked = {"rounds": 2, "target": here, "delta": 1e-5, "trials": 64, "lanes": 16}
    found = compiled_audit(small_algorithm("dpnfl"), DATA, **asked)
    assert (found.runs, found.runs_at_once, found.turns) == (64, 16, 4)
    assert found.launches["local_step"] >= 2 * 2 * found.step_launches > 0


def test_products_that_no_tiles_suit_are_left_to_the_library():
    def compile_with(options):
        if "xla_gpu_enable_triton_gemm" not in options:
            raise jax.errors.JaxRuntimeError(f"INTERNAL: {targets.NO_TILES} that satisfy hlo: %dot")
        return options

    assert targets.compiled_for(targets.TARGETS["h200"], compile_with)["xla_gpu_enable_triton_gemm"] is False


def test_a_plugin_that_jax_turned_away_for_want_of_a_driver_is_called_again(monkeypatch):
    """JAX does so when it is first used, before anybody asks for a program for a GPU that is not here."""
    module = types.ModuleType(targets.PACKAGES["cuda"][1])
    registered = []
    module.initialize = lambda: registered.append("cuda")

    def topology(*_, **__):
        if not registered:
            raise NotImplementedError("topology not implemented for cuda")
        return types.SimpleNamespace(devices=("a gpu",))

    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(targets.topologies, "get_topology_desc", topology)
    assert targets.devices_of(targets.TARGETS["h200"], 1) == ["a gpu"]
    assert targets.devices_of(targets.TARGETS["h200"], 1) == ["a gpu"]
    assert registered == ["cuda"]


needs = pytest.mark.skipif(
    any(map(targets.missing, targets.PACKAGES)), reason="the extra accelerators is not installed"
)


@needs
@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200", "a100", "v5e"])
def test_a_round_is_compiled_for_devices_that_are_not_here(name):
    found = compiled.compiled_round(small_algorithm("dpnfl", cohort_size=8), DATA, target=name, devices=4)
    assert found.fits
    assert found.step_launches > 0
    assert 1 <= len(found.collectives) <= 3
    sweep = compiled_sweep(small_algorithm("dpnfl"), DATA, points=4, target=name)
    assert sweep.launches["local_step"] == 2 * sweep.step_launches
    audit = compiled_audit(small_algorithm("dpnfl"), DATA, rounds=2, trials=4, lanes=4, target=name, delta=1e-5)
    assert audit.launches["local_step"] >= 2 * 2 * audit.step_launches


def test_ci_compares_one_round_of_each_kind_and_the_file_holds_all():
    script = benchmark("compiled")
    guarded, in_ci = (
        {f"{case.name}, on {target}" for target, cases in cases_of.items() for case in cases}
        for cases_of in (script.GUARDED, script.IN_CI)
    )
    assert guarded == json.loads(script.GUARD.read_text())["counts"].keys()
    assert in_ci < guarded
    assert script.IN_CI.keys() == script.GUARDED.keys()
