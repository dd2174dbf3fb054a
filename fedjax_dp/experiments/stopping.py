"""The rule that ends a run early by a metric of the test set."""

from fedjax_dp.rounds.metrics import Evaluation
from fedjax_dp.tasks.measures import MetricTarget


class StopRule:
    """Ends a run at the first evaluation that reaches a target.

    A test on public records costs no privacy: the claim covers all rounds. With records that clients hold out the run
    has no epsilon, see `PlannedRun.no_epsilon_reason`.
    end  the round after which the run ends; None while no evaluation has reached the target.
    """

    def __init__(self, target: MetricTarget, every: int) -> None:
        self._target, self._every = target, every
        self.end: int | None = None

    def reached(self, evaluation: Evaluation) -> bool:
        """Whether the run ends here; notes the end.

        Ignores an evaluation at no multiple of `every`: it was the end of a run since continued to more rounds.
        """
        measure = self._target.measure
        if evaluation.round % self._every or not measure.reached(evaluation.row()[measure.name], self._target.value):
            return False
        self.end = evaluation.round
        return True
