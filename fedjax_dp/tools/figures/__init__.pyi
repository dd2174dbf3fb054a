"""Pictures of runs, sweeps, audits and accounts with matplotlib, drawn from the same tables as reports."""

from .audits import plot_audit as plot_audit
from .canvas import Look as Look
from .runs import plot_clients as plot_clients
from .runs import plot_epsilon as plot_epsilon
from .runs import plot_run as plot_run
