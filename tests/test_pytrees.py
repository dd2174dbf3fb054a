"""Values as pytrees."""

import itertools

import jax

import fedjax_dp as fdp
from fedjax_dp.pytrees import structure, value


@value
class First:
    number: float
    size: int = structure(default=1)


@value
class Second:
    number: float
    size: int = structure(default=1)


def test_parts_of_different_classes_are_never_taken_for_each_other():
    """Else `jit` may run the program of another algorithm, whenever two hashes fall together."""
    alike = [
        [First(number=1.0), Second(number=1.0), First(number=1.0, size=2)],
        [
            fdp.parts.ClipRecords(),
            fdp.parts.ClipBatch(),
            fdp.parts.Unbounded(),
            fdp.parts.WhiteNoise(),
            fdp.parts.NonPrivate(),
            fdp.parts.PlainUpload(),
        ],
        [fdp.parts.UniformCohort(size=3), fdp.parts.CyclicCohort(size=3)],
    ]
    for parts in alike:
        for one, other in itertools.combinations(parts, 2):
            assert jax.tree.structure(one) != jax.tree.structure(other)


def test_a_value_survives_being_taken_apart_and_names_its_leaves():
    leaves, shape = jax.tree.flatten(First(number=2.5, size=3))
    assert leaves == [2.5]
    assert jax.tree.unflatten(shape, leaves) == First(number=2.5, size=3)
    assert jax.tree.structure(First(number=0.0, size=3)) == shape
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(First(number=2.5))
    assert (jax.tree_util.keystr(path), leaf) == (".number", 2.5)
