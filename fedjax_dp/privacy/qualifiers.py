"""Qualifiers: how optional features of a run change its Guarantee.

A Guarantee follows from events. Another unit, a release before the first round, an early stop, private initial
parameters and a deployment each have a qualifier in their own file. `PlannedRun.qualifiers` lists those of a run; a run
without such features calls none of their code.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_dp.accounting import Event, Guarantee


class Target(NamedTuple):
    """The target of calibration."""

    events: list[Event]  # of each client, at noise multiplier 1
    budgets: Sequence[float]  # epsilon of each client
    delta: float


class Account(NamedTuple):
    """The inputs from which a Guarantee is computed."""

    events: list[Event]  # of each client, of the run by itself
    delta: float
    accountant: str
    guarantee_of: Callable[[Any], Guarantee]  # of another PlannedRun, in the same way


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qualifier:
    """What a feature adds to a Guarantee, and how it changes its events; by default it changes nothing.

    reason       why no epsilon exists, if none does
    caveat       text before the number
    keeps_claims  whether theorems of papers apply to such a run
    in_run       whether the run itself makes the releases that it adds
    """

    reason: str | None = None
    caveat: str | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    keeps_claims: bool = False
    in_run: bool = True

    def rounds(self, events: list[Event]) -> list[Event]:
        """The events of all clients in the rounds."""
        return events

    def releases(self, events: list[Event]) -> list[Event]:
        """All events of all clients, from those of the rounds."""
        return events

    def target(self, target: Target, accountant: str) -> Target:
        """The target for the noise of the rounds: the budget left after other releases with fixed noise.

        Raises: ConfigurationError if nothing is left.
        """
        return target

    def infinite_reason(self, account: Account) -> str | None:
        """The reason if the feature makes epsilon infinite; called only for infinite epsilons."""
        return None

    def fields(self, account: Account) -> dict[str, Any]:
        """Further fields of the Guarantee."""
        return {}
