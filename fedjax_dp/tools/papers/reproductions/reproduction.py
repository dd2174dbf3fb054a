"""The result of a reproduction."""

import dataclasses
import pathlib
from collections.abc import Mapping

from fedjax_dp.tools.papers.reproductions.cells import Reading
from fedjax_dp.tools.papers.reproductions.features import Cloud
from fedjax_dp.tools.papers.reproductions.recipe import Recipe, RecipeScale
from fedjax_dp.tools.papers.reproductions.rows import ClaimResult, ResultRow


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper, run."""

    recipe: Recipe
    scale: RecipeScale
    seeds: tuple[int, ...]
    rows: tuple[ResultRow, ...]
    claims: tuple[ClaimResult, ...]
    notes: tuple[str, ...]
    folder: pathlib.Path
    clouds: Mapping[Reading, Cloud] = dataclasses.field(default_factory=dict)
