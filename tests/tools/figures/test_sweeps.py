"""Figures of sweeps: what is drawn is what the records say, whatever the sweep looks like."""

import itertools
import math
import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import MEASURES, refusal, usual
from sweep_points import point, sweep_folder, textbook_interval

from fedjax_dp.rounds.metrics import PROBES
from fedjax_dp.sweeps.settings import epsilon_places, settings_of
from fedjax_dp.tools import cli
from fedjax_dp.tools.figures import curves, panels, scales, styles
from fedjax_dp.tools.figures import sweeps as figures

AXES = ["epsilon", "algorithm", "clip_norm"]


def sweep(epsilons=(0.1, 1.0), algorithms=("dpnfl", "addpnfl"), clip_norms=(0.1, 1.0, 10.0), seeds=3, lost=()):
    """Points of known accuracy; `lost` are (epsilon, algorithm, clip_norm) whose seed 0 diverges."""
    records = []
    for index, (epsilon, name, norm, seed) in enumerate(
        itertools.product(epsilons, algorithms, clip_norms, range(seeds))
    ):
        values = {"epsilon": epsilon, "algorithm": name, "clip_norm": norm, "seed": seed}
        last = accuracy(epsilon, name, norm, seed)
        record = point(index, values, (0.1, last / 2, last), epsilon=0.99 * epsilon, config=values)
        if (epsilon, name, norm) in lost and seed == 0:
            record |= {"status": "diverged", "reason": "round 21: loss is infinite", "history": record["history"][:2]}
        records.append(record)
    return records


def accuracy(epsilon, name, norm, seed):
    return 0.5 + 0.1 * math.log10(epsilon) + 0.05 * (name == "addpnfl") - 0.02 * math.log10(norm) ** 2 + 0.01 * seed


def over_seeds(epsilon, name, norm, seeds=3):
    return [100 * accuracy(epsilon, name, norm, seed) for seed in range(seeds)]


@pytest.fixture
def panel():
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def line(panel, label):
    """x and y of the line with a label."""
    (found,) = [one for one in panel.lines if one.get_label() == label]
    return found.get_xdata(), found.get_ydata()


def test_lines_are_means_in_percent_and_bands_are_students_intervals(panel):
    panels.against(panel, settings_of(sweep(), AXES), "clip_norm", MEASURES.main, "algorithm")
    x, y = line(panel, "addpnfl")
    assert list(x) == [0.1, 1.0, 10.0]
    expected = [textbook_interval(over_seeds(1.0, "addpnfl", norm)) for norm in x]  # the better epsilon
    np.testing.assert_allclose(y, [mean for mean, *_ in expected], rtol=1e-12)
    corners = panel.collections[1].get_paths()[0].vertices
    for at, (_, _, low, high) in zip(x, expected):
        heights = corners[corners[:, 0] == at][:, 1]
        np.testing.assert_allclose((heights.min(), heights.max()), (low, high), rtol=1e-12)
    assert panel.get_xscale() == "log"
    assert [text.get_text() for text in panel.get_xticklabels()] == ["0.1", "1", "10"]
    assert "best over epsilon" in [text.get_text() for text in panel.texts]
    assert panel.get_ylabel() == "test accuracy (%)"


def test_other_axes_are_taken_at_their_lowest_loss(panel):
    panels.against(panel, settings_of(sweep(), AXES), "epsilon", MEASURES["test_loss"])
    np.testing.assert_allclose(
        panel.lines[0].get_ydata(), [2 - np.mean(over_seeds(e, "addpnfl", 1.0)) / 100 for e in (0.1, 1.0)], rtol=1e-12
    )


def test_settings_with_a_failed_seed_are_never_chosen_and_marked_where_no_other_is_left(panel):
    lost = [(1.0, "addpnfl", 1.0), *itertools.product((0.1, 1.0), ("addpnfl",), (10.0,))]
    panels.against(panel, settings_of(sweep(lost=lost), AXES), "clip_norm", MEASURES.main, "algorithm")
    x, y = line(panel, "addpnfl")
    np.testing.assert_allclose(x, [0.1, 1.0])
    np.testing.assert_allclose(y[1], np.mean(over_seeds(0.1, "addpnfl", 1.0)))
    (cross,) = [one for one in panel.lines if one.get_gid() == "failed"]
    assert list(cross.get_xdata()) == [10.0]
    assert "failed" in [text.get_text() for text in panel.get_legend().get_texts()]


def stopped(epsilon, name, norm):
    """Their settings stop after 20 rounds."""
    return [
        record | {"status": "stopped", "history": record["history"][:2]}
        if (epsilon, name, norm) == tuple(record["values"][axis] for axis in AXES)
        else record
        for record in sweep(epsilons=(1.0,), algorithms=("addpnfl",))
    ]


def test_what_halving_stopped_is_marked_everywhere_and_nowhere_as_failed(panel):
    settings = settings_of(stopped(1.0, "addpnfl", 10.0), AXES)

    def marked():
        rings = [list(one.get_xdata()) for one in panel.lines if one.get_gid() == "stopped"]
        words = {text.get_text() for text in panel.get_legend().get_texts()}
        assert "stopped" in words
        assert "failed" not in words
        panel.clear()
        return rings

    panels.against(panel, settings, "clip_norm", MEASURES.main)
    assert marked() == [[10.0]]
    curves.curves(panel, settings, MEASURES.main)
    assert marked() == [[20]]
    curves.parallel(panel, settings, MEASURES.main)
    assert "stopped" in [text.get_text() for text in panel.texts]
    wide = settings_of([*stopped(1.0, "addpnfl", 10.0), *sweep(epsilons=(0.1,), algorithms=("addpnfl",))], AXES)
    panel.clear()
    panels.heat(panel, wide, "clip_norm", "epsilon", MEASURES.main)
    assert "stopped\nat 20" in [text.get_text() for text in panel.texts]
    assert figures.small_print(settings, True) == (
        "means over 3 seeds; bands and bars: 95% intervals of the mean (Student's t); 3 of 9 points stopped at a rung "
        "of halving; no point failed"
    )


def test_words_stand_side_by_side_with_bars(panel):
    panels.against(panel, settings_of(sweep(), AXES), "algorithm", MEASURES.main, "epsilon")
    assert [text.get_text() for text in panel.get_xticklabels()] == ["dpnfl", "addpnfl"]
    assert len(panel.containers) == 2  # one group of bars for each epsilon
    places = [container.lines[0].get_xdata().astype(float) for container in panel.containers]
    np.testing.assert_allclose(np.mean(places, axis=0), [0, 1])
    assert places[0][0] < places[1][0]


def test_privacy_stands_at_the_largest_proved_epsilon_and_the_best_setting_of_each_budget(panel):
    records = sweep(seeds=2)
    for record in records:
        record["guarantee"]["epsilon"] *= 1 + record["values"]["seed"] / 100
    public = point(99, {"epsilon": None, "algorithm": "fedavg", "clip_norm": None, "seed": 0}, (0.7,), epsilon=math.inf)
    panels.privacy(panel, settings_of([*records, public], AXES), MEASURES.main, "algorithm")
    x, y = line(panel, "dpnfl")
    np.testing.assert_allclose(x, [0.099 * 1.01, 0.99 * 1.01])
    np.testing.assert_allclose(y, [np.mean(over_seeds(epsilon, "dpnfl", 1.0, 2)) for epsilon in (0.1, 1.0)])
    np.testing.assert_allclose(line(panel, "fedavg, not private")[1], 70.0)
    assert panel.get_xlabel() == "proved epsilon (nats); delta 0.001; one record; replace-one"
    assert panel.get_xscale() == "log"
    records[0]["guarantee"] |= {"unit": "client", "delta": 1e-5}
    differing = "proved epsilon (nats); delta differs; unit differs; replace-one"
    assert panels.epsilon_label(settings_of(records, AXES)) == differing


def test_the_frontier_holds_what_nothing_with_less_epsilon_beats():
    drawn = [(0.5, 0.6), (1.0, 0.5), (2.0, 0.8), (2.0, 0.9), (3.0, 0.9), (4.0, 0.95)]
    records = [
        point(index, {"noise_multiplier": float(index), "seed": 0}, (height,), epsilon=epsilon)
        for index, (epsilon, height) in enumerate(drawn)
    ]
    found = panels.frontier(settings_of(records, ["noise_multiplier"]), MEASURES.main)
    assert [setting.values["noise_multiplier"] for setting in found] == [0.0, 3.0, 5.0]
    assert [setting.epsilon for setting in found] == [0.5, 2.0, 4.0]


def near(*epsilons):
    """Settings of one budget, as noise is found for it: the better ones with a little more epsilon."""
    return [
        point(index, {"rounds": index, "seed": 0}, (0.5 + index / 10,), epsilon=epsilon)
        for index, epsilon in enumerate(epsilons)
    ]


def test_settings_of_one_budget_stand_at_one_place_and_one_of_them_is_on_the_front(panel):
    settings = settings_of(near(2.9997, 2.9998, 2.9999), ["rounds"])
    panels.privacy(panel, settings, MEASURES.main)
    dots = [float(x) for box in panel.containers for x in box.lines[0].get_xdata()]
    assert dots == [2.9999] * 4  # each setting, and the best of them
    assert list(panel.get_xticks()) == [2.9999]
    low, high = panel.get_xlim()
    assert low < 2.5 < 3.5 < high
    assert [setting.values["rounds"] for setting in panels.frontier(settings, MEASURES.main)] == [2]
    assert figures.rank_axes(settings, MEASURES.main) == ["rounds"]
    assert len(figures._panels(settings, MEASURES.main)) == 2  # against rounds, not against epsilon, and over rounds


def test_epsilons_apart_by_more_than_noise_is_found_to_are_places_of_their_own(panel):
    settings = settings_of(near(2.99, 2.9999, 3.0, 4.0), ["rounds"])
    assert epsilon_places(settings) == [2.99, 3.0, 3.0, 4.0]
    panels.privacy(panel, settings, MEASURES.main)
    assert [2.99, 3.0, 4.0] in [list(one.get_xdata()) for one in panel.lines]


def test_heat_map_holds_the_best_means_and_says_what_failed(panel):
    lost = [(1.0, "addpnfl", 1.0), (1.0, "addpnfl", 10.0), (1.0, "dpnfl", 10.0)]
    panels.heat(panel, settings_of(sweep(lost=lost), AXES), "clip_norm", "epsilon", MEASURES.main)
    means = np.ma.filled(panel.collections[0].get_array().astype(float), np.nan)
    assert means.shape == (2, 3)
    np.testing.assert_allclose(means[0], [np.mean(over_seeds(0.1, "addpnfl", norm)) for norm in (0.1, 1.0, 10.0)])
    np.testing.assert_allclose(means[1, 1], np.mean(over_seeds(1.0, "dpnfl", 1.0)))
    assert math.isnan(means[1, 2])
    written = [text.get_text() for text in panel.texts]
    assert f"{means[0, 0]:.1f}" in written
    assert (written.count("failed"), written.count("x")) == (1, 1)
    assert "best over algorithm; x: some settings failed" in written
    frames = [patch for patch in panel.patches if not patch.get_fill()]
    assert [frame.get_clip_on() for frame in frames] == [False]  # that of the best, whose edge may be the panel's


def test_learning_curves_show_the_best_of_each_value_or_the_best_eight(panel):
    settings = settings_of(sweep(lost=[(1.0, "dpnfl", 0.1)]), AXES)
    curves.curves(panel, settings, MEASURES.main, "algorithm")
    x, y = line(panel, "addpnfl")
    best = np.mean(over_seeds(1.0, "addpnfl", 1.0))
    assert list(x) == [10, 20, 30]
    np.testing.assert_allclose(y, [10, best / 2, best])
    assert sum(one.get_gid() == "failed" for one in panel.lines) == 1
    panel.clear()
    curves.curves(panel, settings, MEASURES.main)
    assert len([one for one in panel.lines if not one.get_label().startswith("_")]) == curves.CURVES
    assert "the best 8 of 12 settings, the others in grey" in [text.get_text() for text in panel.texts]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((0.1, 0.3, 1.0, 3.0), "log"),
        ((1.0, 100.0), "log"),
        ((10, 60, 110, 160), "linear"),
        ((1, 2, 4), "linear"),
        ((0.5,), "linear"),
        ((0.0, 0.01, 0.1, 1.0), "category"),
        (("b", "a"), "category"),
        ((True, False), "category"),
        ((1.0, None), "category"),
        (([1, 2], [3]), "category"),
    ],
)
def test_axes_get_the_scale_of_their_values(values, kind):
    settings = settings_of([point(index, {"a": value, "seed": 0}) for index, value in enumerate(values)], ["a"])
    scale = scales.scale_of(settings, "a")
    assert scale.kind == kind
    places = [scale.position(value) for value in scale.values]
    assert places == sorted(places)
    if len(values) > 1:
        assert [scale.fraction(scale.values[0]), scale.fraction(scale.values[-1])] == [0, 1]


def test_colours_are_not_spent_on_a_setting_that_learned_nothing():
    numbers = np.array([10.0, 84.0, 85.0, 86.0, 87.0])
    assert styles.colour_range(numbers, 1).vmin == 79.0
    assert styles.colour_range(-numbers, -1).vmax == -79.0
    assert styles.colour_range(numbers[1:], 1).vmin == 84.0


def test_influence_ranks_axes_by_the_spread_of_their_means():
    settings = settings_of(sweep(clip_norms=(1.0, 1.1)), AXES)
    assert figures.rank_axes(settings, MEASURES.main) == ["epsilon", "algorithm", "clip_norm"]
    assert figures.two_axes(settings, ["epsilon", "algorithm", "clip_norm"]) == ("epsilon", "clip_norm")
    assert figures.two_axes(settings, ["algorithm", "epsilon"]) == ("algorithm", "epsilon")


def apart():
    """Two algorithms with an axis of their own each, which the other leaves out."""
    chosen = [{"algorithm": "fedprox", "mu": mu} for mu in (0.1, 1.0)]
    chosen += [{"algorithm": "dpnfl", "clip_norm": norm} for norm in (0.1, 1.0)]
    return [
        point(index, values | {"seed": 0}, (0.1, 0.5 + index / 10), epsilon=math.inf if "mu" in values else 1.0)
        for index, values in enumerate(chosen)
    ]


APART = ["algorithm", "mu", "clip_norm"]


def test_small_print_tells_seeds_intervals_and_failures():
    printed = figures.small_print(settings_of(sweep(lost=[(1.0, "dpnfl", 1.0)]), AXES), True)
    assert printed == (
        "means over 3 seeds; bands and bars: 95% intervals of the mean (Student's t); 1 of 36 points failed "
        "(1 diverged); settings with a failed seed are never chosen"
    )
    assert figures.small_print(settings_of(sweep(seeds=1), AXES), True) == (
        "1 seed per setting, so no intervals; no point failed"
    )
    assert figures.small_print(settings_of(sweep()[1:], AXES), False) == "means over 2 to 3 seeds; no point failed"


def test_probes_are_called_so_in_every_label():
    assert {name for name, one in MEASURES.by_name.items() if "probe" in one.label} == set(PROBES)


def random_search():
    draws = np.random.default_rng(0).uniform(-2, 0, (20, 2))
    return [
        point(
            2 * index + seed,
            {"learning_rate": 10**rate, "noise_multiplier": 10**-noise, "seed": seed},
            (0.1, 0.5 - rate / 10 + seed / 100),
            "diverged" if index == 3 else "done",
            10 ** (noise + 1),
            "too large",
        )
        for index, (rate, noise) in enumerate(draws)
        for seed in range(2)
    ]


ALL_LOST = [record | {"status": "failed", "reason": "no memory", "history": []} for record in sweep(seeds=1)]
AWKWARD = {
    "one point": (sweep()[:1], AXES),
    "no axes": (sweep((1.0,), ("dpnfl",), (1.0,)), []),
    "one axis, one seed": (sweep((1.0,), ("dpnfl",), seeds=1), ["clip_norm"]),
    "words only": (sweep((1.0,), ("dpnfl", "addpnfl", "cpfed"), (1.0,)), ["algorithm"]),
    "all failed": (ALL_LOST, AXES),
    "all diverged": (
        sweep(seeds=1, lost=list(itertools.product((0.1, 1.0), ("dpnfl", "addpnfl"), (0.1, 1.0, 10.0)))),
        AXES,
    ),
    "drawn at random": (random_search(), ["learning_rate", "noise_multiplier"]),
    "axes that never meet": (apart(), APART),
    "one evaluation": ([record | {"history": record["history"][-1:]} for record in sweep()], AXES),
    "no guarantee": ([record | {"guarantee": {}} for record in sweep(seeds=1)], AXES),
    "unknown metric": (
        [record | {"history": [e | {"test_accuracy": None} for e in record["history"]]} for record in sweep(seeds=1)],
        AXES,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(AWKWARD, list(AWKWARD)[::5]))
def test_an_awkward_sweep_has_an_overview_and_panels(name, panel, monkeypatch):
    monkeypatch.setattr(figures, "DPI", 40)  # quicker
    records, axes = AWKWARD[name]
    figures.overview(records, axes, "test_accuracy", name, "overview.png")
    picture = plt.imread("overview.png")
    assert picture[..., :3].std() > 0.02
    settings = settings_of(records, axes)
    for axis in axes:
        panel.clear()
        panels.against(panel, settings, axis, MEASURES["test_loss"], axes[-1] if axis != axes[-1] else None)
        panel.figure.draw_without_rendering()
    if axes:
        panel.clear()
        curves.parallel(panel, settings, MEASURES["test_loss"])
        panel.figure.draw_without_rendering()


@pytest.mark.slow
def test_all_that_apply_is_drawn(capsys):
    sweep_folder(sweep(seeds=2, lost=[(1.0, "dpnfl", 1.0)]), AXES)
    assert cli.main(["plot", "sweep"]) == 0
    written = capsys.readouterr().out.split()
    names = ["overview", *(f"axis-{axis}" for axis in AXES), "privacy", "heat", "parallel", "curves"]
    assert sorted(written) == sorted(f"sweep/plots/{name}.png" for name in names)
    for path in written:
        picture = plt.imread(path)
        assert picture.shape[1] > 1000
        assert picture[..., :3].std() > 0.02


def test_each_kind_goes_where_it_is_asked_to(capsys):
    sweep_folder(sweep(seeds=1), AXES, points=99)
    words = ["--kind", "heat", "--x", "clip_norm", "--y", "algorithm", "--metric", "test_loss", "--out", "heat.pdf"]
    assert cli.main(["plot", "sweep", *words]) == 0
    assert pathlib.Path("heat.pdf").read_bytes().startswith(b"%PDF")
    assert "12 of 99 points are there" in capsys.readouterr().err
    assert cli.main(["plot", "sweep", "--kind", "axis", "--x", "clip_norm", "--by", "epsilon", "--out", "here"]) == 0
    assert capsys.readouterr().out == "here/axis-clip_norm.png\n"
    assert cli.main(["plot", "sweep", "--kind", "parallel", "--out", "p.svg"]) == 0
    assert "<svg" in pathlib.Path("p.svg").read_text()
    assert cli.main(["plot", "sweep", *words[:-1], "heat.png", "--size", "6x4", "--style", "dark_background"]) == 0
    picture = plt.imread("heat.png")
    assert picture.shape[:2] == (4 * figures.DPI, 6 * figures.DPI)
    assert picture[0, 0, :3].max() == 0


@pytest.mark.parametrize(
    ("records", "words", "expected"),
    [
        (sweep(), {"kind": "axis", "x": "clip_nrm"}, "did you mean clip_norm"),
        (sweep(), {"kind": "overview", "metric": "test_los"}, "did you mean test_loss"),
        (sweep(), {"kind": "heat", "x": "epsilon", "y": "epsilon"}, "another axis than x, got epsilon"),
        (apart(), {"kind": "heat", "x": "mu", "y": "clip_norm"}, "has points for: overview, axis, privacy,"),
        ([point(0, {"seed": 0}, epsilon=math.inf)], {"kind": "privacy"}, "has points for: overview, curves"),
        ([], {"kind": "curves"}, "no finished point"),
    ],
)
def test_what_a_sweep_does_not_have_is_refused(records, words, expected):
    axes = APART if records == apart() else AXES if len(records) > 1 else []
    assert expected in refusal(figures.drawings, records, axes, "title", **words)
