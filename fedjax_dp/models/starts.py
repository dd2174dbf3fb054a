"""Initial values from checkpoints: npz, safetensors, or a folder of orbax. No pickle is read.

A file names its arrays; if its names or layouts differ from the model's, a TOML file maps them:

    "head/kernel" = {name = "fc.weight", axes = [1, 0]}   # PyTorch: (out, in)
    "conv/kernel" = {name = "conv.weight", axes = [2, 3, 1, 0]}   # (out, in, height, width)
    "head/bias" = "fc.bias"
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.files import damage_error, read_npz
from fedjax_dp.models import origins
from fedjax_dp.models.networks import by_path
from fedjax_dp.models.origins import ARRAY, KEY, LEDGER, Origin
from fedjax_dp.models.run_files import (
    RUN,
    arrays_at,
    newest_checkpoint,
    read_phases,
    require_one_name,
    run_of,
)

WANTED = "an .npz or .safetensors file, the folder of a run, or one that orbax wrote"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")  # of PEFT
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT = (
    "pickles are not read: safetensors.torch.save_file(model.state_dict(), 'model.safetensors') writes one that is"
)
TREE = "_METADATA"  # in every folder that orbax wrote


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Initial values by path, and their origin; of an adapter of PEFT by their names there, with its settings."""

    values: Mapping[str, Any]
    origin: Origin
    adapter: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Start({self.origin}, {len(self.values)} arrays)"

    def as_start(self) -> "Start":
        return self


def read_start(
    path: str | os.PathLike[str],
    *,
    names: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    trained_on: str | None = None,
    public: bool | None = None,
    stated: tuple[float, float] | None = None,
) -> Start:
    """The arrays of a checkpoint as initial values: `models.freeze(model, ..., start=...)`.

    names       a TOML file, or a mapping, from the model's paths to the file's names, or to {name, axes};
    trained_on  what it was trained on, for the Guarantee;
    public      whether it contains nothing of the clients on which it will be trained. If it does, there is no epsilon
                unless that of its own training is known: from its ledger, or from
    stated      epsilon and delta of its training, for the unit and neighbours of the new run.
    What runs wrote brings its ledger, which says what it was trained on. Of other files only these words are known:
    without any, there is no epsilon.
    Raises:     ConfigurationError in one line for a file that is none of these, is damaged or holds pickled objects.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise errors.refuse("start", str(path), f"{WANTED} that exists", folders.where_looked(path))
    found, ledger = _read(path)
    if ledger is not None:
        ledger = origins.with_parameters(ledger, found, path.name, exported=not path.is_dir() or is_adapter(path))
    if isinstance(names, str | os.PathLike):
        names = folders.read_toml("start_names", names, 'write lines such as "head/kernel" = "fc.weight"')
    if names is not None:
        found = _rename(path, found, names)
    origin = Origin(path.name, digest(path), trained_on, public, ledger or "", foreign=ledger is None)
    adapter = folders.read_json(path / ADAPTER[0]) if is_adapter(path) else None
    return with_stated(Start(found, origin, adapter), stated)


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Whether this is a folder with an adapter in files of PEFT."""
    return (pathlib.Path(path) / ADAPTER[0]).is_file()


def with_stated(start: Start, stated: tuple[float, float] | None) -> Start:
    """A start with the declared epsilon and delta of its training.

    Raises: ConfigurationError for invalid numbers, if there is a ledger, which has more, and for public values.
    """
    if stated is None:
        return start
    epsilon, delta = stated
    errors.require_positive("start_epsilon", epsilon)
    if not 0 <= delta < 1:
        raise errors.refuse("start_delta", delta, "at least 0 and below 1")
    if start.origin.ledger:
        raise errors.refuse("start_epsilon", epsilon, "left out where the ledger of the start says more", "drop it")
    if start.origin.public:
        raise errors.refuse("start_epsilon", epsilon, "left out of a public start", "drop it, or start_private false")
    return dataclasses.replace(start, origin=dataclasses.replace(start.origin, stated=(float(epsilon), float(delta))))


def stated_pair(epsilon: float | None, delta: float | None) -> tuple[float, float] | None:
    """Epsilon and delta, which must both be given; None if neither is."""
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        there, lacking = ("start_epsilon", "start_delta") if delta is None else ("start_delta", "start_epsilon")
        raise errors.refuse(lacking, "none", f"given beside {there}", "one without the other says nothing")
    return epsilon, delta


def start_of(values: Any, *, trained_on: str | None = None, public: bool | None = None) -> Start:
    """A start of a path, a run, a `Start`, or of parameters, of whose origin only these words are known."""
    if isinstance(values, str | os.PathLike):
        values = read_start(values)
    if hasattr(values, "as_start"):
        start: Start = values.as_start()
        origin = start.origin
        origin = origin if trained_on is None else dataclasses.replace(origin, trained_on=trained_on)
        origin = origin if public is None else dataclasses.replace(origin, public=public)
        return dataclasses.replace(start, origin=origin)
    arrays = by_path(values)
    try:
        sha256 = origins.values_digest(arrays)
    except (TypeError, ValueError, AttributeError):  # what is no array is refused where it is used
        sha256 = ""
    return Start(arrays, Origin("start", sha256, trained_on, public))


def start_files(*names: str | None) -> dict[str, str]:
    """Checksums by path of a checkpoint and of other files that determine a run."""
    paths = {name: pathlib.Path(name) for name in names if name is not None}
    return {name: digest(where)[:16] for name, where in paths.items() if where.exists()}


def digest(path: pathlib.Path) -> str:
    """sha256 of a file, or of the names and contents of all files of a folder."""
    whole = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.name != folders.LOCK:  # which says nothing of what is stored
            whole.update(file.relative_to(path).as_posix().encode() if path.is_dir() else b"")
            with open(file, "rb") as opened:
                while block := opened.read(2**22):
                    whole.update(block)
    return whole.hexdigest()


def _read(path: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    """Arrays by name, and the ledger that came with them, if one did."""
    if is_adapter(path):
        return _safetensors(path / ADAPTER[1])
    if path.is_dir():
        return _orbax(path), _ledger_of_folder(path)
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK" or path.suffix == ".npz"
    if not zipped:
        return _safetensors(path)
    try:
        found: dict[str, Any] = read_npz(path)
    except errors.ConfigurationError:
        if path.suffix not in PICKLED:
            raise
        raise errors.refuse("start", f"{path}, which is no archive of arrays", WANTED, CONVERT) from None
    if ARRAY not in found:
        return found, None
    ledger = found.pop(ARRAY)
    if ledger.dtype != np.uint8 or ledger.ndim != 1:
        raise damage_error(path, f"{ARRAY} of {ledger.dtype} {ledger.shape}", "a ledger as bytes", "export it again")
    return found, _text(ledger.tobytes(), path)


def _ledger_of_folder(path: pathlib.Path) -> str | None:
    """Its own, or that of the run whose checkpoint it is."""
    run = run_of(path)
    file = next((place / LEDGER for place in (path, run) if place is not None and (place / LEDGER).is_file()), None)
    if file is None and (path / RUN).is_file():
        raise errors.refuse("start", f"{path}, a run without {LEDGER}", "one with it", "put it back")
    if run is not None:
        require_one_name(run, None if (path / RUN).is_file() else path.resolve().parent)
    return None if file is None else read_phases(file)


def _text(raw: bytes, path: pathlib.Path) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise damage_error(path, "a ledger that is no text", "as a run wrote it", "export it again") from None


@contextlib.contextmanager
def open_safetensors(path: pathlib.Path) -> Iterator[Any]:
    """A file of safetensors, whose arrays are read one by one with `get_tensor`.

    Raises: ConfigurationError in one line for a file that is none, or is damaged.
    """
    from safetensors import SafetensorError, safe_open  # only needed here

    try:
        with safe_open(path, "np") as file:
            yield file
    except (SafetensorError, OSError, MemoryError, AttributeError, TypeError) as error:  # the last of odd types
        got = f"{path}, which is none of these or damaged ({folders.reason(error)[:100]})"
        raise errors.refuse("start", got, WANTED, CONVERT if path.suffix in PICKLED else "") from None


def _safetensors(path: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    with open_safetensors(path) as file:
        words, found = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if KEY not in words and {"config", "round", "privacy"} <= words.keys():
        raise errors.refuse("start", f"{path}, an export without its ledger", "one with it", "export the run again")
    return found, words.get(KEY)


def _orbax(path: pathlib.Path) -> dict[str, Any]:
    """Arrays of a folder that orbax's StandardCheckpointer wrote; of a run, what its newest checkpoint has trained."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # what fails is raised too
    if (path / RUN).is_file():
        newest = newest_checkpoint(path)
        if newest is None:
            raise errors.refuse("start", f"{path}, a run without a checkpoint", WANTED, "go on with the run first")
        path = arrays_at(newest)
    elif not (path / TREE).is_file():
        inside = sorted(file.name for ending in (".safetensors", ".npz") for file in path.glob(f"*{ending}"))
        remedy = f"name the file: {path / inside[0]}" if inside else "name a file, or the folder that holds run.json"
        raise errors.refuse("start", f"{path}, a folder without a checkpoint", WANTED, remedy)
    try:
        found = by_path(arrays_of(path.absolute()))
    except Exception as error:  # of orbax and tensorstore, without a common base
        reason = (" ".join(str(error).split()) or type(error).__name__)[:120]
        raise errors.refuse("start", f"{path}, which cannot be read", WANTED, reason) from None
    if strange := [name for name, value in found.items() if not isinstance(value, np.ndarray | np.generic)]:
        raise errors.refuse("start", f"{path} with {strange[0]}, which is no array", "arrays alone")
    return found


def arrays_of(path: pathlib.Path) -> Any:
    """The tree of arrays in a folder that orbax wrote; of a run's state its parameters, without reading the rest."""
    import orbax.checkpoint as orbax  # slow to import

    reader = orbax.PyTreeCheckpointer()
    tree = reader.metadata(path).item_metadata.tree
    of_run = {"params", "round"} <= tree.keys()  # the rest is what clients and optimizers keep
    tree = {"params": tree["params"]} if of_run else tree
    whole = jax.tree.map(lambda _: orbax.RestoreArgs(restore_type=np.ndarray), tree)
    wanted = orbax.args.PyTreeRestore(item=tree, restore_args=whole, partial_restore=of_run)
    restored = reader.restore(path, args=wanted)
    return restored["params"] if of_run else restored


def _rename(path: pathlib.Path, found: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Values under the model's names; those that are not named keep their own."""
    wanted = 'text, or {name = "...", axes = [...]}'
    taken = {}
    for own, entry in names.items():
        entry = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, Mapping) or set(entry) - {"name", "axes"} or not isinstance(entry.get("name"), str):
            raise errors.refuse(f"start_names: {own}", entry, wanted)
        theirs, axes = entry["name"], entry.get("axes")
        if theirs not in found:
            remedy = errors.suggestion(theirs, found, "it has " + ", ".join(list(found)[:5]))
            raise errors.refuse(f"start_names: {own}", theirs, f"an array of {path.name}", remedy)
        value = found[theirs]
        if axes is not None:
            if sorted(map(str, axes)) != sorted(map(str, range(value.ndim))):
                raise errors.refuse(f"start_names: axes of {own}", axes, f"an order of 0 to {value.ndim - 1}")
            value = value.transpose([int(axis) for axis in axes])
        taken[own] = value
    used = {entry if isinstance(entry, str) else entry["name"] for entry in names.values()}
    return {name: value for name, value in found.items() if name not in used} | taken
