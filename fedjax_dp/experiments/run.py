"""A run with its Guarantee: calibrate, simulate, account."""

from typing import Any, NamedTuple, Unpack

from fedjax_dp.accounting import Guarantee
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model, logistic_regression
from fedjax_dp.privacy.guarantees import prepared
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyOptions, terms_from
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import Evaluation, Simulation, Timing, simulate


class Result(NamedTuple):
    """What a run found, and what it promises."""

    algorithm: Algorithm  # as it ran, with the calibrated noise
    simulation: Simulation
    guarantee: Guarantee

    @property
    def params(self) -> Any:
        return self.simulation.params

    @property
    def history(self) -> list[Evaluation]:
        return self.simulation.history

    @property
    def timing(self) -> Timing:
        return self.simulation.timing

    @property
    def test_accuracy(self) -> float:
        return self.history[-1].test_accuracy

    @property
    def test_loss(self) -> float:
        return self.history[-1].test_loss


def run(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    model: Model | None = None,
    evaluate_every: int | None = None,
    train_metrics: bool = False,
    execution: Execution | None = None,
    on_host: bool = False,
    **privacy: Unpack[PrivacyOptions],
) -> Result:
    """Train `algorithm` on `data` and say what it promises.

    How privacy is counted, and the budget, are keyword arguments: see `PrivacyTerms`; for the others see `simulate`.
    """
    model = model or logistic_regression(data.record_shape, data.classes)
    planned = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms_from(privacy))
    algorithm, promise = prepared(planned)
    simulation = simulate(
        algorithm,
        data,
        rounds=rounds,
        seed=seed,
        model=model,
        evaluate_every=evaluate_every,
        train_metrics=train_metrics,
        execution=execution,
        on_host=on_host,
        checked=True,
    )
    return Result(algorithm, simulation, promise)
