"""A sweep's description: it is read as it was written, its runs are known by name, and every refusal is one line."""

import dataclasses
import math
import pathlib

import numpy as np
import pytest
from helpers import SEEDS, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fedjax_dp import errors
from fedjax_dp.accounting import PoissonTrials
from fedjax_dp.experiments import config
from fedjax_dp.sweeps import axes, plan
from fedjax_dp.sweeps.plan import SweepConfig

FALSE_POSITIVE = 1e-6
EXAMPLE = """
seeds = [3, 7]

[base]
dataset = "digits"
rounds = 4

[axes]
clip_norm = {log = [0.1, 10], points = 3}
"algorithm, server_learning_rate" = [["dpnfl"], ["addpnfl", 1]]

[[points]]
learning_rate = 1
[[points]]
learning_rate = 0.1
schedule = "constant"
"""
EXAMPLE_SWEEP = SweepConfig(
    base={"dataset": "digits", "rounds": 4},
    axes={
        "clip_norm": {"log": [0.1, 10.0], "points": 3},
        "algorithm, server_learning_rate": [["dpnfl"], ["addpnfl", 1.0]],
    },
    points=({"learning_rate": 1.0}, {"learning_rate": 0.1, "schedule": "constant"}),
    seeds=(3, 7),
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5).filter(lambda word: ".py" not in word)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    "model": TEXT,
    "clip_norm": NUMBERS,
    "rounds": st.integers(-(2**63), 2**63 - 1),
    "secure": st.booleans(),
    "hidden": TEXT,
    "l2": NUMBERS,
}
RANGES = st.builds(
    lambda ends, spacing, points: {spacing: sorted(ends), "points": points},
    st.lists(st.floats(1e-3, 1e3).map(lambda x: float(f"{x:.3g}")), min_size=2, max_size=2, unique=True),
    st.sampled_from(["log", "linear"]),
    st.integers(2, 5),
)


@st.composite
def sweeps(draw):
    """Sweeps in their normal form, whose runs need not be possible."""
    names = draw(st.permutations(list(VALUES)))
    base = {name: draw(VALUES[name]) for name in names[:2]}
    listed = {name: draw(st.lists(VALUES[name], min_size=1, max_size=3, unique=True)) for name in names[2:3]}
    joint = st.tuples(VALUES[names[3]], VALUES[names[4]]).map(list)
    joined = {", ".join(names[3:5]): draw(st.lists(joint, min_size=1, max_size=2, unique_by=tuple))}
    ranged = {"learning_rate": draw(RANGES)}
    points = tuple({names[5]: value} for value in draw(st.lists(VALUES[names[5]], max_size=2, unique=True)))
    seeds = draw(st.lists(SEEDS, min_size=1, max_size=3, unique=True))
    search = draw(st.sampled_from([{}, {"trials": 5}, {"trials": 9, "trials_law": "poisson", "search_seed": 3}]))
    return SweepConfig(base, listed | joined | ranged, points, tuple(seeds), **search)


def written(text):
    pathlib.Path("sweep.toml").write_text(text, encoding="utf-8")
    return "sweep.toml"


def read(text):
    return plan.read_sweep(written(text))


# The file


def test_a_file_is_read_as_it_is_meant():
    assert read(EXAMPLE) == EXAMPLE_SWEEP
    assert read("seeds = 3") == SweepConfig(seeds=(0, 1, 2))
    assert read("[axes]\nclip_norm = [1, 2.5]\n'b1 ,b2' = [[0, 0.5]]").axes == {
        "clip_norm": [1.0, 2.5],
        "b1, b2": [[0.0, 0.5]],
    }


@pytest.mark.slow
@given(sweeps())
@settings(deadline=None)
def test_a_written_sweep_is_read_back_equal(sweep):
    again = read(plan.to_toml(sweep))
    assert again == sweep
    assert plan.to_toml(again) == plan.to_toml(sweep)
    assert list(again.axes) == list(sweep.axes)
    assert plan.digest(again) == plan.digest(sweep)


def test_tuples_and_integers_from_python_are_the_same_sweep():
    loose = dataclasses.replace(
        EXAMPLE_SWEEP,
        points=list(EXAMPLE_SWEEP.points),
        seeds=[3, 7],
        axes={
            "clip_norm": {"log": (0.1, 10), "points": 3},
            "algorithm,server_learning_rate": (("dpnfl",), ("addpnfl", 1)),
        },
    )
    assert loose == EXAMPLE_SWEEP
    assert plan.digest(loose) == plan.digest(EXAMPLE_SWEEP)
    assert dataclasses.replace(EXAMPLE_SWEEP, seeds=4).seeds == (0, 1, 2, 3)


def turned(values):
    return dict(reversed(values.items()))


@given(sweeps())
@settings(deadline=None)
def test_the_digest_forgets_the_order_of_keys_and_the_folder_of_the_data(sweep):
    again = dataclasses.replace(
        sweep,
        base=turned(sweep.base) | {"data_dir": "elsewhere"},
        axes={name: turned(given) if isinstance(given, dict) else given for name, given in turned(sweep.axes).items()},
        points=tuple(map(turned, sweep.points)),
    )
    assert plan.digest(again) == plan.digest(sweep)
    assert len(plan.digest(sweep)) == 12
    assert set(plan.digest(sweep)) <= set("0123456789abcdef")


def test_the_digest_tells_every_change():
    axes, searched = EXAMPLE_SWEEP.axes, {"trials": 5}
    changes = [
        {},
        {"base": {"dataset": "digits"}},
        {"base": {"dataset": "digits", "rounds": 5}},
        {"seeds": (3, 8)},
        {"seeds": (7, 3)},
        {"seeds": (3,)},
        {"points": ()},
        {"points": EXAMPLE_SWEEP.points[::-1]},
        {"points": EXAMPLE_SWEEP.points[:1]},
        {"axes": axes | {"clip_norm": {"log": [0.1, 10.0], "points": 4}}},
        {"axes": axes | {"clip_norm": {"linear": [0.1, 10.0], "points": 3}}},
        {"axes": axes | {"clip_norm": [0.1]}},
        {"axes": axes | {"l2": [0.1]}},
        {"axes": axes | {"l2": [0.1, 0.2]}},
        {"axes": axes | {"l2": [0.2, 0.1]}},
        searched,
        {"trials": 6},
        searched | {"search_seed": 1},
        searched | {"trials_law": "poisson"},
    ]
    assert len({plan.digest(dataclasses.replace(EXAMPLE_SWEEP, **change)) for change in changes}) == len(changes)


# The runs


def test_every_point_is_resolved_and_the_seed_varies_fastest():
    points = plan.expand(EXAMPLE_SWEEP)
    assert [point.index for point in points] == list(range(2 * 3 * 2 * 2))
    assert points[0].values == {"learning_rate": 1.0, "clip_norm": 0.1, "algorithm": "dpnfl", "seed": 3}
    assert points[-1].values == {
        "learning_rate": 0.1,
        "schedule": "constant",
        "clip_norm": 10.0,
        "algorithm": "addpnfl",
        "server_learning_rate": 1.0,
        "seed": 7,
    }
    for point in points:
        assert point.config == config.RunSpec.of(EXAMPLE_SWEEP.base | point.values)
        assert list(point.values)[-1] == "seed"
    assert [point.config.data.seed for point in points] == [3, 7] * 12


def test_budgets_of_clients_are_one_value_of_a_base_or_of_an_axis():
    assert read("[base]\nepsilon = [1, 2]\n[axes]\nrounds = [1, 2]").base == {"epsilon": "1,2"}
    assert read("[axes]\nepsilon = [1, [1, 2.5], {north = 1, '*' = 2}]").axes == {
        "epsilon": [1.0, "1,2.5", "north=1,*=2"]
    }


def test_a_sweep_may_vary_the_seed_alone():
    assert [point.values for point in plan.expand(SweepConfig(seeds=(0, 5)))] == [{"seed": 0}, {"seed": 5}]


def test_an_id_names_what_decides_the_result():
    def ids(**base):
        return [point.id for point in plan.expand(dataclasses.replace(EXAMPLE_SWEEP, base=base))]

    usual = ids(rounds=4)
    assert len(set(usual)) == len(usual)
    assert {len(name) for name in usual} == {12}
    assert ids(rounds=4, data_dir="elsewhere", checkpoint_every=2) == usual
    assert ids(rounds=4, dataset="digits", batch_size=20) == usual  # what the data set brings anyway
    assert not set(ids(rounds=5)) & set(usual)
    resolved = config.RunSpec.of({"rounds": 4})
    assert plan.identity(resolved) == plan.identity(resolved.replace(out="somewhere"))


def test_ids_do_not_depend_on_the_order_of_axes():
    again = dataclasses.replace(EXAMPLE_SWEEP, axes=turned(EXAMPLE_SWEEP.axes))
    assert {point.id for point in plan.expand(again)} == {point.id for point in plan.expand(EXAMPLE_SWEEP)}


def test_two_ways_to_write_the_same_run_are_refused_in_a_grid():
    same = SweepConfig(points=({}, {"batch_size": 20}))
    assert refusal(plan.expand, same).startswith(
        "points must be different runs, got (seed=0) and (batch_size=20, seed=0); drop one of them"
    )


# Random search


SEARCH = SweepConfig(
    axes={"clip_norm": {"log": [0.1, 10.0]}, "local_steps": {"linear": [1, 9]}}, trials=6, search_seed=4
)


def test_a_random_search_repeats_itself_and_grows_without_changing():
    points = plan.expand(SEARCH)
    assert plan.expand(SEARCH) == points
    assert plan.expand(dataclasses.replace(SEARCH, trials=9))[:6] == points
    assert plan.expand(dataclasses.replace(SEARCH, search_seed=5)) != points
    assert all(type(point.values["local_steps"]) is int for point in points)
    seeded = plan.expand(dataclasses.replace(SEARCH, seeds=(0, 1)))
    assert [point.values | {"seed": 0} for point in seeded[::2]] == [point.values for point in points]


def number_laws(mean):
    """Distributions of the number of trials, from SciPy."""
    logarithmic = optimize.brentq(lambda p: -p / ((1 - p) * math.log1p(-p)) - mean, 1e-9, 1 - 1e-9)
    return {
        "poisson": stats.poisson(mean),
        "geometric": stats.geom(1 / mean),
        "logarithmic": stats.logser(logarithmic),
        "fixed": stats.randint(mean, mean + 1),
    }


@pytest.mark.parametrize("name", ["poisson", "geometric", "logarithmic"])
def test_the_number_of_trials_follows_its_law_and_no_other(name):
    """Chi-square at 1e-6 over up to 6, 7 to 11, and more trials, which the other laws fail with more than 0.999."""
    search = dataclasses.replace(SEARCH, trials=12, trials_law=name)
    counts = np.array([plan.law_of(search).draw(axes.generator(seed, "number of trials")) for seed in range(450)])
    for seed in range(3):
        assert len(plan.expand(dataclasses.replace(search, search_seed=seed))) == counts[seed]
    observed = [(counts <= 6).sum(), ((counts > 6) & (counts <= 11)).sum(), (counts > 11).sum()]
    for other, law in number_laws(12).items():
        expected = 450 * np.diff([0.0, law.cdf(6), law.cdf(11), 1.0])
        score = np.sum((observed - expected) ** 2 / np.maximum(expected, 1e-9))
        assert (score < stats.chi2(2).isf(FALSE_POSITIVE)) == (other == name), other


def test_the_law_of_the_number_of_trials_is_at_hand_for_the_accountant():
    laws = {name: plan.law_of(dataclasses.replace(SEARCH, trials_law=name)) for name in plan.LAWS}
    assert laws["fixed"] is plan.law_of(EXAMPLE_SWEEP) is None
    assert laws["poisson"] == PoissonTrials(6)
    for name, eta in (("geometric", 1.0), ("logarithmic", 0.0)):
        assert laws[name].eta == eta
        assert laws[name].mean == pytest.approx(6)


def test_a_search_that_draws_no_trial_says_so():
    refused = set()
    for seed in range(20):
        try:
            plan.expand(dataclasses.replace(SEARCH, trials=1, trials_law="poisson", search_seed=seed))
        except errors.ConfigurationError as error:
            refused.add(str(error))
    assert refused == {
        "the drawn number of trials must be at least 1 to run anything, got 0; this search ends with no result; "
        "trials_law geometric always draws one"
    }


def test_equal_trials_are_runs_of_their_own():
    points = plan.expand(SweepConfig(axes={"clip_norm": [1.0]}, trials=3))
    assert [point.index for point in points] == [0, 1, 2]
    assert len({point.id for point in points}) == 1


# Refusals


def test_refused_points_are_counted_and_three_reasons_told():
    sweep = SweepConfig(base={"dataset": "digits"}, axes={"rounds": [0, 2, -1, -2, -3]}, seeds=(0, 1))
    assert refusal(plan.expand, sweep) == (
        "8 of 10 points cannot run: rounds=0, seed=0: rounds must be an integer of at least 1, got 0; "
        "rounds=-1, seed=0: rounds must be an integer of at least 1, got -1; "
        "rounds=-2, seed=0: rounds must be an integer of at least 1, got -2; and 1 more"
    )


def test_an_option_of_one_algorithm_is_told_to_vary_with_it():
    apart = SweepConfig(axes={"algorithm": ["dpnfl", "addpnfl"], "nu_init": [0.1]})
    message = refusal(plan.expand, apart)
    assert message.startswith("1 of 2 points cannot run: algorithm=dpnfl, nu_init=0.1, seed=0: ")
    assert '"algorithm, OPTION" = [["one"], ["another", 0.1]] in [axes]' in message
    together = SweepConfig(axes={"algorithm, nu_init": [["dpnfl"], ["addpnfl", 0.1]]})
    assert len(plan.expand(together)) == 2
    other = SweepConfig(axes={"algorithm": ["dpnfl", "fedavg"], "rounds": [0]})
    assert "OPTION" not in refusal(plan.expand, other)


def test_where_algorithms_vary_each_takes_what_it_can_of_the_base():
    base = {"epsilon": 1.0, "delta": 1e-3, "clip_norm": 0.5, "learning_rate": 0.2}
    private, plain = plan.expand(SweepConfig(base=base, axes={"algorithm": ["dpnfl", "fedavg"]}))
    assert base.items() <= private.config.flat().items()
    assert not {"epsilon", "delta", "clip_norm"} & set(plain.config.flat())
    assert plain.config.options["learning_rate"] == private.config.options["learning_rate"] == 0.2
    alone = SweepConfig(base=base | {"algorithm": "fedavg"}, axes={"rounds": [1, 2]})
    assert "which is not private" in refusal(plan.expand, alone) or "does not take it" in refusal(plan.expand, alone)


BAD = [
    ("seeds = ", "must be valid TOML"),
    ("", "a sweep must be of several runs, got one run; add [axes], [[points]] or seeds = 5"),
    ("seedz = 3", "a key must be one of base, axes, points, seeds,"),
    ("rounds = 3", "rounds must be under [base] or [axes], as a field of the runs, got it in the top table"),
    ("seed = 3", "seed must be given at the top, got it in the top table; write seeds = 5"),
    ("base = 3", "base must be a table, got 3; write [base]"),
    ("axes = []", "axes must be a table, got []; write [axes]"),
    ("points = [3]", "points must be a list of tables, got [3]; write [[points]]"),
    ("[points]\nrounds = 3", "points must be a list of tables, got {'rounds': 3}; write [[points]]"),
    ("[base]\nroundz = 3", "[base]: a field must be one of"),
    ("[base]\nrounds = 2.5", "[base]: rounds must be an integer, got 2.5"),
    ("[base]\nrounds = [2]", "[base]: rounds must be numbers, text, true or false, got [2]"),
    ("[base]\nclip_norm = nan", "[base]: clip_norm must be finite, got nan"),
    ("[base]\nseed = 1", "seed must be given at the top, got it in [base]; write seeds = 5, or seeds = [3]"),
    ("[base]\nout = 'x'", "out must be left out, got it in [base]; a sweep has one folder for all its runs"),
    ("[base]\nrounds = 2\n[axes]\nrounds = [3]", "axis rounds must be over fields of its own, got rounds in [base]"),
    ("[base]\nb1 = 0.5\n[axes]\n'b2, b1' = [[0.1]]", "axis b2, b1 must be over fields of its own, got b1 in [base]"),
    ("[base]\nrounds = 2\n[[points]]\nrounds = 3", "[[points]] must be over fields of its own, got rounds in [base]"),
    ("[axes]\nclipnorm = [1]", "axis clipnorm: a field must be one of"),
    ("[axes]\nrounds = [1, 2.5]", "axis rounds must be an integer, got 2.5"),
    ("[axes]\nclip_norm = [1, 'two']", "axis clip_norm must be a number, got 'two'"),
    ("[axes]\nclip_norm = 1979-05-27", "axis clip_norm must be a list or a range"),
    ("[axes]\nclip_norm = {log = ['a', 10], points = 2}", "axis clip_norm must be a number, got 'a'"),
    ("[axes]\nrounds = {linear = [1, 2.5], points = 2}", "axis rounds must be an integer, got 2.5"),
    ("[axes]\nalgorithm = {log = [1, 2], points = 2}", "axis algorithm must be a list, since its values are not numb"),
    ("[axes]\nseed = [1, 2]", "seed must be given at the top, got it in axis seed; write seeds = 5"),
    ("[axes]\ndata_dir = ['a']", "data_dir must be the same for all runs, got it in axis data_dir; give it in [base]"),
    ("[axes]\ncheckpoint_every = [1]", "checkpoint_every must be the same for all runs, got it in axis checkpoint"),
    ("[axes]\n'b1,b2' = [[0.1]]\n'b1, b2' = [[0.1]]", "axis b1, b2 must be given once, got two of them; drop one"),
    ("[axes]\n'b1, b2' = [[0.1, 'x']]", "axis b1, b2: b2 must be a number, got 'x'"),
    ("[[points]]\nseed = 1", "seed must be given at the top, got it in [[points]]"),
    ("[[points]]\nrounds = 'a'", "[[points]]: rounds must be an i"),
    ("seeds = 3\ntrials = 500000\n[axes]\nrounds = [1]", "trials must be an integer from 1 to 333,333, got 500000"),
    ("trials = 2.0\n[axes]\nrounds = [1]", "trials must be an integer, got 2.0"),
    ("trials_law = 'poisson'\n[axes]\nrounds = [1]", "trials_law must be left out without trials, got poisson; give"),
    ("search_seed = 1\n[axes]\nrounds = [1]", "search_seed must be left out without trials, got 1; give trials = 20"),
    ("trials = 3\ntrials_law = 'poison'\n[axes]\nrounds = [1]", "got 'poison'; did you mean poisson?"),
    ("trials = 3\ntrials_law = 3\n[axes]\nrounds = [1]", "trials_law must be text, got 3"),
    ("seeds = 1000\n[axes]\nclip_norm = {log = [1, 2], points = 1001}", "at most 1,000,000 points, got 1,001,000"),
]


@pytest.mark.parametrize(("text", "expected"), BAD, ids=[" ".join(text.split()) or "empty" for text, _ in BAD])
def test_files_that_cannot_be_are_refused_in_one_line_when_read(text, expected):
    message = refusal(read, text)
    assert expected in message
    assert "sweep.toml" in message


def test_files_that_are_not_there_or_not_text_are_refused():
    told = refusal(plan.read_sweep, "absent.toml")
    assert told.startswith("sweep file must be an existing TOML file, got absent.toml; it is looked for in /")
    pathlib.Path("bytes.toml").write_bytes(b"\xff\xfe")
    assert "must be a TOML file, got bytes.toml, which is not UTF-8 text" in refusal(plan.read_sweep, "bytes.toml")


def test_a_sweep_from_python_is_checked_when_it_is_made():
    assert "did you mean rounds?" in refusal(lambda: SweepConfig(base={"roundz": 1}, seeds=(0, 1)))
    assert "got nan" in refusal(lambda: SweepConfig(axes={"clip_norm": [math.nan]}))
    assert "seeds must be" in refusal(lambda: SweepConfig(seeds=2.5))
    assert "axes must be a table, got None" in refusal(lambda: SweepConfig(axes=None))
