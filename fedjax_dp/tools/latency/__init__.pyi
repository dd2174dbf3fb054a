"""The time of a round on this machine, part by part, and a lower bound on it."""

from .floor import Floor as Floor
from .floor import floor_of as floor_of
from .measurement import Latency as Latency
from .measurement import measure_round as measure_round
from .plots import plot_latency as plot_latency
