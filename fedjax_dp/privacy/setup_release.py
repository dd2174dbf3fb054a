"""A release before the first round, by which clients are drawn: its noise is fixed, and it is counted once."""

import dataclasses

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Composed, Event
from fedjax_dp.accounting.events import each
from fedjax_dp.privacy.qualifiers import Qualifier, Target


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetupRelease(Qualifier):
    """A qualifier: what clients sent before, see `Cohort.setup_event`."""

    event: Event
    keeps_claims: bool = True

    def releases(self, events: list[Event]) -> list[Event]:
        return each(events, lambda event: Composed((self.event, event)))

    def target(self, target: Target, accountant: str) -> Target:
        """A tenth of delta, and its epsilon there, are off the budget."""
        cost = accounting.epsilon_of(self.event, target.delta / 10, accountant)
        for budget in target.budgets:
            if not budget > cost:
                wanted = f"above the {cost:.4g} that the sampling probabilities cost"
                raise errors.refuse("epsilon", budget, wanted, "raise norm_noise")
        return target._replace(budgets=[budget - cost for budget in target.budgets], delta=0.9 * target.delta)
