"""Notebooks run from top to bottom, at tiny scale, with public names only, and show what they found."""

import ast
import importlib
import json
import os
import pathlib
import re

import pytest
from helpers import usual

import fedjax_dp as fdp
from fedjax_dp import accounting
from fedjax_dp.tools import testing

PUBLIC = {"fdp": fdp, "accounting": accounting, "testing": testing}
FOLDER = pathlib.Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
IN_CI = ("quickstart",)  # others show what pages do that CI runs


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


@pytest.mark.slow
@pytest.mark.parametrize("name", usual([path.stem for path in NOTEBOOKS], IN_CI))
def test_it_runs_at_tiny_scale(name, tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("FEDJAX_DP_TINY", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONWARNINGS", "default")  # of what the kernel imports
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": os.fspath(tmp_path)}}
    )
    client.execute()
    assert any("image/png" in o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", []))


OWN_WAY = """
import warnings
warnings.simplefilter("error", UserWarning)
import matplotlib
before = matplotlib.get_backend()
import numpy as np
import fedjax_dp as fdp
rng = np.random.default_rng(0)
x, y = rng.normal(size=(300, 4)), rng.integers(0, 2, 300)
data = fdp.federate(fdp.dataset(x[:200], y[:200], x[200:], y[200:]), np.arange(200).reshape(10, 20))
algorithm = fdp.fedavg(cohort_size=5, batch_size=4, local_steps=2, learning_rate=0.1)
result = fdp.run(algorithm, data, rounds=5, progress=True)
found = fdp.sweep(algorithm, data, rounds=5, axes={"learning_rate": [0.1, 0.2]})
assert matplotlib.get_backend() == before
"""


@pytest.mark.slow
def test_progress_is_a_bar_of_the_cell_and_values_are_tables(tmp_path):
    import nbclient
    import nbformat

    cells = [OWN_WAY, "data", "algorithm", "result", "found", "found.plot(kind='axis', x='learning_rate')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    shown = []  # every message to the browser
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": os.fspath(tmp_path)}}
    )
    process = client.process_message

    def watch(message, *others):
        shown.append(message)
        return process(message, *others)

    client.process_message = watch
    client.execute()
    bars = [m for m in shown if m["msg_type"] == "update_display_data" and "<progress" in str(m["content"])]
    assert bars, "no bar was shown"
    left = notebook.cells[0].outputs
    assert not [out for out in left if out.get("name") == "stderr" and "arning" in out["text"]]
    assert "<progress" not in str(left), "a bar stays behind"
    for cell in notebook.cells[1:5]:
        assert "<table" in cell.outputs[-1]["data"]["text/html"]
        assert len(cell.outputs[-1]["data"]["text/plain"].splitlines()) <= 20
    assert "image/png" in notebook.cells[5].outputs[-1]["data"]
