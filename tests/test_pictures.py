"""Pictures are returned, written by their ending, and leave the user's backend alone."""

import pathlib
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from fedjax_dp import ConfigurationError, pictures

PLOTS = ("experiments.plots", "audits.plots", "sweeps.plots.figures", "reproductions.figure")


def test_no_plot_chooses_a_backend_or_keeps_figures_open():
    modules = ", ".join(f"fedjax_dp.{name}" for name in PLOTS)
    program = f"import sys, {modules}; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_ending_decides_the_format_and_the_same_figure_makes_the_same_bytes(ending, begins, tmp_path):
    made = []
    for name in ("a", "b"):
        figure = pictures.new((2, 2))
        figure.subplots().plot([1, 3, 2])
        assert isinstance(pictures.save(figure, tmp_path / f"{name}.{ending}"), Figure)
        made.append((tmp_path / f"{name}.{ending}").read_bytes())
    assert made[0].startswith(begins)
    assert made[0] == made[1]


def test_a_notebook_shows_what_is_returned():
    assert pictures.save(pictures.new((1, 1)), None)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", ["a.jpg", "a", "absent/a.png"])
def test_other_endings_and_places_are_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="picture must be"):
        pictures.save(pictures.new((1, 1)), path)
    assert not list(pathlib.Path().iterdir())
