"""What a prompt and a notebook show of data, results, sweeps and algorithms; a notebook's progress."""

import dataclasses
import inspect
import pydoc
import re

import jax
import numpy as np
import pytest
from helpers import ragged_data
from sweep_points import point

import fedjax_dp as fdp
from fedjax_dp.display import LINES, WIDTH, Card, Table, displayed, downward, duration, size, upward, words

ENTRIES = [entry for entry in fdp.CATALOGUE.values() if entry.private][:6]


def shown(value):
    """The text, after the laws that hold of everything that is shown."""
    text = repr(value)
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= WIDTH
    page = value._repr_html_()
    for tag in ("table", "tr", "td", "th"):
        assert page.count(f"<{tag}>") + page.count(f"<{tag} ") == page.count(f"</{tag}>")
    assert " at 0x" not in text + page
    return text


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    data = ragged_data([20, 30, 25] * 100)
    value = fdp.dp_fedavg_local(
        cohort_size=20, batch_size=4, local_steps=2, learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    return data, fdp.run(value, data, rounds=40, evaluate_every=1, delta=1e-3, out=folder), folder


@pytest.mark.slow
def test_everything_that_is_shown_fits_in_twenty_lines(ran):
    data, result, folder = ran
    assert "300" in shown(data)
    assert "20 to 30 records" in shown(data)
    assert "GaussianRecord" not in shown(result.algorithm)
    assert "LocalSgd" in shown(result.algorithm)
    said = shown(result)
    assert f"{result.test_accuracy:.4f}" in said
    assert {"test_accuracy", "test_loss", "guarantee"} <= set(dir(result))
    assert upward(result.guarantee.epsilon) in said
    assert "..." in said
    assert "40" in said.splitlines()[-1]  # the last evaluation is there
    shown(result.simulation)
    assert "epsilon" in shown(result.guarantee)
    many = dataclasses.replace(result.guarantee, assumptions=tuple(f"assumption {i} " * 30 for i in range(50)))
    assert "more" in shown(many)
    assert "assumption 49" in many._repr_html_()
    assert "40 of 40 done" in shown(fdp.open_run(folder))


def test_sweeps_are_shown():
    values = [{"learning_rate": 0.01 * rate, "seed": seed} for rate in range(1, 31) for seed in range(2)]
    points = tuple(point(index, one) for index, one in enumerate(values))
    text = shown(fdp.sweeps.Sweep("sweep", ("learning_rate",), points))
    assert "60 done" in text
    assert "2 of 2" in text


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_algorithms_name_their_parts(entry):
    given = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}
    made = entry.of({name: given[name] for name in given if name in entry.options})
    text = shown(made)
    for slot in ("cohort", "local", "aggregate", "server"):
        assert slot in text


def test_a_part_is_told_without_its_defaults_and_addresses():
    @dataclasses.dataclass
    class Part:
        size: int
        scale: object = 1.0
        how: object = None

    assert words(Part(3)) == "Part(size=3)"
    assert words(Part(3, np.arange(5.0), jax.nn.relu)).startswith("Part(size=3, scale=float64[5] in 0..4, how=")
    assert words(Part(3, lambda x: x)).endswith("<lambda>)")
    assert words([1.0, 2]) == "(1, 2)"
    assert words(np.float32(2.5)) == "2.5"


def test_what_is_traced_or_damaged_is_shown_too():
    @displayed
    class Broken:
        def _card(self):
            raise OSError("gone")

    assert repr(Broken()) == "<Broken: OSError>"
    seen = []
    jax.eval_shape(lambda data: seen.append(repr(data)) or data.x, ragged_data([20, 30]))
    assert seen
    assert len(seen[0].splitlines()) <= LINES


def test_markup_of_others_stays_text():
    page = Card("<script>", {"<b>": "<i>"}, Table(["<u>"], [["<s>"]])).html
    assert not re.search("<script>|<i>|<u>|<s>", page)


def test_times_and_bytes_stand_in_the_unit_that_people_use():
    assert [duration(s) for s in (0.52, 42, 600, 7200)] == ["520 ms", "42 s", "10 min", "2 h"]
    assert [size(n) for n in (999, 2_000, 3.5e6, 4.25e9)] == ["999 bytes", "2 kB", "3.5 MB", "4.25 GB"]


def test_completion_shows_what_one_starts_with_and_every_name_is_there():
    assert len(dir(fdp)) <= 26
    assert {*dir(fdp)} < {*fdp.__all__}
    with pytest.raises(AttributeError, match=r"no attribute 'dp_fedvg'; did you mean dp_fedavg\?"):
        _ = fdp.dp_fedvg


@pytest.mark.parametrize("entry", fdp.CATALOGUE.values(), ids=fdp.CATALOGUE)
def test_help_of_an_algorithm_fits_a_screen_and_says_every_keyword(entry):
    text = pydoc.render_doc(entry, renderer=pydoc.plaintext)
    assert all(f"  {name}: " in text for name in inspect.signature(entry).parameters if name not in entry.fixes)
    assert len(text.splitlines()) <= 50


def test_a_bound_is_printed_on_its_safe_side():
    """To the nearest digit, as by `:.4g`, half of all epsilons read below what was proved."""
    numbers = np.random.default_rng(0).lognormal(0, 5, 2000)
    digits = [(float(downward(x)), float(f"{x:.4g}"), float(upward(x))) for x in numbers]
    low, nearest, high = np.transpose(digits)
    assert np.all(low <= numbers)
    assert np.all(numbers <= high)
    assert np.all((nearest == low) | (nearest == high))
    assert 0.4 < np.mean(nearest < numbers) < 0.6
    exact = [(upward(x), downward(x)) for x in (0.1 + 0.2, 8.0, 7.999999999999, 1e-5, 123456.0 * 1000)]
    assert exact == [("0.3", "0.3"), ("8", "8"), ("8", "8"), ("1e-05", "1e-05"), ("1.235e+08", "1.234e+08")]
    assert upward(np.inf) == "inf"
