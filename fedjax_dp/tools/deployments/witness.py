"""Facts to read, with a note of which were read: so nobody has to list what a rule reads, and nothing is forgotten."""

from typing import Any, TypeVar, cast

from fedjax_dp.tools.deployments.description import Facts

F = TypeVar("F", bound=Facts)


class Witness:
    """Facts that add to a set the names of those that are read."""

    def __init__(self, facts: Facts, seen: set[str]) -> None:
        self._facts, self._seen = facts, seen

    def __getattr__(self, name: str) -> Any:
        kind = type(self._facts)
        if isinstance(own := getattr(kind, name, None), property) and own.fget is not None:
            return own.fget(self)  # reads facts, of which it is made
        value = getattr(self._facts, name)
        if name in kind.facts():
            self._seen.add(kind.where + name)
        return Witness(value, self._seen) if isinstance(value, Facts) else value


def witness_of(facts: F, seen: set[str]) -> F:
    """The same facts to a reader, whose reading is added to `seen`, as `group.fact`."""
    return cast(F, Witness(facts, seen))


def unwrap(facts: F) -> F:
    """The facts themselves, for what says how tight a number is and not what it is."""
    return cast(F, facts._facts) if isinstance(facts, Witness) else facts
