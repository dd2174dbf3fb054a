"""Callbacks that write a run to experiment trackers; each imports its package when a run starts."""

from .mlflow import MLflow as MLflow
from .tensorboard import TensorBoard as TensorBoard
from .wandb import Wandb as Wandb
