"""A run from its configuration to its folder: result, traffic, pictures."""

from .communication import Traffic as Traffic
from .communication import traffic as traffic
from .config import RunSpec as RunSpec
from .plots import plot_clients as plot_clients
from .plots import plot_epsilon as plot_epsilon
from .plots import plot_run as plot_run
from .run import resume as resume
from .run import run as run
from .saved_run import SavedRun as SavedRun
from .saved_run import open_run as open_run
from .trackers.mlflow import MLflow as MLflow
from .trackers.tensorboard import TensorBoard as TensorBoard
from .trackers.wandb import Wandb as Wandb
from .training import Callback as Callback
from .training import Result as Result
