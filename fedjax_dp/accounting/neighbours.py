"""Protected units and adjacencies, and the error for events that no theorem covers."""

import enum

from fedjax_dp import errors


class NotCoveredError(errors.ConfigurationError):
    """An accountant has no theorem for an event, so it gives no number rather than one that is too small."""

    @property
    def reason(self) -> str:
        """The reason, without the remedy."""
        return str(self).partition("; ")[0]


class Unit(enum.Enum):
    """The protected unit."""

    RECORD = "record"
    CLIENT = "client"
    USER = "user"  # a person with a bounded number of records
    TEXT = "text"  # with all windows that it is cut into
    TOKEN = "token"  # with all windows over it

    def __str__(self) -> str:
        return {
            Unit.RECORD: "record of one client",
            Unit.CLIENT: "client with all its records",
            Unit.USER: "user with all their records",
            Unit.TEXT: "text with all its windows",
            Unit.TOKEN: "token with all windows over it",
        }[self]

    @property
    def of_records(self) -> bool:
        """Whether the unit is a bounded group of several records."""
        return self not in (Unit.RECORD, Unit.CLIENT)


class Adjacency(enum.Enum):
    """Which two datasets are neighbours."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"  # what one member contributes is zero instead; it is counted and drawn as before

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of a sum of vectors of norm at most 1: 2 for replace-one, else 1."""
        return 2.0 if self is Adjacency.REPLACE_ONE else 1.0
