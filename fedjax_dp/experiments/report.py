"""What a run leaves behind: one JSON object, a folder, a few lines for people."""

import importlib.metadata
import json
import os
import pathlib
import platform
from typing import Any

import jax

from fedjax_dp import devices, folders
from fedjax_dp.experiments.communication import Traffic
from fedjax_dp.experiments.training import Ready, Result
from fedjax_dp.rounds import metrics

PACKAGES = ("fedjax-dp", "jax", "jaxlib", "flax", "optax", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


def device() -> dict[str, Any]:
    """The hardware that JAX uses: devices of all processes; processor and cores of this one's machine."""
    found = jax.devices()
    return {
        "platform": found[0].platform,
        "kind": found[0].device_kind,
        "count": len(found),
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


def summary(ready: Ready, result: Result, traffic: Traffic) -> dict[str, Any]:
    """The JSON object of a run. `probes` names the fields of `history` that only the simulator can know."""
    target = ready.target
    reached = None if target is None else metrics.rounds_to(result.history, target)
    return {
        "algorithm": ready.name,
        "dataset": ready.dataset,
        "rounds": ready.rounds,
        "seed": ready.seed,
        "test_accuracy": result.test_accuracy,
        "test_loss": result.test_loss,
        "history": [point._asdict() for point in result.history],
        "probes": list(metrics.PROBES),
        "rounds_to_target": reached,
        "bytes_to_target": None if reached is None else traffic.total(reached),
        "guarantee": result.guarantee.to_dict(),
        "timing": result.timing._asdict(),
        "traffic": traffic.to_dict() | {"total": traffic.total(result.history[-1].round)},
        "versions": versions(),
        "device": device(),
        "config": dict(ready.shown),
    }


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    draft = path.with_name(path.name + folders.DRAFT)
    try:
        draft.write_text(text)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: pathlib.Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
