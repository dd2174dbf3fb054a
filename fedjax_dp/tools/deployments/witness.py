"""Facts that record which of them were read, so that rules need not list the facts they use."""

from typing import Any, TypeVar, cast

from fedjax_dp.tools.deployments.description import Facts

F = TypeVar("F", bound=Facts)


class Witness:
    """Facts that add their name to a set when they are read."""

    def __init__(self, facts: Facts, facts_read: set[str]) -> None:
        self._facts, self._facts_read = facts, facts_read

    def __getattr__(self, name: str) -> Any:
        kind = type(self._facts)
        if isinstance(own := getattr(kind, name, None), property) and own.fget is not None:
            return own.fget(self)  # a property reads the facts that it uses
        value = getattr(self._facts, name)
        if name in kind.facts():
            self._facts_read.add(kind.where + name)
        return Witness(value, self._facts_read) if isinstance(value, Facts) else value


def witness_of(facts: F, facts_read: set[str]) -> F:
    """The facts as a witness, which adds the names of read ones to `facts_read`, as `group.fact`."""
    return cast(F, Witness(facts, facts_read))


def unwrap(facts: F) -> F:
    """The facts without the witness, for computing how tight a number is."""
    return cast(F, facts._facts) if isinstance(facts, Witness) else facts
