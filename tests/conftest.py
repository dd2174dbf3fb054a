import os
import pathlib

import jax
import numpy as np
import pytest
from hypothesis import settings

import fedjax_dp as fdp  # all cores, before JAX starts

# The same generated cases on every run; `--hypothesis-profile explore` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore")
settings.load_profile("repeatable")

jax.config.update("jax_numpy_rank_promotion", "raise")


LONGEST = (
    "test_site.py",
    "test_docs.py",
    "test_testing.py",
    "test_clipped.py",
    "test_catalogue.py",
    "test_initialization.py",
)


def pytest_collection_modifyitems(items):
    """Files whose slow tests take longest come first: each runs in one process, and the last should be short."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory):
    """Programs that several tests build anew are compiled once per session."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    yield
    jax.config.update("jax_compilation_cache_dir", None)


MAPPINGS = pathlib.Path("/proc/self/maps")
MOST_MAPPINGS = int(
    os.environ.get("MOST_MAPPINGS", 30_000)
)  # a process may have 65,530 on Linux; programs take some each


@pytest.fixture(scope="module", autouse=True)
def _room_for_programs():
    """Compiled programs are let go between modules before they fill the table of mappings, where a process dies."""
    yield
    if MAPPINGS.is_file() and len(MAPPINGS.read_text().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def float32_products():
    """For comparisons with float32 references: an accelerator's products of a forward pass have ten bits by default."""
    with jax.default_matmul_precision("float32"):
        yield


@pytest.fixture(scope="session")
def data():
    """Ten clients of the digits."""
    digits = fdp.load("digits")
    return fdp.federate(digits, np.array_split(np.arange(len(digits.y_train)), 10))


@pytest.fixture(scope="session")
def mnist_dir():
    """A folder that holds the real MNIST, or a skip that says where it was looked for."""
    folder = pathlib.Path(os.environ.get("FEDJAX_DP_DATA", ""))
    if not (folder / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("real MNIST is not at hand: set FEDJAX_DP_DATA to a folder with mnist/train-images-idx3-ubyte.gz")
    return folder


@pytest.fixture(autouse=True)
def _quiet_folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, so that nothing lands in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for data, an empty cache, and no other place to look."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    monkeypatch.delenv("FEDJAX_DP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def real(mnist_dir):
    """Finds a file of the real data sets, or skips."""

    def find(*parts):
        path = mnist_dir.joinpath(*parts)
        if not path.is_file():
            pytest.skip(f"{path.name} is not at hand")
        return mnist_dir

    return find
