"""The versions and hardware behind a run's numbers."""

import importlib.metadata
import pathlib
import platform
from typing import Any

import jax

from fedjax_dp import __version__, devices

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Versions of the software that affects numbers."""
    own = {"python": platform.python_version(), "fedjax-dp": __version__}  # metadata may be of an older installation
    return own | {name: importlib.metadata.version(name) for name in PACKAGES}


def device() -> dict[str, Any]:
    """The hardware that JAX uses: devices of all processes; processor and cores of this process's machine."""
    result = jax.devices()
    return {
        "platform": result[0].platform,
        "kind": result[0].device_kind,
        "count": len(result),
        "processes": jax.process_count(),
        "processor": _processor(),
        "cores": devices.cores(),
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
