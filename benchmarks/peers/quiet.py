"""Measuring on a machine that is not one's own: what was measured while others had the cores is measured again."""

import pathlib
import sys

import numpy as np

ATTEMPTS, SHARE = 4, 0.05


def taken() -> tuple[int, int]:
    """Ticks that the hypervisor has given to other machines, and all ticks, since the start; zeros where none tells."""
    try:
        words = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    ticks = [int(word) for word in words]
    return ticks[7], sum(ticks)


def undisturbed(measure):
    """What `measure()` returns, from the first of a few attempts that lost less than 5% of the cores.

    Where all lost more it is the last, and stderr says so.
    """
    for _ in range(ATTEMPTS):
        stolen, whole = taken()
        found = measure()
        more, all_ = taken()
        if more - stolen <= SHARE * (all_ - whole):
            return found
    lost = (more - stolen) / (all_ - whole)
    print(f"lost {lost:.0%} of the cores to other machines in the last of {ATTEMPTS} attempts", file=sys.stderr)
    return found


def spread(times):
    """The middle half over the median; a benchmark is disturbed from 0.3."""
    return float(np.subtract(*np.percentile(times, [75, 25])) / np.median(times))
