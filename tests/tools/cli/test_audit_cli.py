"""`fedjax-dp audit` as a user meets it, in a terminal and in a pipeline, and the picture of an audit."""

import dataclasses
import inspect
import json
import pathlib
import shlex
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp.experiments.groups import GROUPS, options_of
from fedjax_dp.options import of_class
from fedjax_dp.tools import cli
from fedjax_dp.tools.audits.audit import audit
from fedjax_dp.tools.audits.setup import CANARY_NAMES
from fedjax_dp.tools.cli.audit import AuditOptions

RUN = ["--batches", "full", "--rounds", "2", "--local-steps", "1", "--cohort-size", "10", "--parameters", "8"]
SMALL = [*RUN, "--trials", "1200", "--lanes", "64"]
CLAIMED = [*SMALL, "--claim", "0.1"]


def run_audit(capsys, *words):
    """Exit code and the JSON object, which is all that stdout holds."""
    code = cli.main(["audit", *words, "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return code, json.loads(out)


def lasting(answer):
    """What must be the same when an audit is repeated."""
    return {name: value for name, value in answer.items() if name not in ("seconds", "options", "repeat")}


def is_picture(path):
    picture = plt.imread(path)
    return picture.shape[1] > 800 and picture.std() > 0.05


@pytest.mark.slow
def test_people_read_the_verdict_first_then_what_is_stated_proved_and_assumed(capsys):
    assert cli.main(["audit", *SMALL, "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("consistent: epsilon 4 is stated at delta 0.001 for one record of client 0 against")
    labels = [line[:10].strip() for line in lines[1:]]
    assert labels == ["stated", "proved", "", "paper", "always", "noise", "attack", "untested", "errors", "time"]
    assert "one record of one client (replace-one neighbours)" in lines[1]
    assert "with confidence 95%; 800 runs counted, 400 more used to choose the attack" in lines[2]
    assert "if noise and sampling are as described" in lines[3]
    assert "planted (the canary): gradient in record 0 of client 0, all other gradients opposite to it" in lines[7]
    assert "of 400 runs without it, missed in" in lines[9]


@pytest.mark.slow
def test_a_violated_claim_ends_in_1_and_the_printed_command_repeats_it(capsys):
    code, answer = run_audit(
        capsys, *CLAIMED, "--seed", "3", "--plot", "its picture.png", "--size=12x9", "--style", "ggplot"
    )
    assert code == 1
    assert answer["violated"] is True
    assert answer["verdict"].startswith("VIOLATED: epsilon 0.1 is claimed")
    assert "at most 1 in 20 true statements is called so by chance: try another seed" in answer["verdict"]
    assert 0.1 < answer["epsilon_lower"] <= answer["guarantee"]["epsilon"]
    assert {"config", "options", "versions", "device", "errors", "attack", "noise_at_most"} <= set(answer)
    assert answer["config"]["seed"] == 3
    assert answer["options"]["claim"] == 0.1
    assert is_picture("its picture.png")
    assert shlex.split(answer["repeat"]) == ["fedjax-dp", "audit", *CLAIMED, "--seed", "3"]
    code, again = run_audit(capsys, *shlex.split(answer["repeat"])[2:])
    assert code == 1
    assert lasting(again) == lasting(answer)
    assert cli.main(["audit", *CLAIMED, "--seed", "3"]) == 1
    assert capsys.readouterr().out.splitlines()[0].endswith(f"; repeat: {answer['repeat']}")


@pytest.mark.slow
def test_a_file_of_a_run_is_an_audit_and_options_without_effect_are_named(capsys):
    pathlib.Path("c.toml").write_text(
        'batches = "full"\nrounds = 2\nlocal_steps = 1\ncohort_size = 10\nout = "somewhere"\nevaluate_every = 1\n'
    )
    code, by_file = run_audit(capsys, "c.toml", *SMALL[-6:])
    assert code == 0
    assert cli.main(["audit", *SMALL, "--evaluate-every", "1", "--out", "somewhere", "--json"]) == 0
    out = capsys.readouterr()
    assert "of no effect on an audit: --evaluate-every, --out" in out.err
    assert lasting(json.loads(out.out)) == lasting(by_file)
    assert not pathlib.Path("somewhere").exists()


@pytest.mark.slow
def test_one_run_with_many_canaries(capsys):
    assert cli.main(["audit", *RUN, "--lanes", "1", "--one-run", "60", "--plot", "one.png"]) == 0
    out = capsys.readouterr().out
    assert "by one run with 60 canaries, " in out.splitlines()[0]
    assert "planted (the canary): gradient in 60 records of client 0" in out
    assert is_picture("one.png")


def test_help_lists_the_options_of_run_and_those_of_the_audit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main(["audit", "--help-all"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    names = [field.name for field in dataclasses.fields(AuditOptions)]
    for name in names:
        assert f"--{name.replace('_', '-')}" in out
    assert all(group in out for group in GROUPS)
    signature = inspect.signature(audit).parameters
    for field in dataclasses.fields(AuditOptions):  # written out, so that help loads no JAX
        assert field.name not in signature or field.default == signature[field.name].default
    assert of_class(AuditOptions)["canary"].choices == list(CANARY_NAMES)
    own = set(names)
    assert {"trials", "canary", "record", "client", "significance", "claim", "parameters", "lanes", "plot"} <= own
    assert not own & set(options_of())


BAD = [  # each ends in one line with code 2: test_cli.py
    (["--algorithm", "fedavg"], "algorithm must be one with a Guarantee to test, got no epsilon; gradients"),
    (["--noise-multiplier", "0"], "gradients are clipped but noise_multiplier is 0"),
    ([*RUN, "--noise-multiplier", "0.001"], "use more noise, or test a smaller claim"),
    ([*RUN, "--trials", "100"], "trials must be at least 410, got 100; with fewer not even"),
    (["--trials", "0"], "trials must be an integer of at least 1, got 0"),
    (["--canary", "gradint"], "canary must be one of gradient, label-flip, blank, mislabelled, got 'gradint'; did you"),
    ([*RUN, "--client", "10"], "client must be an integer from 0 to 9, got 10"),
    ([*RUN, "--record", "999"], "record must be an integer from 0 to 142, got 999; client 0 has 143 records"),
    (["--rounds", "1", "--cohort-size", "1", "--client", "5"], "client must be one that takes part, got 5"),
    ([*RUN, "--lanes", "0"], "lanes must be an integer of at least 1, got 0"),
    ([*RUN[:-1], "1"], "parameters must be an integer from 2 to"),
    (["--claim", "nan"], "claim must be zero or positive, and finite, got nan"),
    (["--significance", "1"], "significance must be strictly between 0 and 1, got 1.0"),
    (["--plot", "no/where.png"], "plot must be in a folder that exists and can be written to, got no/where.png"),
    (["--plot", "x.jpg"], "plot must be a file name that ends in .png, .pdf, .svg, got x.jpg"),
    (["absent"], "got 'absent'; --algorithm NAME names an algorithm"),
    (["dpnfl"], "a configuration file or the folder of a run, got 'dpnfl'; did you mean --algorithm dpnfl?"),
]


@pytest.mark.slow
def test_a_canary_that_changes_nothing_is_refused(capsys):
    x, y = np.zeros((30, 4), np.float32), np.arange(30) % 2
    np.savez("blank.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["--dataset", "npz:blank.npz", "--num-clients", "2", "--cohort-size", "2", "--batches", "full"]
    assert cli.main(["audit", *words, *RUN[2:6], "--canary", "blank", "--lanes", "1"]) == 2
    err = capsys.readouterr().err
    assert err == (
        "fedjax-dp: canary must be one that leaves a trace once gradients are clipped, got blank at client 0; take "
        "another canary, record or client\n"
    )


LAPLACE = """
import dataclasses
from typing import Unpack
import fedjax_dp as fdp
from fedjax_dp.algorithms import Common, entry
from own_laplace import LaplaceRecords

@entry("own")
def laplace(*, clip_norm: float = 1.0, noise_multiplier: float = 1.0, **common: Unpack[Common]) -> fdp.Algorithm:
    private = fdp.dpnfl(clip_norm=clip_norm, noise_multiplier=noise_multiplier, **common)
    own = LaplaceRecords(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return dataclasses.replace(private, local=dataclasses.replace(private.local, privatizer=own))
"""


@pytest.mark.exhaustive  # CI: noise for bounds in L1, tests/inspection/test_own_noise.py
def test_a_bound_in_l1_is_audited_by_a_canary_of_one_parameter(capsys):
    pathlib.Path("mine.py").write_text(LAPLACE)
    words = ["--algorithm", "mine.py:laplace", "--num-clients", "3", "--cohort-size", "3", "--local-steps", "1"]
    words += ["--noise-multiplier", "1", "--rounds", "1", "--delta", "1e-3", "--trials", "2000"]
    code, answer = run_audit(capsys, *words)
    assert code == 0
    assert answer["others"].endswith(", the canary of one parameter")


@pytest.mark.slow
def test_the_run_that_was_prepared_is_audited_without_another_plan_of_it(monkeypatch, capsys):
    def planned(*_, **__):
        raise AssertionError("planned again")

    def ended(run, attack):
        raise fdp.ConfigurationError(f"{run.rounds} rounds, epsilon {run.terms.epsilon}")

    module = sys.modules["fedjax_dp.tools.audits.audit"]
    monkeypatch.setattr(module, "plan_run", planned)
    monkeypatch.setattr(module, "set_up", ended, raising=False)
    assert cli.main(["audit", *SMALL]) == 2
    assert "2 rounds, epsilon None" in capsys.readouterr().err
