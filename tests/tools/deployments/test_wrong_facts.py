"""Facts that cannot be, generated: one line that names the fact, exit code 2, no traceback."""

import contextlib
import io
import json
import math
import subprocess
import sys

import pytest
from test_judgement import CENTRAL, MESSAGE, RECORD, merged, replace

from fedjax_dp import errors
from fedjax_dp.tools import cli
from fedjax_dp.tools.deployments import check, templates
from fedjax_dp.tools.deployments.description import missing_facts_error

ADAPTIVE = {"clip__threshold": "adaptive", "clip__count_noise": 1.0, "noise__scale": "bound"}
LAPLACE = {"noise": {"law": "laplace", "std": 1.0, "on": "sum", "by": "server"}, "clip__norm": "l1"}
TWICE = [{"law": "with-replacement"}, {"law": "unknown"}]
WRONG = [  # the deployment, what is changed, and the name that the line must have
    *((RECORD, {"delta": value}, "delta") for value in (0, 1, -1e-5, math.nan, "small", [1e-5])),
    *((RECORD, {"rounds": value}, "rounds") for value in (0, -1, 2.5, True, "ten", 10**7)),
    *((RECORD, {"unit": value}, "unit") for value in ("person", 1, "")),
    *((RECORD, {"noise__std": value}, "noise.std") for value in (-1.0, math.nan, math.inf, "1", [1.0, 2.0], [])),
    *((RECORD, {"clip__bound": value}, "clip.bound") for value in (0, -1.0, math.nan, [0.0, 1.0, 1.0])),
    *((RECORD, {"records__steps": value}, "records.steps") for value in (0, 1.5, [1, 2], [5, 0, 5])),
    *((RECORD, {"records__rate": value}, "records.rate") for value in (0.0, 1.5, -0.1, math.nan)),
    (RECORD, {"records__size": 5}, "records.rate"),
    (RECORD, {"records": {"law": "fixed", "size": 20, "of": 10, "steps": 1}}, "records.size"),
    (RECORD, {"records": {"law": "fixed", "size": 20, "of": [30, 10, 30], "steps": 1}}, "records.size"),
    (RECORD, {"records": {"law": "fixed", "size": 20, "steps": 1}}, "records.of"),
    (RECORD, {"records": {"law": "sorted", "rate": 0.1, "steps": 1}}, "records.law"),
    (RECORD, {"records": {"law": "poisson", "rate": 0.1}}, "records.steps"),
    (RECORD, {"records": "poisson"}, "records"),
    (RECORD, {"clients": {"law": "all"}, "noise__std": [1.0, 2.0]}, "clients.of"),
    (RECORD, {"noise__by": "server"}, "noise.by"),
    (RECORD, {"noise__on": "message"}, "noise.on"),
    (RECORD, {"noise__law": "laplace"}, "noise.law"),
    (RECORD, {"noise__colour": "pink"}, "noise.colour"),
    (RECORD, {"sigma": 1.0}, "sigma"),
    (CENTRAL, {"clients__size": 200}, "clients.size"),
    (CENTRAL, {"clients__rate": 0.1}, "clients.rate"),
    (CENTRAL, {"clients": {"law": "fixed", "of": 100}}, "clients.size"),
    (CENTRAL, {"clients": {"of": 100}}, "clients.law"),
    *((CENTRAL, {"weights__largest": value}, "weights.largest") for value in (0.0, 1.2, "all", -1, math.nan)),
    (CENTRAL, {"weights": {}}, "weights.largest"),
    (CENTRAL, {"weights": {"largest": 0.09}}, "weights.largest"),
    (RECORD, {"records__last": "keep"}, "records.last"),
    (CENTRAL, {"clip__count_bits": "half"}, "clip.count_bits"),
    (
        MESSAGE,
        {"noise__law": "laplace", "clip__norm": "l1", "noise__calibration": {"epsilon": 1.0}},
        "noise.calibration",
    ),
    (CENTRAL, {"clients": {"law": "poisson", "rate": 0.1}, "weights": {"largest": 0.1}}, "weights.denominator"),
    (CENTRAL, {"clip__threshold": "adaptive"}, "clip.count_noise"),
    (CENTRAL, {**ADAPTIVE, "noise__scale": "public"}, "noise.scale"),
    (CENTRAL, {"noise__scale": "bound"}, "noise.scale"),
    (CENTRAL, {"clip__scope": "tensor"}, "clip.tensors"),
    (CENTRAL, {"clip__norm": "coordinate"}, "clip.coordinates"),
    (CENTRAL, {"noise__on": "message"}, "noise.by"),
    (CENTRAL, {"claim": {"epsilon": 1.0}}, "claim.per"),
    (CENTRAL, {"claim": {"epsilon": -1.0, "per": "run"}}, "claim.epsilon"),
    (CENTRAL, {"claim": {"epsilon": 1.0, "delta": 1.0, "per": "run"}}, "claim.delta"),
    (CENTRAL, {"claim": {"epsilon": 1.0, "per": "run", "assumes": {"cohort": 3}}}, "claim.assumes.population"),
    (
        CENTRAL,
        {"claim": {"epsilon": 1.0, "per": "run", "assumes": {"population": 5, "cohort": 10}}},
        "claim.assumes.cohort",
    ),
    (CENTRAL, {"also": [{"kind": "metrics", "text": "loss"}]}, "also.to"),
    (CENTRAL, {"also": [{"kind": "rumours", "text": "loss", "to": "server"}]}, "also.kind"),
    (CENTRAL, {"also": {"kind": "metrics", "text": "loss", "to": "server"}}, "also"),
    (CENTRAL, {"noise__misses": "buffers"}, "noise.misses"),
    (MESSAGE, {"noise__on": "sum"}, "noise.on"),
    (MESSAGE, {"noise__calibration": {"epsilon": 1.0, "delta": 1e-5}}, "noise.calibration"),
    (MESSAGE, {"noise": {"law": "gaussian", "calibration": {"epsilon": 1.0}}}, "noise.calibration.delta"),
    (MESSAGE, {"noise": {"law": "gaussian", "on": "message", "by": "client"}}, "noise.std"),
    (MESSAGE, {"clip": {"of": "update"}}, "clip.norm, clip.bound"),
    (RECORD, {"clip__count_noise": 1.0}, "clip.count_noise"),
    (RECORD, {**ADAPTIVE, "clip__norm": "coordinate"}, "clip.norm"),
    (RECORD, {"selection": {"epsilon": 0.1, "of": 10, "fraction": 0.5, "release": 0.1}}, "selection.epsilon"),
    (RECORD, {"records": {"law": "unknown", "steps": 1}}, "records.size"),  # may stand in a sum several times
    (RECORD, {"records": {"law": "unknown", "rate": 0.1, "of": 100, "steps": 1}}, "records.size"),
    (CENTRAL, {"noise__law": "laplace", "clip__norm": "l1", "clients__law": "all", **ADAPTIVE}, "clip.count_noise"),
    (CENTRAL, {"ignored": ["weights.denominator"]}, "ignored"),
    (CENTRAL, {"ignored": ["Noise "]}, "ignored"),
    (CENTRAL, {"weights": {"largest": 0.05}}, "weights.largest"),
    *((CENTRAL, {"clients": {**law, "size": 5, "of": 100, "members": "known"}}, "clients.members") for law in TWICE),
    *((CENTRAL, {"unit": "record", "noise__on": "sum", "clients": law}, "clients.size, clients.of") for law in TWICE),
    *((CENTRAL, {**LAPLACE, "clients": {**law, "size": 50, "of": 100}}, "noise.law") for law in TWICE),
]


def toml(facts, changes):
    """A file as a user writes it: of facts that TOML cannot say the nearest."""

    def written(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name} = {written(one)}" for name, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(written, value)) + "]"
        return str(value).lower() if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)

    return "".join(f"{name} = {written(value)}\n" for name, value in merged(facts, changes).items())


def ran(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(map(str, words)))
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("facts", "changes", "name"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_is_refused_in_one_line_that_names_the_fact(facts, changes, name, tmp_path):
    with pytest.raises((errors.ConfigurationError, TypeError)) as refusal:  # of a keyword Python's own
        check(replace(facts, **changes))
    assert name in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    path = tmp_path / "deployment.toml"
    path.write_text(toml(facts, changes))
    code, out, err = ran("check", path)
    assert (code, out) == (2, "")
    assert name in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weights.denominator", "count: the actual number of members (fixed, count, unknown)"),
        ("weights.largest", "largest share of one client"),
        ("noise.by", "(server, client)"),
        ("rounds", "rounds"),
    ],
)
def test_a_single_missing_fact_is_named_with_what_it_is(name, words):
    line = str(missing_facts_error([name]))
    assert words in line.removeprefix(name)
    assert line.endswith("there is no default for it")


def test_blanks_are_listed_all_at_once(tmp_path):
    for name in templates.names():
        path = tmp_path / f"{name}.toml"
        assert ran("check", "--template", name, "-o", path)[0] == 0
        code, out, err = ran("check", path)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert {"delta", "rounds"} <= set(err.removeprefix("fedjax-dp: ").split(" must")[0].split(", "))
        code, _, err = ran("check", "--template", name, "-o", path)  # nothing is overwritten
        assert code == 2


def test_exit_codes_say_what_was_found(tmp_path):
    path, log = tmp_path / "deployment.toml", tmp_path / "steps.csv"
    path.write_text(toml(RECORD, {}))
    code, out, _ = ran("check", path, "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "no claim"
    log.write_text("round,client\n0,a\n")
    assert (
        json.loads(ran("check", path, "--json", "--log", log)[1])["mechanism"]["epsilon"]
        < json.loads(out)["mechanism"]["epsilon"]
    )
    path.write_text(toml(RECORD, {"claim": {"epsilon": 1e-3, "per": "run"}}))
    assert ran("check", path)[0] == 1
    path.write_text(toml(RECORD, {"noise__law": "none"}))
    code, out, _ = ran("check", path)
    assert code == 1
    assert "no epsilon for one record" in out
    assert ran("check", tmp_path / "none.toml")[0] == 2
    assert ran("check")[0] == 2
    assert ran("check", path, "-o", "x.toml")[0] == 2


def test_a_plan_fills_the_blank_noise_and_overwrites_nothing(tmp_path):
    path, out = tmp_path / "deployment.toml", tmp_path / "planned.toml"
    path.write_text(toml(CENTRAL, {"noise__std": "?"}))
    assert ran("plan", path, "--epsilon", "4", "-o", out)[0] == 0
    assert json.loads(ran("check", out, "--json")[1])["everything"]["epsilon"] == pytest.approx(4, rel=1e-3)
    code, _, err = ran("plan", path, "--epsilon", "4", "-o", out)
    assert code == 2
    assert len(err.splitlines()) == 1
    code, text, _ = ran("plan", path, "--epsilon", "4", "--for", "flower-central")
    assert code == 0
    assert '"noise-multiplier" = ' in text
    for words in (("plan", path), ("plan", "--epsilon", "4"), ("plan", path, "--epsilon", "4", "--for", "none")):
        assert ran(*words)[0] == 2


def test_check_imports_no_jax(tmp_path):
    path = tmp_path / "deployment.toml"
    path.write_text(toml(CENTRAL, {}))
    program = (
        "import sys; sys.modules['jax'] = sys.modules['jaxlib'] = sys.modules['flax'] = None\n"
        f"from fedjax_dp.tools.cli import main; sys.exit(main(['check', {str(path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("epsilon ")


def test_the_folder_of_a_run_is_refused_with_the_command_that_reads_it(tmp_path):
    code, _, err = ran("check", tmp_path)
    assert code == 2
    assert "fedjax-dp account --ledger FOLDER" in err
