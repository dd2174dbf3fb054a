"""Networks of a batch get batches of one record; those whose output depends on other records are refused."""

import itertools
from collections.abc import Callable
from typing import Any

import jax

from fedjax_dp import errors
from fedjax_dp.gradients import equations, program

# Primitives, beside reductions and cumulative ones, in which entries along their axes meet each other.
OVER = ("sort", "top_k", "rev", "split", "reduce", "argmax", "argmin")


def require_records_apart(name: str, batched: Callable[..., Any], params: Any, record: Any) -> None:
    """Refuse a network whose output for a record depends on its batch, as with batch statistics.

    It is traced with two and with three records. An axis whose length differs runs over records; sums, products, sorts
    and loops along such an axis mix them. No numbers are computed.
    """

    def traced_with(records: int) -> Any:
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((records, *a.shape), a.dtype), record)
        return jax.make_jaxpr(batched, return_shape=True)(params, shapes)

    traced = [traced_with(2), traced_with(3)]
    for two, three in zip(*(jax.tree.leaves(out) for _, out in traced)):
        if two.shape[:1] != (2,) or three.shape[:1] != (3,) or two.shape[1:] != three.shape[1:]:
            raise _no_rows(name, three, "three records")
    found = _first_mixing_equation(*(closed.jaxpr for closed, _ in traced))
    if found is not None:
        got = f"{name}, in which {found.primitive.name}{equations.place(found)} runs over the records of a batch"
        remedy = "leave out means and norms over the batch: use GroupNorm or LayerNorm instead of BatchNorm"
        raise errors.refuse("model", got, "one that treats each record alone", remedy)


def _first_mixing_equation(two: Any, three: Any) -> Any | None:
    """The first equation that runs over records, of a program with two and the same with three of them."""
    pairs = [*itertools.zip_longest(*([line for _, line in program.used_equations(one)] for one in (two, three)))]
    if any(one is None or other is None or one.primitive is not other.primitive for one, other in pairs):
        return None  # written out for each record: nothing more can be known, and one is traced alone anyway
    for one, other in pairs:
        if _runs_over(one, other, [_longer(a, b) for a, b in zip(one.invars, other.invars)]):
            return one
        for a, b in zip(equations.programs(one), equations.programs(other)):
            found = _first_mixing_equation(a.jaxpr, b.jaxpr)
            if found is not None:
                return found
    return None


def _longer(a: Any, b: Any) -> set[int]:
    """Axes that are longer with more records."""
    shapes = a.aval.shape, b.aval.shape
    return {axis for axis, (two, three) in enumerate(zip(*shapes)) if two != three}


def _runs_over(one: Any, other: Any, longer: list[set[int]]) -> bool:
    name = one.primitive.name
    if name == "dot_general":
        return any(longer[side] & set(axes) for side, axes in enumerate(equations.dot_of(one).contracted))
    if name == "conv_general_dilated":
        numbers = equations.convolution_of(one).numbers
        return bool(longer[0] - {numbers.lhs_spec[0]}) or bool(longer[1] - {numbers.rhs_spec[0]})
    if name == "scan":
        loop = equations.scan_of(one)
        return loop.carry > 0 and loop.length != equations.scan_of(other).length
    if name.startswith("reduce_window") or name in ("select_and_scatter_add", "select_and_gather_add"):
        return any(equations.window_of(one)[axis] > 1 for axis in longer[0])
    if name == "slice":
        parts = zip(equations.slices_of(one), one.invars[0].aval.shape)
        return any(part.stop - part.start != size for axis, (part, size) in enumerate(parts) if axis in longer[0])
    if name == "dynamic_slice":
        return any(equations.sizes_of(one)[axis] != one.invars[0].aval.shape[axis] for axis in longer[0])
    if name in OVER or (name.startswith(("cum", "reduce_")) and name != "reduce_precision"):
        return any(axis in over for over in longer for axis in equations.axes_of(one))
    return False


def first_row(name: str, out: Any) -> Any:
    """A network's output of a batch of one, without its records' axis."""
    for leaf in jax.tree.leaves(out):
        if leaf.ndim == 0 or leaf.shape[0] != 1:
            raise _no_rows(name, leaf, "one record")
    return jax.tree.map(lambda a: a[0], out)


def _no_rows(name: str, made: Any, of: str) -> errors.ConfigurationError:
    got = f"{name} that makes {list(made.shape)} of {of}"
    return errors.refuse("model", got, "one that makes a row for each record", "keep the records' axis first")
