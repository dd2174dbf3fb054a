"""Help that fits a screen: what a command is for, examples, and a line for each option that is used most."""

import dataclasses
import functools
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping

from rich.console import Console

from fedjax_dp.options import REQUIRED, Option, Options

WIDEST = 120  # letters of a line of help
_METAVARS: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR", bool: "true|false"}
LEFT = 34  # letters of flag and example, at most
MOST_DEFAULT = 30  # letters of a default; a longer one stands in --help-all alone


@dataclasses.dataclass(frozen=True)
class FirstPage:
    """What somebody who is new to a command has to know.

    purpose   one sentence;
    usage     the words that follow the command;
    examples  what each does, by command line; they run as they stand, in their order;
    usual     an example value of each option that is used most, in the order of the page; "" of a switch;
    notes     more paragraphs, below the examples;
    details   those that only `--help-all` prints.
    """

    purpose: str
    usage: str
    examples: Mapping[str, str]
    usual: Mapping[str, str]
    notes: str = ""
    details: str = ""

    @property
    def description(self) -> str:
        return "\n\n".join(filter(None, (self.purpose, self.notes, self.details)))


def print_first_page(command: str, page: FirstPage, options: Options, more: Mapping[str, str]) -> None:
    """The page, with the defaults of `options`; `more` says what other flags show, by flag."""
    screen = console()
    screen.print(wrapped(f"{page.purpose}\n\nusage: fedjax-dp {command} {page.usage}"), end="\n\n")
    if page.examples:
        _print_columns((f"  fedjax-dp {words}", text) for words, text in page.examples.items())
        screen.print()
    if page.notes:
        screen.print(wrapped(page.notes), end="\n\n")
    print_options({name: options[name] for name in page.usual if name in options}, page.usual)
    screen.print()
    _print_columns((f"  {flag}", text) for flag, text in more.items())


def print_options(options: Options, examples: Mapping[str, str] | None = None) -> None:
    """A line for each option: its flag with an example or the kind of its value, what it is, its default."""
    rows = [(_left(one, (examples or {}).get(name)), one) for name, one in options.items()]
    width = min(max((len(left) for left, _ in rows), default=0), LEFT)
    screen = console()
    screen.print(f"{'  option, example' if examples else '  option':<{width}}  meaning [default]", style="dim")
    for left, option in rows:
        default = "" if option.default is None and not examples and not option.about.default else _default(option)
        room = max(screen.width - max(width, len(left)) - 2 - len(default), 20)
        text = brief(option.about.text, room)
        if option.choices and left.endswith(f" {metavar_of(option)}"):  # no example
            text = brief(f"{text}: {', '.join(option.choices)}", room)
        screen.print(f"{left:<{width}}  {text}{default}", no_wrap=True, overflow="ellipsis")


def print_group(command: str, group: str, options: Options, rare: Iterable[str]) -> None:
    """A line for each option of a group; those that belong to one choice, and the `rare` ones, by name alone."""
    rare = [name for name in rare if name in options]
    usual = {name: one for name, one in options.items() if name not in rare and not one.about.beside}
    print_options(usual)
    flags = dict[tuple[str, str], list[str]]()
    for name, one in options.items():
        for choice_of in [] if name in rare else _choices_of(one):
            flags.setdefault(choice_of, []).append(one.flag)
    texts = dict[str, list[str]]()
    for (choice, values), listed in flags.items():
        texts.setdefault(choice, []).append(f"{values}: {' '.join(listed)}")
    if rare:
        texts["others"] = [f"{' '.join(options[name].flag for name in rare)} (see --algorithm NAME --help)"]
    if texts:
        console().print()
        _print_columns((f"  {choice}", "; ".join(each)) for choice, each in texts.items())
    console().print(f"\nfedjax-dp {command} --help-all says everything about each.")


def brief(text: str, room: int) -> str:
    """A text, or as much of it as fits: its first clause, or its first words."""
    clause = text if len(text) <= room else re.split(r"; |\. ", text)[0]
    return clause if len(clause) <= room else textwrap.shorten(clause, max(room, 8), placeholder=" ...")


def _left(option: Option, example: str | None) -> str:
    word = metavar_of(option) if example is None else example
    if option.about.positional:
        return f"  {word or option.name.upper()}"
    return f"  {option.flag}" + (f" {word}" if word and not option.about.switch else "")


def _default(option: Option) -> str:
    if option.about.switch or (option.default is REQUIRED and option.about.default is None):
        return ""
    words = in_words(option)
    return f" [{words}]" if len(words) <= MOST_DEFAULT else ""


def _choices_of(option: Option) -> Iterable[tuple[str, str]]:
    """The choices that an option belongs to: `--cohort` and `md`."""
    for name, wanted in option.about.beside.items():
        values = wanted if isinstance(wanted, tuple) else (wanted,)
        yield f"--{name.replace('_', '-')}", ", ".join(str(one).lower() for one in values)


def _print_columns(rows: Iterable[tuple[str, str]]) -> None:
    """Two columns, the second of which wraps; one below the other where the first leaves it no room."""
    rows, screen = list(rows), console()
    width = max(len(left) for left, _ in rows)
    side_by_side = width <= 0.6 * screen.width
    for left, text in rows:
        indent = width + 2 if side_by_side else 6
        lines = textwrap.wrap(text, max(screen.width - indent, 20), break_on_hyphens=False) or [""]
        if not side_by_side:  # as a shell takes it
            screen.print(" \\\n      ".join(textwrap.wrap(left.strip(), screen.width - 10, initial_indent="  ")))
        for at, line in enumerate(lines):
            screen.print(f"{left if at == 0 and side_by_side else '':<{indent}}{line}")


def console() -> Console:
    """stdout, as wide as help is at most."""
    return Console(width=_width(), highlight=False, markup=False)


def wrapped(text: str) -> str:
    """Paragraphs as wide as help; indented lines stay as they are."""
    lines = re.sub(r"(?<=\S)\n(?=\S)", " ", text).split("\n")
    fill = functools.partial(textwrap.fill, width=_width(), break_on_hyphens=False, break_long_words=False)
    return "\n".join(line if line.startswith(" ") else fill(line) for line in lines)


def _width() -> int:
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def metavar_of(option: Option) -> str:
    """The kind of its value."""
    return option.about.metavar or ("NAME" if option.choices else "|".join(_METAVARS[kind] for kind in option.kinds))


def in_words(option: Option) -> str:
    """Its default."""
    value = option.default
    if option.about.default or value is REQUIRED or value is None:
        return option.about.default or ("none" if value is None else "to be given")
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
