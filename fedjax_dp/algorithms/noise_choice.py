"""The correlated noise of a run, chosen by its error in the model at the run's budget."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_dp import errors, parts
from fedjax_dp.accounting import (
    KINDS,
    VECTORS,
    Adjacency,
    Candidate,
    GaussianSteps,
    Poisson,
    Unit,
    Workload,
    epsilon_of,
    least_error,
    noise_candidates,
)
from fedjax_dp.algorithms.assemble import fill_defaults
from fedjax_dp.algorithms.entry import PrepareContext
from fedjax_dp.options import is_part
from fedjax_dp.parts.choices import part_of
from fedjax_dp.pytrees import check_part

_candidates = functools.cache(noise_candidates)


def choose_noise(
    known: PrepareContext, options: Mapping[str, Any], own: Mapping[str, Any], correlation: str, buffers: int | None
) -> dict[str, Any]:
    """Arguments of the entry: its source, and cohort and estimator unless the run has its `own`.

    Without a budget or noise, and where more rounds or clients count than the run has, the entry keeps its defaults.
    """
    terms, population, rounds = known.terms, known.data.num_clients, known.rounds
    elsewhere = terms.deployment is not None or terms.stop_at_epsilon is not None
    options = fill_defaults(options)
    cohort = options["cohort"].expected_size(population) if is_part(options["cohort"]) else options["cohort_size"]
    cohort = cohort or population
    budget = _budget(known, options, cohort / population)
    if budget is None or (correlation == "auto" and elsewhere):
        return {}
    bands = own.get("bands")
    if bands is not None and correlation in ("auto", "none", "blt"):
        remedy = "say which, such as --correlation inverse-root"
        raise errors.refuse("bands", bands, "left out unless correlation is bands or inverse-root", remedy)
    if buffers is not None:
        errors.require_integer("buffers", buffers, 1, 5, "more gain next to nothing")
    size = bands if buffers is None else buffers
    seen = Adjacency.REPLACE_ONE if terms.adjacency is None else Adjacency(terms.adjacency)
    laws: dict[str, Any] = {"hidden": Adjacency.ADD_REMOVE, "seen": None if population % cohort else seen}
    if "cohort" in own:
        laws = _laws_of(own["cohort"], options, population, seen)
    elif terms.adjacency is not None:
        laws["hidden"] = None
    server: Any = options["server"] if is_part(options["server"]) else part_of("server", options)
    numbers = getattr(server, "hyperparameters", {})
    table = _candidates(
        *(rounds, population, cohort, *budget),
        workload=Workload(momentum=float(numbers.get("momentum") or numbers.get("b1") or 0.0)),
        kinds=KINDS if correlation == "auto" else (correlation,),
        sizes=None if size is None else (size,),
        **laws,
    )
    if not table and bands is not None and correlation == "bands":
        most = laws.get("cycle") or laws.get("apart") or population // cohort
        raise errors.refuse(
            "bands", bands, f"at most {most}, the rounds from one of a client to its next", "take fewer"
        )
    if not table:
        wanted = (
            "one for these cohorts: bands where a client rests between its hidden rounds; others where all are seen"
        )
        raise errors.refuse(
            "correlation", correlation, wanted, "smaller cohorts that divide the clients allow each kind"
        )
    best = least_error(table, VECTORS if correlation == "auto" else rounds)
    for one in sorted(table, key=lambda one: one.error):
        known.say(f"{one}: noise multiplier {one.noise:.4g}, error {one.error:.4g}{', chosen' * (one is best)}")
    further: dict[str, Any] = {"source": _source_of(best, rounds)}
    if "cohort" not in own:
        in_passes = best.hidden and best.size > 1
        further["cohort"] = "cyclic-poisson" if in_passes else "poisson" if best.hidden else "cyclic"
        further |= {"pass_rounds": best.size} if in_passes else {}
        further |= {"estimator": "wor_delta"} if best.hidden and "estimator" not in own else {}
    return further


def _budget(known: PrepareContext, options: Mapping[str, Any], rate: float) -> tuple[float, float] | None:
    """Epsilon and delta at which noise is compared: the budget, or what white noise of the multiplier costs."""
    noise = float(options.get("noise_multiplier") or 0.0)
    if known.delta is None or (known.epsilon is None and not noise > 0):
        return None
    if known.epsilon is not None:
        return float(np.min(np.asarray(known.epsilon, float))), known.delta
    white = GaussianSteps(noise, Poisson(rate), Adjacency.ADD_REMOVE, known.rounds, Unit.CLIENT)
    return epsilon_of(white, known.delta), known.delta


def _laws_of(cohort: Any, options: Mapping[str, Any], population: int, seen: Adjacency) -> dict[str, Any]:
    """How the clients of the run's own cohort are hidden, or how far apart their rounds are where they are seen."""
    part = cohort if is_part(cohort) else part_of("cohort", options)
    check_part(part, population)
    sampling, adjacency = part.amplification(population, 0)
    apart, log = part.min_separation(population), part.log(population)
    if isinstance(sampling, Poisson):
        return {"hidden": adjacency, "seen": None, "cycle": min(part.rounds_per_pass(population), apart)}
    if log is not None:
        gaps = [gap for gap in log.least_gaps if gap is not None]
        return {"hidden": None, "seen": seen, "apart": min(gaps, default=log.num_rounds), "times": int(max(log.counts))}
    return {"hidden": None, "seen": seen, "apart": apart}


def _source_of(best: Candidate, rounds: int) -> "parts.NoiseSource":
    if isinstance(best.strategy, tuple):
        return parts.BufferedNoise.of(best.strategy)
    if best.kind == "bands":
        return parts.StrategyNoise.of(best.strategy, rounds)
    return parts.WhiteNoise() if best.kind == "none" else parts.BandedNoise(bands=best.strategy)
