"""Operations that a traced function of one record may use, so that `vmap` keeps records apart.

With `vmap`, each of JAX's own operations treats every record separately. An operation with a user-defined batching rule
(`custom_vmap`, a user-defined primitive), or one that leaves the program (callbacks, foreign functions, references),
may see all records of a batch. A list of those would never be complete, so only JAX's own operations with their own
rules are allowed.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import Primitive, primitives
from jax.interpreters import batching

from fedjax_dp import errors
from fedjax_dp.gradients import equations

# JAX's own are in its public list, and in the modules of these operations (some are younger than the list).
_HOMES = ("jax._src.lax.", "jax._src.random.", "jax._src.prng")
_SINGLE = {"jax._src.core": ("pvary_p",), "jax._src.ad_util": ("zeros_like_p",), "jax._src.pjit": ("reshard_p",)}
# Not these: they combine data of devices or a named axis, read and write references, or order effects.
_JOINING = ("jax._src.lax.parallel", "jax._src.state.primitives", "jax._src.state.discharge")
_ACTING = ("after_all_p", "create_token_p", "custom_lin_p", "composite_p", "dce_sink_p")


@functools.cache
def own_primitives() -> frozenset[Primitive]:
    """JAX's own primitives; `vmap` keeps their records apart if their rules are JAX's own, too."""

    def held_by(module: Any, but: tuple[str, ...] = ()) -> set[Primitive]:
        return {one for name, one in vars(module).items() if isinstance(one, Primitive) and name not in but}

    own = held_by(primitives, _ACTING)
    for name, module in list(sys.modules.items()):
        if name.startswith(_HOMES):
            own |= held_by(module, _ACTING)
    for name, names in _SINGLE.items():
        own |= {getattr(sys.modules[name], one) for one in names if hasattr(sys.modules.get(name), one)}
    for name in _JOINING:
        own -= held_by(sys.modules[name]) if name in sys.modules else set()
    return frozenset(own)


def require_own_operations(what: str, jaxpr: Any, derivatives: bool = True, around: str = "") -> None:
    """Refuse a program of one record with an operation that may mix the records of a batch.

    derivatives  whether to check rules of `custom_jvp` and `custom_vjp` too, as gradients use them;
    around       the place in the user's code that calls the program, in words.
    Raises:      ConfigurationError that names the primitive and its place in the user's code.
    """
    for equation in jaxpr.eqns:
        primitive, place = equation.primitive, equations.place(equation) or around
        for inside in equations.programs(equation):
            require_own_operations(what, inside.jaxpr, derivatives, place)
        own = equations.is_of_numpy(equation) or (primitive in own_primitives() and _rule_is_own(primitive))
        if equation.effects or not own:
            raise errors.refuse(
                what,
                f"{primitive.name}{place}, which may see the records of a batch together, or have side effects",
                "made of JAX's own operations, each with its own batching rule",
                "write it with jax.numpy and jax.lax",
            )
        if derivatives and primitive.name in equations.CUSTOM:
            if equations.sees_zeros(equation):
                raise errors.refuse(
                    what,
                    f"a rule for a derivative that sees which derivatives are zero{place}, and may differ by them",
                    "one that is the same for all",
                    "leave out symbolic_zeros",
                )
            require_own_operations(f"a derivative in the {what}", _derivative(what, equation), False, place)


def _derivative(what: str, equation: Any) -> Any:
    """The program of an equation's derivative, by its own rule."""

    def function(*values: Any) -> Any:
        def call(*values: Any) -> list[Any]:
            return equations.bind(equation, values)

        if equation.primitive.name == "custom_jvp_call":
            return jax.jvp(call, values, tuple(map(equations.one_like, values)))[0]
        outputs, back = jax.vjp(call, *values)
        return [slope for slope in back([equations.one_like(a) for a in outputs]) if equations.is_real(slope)]

    try:
        return jax.make_jaxpr(function)(*(variable.aval for variable in equation.invars)).jaxpr
    except errors.ConfigurationError:
        raise
    except Exception as failure:
        reason = f"{type(failure).__name__}: {str(failure).strip().splitlines()[0] if str(failure).strip() else ''}"
        got = f"a rule for a derivative that fails{equations.place(equation)}: {reason}"
        raise errors.refuse(what, got, "one whose gradient can be traced", "mend that rule") from failure


def _rule_is_own(primitive: Primitive) -> bool:
    """Whether a primitive's batching rule consists of JAX's own functions only."""
    return all(map(_of_jax, _parts(batching.fancy_primitive_batchers.get(primitive), set())))


def _parts(rule: Any, seen: set[int]) -> Iterator[Any]:
    """The functions of a batching rule: itself, its closures and its arguments."""
    if not callable(rule) or isinstance(rule, type) or id(rule) in seen:
        return
    seen.add(id(rule))
    yield rule
    cells = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
    if isinstance(rule, functools.partial):
        cells += [rule.func, *rule.args, *rule.keywords.values()]
    for part in cells:
        yield from _parts(part, seen)


def _of_jax(function: Any) -> bool:
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).split(".")[0] in ("jax", "functools")
