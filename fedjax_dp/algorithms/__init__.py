"""Every algorithm by its name in the papers: a short constructor that fills the slots of `Algorithm`.

All take the options of `Common` by keyword, whose slots take names or parts. The signature and decorator of an entry
show its further options and its own defaults. Every variant that the papers or their published code leave open is an
option.
"""

from typing import Any

from fedjax_dp.algorithms import client_level, non_private, personalised, record_level
from fedjax_dp.algorithms.assemble import BOUNDS, COMMON, RUN_OPTIONS, Common, assemble
from fedjax_dp.algorithms.entry import Entry, PrepareContext, entry

__all__ = [
    "BOUNDS",
    "CATALOGUE",
    "COMMON",
    "PERSONAL",
    "RUN_OPTIONS",
    "Common",
    "Entry",
    "PrepareContext",
    "assemble",
    "entry",
    "optimal_probabilities",
]

CATALOGUE: dict[str, Entry[Any]] = {
    member.name: member
    for module in (non_private, record_level, client_level, personalised)
    for member in vars(module).values()
    if isinstance(member, Entry)
}

PERSONAL = tuple(
    name for name, member in CATALOGUE.items() if vars(personalised).get(name) is member
)  # personal models


def __getattr__(name: str) -> Any:
    """An entry by its name: a new entry needs no list of imports."""
    if name == "optimal_probabilities":
        from fedjax_dp.algorithms.importance_sampling import optimal_probabilities  # loads JAX

        return optimal_probabilities
    if name not in CATALOGUE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return CATALOGUE[name]


def __dir__() -> list[str]:
    return sorted([*__all__, *CATALOGUE])
