"""Static analysis of what the size of noise depends on: the round, the client, the records, or nothing.

Bits drawn with a key depend on nothing else, even if values are folded into the key, and a uniform word stays uniform
if anything is added to it. Then each equation of the traced program is followed: an addition to noise does not change
its size, a multiplication or a choice does. If two noises are combined, their bits decide whether they add up or
cancel. Operations without a known rule are assumed to scale the noise.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.gradients import equations
from fedjax_dp.inspection.verdict import require_so

Names = frozenset[str]
NONE: Names = frozenset()


class Trace(NamedTuple):
    """What the analysis knows about a value."""

    noise: bool = False  # it depends on bits that a key draws
    uniform: bool = False  # an integer of which every bit is a fair coin
    values: Names = NONE  # names of inputs that it depends on, except through drawn bits
    scale: Names = NONE  # names of inputs that its noise is multiplied or chosen by
    bits: Names = NONE  # names of inputs that decide its bits


KEY = Trace(noise=True, uniform=True)


def scale_names(function: Callable[..., Any], key: Any, named: Mapping[str, Any]) -> list[Trace]:
    """What the value and the noise size of every output of `function(key, **named)` depend on.

    key    draws with any other key do not count as noise;
    named  arguments by name, pytrees of arrays or shapes.
    """
    names = sorted(named)
    traced = jax.make_jaxpr(lambda key, *rest: function(key, **dict(zip(names, rest, strict=True))))(
        key, *(named[name] for name in names)
    )
    inputs = [KEY, *(Trace(values=frozenset({name})) for name in names for _ in jax.tree.leaves(named[name]))]
    return _trace_program(traced.jaxpr, inputs)


def require_public(names: Names, private: Mapping[str, str]) -> None:
    """Refuse noise whose size depends on one of these inputs; the values are their descriptions."""
    for name, what in private.items():
        measured = f"one that may depend on {what}"
        wanted = "one of public numbers: multiply noise by these alone, and add it last"
        require_so(name not in names, "the size of its noise", measured, wanted, "the trace is exact")


def _trace_program(jaxpr: Any, inputs: list[Trace]) -> list[Trace]:
    return equations.interpret(jaxpr, inputs, Trace(), _trace_equation)


def _trace_equation(equation: Any, reads: list[Trace]) -> list[Trace]:
    name, count = equation.primitive.name, len(equation.outvars)
    if name in _DRAWS:  # what is folded into a key acts only on the bits drawn with it
        key, folded = reads[0], any(read.noise for read in reads[1:])
        scale, bits = (_union(names) for names in ([read.scale for read in reads], [read.bits for read in reads]))
        bits |= _union(read.values for read in reads[1:])
        return [
            Trace(True, key.uniform, NONE if key.noise else key.values, scale, bits)
            if key.noise or folded
            else Trace(values=key.values)
        ] * count
    if name == "platform_index":
        return [Trace(values=frozenset({_PLATFORM}))]
    if name == "cond":
        return _trace_branch(equation, reads)
    if name in equations.ENTERED:
        return _trace_program(equations.inner_program(equation).jaxpr, reads)
    return [_trace_values(name, equation, reads)] * count


def _trace_branch(equation: Any, reads: list[Trace]) -> list[Trace]:
    branches = [branch.jaxpr for branch in equations.branches_of(equation)]
    if reads[0].values == {_PLATFORM}:  # the same numbers on every platform: take the last branch
        return _trace_program(branches[-1], reads[1:])
    each = [_trace_program(branch, reads[1:]) for branch in branches]
    return [_trace_choice(reads[0], list(choices)) for choices in zip(*each, strict=True)]


def _trace_values(name: str, equation: Any, reads: list[Trace]) -> Trace:
    noisy = [read for read in reads if read.noise]
    values, scale = _union(read.values for read in reads), _union(read.scale for read in reads)
    if not noisy:
        return Trace(values=values)
    whole, bits = _keeps_coins(equation), _union(read.bits for read in noisy)
    if len(noisy) > 1:
        scale |= bits
    if name in (*_MOVES, *_SUMS) and reads[0].noise and len(noisy) == 1:  # an index is a choice of noise
        kept = reads[0].uniform and whole and name in _MOVES
        return Trace(True, kept, reads[0].values, scale | _union(read.values for read in reads[1:]), bits)
    if name in _JOINS:
        return Trace(True, whole and all(read.uniform for read in reads), values, scale, bits)
    if name in _ADDS:
        if whole and len(noisy) == 1 and noisy[0].uniform:
            return Trace(True, True, NONE, scale, bits | values)
        return Trace(True, False, values, scale, bits)
    if name in _TIMES and len(noisy) == 1:
        return Trace(True, False, values, scale | _union(read.values for read in reads if not read.noise), bits)
    if name == "div" and not reads[1].noise:
        return Trace(True, False, values, scale | reads[1].values, bits)
    if name == "select_n":
        return _trace_choice(reads[0], reads[1:])
    return Trace(True, False, values, scale | values, bits)


def _trace_choice(by: Trace, choices: list[Trace]) -> Trace:
    every = [by, *choices]
    values, scale = _union(read.values for read in every), _union(read.scale for read in every)
    bits = _union(read.bits for read in every)
    if not any(read.noise for read in every):
        return Trace(values=values)
    if by.noise:
        return Trace(True, False, values, scale | values | bits, bits)
    return Trace(True, all(read.uniform for read in choices) and not by.values, values, scale | by.values, bits)


def _union(names: Any) -> Names:
    return frozenset().union(*names)


def _keeps_coins(equation: Any) -> bool:
    """Whether the output is a key, or an integer no wider than the input."""
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    if any(jnp.issubdtype(kind, jax.dtypes.prng_key) for kind in (before, after)):
        return True
    whole = np.issubdtype(before, np.integer) and np.issubdtype(after, np.integer)
    return whole and np.dtype(after).itemsize <= np.dtype(before).itemsize


_PLATFORM = "the platform"
_DRAWS = ("random_bits", "random_fold_in", "random_split")
_MOVES = frozenset(
    {"broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "expand_dims", "gather", "neg"}
    | {"random_unwrap", "random_wrap", "reshape", "rev", "slice", "squeeze", "transpose", "bitcast_convert_type"}
)
_SUMS = ("cumsum", "reduce_sum")
_JOINS = ("concatenate", "pad")
_ADDS = ("add", "add_any", "sub", "xor")
_TIMES = ("mul", "dot_general")
