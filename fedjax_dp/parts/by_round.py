"""Schedules of noise multiplier, clip norm and learning rate over rounds, fixed before the run."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, schedules
from fedjax_dp.pytrees import structure, value

MOST_ROUNDS = 2**24  # float32 counts no further


class FunctionOfRounds:
    """Base of a value with two fields: a function of the round, and its numbers by name.

    FUNCTIONS  the functions that have a name; KIND  what a refusal calls them.
    """

    FUNCTIONS: ClassVar[Mapping[str, Callable[..., jax.Array]]]
    KIND: ClassVar[str]

    @classmethod
    def of(cls, name: str, **numbers: Any) -> Self:
        """The function of a name, with its defaults for missing numbers: `ByRound.of("linear", end=0.5, rounds=20)`.

        Raises: ConfigurationError for a number that it does not have, or for a missing one without a default.
        """
        errors.require_choice(cls.KIND, name, cls.FUNCTIONS)
        function, what = cls.FUNCTIONS[name], f"{cls.KIND.split()[0]} {name}"
        _, *parameters = inspect.signature(function).parameters.values()
        for number in numbers:
            errors.require_choice(f"a number of {what}", number, [one.name for one in parameters])
        for one in parameters:
            if one.default is one.empty and numbers.get(one.name) is None:
                raise errors.refuse(one.name, "nothing", f"given for {what}")
        values = {one.name: numbers.get(one.name, one.default) for one in parameters}
        first, second = dataclasses.fields(cls)  # type: ignore[arg-type]
        return cls(**{first.name: function, second.name: values})


@value
class ByRound(FunctionOfRounds):
    """A factor for every round, 1 in the first. It depends on no records, so each round is counted with its own factor.

    change   of `schedules.CHANGES`, or a module-level function of the round like them;
    numbers  its numbers by name; traced.
    """

    change: Callable[..., jax.Array] = structure(default=schedules.change_linear)
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    FUNCTIONS, KIND = schedules.CHANGES, "change over rounds"

    @classmethod
    def of(cls, name: str, **numbers: Any) -> Self:
        """As `FunctionOfRounds.of`; a list of factors may also be a comma-separated string."""
        listed = numbers.get("factors")
        if isinstance(listed, str):
            try:
                listed = [float(word) for word in listed.split(",")]
            except ValueError:
                wanted = "comma-separated numbers"
                raise errors.refuse("factors", repr(listed), wanted, "such as 1,0.8,0.5") from None
        if listed is not None:
            numbers["factors"] = np.asarray(listed, np.float32)
        return super().of(name, **numbers)

    def at(self, round_index: jax.Array) -> jax.Array:
        """The factor of a round, float32; traced. Before round 0 it is the factor of round 0."""
        return self.change(jnp.maximum(round_index, 0), **self.numbers)

    def factors(self, rounds: int) -> np.ndarray:
        """The factors of `rounds` rounds and of the one after `(rounds + 1,)`.

        Raises: ConfigurationError if one is not positive and finite, or the first is not 1.
        """
        each = np.asarray(jax.vmap(self.at)(jnp.arange(rounds + 1)), np.float32)
        if not np.all((each > 0) & np.isfinite(each)) or each[0] != 1:
            got = f"{each[0]:g} in the first, {each.min():g} to {each.max():g}"
            wanted = "1 in the first round, and positive and finite in every round"
            raise errors.refuse("factors of rounds", got, wanted, "noise_multiplier and clip_norm are those of round 0")
        return each

    def check(self, what: str) -> None:
        """Refuse invalid numbers; `what` is the name of what they change."""
        for name in ("rounds", "stages"):
            if name in self.numbers:
                number = errors.require_number(f"{what}_{name}", self.numbers[name])
                errors.require_integer(f"{what}_{name}", int(number), 1, MOST_ROUNDS)
        if "end" in self.numbers:
            errors.require_positive(f"{what}_end", self.numbers["end"])
        if "factors" in self.numbers:
            listed = np.asarray(self.numbers["factors"], float)
            if listed.ndim != 1 or not listed.size or not np.all((listed > 0) & np.isfinite(listed)) or listed[0] != 1:
                wanted = "a list of positive numbers, one for each round, that begins with 1"
                raise errors.refuse(f"{what}_factors", listed.tolist(), wanted, "they multiply what is set for round 0")


@value
class RateSchedule(FunctionOfRounds):
    """The slot `schedule`: the factor on the learning rate in every round, or in every local step under `per_step`.

    factor   of `schedules.SCHEDULES`, or a module-level function of the round like them;
    numbers  its numbers by name; traced.
    """

    factor: Callable[..., jax.Array] = structure(default=schedules.constant)
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    FUNCTIONS, KIND = schedules.SCHEDULES, "schedule"


def at_round(number: Any, changes: ByRound | None, round_index: jax.Array) -> Any:
    return number if changes is None else number * changes.at(round_index)
