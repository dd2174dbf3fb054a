"""Which parameters of a model are trained, and the values of those that are not."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_dp.models.low_rank import LowRank
from fedjax_dp.models.origins import Origin
from fedjax_dp.pytrees import checksum, equal


class FrozenValues(NamedTuple):
    """What a partly frozen model uses and never trains; arrays, traced."""

    values: Mapping[str, Any]  # of parameters that are not trained, by path
    start: Mapping[str, Any]  # of parameters that are, before round 0, where they do not begin at random
    scale: Any  # alpha / r of low-rank terms, a number


class Frozen:
    """Arrays that a model uses and never trains, by their numbers, so that models can be compared and hashed."""

    def __init__(self, values: FrozenValues):
        self.values = values

    def __repr__(self) -> str:  # the same for the same numbers
        return f"Frozen({self.checksum})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Frozen) and equal(self.values, other.values))

    def __hash__(self) -> int:
        return hash(self.checksum)

    @functools.cached_property
    def checksum(self) -> str:
        return checksum(self.values)


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """What of a network is trained.

    trained   names of parameters that are trained as they are;
    low_rank  kernels that are frozen and have a low-rank term beside them;
    origins   of the values that training begins with, frozen ones too; none: all are random;
    checksum  of the values that `origins` are about: of others put in their place nothing is known.
    """

    trained: tuple[str, ...]
    low_rank: LowRank | None = None
    origins: tuple[Origin, ...] = dataclasses.field(default=(), compare=False)  # another one is no other program
    checksum: str = dataclasses.field(default="", compare=False)
