"""Every algorithm by its name in the papers: a short constructor that fills the slots."""

from collections.abc import Callable
from typing import Any

import optax

from fedjax_dp import errors
from fedjax_dp.aggregate import ESTIMATORS
from fedjax_dp.algorithm import Algorithm
from fedjax_dp.batches import Batches, FixedBatches, FullBatches, PoissonBatches, ReplacementBatches
from fedjax_dp.cohort import AllClients, UniformCohort
from fedjax_dp.correction import L2Penalty
from fedjax_dp.local import LocalSgd
from fedjax_dp.privatizer import NonPrivate, Privatizer, RecordGaussian
from fedjax_dp.schedules import SCHEDULES
from fedjax_dp.server import SECOND_MOMENTS, Server

BATCHES: dict[str, Callable[[int], Batches]] = {
    "without-replacement": lambda size: FixedBatches(size=size),
    "with-replacement": lambda size: ReplacementBatches(size=size),
    "poisson": lambda size: PoissonBatches(size=size),
    "full": lambda largest_client: FullBatches(rows=largest_client),
}


def _assemble(
    privatizer: Privatizer, server: Server, *, cohort_size: int | None, batch_size: int, local_steps: int,
    learning_rate: float, schedule: str, estimator: str, batches: str, l2: float,
) -> Algorithm:  # fmt: skip
    errors.require_choice("schedule", schedule, SCHEDULES)
    errors.require_choice("estimator", estimator, ESTIMATORS)
    errors.require_choice("batches", batches, BATCHES)
    return Algorithm(
        cohort=AllClients() if cohort_size is None else UniformCohort(size=cohort_size),
        local=LocalSgd(
            learning_rate=learning_rate, privatizer=privatizer, batches=BATCHES[batches](batch_size),
            corrections=(L2Penalty(strength=l2),), steps=local_steps, schedule=SCHEDULES[schedule],
        ),
        aggregate=ESTIMATORS[estimator],
        server=server,
    )  # fmt: skip


def _add_update() -> Server:
    """The new model is the old one plus the aggregated update."""
    return Server(hyperparameters={"learning_rate": 1.0}, factory=optax.sgd)


def fedavg(
    *, cohort_size: int | None, batch_size: int, local_steps: int, learning_rate: float, schedule: str = "constant",
    estimator: str = "wor_delta", batches: str = "without-replacement", l2: float = 0.0,
) -> Algorithm:  # fmt: skip
    """Federated averaging without privacy (McMahan et al. 2017), with any estimator of `aggregate.py`.

    `cohort_size=None` trains every client in every round; `l2` is h in h |w|^2.
    """
    return _assemble(
        NonPrivate(), _add_update(), cohort_size=cohort_size, batch_size=batch_size, local_steps=local_steps,
        learning_rate=learning_rate, schedule=schedule, estimator=estimator, batches=batches, l2=l2,
    )  # fmt: skip


def dpnfl(
    *, cohort_size: int | None, batch_size: int, local_steps: int, learning_rate: float, clip_norm: float,
    noise_multiplier: Any = 0.0, schedule: str = "inverse_sqrt", estimator: str = "wor_delta",
    batches: str = "without-replacement", l2: float = 1e-3,
) -> Algorithm:  # fmt: skip
    """DPNFL (000 Algorithm 1): every local step clips each record's gradient and adds noise to the batch.

    `noise_multiplier` z is the noise on the sum over the clip norm (000's sigma is z G / B); one number, or one per
    client. `calibrate` finds it for a budget; at its default of 0 there is no privacy, and the Guarantee says so.
    """
    return _assemble(
        RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier), _add_update(),
        cohort_size=cohort_size, batch_size=batch_size, local_steps=local_steps, learning_rate=learning_rate,
        schedule=schedule, estimator=estimator, batches=batches, l2=l2,
    )  # fmt: skip


def addpnfl(
    *, cohort_size: int | None, batch_size: int, local_steps: int, learning_rate: float, clip_norm: float,
    noise_multiplier: Any = 0.0, server_learning_rate: float = 0.01, b1: float = 0.9, b2: float = 0.99,
    pi: float = 1e-3, second_moment: str = "delta", schedule: str = "inverse_sqrt", estimator: str = "wor_delta",
    batches: str = "without-replacement", l2: float = 1e-3,
) -> Algorithm:  # fmt: skip
    """AdDPNFL (000 Algorithm 2): DPNFL whose server moves by an Adam rule without bias correction.

    `second_moment`: "delta" squares the update (Algorithm 2), "mu" squares the first moment (000's displayed
    equation, whose first steps are up to ten times larger). Both rates follow `schedule`.
    """
    errors.require_choice("second_moment", second_moment, SECOND_MOMENTS)
    numbers = {"learning_rate": server_learning_rate, "b1": b1, "b2": b2, "pi": pi}
    server = Server(hyperparameters=numbers, factory=SECOND_MOMENTS[second_moment], schedule=SCHEDULES[schedule])
    return _assemble(
        RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier), server,
        cohort_size=cohort_size, batch_size=batch_size, local_steps=local_steps, learning_rate=learning_rate,
        schedule=schedule, estimator=estimator, batches=batches, l2=l2,
    )  # fmt: skip


CATALOGUE: dict[str, Callable[..., Algorithm]] = {"fedavg": fedavg, "dpnfl": dpnfl, "addpnfl": addpnfl}
