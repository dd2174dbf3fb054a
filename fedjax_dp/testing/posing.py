"""How a wrong program is made of a right one: a part that poses as another."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import changed, value
from fedjax_dp.rounds.algorithm import Algorithm

Wrong = Callable[[Algorithm], Algorithm]
Deed = Callable[..., Any]  # of the part it poses as, and of the arguments of one of its methods


@functools.cache
def _posing_class(kind: Any, method: str, deed: Deed) -> type:
    def instead(self: Any, *args: Any) -> Any:
        honest = kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        return deed(honest, *args)

    name = f"{kind.__name__}_with_{deed.__name__.strip('_')}"
    made = type(name, (kind,), {method: instead, "__doc__": deed.__doc__, "__module__": __name__})
    return value(restates(kind)(made))


def posing(part: Any, method: str, deed: Deed) -> Any:
    """A value that is a `part` in all it says of itself, but whose `method` is deed(part, *arguments).

    Its class is a subclass of that of `part` with the same fields. `deed` is a module-level function, so that the same
    wrong program is compiled once.
    """
    kind: Any = type(part)
    cls = _posing_class(kind, method, deed)
    return cls(**{field.name: getattr(part, field.name) for field in dataclasses.fields(part)})


PATHS = {  # of parts in an algorithm
    "cohort": ("cohort",),
    "transport": ("transport",),
    "upload": ("upload",),
    "local": ("local",),
    "batches": ("local", "batches"),
    "privatizer": ("local", "privatizer"),
    "bound": ("local", "privatizer", "bound"),
}


def with_posing(algorithm: Algorithm, slot: str, method: str, deed: Deed) -> Algorithm:
    """The algorithm with a part posing in this slot."""

    def replaced(whole: Any, path: Sequence[str]) -> Any:
        if not path:
            return posing(whole, method, deed)
        return changed(whole, **{path[0]: replaced(getattr(whole, path[0]), path[1:])})

    made: Algorithm = replaced(algorithm, PATHS[slot])
    return made


def wrong_program(slot: str, method: str, applies: Callable[[Algorithm], Any]) -> Callable[[Deed], Wrong]:
    """Makes of what a part in this slot does instead, in this method, the wrong program of that name.

    applies  raises a ConfigurationError for an algorithm to which it does not apply, or in which it is not wrong.
    """

    def of(deed: Deed) -> Wrong:
        def program(algorithm: Algorithm) -> Algorithm:
            applies(algorithm)
            return with_posing(algorithm, slot, method, deed)

        program.__name__, program.__doc__ = deed.__name__, deed.__doc__
        return program

    return of
