"""Full citations of the papers whose theorems, tables and figures are reproduced here.

Elsewhere they have short names: in text ("cpfed, Theorem 1", "dpnfl's Lemma 2"), as recipes ("dpnfl/table2"), noise
rules and choices of a command. Other works are cited by authors and year where they are used.

>>> CITATIONS["cpfed"].short
'Hu et al. 2020'
"""

import dataclasses
import importlib.resources
import tomllib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Paper:
    """A publication; uncertain fields are None."""

    name: str  # its short name here
    authors: tuple[str, ...]
    title: str
    venue: str | None = None
    year: int | None = None
    doi: str | None = None

    @property
    def short(self) -> str:
        """Authors and year."""
        family = self.authors[0].split()[-1]
        return f"{family} et al." + ("" if self.year is None else f" {self.year}")

    def __str__(self) -> str:
        parts = (self.venue, self.year, self.doi and f"doi {self.doi}")
        place = ", ".join(str(part) for part in parts if part is not None)
        return f"{', '.join(self.authors)}: {self.title}." + (f" {place}." if place else "")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"short": self.short, "citation": str(self)}


_WRITTEN = tomllib.loads(
    importlib.resources.files("fedjax_dp.tools.papers").joinpath("citations.toml").read_text("utf-8")
)
CITATIONS = {name: Paper(name, **fields | {"authors": tuple(fields["authors"])}) for name, fields in _WRITTEN.items()}


def markdown() -> str:
    """All papers as a list, as the README shows it."""
    return "\n".join(f"* `{paper.name}`: {paper}" for paper in CITATIONS.values())
