"""All cores are used without being asked for, whatever is imported first, and other programs are left alone."""

import os
import subprocess
import sys

import pytest

from fedjax_dp import devices

CASES = {
    "ours first": "import fedjax_dp as fdp; import jax; jax.numpy.zeros(1); fdp.all_devices()",
    "ours alone": "import fedjax_dp as fdp; fdp.all_devices(); import jax",
    "a part alone": "import fedjax_dp.draws; import jax",
    "jax first": "import jax; import fedjax_dp as fdp; jax.numpy.zeros(1); fdp.simulate",
}


def child(program, **environment):
    clean = {name: text for name, text in os.environ.items() if name not in (devices.ASKED, "XLA_FLAGS")}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                           env=clean | {"JAX_PLATFORMS": "cpu"} | environment)  # fmt: skip
    return found.stdout.split()


@pytest.mark.parametrize("case", CASES)
def test_every_core_is_a_device(case):
    told = f"{CASES[case]}; import fedjax_dp.values, os; print(len(jax.devices()), '{devices.ASKED}' in os.environ)"
    assert child(told) == [str(devices.cores()), "False"]


def test_a_choice_of_the_user_stays():
    told = "import fedjax_dp as fdp; fdp.all_devices(); import jax, os; print(len(jax.devices()))"
    assert child(told, **{devices.ASKED: "3"}) == ["3"]
    assert child(told, XLA_FLAGS="--xla_force_host_platform_device_count=4") == ["4"]


def test_jax_in_use_already_is_no_error():
    assert child("import jax; jax.devices(); import fedjax_dp as fdp; print(fdp.all_devices().shares)") == ["1"]
