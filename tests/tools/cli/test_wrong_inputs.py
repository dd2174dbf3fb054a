"""Wrong inputs of every command, generated: one line, exit code 2, nothing written.

What is wrong is made from what the help of a command lists, so that a new option is tried without a new test. Seldom a
generated value is right after all (a name may be any text): then the command has to end well.
"""

import contextlib
import io
import random
import re

import pytest

from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import commands

COMMANDS = [name for name in commands.COMMANDS if name not in ("new", "export", "compare", "catalogue")]
VALUES = ["", "nan", "-inf", "1e300", "99999999999999999999", "-1", "0x10", "é\t", "none/such/thing", "'; rm"]
SHORT = {  # what makes a right command end soon
    "run": ["--rounds", "1", "--local-steps", "1"],
    "audit": ["--rounds", "1", "--local-steps", "1", "--trials", "2"],
    "bench": ["--rounds", "2", "--local-steps", "1", "--turns", "1"],
    "account": ["--noise-multiplier", "1", "--steps", "10", "--delta", "1e-5", "--adjacency", "add-remove"],
    "calibrate": ["--epsilon", "1", "--steps", "10", "--delta", "1e-5", "--adjacency", "add-remove"],
}
POSITIONAL = ["missing.toml", ".", "", "/", "broken.toml", "binary.npz", "a" * 300, "--", "-x", "\N{SNOWMAN}"]


LEFT_OUT = {"--help", "--help-all", "--json", "--resume", "--plan", "--quiet", "--verbose"} | {
    "--coordinator",  # forks, which a process of tests must not: see tests/execution/test_distributed.py
    "--processes",
    "--process",
}


def outcome_of(argv):
    """Exit code, stdout and stderr of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(argv)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def flags(command):
    code, out, _ = outcome_of([command, "--help-all"])
    assert code in (0, None)
    return sorted(set(re.findall(r"--[a-z][a-z-]+", out)) - LEFT_OUT)


def wrong_inputs():
    """At least 500 of them, always the same."""
    for command in COMMANDS:
        for word in POSITIONAL:
            yield [command, word]
        for flag in flags(command):
            yield [command, *SHORT.get(command, []), flag]  # without a value
            yield [command, *SHORT.get(command, []), flag + "x", "1"]
            for value in random.Random(f"{command} {flag}").sample(VALUES, 3):
                yield [command, *SHORT.get(command, []), f"{flag}={value}"]
    for word in POSITIONAL:
        yield [word]
        yield ["export", word]
        yield ["export", word, "new.npz"]
        yield ["data", "convert", word]
        yield ["run", "--resume", word]
        yield ["catalogue", word]


def refused_well(argv, folder):
    """Runs it and checks what must hold of every wrong input."""
    before = sorted(folder.rglob("*"))
    code, _, err = outcome_of(argv)
    lines = [line for line in err.splitlines() if line.startswith("fedjax-dp: ")]
    assert code in (0, 1, 2, None), (argv, code, err[-2000:])
    assert "Traceback" not in err, (argv, err[-2000:])
    if code == 2:
        assert len(lines) == 1, (argv, err)
        assert err.splitlines()[-1] == lines[0], (argv, err)
        assert sorted(folder.rglob("*")) == before, (argv, err)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("rounds = \n[[")
    (tmp_path / "binary.npz").write_bytes(random.Random(0).randbytes(400))
    return tmp_path


@pytest.mark.exhaustive  # CI: refusals of each command, in their own tests
@pytest.mark.parametrize("part", range(10))
def test_wrong_inputs_are_refused_in_one_line(part, folder):
    everything = list(wrong_inputs())
    assert len(everything) >= 500
    for argv in everything[part::10]:
        refused_well(argv, folder)
