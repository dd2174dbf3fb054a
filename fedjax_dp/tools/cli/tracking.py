"""Options of `fedjax-dp run` that tell experiment trackers of it: they decide nothing, no configuration has them."""

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from fedjax_dp import errors, folders
from fedjax_dp.options import about

if TYPE_CHECKING:
    from fedjax_dp.tools.trackers.mlflow import MLflow
    from fedjax_dp.tools.trackers.tensorboard import TensorBoard
    from fedjax_dp.tools.trackers.wandb import Wandb

    Tracker = TensorBoard | MLflow | Wandb
TRACKERS = ("tensorboard", "mlflow", "wandb")
IN_FOLDERS = ("tensorboard", "wandb")
SEEN_WITH = "MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where it goes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackOptions:
    """Who else follows the run.

    Args:
        track: experiment trackers, with commas between; mlflow goes where MLFLOW_TRACKING_URI says, wandb is offline
            unless WANDB_MODE is online
        track_dir: where tensorboard and wandb write
    """

    track: Annotated[str | None, about("", choices=TRACKERS, metavar="NAME,...")] = None
    track_dir: Annotated[str | None, about("", metavar="DIR", default="the run folder; WANDB_DIR")] = None


def trackers_of(options: TrackOptions) -> "list[Tracker]":
    """The trackers that options name; of several processes the first reports to them."""
    from fedjax_dp.execution import distributed  # loads JAX
    from fedjax_dp.tools.trackers.mlflow import MLflow
    from fedjax_dp.tools.trackers.tensorboard import TensorBoard
    from fedjax_dp.tools.trackers.wandb import Wandb

    made: dict[str, Callable[[str | None], Tracker]] = {
        "tensorboard": TensorBoard,
        "mlflow": lambda _: MLflow(),
        "wandb": Wandb,
    }
    folder = options.track_dir
    if options.track is None:
        errors.require_left_out(options, ["track_dir"], "without track", "add --track tensorboard")
        return []
    names = dict.fromkeys(word.strip() for word in options.track.split(","))
    for name in names:
        errors.require_choice("track", name, TRACKERS)
    if folder is not None and not set(names) & set(IN_FOLDERS):
        raise errors.refuse("track_dir", folder, f"left out for {options.track}", SEEN_WITH)
    if folder is not None and distributed.is_first():
        folders.require_writable("track_dir", pathlib.Path(folder), "give another --track-dir")
    return [made[name](folder) for name in names] if distributed.is_first() else []


def lost(reason: str) -> None:
    """One line about a tracker that fails; the run goes on."""
    print(f"fedjax-dp: {reason}", file=sys.stderr)
