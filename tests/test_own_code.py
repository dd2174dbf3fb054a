"""Models and algorithms in files of the user's own, named on the command line, in TOML and in sweeps."""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import pytest
from helpers import command_refusal

from fedjax_dp import ConfigurationError, folders, own_code
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments.build import RecordFormat, build_model
from fedjax_dp.tools import cli

NET = """
from flax import linen as nn, nnx
import jax, jax.numpy as jnp
import fedjax_dp as fdp
from beside import WIDTH

class Net(nn.Module):
    classes: int
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(nn.relu(nn.Dense(WIDTH)(x.reshape(x.shape[0], -1))))

class Nnx(nnx.Module):
    def __init__(self, classes: int, rngs: nnx.Rngs):
        self.dense = nnx.Linear(64, classes, rngs=rngs)
    def __call__(self, x):
        return self.dense(x.reshape(x.shape[0], -1))

def pair(record_shape, classes):
    def start(key):
        return jnp.zeros((classes, record_shape[0] * record_shape[1]))
    return start, lambda params, x: params @ x.ravel()

made = fdp.mlp((8, 8), 10, (5,))
instance = Net(classes=10)

def wants(classes, width): ...
def fails(classes): raise OSError("no")
"""

MINE = """
import dataclasses
from typing import Unpack
import fedjax_dp as fdp
from fedjax_dp.algorithms import Common, entry

@entry(source="me 2026", presets={"clip_norm": 2.0})
def mine(*, shrink: float = 0.5, clip_norm: float, noise_multiplier: float = 0.0, **common: Unpack[Common]):
    \"\"\"Private steps with smaller rates.

    Args:
        shrink: what rates are multiplied by
        clip_norm: C
        noise_multiplier: z
    \"\"\"
    rate = common.pop("learning_rate") * shrink
    return fdp.dpnfl(clip_norm=clip_norm, noise_multiplier=noise_multiplier, learning_rate=rate, **common)

@entry("me")
def several(*, groups: tuple[int, ...] = (1, 2), **common):
    return fdp.fedavg(**common)

def plain(): ...
"""
QUICK = ["--rounds", "2", "--num-clients", "10", "--cohort-size", "3", "--local-steps", "1", "--checkpoint-every", "1"]
SHAPE = RecordFormat((8, 8), 10, False)


@pytest.fixture(autouse=True)
def own_files(monkeypatch):
    for name, text in (("net.py", NET), ("beside.py", "WIDTH = 7\n"), ("mine.py", MINE)):
        pathlib.Path(name).write_text(text)
    monkeypatch.delitem(sys.modules, "beside", raising=False)


def run(*words):
    return cli.main(["run", *QUICK, *words])


@pytest.mark.parametrize(
    ("name", "kind"), [("Net", "Net"), ("Nnx", "Nnx"), ("pair", "start"), ("instance", "Net"), ("made", None)]
)
def test_what_a_name_stands_for_becomes_a_model(name, kind):
    made = build_model(configs.RunSpec.of({"model": f"net.py:{name}"}), SHAPE)
    assert kind is None or kind in made.network.name or name == "pair"
    assert made == build_model(configs.RunSpec.of({"model": f"net.py:{name}"}), SHAPE)


@pytest.mark.slow
def test_ones_own_network_runs_and_is_held_to_its_files(capsys):
    assert run("--model", "net.py:Net", "--algorithm", "fedavg", "--out", "r") == 0
    about = json.loads(pathlib.Path("r/run.json").read_text())
    assert {"code in net.py", "code in beside.py"} <= set(about["checksums"])
    for file in ("net.py", "beside.py"):
        text = pathlib.Path(file).read_text()
        pathlib.Path(file).write_text(text + "# changed\n")
        assert f"code in {file} of the run must be unchanged" in command_refusal(capsys, "run", "--resume", "r")
        pathlib.Path(file).write_text(text)
    assert cli.main(["run", "--resume", "r"]) == 0
    assert cli.main(["export", "r", "p.safetensors"]) == 0


@pytest.mark.slow
def test_sweeps_vary_an_option_of_ones_own_and_know_the_file(capsys):
    base = {"algorithm": "mine.py:mine", "rounds": 2, "num_clients": 10, "cohort_size": 3}
    text = "seeds = 1\n[base]\n" + folders.toml(base | {"local_steps": 1}) + "[axes]\nshrink = [0.1, 0.5]\n"
    pathlib.Path("sweep.toml").write_text(text)
    assert cli.main(["sweep", "sweep.toml", "--out", "s"]) == 0
    points = [json.loads(line) for line in pathlib.Path("s/points.jsonl").read_text().splitlines()]
    assert [point["values"]["shrink"] for point in points] == [0.1, 0.5]
    assert points[0]["history"] != points[1]["history"]
    pathlib.Path("mine.py").write_text(MINE + "# changed\n")
    assert "a folder of another sweep" in command_refusal(capsys, "sweep", "sweep.toml", "--out", "s")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "net.py:Nut"], "model must be a name in net.py, got net.py:Nut; did you mean Net?"),
        (["--model", "absent.py:Net"], "model must be in a file that exists, got absent.py:Net"),
        (["--model", "net.py"], "model must be FILE.py:NAME, got 'net.py'; such as net.py:Name"),
        (
            ["--model", "net.py:wants"],
            "model must be made of classes, record_shape, key, got net.py:wants, which asks for",
        ),
        (
            ["--model", "net.py:fails"],
            "model must be made without an error, got net.py:fails, which fails: OSError: no",
        ),
        (["--model", "net.py:WIDTH"], "must be"),
        (["--model", "broken.py:x"], "got broken.py line 2: NameError: name 'nothing' is not defined"),
        (["--model", "syntax.py:x"], "got syntax.py line 1: SyntaxError"),
        (["--model", "exits.py:x"], "got exits.py line 1: SystemExit: 3"),
        (["--algorithm", "mine.py:plain"], "algorithm must be an entry, got mine.py:plain, which is function; put @"),
        (["--algorithm", "mine.py:mine", "--shrnk", "1"], "did you mean --shrink?"),
        (["--algorithm", "mine.py:several", "--groups", "1"], "--groups must be left to Python, got a flag; flags are"),
        (["--algorithm", "mine.py:mine", "--shrink", "x"], "--shrink must be a number, got 'x'"),
        (["--shrink", "1.0"], "argument must be an option of fedjax-dp run"),
    ],
)
def test_what_is_no_model_or_entry_is_one_line(words, told, capsys):
    pathlib.Path("broken.py").write_text("\nnothing\n")
    pathlib.Path("syntax.py").write_text("def (\n")
    pathlib.Path("exits.py").write_text("raise SystemExit(3)\n")
    assert told in command_refusal(capsys, "run", *QUICK, *words, "--out", "r")
    assert not pathlib.Path("r").exists()


def test_code_that_fails_while_a_run_is_traced_is_one_line_with_its_place(monkeypatch, capsys):
    pathlib.Path("cohort.py").write_text("def sample(size):\n    return {}['x']\n")
    sample = own_code.own("code", "cohort.py:sample")
    monkeypatch.setattr(cli, "command_of", lambda name: lambda arguments: jax.eval_shape(jax.vmap(sample), jnp.ones(2)))
    expected = "code must be such that it runs without an error, got cohort.py line 2: KeyError: 'x'"
    assert command_refusal(capsys, "run") == f"fedjax-dp: {expected}\n"


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_code_of_an_installed_package_is_not_the_users(folder):
    file = pathlib.Path(folder, "package", "made.py")
    file.parent.mkdir(parents=True)
    file.write_text("def fails():\n    raise KeyError\n")
    with pytest.raises(KeyError) as error:
        own_code.own("code", f"{file}:fails")()
    assert not any(folder in frame.filename for frame in own_code.own_frames(error.value))


def test_checksums_follow_imports_of_files_beside():
    pathlib.Path("a.py").write_text("import b, os\n")
    pathlib.Path("b.py").write_text("from a import x\nfrom c.d import e\n")
    assert set(own_code.checksums("a.py:x", "dpnfl", None)) == {"a.py", "b.py"}
    with pytest.raises(ConfigurationError):
        own_code.checksums("none.py:x")
