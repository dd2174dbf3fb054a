"""The traced program of a function of one record, run with some of its equations replaced.

`vmap` adds the axis of records. It keeps records apart in programs of JAX's own operations; `record_independence`
refuses others. So nothing has to recognise the axis of records.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from jax import lax
from jax.extend import core

from fedjax_dp.gradients import equations

Sites = dict[int, Any]  # by index of an equation: its replacement, or the Sites of its inner program


def used_equations(jaxpr: Any) -> Iterator[tuple[int, Any]]:
    """The equations whose results are used, with their indices, in order."""
    needed = {id(out) for out in jaxpr.outvars}
    used: list[tuple[int, Any]] = []
    for number, equation in reversed(list(enumerate(jaxpr.eqns))):
        if equation.effects or any(id(out) in needed for out in equation.outvars):
            needed.update(id(read) for read in equation.invars)
            used.append((number, equation))
    yield from reversed(used)


def run(jaxpr: Any, consts: Any, arguments: list[Any], sites: Sites, probes: Any) -> tuple[list[Any], Any]:
    """Outputs of the program, and the records of the sites that have a probe.

    sites   equations to run by `site.bind(equation, values, probe)`, which returns outputs and a record;
    probes  nested like `sites`, the probe of each site, in loops one for each step. For an outer product it is an array
            of zeros, added to its first output, so that the derivative by the probe is the cotangent there.
            None: the site is only recorded; missing: the site gets None and is not recorded.
    """
    known = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, arguments))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else known[variable]

    seen: dict[int, Any] = {}
    for number, equation in used_equations(jaxpr):
        values, site = [read(variable) for variable in equation.invars], sites.get(number)
        if site is None:
            outputs = equations.bind(equation, values)
        elif isinstance(site, dict):
            outputs, more = _enter(equation, values, site, probes.get(number, {}))
            if more:
                seen[number] = more
        else:
            outputs, recorded = site.bind(equation, values, probes.get(number))
            if number in probes:
                seen[number] = recorded
        known.update(zip(equation.outvars, outputs))
    return [read(variable) for variable in jaxpr.outvars], seen


def _enter(equation: Any, values: list[Any], sites: Sites, probes: Any) -> tuple[list[Any], Any]:
    """Run the inner program of an equation."""
    if equation.primitive.name != "scan":
        program = equations.inner_program(equation)

        def call(values: list[Any], probes: Any) -> tuple[list[Any], Any]:
            return run(program.jaxpr, program.consts, values, sites, probes)

        if equation.primitive.name in equations.CHECKPOINTS:
            call = equations.checkpoint(equation, call)
        return call(values, probes)
    scan = equations.scan_of(equation)
    consts, start, rows = scan.parts(values)

    def body(carry: list[Any], inputs: tuple[list[Any], Any]) -> tuple[list[Any], tuple[list[Any], Any]]:
        row, own = inputs
        outputs, seen = run(scan.body.jaxpr, scan.body.consts, [*consts, *carry, *row], sites, own)
        return outputs[: scan.carry], (outputs[scan.carry :], seen)

    end, (rows, seen) = lax.scan(body, start, (rows, probes), scan.length, reverse=scan.reverse, unroll=scan.unroll)
    return [*end, *rows], seen


def paths(sites: Sites) -> Iterator[tuple[tuple[int, ...], Any]]:
    """All sites with their paths."""
    for number, site in sites.items():
        if isinstance(site, dict):
            yield from (((number, *path), below) for path, below in paths(site))
        else:
            yield (number,), site


def entry_at(tree: Any, path: tuple[int, ...]) -> Any:
    """The entry of a nested dictionary at a path."""
    for number in path:
        tree = tree[number]
    return tree


def nest(entries: dict[tuple[int, ...], Any]) -> dict[int, Any]:
    """A nested dictionary from paths."""
    nested: dict[int, Any] = {}
    for path, entry in entries.items():
        below = nested
        for number in itertools.islice(path, len(path) - 1):
            below = below.setdefault(number, {})
        below[path[-1]] = entry
    return nested
