"""`fedjax-dp completion`: a script with which a shell completes commands, options and their names.

Everything is read off where options are described, so that a script is as old as the version that wrote it.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.cli.commands import COMMANDS
from fedjax_dp.cli.options import take_path
from fedjax_dp.cli.wrapping import wrapped
from fedjax_dp.options import Option, Options, of_class

DESCRIPTION = """Write a script with which your shell completes commands, options and the names that they may have.

usage: fedjax-dp completion bash|zsh|fish

bash  fedjax-dp completion bash > ~/.local/share/bash-completion/completions/fedjax-dp
zsh   fedjax-dp completion zsh > ~/.zfunc/_fedjax-dp, with fpath+=~/.zfunc before compinit in ~/.zshrc
fish  fedjax-dp completion fish > ~/.config/fish/completions/fedjax-dp.fish

Completion begins in the next shell; write the script again after an update. For this shell alone: source it, as in
bash with  source <(fedjax-dp completion bash)."""


class Words(NamedTuple):
    """What may follow a command."""

    first: tuple[str, ...]  # names that its first word may be
    flags: tuple[str, ...]
    choices: Mapping[str, tuple[str, ...]]  # of the flags that have some
    valued: tuple[str, ...]  # flags that a value follows


def completion_command(arguments: list[str]) -> int:
    """Print the script of a shell."""
    rest = list(arguments)
    if {"-h", "--help"} & set(rest):
        print(wrapped(DESCRIPTION))
        return 0
    shell = take_path(rest)
    if shell is None or rest:
        raise errors.refuse("completion", " ".join(arguments) or "nothing", "followed by bash, zsh or fish")
    errors.require_choice("shell", shell, SHELLS)
    print(SHELLS[shell](_everything()), end="")
    return 0


def _everything() -> dict[str, Words]:
    return {name: words_of(name) for name in COMMANDS}


def words_of(name: str) -> Words:
    """What may follow a command."""
    command, options = COMMANDS[name], _options(name)
    choices: dict[str, tuple[str, ...]] = {}
    taken = {option.flag: option for option in options.values() if option.kinds}
    for flag, option in taken.items():
        listed = _listed(option)
        if listed:
            choices[flag] = listed
    valued = (*taken, *command.valued)
    return Words(_first(name), tuple(sorted((*valued, *command.switches, "--help"))), choices, valued)


def _listed(option: Option) -> tuple[str, ...]:
    if option.kinds == (bool,):
        return ("true", "false")
    if option.name == "dataset":
        return _datasets()
    return tuple(option.choices or ())


def _options(name: str) -> Options:
    """The options of a command, those of a run included where it takes them."""
    from fedjax_dp.cli import (
        account,
        audit,
        bench,
        best,
        claims,
        compare,
        data,
        plot,
        report,
        reproduce,
        sweep,
        tracking,
    )
    from fedjax_dp.experiments.config import options_of

    own: dict[str, type[Any]] = {
        "run": tracking.TrackOptions,
        "sweep": sweep.SweepOptions,
        "best": best.BestOptions,
        "compare": compare.CompareOptions,
        "plot": plot.PlotOptions,
        "report": report.ReportOptions,
        "reproduce": reproduce.ReproduceOptions,
        "audit": audit.AuditOptions,
        "bench": bench.BenchOptions,
        "account": account.AccountOptions,
        "calibrate": account.CalibrateOptions,
        "claims": claims.ClaimsOptions,
        "data": data.DataOptions,
    }
    found = of_class(own[name]) if name in own else {}
    return options_of() | found if name in ("run", "audit", "bench") else found


def _first(name: str) -> tuple[str, ...]:
    if name == "completion":
        return tuple(SHELLS)
    if name == "reproduce":
        from fedjax_dp.papers.reproductions.recipe import recipes

        return tuple(recipes())
    return ("convert", *_datasets()) if name == "data" else ()


def _datasets() -> tuple[str, ...]:
    """Names; what follows a colon is the user's."""
    from fedjax_dp.data import DATASETS

    return tuple(f"{name}:" if reader.suffix else name for name, reader in DATASETS.items())


def _bash(known: Mapping[str, Words]) -> str:
    cases = []
    for name, words in known.items():
        cases.append(f"    {name}) first={_quoted(words.first)}; flags={_quoted(words.flags)}; ;;")
    values = []
    for name, words in known.items():
        values += [f"    {name},{flag}) names={_quoted(listed)} ;;" for flag, listed in words.choices.items()]
    valued = [f"    {name}) valued={_quoted(words.valued)} ;;" for name, words in known.items()]
    return _BASH.format(
        commands=_quoted([*known, "help", "--help", "--version"]),
        cases="\n".join(cases),
        values="\n".join(values),
        valued="\n".join(valued),
    )


def _zsh(known: Mapping[str, Words]) -> str:
    """bash's, by the emulation that zsh brings for it."""
    return f"#compdef fedjax-dp\nautoload -U +X bashcompinit && bashcompinit\n{_bash(known)}"


def _fish(known: Mapping[str, Words]) -> str:
    lines = ["complete -c fedjax-dp -e"]
    for name, command in COMMANDS.items():
        about = shlex.quote(command.about)
        lines.append(f"complete -c fedjax-dp -n __fish_use_subcommand -f -a {name} -d {about}")
    for name, words in known.items():
        within = f"complete -c fedjax-dp -n '__fish_seen_subcommand_from {name}'"
        if words.first:
            lines.append(f"{within} -f -a {_quoted(words.first)}")
        for flag in words.flags:
            given = f" -x -a {_quoted(words.choices[flag])}" if flag in words.choices else ""
            needs = " -r" if flag in words.valued and not given else ""
            lines.append(f"{within} -l {flag.removeprefix('--')}{given or needs}")
    return "\n".join(lines) + "\n"


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


_BASH = """_fedjax_dp() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
  local first= flags= names= valued=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {commands} -- "$word"))
    return
  fi
  if [ "$command" = help ]; then
    [ "$COMP_CWORD" -eq 2 ] && COMPREPLY=($(compgen -W {commands} -- "$word"))
    return
  fi
  if [ "$word" = "=" ]; then word=; elif [ "$before" = "=" ]; then before=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  case "$command,$before" in
{values}
  esac
  case "$command" in
{valued}
  esac
  case "$command" in
{cases}
  esac
  if [ -n "$names" ]; then
    COMPREPLY=($(compgen -W "$names" -- "$word"))
  elif [[ " $valued " == *" $before "* ]]; then
    COMPREPLY=($(compgen -f -- "$word"))
  elif [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  elif [ "$COMP_CWORD" -eq 2 ] && [ -n "$first" ]; then
    COMPREPLY=($(compgen -W "$first" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _fedjax_dp fedjax-dp
"""
SHELLS: dict[str, Callable[[Mapping[str, Words]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
