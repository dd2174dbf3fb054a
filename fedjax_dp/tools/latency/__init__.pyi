"""How long a round takes here, part by part, and what it takes at least."""

from .floor import Floor as Floor
from .floor import floor_of as floor_of
from .measurement import Latency as Latency
from .measurement import measure_round as measure_round
from .plots import plot_latency as plot_latency
