"""What the command line prints fits the terminal, and stays whole in a file."""

import io

import pytest
from rich.console import Console
from sweep_points import point

from fedjax_dp.sweeps.sweep import Sweep
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import output, sweep
from fedjax_dp.tools.cli.commands import COMMANDS, CONFIGURED, options_of_command

CELLS = {
    "clip_norm": ["0.3", "1"],
    "test accuracy": ["0.7347", "0.6500"],
    "95% interval": ["0.7000 to 0.7800", "0.6000 to 0.7000"],
    "seeds": ["7 of 7", "6 of 7"],
}


def render(width, terminal=True, **options):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    output.columns(console, CELLS, **options)
    return out.getvalue()


def test_a_table_that_fits_is_whole():
    out = render(80)
    assert all(text in out for name, cells in CELLS.items() for text in (name, *cells))
    assert "left out" not in out


@pytest.mark.parametrize("width", range(20, 80))
def test_columns_go_last_first_by_name_and_no_cell_is_cut(width):
    out = render(width)
    assert "…" not in out
    assert "clip_norm" in out
    left = [name for name, cells in CELLS.items() if not all(cell in out for cell in cells)]
    assert left == list(CELLS)[len(CELLS) - len(left) :]
    assert not left or f"columns wide: {', '.join(left)}" in " ".join(out.split())
    assert all(len(line.rstrip()) <= width for line in out.splitlines())


def test_axes_are_always_there():
    out = render(20, first=3)
    assert "0.7000 to 0.7800" in out
    assert "left out" in out


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_all_help_shows_every_option_and_breaks_between_words(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in COMMANDS:
        try:
            code = cli.main([command, "--help-all"])
        except SystemExit as stopped:
            code = stopped.code
        assert code == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= columns, command
        if command not in CONFIGURED:
            assert all(o.flag in out for o in options_of_command(command).values() if not o.about.positional), command


def with_delta(delta):
    record = point(0, {"delta": delta, "seed": 0}, (0.5,), epsilon=4.0)
    record["guarantee"]["delta"] = delta
    return record


def test_a_sweep_tells_what_its_epsilons_are_about_below_the_table(capsys, tmp_path):
    about = "for one record of one client, replace-one neighbours, against a server that sees every upload"
    alike = Sweep("x", ("delta",), (with_delta(0.01),), None)
    sweep._print(alike, tmp_path)
    assert f"proved    epsilon at delta 0.01 {about}\n" in capsys.readouterr().out
    apart = Sweep("x", ("delta",), (with_delta(0.01), with_delta(0.001)), None)
    sweep._print(apart, tmp_path)
    out = capsys.readouterr().out
    assert "4 (a)" in out
    assert "4 (b)" in out
    assert f"proved    (a) epsilon at delta 0.01 {about}\n" in out
