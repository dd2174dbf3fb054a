"""How long a round takes: measured part by part, at least, and on accelerators that are not here."""

from .compiled import Compiled as Compiled
from .compiled import compiled_audit as compiled_audit
from .compiled import compiled_round as compiled_round
from .compiled import compiled_sweep as compiled_sweep
from .plots import plot_compiled as plot_compiled
from .plots import plot_latency as plot_latency
from .sweeps import SweepForecast as SweepForecast
from .sweeps import forecast_sweep as forecast_sweep
