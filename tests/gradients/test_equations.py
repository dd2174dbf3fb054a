"""What JAX keeps in the parameters of equations is read in one place, in every supported version, or refused."""

import ast
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import prng
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.gradients import equations
from fedjax_dp.gradients.record_independence import require_own_operations

ROOT = pathlib.Path(fdp.__file__).parent
PROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"


def named(name, function, *arguments):
    """The first equation of this name in a function's program."""
    found = [line for line in jax.make_jaxpr(function)(*arguments).jaxpr.eqns if line.primitive.name == name]
    return found[0]


def with_params(equation, **params):
    """The same equation in another version of JAX."""
    return types.SimpleNamespace(
        primitive=equation.primitive, params=params, invars=equation.invars, source_info=equation.source_info
    )


def loop(x, scale):
    return lax.scan(lambda carry, row: ((carry[0] + scale * row, carry[1] + 1), row), (x[0], 0), x)


def test_only_one_module_reads_parameters_of_equations():
    """Elsewhere `.params` is a model's: of what steps through programs, nobody has an equation's."""
    readers = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if not re.search(r"jaxpr|\.eqns|equation", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in ("params", "get_bind_params"):
                owner = ast.unparse(node.value)
                if not re.search(r"(state|found|received|run|held|result|end|trial|setting|step|self)$", owner):
                    readers.add((path.name, owner))
            if isinstance(node, ast.Attribute) and node.attr in ("jaxprs_in_params", "bind_params"):
                readers.add((path.name, node.attr))
    assert {name for name, _ in readers} == {"equations.py"}


def test_a_loop_is_read_as_it_was_written():
    scan = equations.scan_of(named("scan", loop, jnp.ones((3, 4)), 2.0))
    assert (scan.consts, scan.carry, scan.length, scan.reverse) == (1, 2, 3, False)
    assert [len(part) for part in scan.parts(list(range(4)))] == [1, 2, 1]
    ahead = named("while", lambda x, y: lax.while_loop(lambda a: a.sum() < y, lambda a: a * y, x), jnp.ones(2), 2.0)
    assert equations.while_of(ahead)[2:] == (1, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda params: params | {"lanes": 4}, "a new lanes"),
        (lambda params: {key: value for key, value in params.items() if key != "length"}, "no length"),
        (
            lambda params: {key: params[key] for key in ("jaxpr", "length", "reverse", "unroll")},
            "no num_carry and no num_consts",
        ),
        (lambda params: {key: params[key] for key in ("jaxpr", "length", "reverse", "unroll")} | {"ft_in": 3}, "parts"),
    ],
    ids=["more", "less", "renamed", "otherwise"],
)
def test_an_unknown_version_is_refused_in_one_line_that_names_both(change, words):
    equation = named("scan", loop, jnp.ones((3, 4)), 2.0)
    with pytest.raises(ConfigurationError) as refused:
        equations.scan_of(with_params(equation, **change(equation.params)))
    line = str(refused.value)
    assert words in line
    assert jax.__version__ in line
    assert equations.SUPPORTED in line
    assert "\n" not in line


EDGES = jnp.linspace(-1, 1, 5)
KEPT_WHOLE = {  # by JAX 0.12, until a program is lowered
    "searchsorted": lambda x: jnp.searchsorted(EDGES, x),
    "interp": lambda x: jnp.interp(x, EDGES, EDGES**2),
    "digitize": lambda x: jnp.digitize(x, EDGES),
    "nonzero": lambda x: jnp.nonzero(x, size=3),
    "ldexp": lambda x: jnp.ldexp(x, jnp.ones(x.shape, jnp.int32)),
    "frexp": jnp.frexp,
    "choice": lambda x: jax.random.choice(jax.random.key(0), x, (3,), p=jnp.ones(4) / 4),
    "proportional": lambda x: prng.proportional((jnp.arange(3, dtype=jnp.uint32),) * 2, jnp.abs(x)),
}


@pytest.mark.parametrize("name", KEPT_WHOLE)
def test_functions_of_jax_numpy_are_read_as_what_they_are_made_of(name):
    x = jnp.array([0.3, 0.0, -0.2, 0.9])
    program = jax.make_jaxpr(KEPT_WHOLE[name])(x)
    require_own_operations("model", program.jaxpr)

    def rule(equation, reads):
        if equation.primitive.name not in equations.ENTERED:
            return [any(reads)] * len(equation.outvars)
        inside = equations.inner_program(equation)
        return equations.interpret(inside.jaxpr, reads, False, rule)

    assert all(equations.interpret(program.jaxpr, [True], False, rule))


def test_an_operation_that_somebody_keeps_whole_is_refused():
    hijax = pytest.importorskip("jax.experimental.hijax")
    if not hasattr(hijax, "HiPrim"):
        pytest.skip("JAX has such operations since 0.12")

    class Mean(hijax.HiPrim):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return x

        def batch(self, axis_data, args, dims):
            return args[0].mean(dims[0], keepdims=True) + 0 * args[0], dims[0]

    def forward(x):
        return Mean(jax.typeof(x))(x)

    program = jax.make_jaxpr(forward)(jnp.ones(3))
    with pytest.raises(ConfigurationError, match="call_hi_primitive"):
        require_own_operations("model", program.jaxpr)
    with pytest.raises(ConfigurationError, match="the operation Mean"):
        equations.inner_program(program.eqns[0])


def test_no_parameter_is_guessed_of_a_primitive_that_nobody_knows():
    sine = named("sin", jnp.sin, 1.0)
    for read in (
        equations.inner_program,
        equations.axes_of,
        equations.window_of,
        equations.branches_of,
        equations.label,
    ):
        with pytest.raises(ConfigurationError, match="JAX must be"):
            read(sine)


def test_a_supported_version_is_one_that_is_installed_with():
    assert f'"jax{equations.SUPPORTED}"' in PROJECT.read_text()
