"""A run with its Guarantee: calibrate, simulate, account."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_dp import errors, privacy
from fedjax_dp.accounting import Guarantee
from fedjax_dp.algorithm import Algorithm
from fedjax_dp.clients import Execution
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.simulation import Evaluation, Simulation, Timing, simulate


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
    algorithm: Algorithm, data: FederatedData, *, rounds: int, seed: int = 0, epsilon: float | None = None,
    delta: float | None = None, accountant: str = "pld", participation: str = "schedule", view: str = "uploads",
    colluders: int = 0, progress: Callable[[int, int], None] | None = None,
) -> tuple[Algorithm, Guarantee]:  # fmt: skip
    """The algorithm with the noise that meets the budget, and its Guarantee, before anything is trained.

    Without `epsilon` the algorithm keeps its own noise. A private algorithm needs `delta`.
    """
    private = algorithm.local.privatizer.client_noise(data.num_clients) is not None
    if private and delta is None:
        raise errors.refuse("delta", "none", "given for a private algorithm", "delta below 1 / records is usual")
    if epsilon is not None:
        algorithm = privacy.calibrate(
            algorithm, data, rounds=rounds, epsilon=epsilon, delta=delta, seed=seed, accountant=accountant,
            participation=participation, view=view, colluders=colluders, progress=progress,
        )  # fmt: skip
    promise = privacy.guarantee(
        algorithm, data, rounds=rounds, delta=delta, seed=seed, accountant=accountant,
        participation="law" if participation == "law" else "schedule", view=view, colluders=colluders,
    )  # fmt: skip
    if epsilon is not None and promise.epsilon > epsilon:
        excess = (
            f"the worst client has epsilon {promise.epsilon:.4g}, above the budget {epsilon:g}: noise was found for "
        )
        excess += f"participation {participation}, which some clients exceed"
        promise = dataclasses.replace(promise, warnings=(*promise.warnings, excess))
    return algorithm, promise


def run(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    epsilon: float | None = None,
    delta: float | None = None,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str = "uploads",
    colluders: int = 0,
    model: Model | None = None,
    evaluate_every: int | None = None,
    execution: Execution | None = None,
) -> Result:
    """Train `algorithm` on `data` and say what it promises; see `privacy.calibrate` and `simulate` for the options."""
    algorithm, promise = prepare(
        algorithm, data, rounds=rounds, seed=seed, epsilon=epsilon, delta=delta, accountant=accountant,
        participation=participation, view=view, colluders=colluders,
    )  # fmt: skip
    simulation = simulate(
        algorithm, data, rounds=rounds, seed=seed, model=model, evaluate_every=evaluate_every, execution=execution
    )
    return Result(algorithm, simulation, promise)
