"""Every algorithm by its name in the papers: a short constructor that fills the slots of `Algorithm`.

All take the options of `Common` by keyword; what an entry adds, and where its defaults differ, stands in its signature
and in its first lines. Every variant that the papers or their published code leave open is an option.
"""

from collections.abc import Callable
from typing import Any, get_type_hints

from fedjax_dp.algorithms.assemble import BATCHES, BOUNDS, COHORTS, Common
from fedjax_dp.algorithms.client_level import dp_fedavg, dp_ftrl
from fedjax_dp.algorithms.non_private import (
    fedadam,
    fedavg,
    fedavgm,
    fedprox,
    fedyogi,
    q_fedavg,
    rfedavg,
    rfedavg_plus,
    scaffold,
)
from fedjax_dp.algorithms.record_level import (
    acs_pldp,
    addpnfl,
    cpfed,
    dp_fedavg_local,
    dp_fedavg_output,
    dp_scaffold,
    dp_sgd,
    dpnfl,
)
from fedjax_dp.rounds.algorithm import Algorithm

__all__ = [
    "BATCHES",
    "BOUNDS",
    "CATALOGUE",
    "COHORTS",
    "Common",
    "acs_pldp",
    "addpnfl",
    "cpfed",
    "dp_fedavg",
    "dp_fedavg_local",
    "dp_fedavg_output",
    "dp_ftrl",
    "dp_scaffold",
    "dp_sgd",
    "dpnfl",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedprox",
    "fedyogi",
    "options_of",
    "q_fedavg",
    "rfedavg",
    "rfedavg_plus",
    "scaffold",
]

CATALOGUE: dict[str, Callable[..., Algorithm]] = {
    entry.__name__: entry
    for entry in (
        fedavg,
        fedprox,
        scaffold,
        q_fedavg,
        rfedavg,
        rfedavg_plus,
        fedavgm,
        fedadam,
        fedyogi,
        dpnfl,
        addpnfl,
        dp_fedavg_local,
        dp_scaffold,
        dp_sgd,
        cpfed,
        acs_pldp,
        dp_fedavg_output,
        dp_fedavg,
        dp_ftrl,
    )
}


def options_of(entry: str) -> dict[str, Any]:
    """Names of the options that an entry takes, with their types."""
    hints = get_type_hints(CATALOGUE[entry])
    own = {name: hint for name, hint in hints.items() if name not in ("return", "common")}
    return {**own, **Common.__annotations__}
