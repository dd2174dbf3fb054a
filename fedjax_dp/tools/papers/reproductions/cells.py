"""The runs of a recipe: one cell for every panel, line, value and reading, and the sweep of them all."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.data import load
from fedjax_dp.data.reading import NAMES
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.groups import options_of
from fedjax_dp.sweeps.plan import SweepConfig, identity, options_for
from fedjax_dp.tools.papers.reproductions.recipe import READINGS, Fields, Recipe, RecipePart, RecipeScale, pairs


class CellKey(NamedTuple):
    """The place of a number in a table or figure."""

    panel: str
    line: str
    x: float | str | None = None  # value on the axis


Reading = tuple[CellKey, str]


class Cell(NamedTuple):
    """One reading of a place, with the fields of its runs."""

    place: CellKey
    reading: str
    fields: Fields

    @property
    def key(self) -> Reading:
        return self.place, self.reading

    def config(self, seed: int) -> RunSpec:
        """The resolved configuration of one seed."""
        return RunSpec.of(self.fields | {"seed": seed})


def cells_of(
    recipe: Recipe,
    scale: RecipeScale,
    only: str = "*",
    choice: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """All cells of a scale, for panels that match `only`. `choice` is the result of a search."""
    cells = []
    for panel, line in pairs(recipe, scale, only):
        searched = line.options.get("chosen", False)
        for x, value in _values(recipe, panel, scale):
            for reading in ("correct",) if searched else READINGS:
                fields = (
                    recipe.base
                    | panel.fields
                    | (recipe.search["fields"] if searched else {})
                    | line.fields
                    | (dict(choice or {}) if searched else {})
                    | recipe.readings[reading]
                    | panel.readings[reading]
                    | line.readings[reading]
                    | scale.fields
                    | value
                )
                fields = {name: field for name, field in fields.items() if name not in line.options.get("without", ())}
                cells.append(Cell(CellKey(panel.key, line.key, x), reading, _applicable_fields(fields)))
    if not cells:
        raise errors.refuse(
            "panels",
            repr(only),
            "a pattern that a panel of this scale matches",
            "it has " + ", ".join(panel.key for panel in recipe.panels),
        )
    return cells


def _values(recipe: Recipe, panel: RecipePart, scale: RecipeScale) -> list[tuple[float | str | None, Fields]]:
    """The x values of a panel with the fields that they set; a single None if nothing varies."""
    along = str(panel.options.get("along", recipe.along))
    values: Sequence[Any] = panel.options.get("values", recipe.values)
    if not values:
        return [(None, {})]
    if scale.values is not None and len(values) > scale.values:
        last = max(scale.values - 1, 1)
        values = [values[round(at * (len(values) - 1) / last)] for at in range(scale.values)]
    return [
        (value["x"], {name: field for name, field in value.items() if name != "x"})
        if isinstance(value, Mapping)
        else (value, {along: value})
        for value in values
    ]


def _applicable_fields(fields: Fields) -> Fields:
    """The fields that the algorithm takes, with one kind of noise and batches."""
    errors.require_choice("algorithm", fields["algorithm"], CATALOGUE)
    entry, known = CATALOGUE[fields["algorithm"]], options_of()
    for name in fields:
        errors.require_choice("a field of a recipe", name, known)
    fields = options_for(entry, fields)
    unused = set() if entry.private else {"accountant", "participation", "sigma_mode", "view"}
    if fields.get("batches") == "full":
        unused |= {"batch_size"}
    if fields.get("noise_multiplier") is not None:
        unused |= {"epsilon", "epsilon_high"}
    kept = {name: value for name, value in fields.items() if name not in unused}
    return {name: known[name].typed(value) for name, value in kept.items()}  # 1 and 1.0 are the same run


def sweep_of(cells: Sequence[Cell], seeds: Sequence[int], data_dir: str | None) -> SweepConfig:
    """The sweep of all distinct runs among the cells."""
    different = {identity(cell.config(seeds[0])): cell.fields for cell in cells}
    base = {} if data_dir is None else {"data_dir": data_dir}
    return SweepConfig(base=base, points=tuple(different.values()), seeds=tuple(seeds))


def unavailable(recipe: Recipe, cells: Sequence[Cell], data_dir: str | None) -> dict[str, str]:
    """Panels whose data set is missing, with the remedy."""
    needed = {panel.key: panel.options.get("records", 0) for panel in recipe.panels}
    reasons: dict[str, str] = {}
    held: dict[str, int | str] = {}
    for cell in cells:
        panel, dataset = cell.place.panel, cell.fields["dataset"]
        if dataset not in held:
            try:
                reading = {name: field for name, field in cell.fields.items() if name in NAMES}
                held[dataset] = len(load(dataset, data_dir, **reading).y_train)
            except errors.MissingDataError as error:
                held[dataset] = str(error)
        records = held[dataset]
        if isinstance(records, str):
            reasons[panel] = records
        elif records < needed[panel]:
            reasons[panel] = (
                f"dataset {dataset} must be complete, got {records:,} of {needed[panel]:,} training records; put its "
                "whole files into the data folder"
            )
    return reasons
