"""A run from its configuration to its folder: result, traffic."""

from .communication import Traffic as Traffic
from .communication import traffic as traffic
from .config import RunSpec as RunSpec
from .run import resume as resume
from .run import run as run
from .saved_run import SavedRun as SavedRun
from .saved_run import open_run as open_run
from .training import Callback as Callback
from .training import Result as Result
