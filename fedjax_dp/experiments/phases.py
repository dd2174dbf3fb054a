"""The ledger of a run, stored with its parameters."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_dp import own_code
from fedjax_dp.accounting import Guarantee, Unit
from fedjax_dp.accounting.composed_phases import encode_releases, is_own_code
from fedjax_dp.display import finite, without_addresses
from fedjax_dp.models import Model
from fedjax_dp.models.origins import RUN, before_last, clients_in, longest_lines, phases_of, values_digest, with_phase
from fedjax_dp.privacy.client_events import all_releases, training_events
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.terms import BY_NAME_ALONE
from fedjax_dp.pytrees import checksum as checksum_of
from fedjax_dp.rounds.algorithm import Algorithm

KINDS = 1000  # up to this many different epsilons of clients are stored unrounded


def ledger_of(
    algorithm: str,
    planned: PlannedRun,
    guarantee: Guarantee,
    checksum: str | None = None,
    *,
    in_sweep: bool = False,
) -> str:
    """The ledger of a run: the phases of its starting parameters, then its own.

    checksum  of the records, which identifies clients in other runs on the same records;
    in_sweep  whether it is one of several runs, of which one may have been chosen by its releases.
    """
    data, before = planned.data, "".join(longest_lines(getattr(planned.model, "origins", ())))
    known = clients_in(data, checksum, guarantee.unit is not Unit.CLIENT)
    prior, phases = [one.phase for one in planned.initialization.prior_runs], phases_of(before, "ledger")
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
        "clients": known["clients"],
        "records": known["records"],
        "continues": [len(phases) - place for place, phase in enumerate(phases) if phase in prior],
        **({"in_sweep": True} if in_sweep else {}),
    }
    return with_phase(before, facts)


def checksums_of_values(algorithm: Algorithm, model: Model) -> dict[str, str]:
    """Checksums, by name, of everything that determines a run's releases except its data and seed."""
    leaves, structure = jax.tree.flatten(algorithm)
    shape, looks = (
        checksum_of(np.frombuffer(without_addresses(repr(what)).encode(), np.uint8)) for what in (structure, model)
    )
    code = {f"code of {name}": digest for name, digest in own_code.sources(algorithm, model).items()}
    start = "".join(origin.sha256[:8] for origin in getattr(model, "origins", ()))  # which no look of a model has
    return {"algorithm": f"{shape}{checksum_of(leaves)}", "model": f"{looks}{start}", **code}


def ledger_of_parameters(ledger: str, values: Mapping[str, Any], round_done: int) -> str:
    """The ledger stored with these arrays: its last line names them and their round."""
    facts = _last(ledger) | {"round": round_done, "parameters": values_digest(values)}
    facts.pop("run", None)  # the name is the folder's, not that of the arrays
    return with_phase(before_last(ledger), facts)


def without_digests(ledger: str, *, names: bool = False) -> str:
    """The ledger without the checksums of records, which whoever has all others can test a record by.

    names  whether it keeps the digests of clients' names, by which the clients of two runs are compared.
    """
    text = ""
    for phase in phases_of(ledger, "ledger"):
        kept = (
            {
                "clients": phase["clients"] if names else {"count": phase["clients"]["count"]},
                "records": phase["records"] | {"checksum": None},
            }
            if phase["kind"] == RUN
            else {}
        )
        text = with_phase(text, {**phase, **kept})
    return text


def ledger_of_run(ledger: str, run: str) -> str:
    """The ledger in the folder of a run; `run` is its name in `run.json`."""
    return with_phase(before_last(ledger), _last(ledger) | {"run": run})


def ledger_of_more_rounds(ledger: str, planned: PlannedRun, guarantee: Guarantee) -> str:
    """The ledger of a run continued to more rounds, with a new Guarantee."""
    return with_phase(before_last(ledger), _last(ledger) | _cost(planned, guarantee))


def _cost(planned: PlannedRun, guarantee: Guarantee) -> dict[str, Any]:
    """Rounds, their releases about each client, and the epsilons of these and of all phases so far."""
    private = not math.isinf(guarantee.epsilon)
    counted = planned.without_deployment
    by_name = counted.terms.participation in BY_NAME_ALONE
    if by_name:  # a run that starts from the model needs its true cost
        counted = counted.with_terms(participation="schedule")
    released = (
        encode_releases(all_releases(counted, training_events(counted), of_prior_runs=False)) if private else None
    )
    facts = {"rounds": planned.rounds, **_epsilons(guarantee), "caveat": guarantee.caveat, "spent": released}
    if (
        by_name and released and any(map(is_own_code, released["events"]))
    ):  # no other program can compute the other epsilon
        facts["epsilon"] = None
    return facts


def _epsilons(guarantee: Guarantee) -> dict[str, Any]:
    """The privacy cost of these parameters: for a run that models a deployment, the run's own epsilon."""
    if guarantee.deployment is None:
        return {"epsilon": finite(guarantee.epsilon), "epsilons": _kinds(guarantee)}
    own = math.inf if guarantee.own is None else guarantee.own
    itself = dataclasses.replace(guarantee, epsilons=(own,) * len(guarantee.epsilons))
    promised = guarantee.deployment._asdict() | {"epsilon": finite(guarantee.epsilon)}
    return {"epsilon": finite(own), "epsilons": _kinds(itself), "deployment": promised}


def _last(ledger: str) -> dict[str, Any]:
    """The facts in the last line of a ledger."""
    facts: dict[str, Any] = json.loads(ledger.splitlines()[-1])
    return facts


def _kinds(guarantee: Guarantee) -> list[list[Any]]:
    """Distinct epsilons with their numbers of clients; more than KINDS are rounded up to three digits."""
    many = len(set(guarantee.epsilons)) > KINDS
    kinds = Counter(map(_round_up, guarantee.epsilons) if many else guarantee.epsilons)
    return [[finite(epsilon), kinds[epsilon]] for epsilon in sorted(kinds)]


def _round_up(epsilon: float) -> float:
    if not 0 < epsilon < math.inf:
        return epsilon
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return math.ceil(epsilon / step) * step
