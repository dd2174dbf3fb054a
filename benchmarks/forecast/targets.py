"""Accelerators that are not here: both compilers are packages, and compile whole programs without a device.

XLA learns what a device is like from text (GPU) or from the name of a topology (TPU). Sizes and bandwidths are those of
the makers' data sheets.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from fedjax_dp import errors
from fedjax_dp.execution.memory import SHARE_OF_MEMORY
from fedjax_dp.execution.mesh import AXIS, MODEL, Execution

T = TypeVar("T")
PACKAGES = {"cuda": ("jax_cuda12_plugin", "jax_plugins.xla_cuda12"), "tpu": ("libtpu",)}
COMPILER_OPTIONS = {"cuda": {"xla_gpu_autotune_level": 0}, "tpu": {}}  # tuning needs a device
NO_TILES = "Couldn't find output tile sizes"  # says XLA for a GPU of some products, where nothing is tuned
PRODUCTS_OF_THE_LIBRARY = {"xla_gpu_enable_triton_gemm": False}


class Accelerator(NamedTuple):
    """A kind of accelerator."""

    name: str
    platform: str  # as JAX lowers for it: cuda or tpu
    memory: int  # bytes of a device
    bytes_per_s: float  # of its memory
    cores: int = 0  # multiprocessors of a GPU
    capability: tuple[int, int] = (0, 0)  # of a GPU
    shared: int = 0  # bytes of memory that a multiprocessor shares
    topologies: tuple[tuple[int, str], ...] = ()  # of a TPU: devices, and the name of so many

    @property
    def room(self) -> float:
        """Bytes that a run would use at most, see `free_memory`."""
        return SHARE_OF_MEMORY * self.memory


TARGETS = {
    target.name: target
    for target in (
        Accelerator("h200", "cuda", 141 * 10**9, 4.8e12, 132, (9, 0), 233_472),
        Accelerator("h100", "cuda", 80 * 10**9, 3.35e12, 132, (9, 0), 233_472),
        Accelerator("a100", "cuda", 80 * 10**9, 2.04e12, 108, (8, 0), 167_936),
        Accelerator("v5e", "tpu", 16 * 2**30, 8.1e11, topologies=((4, "v5e:2x2x1"), (8, "v5e:2x4x1"))),
        Accelerator("v5p", "tpu", 95 * 2**30, 2.765e12, topologies=((4, "v5p:2x2x1"), (8, "v5p:2x2x2"))),
        Accelerator("v6e", "tpu", 32 * 2**30, 1.64e12, topologies=((4, "v6e:2x2x1"), (8, "v6e:2x4x1"))),
    )
}


def target_of(name: str) -> Accelerator:
    """The target of a name.

    Raises: ConfigurationError for names that are none, and where the packages that compile for it are missing.
    """
    errors.require_choice("target", name, TARGETS)
    target = TARGETS[name]
    if lacking := missing(target.platform):
        remedy = 'pip install "fedjax-dp[accelerators]", best into an environment of its own'
        raise errors.refuse(f"the compiler for {name}", f"no {lacking}", "installed", remedy)
    if target.platform == "cuda":  # its plugin wants libraries and a driver, without which it compiles as well
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    return target


def missing(platform: str) -> str | None:
    """A package without which nothing can be compiled for a platform; None where all are there."""
    for name in PACKAGES[platform]:
        try:
            if importlib.util.find_spec(name) is None:
                return name.split(".")[0]
        except ModuleNotFoundError:
            return name.split(".")[0]
    return None


def execution_on(
    target: Accelerator,
    devices: int = 1,
    chunk_size: int | None = None,
    *,
    parts: int | None = None,
    model_devices: int = 1,
) -> Execution:
    """Devices of a target, on which nothing can run: programs can be lowered and compiled for them.

    Raises: ConfigurationError for more devices than there is a topology for.
    """
    for name, count in (("devices", devices), ("model_devices", model_devices), ("chunk_size", chunk_size)):
        if count is not None:
            errors.require_count(name, count)
    if devices % model_devices:
        wanted = f"a multiple of the {model_devices} that hold a model"
        raise errors.refuse("devices", devices, wanted, "change one of them")
    found = devices_of(target, devices)
    if model_devices > 1:
        return Execution(Mesh(np.reshape(found, (-1, model_devices)), (AXIS, MODEL)), chunk_size, parts)
    return Execution(Mesh(found, (AXIS,)), chunk_size, parts)


def compiled_for(target: Accelerator, compiled: Callable[[dict[str, Any]], T]) -> T:
    """What is compiled for a target, given the options of its compiler."""
    options: dict[str, Any] = COMPILER_OPTIONS[target.platform]
    try:
        return compiled(options)
    except jax.errors.JaxRuntimeError as error:
        if NO_TILES not in str(error):
            raise
    return compiled(options | PRODUCTS_OF_THE_LIBRARY)  # which tuning would choose there, or other tiles


def devices_of(target: Accelerator, count: int) -> list[jax.Device]:
    """So many devices of a target; raises ConfigurationError for more than there is a topology for."""
    errors.require_count("devices", count)
    return _gpus(target, count) if target.platform == "cuda" else _tpus(target, count)


def _gpus(target: Accelerator, devices: int) -> list[jax.Device]:
    major, minor = target.capability
    described = f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {target.shared}
  shared_memory_per_block_optin: {target.shared - 1024}
  threads_per_core_limit: 2048
  core_count: {target.cores}
  fpus_per_core: {128 if major >= 9 else 64}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {round(target.bytes_per_s)}
  l2_cache_size: {(50 if major >= 9 else 40) * 2**20}
  clock_rate_ghz: {1.98 if major >= 9 else 1.41}
  device_memory_size: {target.memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{target.name.upper()}"
"""

    def make() -> Any:
        name, topology = f"{target.name} {devices}", f"1x1x{devices}"
        return topologies.get_topology_desc(name, "cuda", target_config=described, topology=topology)

    try:
        made = make()
    except NotImplementedError:  # JAX was used before, and turned the plugin away as there is no driver
        importlib.import_module(PACKAGES["cuda"][1]).initialize()
        made = make()
    return list(made.devices)


def _tpus(target: Accelerator, devices: int) -> list[jax.Device]:
    # Without these libtpu asks a service of the cloud what machine this is, and prints that nobody answers.
    for variable, value in (
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_ACCELERATOR_TYPE", "none"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
    ):
        os.environ.setdefault(variable, value)
    for most, name in target.topologies:
        if devices <= most:
            return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices[:devices])
    most = target.topologies[-1][0]
    raise errors.refuse("devices", devices, f"at most {most}, the largest known topology of {target.name}")
