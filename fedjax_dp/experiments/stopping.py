"""What ends a run before its last round by a metric of the test set."""

from fedjax_dp.rounds.metrics import Evaluation
from fedjax_dp.tasks.measures import MetricTarget


class StopRule:
    """Ends a run at the first evaluation that is as good as a target.

    By public records that is free: the claim is that of all rounds. By records that clients hold out the run has no
    epsilon, see `PlannedRun.no_epsilon_reason`.
    end  the round after which the run ends; None while no evaluation was as good.
    """

    def __init__(self, target: MetricTarget, every: int) -> None:
        self._target, self._every = target, every
        self.end: int | None = None

    def reached(self, evaluation: Evaluation) -> bool:
        """Whether the run ends here; notes the end.

        An evaluation at no multiple of `every` ends nothing: a run was to end there that has gone on to more rounds.
        """
        measure = self._target.measure
        if evaluation.round % self._every or not measure.reached(evaluation.row()[measure.name], self._target.value):
            return False
        self.end = evaluation.round
        return True
