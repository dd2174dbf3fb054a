"""Which parameters of a model are trained, and the values of those that are not."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_dp.models.low_rank import LowRank
from fedjax_dp.models.origins import Origin
from fedjax_dp.pytrees import checksum, equal


class FrozenValues(NamedTuple):
    """The arrays of a partly frozen model that are not trained; traced."""

    values: Mapping[str, Any]  # of frozen parameters, by path
    start: Mapping[str, Any]  # initial values of trained parameters that are not random, by path
    scale: Any  # alpha / r of low-rank terms, a number


class Frozen:
    """Frozen arrays, compared and hashed by their numbers, so that models can be compared and hashed."""

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
    """The trained part of a network.

    trained   names of parameters that are trained directly;
    low_rank  frozen kernels with low-rank terms;
    origins   of the initial values, frozen ones included; empty if all are random;
    checksum  of the values that `origins` describe: if they are replaced, nothing is known of the new ones.
    """

    trained: tuple[str, ...]
    low_rank: LowRank | None = None
    origins: tuple[Origin, ...] = dataclasses.field(default=(), compare=False)  # another one is no other program
    checksum: str = dataclasses.field(default="", compare=False)
