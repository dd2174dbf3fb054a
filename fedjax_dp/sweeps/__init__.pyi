"""Sweeps: many runs that differ in some fields, described in one file and run together."""

from .plan import SweepConfig as SweepConfig
from .plan import read_sweep as read_sweep
from .sweep import Sweep as Sweep
from .sweep import open_sweep as open_sweep
from .sweep import run_sweep as run_sweep
from .sweep import sweep as sweep
from .table import Best as Best
