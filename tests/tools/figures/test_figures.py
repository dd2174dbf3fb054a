"""Pictures are returned, written by their ending, drawn where and how they are asked to be, and can be read."""

import dataclasses
import inspect
import itertools
import math
import pathlib
import re
import resource
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from helpers import MEASURES, refusal
from matplotlib.figure import Figure
from sweep_points import point

from fedjax_dp import ConfigurationError, accounting
from fedjax_dp.accounting.guarantee import Claim, Verdict
from fedjax_dp.rounds.metrics import Evaluation
from fedjax_dp.sweeps.sweep import Sweep
from fedjax_dp.tools import figures
from fedjax_dp.tools.audits.hypothesis_test import Outcome
from fedjax_dp.tools.audits.verdict import Audit
from fedjax_dp.tools.cli import bench
from fedjax_dp.tools.cli.options import PlotOption, picture_of
from fedjax_dp.tools.figures import canvas, elements, styles
from fedjax_dp.tools.latency import plots as latency_plots
from fedjax_dp.tools.latency.floor import Floor
from fedjax_dp.tools.latency.measurement import PARTS, Latency
from fedjax_dp.tools.papers import plots as paper_plots
from fedjax_dp.tools.papers.reproductions import figure as reproduction_figure
from fedjax_dp.tools.papers.reproductions.cells import CellKey
from fedjax_dp.tools.papers.reproductions.recipe import read_recipe
from fedjax_dp.tools.papers.reproductions.reproduction import Reproduction
from fedjax_dp.tools.papers.reproductions.rows import ReadingResult, ResultRow
from fedjax_dp.tools.papers.row import PaperRow

PLOTS = (
    "figures.runs",
    "latency.plots",
    "figures.audits",
    "figures.sweeps",
    "papers.plots",
    "papers.reproductions.figure",
)
FINISHED = (0.1, -0.25, 4.0, 1.5, 2.25, 0.75, 0.05, 1.0)
LATENCY = Latency(
    round_ms=sum(FINISHED) - 1.0,
    spread=0.1,
    parts=dict(zip(PARTS, FINISHED)),
    floor=Floor(1e6, 1e5, 1e4, 1.25, 6.125, 2.5),
    changes=[],
    compile_s=1.0,
    turns=3,
    devices=2,
)
AXES = ("epsilon", "algorithm", "clip_norm")


def records(epsilons=(0.1, 1.0), algorithms=("dpnfl", "addpnfl", "cpfed"), seeds=2):
    """Points of a sweep whose algorithms find the very same."""
    found = []
    for epsilon, algorithm, norm, seed in itertools.product(epsilons, algorithms, (0.1, 1.0), range(seeds)):
        values = {"epsilon": epsilon, "algorithm": algorithm, "clip_norm": norm, "seed": seed}
        accuracies = [epsilon**0.1 * at / 20 + seed / 100 - norm / 100 for at in range(1, 12)]
        found.append(point(len(found), values, accuracies, epsilon=epsilon))
    return found


def history(rounds=30):
    spread = {"client_mean": 0.7, "worst_tenth": 0.4, "client_variance": 0.01}
    return [
        Evaluation(at, {"accuracy": 0.9 - 0.5 / at}, 1.0, 1.0, 0.5, 3.0, 1.0, 0.2, **spread) for at in range(1, rounds)
    ]


def claims(many=60):
    """Settings of a few claims."""
    verdicts = list(Verdict)
    return [
        PaperRow(
            f"paper_{at % 8}",
            f"a setting, T={at}",
            Claim(f"Theorem {at % 8} of a long name", 1.0, 1e-5, verdicts[at % len(verdicts)], "a test"),
            None,
            1.0,
            0.1 * (1 + at),
        )
        for at in range(many)
    ]


PROMISE = SimpleNamespace(
    delta=1e-5,
    claims=(),
    view=accounting.View.UPLOADS,
    to_dict=lambda: {"claims": []},
    unit=accounting.Unit.RECORD,
    caveat=None,
)


def audit():
    """Made of numbers: no run is attacked."""
    rng = np.random.default_rng(0)
    event = accounting.GaussianSteps(1.0, accounting.FullBatch(), accounting.Adjacency.ADD_REMOVE, 1)
    bounds = accounting.error_bounds(30, 200, 40, 200)
    scores = {"absent": rng.normal(size=200), "present": rng.normal(2, 1, 200)}
    return Audit(
        guarantee=PROMISE,
        client=0,
        name="H0",
        epsilon=4.0,
        claim=None,
        lower=2.0,
        of_any=1.0,
        noise=1.2,
        proved=False,
        canary="gradient",
        outcome=Outcome("opposite", "a sum", 1.0, bounds, **scores, pilot=200),
        event=event,
        accountant=accounting.ACCOUNTANTS["gaussian"],
        trials=600,
        significance=0.05,
        seed=0,
        seconds=1.0,
        repeat="the same again",
    )


def reproduction(name="cpfed/fig8", values=(1.0, 3.0)):
    """A recipe with made numbers, alike for all lines."""
    recipe = read_recipe(name)
    metric = recipe.metrics[0]
    curve = tuple((at, 50.0 + at, 1.0) for at in range(1, 20))
    one = ReadingResult(70.0, 1.0, 3, 1.0, None, 1e-4, "one record", curve=curve)
    rows = tuple(
        ResultRow(CellKey(recipe.panels[0].key, line.key, x), metric, 75.0, None, {"literal": one, "correct": one}, {})
        for line in recipe.lines
        for x in values
    )
    recipe = dataclasses.replace(recipe, metrics=(metric,))
    return Reproduction(recipe, recipe.scales["small"], (0, 1, 2), rows, (), (), pathlib.Path())


CURVES = {name: ([1, 10, 100], [0.1, 1.0, 9.0]) for name in (*accounting.ACCOUNTANTS, accounting.ATTAINED.name)}
SHARES = np.arange(320).reshape(40, 8)
SWEEP = Sweep("a sweep", AXES, tuple(records()))
DRAWN = {  # panels, and how it is drawn; unwrapped is what takes stand-ins for a Guarantee or an Audit
    "run": (2, lambda **k: inspect.unwrap(figures.plot_run)(history(), "a promise; of parts", "a title", **k)),
    "epsilon": (1, lambda **k: figures.plot_epsilon(CURVES, "steps", "a title", "one record", target=2.0, **k)),
    "claims": (1, lambda **k: paper_plots.plot_claims(claims(), **k)),
    "bubbles": (2, lambda **k: figures.plot_clients(SHARES[:10], "a title", **k)),
    "clients": (2, lambda **k: figures.plot_clients(SHARES, "a title", **k)),
    "latency": (1, lambda **k: latency_plots.plot_latency(LATENCY, "a title", **k)),
    "audit": (3, lambda **k: inspect.unwrap(figures.plot_audit)(audit(), **k)),
    "overview": (4, lambda **k: SWEEP.plot(**k)),
    "axis": (1, lambda **k: SWEEP.plot(kind="axis", x="clip_norm", by="algorithm", **k)),
    "privacy": (1, lambda **k: SWEEP.plot(kind="privacy", **k)),
    "heat": (1, lambda **k: SWEEP.plot(kind="heat", **k)),
    "curves": (1, lambda **k: SWEEP.plot(kind="curves", by="algorithm", **k)),
    "parallel": (1, lambda **k: SWEEP.plot(kind="parallel", **k)),
    "reproduction": (1, lambda **k: reproduction_figure.draw(reproduction(), **k)),
    "reproduction of rounds": (1, lambda **k: reproduction_figure.draw(reproduction("cpfed/fig6", [None]), **k)),
    "reproduction of numbers": (1, lambda **k: reproduction_figure.draw(reproduction("dpnfl/table2"), **k)),
}


def own_axes(panels):
    figure = Figure(figsize=(7, 4 * panels), layout="constrained")
    return figure, list(np.ravel(figure.subplots(panels)))


@pytest.mark.slow
def test_no_plot_chooses_a_backend_or_keeps_figures_open():
    modules = ", ".join(f"fedjax_dp.tools.{name}" for name in PLOTS)
    program = f"import sys, {modules}; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", DRAWN)
def test_every_plot_takes_a_size_and_a_style_for_itself_and_returns_its_figure(name):
    before = dict(matplotlib.rcParams)
    figure = DRAWN[name][1](size=(11, 9), style={"axes.facecolor": "#123456"})
    assert isinstance(figure, Figure)
    assert tuple(figure.get_size_inches()) == (11, 9)
    assert figure.axes[0].get_facecolor() == matplotlib.colors.to_rgba("#123456")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", DRAWN)
def test_every_plot_draws_into_axes_of_the_users_own_and_writes_their_figure(name):
    panels, draw = DRAWN[name]
    figure, axes = own_axes(panels)
    assert draw(ax=axes[0] if panels == 1 else axes, path="mine.svg") is figure
    assert pathlib.Path("mine.svg").read_bytes().startswith(b"<?xml")
    assert all(axis.has_data() for axis in axes)
    with pytest.raises(ConfigurationError, match=r"ax must be (\d )?Axes of matplotlib.*, got \d Axes; make them"):
        draw(ax=own_axes(panels + 1)[1])


@pytest.mark.parametrize("name", DRAWN)
def test_no_legend_lies_over_what_is_drawn(name):
    figure = DRAWN[name][1]()
    figure.draw_without_rendering()
    legends = [panel.get_legend() for panel in figure.axes if panel.get_legend() is not None] + figure.legends
    for legend, panel in itertools.product(legends, figure.axes):
        covered = legend.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        drawn = panel.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        assert not (covered.padded(-0.02).overlaps(drawn.padded(-0.02))), panel.get_title()


COINCIDING = ("run", "epsilon", "axis", "privacy", "curves", "reproduction", "reproduction of rounds")


@pytest.mark.parametrize("name", COINCIDING)
def test_lines_that_may_coincide_differ_in_more_than_colour_and_none_is_hidden(name):
    """Each has a marker of its own, and those drawn later are thinner, or broken where the one below is whole."""
    panel = DRAWN[name][1]().axes[-1]
    lines = [line for line in panel.lines if line.get_marker() not in ("None", None, "", "D", "_", "|", 2, 3)]
    lines = [line for line in lines if line.get_linestyle() != "None" and len(line.get_xdata()) > 1]
    assert len(lines) > 1
    looked = [(line.get_marker(), line.get_linestyle(), line.get_markerfacecolor()) for line in lines]
    assert len(set(looked)) == len(looked)
    for below, above in itertools.combinations(lines, 2):
        broken = above.is_dashed() and not below.is_dashed()
        same = above.get_color() == below.get_color()  # two readings of one line
        assert same or broken or above.get_linewidth() < below.get_linewidth()


@pytest.mark.parametrize("count", [2, 8, 12, 24])
def test_many_lines_have_looks_of_their_own(count):
    found = [tuple(map(str, styles.line_look(rank, count).values())) for rank in range(count)]
    assert len(set(found)) == count
    assert len({look[:2] for look in found}) == count  # marker and dashes alone, as in print


def test_at_most_two_lines_have_bands_and_bars_of_more_do_not_lie_on_one_another():
    for algorithms in (("dpnfl", "addpnfl"), ("dpnfl", "addpnfl", "cpfed", "dp_fedavg")):
        few = len(algorithms) == 2
        found = Sweep("a sweep", AXES, tuple(records(algorithms=algorithms)))
        for kind, more in (("axis", {"x": "clip_norm"}), ("privacy", {}), ("curves", {})):
            panel = found.plot(kind=kind, by="algorithm", **more).axes[0]
            bands = [one for one in panel.collections if isinstance(one, matplotlib.collections.PolyCollection)]
            bars = [one for one in panel.collections if isinstance(one, matplotlib.collections.LineCollection)]
            assert len(bands) == 2 * few
            assert len(bars) == len(algorithms) * (not few)
            places = [tuple(segment[0]) for one in bars for segment in one.get_segments()]
            assert len(set(places)) == len(places)


def test_the_metric_has_an_axis_of_its_own_where_every_setting_is_a_path():
    (panel,) = SWEEP.plot(kind="parallel").axes
    names = [text.get_text() for text in panel.get_xticklabels()]
    assert [" ".join(name.split()) for name in names] == ["epsilon", "algorithm", "clip norm", MEASURES.main.label]
    upright = [line.get_xdata()[0] for line in panel.lines if line.get_xdata()[0] == line.get_xdata()[-1]]
    assert upright == [0, 1, 2, 3]


def test_sixty_claims_are_a_few_rows_with_a_dot_for_each_setting():
    figure = paper_plots.plot_claims(claims(60))
    (panel,) = figure.axes
    labels = panel.get_yticklabels()
    assert len(labels) == 8
    assert labels[0].get_text() == "paper_0, Theorem 0 of a long name\n8 settings"
    assert sum(len(line.get_xdata()) for line in panel.lines if line.get_label().startswith("_child")) == 60 + 2 * 9
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(text.get_text() for text in paper_plots.plot_claims(claims(20)).axes[0].texts[:20])


def test_a_measurement_has_the_same_numbers_in_print_and_on_its_picture(capsys):
    figure = latency_plots.plot_latency(LATENCY, "x")
    (panel,) = figure.axes
    shown = dict(zip([label.get_text() for label in panel.get_yticklabels()], [t.get_text() for t in panel.texts]))
    how = SimpleNamespace(summary="", table=(), cost=lambda batch: 0)
    bench._print(LATENCY, how, 20, "x")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{figure.get_suptitle()}; 2 ")
    assert figure.get_suptitle() == f"x: {shown['a round']} a round, floor {shown['the floor']}"
    for line, part in zip(lines[1:], PARTS):
        assert line.split("  ")[1:] != []
        assert f" {shown[part]} " in line
        assert line.split()[0] == part
    (floor,) = [line for line in lines if line.startswith("floor")]
    assert floor.startswith(f"floor     at least {shown['the floor']} a round")
    assert shown["the floor"] == "6.12 ms"
    for name, told in (("gradients", "gradients"), ("normals", "noise"), ("memory, overlapping", "memory traffic")):
        assert f"{told} {shown[name]}" in floor
    ends = {bar.get_y(): bar.get_x() + bar.get_width() for bar in panel.patches}
    assert sorted(ends.items())[0][1] == pytest.approx(sorted(ends.items())[7][1])  # the parts end where the round does


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_no_bar_lies_on_an_axis_without_a_zero(scale):
    parts = {name: scale * ms for name, ms in LATENCY.parts.items()}
    figure = latency_plots.plot_latency(LATENCY._replace(round_ms=scale * LATENCY.round_ms, parts=parts), "x")
    assert figure.axes[0].get_xscale() == "linear"
    assert not paper_plots.plot_claims(claims()).axes[0].patches


@pytest.mark.parametrize(
    ("look", "told"),
    [
        ({"size": (6,)}, "size must be width and height in inches, 1 to 100 each, got (6,); such as (6, 4)"),
        ({"size": "6x4"}, "size must be width and height in inches"),
        ({"size": (6, float("nan"))}, "size must be width and height in inches"),
        ({"size": 6}, "size must be width and height in inches"),
        ({"style": "ggplt"}, "did you mean ggplot?"),
        ({"style": 3}, "style must be the name of a style sheet of matplotlib, or a dictionary of rcParams, got 3"),
        ({"style": {"font.sise": 3}}, "style must be of rcParams, got 'font.sise'; did you mean font.size?"),
        ({"style": {"font.size": "big"}}, "style font.size must be a value that matplotlib accepts, got 'big'"),
        ({"ax": "axes"}, "ax must be Axes of matplotlib, got 'axes'; make them with figure.subplots()"),
        ({"ax": [None]}, "ax must be Axes of matplotlib"),
        ({"ax": own_axes(1)[1], "size": (3, 3)}, "size must be left out together with ax, got (3, 3)"),
        ({"ax": own_axes(1)[1], "style": "ggplot"}, "style must be left out together with ax, got ggplot"),
        ({"axes": None}, "argument must be one of ax, size, style, got 'axes'"),
    ],
)
def test_looks_that_are_none_end_in_one_line(look, told):
    assert told in refusal(latency_plots.plot_latency, LATENCY, "x", **look)


def test_axes_of_several_figures_and_a_size_without_room_are_refused():
    left, _ = (whole := Figure()).subfigures(1, 2)
    assert latency_plots.plot_latency(LATENCY, "x", ax=left.subplots()) is whole
    apart = [own_axes(1)[1][0], own_axes(1)[1][0]]
    refused = refusal(figures.plot_clients, SHARES, "x", ax=apart)
    assert refused.startswith("ax must be of one figure, got Axes of several figures")
    assert "size must be larger: the texts leave no room" in refusal(SWEEP.plot, "small.png", size=(1, 1))
    assert not pathlib.Path("small.png").exists()


@pytest.mark.parametrize("name", ["audit", "overview"])
def test_a_column_that_is_too_low_is_refused_by_a_size_that_has_room_for_all_panels(name):
    draw = DRAWN[name][1]
    refused = refusal(draw, style="paper", size=(3.3, 2.4))
    high = float(re.search(r"got 3.3x2.4; such as 3.3x([\d.]+)", refused)[1])
    figure = draw(style="paper", size=(3.3, high))  # which would be refused if a word were cut
    assert len(figure.subfigs) == DRAWN[name][0]
    assert {part.bbox.width for part in figure.subfigs} == {figure.bbox.width}


@pytest.mark.parametrize("name", ["epsilon", "claims", "latency", "reproduction"])
def test_in_a_paper_no_word_is_cut_and_most_of_the_width_is_drawn_in(name):
    draw = DRAWN[name][1]
    figure = draw(style="paper")
    draw(style="paper", size=tuple(figure.get_size_inches()))  # which would be refused if a word were cut
    assert figure.axes[0].bbox.width > 0.55 * figure.bbox.width
    assert "size must be larger: the texts leave no room" in refusal(draw, style="paper", size=(1.5, 1))


def test_words_of_flags_are_the_same_look():
    assert picture_of(PlotOption(plot="a.png", size="6x4.5", style="ggplot")) == {"size": (6.0, 4.5), "style": "ggplot"}
    assert picture_of(PlotOption()) == {}
    for wrong, told in [
        (PlotOption(plot="a.png", size="6"), "size must be width x height in inches, got '6'; such as 6x4"),
        (PlotOption(plot="a.png", size="6x4..5"), "size must be width x height in inches"),
        (PlotOption(plot="a.png", style="ggplt"), "did you mean ggplot?"),
        (PlotOption(size="6x4"), "size must be left out without --plot, got 6x4; add --plot FILE, or drop it"),
    ]:
        assert told in refusal(picture_of, wrong)


def flawless(outcome):
    """Worlds that do not overlap, a few scores far out."""
    absent, present = np.zeros(200), np.full(200, 1e3)
    absent[0], present[0] = -1e37, 1e37
    bounds = accounting.error_bounds(0, 200, 0, 200)
    outcome = outcome._replace(bounds=bounds, absent=absent, present=present, threshold=500.0)
    return {"outcome": outcome, "proved": True, "lower": 90.0, "of_any": 5.0, "noise": 0.1}


def blind(outcome):
    """All scores alike."""
    bounds = accounting.error_bounds(0, 200, 200, 200)
    outcome = outcome._replace(bounds=bounds, absent=np.zeros(200), present=np.zeros(200), threshold=0.0)
    return {"outcome": outcome, "lower": 0.0, "of_any": 0.0, "noise": math.inf}


def claimed(outcome):
    """A claim next to what is stated, and claims of papers."""
    stated = tuple(
        Claim(f"{name} Theorem 1", epsilon, 1e-5, Verdict.WRONG, "a test")
        for name, epsilon in (("dpnfl", 0.02), ("rfedavg", 70.0), ("cpfed", None))
    )
    told = {"claims": [claim.to_dict() for claim in stated]}
    promise = SimpleNamespace(**vars(PROMISE) | {"claims": stated, "to_dict": lambda: told})
    return {"guarantee": promise, "claim": 0.0, "lower": 0.5, "proved": True}


@pytest.mark.parametrize("change", [flawless, blind, claimed])
def test_every_kind_of_audit_has_a_picture(change):
    sound = audit()
    figure = inspect.unwrap(figures.plot_audit)(dataclasses.replace(sound, **change(sound.outcome)), "a.png")
    assert pathlib.Path("a.png").stat().st_size > 10_000
    assert all(panel.has_data() for panel in figure.axes)
    if change is claimed:
        shown = {text.get_text() for panel in figure.axes for text in panel.get_yticklabels()}
        assert {"dpnfl Theorem 1", "rfedavg Theorem 1"} <= shown


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_ending_decides_the_format_and_the_same_figure_makes_the_same_bytes(ending, begins, tmp_path):
    made = []
    for name in ("a", "b"):
        figure = canvas.new((2, 2))
        figure.subplots().plot([1, 3, 2])
        assert isinstance(canvas.save(figure, tmp_path / f"{name}.{ending}"), Figure)
        made.append((tmp_path / f"{name}.{ending}").read_bytes())
    assert made[0].startswith(begins)
    assert made[0] == made[1]
    assert canvas.save(figure, None)._repr_png_().startswith(b"\x89PNG")  # what a notebook shows


@pytest.mark.parametrize("path", ["a.jpg", "a", "absent/a.png"])
def test_other_endings_and_places_are_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "picture must be" in refusal(canvas.save, canvas.new((1, 1)), path)
    assert not list(pathlib.Path().iterdir())


def test_numbers_that_begin_at_zero_have_room_above_the_largest():
    for numbers in ([2.29, 2.22], [6.85, 8.0], [0.0, 0.0]):
        panel = Figure().subplots()
        panel.plot([1, 2], numbers)
        elements.begin_at_zero(panel)
        low, high = panel.get_ylim()
        assert low == 0
        assert high >= 1.04 * max(numbers)
        assert panel.get_xlim() == pytest.approx((0.95, 2.05))


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_a_picture_that_cannot_be_written_leaves_the_one_before(tmp_path, ending):
    path, figure = tmp_path / f"a.{ending}", canvas.new((2, 2))
    canvas.save(figure, path)
    before = path.read_bytes()
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most[1]))  # files cannot grow beyond
    try:
        with pytest.raises(OSError, match="too large"):
            canvas.save(figure, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
