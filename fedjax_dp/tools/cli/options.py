"""Flags of a command, parsed by cyclopts: every option is `--its-name VALUE`, every switch `--its-name`.

Options are described where they are taken (see `fedjax_dp.options`).
"""

import dataclasses
import enum
import inspect
import itertools
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar, Union

import cyclopts

from fedjax_dp import errors, options
from fedjax_dp.options import REQUIRED, Option, Options, about
from fedjax_dp.tools.cli.help import FirstPage, console, in_words, metavar_of, print_first_page, wrapped

if TYPE_CHECKING:
    from fedjax_dp.tools.figures.canvas import Look

T = TypeVar("T")
HELP = ("-h", "--help", "--help-all")
Switch = Annotated[bool, about("", group="output", switch=True)]


class Detail(enum.Enum):
    QUIET = "the result alone, without progress"
    USUAL = "the result, and what it rests on"
    VERBOSE = "all that is known"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintOptions:
    """How the result is printed.

    Args:
        json: print one JSON object on stdout and nothing else
    """

    json: Switch = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetailOptions(PrintOptions):
    """The same with more or less of it.

    Args:
        quiet: print the result alone, without progress
        verbose: print everything that is known about it
    """

    quiet: Switch = False
    verbose: Switch = False

    @property
    def detail(self) -> Detail:
        if self.quiet and self.verbose:
            raise errors.refuse("--quiet and --verbose", "both", "one of them", "drop one")
        return Detail.QUIET if self.quiet else Detail.VERBOSE if self.verbose else Detail.USUAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookOptions:
    """How pictures look.

    Args:
        size: of a picture, width and height in inches
        style: of a picture, a style sheet of matplotlib, or paper: small print in one column of 3.3x2.4
    """

    size: Annotated[str | None, about("", group="output", metavar="WxH", default="what fits")] = None
    style: Annotated[str | None, about("", group="output", metavar="NAME", default="plain")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotOption(LookOptions):
    """A picture beside what is printed.

    Args:
        plot: write a picture to this .png, .pdf or .svg file
    """

    plot: Annotated[str | None, about("", group="output", metavar="FILE")] = None


PICTURE, SWITCHES = (tuple(field.name for field in dataclasses.fields(cls)) for cls in (PlotOption, DetailOptions))
OUTPUT = (*PICTURE, *SWITCHES)


def look_of(options: LookOptions) -> "Look":
    """Size and style as they are taken by what draws; refuses those that are none."""
    if options.size is None and options.style is None:
        return {}
    from fedjax_dp.tools.figures import canvas  # loads matplotlib

    look: Look = {} if options.size is None else {"size": canvas.size_of(options.size)}
    if options.style is not None:
        look["style"] = options.style
    canvas.check(look)
    return look


def picture_of(options: PlotOption) -> "Look":
    """The look of the picture; refuses a file that could not be written, before anything is computed for it."""
    if options.plot is None:
        errors.require_left_out(options, ("size", "style"), "without --plot", "add --plot FILE, or drop it")
    else:
        errors.require_picture("plot", options.plot)
    return look_of(options)


def parse(
    command: str,
    arguments: list[str],
    made: type[T],
    page: FirstPage | str,
    defaults: Mapping[str, Any] | None = None,
    *,
    shown: Mapping[str, Any] | None = None,
) -> T:
    """A dataclass from flags over `defaults` and its own.

    `--help` prints the page, or all options below a description, and exits; `--help-all` prints all. Both show the
    defaults `shown` where these say more.
    Raises: ConfigurationError for flags that are none, and where a field without a default is left out.
    """
    taken = options.of_class(made, defaults)
    if set(arguments) & set(HELP):
        listed = sorted(options.of_class(made, shown or defaults).values(), key=lambda one: one.default is not REQUIRED)
        every = {option.name: option for option in listed}
        if isinstance(page, FirstPage) and "--help-all" not in arguments:
            print_first_page(command, page, every, {"--help-all": f"everything about all {len(every)} options"})
        else:
            print_help(command, {command: every}, page.description if isinstance(page, FirstPage) else page)
        raise SystemExit(0)
    values, rest = known_flags(arguments, taken)
    require_known(command, rest, taken)
    lacking = [name for name, option in taken.items() if option.default is REQUIRED and name not in values]
    if lacking:
        raise missing(*lacking)
    return made(**{**(defaults or {}), **values})


def missing(*names: str, why: str = "") -> errors.ConfigurationError:
    """The error to raise for options that are left out, all of them at once."""
    remedy = "add " + " ".join(f"--{name.replace('_', '-')}" for name in names)
    return errors.refuse(" and ".join(names), "nothing", f"given{why}", remedy)


def require_known(command: str, rest: list[str], taken: Options) -> None:
    """Refuse words that are left when the options of a command are taken."""
    if not rest:
        return
    word = next((word for word in rest if word.startswith("-")), rest[0])
    if not word.startswith("-"):
        raise errors.refuse("argument", repr(word), "left out", f"fedjax-dp {command} takes no other without a flag")
    flag = word.partition("=")[0].replace("_", "-")
    for option in taken.values():
        if flag == option.flag and option.about.positional:
            raise errors.refuse(flag, "a flag", "left out", "give its value alone")
        if flag == option.flag:
            raise errors.refuse(flag, "a flag", "left to Python", "flags are numbers, text and bools")
    flags = [option.flag for option in taken.values() if option.kinds and not option.about.positional]
    remedy = errors.suggestion(flag, [*HELP[1:], *flags], f"fedjax-dp {command} --help-all lists them")
    raise errors.refuse("argument", repr(flag), f"an option of fedjax-dp {command}", remedy)


def known_flags(arguments: list[str], taken: Options) -> tuple[dict[str, Any], list[str]]:
    """What flags, and words before unknown ones, say of some options; and the other words in their order. Refuses flags
    without a value, and values of the wrong type."""
    flagged = {name: option for name, option in taken.items() if not option.about.positional}
    valued = {option.flag: option for option in flagged.values() if not option.about.switch}
    valued |= {option.about.short: option for option in valued.values() if option.about.short}
    for word, following in itertools.pairwise(arguments):
        option = valued.get(word.replace("_", "-"))
        if option is not None and following.startswith("--"):  # cyclopts would take the next flag for the value
            raise errors.refuse(
                option.flag, "nothing", "followed by a value", f"or {option.flag}={following} if that is it"
            )
    app = app_of("", {"": flagged}, named=False)
    try:
        _, bound, rest, _ = app.parse_known_args(arguments)
    except cyclopts.MissingArgumentError as error:
        name = error.argument.name if error.argument else "an option"
        raise errors.refuse(name, "nothing", "followed by a value") from None
    except cyclopts.CycloptsError as error:
        if isinstance(error.__cause__, errors.ConfigurationError):
            raise error.__cause__ from None
        raise errors.refuse("arguments", repr(" ".join(arguments)), "flags", " ".join(str(error).split())) from None
    values = dict(bound.arguments)
    for name, option in taken.items():
        if option.about.positional and rest and not rest[0].startswith("-"):
            values[name] = options.from_text("the first argument", rest.pop(0), option)
    return values, rest


def app_of(name: str, boxes: Mapping[str, Options], description: str = "", *, named: bool = True) -> cyclopts.App:
    """An application that takes options as flags; in its help they stand in boxes, by the group that they name, or by
    the one under which they are given. Names that options may have are loaded for help and completion: `named`."""

    def take(**values: Any) -> Any:
        return values

    order = dict.fromkeys([*boxes, *(option.about.group for box in boxes.values() for option in box.values())])
    groups = {box: cyclopts.Group(box or "options", sort_key=index) for index, box in enumerate(order)}
    parameters = [
        _parameter(option, groups[option.about.group or box], named)
        for box, listed in boxes.items()
        for option in listed.values()
        if option.kinds
    ]
    parameters.sort(key=lambda one: one.kind)  # words before flags
    take.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = cyclopts.App(
        name=name,
        help=description,
        usage="",
        help_flags=(),
        version_flags=(),
        help_format="plaintext",
        end_of_options_delimiter="\0",  # no word is one
        result_action="return_value",
    )
    app.default(take)
    return app


def _parameter(option: Option, group: cyclopts.Group, named: bool) -> inspect.Parameter:
    """A keyword argument of an application. Its text is converted by `options.from_text`, as cyclopts takes 2.5 and
    0x10 for integers."""

    def convert(kind: Any, tokens: Iterable[cyclopts.Token]) -> Any:
        return options.from_text(option.flag, [*tokens][-1].value, option)

    shown, choices = option.about, tuple(option.choices or ()) if named else ()
    hint: Any = Union[option.kinds]  # noqa: UP007
    if choices or hint is bool:
        hint = Literal[choices or ("true", "false")]
    elif hint is str:
        hint = pathlib.Path  # which shells complete
    parameter = cyclopts.Parameter(
        group=group, help=shown.text, alias=shown.short, negative="", allow_repeating=True, show_default=False
    )
    if not shown.switch:
        metavar = shown.metavar or (None if choices else metavar_of(option))
        value = cyclopts.Parameter(
            converter=convert,
            allow_leading_hyphen=True,
            metavar=metavar,
            show_choices=bool(choices),
            show_default=not shown.positional and (lambda _: in_words(option)),
        )
        parameter = cyclopts.Parameter.combine(parameter, value)
    # what is shown is no type of what is converted, to which pydantic, where a tracker has loaded it, would hold values
    kind: Any = bool if shown.switch else hint if named else Any
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_ONLY if shown.positional else inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[kind], parameter],  # noqa: UP045  (of Any, too)
    )


def print_help(command: str, boxes: Mapping[str, Options], description: str) -> None:
    """All options of a command, a box for each group."""
    app_of(f"fedjax-dp {command}", boxes, wrapped(description)).help_print([], console=console())
