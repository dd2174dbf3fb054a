"""A release before the first round that determines how clients are drawn: it has fixed noise and counts once."""

import dataclasses

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Composed, Event
from fedjax_dp.accounting.events import each
from fedjax_dp.display import upward
from fedjax_dp.privacy.qualifiers import Qualifier, Target


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetupRelease(Qualifier):
    """A qualifier: messages before the first round, see `Cohort.setup_event`."""

    event: Event
    keeps_claims: bool = True

    def releases(self, events: list[Event]) -> list[Event]:
        return each(events, lambda event: Composed((self.event, event)))

    def target(self, target: Target, accountant: str) -> Target:
        """The target less a tenth of delta, and less the epsilon of this release at it."""
        cost = accounting.epsilon_of(self.event, target.delta / 10, accountant)
        for budget in target.budgets:
            if not budget > cost:
                wanted = f"above the {upward(cost)} that the sampling probabilities cost"
                raise errors.refuse("epsilon", budget, wanted, "raise norm_noise")
        return target._replace(budgets=[budget - cost for budget in target.budgets], delta=0.9 * target.delta)
