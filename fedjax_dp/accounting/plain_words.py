"""What a guarantee means for an attacker, as success rates in plain words."""

import math
from typing import Any, NamedTuple

from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.display import upward

FALSE_ALARMS = 0.01  # the rate at which attacks on membership are compared: Carlini et al. 2022, arXiv:2112.03570
MUCH = 10.0  # nats; above it epsilon itself rules out next to nothing


class AttackBounds(NamedTuple):
    """Success rates that no attack on a release exceeds. The attacker decides whether a record (or a client) was used,
    or which of two was used: both are equally likely beforehand, and the attacker knows everything else.

    `accounting.attack_bounds` computes them.
    """

    right: float  # share of right answers of the best guess: how sure it is on average after it has looked
    recognised: float  # share of what was used that it names, where it names `FALSE_ALARMS` of what was not
    of_curve: bool  # from the trade-off curve; else from epsilon and delta alone, which leave more open

    @property
    def precision(self) -> float:
        """Share of right answers among the members that the attack names, at that rate of false alarms."""
        return self.recognised / (self.recognised + FALSE_ALARMS)

    def in_words(self, unit: Unit, adjacency: Adjacency | None) -> tuple[str, ...]:
        """The bounds in plain words, and their basis."""
        before = (
            f"everything else, and finds it 50% likely that one {unit} was used"
            if adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
            else f"everything but one {unit}, and finds two candidates for it equally likely (50%)"
        )
        basis = (
            "the proved trade-off between false alarms and misses that the noise enforces, which says more than epsilon"
            if self.of_curve
            else "epsilon and delta alone, because no more is proved; the true limits may be lower"
        )
        return (
            f"an attacker who knows {before}: after all that it sees, its best guess is right in at most "
            f"{at_most(self.right)} of cases",
            f"if it may be wrong about 1 in 100 that were not used, it recognises at most {at_most(self.recognised)} "
            "of those that were (blind guessing: 1%), and is at most "
            f"{at_most(self.precision)} sure of one that it names",
            f"computed from {basis}",
        )

    def to_dict(self, unit: Unit, adjacency: Adjacency | None) -> dict[str, Any]:
        return self._asdict() | {"named": self.precision, "statement": list(self.in_words(unit, adjacency))}


def at_most(share: float) -> str:
    """An upper bound in percent, rounded up to two digits of it or of its distance to 100%.

    >>> [at_most(share) for share in (0.6915, 0.0917, 0.99301, 0.9999999)]
    ['70%', '9.2%', '99.31%', '100%']
    """
    left = min(share, 1 - share)
    digits = next((digits for digits, least in enumerate((0.1, 0.01, 0.001)) if left >= least), 3)
    shown = math.ceil(share * 10 ** (digits + 2) - 1e-9) / 10**digits
    return f"{shown:.{digits}f}".rstrip("0").rstrip(".") + "%" if digits else f"{shown:.0f}%"


def epsilon_warnings(epsilon: float) -> tuple[str, ...]:
    """A warning if epsilon is so large that the number alone means little."""
    if epsilon <= MUCH or math.isinf(epsilon):
        return ()
    return (
        f"epsilon {upward(epsilon)} is above {MUCH:g}: the number itself rules out next to nothing; use more noise or "
        "fewer rounds, or read what attackers can still not do (--plain)",
    )
