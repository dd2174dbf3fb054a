"""All CPU cores, without being asked."""

import os

import jax
import pooch


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


def cache_programs() -> None:
    """Keep compiled programs on disk, so that a second process compiles nothing; a folder the user has set stays.

    They lie in fedjax_dp/programs below the user's cache folder.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(pooch.os_cache("fedjax_dp") / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
