"""The epsilon of every committed row is derived again from its configuration; a doctored one is found."""

import functools
import json
import pathlib

import pytest

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.experiments.build import planned_of
from fedjax_dp.experiments.population import build_data
from fedjax_dp.privacy.guarantees import prepare
from fedjax_dp.tools.papers.reproductions import tables
from fedjax_dp.tools.papers.reproductions.cells import Cell, CellKey
from fedjax_dp.tools.papers.reproductions.recipe import read_recipe
from fedjax_dp.tools.papers.reproductions.reproduce import _of_the_schedule

PAPERS = pathlib.Path(__file__).parents[3] / "benchmarks" / "results" / "papers"


def private_rows(table):
    """The readings of rows with an epsilon, and their configurations."""
    rows = {(row["panel"], row["line"], row["x"]): row for row in table["rows"]}
    for configuration in table["configurations"]:
        row = rows.get((configuration["panel"], configuration["line"], configuration["x"]), {})
        reading = row.get(configuration["reading"])
        if reading is not None and reading["private"] and reading["epsilon"] is not None:
            yield configuration, reading


def epsilon_of(configuration, seeds):
    """The epsilon that the configuration of a row proves, of the worst client and seed."""
    cell = Cell(
        CellKey(configuration["panel"], configuration["line"], configuration["x"]),
        configuration["reading"],
        configuration["fields"],
    )
    data_of = functools.cache(build_data)

    def planned(cell, seed):
        config = cell.config(seed)
        return planned_of(config, data_of(config.data))

    of_schedule = _of_the_schedule([cell], seeds, planned)
    return of_schedule.get(cell.key) or max(prepare(planned(cell, seed)).guarantee.epsilon for seed in seeds)


def differing(table, some=slice(None)):
    """Rows that promise less than what their configuration proves, or, if this version wrote them, anything else."""
    wrong = []
    for configuration, reading in list(private_rows(table))[some]:
        proved, stored = epsilon_of(configuration, table["seeds"]), reading["epsilon"]
        alike = proved == pytest.approx(stored, rel=1e-3)
        if not (alike or (proved < stored and table["versions"]["fedjax-dp"] != fdp.__version__)):
            wrong.append(
                (
                    configuration["panel"],
                    configuration["line"],
                    configuration["x"],
                    configuration["reading"],
                    stored,
                    proved,
                )
            )
    return wrong


def read(name):
    return json.loads((PAPERS / name / "table.json").read_text())


NAMES = [path.parent.name for path in sorted(PAPERS.glob("*/table.json")) if any(private_rows(read(path.parent.name)))]


def test_tables_in_markdown_are_those_of_the_numbers():
    """With every epsilon rounded up."""
    for file in PAPERS.glob("*/table.json"):
        content = json.loads(file.read_text())
        written = tables.markdown(content, read_recipe(content["recipe"]).titles)
        assert file.with_name("table.md").read_text() == written, file.parent.name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[::4])
def test_a_row_promises_what_its_configuration_proves(name):
    try:
        assert differing(read(name), slice(1)) == []
    except errors.MissingDataError as reason:
        pytest.skip(str(reason))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_every_row_promises_what_its_configuration_proves(name):
    try:
        assert differing(read(name)) == []
    except errors.MissingDataError as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
def test_a_doctored_row_is_found():
    table = read("cpfed-fig6")
    _, reading = next(private_rows(table))
    reading["epsilon"] *= 0.99
    try:
        assert len(differing(table, slice(1))) == 1
    except errors.MissingDataError as reason:
        pytest.skip(str(reason))
