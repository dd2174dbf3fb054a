"""Which parameters of a model are trained, and the values of those that are not."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_dp.models.low_rank import LowRank
from fedjax_dp.pytrees import checksum, same


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
        return f"Frozen({self._checksum})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Frozen) and same(self.values, other.values))

    def __hash__(self) -> int:
        return hash(self._checksum)

    @functools.cached_property
    def _checksum(self) -> str:
        return checksum(self.values)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where values come from that training begins with.

    name      of the file;
    sha256    of its contents;
    trained_on  what it was trained on, in words; None: not known;
    public    whether that holds nothing of these clients. Where it does, the run has no epsilon; None: nobody says it,
              so it is believed unless the file says that it was trained on the same data;
    dataset, records  name and checksum of the records that it was trained on, where the file says them.
    """

    name: str
    sha256: str
    trained_on: str | None = None
    public: bool | None = None
    dataset: str | None = None
    records: str | None = None

    def __str__(self) -> str:
        told = f"{self.name} (sha256 {self.sha256[:12]})"
        return told if self.trained_on is None else f"{told}, trained on {self.trained_on}"


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """What of a network is trained.

    trained   names of parameters that are trained as they are;
    low_rank  kernels that are frozen and have a low-rank term beside them;
    origin    of the values that training begins with; None: they are random.
    """

    trained: tuple[str, ...]
    low_rank: LowRank | None = None
    origin: Origin | None = None
