"""The pages run: their Python, their doctests, and every command line that they print."""

import ast
import contextlib
import doctest
import io
import pathlib
import re
import shlex
import tomllib

import jax
import numpy as np
import pytest
from helpers import usual

import fedjax_dp as fdp
from fedjax_dp import display
from fedjax_dp.accounting import Adjacency, GaussianSteps, Poisson, WithoutReplacement, epsilon_of
from fedjax_dp.experiments.build import build_algorithm
from fedjax_dp.experiments.config import RunSpec, read
from fedjax_dp.experiments.population import build_data
from fedjax_dp.sweeps.plan import expand, read_sweep
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli.commands import COMMANDS, INSTALL, options_of_command
from fedjax_dp.tools.cli.options import HELP

ROOT = pathlib.Path(__file__).parent.parent
WRITTEN = ("api", "gallery", "_build", "extending")  # by a build, or tested by test_extending
PAGES = {
    str(path.relative_to(ROOT / "docs")): path.read_text()
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if not {*path.relative_to(ROOT / "docs").parts[:1]}
    & {*WRITTEN, "catalogue.md", "results.md", "systems.md", "own.md"}
}
OF_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES |= {name: (ROOT / name).read_text() for name in OF_ROOT}
FIRST = ["concepts/parts.md"]  # of the default tests; the others are slow
BY_HAND = {  # blocks of which another test runs the like, or a notebook
    "getting_started.md": [0],  # that of the README
    "guides/coming_from.md": [1, 4],  # a Guarantee that is compared below; other numbers of the block before
    "guides/part_of_a_model.md": [0],
    "guides/runs.md": [0],  # as test_own_ways
    "guides/sweep.md": [0],
}


def blocks(text, *languages):
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```\s*$", text, re.DOTALL | re.MULTILINE)
    return [code for language, code in fences if language in languages]


RUNNABLE = [  # that of the README is tested in test_readme
    (name, number)
    for name, text in PAGES.items()
    for number in range(len(blocks(text, "python")))
    if name != "README.md"
]


def marks(name, number):
    return pytest.mark.exhaustive if number in BY_HAND.get(name, ()) else [pytest.mark.slow] * (name not in FIRST)


@pytest.mark.parametrize(("name", "number"), [pytest.param(*one, marks=marks(*one)) for one in RUNNABLE])
def test_python_on_a_page_runs(name, number):
    code, output = blocks(PAGES[name], "python")[number], io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, f"{name}, block {number + 1}", "exec"), {"__name__": "page"})
    assert output.getvalue() or "def test_" in code or isinstance(ast.parse(code).body[-1], ast.ClassDef)


def test_the_network_of_texts_is_blind_to_padding_and_trains():
    names = {}
    exec(blocks(PAGES["guides/tables.md"], "python")[0], names)
    short, padded = np.array([[5, 7]]), np.array([[5, 7, 0, 0]])
    network = names["Bag"](classes=2, words=9)
    params = network.init(jax.random.key(0), short)
    np.testing.assert_allclose(network.apply(params, short), network.apply(params, padded), rtol=1e-6)
    slopes = jax.grad(lambda params: network.apply(params, short)[0, 0])(params)
    assert all(np.any(slope != 0) for slope in jax.tree.leaves(slopes))


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if blocks(text, "pycon")])
def test_doctests_on_a_page_print_what_they_say(name):
    runner = doctest.DocTestRunner()
    for block in blocks(PAGES[name], "pycon"):
        runner.run(doctest.DocTestParser().get_doctest(block, {}, name, name, 0))
    assert runner.tries > 0
    assert runner.failures == 0


def commands(text):
    """Command lines of the program in the shell blocks of a page, without comments."""
    lines = "\n".join(blocks(text, "sh", "", "yaml")).replace("\\\n", " ").splitlines()
    for line in lines:
        for part in re.split(r"&&|>|\|\s", line):
            if match := re.search(r"(?:^|\s|: )(fedjax-dp .*)", part):
                yield shlex.split(match.group(1), comments=True)[1:]


COMMAND_LINES = [(name, words) for name, text in PAGES.items() for words in commands(text)]


@pytest.mark.parametrize(("name", "words"), COMMAND_LINES, ids=str)
def test_a_command_on_a_page_has_known_flags(name, words):
    assert len(COMMAND_LINES) > 40
    command, rest = words[0], words[1:]
    assert command in COMMANDS or command in ("help", INSTALL)
    options = options_of_command(command).values() if command in COMMANDS else ()
    known = {*(option.flag for option in options), *(option.about.short for option in options), *HELP, "--its-option"}
    for word in rest:
        flag = word.partition("=")[0]
        assert not flag.startswith("--") or flag in known, f"{name}: {flag} of {command}"


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_to_files_of_the_repository(name):
    """As they are followed where the pages are read without the site, which leads some of them to pages of its own."""
    base = ROOT if name in OF_ROOT else (ROOT / "docs" / name).parent
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", PAGES[name])
    assert not [link for link in links if "://" not in link and not (base / link).exists()]


def test_pages_install_from_a_copy_and_name_extras_that_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for text in PAGES.values() for line in re.findall(r"pip install ([^\s#`]+)", text)]
    assert len(lines) > 5
    for line in lines:
        name, _, listed = line.strip('"').rstrip("]").partition("[")
        assert name == "."
        assert not listed or {*listed.split(",")} <= {*extras}, line


def test_the_three_epsilons_of_the_same_noise_are_those_that_the_page_says():
    stated = [float(number) for number in re.findall(r"\d\.\d+", PAGES["epsilon.md"].split("depending on")[0])]
    ways = (
        (Poisson(0.01), Adjacency.ADD_REMOVE),
        (Poisson(0.01), Adjacency.REPLACE_ONE),
        (WithoutReplacement(100, 10_000), Adjacency.REPLACE_ONE),
    )
    epsilons = [epsilon_of(GaussianSteps(2.0, sampling, adjacency, 1000), 1e-5) for sampling, adjacency in ways]
    assert stated == [pytest.approx(epsilon, abs=0.006) for epsilon in epsilons]


def test_the_epsilon_of_flowers_defaults_is_that_of_cohorts_of_a_fixed_size():
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits, 10))
    steps = {"batch_size": 16, "local_steps": 10, "learning_rate": 0.3, "clip_norm": 0.5, "noise_multiplier": 0.5}
    for cohort, words in (("uniform", "here it is {} at delta 0.01"), ("poisson", "which would give {}")):
        algorithm = fdp.dp_fedavg(cohort_size=5, cohort=cohort, **steps)
        promise = fdp.guarantee(algorithm, data, rounds=3, delta=1e-2)
        assert words.format(display.upward(promise.epsilon)) in PAGES["guides/coming_from.md"]


def test_the_epsilons_of_opacus_settings_are_those_of_both_accountants():
    steps = GaussianSteps(1.1, Poisson(1 / 23), Adjacency.ADD_REMOVE, 90)  # 1,437 records in batches of 64
    page = PAGES["guides/coming_from.md"]
    assert f"has epsilon {epsilon_of(steps, 1e-4):.4g}. " in page
    assert f'`accountant="rdp"` gives {epsilon_of(steps, 1e-4, "rdp"):.3g}, ' in page


SCRIPTS = [
    "getting_started.md",
    "guides/accounting.md",
    "guides/deployment.md",
    "guides/personalise.md",
    "guides/runs.md",
]
SHORT = ["guides/accounting.md"]  # other pages take half a minute; their flags are read by default
SHORTER = {"run": ["--rounds", "1"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(SCRIPTS, SHORT))
def test_commands_of_a_page_run_one_after_the_other(name, capsys):
    """As they stand, but for fewer rounds, digits for MNIST, and files that are the reader's."""
    rng = np.random.default_rng(0)
    x, y, who = rng.normal(size=(200, 4)), rng.integers(0, 2, 200), np.arange(200) // 40
    arrays = {"x_train": x, "y_train": y, "client_ids": who, "x_test": x[::5], "y_test": y[::5]}
    np.savez("mine.npz", **{key: a.astype(np.float32) if a.dtype == float else a for key, a in arrays.items()})
    rows = [f"{','.join(map(repr, map(float, record)))},{label},{owner}" for record, label, owner in zip(x, y, who)]
    pathlib.Path("mine.csv").write_text("\n".join(["a,b,c,d,y,who", *rows]))
    visits = [f"{x[row, 0]:.3f},{y[row]},{who[row]},{row // 5}" for row in range(len(x))]
    pathlib.Path("visits.csv").write_text("\n".join(["a,y,hospital,patient", *visits]))
    pathlib.Path("config.toml").write_text("noise_multiplier = 2.0\nrounds = 1\n")
    for words in (words for page, words in COMMAND_LINES if page == name):
        if any(word.isupper() or word.startswith(("SWEEP", "sweeps/")) for word in words):
            continue  # a file that only the reader has
        short = [] if {"--rounds", "--resume", "--help"} & {*words} else [*SHORTER.get(words[0], [])]
        if words[-2:] == ["--dataset", "mnist"]:
            short += ["--out", "runs/mnist"]
        words = ["digits" if word == "mnist" else word for word in words]
        try:
            code = cli.main([*words, *short])
        except SystemExit as stop:  # after --help
            code = stop.code
        assert code == 0, (words, capsys.readouterr().err)


def test_the_sweep_that_is_shown_can_be_read(tmp_path):
    grid, search = blocks(PAGES["guides/sweep.md"], "toml")
    (tmp_path / "sweep.toml").write_text(grid)
    assert len(expand(read_sweep(tmp_path / "sweep.toml"))) == 3 * 4 * 3 * 3 * 5
    assert len(expand(read_sweep(tmp_path / "sweep.toml", halving=3))) == 3 * 4 * 3 * 3 * 5
    (tmp_path / "search.toml").write_text(search)
    assert read_sweep(tmp_path / "search.toml", search="tpe", trials=20).varying_fields[0] == "learning_rate"


def test_the_configuration_that_is_shown_is_one(tmp_path):
    (text,) = blocks(PAGES["guides/runs.md"], "toml")
    (tmp_path / "config.toml").write_text(text.replace('"mnist"', '"digits"').replace("50", "5"))
    config = RunSpec.of(read(tmp_path / "config.toml"))
    data = build_data(config.data)
    assert build_algorithm(config, data).cohort.capacity(len(data.sizes)) == 5
