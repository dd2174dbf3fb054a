"""Functions of flat vectors, computed in pieces: a vector is not concatenated where only its parts are needed.

Parts of a round see a model's parameters as one flat vector, which is fastest on CPUs. On a GPU a concatenation of
several leaves is written number by number, with a look-up of the leaf for each, and products copy what they read from
it: the same arithmetic on pieces reads and writes several numbers at once and moves half the bytes. So the program of a
client's round is traced unchanged, and run with every long vector as the pieces of which it is concatenated or into
which it is split. Elementwise operations work on pieces; all others get the whole vector. So any program has the same
results, draws included, except for the order of a sum over a vector.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from fedjax_dp.gradients import equations

MOST = 12  # pieces of a vector: with more, launches for short ones cost more than they save
LEAST = 64  # numbers of a piece, on average

_BY_NUMBER = (  # elementwise primitives
    "abs add add_any and atan2 bitcast_convert_type cbrt ceil clamp convert_element_type copy cos cosh div eq erf "
    "erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul name ne neg "
    "nextafter not or population_count pow reduce_precision rem round rsqrt select_n shift_left "
    "shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh "
    "xor"
)
BY_NUMBER = frozenset(_BY_NUMBER.split())
OVER_ALL: dict[str, Callable[[Any, Any], Any]] = {  # reductions, and how results of two pieces combine
    "reduce_sum": jnp.add,
    "reduce_prod": jnp.multiply,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_and": jnp.bitwise_and,
    "reduce_or": jnp.bitwise_or,
}

Cuts = dict[int, tuple[int, ...]]  # from a vector's length to the ends of its pieces


class Pieces:
    """A vector as consecutive arrays.

    whole   the vector itself, if it existed before it was cut;
    stored  the same pieces in memory, if `parts` are a sum that is computed again.
    """

    ndim = 1

    def __init__(self, parts: Iterable[Any], whole: Any = None, stored: Sequence[Any] = ()) -> None:
        self.parts, self._whole, self._stored = tuple(parts), whole, tuple(stored)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate(part.size for part in self.parts))

    @property
    def shape(self) -> tuple[int]:
        return (self.size,)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def whole(self) -> Any:
        return jnp.concatenate(self.parts) if self._whole is None else self._whole

    def cut_at(self, ends: Iterable[int]) -> "Pieces":
        """The vector with additional cuts."""
        parts: list[Any] = []
        for part, end in zip(self.parts, self.ends, strict=True):
            inside = [at - end + part.size for at in ends if end - part.size < at < end]
            parts += jnp.split(part, inside) if inside else [part]
        return Pieces(parts, self._whole, () if len(parts) > len(self.parts) else self._stored)

    def part(self, first: int, end: int) -> Any:
        """The numbers from `first` to before `end`: an array if they are one piece."""
        own = (0, *self.ends)
        if first not in own or end not in own or first == end:
            return self.whole[first:end]
        parts = (self._stored or self.parts)[own.index(first) : own.index(end)]
        return parts[0] if len(parts) == 1 else Pieces(parts)


def in_pieces(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of pytrees, computed in pieces when it is traced."""

    def run_in_pieces(*arguments: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not (cuts := _cuts_of(traced.jaxpr)):
            return function(*arguments)
        results = _run(traced.jaxpr, traced.consts, jax.tree.leaves(arguments), cuts)
        return jax.tree.unflatten(jax.tree.structure(shapes), map(_whole, results))

    return run_in_pieces


def _cuts_of(jaxpr: Any) -> Cuts:
    """Where a program concatenates or splits vectors, by their length; vectors of many or short pieces stay whole."""
    ends_by_size: dict[int, set[int]] = {}
    for equation in _all_equations(jaxpr):
        pieces = {"concatenate": equation.invars, "split": equation.outvars}.get(equation.primitive.name, [])
        if pieces and pieces[0].aval.ndim == 1:
            ends = tuple(itertools.accumulate(piece.aval.size for piece in pieces))
            ends_by_size.setdefault(ends[-1], set()).update(ends)
    cuts = {size: tuple(sorted(ends - {0})) for size, ends in ends_by_size.items()}
    return {size: ends for size, ends in cuts.items() if 1 < len(ends) <= MOST and LEAST * len(ends) <= size}


def _all_equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, including those of inner programs."""
    for equation in jaxpr.eqns:
        yield equation
        for inside in equations.programs(equation):
            yield from _all_equations(inside.jaxpr)


def _whole(value: Any) -> Any:
    return value.whole if isinstance(value, Pieces) else value


def _cut(value: Any, cuts: Cuts) -> Any:
    """A vector whose length is in `cuts`, in pieces; anything else unchanged."""
    if isinstance(value, Pieces) or not _is_long(value, cuts):
        return value
    return Pieces(jnp.split(value, cuts[value.size][:-1]), value)


def _is_long(value: Any, cuts: Cuts) -> bool:
    return len(getattr(value, "shape", ())) == 1 and value.size in cuts


def _run(
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    cuts: Cuts,
    stored: dict[int, Sequence[Any]] | None = None,
) -> list[Any]:
    """Results of a program; `stored`: pieces of an equation's result that exist already, by the equation's index."""
    values = (_cut(value, cuts) for value in (*consts, *arguments))
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else known[variable]

    for number, equation in enumerate(jaxpr.eqns):
        with equations.in_its_place(equation):
            results = _evaluate(equation, [read(variable) for variable in equation.invars], cuts)
            if stored and number in stored:
                results = [Pieces(results[0].parts, stored=stored[number])]
            known.update(zip(equation.outvars, (_cut(value, cuts) for value in results), strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _evaluate(equation: Any, values: list[Any], cuts: Cuts) -> Sequence[Any]:
    """The results of an equation that reads or returns vectors in pieces."""
    name, vectors = equation.primitive.name, [value for value in values if isinstance(value, Pieces)]
    if name in equations.CUSTOM or (name in ("scan", "cond", *equations.CALLS) and _has_vectors(equation, cuts)):
        return _enter(equation, values, cuts)
    out: Any = equation.outvars[0].aval if equation.outvars else None
    if _is_long(out, cuts):
        between = list(itertools.pairwise((0, *cuts[out.size])))
        if name == "iota":  # adding to a shorter one may be a separate kernel launch
            return [Pieces(lax.iota(out.dtype, end)[first:] for first, end in between)]
        if name == "broadcast_in_dim" and np.ndim(values[0]) == 0:
            return [Pieces(jnp.broadcast_to(values[0], (end - first,)) for first, end in between)]
        if name == "concatenate":
            parts = (value.parts if isinstance(value, Pieces) else (value,) for value in values)
            return [Pieces(part for part in itertools.chain.from_iterable(parts) if part.size)]
        if name == "reshape" and vectors:
            return vectors
    if not vectors:
        return equations.bind(equation, values)
    if name == "split":
        ends = (0, *itertools.accumulate(equations.sizes_of(equation)))
        return [vectors[0].part(first, end) for first, end in itertools.pairwise(ends)]
    if name == "slice" and (picked := equations.slices_of(equation)[0]).step == 1:
        return [vectors[0].part(picked.start, picked.stop)]
    if name in BY_NUMBER and out.shape == vectors[0].shape:
        return [_by_number(lambda *parts: equations.bind(equation, parts)[0], values)]
    if name in OVER_ALL and out.ndim == 0:
        return [functools.reduce(OVER_ALL[name], (equations.bind(equation, [part])[0] for part in vectors[0].parts))]
    if name == "dot_general" and out.ndim == 0:
        products = _by_number(lambda a, b: jnp.sum(a.astype(out.dtype) * b.astype(out.dtype)), values)
        return [functools.reduce(jnp.add, products.parts)]
    return equations.bind(equation, [_whole(value) for value in values])


def _by_number(function: Callable[..., Any], values: Sequence[Any]) -> Pieces:
    """An elementwise function of vectors, or scalars, computed piece by piece."""
    ends = sorted({end for value in values if isinstance(value, Pieces) for end in value.ends})

    def cut(value: Any) -> Sequence[Any]:
        if np.size(value) == 1:
            return [value] * len(ends)
        return (value if isinstance(value, Pieces) else Pieces([value], value)).cut_at(ends).parts

    return Pieces(map(function, *map(cut, values)))


def _has_vectors(equation: Any, cuts: Cuts) -> bool:
    """Whether an equation, or an inner program of it, has a vector whose length is in `cuts`."""
    every = [
        equation,
        *itertools.chain.from_iterable(_all_equations(inside.jaxpr) for inside in equations.programs(equation)),
    ]
    return any(_is_long(v.aval, cuts) for each in every for v in (*each.invars, *each.outvars))


def _enter(equation: Any, values: list[Any], cuts: Cuts) -> Sequence[Any]:
    """The inner program of an equation, run in pieces if it is known which program runs."""
    name = equation.primitive.name
    if name == "scan":
        return _run_scan(equation, values, cuts)
    program = equations.branch_for(equation, "cuda") if name == "cond" else equations.inner_program(equation)
    if program is None or name in equations.CHECKPOINTS:
        return equations.bind(equation, [_whole(value) for value in values])
    return _run(program.jaxpr, program.consts, values[1:] if name == "cond" else values, cuts)


def _run_scan(equation: Any, values: list[Any], cuts: Cuts) -> list[Any]:
    """A loop that carries its vectors in pieces.

    Sums of a constant vector and a carried one (the start of a client's steps, and the change since) are carried too,
    computed at the end of the previous step: matrix products read from memory, so such a sum would be written for them
    anyway. Everything else computes the sum again, which reads less memory.
    """
    scan = equations.scan_of(equation)
    body = scan.body.jaxpr
    consts, start, rows = scan.parts(values)
    staying, carried, _ = scan.parts(body.invars)
    fixed = dict(zip(staying, (_cut(value, cuts) for value in consts), strict=True))
    sums: dict[int, tuple[Pieces, int]] = {}  # by equation: the constant, and the index of the carried vector
    for number, each in enumerate(body.eqns):
        for one, other in (each.invars, each.invars[::-1]) if each.primitive.name == "add" else ():
            if not isinstance(one, core.Literal) and isinstance(fixed.get(one), Pieces) and other in carried:
                sums[number] = fixed[one], carried.index(other)

    def lay_out(value: Any) -> Any:
        """The value as the loop carries it: a tuple of pieces, with the same cuts in every step."""
        if not _is_long(value, cuts):
            return _whole(value)
        vector, ends = _cut(value, cuts), cuts[value.size]
        return (vector if set(vector.ends) <= set(ends) else _cut(vector.whole, cuts)).cut_at(ends).parts

    def sums_of(carry: list[Any]) -> dict[int, Any]:
        return {number: _by_number(jnp.add, [one, Pieces(carry[at])]).parts for number, (one, at) in sums.items()}

    def step(state: tuple[list[Any], dict[int, Any]], row: list[Any]) -> tuple[Any, list[Any]]:
        carry = [Pieces(value) if isinstance(value, tuple) else value for value in state[0]]
        results = _run(body, scan.body.consts, [*consts, *carry, *row], cuts, state[1])
        after = list(map(lay_out, results[: scan.carry]))
        return (after, sums_of(after)), list(map(_whole, results[scan.carry :]))

    before = list(map(lay_out, start))
    rows = list(map(_whole, rows))
    (end, _), outputs = lax.scan(
        step, (before, sums_of(before)), rows, scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    return [*(Pieces(value) if isinstance(value, tuple) else value for value in end), *outputs]
