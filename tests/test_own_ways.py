"""The page on data, network, optimizer, correction and budget of one's own: short, and both ways on it end alike."""

import json
import pathlib
import re
import shlex
import sys

import numpy as np
import pytest
from helpers import command_output, refusal

import fedjax_dp as fdp
from fedjax_dp.pytrees import equal
from fedjax_dp.tools import cli

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own.md").read_text()
MINE, NOTEBOOK, TERMINAL = re.findall(r"```(?:python|sh)\n(.*?)```", PAGE, re.DOTALL)
WORDS = shlex.split(TERMINAL.replace("\\\n", ""))


@pytest.fixture(autouse=True)
def own_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which a file of the same size and second is taken from
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    pathlib.Path("mine.py").write_text(MINE)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = (rng.normal(size=(400, 5)) + 2 * np.eye(5)[y]).astype(np.float32)
    ids = np.arange(300) % 6
    np.savez("mine.npz", x_train=x[:300], y_train=y[:300], client_ids=ids, x_test=x[300:], y_test=y[300:])


def test_the_page_is_short_linked_and_the_notebook_shows_the_same():
    assert len(PAGE.splitlines()) <= 80
    assert max(map(len, PAGE.splitlines())) <= 120
    for block in (MINE, NOTEBOOK, TERMINAL):
        assert len(list(filter(str.strip, block.splitlines()))) <= 25
    for other in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / other).is_file(), other
    assert "(docs/own.md)" in (ROOT / "README.md").read_text()
    cells = json.loads((ROOT / "notebooks" / "own.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    assert f"%%writefile mine.py\n{MINE}".strip() in sources
    assert NOTEBOOK.strip() in sources


@pytest.mark.slow
def test_both_ways_end_in_the_same_model_and_the_same_guarantee(capsys):
    names = {}
    exec(compile(NOTEBOOK, "own.md", "exec"), names)
    told = re.search(r"accuracy (0\.\d{3})\nepsilon 8 at delta 0.001", capsys.readouterr().out)
    assert cli.main(WORDS[1:]) == 0
    out = capsys.readouterr().out
    assert f"test accuracy {told[1]}" in out
    assert "Leash (correction) is trusted" in out
    first, second = fdp.open_run("notebook", model=names["model"]), fdp.open_run("terminal")
    assert first.guarantee == second.guarantee
    assert first.history == second.history
    assert equal(first.params, second.params)
    again = fdp.resume("notebook", names["algorithm"], names["data"], model=names["model"])
    assert again.finished
    assert cli.main(["run", "--resume", "terminal"]) == 0


def by_notebook(mine=MINE, way=NOTEBOOK):
    """The line that a mistake ends in."""
    pathlib.Path("mine.py").write_text(mine)
    return refusal(exec, compile(way, "own.md", "exec"), {})


def by_terminal(capsys, mine=MINE, words=WORDS):
    pathlib.Path("mine.py").write_text(mine)
    capsys.readouterr()
    assert cli.main(words[1:]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedjax-dp: ")]
    return line.removeprefix("fedjax-dp: ")


LEASH = "(Leash(strength=strength),)"
GRADIENT = "def gradient(self, gradient, params, step, client, records)"
TERM = "gradient + self.strength * away / (1.0 + jnp.linalg.norm(away))"
SERVER = re.search(r"fdp\.parts\.Server\(.*\)", MINE)[0]


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        (
            "nn.Dense(self.classes)",
            "nn.Dense(7)",
            "scores of the model must be (3,), as the loss of task classes takes them, got (7,); give",
        ),
        ("nn.Dense(16)(x)", "nn.BatchNorm(use_running_average=False)(x)", "use GroupNorm or LayerNorm instead"),
        (
            '@entry("me")',
            "@entry",
            'entry must be called, got the function mine; write @entry("Somebody 2026") above it',
        ),
        (
            "@fdp.value\n",
            "",
            "Leash.__init__() takes exactly one argument (the instance to initialize); put @fdp.value",
        ),
        ("@fdp.value\n", "", "mine must be made without an error, got mine.py line 29: TypeError: "),
        (
            "(fdp.parts.Correction)",
            "",
            "correction must be a value that follows fedjax_dp.parts.Correction, got Leash, which",
        ),
        (
            LEASH,
            "(Leash,)",
            "corrections must be a value that follows fedjax_dp.parts.Correction, got the class Leash; write",
        ),
        (LEASH, LEASH[1:-2], "corrections must be a tuple of parts, got Leash; put it into one: (part,)"),
        (SERVER, "optax.adam(0.05)", "give its function and its numbers separately: fedjax_dp.parts.Server("),
        ("assemble(common, ", "assemble(", "got mine.py line 30: TypeError: assemble() missing 1 required positional"),
        ("return assemble", "assemble", "mine must be a function that returns an Algorithm, got NoneType"),
        (
            GRADIENT,
            "def grad(self, gradient, params, step, client, records)",
            "got Leash, which lacks gradient (is grad meant?); implement what it lacks",
        ),
        (
            GRADIENT,
            "def gradient(self, gradient)",
            "got Leash, which lacks gradient(gradient, params, step, client, records); implement what it lacks",
        ),
        (
            TERM,
            "jnp.linalg.norm(away)",
            "gradient of Leash must be of shape (147,), as its argument, got shape (); return",
        ),
        pytest.param(
            TERM,
            "gradient + client.received.client_state",
            "no round can be traced: mine.py line 23: TypeError: ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TERM,
            "gradient + records.x.sum()",
            "(Leash.gradient), past what is accounted for; use that gradient only",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_in_the_file_is_the_same_line_both_ways(right, wrong, line, capsys):
    assert MINE.count(right) == 1
    mine = MINE.replace(right, wrong)
    told = by_terminal(capsys, mine)
    assert line.replace("@fdp.", "@fedjax_dp.") in told
    assert told.endswith(by_notebook(mine))
    assert {path.name for path in pathlib.Path().iterdir()} == {"mine.py", "mine.npz"}


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("npz:mine.npz", "npz:min.npz", "npz file must be an existing file, got min.npz; did you mean mine.npz?"),
        ("npz:mine.npz", "mine.npz", "dataset must be npz:PATH for a file, got 'mine.npz'; write npz:mine.npz"),
        ("cohort_size=3", "cohort_size=30", "cohort_size must be at most the 6 clients, got 30; lower cohort_size"),
        ("strength=0.2", "strenght=0.2", "got '{}strenght'; did you mean {}strength?"),
    ],
)
def test_a_mistake_in_a_call_is_the_same_line_both_ways(right, wrong, line, capsys):
    assert line.format("", "") in by_notebook(way=NOTEBOOK.replace(right, wrong))
    name, equals, value = right.partition("=")
    flag = f"--{name.replace('_', '-')} {value}" if equals else right
    other = f"--{wrong.partition('=')[0].replace('_', '-')} {wrong.partition('=')[2]}" if equals else wrong
    words = shlex.join(WORDS).replace(flag, other)
    assert words != shlex.join(WORDS)
    assert line.format("--", "--") in by_terminal(capsys, words=words.split())


@pytest.mark.slow
def test_ids_that_are_missing_and_numbers_that_nobody_gave_are_told(capsys):
    held = dict(np.load("mine.npz"))
    del held["client_ids"]
    np.savez("mine.npz", **held)
    assert "client_ids must be given, got nothing; name the owner of each record, or deal them" in by_notebook()
    told = command_output(capsys, "run", "--dataset", "npz:mine.npz", "--algorithm", "fedavg", "--rounds", "1").err
    assert "nobody says whose records they are: dealt to 10 clients; client_ids in the file would" in told
    assert "not set, so defaults are used: num_clients 10" in told


def test_an_entry_without_noise_and_a_plain_function_are_told_on_the_command_line(capsys):
    plain = MINE.replace(" noise_multiplier: float = 0.0,", "").replace(
        "noise_multiplier=noise_multiplier", "noise_multiplier=1"
    )
    assert "give it an option noise_multiplier: docs/extending/entry.md" in by_terminal(capsys, plain)
    assert "put @fedjax_dp.algorithms.entry() above" in by_terminal(capsys, MINE.replace('@entry("me")\n', ""))


@pytest.mark.exhaustive
def test_a_folder_that_exists_and_what_changed_since_are_told(capsys):
    short, going_on = NOTEBOOK.replace("rounds=20", "rounds=2"), 'fdp.resume("notebook", algorithm, data, model=model)'
    exec(compile(short, "own.md", "exec"), {})
    assert cli.main([word if word != "20" else "2" for word in WORDS[1:]]) == 0
    again = "out must be a new or empty folder, got notebook; give another out, or go on with it: resume('notebook',"
    assert again in by_notebook(way=short)
    assert "got terminal; give another out, or --resume terminal" in by_terminal(capsys)
    resumed = re.sub(r"result = .*\n(.*\n)*", going_on, NOTEBOOK)
    exec(compile(resumed, "own.md", "exec"), {})
    other = MINE.replace("nn.Dense(16)", "nn.Dense(17)")
    resume = ["fedjax-dp", "run", "--resume", "terminal"]
    for finished in (True, False):
        assert "code in mine.py of the run must be unchanged" in by_terminal(capsys, other, resume)
        for mine, name in ((other, "Net"), (MINE.replace(TERM, f"2 * {TERM}"), "Leash")):
            sys.modules.pop("mine")
            assert f"code of {name} of the run must be unchanged" in by_notebook(mine, resumed)
        if finished:
            for way in ("notebook", "terminal"):
                pathlib.Path(way, "result.json").unlink()
    pathlib.Path("mine.py").write_text(MINE)
    sys.modules.pop("mine")
    exec(compile(resumed, "own.md", "exec"), {})
    assert cli.main(resume[1:]) == 0
