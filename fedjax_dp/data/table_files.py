"""Which files a table is read from: one, several with commas between, a pattern, or a folder. No JAX here."""

import glob
import os
import pathlib

from fedjax_dp import errors, folders

PACKED = (".gz", ".bz2", ".xz", ".zip")  # a CSV file may be
ENDINGS = {"csv": (".csv", *(f".csv{packed}" for packed in PACKED)), "parquet": (".parquet",)}


def is_several(named: str) -> bool:
    """Whether the files are clients: not one file, but a list, a pattern or a folder."""
    return not os.path.isfile(named) and (os.path.isdir(named) or "," in named or glob.has_magic(named))


def files_of(kind: str, named: str) -> list[pathlib.Path]:
    """The files in the order of the list, those of a pattern or a folder sorted by name.

    Raises: ConfigurationError where there is none, or one twice.
    """
    if not is_several(named):
        return [pathlib.Path(named)]
    names = []
    for word in [named] if os.path.isdir(named) else named.split(","):
        if os.path.isdir(word):
            inside = sorted(entry.path for entry in os.scandir(word) if entry.name.endswith(ENDINGS[kind]))
            if not inside:
                wanted = f"a folder with files that end in {' or '.join(ENDINGS[kind][:2])}"
                raise errors.refuse(folders.shown(word), "no table in it", wanted, "name the folder of the files")
            names += inside
        elif glob.has_magic(word) and not os.path.isfile(word):
            matches = sorted(glob.glob(word))
            if not matches:
                raise errors.refuse(
                    "files", folders.shown(word), "existing ones", folders.where_looked(pathlib.Path(word))
                )
            names += matches
        else:
            names.append(word)
    paths = [pathlib.Path(name) for name in names]
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise errors.refuse("files", f"{path.name} twice", "different ones", "name each once")
        seen.add(real)
    return paths


def stem_of(path: pathlib.Path) -> str:
    """The name of a file without what says its kind."""
    name = path.name
    for ending in (*ENDINGS["csv"], *ENDINGS["parquet"]):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return path.stem


def name_of(named: str, paths: list[pathlib.Path]) -> str:
    """What a data set of these files is called: the folder, the file, or what the names of the files begin with."""
    if not is_several(named):
        return stem_of(paths[0])
    if os.path.isdir(named):
        return pathlib.Path(named).absolute().name
    stems = [stem_of(path) for path in paths]
    shared = next((at for at, letters in enumerate(zip(*stems)) if len(set(letters)) > 1), min(map(len, stems)))
    return stems[0][:shared].rstrip("_- .") or "tables"
