"""One specification of a run, whoever makes it."""

import dataclasses

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp.experiments import RunSpec
from fedjax_dp.experiments.config import VALUES

WORDS = {"algorithm": "Algorithm(...)", "dataset": "mine", "model": "mlp"}
SET = {"rounds": 40, "seed": 3, "records": "devices", "epsilon": np.array([1.0, 2.0]), "delta": 1e-3}


def test_a_run_of_values_is_written_so_that_the_same_is_made_of_it():
    spec = RunSpec.of_values(SET, **WORDS)
    written = spec.flat()
    assert spec.made_of == VALUES
    assert written | {"epsilon": [1.0, 2.0], "evaluate_every": 2, "checkpoint_every": 8} == written
    again = RunSpec.of_values({name: value for name, value in written.items() if name not in WORDS}, **WORDS)
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
    assert line in refusal(lambda: RunSpec.of_values(SET | changes, **WORDS))


def test_schedules_last_as_long_as_the_run_where_nobody_says_how_long():
    changes = {"noise_schedule": "linear", "noise_end": 0.5, "clip_schedule": "step", "clip_end": 0.5}
    made = RunSpec.of({"rounds": 30, "schedule": "cosine", "clip_rounds": 10, **changes}).options
    assert (made["decay_rounds"], made["noise_rounds"], made["clip_rounds"]) == (30, 30, 10)
    plain = RunSpec.of({"rounds": 30}).options
    assert not {"decay_rounds", "noise_rounds", "clip_rounds"} & {name for name, value in plain.items() if value}
    per_step = {"schedule": "cosine", "per_step": True}
    assert RunSpec.of({"rounds": 30, **per_step}).options.get("decay_rounds") is None
