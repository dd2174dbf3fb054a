"""Options of a command are the fields of a dataclass: `--field-name VALUE`."""

import contextlib
import dataclasses
import io
import os
import pathlib
import typing
from typing import TypeVar

import tyro

from fedjax_dp import errors
from fedjax_dp.experiments import options

T = TypeVar("T")


def take_flag(arguments: list[str], name: str) -> tuple[bool, list[str]]:
    """Whether the flag is given, and the other arguments."""
    return name in arguments, [argument for argument in arguments if argument != name]


def take_option(arguments: list[str], name: str, wanted: str) -> tuple[str | None, list[str]]:
    """The value of `name VALUE` or `name=VALUE`, and the other arguments."""
    for index, argument in enumerate(arguments):
        if argument == name:
            if index + 1 == len(arguments):
                raise errors.refuse(name, "no value", f"followed by {wanted}")
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
        if argument.startswith(name + "="):
            return argument.split("=", 1)[1], arguments[:index] + arguments[index + 1 :]
    return None, arguments


def check_plot(path: str | None) -> None:
    """Refuses a file that could not be written, before anything is computed for it."""
    if path is None:
        return
    folder = pathlib.Path(path).parent
    if pathlib.Path(path).suffix != ".png":
        raise errors.refuse("plot", path, "a file name that ends in .png", "rename it")
    if not folder.is_dir() or not os.access(folder, os.W_OK) or pathlib.Path(path).is_dir():
        raise errors.refuse("plot", path, "in a folder that exists and can be written to", "choose another")


def parse(command: str, arguments: list[str], default: T, description: str) -> tuple[T, set[str]]:
    """The dataclass from flags over `default`, and the fields that flags named. `--help` prints and exits."""
    program, cls = f"fedjax-dp {command}", type(default)
    if "-h" in arguments or "--help" in arguments:
        tyro.cli(cls, prog=program, args=["--help"], default=default, description=description)
    named = _checked_flags(program, arguments, cls)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            spelt = [word.capitalize() if word in ("true", "false") else word for word in arguments]
            return tyro.cli(cls, prog=program, args=spelt, default=default), named
    except SystemExit:
        words = "".join(c if c.isascii() and c.isprintable() else " " for c in complaint.getvalue())
        raise errors.ConfigurationError(f"{' '.join(words.split())[:300]}; see {program} --help") from None


def _checked_flags(program: str, arguments: list[str], cls: type) -> set[str]:
    """Fields named by `--flag value` or `--flag=value`; refuses unknown flags and values of the wrong type."""
    hints = typing.get_type_hints(cls)
    flags = {f"--{field.name.replace('_', '-')}": field.name for field in dataclasses.fields(cls)}
    named, rest = set(), list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        flag = flag.replace("_", "-")
        if flag not in flags:
            near = errors.nearest(flag, flags)
            raise errors.refuse(
                "argument",
                repr(flag),
                f"an option of {program}",
                f"did you mean {near[0]}?" if near else f"{program} --help lists them",
            )
        if not equals and not rest:
            raise errors.refuse(flag, "nothing", "followed by a value")
        options.from_text(flag, value if equals else rest.pop(0), hints[flags[flag]])
        named.add(flags[flag])
    return named
