"""Where rounds run: devices that share a cohort, processes that share a run."""

from .mesh import Execution as Execution
from .mesh import all_devices as all_devices
from .mesh import some_devices as some_devices
