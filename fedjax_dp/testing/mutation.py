"""How a wrong program is made of a right one: one method of one of its parts is replaced."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import changed, of_class, value
from fedjax_dp.rounds.algorithm import Algorithm

WrongProgram = Callable[[Any], Any]  # makes it of the right one, an algorithm or a function
Mutation = Callable[..., Any]  # of the right part, and of the arguments of the method that it replaces


@functools.cache
def _mutant_class(kind: Any, method: str, mutation: Mutation) -> type:
    def instead(self: Any, *args: Any) -> Any:
        return mutation(of_class(self, kind), *args)

    name = f"{kind.__name__}_with_{mutation.__name__.strip('_')}"
    made = type(name, (kind,), {method: instead, "__doc__": mutation.__doc__, "__module__": __name__})
    return value(restates(kind)(made))


def mutated_part(part: Any, method: str, mutation: Mutation) -> Any:
    """A value that is a `part` in all it says of itself, but whose `method` is mutation(part, *arguments).

    Its class is a subclass of that of `part` with the same fields. `mutation` is a module-level function, so that the
    same wrong program is compiled once.
    """
    kind: Any = type(part)
    return of_class(part, _mutant_class(kind, method, mutation))


PATHS = {  # of parts in an algorithm
    "cohort": ("cohort",),
    "transport": ("transport",),
    "upload": ("upload",),
    "local": ("local",),
    "batches": ("local", "batches"),
    "privatizer": ("local", "privatizer"),
    "bound": ("local", "privatizer", "bound"),
}


def mutated(algorithm: Algorithm, slot: str, method: str, mutation: Mutation) -> Algorithm:
    """The algorithm with a mutated part in this slot."""

    def replaced(whole: Any, path: Sequence[str]) -> Any:
        if not path:
            return mutated_part(whole, method, mutation)
        return changed(whole, **{path[0]: replaced(getattr(whole, path[0]), path[1:])})

    return replaced(algorithm, PATHS[slot])


def wrong_program(slot: str, method: str, applies: Callable[[Algorithm], Any]) -> Callable[[Mutation], WrongProgram]:
    """Makes of what a part in this slot does instead, in this method, the wrong program of that name.

    applies  raises a ConfigurationError for an algorithm to which it does not apply, or in which it is not wrong.
    """

    def of(mutation: Mutation) -> WrongProgram:
        def program(algorithm: Algorithm) -> Algorithm:
            applies(algorithm)
            return mutated(algorithm, slot, method, mutation)

        program.__name__, program.__doc__ = mutation.__name__, mutation.__doc__
        return program

    return of
