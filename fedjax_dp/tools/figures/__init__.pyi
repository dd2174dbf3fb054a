"""Pictures of runs, sweeps, audits and accounts: figures of matplotlib, drawn from tables that reports draw too."""

from .audits import plot_audit as plot_audit
from .canvas import Look as Look
from .runs import plot_clients as plot_clients
from .runs import plot_epsilon as plot_epsilon
from .runs import plot_run as plot_run
