"""Accelerators that are not here: programs lowered for them, their branches, as much at once as fits their memory."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal, small_algorithm, usual
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import prng
from fedjax_dp.execution import memory as memory_of
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.gradients import clipped, norms
from fedjax_dp.gradients.outer_products import Convolution
from fedjax_dp.gradients.record_convolutions import ConvolutionOperand, RecordConvolution
from fedjax_dp.parts.batches import Batch
from fedjax_dp.parts.local_sgd import StepDraw
from fedjax_dp.parts.models_beside import MixedModels
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.state import initial_state
from fedjax_dp.small_reductions import sum_of_few

DIGITS = fdp.load("digits")
DATA = fdp.federate(DIGITS, fdp.data.iid(DIGITS.y_train, [20] * 10, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(fdp.CATALOGUE, ["scaffold"]))
def test_every_entry_is_lowered_for_gpus_and_tpus(name):
    model = fdp.mlp(DATA.record_shape, DATA.classes, (8,))
    algorithm = simulation.as_float32_leaves(small_algorithm(name))
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
    drawn = StepDraw(vector[0], None, Batch(None, None, None, vector[1]), None, None)
    return MixedModels(alpha=0.5, alpha_speed=0.1)._alpha_after(vector[0], vector, 2 * vector, drawn)


def windows(x, kernel=(5, 6), strides=(1, 1), dilation=(1, 1)):
    """What a convolution of images sees."""
    numbers = lax.conv_dimension_numbers(x.shape, (*kernel, x.shape[-1], 4), ("NHWC", "HWIO", "NHWC"))
    shape, padding = (*kernel, x.shape[-1], 4), ((2, 2), (1, 3))
    return Convolution(shape, numbers, strides, padding, (1, 1), dilation, 1).windows(x)


def kernel_gradient(x):
    """The gradient by a kernel of 3 x 3, of records with an image each."""
    numbers = lax.conv_dimension_numbers(x.shape[1:], (3, 3, x.shape[-1], 4), ("NHWC", "HWIO", "NHWC"))
    one = RecordConvolution((3, 3, x.shape[-1], 4), numbers, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1)
    seen = jax.vmap(one.windows)(x)[..., 0, :]
    return one.total(ConvolutionOperand(x, seen), jnp.ones((len(x), 1, seen[0, ..., 0].size, 4)))


def parts_of_a_batch(x):
    """The sum over records, two at a time."""

    def several(record, mask):
        return clipped.BatchGradient(jnp.where(mask[:, None], record, 0).sum(0), *(jnp.zeros(len(mask)),) * 4)

    return clipped._sum_in_parts(several, x[0], x, x[:, 0] > 0, 2, few=False).total


BRANCHES = {  # by module that has a branch for platforms: a function that reaches it, and the shapes that it takes
    "execution/mesh.py": (
        lambda rows: sum_over_clients(lambda factor, row: (factor * row, ()), 2.0, rows, Execution(chunk_size=4), 1)[0],
        of_shape(4, 3),
    ),
    "gradients/clipped.py": (parts_of_a_batch, of_shape(5, 3)),
    "gradients/norms.py": (
        functools.partial(norms._product, alone=True),
        *(of_shape(5, 1, 30), of_shape(5, 1, 10), of_shape(5)),
    ),
    "gradients/record_convolutions.py": (kernel_gradient, of_shape(2, 1, 7, 8, 3)),
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
    ours = fdp.simulate(small_algorithm(name, **MORE[name]), DATA, **told)

    def elsewhere(*args, default=None, **branches):
        return branches.get(platform, default)(*args)

    jax.clear_caches()
    with monkeypatch.context() as patched:
        patched.setattr(lax, "platform_dependent", elsewhere)
        theirs = fdp.simulate(small_algorithm(name, **MORE[name]), DATA, **told)
    jax.clear_caches()
    for a, b in zip(jax.tree.leaves(ours.state.params), jax.tree.leaves(theirs.state.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    usual(
        [{}, {"strides": (2, 3)}, {"dilation": (2, 1)}, {"kernel": (5, 5), "dilation": (2, 2)}], [{"strides": (2, 3)}]
    ),
    ids=str,
)
def test_large_windows_put_together_axis_by_axis_are_the_same(how, monkeypatch):
    x = np.random.default_rng(0).normal(size=(2, 9, 10, 3)).astype(np.float32)
    direction = np.random.default_rng(1).normal(size=jax.eval_shape(lambda: windows(x, **how)).shape)

    def with_slope():
        @jax.jit
        def both(x):
            made, back = jax.vjp(lambda x: windows(x, **how), x)
            return made, back(jnp.float32(direction))[0]

        return both(x)

    ours = with_slope()
    with monkeypatch.context() as patched:
        patched.setattr(lax, "platform_dependent", lambda *args, cuda, **_: cuda(*args))
        theirs = with_slope()
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", usual([1, 2, 3, 10, 64, 500], [3]))
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
        found, program = memory_of.fit_execution(compiled_by, gpu, 100, 1, memory, placed=placed)
        if compiled_by is Plan or memory <= 300:
            assert found.portion(100, 1) == program.clients == wanted
        assert memory_of.bytes_of(program, True) <= memory
    fewer = memory_of.fit_execution(compiled_by, gpu, 100, 1, 240, placed=False)[1].clients
    assert fewer < 25  # as arguments take room
    given = Execution(chunk_size=30)
    assert memory_of.fit_execution(Plan, given, 100, 1, 9, placed=True)[0] == given
    told = refusal(lambda: memory_of.fit_execution(compiled_by, gpu, 100, 1, 9, placed=True))
    assert "memory of a device must be at least the 1e-08 GB that 1 at once of its clients need" in told


def test_what_a_compiler_says_that_it_needs_is_read():
    for told, bytes_ in (
        ("HLO temporaries (74.50G) exceeds available HBM (15.75G).", 74.5 * 2**30),
        ("Ran out of memory in memory space hbm. Used 20.5M of 15.75M hbm.", 20.5 * 2**20),
        ("no plan", 0.0),
    ):
        assert memory_of._bytes_in(f"RESOURCE_EXHAUSTED: {told}") == bytes_
    assert "more than there is for what a model needs" in str(memory_of.memory_error(10, 0, "a model needs"))
    assert memory_of._bytes_in("INTERNAL: (74.50G) exceeds") is None


def test_a_compiler_that_fails_for_another_reason_is_not_asked_again(monkeypatch):
    def broken(execution):
        raise jax.errors.JaxRuntimeError("INTERNAL: x")

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        memory_of.fit_execution(broken, on_a_gpu(monkeypatch), 100, 1, 10, placed=True)


def test_a_tpu_computes_small_models_together_and_large_ones_one_by_one(monkeypatch):
    monkeypatch.setattr(Execution, "platform", "tpu")
    assert [Execution().portion(10, size) for size in (85_210, 203_530, 814_090, 1_663_370)] == [10, 10, 1, 1]
    assert [Execution().portion(1000, size) for size in (7_850, 85_210)] == [1000, 100]
    assert [Execution().runs_at_once(256, 10, size) for size in (7_850, 1_663_370)] == [86, 1]
    assert Execution(chunk_size=4).portion(10, 1_663_370) == 4


@pytest.mark.slow
@pytest.mark.parametrize("on_host", usual([False, True], [True]))
@pytest.mark.parametrize("name", usual(["dpnfl", "scaffold"], ["scaffold"]))
def test_a_run_whose_cohort_does_not_fit_computes_fewer_clients_at_once(name, on_host, monkeypatch):
    """As on an accelerator with little memory; the compiler is that of the CPU."""
    told = {"rounds": 2, "seed": 3, "model": fdp.mlp((8, 8), 10, (9,)), "execution": fdp.execution.some_devices(1)}
    ours = fdp.simulate(small_algorithm(name, cohort_size=10), DATA, **told)
    on_a_gpu(monkeypatch)
    whole, state = simulation.initialize(
        small_algorithm(name, cohort_size=10), DATA, told["model"], told["execution"], on_host=on_host
    )
    room = memory_of.bytes_of(whole.compile(state), True) - 1
    room += whole.prefetcher.bytes_in_use(0) if on_host else 0
    whole.close()
    monkeypatch.setattr(simulation, "free_memory", lambda devices: room)
    run, state = simulation.initialize(
        small_algorithm(name, cohort_size=10), DATA, told["model"], told["execution"], seed=3, on_host=on_host
    )
    assert run.execution.chunk_size == 5
    theirs, _ = run.advance(state, 2)
    run.close()
    for a, b in zip(jax.tree.leaves(ours.state.params), jax.tree.leaves(theirs.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
