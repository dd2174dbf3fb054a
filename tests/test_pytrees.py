"""Values as pytrees."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.parts import clusters
from fedjax_dp.pytrees import check_part, number, replace, structure, value


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


@value
class Inner:
    speed: float = number(errors.require_positive, option="inner_speed", remedy="slow down", default=1.0)
    most: int | None = structure(errors.require_count, default=None)


@value
class Outer:
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    numbers: dict = number(
        {"decay": errors.require_decay, "": errors.require_not_negative}, option="outer_", default_factory=dict
    )
    kind: str = structure(errors.one_of("a", "b"), default="a")

    def check(self, limit):
        if self.inner.speed > limit:
            raise errors.refuse("inner_speed", self.inner.speed, f"at most {limit}")


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (Outer(inner=Inner(speed=math.nan)), "inner_speed must be positive and finite, got nan; slow down"),
        (Outer(several=(Inner(), Inner(most=0))), "most must be an integer of at least 1, got 0"),
        (Outer(inner=Inner(most=2.0)), "most must be an integer of at least 1, got 2.0"),
        (Outer(inner=Inner(speed=None)), "inner_speed must be a number, got None; slow down"),
        (Outer(numbers={"decay": 1.0}), "outer_decay must be in [0, 1), got 1.0"),
        (Outer(numbers={"other": np.ones(2)}), "outer_other must be a number, got array([1., 1.])"),
        (Outer(kind="c"), "kind must be one of a, b, got 'c'"),
        (Outer(inner=Inner(speed=3.0)), "inner_speed must be at most 2, got 3.0"),  # by its own method
    ],
)
def test_what_a_number_may_be_stands_at_its_field(part, line):
    check_part(Outer(several=(Inner(most=3),), numbers={"decay": jnp.float32(0.5), "other": 2}), 2)
    check_part(Inner(speed=np.float32(3)), 2)  # it has no method of its own
    assert refusal(check_part, part, 2) == line


@value
class Redeclared(fdp.parts.RecordGaussian):
    clip_norm: float = 1.0


@value
class OwnChoice(clusters.ClusterChoice):
    """A choice of one's own, whose fields say nothing of their numbers."""

    bound: float
    rounds: int | None = structure(default=None)


def test_numbers_that_privacy_needs_are_checked_where_a_class_of_ones_own_writes_the_field_anew():
    check_part(Redeclared(noise_multiplier=1.0), 3)
    assert "clip_norm must be positive" in refusal(check_part, Redeclared(clip_norm=-1.0, noise_multiplier=1.0), 3)
    for choice, name in ((OwnChoice(bound=-1.0), "loss_bound"), (OwnChoice(bound=1.0, rounds=0), "choices")):
        assert f"{name} must be" in refusal(clusters.OwnClusters.check, fake(choice), None, np.ones(2))


def fake(choice):
    """Clusters with a choice that lacks members, which only a whole run would miss."""
    return replace(clusters.OwnClusters(choice=clusters.GaussianChoice(bound=1.0), number=2), choice=choice)
