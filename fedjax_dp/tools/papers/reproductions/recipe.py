"""Recipes: one TOML file for every table or figure, with the published numbers, and no code.

    title, source      of the table or figure; `source` names the paper and the place in it
    like               another recipe, whose keys and tables hold here too where none is written, all but [published];
                       a panel, line or published panel that is empty here is the one of that recipe
    like               in a panel or line: another one, above it or in that recipe, whose keys hold where none is
                       written; in another table: a recipe, whose table of this name does so
    figure             "final" (one value per line), "rounds" (curves), "along" (against a number) or "features"
    metrics            what is shown, see `measures`; published numbers are of the first
    open               what the paper leaves open, and what stands here instead
    along, values      figure "along": the field that varies with its values; or tables of fields, each with an `x`
    impossible         remarks, each with a `statement`, why a number cannot be reached, and the `panels` and `lines`
                       that it is about
    claims             what the paper says of the order of two lines, by its first metric: a `statement`, with lines
                       `better` and `than`; or `better_x` and `than_x` of the same line. `by` is the least distance,
                       `metric`, `panels` and `lines` narrow it, `reading` and `than_reading` (or "published") cross
                       readings
    [base]             fields of all runs (`fedjax-dp run --help`)
    [literal], [correct]   fields of a reading: the paper's own recipe, and the rigorous one
    [panels.KEY]       a group of lines: `title`, fields, and if need be `along`, `values`, `literal`, `correct`, and
                       `records`, the training records below which the data at hand is not the paper's
    [lines.KEY]        a method: `title`, fields, `literal`, `correct`, `panels` (only these), `without` (fields that it
                       leaves out), and `chosen`: it takes the search's fields and choice, in the correct reading alone
    [published.PANEL]  LINE = mean, [mean, standard deviation], or a table by x
    [search]           of what this project chooses: `axes`, `seeds`, `trials`, `law` of their number, `fields`
    [smoke], [small], [full]   seeds, `values`, `panels`, `lines` (how much is taken), `search` (what replaces parts of
                       [search]) and fields of a scale, which the search does not vary then

Later ones win: base, panel, fields of the search, line, what was chosen, reading, the panel's and line's own, scale,
value of `along`. What an algorithm does not take is left out for it. `panels` and `lines` are patterns, as "mnist*".
"""

import dataclasses
import importlib.resources
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedjax_dp import errors
from fedjax_dp.tools.papers.citations import CITATIONS

Fields = dict[str, Any]
READINGS = ("literal", "correct")
SCALES = ("smoke", "small", "full")
BEST = "best"  # this project's best results in the papers' settings
FIGURES = ("final", "rounds", "along", "features")
_OF_PANEL = ("title", "along", "values", "records", *READINGS)
_OF_LINE = ("title", "chosen", "without", "panels", *READINGS)
_OF_SCALE = ("seeds", "values", "search", "panels", "lines")


@dataclasses.dataclass(frozen=True)
class RecipePart:
    """A panel or a line."""

    key: str
    title: str
    fields: Fields
    readings: Mapping[str, Fields]
    options: Fields  # along, values, records; chosen, panels


@dataclasses.dataclass(frozen=True)
class RecipeScale:
    """The scale at which a recipe is run."""

    name: str
    seeds: int
    fields: Fields
    values: int | None = None  # of `along`, evenly spaced
    search: Fields = dataclasses.field(default_factory=dict)
    panels: str = "*"
    lines: str = "*"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A table or a figure of a paper."""

    name: str  # dpnfl/table2
    title: str
    source: str
    figure: str
    metrics: tuple[str, ...]
    open: str
    base: Fields
    readings: Mapping[str, Fields]
    panels: tuple[RecipePart, ...]
    lines: tuple[RecipePart, ...]
    published: Mapping[str, Mapping[str, Any]]
    impossible: tuple[Fields, ...]
    claims: tuple[Fields, ...]
    search: Fields
    scales: Mapping[str, RecipeScale]
    along: str | None = None
    values: tuple[Any, ...] = ()

    @property
    def titles(self) -> dict[str, str]:
        """The titles of panels and lines by their keys."""
        return {group.key: group.title for group in (*self.panels, *self.lines)}

    def changes(self, scale: RecipeScale) -> Fields:
        """The fields that a scale sets differently from the paper."""
        papers = self.scales["full"].fields
        return {name: value for name, value in scale.fields.items() if papers.get(name) != value}

    def comparable(self, scale: RecipeScale) -> bool:
        """Whether results at a scale can be compared with the published ones."""
        return not self.changes(scale).keys() - {"evaluate_every"}


_KEYS = {field.name for field in dataclasses.fields(Recipe)} - {"name", "readings", "scales"} | {*READINGS, *SCALES}


def recipes() -> list[str]:
    """All recipes, by paper, tables after figures; those of BEST at the end."""
    folder = importlib.resources.files("fedjax_dp.tools.papers.reproductions") / "recipes"
    names = [
        f"{paper.name}/{file.name.removesuffix('.toml')}"
        for paper in folder.iterdir()
        if paper.is_dir()
        for file in paper.iterdir()
        if file.name.endswith(".toml")
    ]
    return sorted(names, key=_order)


def _order(name: str) -> tuple[int, str, int]:
    paper, item = name.split("/")
    papers = [*CITATIONS, BEST]
    word = item.rstrip("0123456789")
    number = item[len(word) :]
    return papers.index(paper), word, int(number or 0)


def read_recipe(name: str) -> Recipe:
    """A recipe by name; an unknown name is refused with the nearest one."""
    known = recipes()
    if name not in known:
        near = [other for other in known if name and (name in other or other.endswith(name.split("/")[-1]))][:3]
        near = near or errors.nearest(name, known)
        remedy = f"did you mean {' or '.join(near)}?" if near else ""
        raise errors.refuse("recipe", repr(name), f"one of the {len(known)} that fedjax-dp reproduce lists", remedy)
    return parse(name, _tables(name))


def _tables(name: str) -> Fields:
    """The TOML tables of a recipe, with inherited ones."""
    file = importlib.resources.files("fedjax_dp.tools.papers.reproductions") / "recipes" / f"{name}.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    other = _tables(tables.pop("like")) if "like" in tables else {}
    for kind, table in tables.items():
        if kind in ("panels", "lines", "published"):
            known = dict(other.get(kind, {}))
            for key, group in table.items():
                like = group.pop("like", None if group else key)
                known[key] = table[key] = (known[like] if like else {}) | group
        elif isinstance(table, dict) and "like" in table:
            tables[kind] = _tables(table.pop("like"))[kind] | table
    return {key: table for key, table in other.items() if key != "published"} | tables


def parse(name: str, tables: Mapping[str, Any]) -> Recipe:
    """A recipe from its TOML tables; unknown keys are refused."""
    for key in tables:
        errors.require_choice(f"{name}: a key", key, sorted(_KEYS))
    errors.require_choice(f"{name}: figure", tables["figure"], FIGURES)
    panels = tuple(_group(key, table, _OF_PANEL) for key, table in tables["panels"].items())
    lines = tuple(_group(key, table, _OF_LINE) for key, table in tables["lines"].items())
    recipe = Recipe(
        name=name,
        title=tables["title"],
        source=tables["source"],
        figure=tables["figure"],
        metrics=tuple(tables.get("metrics", ["test_accuracy"])),
        open=tables.get("open", ""),
        base=tables.get("base", {}),
        readings={reading: tables.get(reading, {}) for reading in READINGS},
        panels=panels,
        lines=lines,
        published=tables.get("published", {}),
        impossible=tuple(tables.get("impossible", ())),
        claims=tuple(tables.get("claims", ())),
        search=tables.get("search", {}),
        scales={scale: _scale(scale, tables[scale]) for scale in SCALES},
        along=tables.get("along"),
        values=tuple(tables.get("values", ())),
    )
    for panel, lines_of in recipe.published.items():
        errors.require_choice(f"{name}: published panel", panel, [group.key for group in panels])
        for line in lines_of:
            errors.require_choice(f"{name}: published line", line, [group.key for group in recipe.lines])
    return recipe


def _group(key: str, table: Mapping[str, Any], options: tuple[str, ...]) -> RecipePart:
    return RecipePart(
        key,
        table.get("title", key),
        {name: value for name, value in table.items() if name not in options},
        {reading: table.get(reading, {}) for reading in READINGS},
        {name: table[name] for name in options if name in table and name not in ("title", *READINGS)},
    )


def _scale(name: str, table: Mapping[str, Any]) -> RecipeScale:
    taken = {key: table[key] for key in _OF_SCALE if key in table}
    return RecipeScale(name=name, fields={key: value for key, value in table.items() if key not in _OF_SCALE}, **taken)


def concerns(remark: Mapping[str, Any], panel: str, line: str) -> bool:
    """Whether a remark is about this panel and line."""
    return fnmatchcase(panel, remark.get("panels", "*")) and fnmatchcase(line, remark.get("lines", "*"))


def pairs(recipe: Recipe, scale: RecipeScale, only: str = "*") -> Iterator[tuple[RecipePart, RecipePart]]:
    """The panels and lines that a scale includes."""
    for panel in recipe.panels:
        if fnmatchcase(panel.key, only) and fnmatchcase(panel.key, scale.panels):
            for line in recipe.lines:
                if fnmatchcase(line.key, scale.lines) and fnmatchcase(panel.key, line.options.get("panels", "*")):
                    yield panel, line
