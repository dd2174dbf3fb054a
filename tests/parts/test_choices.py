"""Numbers of parts: options of a run, fields of a part in Python, and those of a law of one's own."""

import dataclasses
import inspect
import json
from typing import Annotated

import jax.numpy as jnp
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import parts
from fedjax_dp.algorithms import CATALOGUE, RUN_OPTIONS
from fedjax_dp.algorithms.assemble import SLOT_OF
from fedjax_dp.experiments import RunSpec
from fedjax_dp.experiments.config import read
from fedjax_dp.options import REQUIRED, about
from fedjax_dp.parts.choices import CHOICES, part_of
from fedjax_dp.pytrees import equal
from fedjax_dp.sweeps.plan import SweepConfig, expand
from fedjax_dp.tools import cli

MOST = 30  # keywords that a person can look through
PLAIN = {"cohort_size": 4, "batch_size": 3, "local_steps": 1, "learning_rate": 0.1}


@fdp.value
class Turns(fdp.parts.Cohort):
    """Blocks of clients take turns, each for a few rounds: a law of one's own with an option of its own."""

    size: int = fdp.structure()
    gap: Annotated[int, about("rounds of a turn", named="turn_rounds")] = fdp.structure(default=1)

    no_epsilon_reason = None
    fixed, at_most_once = True, True

    def capacity(self, num_clients):
        return self.size

    def sample(self, keys, round_index, shares):
        first = round_index // self.gap * self.size
        ids = ((first + jnp.arange(self.size)) % shares.shape[0]).astype(jnp.int32)
        return parts.Members.of(ids)

    def rates(self, shares):
        return self.size / shares.shape[0] + 0.0 * shares


@fdp.value
class Clash(fdp.parts.Cohort):
    """Wrong: its field is named as an option of the run."""

    seed: int = fdp.structure(default=1)


def Net(classes):
    return fdp.models.logistic_regression((2,), classes)


TURNS = f"{__file__}:Turns"


@pytest.mark.parametrize("entry", CATALOGUE)
def test_an_entry_has_few_keywords_and_none_of_them_is_a_number_of_a_part(entry):
    keywords = inspect.signature(CATALOGUE[entry]).parameters
    assert len(keywords) <= MOST
    assert not set(keywords) & set(SLOT_OF)


def values_of(choice):
    """Numbers that every choice can have, by option."""
    given = {"last": "keep", "poisson_rate": "opacus", "noise_factors": "1,0.5", "clip_factors": "1,0.5"}
    every = choice.numbers.values()
    return {one.name: given.get(one.name, 3 if one.default is REQUIRED else one.default) for one in every}


NAMES = [(slot, name) for slot, of in CHOICES.items() for name in of.choices if name != "log"]


@pytest.mark.parametrize(("slot", "name"), NAMES)
def test_a_name_with_its_numbers_is_the_part_that_python_makes_of_them(slot, name):
    choice, entry = CHOICES[slot].choices[name], CATALOGUE["dpnfl"]
    numbers = {key: value for key, value in values_of(choice).items() if value is not None}
    noise = {"clip_norm": 1.0, "noise_multiplier": 1.0}
    sized = {} if choice.size or slot not in ("cohort", "batches") else {CHOICES[slot].size: None}
    named = entry.of(PLAIN | noise | numbers | sized | {slot: name})
    values = {**{key: one.default for key, one in RUN_OPTIONS.items()}, **PLAIN, **numbers, slot: name}
    part = part_of(slot, values)
    rest = {key: value for key, value in PLAIN.items() if key != CHOICES[slot].size}
    assert equal(entry(**rest, **noise, **{slot: name if part is None else part}), named)
    written = {slot: name, **numbers}
    assert RunSpec.of({"algorithm": "dpnfl", "rounds": 3, **written}).options.items() >= written.items()


def test_the_defaults_of_numbers_are_those_of_the_parts():
    """Written out again beside the parts, so that help loads no JAX."""
    for slot, of in CHOICES.items():
        for name, choice in of.choices.items():
            if not choice.part or name in ("log", "trimmed_mean"):  # whose part leaves no number out
                continue
            values = {one.name: 3 for one in choice.numbers.values() if one.default is REQUIRED}
            values |= {one.name: "1,0.5" for one in choice.numbers.values() if one.name.endswith("_factors")}
            usual = {one.name: one.default for one in choice.numbers.values() if one.default is not REQUIRED}
            made = [choice.make(slot, values | more, 3 if choice.size else None) for more in ({}, usual)]
            assert equal(made[0], made[1]), (slot, name)


@pytest.mark.parametrize("number", SLOT_OF)
def test_a_number_of_a_part_is_refused_by_the_entry_in_a_line_that_shows_the_part(number):
    line = refusal(lambda: fdp.dpnfl(**PLAIN, clip_norm=1.0, **{number: 1}))
    assert f"{number} must be a number of the part in slot {SLOT_OF[number]}" in line
    assert f"write {SLOT_OF[number]}=fdp.parts." in line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"cohort": parts.BinnedCohort(pass_rounds=3)}, "cohort_size must be left out with a part in slot cohort"),
        ({"cohort": parts.FullBatches()}, "cohort must be a value that follows fedjax_dp.parts.Cohort"),
        ({"server": object()}, "server must be a value that follows fedjax_dp.parts.ServerOptimizer"),
        ({"schedule": parts.ByRound()}, "schedule must be RateSchedule(...)"),
        ({"average": parts.Server.of("adam")}, "average must be ModelAverage(...)"),
        ({"cohort": "bins"}, "cohort_size must be left out with cohort bins, which determines it"),
    ],
)
def test_what_no_slot_takes_is_refused_in_one_line(options, line):
    assert line in refusal(lambda: fdp.fedavg(**PLAIN, **options))


def test_an_entry_that_is_its_server_takes_that_server_with_other_numbers():
    adam = fdp.fedadam(**PLAIN, server=parts.Server.of("adam", b1=0.5)).server
    assert adam == fdp.fedadam.of(PLAIN | {"b1": 0.5}).server
    assert "the part of fedadam with other numbers" in refusal(
        lambda: fdp.fedadam(**PLAIN, server=parts.Server.of("yogi"))
    )
    assert "left out for fedadam, which decides it" in refusal(lambda: fdp.fedadam(**PLAIN, server="adam"))
    momentum = fdp.dp_ftrl(**PLAIN, clip_norm=1.0, server=parts.Server.of("sgd")).server
    assert "momentum" not in momentum.hyperparameters  # which is the default of a name, not of a part


def test_a_size_may_be_left_out_where_the_part_says_it():
    rest = {"local_steps": 1, "learning_rate": 0.1}
    made = fdp.fedavg(cohort=parts.PoissonCohort(size=4), batches=parts.EpochBatches(size=3, last="keep"), **rest)
    assert made == fdp.fedavg.of(PLAIN | {"cohort": "poisson", "batches": "epochs", "last": "keep"})
    assert fdp.fedavg(cohort_size=4, batches="full", **rest).local.batches == parts.FullBatches()


def test_a_table_of_a_slot_is_its_name_and_its_numbers(tmp_path):
    (tmp_path / "flat.toml").write_text('rounds = 3\ncohort = "bins"\npass_rounds = 8\n')
    (tmp_path / "table.toml").write_text('rounds = 3\n[cohort]\nname = "bins"\npass_rounds = 8\n')
    assert read(tmp_path / "flat.toml") == read(tmp_path / "table.toml")
    (tmp_path / "twice.toml").write_text("pass_rounds = 4\n[cohort]\npass_rounds = 8\n")
    assert "twice.toml: pass_rounds must be written once" in refusal(lambda: read(tmp_path / "twice.toml"))
    (tmp_path / "wrong.toml").write_text('[cohort]\nname = "bins"\npass_round = 8\n')
    assert "did you mean pass_rounds?" in refusal(lambda: read(tmp_path / "wrong.toml"))


@pytest.mark.slow
def test_a_law_of_ones_own_brings_its_options_to_the_command_line_files_and_sweeps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--algorithm", "fedavg", "--rounds", "2", "--local-steps", "1", "--cohort-size", "2"]
    words = ["run", *flags, "--cohort", TURNS, "--turn-rounds", "2", "--out", "a", "--json"]
    assert cli.main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["config"].items() >= {"cohort": TURNS, "turn_rounds": 2, "cohort_size": 2}.items()
    text = (tmp_path / "a" / "config.toml").read_text()
    (tmp_path / "b.toml").write_text(text.replace('out = "a"', 'out = "b"'))
    assert cli.main(["run", "b.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"] == result["history"]
    base = {"algorithm": "fedavg", "rounds": 2, "cohort": TURNS}
    points = expand(SweepConfig(base=base, axes={"turn_rounds": [1, 2]}))
    assert [point.config.options["turn_rounds"] for point in points] == [1, 2]
    assert any(path.endswith("test_choices.py") for path in points[0].config.code)
    with pytest.raises(SystemExit):
        cli.main(["run", "--algorithm", "fedavg", "--cohort", TURNS, "--help"])
    assert "--turn-rounds INT rounds of a turn [1]" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    for wrong, line in (
        (["--turn-rounds", "2"], "'--turn-rounds'"),
        (["--cohort", TURNS, "--turn-round", "2"], "did you mean --turn-rounds?"),
        (["--cohort", TURNS, "--turn-rounds", "x"], "--turn-rounds must be an integer"),
        (["--cohort", f"{__file__}:Turn"], "did you mean Turns?"),
    ):
        assert cli.main(["run", "--algorithm", "fedavg", *wrong]) == 2
        assert line in capsys.readouterr().err


def test_a_sweep_takes_a_model_of_ones_own_and_asks_no_algorithm_for_it():
    """A name of a file in the base belongs to the field that it stands for."""
    points = expand(SweepConfig(base={"algorithm": "fedavg", "model": f"{__file__}:Net"}, axes={"rounds": [1, 2]}))
    assert [point.config.training.model for point in points] == [f"{__file__}:Net"] * 2


def test_an_option_of_a_part_of_ones_own_may_not_be_named_as_one_of_the_run():
    line = refusal(RunSpec.of, {"algorithm": "fedavg", "rounds": 2, "cohort": f"{__file__}:Clash"})
    assert "an option of the part in slot cohort must be a name that a run has not, got seed" in line


def test_a_law_of_ones_own_is_the_part_that_python_takes():
    options = {key: value for key, value in PLAIN.items() if key != "cohort_size"}
    made = fdp.fedavg(**options, cohort=dataclasses.replace(Turns(size=4), gap=2)).cohort
    assert (made.size, made.gap) == (4, 2)
    named = fdp.fedavg.of(PLAIN | {"cohort": TURNS, "turn_rounds": 2}).cohort
    assert (type(named).__name__, named.size, named.gap) == ("Turns", 4, 2)


OTHER = {str: "1", int: 7, float: 7.0, bool: True}  # than any default
UNCHOSEN = [name for name in SLOT_OF if name not in ("momentum", "participation_log")]  # usual, and choosing by itself


@pytest.mark.parametrize("number", UNCHOSEN)
def test_a_number_of_what_is_not_chosen_is_refused_in_a_run(number):
    option = RUN_OPTIONS[number]
    value = [*option.choices][-1] if option.choices else OTHER[option.kinds[0]]
    line = refusal(RunSpec.of, {"rounds": 2, number: value})
    assert f"{number} must be left out unless {SLOT_OF[number]} is" in line
