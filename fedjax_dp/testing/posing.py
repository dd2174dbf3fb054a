"""How a wrong program is made of a right one: a part that poses as another."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import value
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
