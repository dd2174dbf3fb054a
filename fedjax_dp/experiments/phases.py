"""What the parameters of a run carry with them wherever they are written: its ledger."""

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_dp.accounting import Guarantee
from fedjax_dp.data import record_hashes
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import finite
from fedjax_dp.models import Model
from fedjax_dp.models.origins import FREE, RUN, values_digest, with_phase

KINDS = 1000  # different epsilons of clients that are written as they are


def ledger_of(
    algorithm: str,
    data: FederatedData,
    model: Model,
    rounds: int,
    guarantee: Guarantee,
    checksum: str | None = None,
    hashes: np.ndarray | None = None,
) -> str:
    """The ledger of a run: the phases of what it began with, then its own.

    checksum, hashes  of the records, where they are known: without hashes a start is closed to whom does not deny it.
    """
    sizes = np.asarray(data.sizes, "<i8")
    facts = {
        "kind": RUN,
        "algorithm": algorithm,
        "dataset": data.name,
        "rounds": rounds,
        "unit": guarantee.unit.value,
        "adjacency": None if guarantee.adjacency is None else guarantee.adjacency.value,
        "view": guarantee.view.value,
        "accountant": guarantee.accountant,
        "delta": guarantee.delta,
        **_epsilons(guarantee),
        "clients": {"count": data.num_clients, "sizes": hashlib.sha256(sizes.tobytes()).hexdigest()},
        "records": {
            "count": int(sizes.sum()),
            "features": math.prod(data.record_shape),
            "checksum": checksum,
            "hashes": None if hashes is None else record_hashes.written(hashes),
        },
    }
    return with_phase("".join(dict.fromkeys(origin.lines for origin in getattr(model, "origins", ()))), facts)


def exported(ledger: str, values: Mapping[str, Any], round_done: int, hashes: bool = True) -> str:
    """The ledger beside these arrays: its last line names them, and the round they are of.

    hashes  what is computed from the run's records stays in it: their checksum, and the hashes of some.
    """
    before, facts = _apart(ledger)
    if not hashes:
        facts["records"] = facts["records"] | {"checksum": None, "hashes": None}
    return with_phase(before, facts | {"round": round_done, "parameters": values_digest(values)})


def longer(ledger: str, rounds: int, guarantee: Guarantee) -> str:
    """The ledger of a run that goes on to more rounds, with another Guarantee."""
    before, facts = _apart(ledger)
    return with_phase(before, facts | {"rounds": rounds, **_epsilons(guarantee)})


def _epsilons(guarantee: Guarantee) -> dict[str, Any]:
    """What these very parameters cost their clients: of a run that stands for a deployment, its own epsilon."""
    if guarantee.deployment is None:
        return {"epsilon": finite(guarantee.epsilon), "epsilons": _kinds(guarantee)}
    own = math.inf if guarantee.own is None else guarantee.own
    itself = dataclasses.replace(guarantee, epsilons=(own,) * len(guarantee.epsilons))
    promised = guarantee.deployment._asdict() | {"epsilon": finite(guarantee.epsilon)}
    return {"epsilon": finite(own), "epsilons": _kinds(itself), "deployment": promised}


def _apart(ledger: str) -> tuple[str, dict[str, Any]]:
    """The lines before the last, and the facts of that."""
    *before, last = ledger.splitlines(keepends=True)
    facts = json.loads(last)
    return "".join(before), {name: facts[name] for name in facts if name not in ("ledger", "parent", *FREE)}


def _kinds(guarantee: Guarantee) -> list[list[Any]]:
    """Different epsilons and how many clients have each; of very many, rounded up to three digits."""
    many = len(set(guarantee.epsilons)) > KINDS
    kinds = Counter(map(_up, guarantee.epsilons) if many else guarantee.epsilons)
    return [[finite(epsilon), kinds[epsilon]] for epsilon in sorted(kinds)]


def _up(epsilon: float) -> float:
    if not 0 < epsilon < math.inf:
        return epsilon
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return math.ceil(epsilon / step) * step
