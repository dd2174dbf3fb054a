"""All cores are used without being asked for, whatever is imported first, and other programs are left alone."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from helpers import quick, usual

from fedjax_dp import devices
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.tools.cli import main

CASES = {
    "ours first": "import fedjax_dp as fdp; import jax; jax.numpy.zeros(1); fdp.execution.all_devices()",
    "ours alone": "import fedjax_dp as fdp; fdp.execution.all_devices(); import jax",
    "a part alone": "import fedjax_dp.prng; import jax",
    "jax first": "import jax; import fedjax_dp as fdp; jax.numpy.zeros(1); fdp.simulate",
}


def child(program, **environment):
    clean = {name: text for name, text in os.environ.items() if name not in (devices.CPU_DEVICES, "XLA_FLAGS")}
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=clean | {"JAX_PLATFORMS": "cpu"} | environment,
    )
    return found.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(CASES, ("ours first", "jax first"), pytest.mark.exhaustive))
def test_every_core_is_a_device(case):
    told = (
        f"{CASES[case]}; import fedjax_dp.pytrees, os; print(len(jax.devices()), '{devices.CPU_DEVICES}' in os.environ)"
    )
    assert child(told) == [str(devices.cores()), "False"]


@pytest.mark.slow
def test_a_choice_of_the_user_stays():
    told = "import fedjax_dp as fdp; fdp.execution.all_devices(); import jax, os; print(len(jax.devices()))"
    assert child(told, **{devices.CPU_DEVICES: "3"}) == ["3"]
    assert child(told, XLA_FLAGS="--xla_force_host_platform_device_count=4") == ["4"]


def test_jax_in_use_already_is_no_error():
    assert child("import jax; jax.devices(); import fedjax_dp as fdp; print(fdp.execution.all_devices().shares)") == [
        "1"
    ]


ARENAS = """
import ctypes, threading
import fedjax_dp
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
waiting = threading.Barrier(4)
def allocate():
    libc.malloc(5000)
    waiting.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has arenas")
def test_threads_allocate_from_one_arena_unless_the_user_wants_several():
    assert child(ARENAS).count("<heap") == 1
    for choice in ({"MALLOC_ARENA_MAX": "8"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=8"}):
        assert child(ARENAS, **choice).count("<heap") > 1


MANY = """
import jax, numpy as np
import fedjax_dp as fdp
from fedjax_dp.data import Dataset, federate
from fedjax_dp.models import mlp

sizes, features, rng = [7, 12, 5, 20, 9, 11, 6, 30, 8, 13], 6, np.random.default_rng(0)
records = sum(sizes)
x, y = rng.normal(size=(records + 20, features)).astype(np.float32), rng.integers(0, 3, records + 20).astype(np.int32)
dataset = Dataset("random", x[:records], y[:records], x[records:], y[records:], classes=3)
data = federate(dataset, np.split(np.arange(records), np.cumsum(sizes)[:-1]))
common = {"cohort_size": 5, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1}
noise = {"clip_norm": 1.0, "noise_multiplier": 1.0}
cases = {  # a cohort that no mesh divides, one that varies, tables by client, a second exchange, masks, no sum
    "dpnfl": (fdp.dpnfl(**common, **noise), None),
    "poisson": (fdp.dp_fedavg(**common, **noise), None),
    "scaffold": (fdp.scaffold(**common), None),
    "rfedavg_plus": (fdp.rfedavg_plus(**common), mlp((features,), 3, (4,))),
    "cpfed": (fdp.cpfed(**common, **noise), None),
    "median": (fdp.fedavg(**common, estimator="median"), None),
}

def end(name, devices, parts, together=1, host=False):
    algorithm, model = cases[name]
    execution = fdp.execution.some_devices(devices, parts=parts, model_devices=together)
    state = fdp.simulate(algorithm, data, rounds=4, model=model, execution=execution, on_host=host).state
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state)])
"""
ON_MANY = {
    "parts in order give the same bits": "all((end(name, 1, 8) == end(name, n, 8)).all() for n in (2, 4, 8))",
    "devices hold a model together": "all(np.allclose(end(name, 1, None), end(name, n, None, k), 1e-4, 1e-5)"
    " for n, k in ((2, 2), (8, 4)))",
    "and their records come from the host": "np.allclose(end(name, 1, None), end(name, 8, None, 2, True), 1e-4, 1e-5)",
    "one sum is rounded": "all(np.allclose(end(name, 1, None), end(name, n, None), 1e-5, 1e-6) for n in (8,))",
}


@pytest.mark.slow
@pytest.mark.parametrize("law", usual(ON_MANY, ("one sum is rounded",)))
def test_one_device_is_as_many(law):
    names = "('dpnfl', 'scaffold', 'median')" if "rounded" in law or "host" in law else "cases"
    told = f"{MANY}\nprint([name for name in {names} if not {ON_MANY[law]}])"
    assert child(told, **{devices.CPU_DEVICES: "8"}) == ["[]"]


@pytest.mark.parametrize(("count", "parts"), [(1, 8), (3, 2), (9, 4)])
def test_one_device_computes_no_part_without_members(count, parts):
    """Each part has the same number of members, so the last that has any may be padded; those after it are left out."""
    jaxpr = jax.make_jaxpr(
        lambda members: sum_over_clients(
            lambda _, a: (a * 2, a), None, members, Execution(chunk_size=1, parts=parts), 10
        )
    )
    (loop, *_) = [
        equation.params["length"] for equation in jaxpr(jnp.ones(count)).eqns if equation.primitive.name == "scan"
    ]
    each = -(-count // parts)
    assert loop == -(-count // each)


PARTS = """
from fedjax_dp.rounds import simulation
algorithm, model = fdp.addpnfl(**common, **noise, server_learning_rate=0.01), mlp((features,), 3, (4000,))
held, bytes_ = [], []
for together in (1, 4):
    run, state = simulation.initialize(algorithm, data, model, fdp.execution.some_devices(4, model_devices=together))
    bytes_.append(run.compile(state).memory_analysis().argument_size_in_bytes)
    for until in (1, 2, 3):
        state, _ = run.advance(state, until)
    held.append(sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves((state.params, state.optimizer))))
print(held[1] / held[0] < 0.26, bytes_[1] / bytes_[0] < 0.3, simulation.advance._cache_size())
"""


COLLECTIVES = """
import re
from fedjax_dp.rounds import simulation
from fedjax_dp.models import logistic_regression
algorithm, model = cases["dpnfl"][0], logistic_regression((features,), 3)
rounds, state = simulation.initialize(algorithm, data, model, fdp.execution.some_devices(4))
found = re.findall(r' (all-[a-z]+|reduce-scatter|collective-[a-z]+)(?:-start)?[(].*op_name="[^"]*/while/([^"]*)"',
                   rounds.compile(state).as_text())
print(sorted(f"{kind}:{name.rsplit('/', 1)[1]}" for kind, name in found))
"""


@pytest.fixture(scope="module")
def on_four_devices():
    return child(MANY + PARTS + COLLECTIVES, **{devices.CPU_DEVICES: "4"})


@pytest.mark.slow
def test_devices_that_hold_a_model_together_hold_a_part_each_and_compile_once(on_four_devices):
    assert on_four_devices[:3] == ["True", "True", "2"]


@pytest.mark.slow
def test_a_round_adds_up_its_cohort_by_one_collective(on_four_devices):
    """The other one tells the loop whether every client's numbers were finite. What is gathered once, after the last
    round, is not of a round."""
    assert "".join(on_four_devices[3:]) == "['all-reduce:psum','all-reduce:reduce_and']"


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (["--devices", "99"], "devices must be at most the"),
        (["--devices", "0"], "integer of at least 1"),
        (["--devices", "all"], "or auto"),
        (["--deterministic", "0"], "deterministic must be"),
        (["--devices", "2", "--cohort-size", "1"], "at most the 1 clients of a cohort"),
        (["--model-devices", "0"], "model_devices must be an integer of at least 1"),
        (["--devices", "1", "--model-devices", "2"], "devices must be a multiple of the 2 that hold a model, got 1"),
    ],
)
def test_devices_that_are_not_there_are_refused_in_one_line(asked, wanted, capsys):
    assert main(["run", *asked]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert wanted in told[0]
