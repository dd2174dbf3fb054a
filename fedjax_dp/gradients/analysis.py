"""Find the parameters of a program whose gradients are sums of outer products.

Every value of the program is constant, or depends on the record, on parameters alone (a ParameterView), or on both.
Where a view meets something else, the gradient is a sum of outer products if a rule covers the equation. Outer products
over the same elements (a weight used twice, in a loop, or transposed) share one WeightMatrix and one sum over
positions. A parameter whose every use is an outer product is *factored*: no record gradient is built for it, unless it
is small. All others are *direct*: the same backward pass differentiates them for each record. This is exact too and
takes memory of records x parameter (nothing extra for biases, scales and positions, whose gradients are no larger than
an activation).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fedjax_dp import errors
from fedjax_dp.gradients import equations, program
from fedjax_dp.gradients.model import joined, split
from fedjax_dp.gradients.outer_products import Convolution, Geometry, Operand, OuterProduct, Shift, recognise
from fedjax_dp.gradients.program import Sites
from fedjax_dp.gradients.record_convolutions import RecordConvolution
from fedjax_dp.gradients.record_independence import require_own_operations
from fedjax_dp.gradients.views import ParameterView, are_equal, leaf_view, move_entries, narrow, share_elements
from fedjax_dp.pytrees import path_name

Path = tuple[int, ...]


class Dependence(Enum):
    """What a value that is no ParameterView depends on."""

    CONSTANT = 0
    RECORD = 1
    BOTH = 2  # parameters and something else


class Use(NamedTuple):
    """An outer product of a weight."""

    path: Path
    outer_product: OuterProduct
    swapped: bool  # its matrix is the transpose of the weight's
    positions: int  # in one record


class WeightMatrix(NamedTuple):
    """A matrix of elements that outer products use as a whole."""

    shape: tuple[int, int, int]  # blocks, k, o
    uses: tuple[Use, ...]

    @property
    def leaves(self) -> frozenset[int]:
        return frozenset().union(*(use.outer_product.view.leaves for use in self.uses))

    @property
    def positions(self) -> int:
        return sum(use.positions for use in self.uses)

    @property
    def by_kernel(self) -> bool:
        """Whether record gradients are built: they take at most 1.5 times the memory of what pairs of positions read.

        The clipped sum follows from them at little cost; with pairs it takes another product.
        """
        _, k, o = self.shape
        if any(use.outer_product.geometry.lookup for use in self.uses):
            return self.positions > 1 and k * o <= 2 * self.positions**2
        return self.positions > 1 and 3 * self.positions * (k + o) >= 2 * k * o

    @property
    def floats(self) -> int:
        """How many numbers the norm of a record gradient holds in memory."""
        blocks, k, o = self.shape
        return 0 if self.positions == 1 else blocks * (k * o if self.by_kernel else 2 * self.positions**2)


class GradientPlan(NamedTuple):
    """A function of one record, traced and analysed."""

    closed: core.ClosedJaxpr
    shapes: tuple[Any, ...]  # of the parameters
    names: tuple[str, ...]
    out: Any  # shapes of the outputs
    outer_products: Sites  # only factored ones
    products: Sites  # convolutions computed as products, factored or not
    weights: tuple[WeightMatrix, ...]
    direct: dict[int, str]  # parameter -> reason
    unused: tuple[int, ...]
    features: tuple[Path, Any, bool] | None  # the last product with parameters outside loops: its path, its other
    #                                          operand, and whether this operand depends on parameters

    def run(
        self, leaves: Sequence[Any], frozen: Any, record: Any, probes: Any = None, sites: Sites | None = None
    ) -> tuple[Any, Any]:
        """The outputs, and the values read at the sites in `probes`: outer products, unless `sites` replace others."""
        recorded = self.outer_products if sites is None else sites
        sites = self.products if probes is None else merge_sites(recorded, self.products)
        arguments = [*leaves, *jax.tree.leaves((frozen, record))]
        outputs, seen = program.run(self.closed.jaxpr, self.closed.consts, arguments, sites, probes or {})
        return jax.tree.unflatten(jax.tree.structure(self.out), outputs), seen

    def last_product_input(self, leaves: Sequence[Any], frozen: Any, record: Any) -> Any:
        """The other operand of the last product with parameters."""
        assert self.features is not None
        path, operand, _ = self.features
        seen = self.run(leaves, frozen, record, program.nest({path: None}), program.nest({path: operand}))[1]
        return program.entry_at(seen, path)

    @property
    def kernels(self) -> tuple[tuple[Path, OuterProduct, RecordConvolution], ...]:
        """Convolutions of a few records at a time whose parameters nothing else uses."""
        found = []
        for weight in self.weights:
            (path, outer_product, *_), geometry = weight.uses[0], weight.uses[0].outer_product.geometry
            alone = not any(weight.leaves & other.leaves for other in self.weights if other is not weight)
            if alone and isinstance(geometry, RecordConvolution):
                found.append((path, outer_product, geometry))
        return tuple(found)

    @property
    def bytes_per_record(self) -> int:
        """Bytes of the gradients that are built for each record."""
        direct = sum(math.prod(self.shapes[leaf].shape) for leaf in self.direct)
        return 4 * (direct + sum(weight.floats for weight in self.weights))


@functools.lru_cache(maxsize=128)
def _analyse(
    model: Any, method: str, settings: tuple[Any, ...], structure: Any, shapes: tuple[tuple[Any, Any], ...]
) -> GradientPlan:
    params, frozen, record = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])
    leaves, treedef = jax.tree.flatten(params)

    def function(leaves: list[Any], frozen: Any, record: Any) -> Any:
        return getattr(joined(model, frozen), method)(jax.tree.unflatten(treedef, leaves), *record)

    closed, out = jax.make_jaxpr(function, return_shape=True)(leaves, frozen, record)
    require_own_operations("model", closed.jaxpr)
    names = tuple(path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
    return _Analysis(closed, tuple(leaves), len(jax.tree.leaves(frozen)), names).plan(out)


def plan_of(model: Any, method: str, params: Any, record: Any) -> GradientPlan:
    """The plan of `model.method(params, *record)` for one record of these shapes; equal calls share one plan."""
    model, frozen = split(model)
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda tree: tree, (params, frozen, record)))
    config = jax.config.values
    settings = (config["jax_enable_x64"], config["jax_default_matmul_precision"], jax.sharding.get_abstract_mesh())
    return _analyse(model, method, settings, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


def merge_sites(one: Sites, other: Sites) -> Sites:
    merged = dict(other)
    for number, site in one.items():
        merged[number] = merge_sites(site, other.get(number, {})) if isinstance(site, dict) else site
    return merged


def _positions(outer_product: OuterProduct, blocks: int, outs: int) -> int:
    """Positions of an outer product in one record: its outputs per block over the outputs of one position."""
    if isinstance(outer_product.geometry, Shift):
        return 1
    outputs = math.prod(outer_product.loops) * math.prod(outer_product.out.shape)
    return outputs // max(blocks * outs, 1)


class _Analysis:
    """One walk through a program, from parameters to outputs."""

    def __init__(self, closed: core.ClosedJaxpr, leaves: tuple[Any, ...], frozen: int, names: tuple[str, ...]):
        self.closed, self.leaves, self.names = closed, leaves, names
        self.direct: dict[int, str] = {}
        self.outer_products: dict[Path, OuterProduct] = {}
        self.products: dict[Path, Any] = {}
        self.features: tuple[Path, Any, bool] | None = None
        views = [leaf_view(at, leaf.shape) for at, leaf in enumerate(leaves)]
        jaxpr = closed.jaxpr
        rest = [Dependence.CONSTANT] * frozen + [Dependence.RECORD] * (len(jaxpr.invars) - len(leaves) - frozen)
        for out in self.analyse(jaxpr, [Dependence.CONSTANT] * len(jaxpr.constvars), [*views, *rest], (), ()):
            self.mark_direct(out, "is part of the result")

    def mark_direct(self, value: Any, why: str) -> None:
        if isinstance(value, ParameterView):
            for leaf in value.leaves:
                self.direct.setdefault(leaf, why)

    def analyse(
        self, jaxpr: Any, consts: list[Any], arguments: list[Any], path: Path, loops: tuple[int, ...]
    ) -> list[Any]:
        known = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, arguments))

        def read(variable: Any) -> Any:
            return Dependence.CONSTANT if isinstance(variable, core.Literal) else known[variable]

        for number, equation in program.used_equations(jaxpr):
            values = [read(variable) for variable in equation.invars]
            outputs = self.equation(equation, values, (*path, number), loops)
            for variable, value in zip(equation.outvars, outputs, strict=True):
                known[variable] = (
                    value if _differentiable(variable) or value is Dependence.RECORD else _without_gradient(value)
                )
        return [read(variable) for variable in jaxpr.outvars]

    def equation(self, equation: Any, values: list[Any], path: Path, loops: tuple[int, ...]) -> list[Any]:
        name, count = equation.primitive.name, len(equation.outvars)
        views = [value for value in values if isinstance(value, ParameterView)]
        moving = bool(views) or Dependence.BOTH in values
        if moving:
            _require_gradients(equation)
        if name == "stop_gradient":
            return [_without_gradient(values[0])]
        if name in equations.CALLS:
            below = equations.inner_program(equation)
            return self.analyse(below.jaxpr, [Dependence.CONSTANT] * len(below.consts), values, path, loops)
        if name == "scan":
            return self.scan(equation, values, path, loops)
        if name == "conv_general_dilated" and moving and not isinstance(values[0], ParameterView):
            shape = recognise(equation, 1)
            learnt = isinstance(values[1], ParameterView) or values[1] is Dependence.BOTH  # so clients' kernels differ
            if isinstance(shape, Convolution) and shape.groups == 1 and learnt:
                self.products[path] = shape
        if name == "dot_general" and len(views) == 1 and not loops:
            side = values.index(views[0])
            self.features = (path, Operand(1 - side), values[1 - side] is Dependence.BOTH)
        if not views:
            return [max(values, key=lambda kind: kind.value, default=Dependence.CONSTANT)] * count
        outer_product = self.outer_product(equation, values, loops)
        if outer_product is not None:
            self.outer_products[path] = outer_product
            return [Dependence.BOTH] * count
        mixed = any(value in (Dependence.RECORD, Dependence.BOTH) for value in values)
        if mixed or name in ("cond", "while", "custom_vjp_call", "shard_map"):
            for value in views:
                self.mark_direct(value, f"goes into {name}{equations.place(equation)}")
            return [Dependence.BOTH] * count
        return move_entries(equation, values)

    def outer_product(self, equation: Any, values: list[Any], loops: tuple[int, ...]) -> OuterProduct | None:
        sides = [at for at, value in enumerate(values) if isinstance(value, ParameterView)]
        if len(sides) != 1 or not _real(equation.outvars[0]):
            return None
        (side,), out, name = sides, equation.outvars[0].aval, equation.primitive.name
        view = values[side]
        geometry: Geometry | None = None
        if name in ("add", "sub", "add_any"):
            narrowed = narrow(view, out.shape)
            if narrowed is not None:
                view, repeated = narrowed
                view = view._replace(scale=-view.scale) if name == "sub" and side == 1 else view
                geometry = Shift(view.places.shape[len(view.loops) :], repeated)
        elif view.distinct:
            geometry = recognise(equation, side)
        return None if geometry is None else OuterProduct(view, loops, geometry, out, name)

    def scan(self, equation: Any, values: list[Any], path: Path, loops: tuple[int, ...]) -> list[Any]:
        """A loop: parameters shared by all steps add positions; parameters it runs over add blocks."""
        loop, depth = equations.scan_of(equation), len(loops)
        below, fixed, carried = loop.body, loop.consts, loop.carry
        unchanged = [
            below.jaxpr.outvars[at] is below.jaxpr.invars[fixed + at] and isinstance(values[fixed + at], ParameterView)
            for at in range(carried)
        ]
        inside: list[Any] = []
        for at, value in enumerate(values):
            if at < fixed or (at < fixed + carried and unchanged[at - fixed]):
                inside.append(value)
            elif at < fixed + carried:
                self.mark_direct(value, "is the start of a loop's state")
                inside.append(Dependence.BOTH if _differentiable(below.jaxpr.invars[at]) else Dependence.RECORD)
            elif not isinstance(value, ParameterView):
                inside.append(value)
            elif value.elements is None:
                self.mark_direct(value, "is computed, and then looped over")
                inside.append(Dependence.BOTH)
            else:
                inside.append(value._replace(loops=(*value.loops, depth)))
        consts = [Dependence.CONSTANT] * len(below.consts)
        outs = self.analyse(below.jaxpr, consts, inside, path, (*loops, loop.length))
        results: list[Any] = []
        for at, value in enumerate(outs):
            if at < carried and unchanged[at]:
                results.append(values[fixed + at])
                continue
            self.mark_direct(value, "comes out of a loop")
            results.append(Dependence.BOTH)
        return results

    def plan(self, out: Any) -> GradientPlan:
        weights = tuple(map(_few_records_at_a_time, self.weights()))
        factored = {use.path: use.outer_product for weight in weights for use in weight.uses}
        covered = frozenset().union(*(weight.leaves for weight in weights))
        unused = (at for at in range(len(self.leaves)) if at not in covered and at not in self.direct)
        return GradientPlan(
            self.closed,
            self.leaves,
            self.names,
            out,
            program.nest(factored),
            program.nest(self.products),
            weights,
            self.direct,
            tuple(unused),
            self.features,
        )

    def weights(self) -> tuple[WeightMatrix, ...]:
        """Factored outer products, grouped by their elements; elements used in two layouts are direct."""
        matrices = {path: outer_product.matrix for path, outer_product in self.outer_products.items()}
        while True:
            before = len(self.direct)
            groups: list[tuple[np.ndarray, list[Use]]] = []
            for path, outer_product in self.outer_products.items():
                if outer_product.view.leaves & self.direct.keys():
                    self.mark_direct(outer_product.view, "is joined with one that is direct")
                    continue
                matrix = matrices[path]
                positions = _positions(outer_product, matrix.shape[0], matrix.shape[2])
                group = next((group for group in groups if share_elements(group[0], matrix)), None)
                if group is None:
                    groups.append((matrix, [Use(path, outer_product, False, positions)]))
                    continue
                own, uses = group
                if are_equal(own, matrix):
                    uses.append(Use(path, outer_product, False, positions))
                elif are_equal(own, matrix.swapaxes(1, 2)):
                    uses.append(Use(path, outer_product, True, positions))
                else:
                    self.mark_direct(outer_product.view, "is used in two layouts")
            for _, uses in groups:
                if len({use.swapped for use in uses if use.outer_product.geometry.lookup}) > 1:
                    self.mark_direct(uses[0].outer_product.view, "is looked up by rows and by columns")
            if len(self.direct) == before:
                return tuple(_weight(matrix, uses) for matrix, uses in groups)


def _weight(matrix: np.ndarray, uses: list[Use]) -> WeightMatrix:
    """The weight, transposed if needed so that lookups pick rows."""
    if any(use.swapped and use.outer_product.geometry.lookup for use in uses):
        matrix, uses = matrix.swapaxes(1, 2), [use._replace(swapped=not use.swapped) for use in uses]
    blocks, k, o = matrix.shape
    return WeightMatrix((blocks, k, o), tuple(uses))


def _few_records_at_a_time(weight: WeightMatrix) -> WeightMatrix:
    """The weight; if its record gradients are built, a CPU convolves a few float32 images at a time."""
    use, *others = weight.uses
    product, geometry = use.outer_product, use.outer_product.geometry
    if others or use.swapped or product.loops or not weight.by_kernel or product.out.dtype != jnp.float32:
        return weight
    if type(geometry) is not Convolution or not RecordConvolution.fits(geometry):
        return weight
    fields = {field.name: getattr(geometry, field.name) for field in dataclasses.fields(geometry)}
    return weight._replace(uses=(use._replace(outer_product=product._replace(geometry=RecordConvolution(**fields))),))


def _differentiable(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.inexact))


def _real(variable: Any) -> bool:
    """Whether the value is real; complex values are differentiated for each record."""
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.floating))


def _without_gradient(value: Any) -> Dependence:
    """The dependence of a value through which no gradient flows back."""
    return value if value in (Dependence.CONSTANT, Dependence.RECORD) else Dependence.RECORD


def _require_gradients(equation: Any) -> None:
    """Refuse an equation without a derivative, or in float16, where gradients overflow above 65,504."""
    if equation.primitive.name == "while":
        raise errors.refuse(
            "model",
            f"a loop of unknown length{equations.place(equation)}",
            "one that can be differentiated backwards",
            "use scan, or fori_loop with a fixed number of steps",
        )
    for variable in equation.outvars:
        kind = variable.aval.dtype
        if jnp.issubdtype(kind, jnp.floating) and float(jnp.finfo(kind).max) < 1e30:
            raise errors.refuse(
                "model",
                f"{equation.primitive.name} in {kind}{equations.place(equation)}",
                "float32 or bfloat16: gradients, and norms of them, overflow in it",
                "cast to jax.numpy.bfloat16 instead",
            )
