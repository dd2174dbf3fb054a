"""One specification of a run, whoever makes it."""

import dataclasses

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp.experiments import RunSpec
from fedjax_dp.experiments.config import VALUES, read
from fedjax_dp.experiments.groups import known_options
from fedjax_dp.tools.cli.options import known_flags

WORDS = {"algorithm": "Algorithm(...)", "dataset": "mine", "model": "mlp"}
SET = {"rounds": 40, "seed": 3, "records": "devices", "epsilon": np.array([1.0, 2.0]), "delta": 1e-3}


def of_values(overrides):
    return dataclasses.replace(RunSpec.of_values(overrides, dataset="mine"), describe=lambda: WORDS)


def test_a_run_of_values_is_written_so_that_the_same_is_made_of_it():
    spec = of_values(SET)
    written = spec.flat()
    assert spec.made_of == VALUES
    assert written | {"epsilon": [1.0, 2.0], "evaluate_every": 2, "checkpoint_every": 8} == written
    again = of_values({name: value for name, value in written.items() if name not in WORDS})
    assert again.flat() == written
    assert dataclasses.replace(again, privacy=spec.privacy) == spec


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"epsilonn": 1.0}, "did you mean epsilon?"),
        ({"rounds": 2.5}, "rounds must be an integer, got 2.5"),
        ({"rounds": 0}, "rounds must be an integer of at least 1, got 0"),
        ({"evaluate_every": True}, "evaluate_every must be an integer, got True"),
        ({"accountant": "pdl"}, "did you mean pld?"),
        ({"target": "accuracy"}, "target must be"),
        ({"cohort_size": 3}, "must be left out where algorithm and data are values, got 3"),
    ],
)
def test_what_a_run_of_values_cannot_be_is_refused_as_on_the_command_line(changes, line):
    assert line in refusal(lambda: of_values(SET | changes))


def test_schedules_last_as_long_as_the_run_where_nobody_says_how_long():
    changes = {"noise_schedule": "linear", "noise_end": 0.5, "clip_schedule": "step", "clip_end": 0.5}
    made = RunSpec.of({"rounds": 30, "schedule": "cosine", "clip_rounds": 10, **changes}).options
    assert (made["decay_rounds"], made["noise_rounds"], made["clip_rounds"]) == (30, 30, 10)
    plain = RunSpec.of({"rounds": 30}).options
    assert not {"decay_rounds", "noise_rounds", "clip_rounds"} & {name for name, value in plain.items() if value}
    per_step = {"schedule": "cosine", "per_step": True}
    assert RunSpec.of({"rounds": 30, **per_step}).options.get("decay_rounds") is None


BY_NAME = "epsilon = {north = 1.0, '*' = 4}"


@pytest.mark.parametrize(
    ("line", "flag"), [("epsilon = [1, 2.0]", "1.0,2"), (BY_NAME, "north=1,*=4"), ("epsilon = 2", "2")]
)
def test_budgets_of_clients_are_the_same_from_a_file_and_a_flag_and_again(line, flag, tmp_path):
    (tmp_path / "run.toml").write_text(line)
    values, _ = known_flags(["--epsilon", flag], known_options())
    spec = RunSpec.of(read(tmp_path / "run.toml"))
    assert RunSpec.of(values).privacy == spec.privacy == RunSpec.of(spec.flat()).privacy


def test_a_budget_that_is_none_is_refused_by_file_and_flag(tmp_path):
    (tmp_path / "run.toml").write_text("epsilon = [1, 'much']")
    wanted = "a number, one for each client, or one for each by name"
    assert f"run.toml: epsilon must be {wanted}, got [1, 'much']" in refusal(read, tmp_path / "run.toml")
    assert f"--epsilon must be {wanted}, got 'much'" in refusal(known_flags, ["--epsilon", "much"], known_options())
    assert "budgets 1,2 of clients" in refusal(RunSpec.of({"epsilon": "1,2", "epsilon_high": 3}).privacy.terms, 2, 0)


@pytest.mark.parametrize(("clients", "cohort"), [(1, 1), (3, 3), (50, 5)])
def test_a_usual_cohort_is_not_larger_than_the_clients_and_another_is_as_it_was_set(clients, cohort):
    assert RunSpec.of({}).for_clients(clients).options["cohort_size"] == cohort
    assert RunSpec.of({"cohort_size": 8}).for_clients(clients).options["cohort_size"] == 8
