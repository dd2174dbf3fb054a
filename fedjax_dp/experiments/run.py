"""A run with its Guarantee: calibrate, simulate, account."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model
from fedjax_dp.privacy import guarantees
from fedjax_dp.privacy.guarantees import Budget
from fedjax_dp.privacy.ledger import noise_of
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


def prepare(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    epsilon: Budget | None = None,
    delta: float | None = None,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    sigma_mode: str = "per_client",
    model: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Algorithm, Guarantee]:
    """The algorithm with the noise that meets the budget, and its Guarantee, before anything is trained.

    Without `epsilon` the algorithm keeps its own noise. A private algorithm needs `delta`.
    """
    options: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "accountant": accountant,
        "view": view,
        "colluders": colluders,
        "model": model,
    }
    if noise_of(algorithm) is not None and delta is None:
        raise errors.refuse("delta", "none", "given for a private algorithm", "delta below 1 / records is usual")
    if epsilon is not None:
        algorithm = guarantees.calibrate(
            algorithm,
            data,
            epsilon=epsilon,
            delta=delta,
            participation=participation,
            sigma_mode=sigma_mode,
            progress=progress,
            **options,
        )
    counted = "law" if participation == "law" else "schedule"
    promise = guarantees.guarantee(algorithm, data, delta=delta, participation=counted, **options)
    return algorithm, promise if epsilon is None else guarantees.over_budget(
        promise, epsilon, participation, sigma_mode
    )


def run(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    epsilon: Budget | None = None,
    delta: float | None = None,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    sigma_mode: str = "per_client",
    model: Model | None = None,
    evaluate_every: int | None = None,
    train_metrics: bool = False,
    execution: Execution | None = None,
    on_host: bool = False,
) -> Result:
    """Train `algorithm` on `data` and say what it promises; see `fdp.calibrate` and `simulate` for the options."""
    algorithm, promise = prepare(
        algorithm,
        data,
        rounds=rounds,
        seed=seed,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        participation=participation,
        view=view,
        colluders=colluders,
        sigma_mode=sigma_mode,
        model=model,
    )
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
    )
    return Result(algorithm, simulation, promise)
