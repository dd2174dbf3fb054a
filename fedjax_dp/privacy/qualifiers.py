"""What a feature that only some runs have changes of a Guarantee.

A Guarantee is made of events. Another unit, a release before the first round, an early stop, a private start and a
deployment each have a qualifier, in their own files. A run lists those that it has (`PlannedRun.qualifiers`); one
without any calls none.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_dp.accounting import Event, Guarantee


class Target(NamedTuple):
    """What noise is to be found for."""

    events: list[Event]  # of each client, at noise multiplier 1
    budgets: Sequence[float]  # epsilon of each client
    delta: float


class Account(NamedTuple):
    """How the Guarantee is worked out."""

    events: list[Event]  # of each client, of the run by itself
    delta: float
    accountant: str
    guarantee_of: Callable[[Any], Guarantee]  # of another PlannedRun, in the same way


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qualifier:
    """What a Guarantee says of the feature, and what it changes of its events; the plain ones change nothing.

    reason       why no epsilon exists, where none does
    caveat       what has to be read before the number
    keeps_claims  whether theorems of papers apply to such a run
    in_run       whether what it adds is released by the run itself
    """

    reason: str | None = None
    caveat: str | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    keeps_claims: bool = False
    in_run: bool = True

    def rounds(self, events: list[Event]) -> list[Event]:
        """What the rounds release of each client."""
        return events

    def releases(self, events: list[Event]) -> list[Event]:
        """What is released of each client in all, of what its rounds release."""
        return events

    def target(self, target: Target, accountant: str) -> Target:
        """What the noise of the rounds is to be found for: less budget where other releases have noise of their own.

        Raises: ConfigurationError where they leave none.
        """
        return target

    def infinite_reason(self, account: Account) -> str | None:
        """Why epsilon is infinite, where the feature makes it so; asked only where it is."""
        return None

    def fields(self, account: Account) -> dict[str, Any]:
        """Further fields of the Guarantee."""
        return {}
