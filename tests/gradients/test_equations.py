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
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.gradients import equations

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


def test_no_parameter_is_guessed_of_a_primitive_that_nobody_knows():
    sine = named("sin", jnp.sin, 1.0)
    for read in (equations.inner, equations.axes_of, equations.window_of, equations.branches_of, equations.label):
        with pytest.raises(ConfigurationError, match="JAX must be"):
            read(sine)


def test_a_supported_version_is_one_that_is_installed_with():
    assert f'"jax{equations.SUPPORTED}"' in PROJECT.read_text()
