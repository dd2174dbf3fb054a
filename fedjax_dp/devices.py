"""All CPU cores, without being asked."""

import os

import jax


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_all_cores() -> None:
    """Let JAX see each CPU core as a device; a choice the user has made stays, and so does a JAX already in use.

    XLA runs the body of a loop on a CPU almost in one thread, so cores are used by giving each its share of the cohort.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # the devices are made already; the log of a run says how many are in use
        return
