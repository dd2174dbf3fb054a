"""What wings above this one add to it when the package is imported: rules for noise, and claims about a run.

Nothing here knows who adds them, and without them every epsilon is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # hooks are filled before anything slow is loaded
    import numpy as np

    from fedjax_dp.accounting import Claim, Event
    from fedjax_dp.data.store import FederatedData
    from fedjax_dp.rounds.algorithm import Algorithm

    # noise multipliers `(num_clients,)` of (algorithm, data, rounds, epsilon of each client, delta)
    NoiseRule = Callable[[Algorithm, FederatedData, int, Sequence[float], float], np.ndarray]
    # claims about (a PlannedRun, delta, proved epsilon of each client, event of each client)
    Claims = Callable[[Any, float, tuple[float, ...], list[Event]], tuple[Claim, ...]]

NOISE_RULES: dict[str, NoiseRule] = {}  # by `sigma_mode`; nobody vouches that such noise meets the budget
CLAIMS: list[Claims] = []  # what stands beside the Guarantee of a run
