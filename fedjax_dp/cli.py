"""The command line: parse, call, print."""

import contextlib
import dataclasses
import difflib
import io
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedjax_dp import config as configs
from fedjax_dp import errors
from fedjax_dp.config import RunConfig
from fedjax_dp.simulation import DivergedError

USAGE = """usage: fedjax-dp run [CONFIG.toml] [OPTIONS] [--json]
       fedjax-dp run --resume DIR [--json]

commands:
  run      train a federated algorithm and say what privacy it gives; with no argument a private run on digits

fedjax-dp run --help shows every option with its default.
"""

DESCRIPTION = """Train a federated algorithm and say what privacy it gives.

usage: fedjax-dp run [CONFIG.toml] [OPTIONS] [--json]; --json prints one JSON object on stdout and nothing else;
fedjax-dp run --resume DIR continues a run from its last checkpoint."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 training diverged, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        errors.require_choice("command", arguments[0], ("run",))
        return _run_command(arguments[1:])
    except errors.ConfigurationError as error:
        print(f"fedjax-dp: {error}", file=sys.stderr)
        return 2
    except DivergedError as error:
        print(f"fedjax-dp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedjax-dp: interrupted; fedjax-dp run --resume DIR continues from the last checkpoint", file=sys.stderr)
        return 130


def _run_command(arguments: list[str]) -> int:
    from fedjax_dp import folder  # imports JAX's heavier parts only once the command line is understood

    as_json = "--json" in arguments
    arguments = [a for a in arguments if a != "--json"]
    resume, arguments = _take_option(arguments, "--resume")
    path = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    given = configs.read(path) if path else {}
    config, flagged = _parse(arguments, RunConfig(**given))
    names = {*given, *flagged}
    screen = Screen()
    if resume is None:
        result, config, where = folder.start(configs.resolve(config), screen)
    else:
        asked = {name: getattr(config, name) for name in names}
        result, config, where = folder.resume(pathlib.Path(resume), asked, screen)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print_result(result, where)
    return 0


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of `name VALUE` or `name=VALUE`, and the other arguments."""
    for index, argument in enumerate(arguments):
        if argument == name:
            if index + 1 == len(arguments):
                raise errors.refuse(name, "no value", "followed by a run folder")
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
        if argument.startswith(name + "="):
            return argument.split("=", 1)[1], arguments[:index] + arguments[index + 1 :]
    return None, arguments


def _parse(arguments: list[str], default: RunConfig) -> tuple[RunConfig, set[str]]:
    """Configuration from flags over `default`, and the fields that flags named."""
    if "-h" in arguments or "--help" in arguments:
        tyro.cli(RunConfig, prog="fedjax-dp run", args=["--help"], default=default, description=DESCRIPTION)
    named = _checked_flags(arguments)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            return tyro.cli(RunConfig, prog="fedjax-dp run", args=arguments, default=default), named
    except SystemExit:
        words = "".join(c if c.isascii() and c.isprintable() else " " for c in complaint.getvalue())
        raise errors.ConfigurationError(f"{' '.join(words.split())[:300]}; see fedjax-dp run --help") from None


def _checked_flags(arguments: list[str]) -> set[str]:
    """Fields named by `--flag value` or `--flag=value`; refuses unknown flags and values of the wrong type."""
    fields = {f"--{field.name.replace('_', '-')}": field.name for field in dataclasses.fields(RunConfig)}
    named, rest = set(), list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        flag = flag.replace("_", "-")
        if flag not in fields:
            near = difflib.get_close_matches(flag, fields, n=1)
            raise errors.refuse(
                "argument", repr(flag), "an option of fedjax-dp run",
                f"did you mean {near[0]}?" if near else "fedjax-dp run --help lists them",
            )  # fmt: skip
        if not equals and not rest:
            raise errors.refuse(flag, "nothing", "followed by a value")
        configs.parse_value(flag, fields[flag], value if equals else rest.pop(0))
        named.add(fields[flag])
    return named


class Screen:
    """Progress on stderr: a bar on a terminal, one line per stage elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, what: str, total: int, done: int = 0) -> Iterator[Callable[[float, str], None]]:
        """Yields a function that sets how much is done and what to show beside it."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(what, total=total, completed=done, told="")

            def show(now: float, told: str) -> None:
                progress.update(task, completed=now, told=told)

            yield show


def _print_result(result: dict[str, Any], where: pathlib.Path) -> None:
    guarantee, timing = result["guarantee"], result["timing"]
    console = Console(highlight=False, soft_wrap=True)
    lines = [
        f"{result['algorithm']} on {result['dataset']}: test accuracy {result['test_accuracy']:.4f}, "
        f"loss {result['test_loss']:.4f} after {result['rounds']} rounds",
        f"privacy   {guarantee['statement']}",
        *(f"          assuming {text}" for text in guarantee["assumptions"] if guarantee["epsilon"] is not None),
        *(f"claim     {claim['statement']}" for claim in guarantee["claims"]),
        f"time      {timing['round_s_median'] * 1e3:.1f} ms a round, {timing['compile_s']:.1f} s to compile, "
        f"{timing['total_s']:.1f} s in all",
        f"folder    {where} (config.toml, metrics.json, result.json, run.png, checkpoints)",
    ]
    for line in lines:
        console.print(line, markup=False)
