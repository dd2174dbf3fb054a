"""Notebooks run from top to bottom, at tiny scale, with public names only, and show what they found."""

import ast
import json
import os
import pathlib
import re

import pytest

import fedjax_dp as fdp
from fedjax_dp import accounting, testing

PUBLIC = {"fdp": fdp, "accounting": accounting, "testing": testing}
FOLDER = pathlib.Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path, kind):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def parsed(path):
    return ast.parse("\n".join("".join(cell["source"]) for cell in cells(path, "code")))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_public_names_only_and_no_function_longer_than_a_screen(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in PUBLIC:
            assert node.attr in PUBLIC[node.value.id].__all__
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 40
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedjax_dp"):
            assert node.module == "fedjax_dp"
            assert {name.name for name in node.names} <= PUBLIC.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_show_results_and_no_machine(path):
    shown = [output for cell in cells(path, "code") for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in shown)
    assert all(cell["execution_count"] for cell in cells(path, "code"))
    assert not re.search(r"/[\w.-]+/[\w./-]*\.py\b", path.read_text())  # files of somebody's machine, as warnings name


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_at_tiny_scale(path, tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("FEDJAX_DP_TINY", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONWARNINGS", "default")  # of what the kernel imports
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": os.fspath(tmp_path)}}
    )
    client.execute()
    assert any("image/png" in o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", []))
