"""A run with its Guarantee: calibrate, simulate, account."""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model
from fedjax_dp.privacy import guarantees
from fedjax_dp.privacy.ledger import noise_of
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms, terms_from
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
    terms: PrivacyTerms,
    seed: int = 0,
    model: Model | None = None,
    counted: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Algorithm, Guarantee]:
    """The algorithm with the noise that meets the budget, and its Guarantee, before anything is trained.

    Without a budget the algorithm keeps its own noise. A private algorithm needs `delta`.
    counted  how the Guarantee counts rounds: the schedule's, or by the law of any where noise was found for it.
    """
    if noise_of(algorithm) is not None and terms.delta is None:
        raise errors.refuse("delta", "none", "given for a private algorithm", "delta below 1 / records is usual")
    said = vars(terms)
    if terms.epsilon is not None:
        algorithm = guarantees.calibrate(
            algorithm, data, rounds=rounds, seed=seed, model=model, progress=progress, **said
        )
    shown = {name: value for name, value in said.items() if name not in ("epsilon", "sigma_mode")}
    shown["participation"] = counted or ("law" if terms.participation == "law" else "schedule")
    promise = guarantees.guarantee(algorithm, data, rounds=rounds, seed=seed, model=model, **shown)
    if terms.epsilon is None:
        return algorithm, promise
    return algorithm, guarantees.over_budget(promise, terms.epsilon, terms.participation, terms.sigma_mode)


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
    algorithm, promise = prepare(algorithm, data, rounds=rounds, seed=seed, terms=terms_from(privacy), model=model)
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
