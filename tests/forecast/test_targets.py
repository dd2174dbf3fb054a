"""Accelerators that are not here: programs lowered for them, their branches, and what is read off compiled programs."""

import functools
import json
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal, thinned, usual
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import cli, prng
from fedjax_dp.cli.bench import BenchOptions
from fedjax_dp.execution import memory as memory_of
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.forecast import compiled, program_text, sweeps, targets
from fedjax_dp.forecast.compiled import compiled_audit, compiled_sweep
from fedjax_dp.forecast.floor import work_of
from fedjax_dp.forecast.program_text import Program
from fedjax_dp.gradients import norms
from fedjax_dp.gradients.outer_products import Convolution
from fedjax_dp.options import of_class
from fedjax_dp.parts.models_beside import MixedModels
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.state import initial_state
from fedjax_dp.small_reductions import sum_of_few
from fedjax_dp.sweeps import runner

DIGITS = fdp.load("digits")
DATA = fdp.federate(DIGITS, fdp.data.iid(DIGITS.y_train, [20] * 10, 0))
MADE = {"cohort_size": 4, "batch_size": 5, "local_steps": 2, "learning_rate": 0.1}


def made(name, **more):
    entry = fdp.CATALOGUE[name]
    private = {"clip_norm": 1.0, "noise_multiplier": 1.0} if entry.private else {}
    return entry(**MADE | private | ({"local_steps": 1} if name == "dp_sgd" else {}) | more)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(fdp.CATALOGUE, ["dpnfl", "scaffold", "cpfed", "dp_ftrl", "rfedavg_plus"], 6))
def test_every_entry_is_lowered_for_gpus_and_tpus(name):
    model = fdp.mlp(DATA.record_shape, DATA.classes, (8,))
    algorithm = simulation.numbers(made(name))
    state = jax.eval_shape(lambda: initial_state(algorithm, model, DATA, simulation.run_key(0)))
    run = jax.jit(simulation.run_rounds, static_argnames=("model", "execution"))
    given = algorithm, state, DATA, simulation.run_key(0), np.int32(1)
    for in_pieces in (False, True):
        traced = run.trace(*given, model=model, execution=Execution(pieces=in_pieces))
        assert "stablehlo" in traced.lower(lowering_platforms=("cuda", "tpu")).as_text()


def of_shape(*shape, kind=jnp.float32):
    return jax.ShapeDtypeStruct(shape, kind)


def mixture(vector):
    """How a step turns the weight of a client's own model in a mixture."""
    return MixedModels(alpha=0.5, alpha_speed=0.1)._turned(vector[0], vector, 2 * vector, vector[0] > 0)


def windows(x, kernel=(5, 6), strides=(1, 1), dilation=(1, 1)):
    """What a convolution of images sees."""
    numbers = lax.conv_dimension_numbers(x.shape, (*kernel, x.shape[-1], 4), ("NHWC", "HWIO", "NHWC"))
    shape, padding = (*kernel, x.shape[-1], 4), ((2, 2), (1, 3))
    return Convolution(shape, numbers, strides, padding, (1, 1), dilation, 1).windows(x)


BRANCHES = {  # by module that has a branch for platforms: a function that reaches it, and the shapes that it takes
    "execution/mesh.py": (
        lambda rows: sum_over_clients(lambda factor, row: (factor * row, ()), 2.0, rows, Execution(chunk_size=4), 1)[0],
        of_shape(4, 3),
    ),
    "gradients/norms.py": (
        functools.partial(norms._product, alone=True),
        *(of_shape(5, 1, 30), of_shape(5, 1, 10), of_shape(5)),
    ),
    "gradients/outer_products.py": (windows, of_shape(2, 7, 8, 3)),
    "small_reductions.py": (sum_of_few, of_shape(3, 10)),
    "tasks/losses.py": (fdp.models.cross_entropy, of_shape(10), of_shape(kind=jnp.int32)),
    "parts/models_beside.py": (mixture, of_shape(5)),
    "prng.py": (lambda words: prng.without_replacement(words, jnp.int32(100)), of_shape(5, kind=jnp.uint32)),
    "pytrees.py": (lambda *parts: ravel(parts)[0], of_shape(1000, 1000), of_shape(1000)),
}


@pytest.mark.parametrize("module", BRANCHES)
def test_every_branch_is_lowered_for_gpus_and_tpus(module):
    reaching, *given = BRANCHES[module]
    traced = jax.jit(reaching).trace(*given)
    ours, *theirs = (traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda", "tpu"))
    assert any(text != ours for text in theirs)


def test_every_module_with_a_branch_is_lowered_above():
    package = pathlib.Path(fdp.__file__).parent
    branching = {path for path in package.rglob("*.py") if "platform_dependent" in path.read_text()}
    assert {path.relative_to(package).as_posix() for path in branching} == set(BRANCHES)


MORE = {"dpnfl": {}, "dp_fedavg": {"cohort": "poisson"}, "cpfed": {"secure": True, "local_steps": 1}}
PAIRS = [f"{name} {platform}" for name in MORE for platform in ("cuda", "tpu")]


@pytest.mark.slow
@pytest.mark.parametrize("pair", usual(PAIRS, PAIRS[:1]))
def test_what_accelerators_run_gives_the_same_round(pair, monkeypatch):
    """To rounding: sums are taken in another order, draws and everything else are the same."""
    name, platform = pair.split()
    told = {"rounds": 2, "seed": 3, "execution": fdp.execution.some_devices(1), "model": fdp.mlp((8, 8), 10, (9,))}
    ours = fdp.simulate(made(name, **MORE[name]), DATA, **told)

    def elsewhere(*args, default=None, **branches):
        return branches.get(platform, default)(*args)

    jax.clear_caches()
    with monkeypatch.context() as patched:
        patched.setattr(lax, "platform_dependent", elsewhere)
        theirs = fdp.simulate(made(name, **MORE[name]), DATA, **told)
    jax.clear_caches()
    for a, b in zip(jax.tree.leaves(ours.state.params), jax.tree.leaves(theirs.state.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{}, {"strides": (2, 3)}, {"dilation": (2, 1)}, {"kernel": (5, 5), "dilation": (2, 2)}], ids=str
)
def test_large_windows_put_together_axis_by_axis_are_the_same(how, monkeypatch):
    x = np.random.default_rng(0).normal(size=(2, 9, 10, 3)).astype(np.float32)
    direction = np.random.default_rng(1).normal(size=windows(x, **how).shape).astype(np.float32)

    def slope(x):
        return jax.vjp(lambda x: windows(x, **how), x)[1](direction)[0]

    ours = windows(x, **how), slope(x)
    with monkeypatch.context() as patched:
        patched.setattr(lax, "platform_dependent", lambda *args, cuda, default: cuda(*args))
        theirs = windows(x, **how), slope(x)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", usual([1, 2, 3, 10, 64, 500], [3, 64]))
def test_floyds_draws_without_his_loop_are_the_same(size):
    rng = np.random.default_rng(size)
    for population in (size, size + 1, 2 * size, 600, 10**6):
        if population < size:
            continue
        words = jnp.asarray(rng.integers(0, 2**32, (40, size), dtype=np.uint32))
        start = jnp.int32(population - size)
        candidates = prng.below(words, start + lax.broadcasted_iota(jnp.int32, words.shape, 1) + 1)
        found = prng._by_doubling(candidates, start)
        np.testing.assert_array_equal(found, prng._one_after_another(candidates, start))
        assert all(len(set(row)) == size for row in np.asarray(found))


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
    assert counts_of(rounds).launches == {
        "local_step": 2,
        "other": 2,
    }
    marks = "%marks (p: (s32[])) -> (s32[]) {\n  %w = (s32[]) while(%t), condition=%until, body=%body\n"
    marks += "  %look = f32[] dot(%a, %a)\n}\n\nENTRY"
    nested = rounds.replace("body=%body\n", "body=%marks\n").replace("ENTRY", marks)  # stretches of a sweep
    for loops, others in ((1, 4), (2, 2)):  # the end of each loop is looked at twice, and one evaluation
        found = counts_of(nested, loops).launches
        assert found == {"local_step": 2, "other": others}
    assert counts_of(nested, 0).launches["cohort_draw"] == 1
    known = TEXT.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
    assert counts_of(known).launches["local_step"] == 21


def test_what_cannot_be_compiled_for_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "must be installed, got no jax_cuda12_plugin" in refusal(targets.target_of, "h200")
    assert cli.main(["bench", "--compile-for", "v5e"]) == 2
    assert "pip install" in capsys.readouterr().err
    assert cli.main(["bench", "--compile-for", "v5"]) == 2
    assert "did you mean v5e?" in capsys.readouterr().err
    assert of_class(BenchOptions)["compile_for"].choices == list(targets.TARGETS)  # written out: help loads no JAX
    monkeypatch.undo()
    assert "multiple of the 2" in refusal(lambda: targets.execution_on(targets.TARGETS["v5e"], 3, model_devices=2))


@pytest.fixture
def here(monkeypatch):
    """A target whose devices and compiler are those of this machine."""
    monkeypatch.setattr(targets, "missing", lambda platform: None)
    monkeypatch.setattr(targets, "_gpus", lambda target, count: jax.devices()[:count])
    monkeypatch.setitem(targets.COMPILER_OPTIONS, "cuda", {})
    return "h200"


class Plan:
    """A program that needs so many bytes for every client at once."""

    def __init__(self, execution, most=10**9):
        self.clients = execution.portion(100, 1)
        if 8 * self.clients > most:
            raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: Used {8 * self.clients}.0 of {most}.0 hbm.")

    def memory_analysis(self):
        class Bytes:
            temp_size_in_bytes = 8 * self.clients
            output_size_in_bytes, alias_size_in_bytes, argument_size_in_bytes = 7, 5, 100

        return Bytes


def on_a_gpu(monkeypatch):
    monkeypatch.setattr(Execution, "platform", "gpu")
    return Execution()


@pytest.mark.parametrize("compiled_by", [Plan, lambda execution: Plan(execution, 300)], ids=["a plan", "a refusal"])
def test_as_many_clients_at_once_as_fit(compiled_by, monkeypatch):
    gpu = on_a_gpu(monkeypatch)
    for memory, placed, wanted in ((10_000, True, 100), (802, True, 100), (801, True, 50), (240, True, 25)):
        found, program = memory_of.fitting(compiled_by, gpu, 100, 1, memory, placed=placed)
        if compiled_by is Plan or memory <= 300:
            assert found.portion(100, 1) == program.clients == wanted
        assert memory_of.bytes_of(program, True) <= memory
    assert memory_of.fitting(compiled_by, gpu, 100, 1, 240, placed=False)[1].clients < 25  # arguments take room, too
    given = Execution(chunk_size=30)
    assert memory_of.fitting(Plan, given, 100, 1, 9, placed=True)[0] == given
    told = refusal(lambda: memory_of.fitting(compiled_by, gpu, 100, 1, 9, placed=True))
    assert "memory of a device must be at least the 1e-08 GB that 1 at once of its clients need" in told


def test_what_a_compiler_says_that_it_needs_is_read():
    for told, bytes_ in (
        ("HLO temporaries (74.50G) exceeds available HBM (15.75G).", 74.5 * 2**30),
        ("Ran out of memory in memory space hbm. Used 20.5M of 15.75M hbm.", 20.5 * 2**20),
        ("no plan", 0.0),
    ):
        assert memory_of._bytes_in(f"RESOURCE_EXHAUSTED: {told}") == bytes_
    assert "more than there is for what a model needs" in str(memory_of.no_room(10, 0, "a model needs"))
    assert memory_of._bytes_in("INTERNAL: (74.50G) exceeds") is None


def test_a_model_that_does_not_fit_is_one_line(here, capsys):
    assert cli.main(["bench", "--compile-for", here, "--model", "mlp", "--hidden", "300000,300000"]) == 2
    assert "at least the 720 GB that a model and a client's copy of it need, got 141 GB" in capsys.readouterr().err


def test_a_compiler_that_fails_for_another_reason_is_not_asked_again(monkeypatch):
    def broken(execution):
        raise jax.errors.JaxRuntimeError("INTERNAL: x")

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        memory_of.fitting(broken, on_a_gpu(monkeypatch), 100, 1, 10, placed=True)


def test_a_tpu_computes_small_models_together_and_large_ones_one_by_one(monkeypatch):
    monkeypatch.setattr(Execution, "platform", "tpu")
    assert [Execution().portion(10, size) for size in (85_210, 203_530, 814_090, 1_663_370)] == [10, 10, 1, 1]
    assert [Execution().portion(1000, size) for size in (7_850, 85_210)] == [1000, 100]
    assert [Execution().runs(256, 10, size) for size in (7_850, 1_663_370)] == [86, 1]
    assert Execution(chunk_size=4).portion(10, 1_663_370) == 4


@pytest.mark.slow
@pytest.mark.parametrize("on_host", [False, True], ids=["on devices", "on host"])
@pytest.mark.parametrize("name", usual(["dpnfl", "scaffold"], ["scaffold"]))
def test_a_run_whose_cohort_does_not_fit_computes_fewer_clients_at_once(name, on_host, monkeypatch):
    """As on an accelerator with little memory; the compiler is that of the CPU."""
    told = {"rounds": 2, "seed": 3, "model": fdp.mlp((8, 8), 10, (9,)), "execution": fdp.execution.some_devices(1)}
    ours = fdp.simulate(made(name, cohort_size=10), DATA, **told)
    on_a_gpu(monkeypatch)
    whole, state = simulation.on_devices(
        made(name, cohort_size=10), DATA, told["model"], told["execution"], on_host=on_host
    )
    room = memory_of.bytes_of(whole.compiled(state), True) - 1
    room += whole.prefetcher.beside(0) if on_host else 0
    whole.close()
    monkeypatch.setattr(simulation, "free_memory", lambda devices: room)
    run, _ = simulation.on_devices(made(name, cohort_size=10), DATA, told["model"], told["execution"], on_host=on_host)
    run.close()
    assert run.execution.chunk_size == 5
    told["on_host"] = on_host
    theirs = fdp.simulate(made(name, cohort_size=10), DATA, **told)
    for a, b in zip(jax.tree.leaves(ours.state.params), jax.tree.leaves(theirs.state.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_a_sweep_is_compiled_with_as_many_points_at_once_as_fit(here, monkeypatch):
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a)), DATA)
    algorithm = made("dpnfl")
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
    found = sweeps.forecast_sweep(runner.Plan([], [entries[:2], entries[2:]], [], 0.0), name, 3.5)
    assert [one["points"] for one in taken] == [2, 1]
    text = " ".join(found.lines())
    assert "2 GB of 100, up to 2 points at once" in text
    if name == "h200":
        assert found.hours == pytest.approx(36e-3 * (40_000 + 50_000) / 3600)
        assert "about 54 min (0.9 device hours), 3.15 at 3.5 an hour" in text
        assert "evaluations are not in it" in text
        assert json.loads(json.dumps(found.to_dict()))["cost"] == pytest.approx(3.15)
    else:
        assert (found.hours, found.cost) == (None, None)
        assert "how near, and no money" in text
        assert "device hours" not in text
    assert sweeps.forecast_sweep(runner.Plan([], [], [], 0.0), name).lines() == []


@pytest.mark.exhaustive
def test_an_audit_is_compiled_with_all_rounds_of_its_trials(here):
    asked = {"rounds": 2, "target": here, "delta": 1e-5, "trials": 64, "lanes": 16}
    found = compiled_audit(made("dpnfl"), DATA, **asked)
    assert (found.runs, found.runs_at_once, found.turns) == (64, 16, 4)
    assert found.launches["local_step"] >= 2 * 2 * found.step_launches > 0


def test_options_that_mean_nothing_with_a_target_are_refused(here, capsys, monkeypatch):
    def told(*options):
        assert cli.main(["bench", "--compile-for", here, *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "turns must be left out with --compile-for, got 3" in told("--turns", "3")
    assert "evaluate_every must be left out" in told("--evaluate-every=3")
    assert "records must be devices with --compile-for" in told("--records", "host")
    assert "devices must be at most the 4 clients" in told("--cohort-size", "4", "--devices", "5")
    assert "deterministic must be at most the 4 clients" in told("--cohort-size", "4", "--deterministic", "5")

    def compiled_round(*given, parts, **rest):
        raise fdp.ConfigurationError(f"in {parts} parts")

    monkeypatch.setattr(compiled, "compiled_round", compiled_round)
    assert "in 2 parts" in told("--cohort-size", "4", "--deterministic", "2")


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
def test_a_round_is_compiled_for_devices_that_are_not_here(name, capsys, tmp_path):
    assert cli.main(["bench", "--compile-for", name, "--devices", "4", "--cohort-size", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"]
    assert told["step_launches"] > 0
    assert 1 <= len(told["collectives"]) <= 3
    sweep = compiled_sweep(made("dpnfl"), DATA, points=4, target=name)
    assert sweep.launches["local_step"] == 2 * sweep.step_launches
    audit = compiled_audit(made("dpnfl"), DATA, rounds=2, trials=4, lanes=4, target=name, delta=1e-5)
    assert audit.launches["local_step"] >= 2 * 2 * audit.step_launches
