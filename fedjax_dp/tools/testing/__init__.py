"""Checks of user-defined algorithms, noise sources, bounded sums and samplers, for use in pytest.

With an algorithm of your own parts and a small federation:

    from fedjax_dp.tools.testing import check_algorithm

    def test_my_algorithm_keeps_its_promises():
        for report in check_algorithm(my_algorithm, my_data, model=my_model, delta=1e-5):
            print(report)

A check raises AssertionError with one line (what, measured, wanted, certainty), or returns its reports. A privatizer
must have `noise_multiplier` and `clip_norm`, as `RecordGaussian` does, and so must an upload, as `ClientGaussian` does.
Checks keep the algorithm's shapes and numbers, so small models and few clients make them quick. Break your part on
purpose, too, and see the check fail.

A noise source, a bounded sum or a sampler can also be checked alone, as a plain function:

>>> import jax
>>> from fedjax_dp.tools.testing import check_noise
>>> print(check_noise(lambda key: 3 * jax.random.normal(key, (40,)), std=3.0)[0].law)
standard deviation of the noise
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Event, Release
from fedjax_dp.accounting.sampling import Sampling
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import downward, upward
from fedjax_dp.inspection import PROPERTIES, examine, neighbours
from fedjax_dp.inspection.noise_law import examine_noise
from fedjax_dp.inspection.noise_of_runs import DRAWS
from fedjax_dp.inspection.sampling_law import examine_sampling
from fedjax_dp.inspection.trials import THOROUGH, Place, keys_of
from fedjax_dp.inspection.verdict import CheckReport, record_reports, require
from fedjax_dp.models import Model, usual_model
from fedjax_dp.privacy.client_events import training_events
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import natural_view, no_epsilon_reason_of, noise_of
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import check
from fedjax_dp.tools.audits.audit import audit, audit_mechanism

__all__ = ["CheckReport", "check_algorithm", "check_audit", "check_noise", "check_sampling", "check_sensitivity"]

ROUNDS = 64  # of the run whose cohorts are examined
SIGNIFICANCE = 1e-6  # probability that an audit rejects a correct program


def check_algorithm(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    model: Model | None = None,
    only: str | tuple[str, ...] = (),
    delta: float | None = None,
    rounds: int = 10,
    seed: int = 0,
) -> list[CheckReport]:
    """Every property that applies, examined thoroughly; their reports, in order.

    sampling     batches of clients of up to 24 sizes, at least 4,000 each, and as many cohorts follow the laws that are
                 stated: sizes, how often each member and each pair is drawn (exact tails), overlaps, steps, divisors,
                 keys; local steps hand on what is drawn.
    statements   what a Guarantee requires, of the project's parts too: no way for records past what is accounted for.
    sensitivity  neighbours, searched for among features of all scales, NaN, opposite signs and models up to 1e3 away,
                 move gradients (or the mean of updates) by no more than the ledger's event says.
    noise        of steps or of the server: variance, means, correlations between places, coordinates and runs, law.
    masks        every bit that a member of a secure sum uploads is a fair coin, whatever else is uploaded.
    keys         no noise is used twice among 4 runs of 12 rounds; one seed gives the same bits, another others.
    padding      rows and positions that nobody fills contribute exactly zero.
    order        of records and clients, and the portions in which clients run, change only rounding.
    only     names of those to look at; those that are named have to apply;
    delta    with it also a fast audit of `rounds` rounds: `check_audit`.
    Where there is no epsilon, a report says why what rests on it was left out.
    Errors:  each statistical assertion fails for a right program with probability at most 1e-6 (Bonferroni over what it
             looks at). A standard deviation off by 5% passes with probability below 0.001. The search for neighbours
             proves nothing that it did not find: its report tells how far it came. 2e-5 of rounding is allowed.
    Not covered: the noise on the bits of an adaptive clip norm; one more gradient that a control variate releases.
    Raises:  AssertionError by the first check that fails; ConfigurationError if the algorithm cannot run on the data,
             or if what is named does not apply.
    """
    names = (only,) if isinstance(only, str) else tuple(only)
    for name in names:
        errors.require_choice("only", name, PROPERTIES)
    model = model or usual_model(data)
    check(algorithm, data, 1, model)
    reason = no_epsilon_reason_of(algorithm, natural_view(algorithm))
    if reason is None and not np.any(np.asarray(noise_of(algorithm)) > 0):
        reason = "its noise_multiplier is 0"
    apply = [name for name in PROPERTIES if not (reason and PROPERTIES[name].needs_claim)]
    if not algorithm.transport.secret:
        apply.remove("masks")
    for name in set(names) - set(apply):
        got = "no secure sum" if name == "masks" else reason
        raise errors.refuse("algorithm", got, f"one of which {name} can be examined")
    place = Place(algorithm, data, model, ROUNDS, seed, THOROUGH, _releases)
    reports = examine(place, names or apply)
    if reason and not names:
        return [*reports, CheckReport("sensitivity and noise", "not checked", "an epsilon", reason)]
    return reports if delta is None else reports + check_audit(algorithm, data, delta=delta, rounds=rounds, seed=seed)


def _releases(algorithm: Algorithm, data: FederatedData, model: Model, rounds: int) -> list[list[Release]]:
    """The releases in the ledger of each client, if it takes part in all rounds."""
    view = "uploads" if algorithm.upload.unit is None else None
    terms = PrivacyTerms(participation="worst", view=view)
    events = training_events(PlannedRun(algorithm=algorithm, data=data, rounds=rounds, chosen_model=model, terms=terms))
    return [[release for release, _ in event.leaves()] for event in events]


def check_noise(
    draw: Callable[[jax.Array], Any], *, std: float, seed: int = 0, draws: int = DRAWS
) -> list[CheckReport]:
    """A function from a key to a noise vector is white, normal, and of the standard deviation `std`.

    draws    least number of noise values that are drawn.
    Errors:  as `check_algorithm`. Raises: AssertionError; ConfigurationError.
    """
    errors.require_count("draws", draws)
    errors.require_positive("std", std)

    def flat(key: jax.Array) -> jax.Array:
        return ravel_pytree(draw(key))[0]

    size = jax.eval_shape(flat, keys_of(1, "runs", seed)[0]).size
    trials = max(math.ceil(draws / size), 32)
    with record_reports() as reports:
        noise = np.asarray(jax.jit(jax.vmap(flat))(keys_of(trials, "runs", seed)), float) / std
        examine_noise(noise[:, None], ["the vector"])
    return reports


def check_sampling(
    function: Callable[[jax.Array], jax.Array], *, sampling: Sampling, seed: int = 0, draws: int = THOROUGH.cohorts
) -> list[CheckReport]:
    """A function from a key to how often each member is drawn `(members,)` follows that law, as Poisson(0.01).

    Errors:  as `check_algorithm`, of `draws` draws. Raises: AssertionError; ConfigurationError.
    """
    errors.require_count("draws", draws)
    if not isinstance(sampling, Sampling):
        raise errors.refuse("sampling", sampling, "a law of accounting, such as Poisson(0.01)")
    with record_reports() as reports:
        counts = np.asarray(jax.jit(jax.vmap(function))(keys_of(draws, "runs", seed)))
        examine_sampling("the function", counts[:, None], sampling)
    return reports


def check_sensitivity(
    function: Callable[[Any], Any],
    *,
    sensitivity: float,
    adjacency: Adjacency,
    records: Any,
    seed: int = 0,
    trials: int = 256,
) -> list[CheckReport]:
    """A function from records to a vector moves between neighbours by at most `sensitivity`, in L2.

    records  a pytree of arrays with a leading axis; by add-remove the function is also called with one record less.
    Errors:  the search proves nothing that it did not find; a relative 1e-4 of rounding is allowed.
    Raises:  AssertionError; ConfigurationError.
    """
    errors.require_count("trials", trials)
    errors.require_positive("sensitivity", sensitivity)
    if adjacency not in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        raise errors.refuse("adjacency", adjacency, "add-remove or replace-one: a function has no contribution of zero")
    with record_reports() as reports:
        neighbours.examine_function(function, sensitivity, adjacency, records, seed, trials)
    return reports


def check_audit(
    subject: Algorithm | Callable[[jax.Array, jax.Array], Any],
    data: FederatedData | None = None,
    *,
    delta: float,
    rounds: int = 1,
    event: Event | None = None,
    trials: int = 4_000,
    seed: int = 0,
    **options: Any,
) -> list[CheckReport]:
    """No attack on `trials` runs in neighbouring worlds contradicts the stated privacy.

    subject  an algorithm with its data, run for `rounds` rounds as `fedjax_dp.audit` does; or a function
             `mechanism(key, there)` of what an adversary receives with the canary and without it, with the `event` that
             it is stated to release;
    options  of `fedjax_dp.audit` or `audit_mechanism`, such as view or canary.
    Errors:  right programs fail with probability at most 1e-6. How much too little noise is noticed depends on epsilon
             and trials: audit a program with half of it, too.
    Raises:  AssertionError; ConfigurationError for an algorithm without epsilon or too few trials.
    """
    run: Callable[..., Any]
    if isinstance(subject, Algorithm):
        run = functools.partial(audit, data=errors.require_given("data", data), rounds=rounds)
    elif event is None:
        raise errors.refuse("event", None, "given with a function", "state what it is to release")
    else:
        run = functools.partial(audit_mechanism, event=event)
    with record_reports() as reports:
        result = run(subject, delta=delta, trials=trials, seed=seed, significance=SIGNIFICANCE, **options)
        require(
            not result.proved,
            "audited privacy",
            f"epsilon at least {downward(result.lower)} from {result.outcome.evidence}",
            f"at most {upward(result.tested_epsilon)} at delta {result.guarantee.delta:g} against "
            f"{result.guarantee.view}",
            f"false alarm {SIGNIFICANCE:g}",
        )
    return reports
