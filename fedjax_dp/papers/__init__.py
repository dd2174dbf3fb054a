"""Papers: cited in full, their theorems, what these claim and what is proved, their tables and figures done again.

The wings below know nothing of them but two hooks, which are filled here: noise as a theorem prints it is a
`sigma_mode`, and what theorems claim of a run stands beside its Guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import lazy_loader

from fedjax_dp.privacy import hooks

if TYPE_CHECKING:
    import numpy as np

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

PRINT_NOISE = ("dpnfl", "cpfed", "acs_pldp", "dp_fedavg_output", "mr_mtl")  # whose theorem or code says the noise


def _noise_rule(paper: str) -> hooks.NoiseRule:
    def rule(algorithm: Any, data: Any, rounds: int, epsilons: Sequence[float], delta: float) -> np.ndarray:
        from fedjax_dp.papers.noise import prescribed  # loads JAX

        return prescribed(paper, algorithm, data, rounds, epsilons, delta)

    return rule


def _claims(*of_run: Any) -> Any:
    from fedjax_dp.papers.claims import claims_about  # loads JAX

    return claims_about(*of_run)


hooks.NOISE_RULES.update((paper, _noise_rule(paper)) for paper in PRINT_NOISE)
hooks.CLAIMS.append(_claims)
