"""What the parameters of a run carry with them wherever they are written: its ledger."""

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_dp import own_code
from fedjax_dp.accounting import Guarantee, Unit
from fedjax_dp.accounting.composed_phases import draws_of, is_own_code, spent
from fedjax_dp.display import finite, without_addresses
from fedjax_dp.models import Model
from fedjax_dp.models.origins import FREE, RUN, values_digest, who_is_in, with_phase
from fedjax_dp.privacy.client_events import own_events
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.terms import BY_NAME_ALONE
from fedjax_dp.pytrees import checksum as checksum_of
from fedjax_dp.rounds.algorithm import Algorithm

KINDS = 1000  # different epsilons of clients that are written as they are


def ledger_of(
    algorithm: str,
    planned: PlannedRun,
    guarantee: Guarantee,
    checksum: str | None = None,
    *,
    in_sweep: bool = False,
) -> str:
    """The ledger of a run: the phases of what it began with, then its own.

    checksum  of the records, by which clients of a run on the same ones are known again;
    in_sweep  whether it is one of several runs, among which somebody may have chosen by what they released.
    """
    data = planned.data
    known = who_is_in(data, checksum, guarantee.unit is not Unit.CLIENT)
    mapped = {one.phase["phase"]: one.match.mapped for one in planned.beginning.before if one.match.mapped is not None}
    facts = {
        "kind": RUN,
        "algorithm": algorithm,
        "dataset": data.name,
        "unit": guarantee.unit.value,
        "adjacency": None if guarantee.adjacency is None else guarantee.adjacency.value,
        "view": guarantee.view.value,
        "colluders": planned.terms.colluders,
        "accountant": guarantee.accountant,
        "delta": guarantee.delta,
        **_cost(planned, guarantee),
        "made of": _digest(made_of(planned.algorithm, planned.model)),
        "draws": draws_of(planned.draw_seed),
        "clients": known["clients"],
        "records": known["records"],
        "continues": [phase.phase for phase in guarantee.phases],
        **({"in_sweep": True} if in_sweep else {}),
        **({"mapped": mapped} if mapped else {}),
    }
    return with_phase("".join(dict.fromkeys(origin.lines for origin in getattr(planned.model, "origins", ()))), facts)


def made_of(algorithm: Algorithm, model: Model) -> dict[str, str]:
    """Checksums of what decides what a run releases, but for its data and seed, by name."""
    leaves, structure = jax.tree.flatten(algorithm)
    shape, looks = (
        checksum_of(np.frombuffer(without_addresses(repr(what)).encode(), np.uint8)) for what in (structure, model)
    )
    code = {f"code of {name}": digest for name, digest in own_code.sources(algorithm, model).items()}
    return {"algorithm": f"{shape}{checksum_of(leaves)}", "model": looks, **code}


def _digest(facts: Mapping[str, str]) -> str:
    """By which runs that release something else are two phases, though they cost the same."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def exported(ledger: str, values: Mapping[str, Any], round_done: int, hashes: bool = True) -> str:
    """The ledger beside these arrays: its last line names them, and the round they are of.

    hashes  the checksum of the run's records and digests of its clients' names stay in it.
    """
    before, facts = _apart(ledger)
    if not hashes:
        facts["records"] = facts["records"] | {"checksum": None}
        facts["clients"] = facts["clients"] | {"names": None}
    return with_phase(before, facts | {"round": round_done, "parameters": values_digest(values)})


def longer(ledger: str, planned: PlannedRun, guarantee: Guarantee) -> str:
    """The ledger of a run that goes on to more rounds, with another Guarantee."""
    before, facts = _apart(ledger)
    return with_phase(before, facts | _cost(planned, guarantee))


def _cost(planned: PlannedRun, guarantee: Guarantee) -> dict[str, Any]:
    """Rounds, what they release of each client, and the epsilons of that and of all before it."""
    private = not math.isinf(guarantee.epsilon)
    counted = planned.by_itself
    by_name = counted.terms.participation in BY_NAME_ALONE
    if by_name:  # whoever begins with the model needs what it really cost
        counted = counted.counted(participation="schedule")
    released = spent(own_events(counted)) if private else None
    facts = {"rounds": planned.rounds, **_epsilons(guarantee), "spent": released}
    if by_name and released and any(map(is_own_code, released["events"])):  # nobody else can tell the other epsilon
        facts["epsilon"] = None
    return facts


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
