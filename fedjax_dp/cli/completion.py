"""`fedjax-dp completion`: a script with which a shell completes commands, options and their names."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Literal

import cyclopts

from fedjax_dp import errors
from fedjax_dp.cli.commands import COMMANDS, CONFIGURED, options_class
from fedjax_dp.cli.options import app_of, parse
from fedjax_dp.options import Option, Options, about, of_class

DESCRIPTION = """Write a script with which your shell completes commands, options and the names that they may have.

usage: fedjax-dp completion bash|zsh|fish

    bash  fedjax-dp completion bash > ~/.local/share/bash-completion/completions/fedjax-dp
    zsh   fedjax-dp completion zsh > ~/.zfunc/_fedjax-dp, with fpath+=~/.zfunc before compinit in ~/.zshrc
    fish  fedjax-dp completion fish > ~/.config/fish/completions/fedjax-dp.fish

Completion begins in the next shell; write the script again after an update. For this shell alone: source it, as in
bash with  source <(fedjax-dp completion bash)."""
SHELLS = ("bash", "zsh", "fish")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """For which shell."""

    shell: Annotated[str | None, about("", choices=SHELLS, positional=True)] = None


def completion_command(arguments: list[str]) -> int:
    """Print the script of a shell."""
    options = parse("completion", arguments, CompletionOptions, DESCRIPTION)
    if options.shell is None:
        raise errors.refuse("completion", "nothing", "followed by bash, zsh or fish")
    errors.require_choice("shell", options.shell, SHELLS)
    print(script(options.shell), end="")
    return 0


def script(shell: str) -> str:
    """What the shell reads, of all commands as they are now."""
    whole = cyclopts.App(name="fedjax-dp", help_format="plaintext", result_action="return_value")
    for name, text in COMMANDS.items():
        whole.command(app_of(name, {name: options_of_command(name)}, text), name=name)
    whole.command(app_of("help", {"help": _named("command", COMMANDS)}, "the help of a command"), name="help")
    return whole.generate_completion(shell=shell)  # type: ignore[arg-type]


def options_of_command(name: str) -> Options:
    """All that a command takes, with the names that are known only once data sets and recipes are."""
    from fedjax_dp.cli.run_options import FILE
    from fedjax_dp.data import DATASETS
    from fedjax_dp.experiments.groups import options_of

    result = (FILE | options_of() if name in CONFIGURED else {}) | of_class(options_class(name))
    datasets = [f"{name}:" if reader.suffix else name for name, reader in DATASETS.items()]
    if "dataset" in result:
        result |= _named("dataset", datasets, result["dataset"])
    if name == "data":
        result |= _named("named", ["convert", *datasets], result["named"])
    if name in ("check", "plan"):
        from fedjax_dp.deployments import templates

        option = "template" if name == "check" else "system"
        result |= _named(option, templates.names(), result[option])
    if name == "reproduce":
        from fedjax_dp.papers.reproductions.recipe import recipes

        result |= _named("name", recipes(), result["name"])
    return result


def _named(name: str, names: Iterable[str], option: Option | None = None) -> Options:
    """An option that shells complete by names; others may be right too. Without one, a word of that name."""
    option = option or Option(name, str, None, about("", positional=True))
    return {name: dataclasses.replace(option, hint=Literal[tuple(names)])}
