"""User-defined code, given in a file or on a command line as `FILE.py:NAME`. No JAX here.

Such a file is imported, and so it is run: name only files that you trust.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import pathlib
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable
from typing import Any

from fedjax_dp import errors

WANTED = "FILE.py:NAME"
INSTALLED = {"site-packages", "dist-packages"}  # names of folders of installed packages
LIBRARIES = (str(pathlib.Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "platstdlib")))


def _of_library(file: str) -> bool:
    """Whether a file belongs to Python, this package or another installed one, and not to a user."""
    return file.startswith((*LIBRARIES, "<")) or not INSTALLED.isdisjoint(pathlib.Path(file).parts)


def is_file_name(name: Any) -> bool:
    """Whether a name refers to a file of Python code."""
    return isinstance(name, str) and (name.endswith(".py") or ".py:" in name)


def own(what: str, named: str) -> Any:
    """The object with a name in a file; relative paths begin in the working directory.

    Raises: ConfigurationError in one line for a file that is missing or fails, and for a name that it does not define.
    """
    path, name = _parts(what, named)
    module = _import_file(what, path.resolve(), _digest(path))
    public = [known for known in vars(module) if not known.startswith("_")]
    if name not in vars(module):
        raise errors.refuse(what, named, f"a name in {path}", errors.suggestion(name, public))
    return vars(module)[name]


def checksums(*names: Any, what: str = "code") -> dict[str, str]:
    """Checksums by path, of the files that names refer to and of the files in their folders that they import."""
    result: dict[str, str] = {}
    for named in filter(is_file_name, names):
        _follow(_parts(what, named)[0], result)
    return result


def _parts(what: str, named: str) -> tuple[pathlib.Path, str]:
    file, _, name = named.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise errors.refuse(what, repr(named), WANTED, f"such as {named.partition(':')[0]}:Name")
    path = pathlib.Path(file)
    if not path.is_file():
        raise errors.refuse(what, named, "in a file that exists", f"it is looked for in {pathlib.Path.cwd()}")
    return path, name


def _digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _follow(path: pathlib.Path, result: dict[str, str]) -> None:
    if str(path) in result:
        return
    result[str(path)] = _digest(path)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it raises the error
    for node in ast.walk(tree):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named = [node.module]
        for name in named:
            beside = path.parent / f"{name.partition('.')[0]}.py"
            if beside.is_file():
                _follow(beside, result)


@functools.cache
def _import_file(what: str, path: pathlib.Path, digest: str) -> types.ModuleType:
    """The file as a module, imported once for each content; it can import files of its folder."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise errors.refuse(what, str(path), "a file that can be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        if isinstance(error, SyntaxError):
            reason = f"{path.name} line {error.lineno}: SyntaxError: {error}"
        else:
            reason = describe_error(error)
        raise errors.refuse(what, reason, "in a file that can be imported") from error
    return module


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of user-defined code in an error's traceback; none if the error comes from a library alone."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not _of_library(frame.filename)]


def describe_error(error: BaseException) -> str:
    """An error of user-defined code in one line, with its last line of that code."""
    own = own_frames(error)
    place = f"{pathlib.Path(own[-1].filename).name} line {own[-1].lineno}: " if own else ""
    kind = "" if isinstance(error, errors.ConfigurationError) else f"{type(error).__name__}: "
    return " ".join(f"{place}{kind}{error}".split())


def refuse_errors(what: str, got: str, wanted: str, remedy: str = "") -> contextlib.AbstractContextManager[None]:
    """Turn errors of user-defined code in the block into a refusal: `got`, then the error."""
    return errors.refuse_errors(what, lambda error: f"{got}: {describe_error(error)}", wanted, remedy)


def sources(*things: Any) -> dict[str, str]:
    """Checksums by name, of the user-defined classes and functions inside of values; those typed into an interpreter
    have no source."""
    result: dict[str, str] = {}
    for thing in things:
        _read(thing, result)
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in result.items()}


def _read(thing: Any, result: dict[str, str]) -> None:
    if isinstance(thing, dict | tuple | list):
        for part in thing.values() if isinstance(thing, dict) else thing:
            _read(part, result)
    elif inspect.isfunction(thing):
        result |= _source([thing], thing.__qualname__)
    elif dataclasses.is_dataclass(thing):
        cls = type(thing)
        functions = [getattr(one, "fget", one) for one in vars(cls).values()]
        result |= _source(filter(inspect.isfunction, functions), cls.__qualname__)
        for field in dataclasses.fields(thing):
            _read(getattr(thing, field.name, None), result)


def _source(functions: Iterable[types.FunctionType], name: str) -> dict[str, str]:
    texts = []
    for function in map(inspect.unwrap, functions):  # methods of Flax are wrapped
        with contextlib.suppress(OSError, TypeError):
            if not _of_library(inspect.getsourcefile(function) or "<"):
                texts.append(inspect.getsource(function))
    return {name: "".join(texts)} if texts else {}
