"""Pictures in one column of a paper, and in other sizes: nothing is cut, budgets have their ticks, legends keep off."""

import itertools

import numpy as np
import pytest
from helpers import refusal, usual
from sweep_points import point

import fedjax_dp as fdp
from fedjax_dp.tools.figures import canvas, sweeps

AXES = ("algorithm", "epsilon", "clip_norm", "learning_rate")
BUDGETS = (0.5, 2.0, 8.0)
VALUES = [
    dict(zip((*AXES, "seed"), values, strict=True))
    for values in itertools.product(("dpnfl", "dp_fedavg_record"), BUDGETS, (0.3, 1.0, 3.0), (0.1, 0.3), (0, 1, 2))
]


def reached(values):
    """Different for all settings and seeds."""
    share = 0.05 * values["epsilon"] + 0.02 * values["clip_norm"] + values["learning_rate"] / 9
    return 0.3 + share + 0.01 * values["seed"]


RECORDS = [
    point(index, values, (0.2, reached(values)), epsilon=values["epsilon"] * 0.9997)
    for index, values in enumerate(VALUES)
]
DRAWN = sweeps.drawings(RECORDS, AXES, "mine")
LOOKS = [{"style": "paper"}, {"size": (3.3, 4)}, {"size": (6, 4)}, {"size": (12, 7.5)}]  # the narrowest first
ONE_PANEL = [name for name in DRAWN if name != "overview"]


@pytest.mark.parametrize("name", ONE_PANEL)
@pytest.mark.parametrize("look", usual(LOOKS, LOOKS[:2]), ids=str)
def test_no_word_is_cut(name, look):
    figure = DRAWN[name](**look)
    if "style" in look:
        assert tuple(figure.get_size_inches()) == canvas.COLUMN
    figure.draw_without_rendering()
    (left, low), (right, high) = figure.get_tightbbox().get_points()  # of all that is seen, in inches
    assert left >= -0.01
    assert right <= figure.get_figwidth() + 0.01
    assert high <= figure.get_figheight() + 0.01
    assert low >= -0.01


@pytest.mark.parametrize("name", ONE_PANEL)
def test_numbers_of_an_axis_do_not_touch_in_one_column(name):
    figure = DRAWN[name](style="paper")
    figure.draw_without_rendering()
    for panel in figure.axes:
        low, high = panel.get_xlim()
        labels = [one for one in panel.get_xticklabels() if low <= one.get_position()[0] <= high]
        boxes = sorted((one.get_window_extent() for one in labels if not one.get_rotation()), key=lambda box: box.x0)
        for left, right in itertools.pairwise(boxes):
            assert left.x1 <= right.x0 + 1


@pytest.mark.parametrize("name", [one for one in ONE_PANEL if one not in ("heat", "parallel")])
def test_what_is_drawn_has_most_of_the_column_and_no_legend_on_it(name):
    figure = DRAWN[name](style="paper")
    figure.canvas.draw()
    (panel,) = figure.axes
    assert panel.bbox.width > 0.75 * figure.bbox.width
    assert panel.bbox.height > 0.3 * figure.bbox.height
    for legend in figure.legends:
        assert not legend.get_window_extent().overlaps(panel.bbox)


@pytest.mark.parametrize("name", ["privacy", "axis-epsilon"])
def test_ticks_stand_at_the_budgets_that_were_run(name):
    panel = DRAWN[name]().axes[0]
    np.testing.assert_allclose(panel.get_xticks(), BUDGETS)
    assert [label.get_text() for label in panel.get_xticklabels()] == ["0.5", "2", "8"]


def test_of_many_settings_the_best_are_coloured_and_the_others_grey():
    panel = DRAWN["parallel"]().axes[0]
    lost, others, best = panel.collections
    assert (len(lost.get_segments()), len(others.get_segments()), len(best.get_segments())) == (0, 28, 8)
    assert np.ptp(others.get_colors()[:, :3]) == 0
    few = sweeps.drawings(RECORDS[:15], AXES, "mine")["parallel"]().axes[0]
    assert [len(one.get_segments()) for one in few.collections] == [0, 0, 5]


def test_a_paper_is_a_style_beside_those_of_matplotlib(tmp_path):
    found = fdp.sweeps.Sweep("mine", AXES, tuple(RECORDS))
    wide = found.plot(tmp_path / "a.pdf", style="paper")
    assert wide.get_figwidth() == canvas.PAGE
    assert b"/Type0" in (tmp_path / "a.pdf").read_bytes()  # letters, not outlines that cannot be searched
    assert tuple(found.plot(kind="heat", style="paper", size=(5, 3)).get_size_inches()) == (5, 3)
    assert "paper" in refusal(lambda: found.plot(kind="heat", style="papr"))
