"""A function of one record as a traced program, and running it with some of its equations done another way.

Records are put back by `vmap`, so they are apart by construction: nothing has to recognise which axis they are.
"""

import itertools
import pathlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import jax
from jax import lax
from jax.extend import core

from fedjax_dp import errors

CHECKPOINTS = ("remat2", "remat", "checkpoint")
CALLS = ("jit", "pjit", "closed_call", "core_call", *CHECKPOINTS)
Sites = dict[int, Any]  # by number of equation: what takes its place, or the Sites of the program inside it


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[core.ClosedJaxpr, Any]:
    """The program of `function` on arguments of these shapes, and the shapes of what it returns."""
    return jax.make_jaxpr(function, return_shape=True)(*arguments)


def inner(equation: Any) -> core.ClosedJaxpr:
    """The program inside a call, a checkpoint or a loop."""
    found = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return found if isinstance(found, core.ClosedJaxpr) else core.ClosedJaxpr(found, ())


def used(jaxpr: Any) -> Iterator[tuple[int, Any]]:
    """The equations that something depends on, with their numbers, in order."""
    needed = {id(out) for out in jaxpr.outvars}
    found: list[tuple[int, Any]] = []
    for number, equation in reversed(list(enumerate(jaxpr.eqns))):
        if equation.effects or any(id(out) in needed for out in equation.outvars):
            needed.update(id(read) for read in equation.invars)
            found.append((number, equation))
    yield from reversed(found)


def place(equation: Any) -> str:
    """Where in the user's code an equation comes from: ` in folder/file.py:12 (function)`, or nothing."""
    trace = equation.source_info.traceback
    frames = [] if trace is None else [(f.file_name, f.line_num, f.function_name) for f in trace.frames]
    return place_of(frames)


def place_of(frames: Iterable[tuple[str, int | None, str]]) -> str:
    """The first of these frames (file, line, function) that is no library's and not the engine's, in words."""
    for file, line, function in frames:
        if not (file.startswith(_FOREIGN) or "site-packages" in file or file in _ENGINE):
            return f" in {'/'.join(pathlib.Path(file).parts[-2:])}:{line} ({function})"
    return ""


_FOREIGN = ("<frozen", "<string>", *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")))
_HERE = pathlib.Path(__file__).parent
_ENGINE = frozenset(
    str(file)
    for file in (
        *_HERE.glob("*.py"),
        *(_HERE.parent / "models" / name for name in ("batch_axis.py", "model.py", "networks.py")),
    )
)


def bind(equation: Any, values: list[Any]) -> list[Any]:
    """What an equation makes of these values."""
    made = equation.primitive.get_bind_params(equation.params)
    functions, params = made if isinstance(made, tuple) else ((), made)  # a pair before JAX 0.10
    try:
        made = equation.primitive.bind(*functions, *values, **params)
    except NotImplementedError:
        _refuse(equation, "which JAX cannot batch or differentiate")
    return list(made) if equation.primitive.multiple_results else [made]


def _refuse(equation: Any, why: str) -> NoReturn:
    raise errors.refuse(
        "model",
        f"the primitive {equation.primitive.name}{place(equation)}, {why}",
        "one that JAX can batch and differentiate",
        "write that part with other operations, or give the primitive rules",
    ) from None


def run(jaxpr: Any, consts: Any, arguments: list[Any], sites: Sites, probes: Any) -> tuple[list[Any], Any]:
    """Results of the program, and what was read at the sites that have a probe.

    sites   equations that are run by `site.bind(equation, values, probe)`, which returns outputs and what it has read;
    probes  nested like `sites`, what each site is given, of loops one for each step: a wall is given an array of zeros
            that joins its first output, so that the derivative with respect to it is the cotangent there; None: the
            site is only looked at; left out: it is given None, and nobody looks.
    """
    known = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, arguments))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else known[variable]

    seen: dict[int, Any] = {}
    for number, equation in used(jaxpr):
        values, site = [read(variable) for variable in equation.invars], sites.get(number)
        if site is None:
            made = bind(equation, values)
        elif isinstance(site, dict):
            made, more = _enter(equation, values, site, probes.get(number, {}))
            if more:
                seen[number] = more
        else:
            made, looked = site.bind(equation, values, probes.get(number))
            if number in probes:
                seen[number] = looked
        known.update(zip(equation.outvars, made))
    return [read(variable) for variable in jaxpr.outvars], seen


def _enter(equation: Any, values: list[Any], sites: Sites, probes: Any) -> tuple[list[Any], Any]:
    """Run the program inside an equation."""
    program, params = inner(equation), equation.params
    if equation.primitive.name != "scan":

        def call(values: list[Any], probes: Any) -> tuple[list[Any], Any]:
            return run(program.jaxpr, program.consts, values, sites, probes)

        if equation.primitive.name in CHECKPOINTS:
            call = jax.checkpoint(call, prevent_cse=params["prevent_cse"], policy=params["policy"])
        return call(values, probes)
    fixed, carried = params["num_consts"], params["num_carry"]
    consts, start, rows = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]

    def body(carry: list[Any], inputs: tuple[list[Any], Any]) -> tuple[list[Any], tuple[list[Any], Any]]:
        row, own = inputs
        made, seen = run(program.jaxpr, program.consts, [*consts, *carry, *row], sites, own)
        return made[:carried], (made[carried:], seen)

    end, (rows, seen) = lax.scan(
        body, start, (rows, probes), params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*end, *rows], seen


def paths(sites: Sites) -> Iterator[tuple[tuple[int, ...], Any]]:
    """All sites with their paths."""
    for number, site in sites.items():
        if isinstance(site, dict):
            yield from (((number, *path), below) for path, below in paths(site))
        else:
            yield (number,), site


def at(tree: Any, path: tuple[int, ...]) -> Any:
    """What a nested dictionary holds at a path."""
    for number in path:
        tree = tree[number]
    return tree


def nested(entries: dict[tuple[int, ...], Any]) -> dict[int, Any]:
    """A nested dictionary from paths."""
    found: dict[int, Any] = {}
    for path, entry in entries.items():
        below = found
        for number in itertools.islice(path, len(path) - 1):
            below = below.setdefault(number, {})
        below[path[-1]] = entry
    return found
