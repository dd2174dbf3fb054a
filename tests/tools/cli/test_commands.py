"""What a shell completes once cyclopts' own command has installed it."""

import subprocess

import pytest

from fedjax_dp.tools import cli
from fedjax_dp.tools.cli.commands import COMMANDS


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for bash, installed in a home of its own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        assert cli.main(["--install-completion", "--shell", "bash", "--output", str(home / "script")]) == 0
    assert str(home / "script") in (home / ".bashrc").read_text()
    return (home / "script").read_text()


def completed(script, *words):
    """What bash offers for the last of the words."""
    typed = " ".join(f'"{word}"' for word in ("fedjax-dp", *words))
    call = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _fedjax_dp; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash"], input=f"{script}\n{call}", capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return {*done.stdout.split()}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["au"], {"audit"}),
        (["run", "--algorithm", "dp_fedavg"], {"dp_fedavg", "dp_fedavg_local", "dp_fedavg_output", "dp_fedavg_record"}),
        (["audit", "--canary", "la"], {"label-flip"}),
        (["run", "--res"], {"--resume"}),
        (["sweep", "--pl"], {"--plan"}),
        (["run", "--secure", "t"], {"true"}),
        (["run", "--rounds", "no-such-file"], set()),
    ],
)
def test_a_shell_completes_commands_flags_and_choices(words, wanted, script):
    assert completed(script, *words) >= wanted
    assert len(completed(script, *words)) <= max(len(wanted), 3)


def test_a_shell_completes_every_command(script):
    assert set(COMMANDS) <= completed(script, "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--install-completion", "--shell", "tcsh"], "--install-completion must be followed by --shell SHELL"),
        (["completion", "bash"], "completion"),
    ],
)
def test_other_words_are_refused_in_one_line(words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert line in output.err
    assert not list(tmp_path.iterdir())
