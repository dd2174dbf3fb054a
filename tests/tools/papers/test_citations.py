"""Papers go by short names that one place cites in full, and by no file number."""

import json
import pathlib
import re

from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import catalogue_tables
from fedjax_dp.tools.papers.citations import CITATIONS, markdown
from fedjax_dp.tools.papers.noise import NOISE_THEOREMS
from fedjax_dp.tools.papers.reproductions.recipe import BEST, read_recipe, recipes
from fedjax_dp.tools.papers.settings import PAPERS

ROOT = pathlib.Path(__file__).parents[3]
NUMBER = re.compile(r"(?<![\w.,])00[0-4](?!\w|[.,]\d)|[A-Za-z](\w*_)?00[0-4](?!\d)")
READ = {".py", ".md", ".toml", ".json", ".ipynb", ".csv"}
KEPT = ("fedjax_dp", "benchmarks", "tests", "notebooks", "*.md", "*.toml")
NOT_PAPERS = (
    r"(RUF|NPY)00\d",  # rules of the linter
    r'"image/png": "[^"]*"',  # pictures in notebooks
)


def test_every_name_of_a_paper_is_cited():
    others = {"moments", "adaptive_clipping"}  # an accountant, and a work that its rows cite
    tables = {"dp_sgd", "niid_bench", "pfl", "flamby"}  # of which tables alone are carried out
    assert set(PAPERS) == {*CITATIONS, *others} - tables
    assert set(NOISE_THEOREMS) < set(CITATIONS)
    folders = list(dict.fromkeys(name.split("/")[0] for name in recipes()))
    assert folders == [*CITATIONS, BEST]
    for name in recipes():
        paper, source = name.split("/")[0], read_recipe(name).source
        assert source.startswith("Best" if paper == BEST else f"{paper}, ")


def test_the_catalogue_cites_every_paper(capsys, monkeypatch):
    for rows in ("entry_rows", "views_rows"):  # which take long
        monkeypatch.setattr(catalogue_tables, rows, list)
    assert f"## Citations\n\n{markdown()}" in printed(capsys, "catalogue")
    cited = json.loads(printed(capsys, "catalogue", "--json"))["citations"]
    assert {paper["name"]: paper["citation"] for paper in cited} == {name: str(p) for name, p in CITATIONS.items()}


def printed(capsys, *arguments):
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


def test_no_paper_goes_by_a_number():
    found = [path for top in KEPT for path in (ROOT.glob(top) if "*" in top else (ROOT / top).rglob("*"))]
    listed = [path.relative_to(ROOT).as_posix() for path in found if path.is_file() and "__pycache__" not in path.parts]
    files = [pathlib.Path(name) for name in listed if pathlib.Path(name).suffix in READ]
    assert len(files) > 300
    assert [name for name in listed if NUMBER.search(name)] == []
    for file in files:
        lines = "\n".join(line for line in (ROOT / file).read_text().splitlines() if "00" in line)
        text = re.sub("|".join(NOT_PAPERS), "", lines)
        assert file.name == "test_citations.py" or not NUMBER.search(text), file


def test_a_number_of_a_paper_is_told_from_others():
    papers = ("paper 000", "000's Lemma", "(004)", "of_003", "lemma1_003", "best/mnist-004", "002/fig8", "seed000_x")
    assert all(map(NUMBER.search, papers))
    assert not any(map(NUMBER.search, ("0.001", "10_000", "4,000", "2004", "1e-3", "0002")))
