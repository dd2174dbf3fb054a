"""Flags of a command: every option is `--its-name VALUE`, described where it is taken (see `fedjax_dp.options`)."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from fedjax_dp import errors, options
from fedjax_dp.cli.commands import COMMANDS, HELP, SWITCHES
from fedjax_dp.cli.wrapping import wrapped
from fedjax_dp.options import REQUIRED, Option, Options, about

if TYPE_CHECKING:
    from fedjax_dp.pictures import Look

T = TypeVar("T")
_METAVARS: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR", bool: "true|false"}


def take_flag(arguments: list[str], name: str) -> tuple[bool, list[str]]:
    """Whether the flag is given, and the other arguments."""
    return name in arguments, [argument for argument in arguments if argument != name]


def take_option(arguments: list[str], name: str, wanted: str) -> tuple[str | None, list[str]]:
    """The value of `name VALUE` or `name=VALUE`, and the other arguments."""
    for index, argument in enumerate(arguments):
        if argument == name:
            if index + 1 == len(arguments):
                raise errors.refuse(name, "no value", f"followed by {wanted}")
            return errors.require_text(name, arguments[index + 1]), arguments[:index] + arguments[index + 2 :]
        if argument.startswith(name + "="):
            return errors.require_text(name, argument.split("=", 1)[1]), arguments[:index] + arguments[index + 1 :]
    return None, arguments


def take_path(arguments: list[str]) -> str | None:
    """The first argument, taken off the list, where it is no flag.

    Raises: ConfigurationError for an empty one.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    return errors.require_text("the first argument", arguments.pop(0), "leave it out, or name a file or folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookOptions:
    """How pictures look.

    Args:
        size: of a picture, width and height in inches
        style: of a picture, a style sheet of matplotlib
    """

    size: Annotated[str | None, about("", metavar="WxH", default="what fits")] = None
    style: Annotated[str | None, about("", metavar="NAME", default="plain")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotOption(LookOptions):
    """A picture beside what is printed.

    Args:
        plot: write a picture to this .png, .pdf or .svg file
    """

    plot: Annotated[str | None, about("", metavar="FILE")] = None


PICTURE = tuple(field.name for field in dataclasses.fields(PlotOption))


def look_of(options: LookOptions) -> "Look":
    """Size and style as they are taken by what draws; refuses those that are none."""
    if options.size is None and options.style is None:
        return {}
    from fedjax_dp import pictures  # loads matplotlib

    found: Look = {} if options.size is None else {"size": pictures.size_of(options.size)}
    if options.style is not None:
        found["style"] = options.style
    pictures.check(found)
    return found


def picture_of(options: PlotOption) -> "Look":
    """The look of the picture; refuses a file that could not be written, before anything is computed for it."""
    for name, value in (("size", options.size), ("style", options.style)):
        if options.plot is None and value is not None:
            raise errors.refuse(name, value, "left out without --plot", "add --plot FILE, or drop it")
    if options.plot is not None:
        errors.require_picture("plot", options.plot)
    return look_of(options)


def parse(
    command: str,
    arguments: list[str],
    made: type[T],
    description: str,
    defaults: Mapping[str, Any] | None = None,
    *,
    shown: Mapping[str, Any] | None = None,
) -> tuple[T, set[str]]:
    """A dataclass from flags over `defaults` and its own, and the fields that flags named.

    `--help` prints and exits, with the defaults `shown` where these say more.
    Raises: ConfigurationError for flags that are none, and where a field without a default is left out.
    """
    taken = options.of_class(made, defaults)
    owners = sorted(made.__mro__, key=lambda cls: cls in (PlotOption, LookOptions))  # its own first, pictures last
    named = dict.fromkeys(name for cls in owners for name in vars(cls).get("__annotations__", {}))
    if set(arguments) & set(HELP):
        described = options.of_class(made, shown or defaults)
        ordered = sorted((described[name] for name in named), key=lambda option: option.default is not REQUIRED)
        print_help(command, {command: {option.name: option for option in ordered}}, description)
        raise SystemExit(0)
    said = flags(command, arguments, taken)
    lacking = [name for name in named if taken[name].default is REQUIRED and name not in said]
    if lacking:
        raise missing(*lacking)
    return made(**{**(defaults or {}), **said}), set(said)


def missing(*names: str, why: str = "") -> errors.ConfigurationError:
    """The error to raise for options that are left out, all of them at once."""
    remedy = "add " + " ".join(f"--{name.replace('_', '-')}" for name in names)
    return errors.refuse(" and ".join(names), "nothing", f"given{why}", remedy)


def flags(command: str, arguments: list[str], taken: Options) -> dict[str, Any]:
    """What `--flag value` and `--flag=value` say; refuses unknown flags and values of the wrong type."""
    by_flag = {option.flag: option for option in taken.values() if option.kinds}
    said: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        flag = flag.replace("_", "-")
        if flag not in by_flag:
            known = COMMANDS[command]
            near = errors.nearest(flag, [*HELP[1:], *known.switches, *known.valued, *by_flag])
            raise errors.refuse(
                "argument",
                repr(flag),
                f"an option of fedjax-dp {command}",
                f"did you mean {near[0]}?" if near else f"fedjax-dp {command} --help-all lists them",
            )
        if not equals and not rest:
            raise errors.refuse(flag, "nothing", "followed by a value")
        option = by_flag[flag]
        said[option.name] = options.from_text(flag, value if equals else rest.pop(0), option)
    return said


def print_help(command: str, groups: Mapping[str, Options], description: str) -> None:
    """All options of a command, a box for each group."""
    switches = [_switch(flag) for flag in COMMANDS[command].switches]
    rows = {command: switches} | {
        group: [_shown(option) for option in shown.values() if option.kinds] for group, shown in groups.items()
    }
    rows[command] += switches if command in groups else []
    boxes = {group: dataclasses.make_dataclass(group, fields) for group, fields in rows.items() if fields}
    fields = [(group, box, dataclasses.field(default_factory=box)) for group, box in boxes.items()]
    everything = dataclasses.make_dataclass(command, fields)
    told = _Held()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(told):
        tyro.cli(everything, args=["--help"], config=(tyro.conf.OmitArgPrefixes,))
    listed = told.getvalue().partition("\n\n")[2]  # after tyro's usage: the description has its own
    print(f"{wrapped(description)}\n\n{listed}", end="", flush=True)


class _Held(io.StringIO):
    """Holds what is printed, which looks as on stdout."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def _switch(flag: str) -> tuple[str, Any, Any]:
    """A field whose help tells of a flag without a value."""
    about = tyro.conf.arg(help=SWITCHES[flag], help_behavior_hint="")
    return (
        flag.removeprefix("--"),
        Annotated[bool, about, tyro.conf.FlagCreatePairsOff],
        dataclasses.field(default=False),
    )


def _shown(option: Option) -> tuple[str, Any, Any]:
    """A field whose help tells of the option."""
    metavar = option.about.metavar or "|".join(_METAVARS[kind] for kind in option.kinds)
    hint = f"(default: {in_words(option)})"
    if option.choices:
        hint = f"({', '.join(option.choices)}; default: {in_words(option)})"
    about = tyro.conf.arg(help=option.about.text, help_behavior_hint=hint, metavar=metavar)
    return option.name, Annotated[str, about], dataclasses.field(default="")


def in_words(option: Option) -> str:
    """Its default."""
    value = option.default
    if option.about.default or value is REQUIRED or value is None:
        return option.about.default or ("none" if value is None else "to be given")
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
