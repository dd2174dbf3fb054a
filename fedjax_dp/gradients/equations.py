"""The equations of traced programs: the only module that reads their parameters in JAX.

JAX promises nothing about these parameters and renames them between versions. This module knows the versions in
`SUPPORTED`. It refuses a missing or unknown parameter in one line, because a guess could hide where records go.
"""

import contextlib
import pathlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fedjax_dp import errors

T = TypeVar("T")
SUPPORTED = ">=0.10,<0.13"
CHECKPOINTS = ("remat2", "remat", "checkpoint")
HIGH = "call_hi_primitive"  # since JAX 0.12: composite functions of jax.numpy, such as searchsorted
CALLS = ("jit", "pjit", "closed_call", "core_call", HIGH, *CHECKPOINTS)
CUSTOM = ("custom_jvp_call", "custom_vjp_call")  # functions with a custom derivative
ENTERED = (*CALLS, *CUSTOM, "shard_map")  # their program is the whole computation; that of a solver is only a part

# All parameters of the primitives read here, in any supported version.
_JIT = (
    "jaxpr name inline keep_unused donated_invars in_shardings out_shardings in_layouts out_layouts ctx_mesh "
    "compiler_options_kvs"
)
_REDUCED, _SCANNED, _PICKED = "axes out_sharding", "axis reverse", "axes index_dtype"
_WINDOW = "window_dimensions window_strides window_dilation base_dilation padding"
_KNOWN = {
    "scan": "jaxpr length reverse unroll num_consts num_carry ft_in ft_out",
    "while": "cond_jaxpr body_jaxpr cond_nconsts body_nconsts",
    "cond": "branches branches_platforms",
    "jit": _JIT,
    "pjit": _JIT,
    "closed_call": "call_jaxpr name",
    "core_call": "call_jaxpr name",
    **dict.fromkeys(CHECKPOINTS, "jaxpr prevent_cse policy differentiated"),
    "custom_jvp_call": "call_jaxpr jvp_jaxpr_fun num_consts symbolic_zeros",
    "custom_vjp_call": "call_jaxpr fwd_jaxpr_thunk bwd num_consts out_trees symbolic_zeros",
    HIGH: "_prim",
    "shard_map": "jaxpr mesh in_specs out_specs check_vma newly_manual_axes",
    "name": "name",
    "dot_general": "dimension_numbers precision preferred_element_type out_sharding",
    "conv_general_dilated": "window_strides padding lhs_dilation rhs_dilation dimension_numbers feature_group_count "
    "batch_group_count precision preferred_element_type out_sharding",
    "gather": "dimension_numbers slice_sizes mode fill_value indices_are_sorted unique_indices",
    "slice": "start_indices limit_indices strides",
    "dynamic_slice": "slice_sizes",
    "split": "sizes axis",
    "unstack": "axis",
    "concatenate": "dimension",
    "reshape": "dimensions new_sizes sharding",
    "transpose": "permutation",
    "squeeze": "dimensions",
    "rev": "dimensions",
    "broadcast_in_dim": "shape broadcast_dimensions sharding",
    "sort": "dimension is_stable num_keys",
    "top_k": "axis k is_stable",
    "reduce": "dimensions computation jaxpr",
    **dict.fromkeys(("argmax", "argmin"), _PICKED),
    **dict.fromkeys([f"reduce_{kind}" for kind in ("sum", "prod", "max", "min", "and", "or", "xor")], _REDUCED),
    **dict.fromkeys([f"cum{kind}" for kind in ("sum", "prod", "max", "min", "logsumexp")], _SCANNED),
    **dict.fromkeys([f"reduce_window_{kind}" for kind in ("sum", "max", "min")], _WINDOW),
    "reduce_window": f"{_WINDOW} jaxpr consts",
    "select_and_scatter_add": f"{_WINDOW} select_prim",
    "select_and_gather_add": f"{_WINDOW} select_prim",
}
_AXES = ("axes", "axis", "dimension", "dimensions", "permutation", "broadcast_dimensions")  # their names in primitives


class Scan(NamedTuple):
    """A loop of known length. Its arguments, in order: constants, carried values, and the values it runs over."""

    body: core.ClosedJaxpr
    consts: int
    carry: int
    length: int
    reverse: bool
    unroll: Any

    def parts(self, values: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Split a list that goes with its arguments."""
        rows = self.consts + self.carry
        return values[: self.consts], values[self.consts : rows], values[rows:]


class While(NamedTuple):
    """A loop of unknown length. Its arguments: constants of the condition and of the body, and carried values."""

    condition: core.ClosedJaxpr
    body: core.ClosedJaxpr
    condition_consts: int
    body_consts: int


class Dot(NamedTuple):
    """The axes of both operands, and the precision of the product."""

    contracted: tuple[tuple[int, ...], ...]
    batch: tuple[tuple[int, ...], ...]
    precision: Any


class ConvolutionRule(NamedTuple):
    """Numbers of axes: (records, channels, *space), (outputs, channels, *space), (records, channels, *space)."""

    numbers: Any
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[tuple[int, ...], tuple[int, ...]]  # of the input, of the kernel
    groups: int
    batch_groups: int
    precision: Any
    kind: Any  # preferred type of the result


class Gather(NamedTuple):
    """Slices of these sizes, picked by indices."""

    numbers: Any
    sizes: tuple[int, ...]
    mode: str


def scan_of(equation: Any) -> Scan:
    body, length, reverse, unroll = _read(equation, "jaxpr", "length", "reverse", "unroll")
    if "ft_in" in equation.params:  # since JAX 0.11
        try:
            counts = [len(part) for part in equation.params["ft_in"].unpack()]
        except (AttributeError, TypeError, ValueError):
            counts = []
    else:
        consts, carry = _read(equation, "num_consts", "num_carry")
        counts = [consts, carry, len(equation.invars) - consts - carry]
    if len(counts) != 3 or sum(counts) != len(equation.invars):
        raise _unknown(equation, f"arguments in parts of {counts}")
    return Scan(_close(body), counts[0], counts[1], length, reverse, unroll)


def while_of(equation: Any) -> While:
    condition, body, *consts = _read(equation, "cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts")
    return While(_close(condition), _close(body), *consts)


def branches_of(equation: Any) -> list[core.ClosedJaxpr]:
    """The programs of a cond; its first argument picks one."""
    return [_close(branch) for branch in _read(equation, "branches")[0]]


def branch_for(equation: Any, platform: str) -> core.ClosedJaxpr | None:
    """The program that a cond over platforms runs on one of them; None for any other cond."""
    of_branches = _read(equation, "branches_platforms")[0] if "branches_platforms" in equation.params else None
    if of_branches is None:
        return None
    fitting = [at for at, platforms in enumerate(of_branches) if platforms is None or platform in platforms]
    return branches_of(equation)[fitting[0]]


def inner_program(equation: Any) -> core.ClosedJaxpr:
    """The program of a call, a checkpoint, a function with a custom derivative, or a loop."""
    if equation.primitive.name == HIGH:
        if not is_of_numpy(equation):
            raise _unknown(equation, f"the operation {type(_read(equation, '_prim')[0]).__name__}")
        avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
        with jax.enable_x64(any(str(aval.dtype).endswith("64") for aval in avals)):  # as where it was traced
            return jax.make_jaxpr(_read(equation, "_prim")[0].expand)(*avals[: len(equation.invars)])
    known = _KNOWN.get(equation.primitive.name, "").split()
    return _close(_read(equation, "call_jaxpr" if "call_jaxpr" in known else "jaxpr")[0])


def is_of_numpy(equation: Any) -> bool:
    """Whether it is a function of `jax.numpy` that JAX keeps whole, with rules for it, until lowering."""
    if equation.primitive.name != HIGH:
        return False
    kind = type(_read(equation, "_prim")[0])
    module = sys.modules.get(kind.__module__) if kind.__module__.startswith("jax._src.numpy.") else None
    return getattr(module, kind.__name__, None) is kind


def programs(equation: Any) -> Iterator[core.ClosedJaxpr]:
    """All programs inside any equation, with the values they close over if known."""
    if is_of_numpy(equation):
        yield inner_program(equation)
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda a: isinstance(a, _PROGRAMS))
    yield from (_close(inside) for inside in leaves if isinstance(inside, _PROGRAMS))


def interpret(jaxpr: Any, inputs: Sequence[T], unknown: T, rule: Callable[[Any, list[T]], Sequence[T]]) -> list[T]:
    """Propagate facts through a program, from its inputs to its outputs.

    inputs   a fact for each argument; `unknown` holds for literals and closed-over values;
    rule     the facts about an equation's outputs, from those about its inputs.
    """
    known: dict[Any, T] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(variable: Any) -> T:
        return unknown if isinstance(variable, core.Literal) else known.get(variable, unknown)

    for equation in jaxpr.eqns:
        outputs = rule(equation, [read(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def checkpoint(equation: Any, function: Any) -> Any:
    """A function that the backward pass computes again, as the program of this checkpoint."""
    prevent_cse, policy = _read(equation, "prevent_cse", "policy")
    return jax.checkpoint(function, prevent_cse=prevent_cse, policy=policy)


def label(equation: Any) -> str:
    """The name that `checkpoint_name` gives."""
    return str(_read(equation, "name")[0])


def dot_of(equation: Any) -> Dot:
    numbers, precision = _read(equation, "dimension_numbers", "precision")
    contracted, batch = (tuple(tuple(map(int, axes)) for axes in pair) for pair in numbers)
    return Dot(contracted, batch, precision)


def convolution_of(equation: Any) -> ConvolutionRule:
    numbers, strides, padding, spread, dilation, *rest = _read(
        equation,
        *("dimension_numbers", "window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count"),
        *("batch_group_count", "precision", "preferred_element_type"),
    )
    return ConvolutionRule(numbers, tuple(strides), tuple(map(tuple, padding)), (tuple(spread), tuple(dilation)), *rest)


def gather_of(equation: Any) -> Gather:
    numbers, sizes, mode = _read(equation, "dimension_numbers", "slice_sizes", "mode")
    return Gather(numbers, tuple(sizes), str(mode).upper())


def slices_of(equation: Any) -> list[slice]:
    """The slice of each axis."""
    starts, ends, strides = _read(equation, "start_indices", "limit_indices", "strides")
    return [slice(*part) for part in zip(starts, ends, strides or (1,) * len(starts))]


def sizes_of(equation: Any) -> tuple[int, ...]:
    """Sizes of the slice of `dynamic_slice`, or of the parts of `split`."""
    return tuple(map(int, _read(equation, "sizes" if equation.primitive.name == "split" else "slice_sizes")[0]))


def window_of(equation: Any) -> tuple[int, ...]:
    """Sizes of the windows of a reduction."""
    return tuple(_read(equation, "window_dimensions")[0])


def axes_of(equation: Any) -> tuple[int, ...]:
    """The axes that a primitive sums, sorts, reverses, splits, joins, drops or moves, in its order."""
    name = equation.primitive.name
    known = [axes for axes in _AXES if axes in _KNOWN.get(name, "").split()]
    axes = _read(equation, *known[:1])[0] if known else None
    if axes is None:
        raise _unknown(equation, "axes that are not known")
    return tuple(map(int, axes)) if isinstance(axes, tuple | list) else (int(axes),)


def sees_zeros(equation: Any) -> bool:
    """Whether the rule of a custom derivative sees which derivatives are zero."""
    return bool(_read(equation, "symbolic_zeros")[0])


def keeps_order(equation: Any) -> bool:
    """Whether a reshape keeps the order of the entries."""
    return _read(equation, "dimensions")[0] is None


@contextlib.contextmanager
def in_its_place(equation: Any) -> Iterator[None]:
    """Run the block in the scopes and the precision of the equation."""
    scopes = str(equation.source_info.name_stack)
    with equation.ctx.manager, jax.named_scope(scopes) if scopes else contextlib.nullcontext():
        yield


def bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """The outputs of an equation for these values."""
    if equation.primitive.name == "custom_vjp_call":
        return list(_trace_rules(equation)(*values))
    return _bind(equation, values)


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    try:
        outputs = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    except NotImplementedError:
        raise errors.refuse(
            "model",
            f"the primitive {equation.primitive.name}{place(equation)}, which JAX cannot batch or differentiate",
            "one that JAX can batch and differentiate",
            "write that part with other operations, or give the primitive rules",
        ) from None
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _trace_rules(equation: Any) -> Callable[..., Sequence[Any]]:
    """The function of a `custom_vjp_call` with traced rules; as Python, the backward rule would receive batches."""
    real = [is_real(variable) for variable in equation.invars]
    structure: Any = None

    def forward(*values: Any) -> tuple[list[Any], list[Any]]:
        nonlocal structure
        outputs, back = jax.vjp(lambda *values: _bind(equation, values), *values)
        kept, structure = jax.tree.flatten(back)
        return outputs, kept

    def backward(kept: list[Any], slopes: list[Any]) -> list[Any]:
        inputs = jax.tree.unflatten(structure, kept)([one_like(a) if not is_real(a) else a for a in slopes])
        return [slope for slope, one in zip(inputs, real) if one]

    ahead, (outputs, kept) = jax.make_jaxpr(forward, return_shape=True)(
        *(variable.aval for variable in equation.invars)
    )
    back = jax.make_jaxpr(backward)(kept, outputs)

    def run_forward(*values: Any) -> tuple[list[Any], list[Any]]:
        results = core.jaxpr_as_fun(ahead)(*values)
        return results[: len(outputs)], results[len(outputs) :]

    def run_backward(kept: list[Any], slopes: list[Any]) -> tuple[Any, ...]:
        slopes = [a if is_real(one) else jnp.zeros(one.shape, one.dtype) for a, one in zip(slopes, outputs)]
        tangents = iter(core.jaxpr_as_fun(back)(*kept, *slopes))
        return tuple(next(tangents) if one else None for one in real)

    function = jax.custom_vjp(core.jaxpr_as_fun(inner_program(equation)))
    function.defvjp(run_forward, run_backward)
    return function


def is_real(value: Any) -> bool:
    """Whether a value, or a variable, has a derivative."""
    return bool(jnp.issubdtype(getattr(value, "aval", value).dtype, jnp.inexact))


def one_like(value: Any) -> Any:
    """A tangent of ones; for a value without derivative, its float0 tangent."""
    return jnp.ones_like(value) if is_real(value) else np.zeros(value.shape, jax.dtypes.float0)


def _read(equation: Any, *names: str) -> list[Any]:
    """These parameters of an equation; refuse it if any of its parameters is unknown."""
    strange = sorted(equation.params.keys() - _KNOWN.get(equation.primitive.name, "").split())
    missing = sorted(set(names) - equation.params.keys())
    if strange or missing:
        raise _unknown(
            equation, " and ".join([*(f"a new {name}" for name in strange), *(f"no {name}" for name in missing)])
        )
    return [equation.params[name] for name in names]


def _unknown(equation: Any, what: str) -> errors.ConfigurationError:
    return errors.refuse(
        "JAX",
        f"{jax.__version__}, whose {equation.primitive.name} has {what}{place(equation)}",
        f"a version in which programs can be read ({SUPPORTED})",
        f'pip install "jax{SUPPORTED}"',
    )


_PROGRAMS = (core.ClosedJaxpr, core.Jaxpr)  # one class since JAX 0.11


def _close(program: Any) -> core.ClosedJaxpr:
    return program if isinstance(program, core.ClosedJaxpr) else core.ClosedJaxpr(program, ())


def place(equation: Any) -> str:
    """The equation's place in the user's code: ` in folder/file.py:12 (function)`, or nothing."""
    return place_of(frames_of(equation))


def frames_of(equation: Any) -> list[tuple[str, int | None, str]]:
    """File, line and function of each call around an equation's trace, innermost first."""
    trace = equation.source_info.traceback
    return [] if trace is None else [(f.file_name, f.line_num, f.function_name) for f in trace.frames]


def place_of(frames: Iterable[tuple[str, int | None, str]]) -> str:
    """The first frame (file, line, function) outside libraries and the engine, in words."""
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
