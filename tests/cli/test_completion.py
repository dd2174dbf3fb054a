"""Completion as a shell asks for it."""

import shutil
import subprocess

import pytest

from fedjax_dp import cli
from fedjax_dp.cli import completion
from fedjax_dp.cli.commands import COMMANDS
from fedjax_dp.papers.reproductions.recipe import recipes


@pytest.fixture(scope="module")
def scripts():
    return {shell: completion.script(shell) for shell in completion.SHELLS}


def completed(script, *words):
    """What bash offers for the last of the words."""
    typed = " ".join(f'"{word}"' for word in ("fedjax-dp", *words))
    asked = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _fedjax_dp; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash"], input=f"{script}\n{asked}", capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["au"], {"audit"}),
        (["help", "cat"], {"catalogue"}),
        (["run", "--algorithm", "dp_fedavg"], {"dp_fedavg", "dp_fedavg_local", "dp_fedavg_output", "dp_fedavg_record"}),
        (["run", "--dataset", "np"], {"npz:"}),
        (["run", "--algorithm", "=", "scaf"], {"scaffold"}),
        (["audit", "--canary", "la"], {"label-flip"}),
        (["run", "--res"], {"--resume"}),
        (["sweep", "--pl"], {"--plan"}),
        (["run", "--secure", "t"], {"true"}),
        (["reproduce", "best/mnist-0.3"], {"best/mnist-0.3"}),
        (["data", "con"], {"convert"}),
        (["completion", "f"], {"fish"}),
        (["run", "--rounds", "no-such-file"], set()),
    ],
)
def test_bash_completes_commands_options_and_names(words, wanted, scripts):
    assert set(completed(scripts["bash"], *words)) >= wanted
    assert len(completed(scripts["bash"], *words)) <= max(len(wanted), 3)


def test_every_command_is_there_and_every_recipe(scripts):
    assert set(COMMANDS) <= set(completed(scripts["bash"], ""))
    assert set(recipes()) <= set(completed(scripts["bash"], "reproduce", ""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_parse_in_their_shells(shell, scripts):
    for name in COMMANDS:
        assert name in scripts[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n"], input=scripts[shell], text=True, check=True)


def test_completion_says_where_scripts_belong_and_refuses_other_shells(capsys):
    with pytest.raises(SystemExit):
        cli.main(["completion", "--help"])
    assert ".config/fish/completions" in capsys.readouterr().out
    for words, told in (([], "got nothing"), (["tcsh"], "one of bash, zsh, fish"), (["bash", "x"], "got 'x'")):
        assert cli.main(["completion", *words]) == 2
        assert told in capsys.readouterr().err
