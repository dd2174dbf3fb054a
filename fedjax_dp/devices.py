"""All CPU cores by default, and how rounds are compiled for them."""

import contextlib
import ctypes
import os
import pathlib
import sys
import warnings

CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # what JAX reads when it is imported
_ours = False  # whether CPU_DEVICES in the environment is ours, not the user's

# Noise is a long chain of integer operations for every number; the widest vectors hide their latency best. On CPUs
# with vectors of 512 bits normals take 0.6 of the time that they take with the 256 of XLA; elsewhere it is nothing.
COMPILER_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_all_cores() -> None:
    """Let JAX see each CPU core as a device; a choice the user has made stays, and so does a JAX already in use.

    XLA runs the body of a loop on a CPU almost in one thread, so cores are used by giving each its share of the cohort.
    JAX itself is not imported for that: it may be wanted for accounting that it is not, and may be used before anything
    of the simulator is.
    """
    global _ours
    if CPU_DEVICES in os.environ or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    jax = sys.modules.get("jax")
    if jax is None:
        os.environ[CPU_DEVICES], _ours = str(cores()), True
        return
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # the devices are made already; the log of a run says how many are in use
        return


def share_one_arena() -> None:
    """Let all threads allocate from one arena of glibc; a choice the user has made stays.

    XLA's threads free what others have allocated. With arenas of their own, a long run keeps a hundred kilobytes more
    with every round of convolutions, until memory is full.
    """
    arenas = -8  # M_ARENA_MAX of malloc.h
    chosen = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and not chosen:
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(arenas, 1)


def leave_children_alone() -> None:
    """Take back what was put into the environment, now that JAX has read it: other programs choose for themselves."""
    global _ours
    if _ours:
        os.environ.pop(CPU_DEVICES, None)
    _ours = False


def cache_folder() -> pathlib.Path:
    """`fedjax_dp` below the user's cache folder: compiled programs, and data sets that were fetched."""
    import platformdirs

    return platformdirs.user_cache_path("fedjax_dp")


def cache_programs() -> None:
    """Keep compiled programs on disk, so that a second process compiles nothing; a folder the user has set stays.

    They lie in fedjax_dp/programs below the user's cache folder. What another process is just writing there cannot be
    read: JAX compiles it then, and its warning tells a user nothing.
    """
    import jax

    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache entry")
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
