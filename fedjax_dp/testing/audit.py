"""A fast audit: attacks may not prove more than is stated, and must prove it of a wrong program."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from fedjax_dp import errors
from fedjax_dp.accounting import Event
from fedjax_dp.audits.audit import audit, audit_mechanism
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.verdict import CheckReport, require
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing.checks import run_check
from fedjax_dp.testing.mutation import WrongProgram
from fedjax_dp.testing.wrong_programs import half_noise

SIGNIFICANCE = 1e-6  # chance that a right program is rejected


def check_audit(
    subject: Algorithm | Callable[[jax.Array, jax.Array], Any],
    data: FederatedData | None = None,
    *,
    delta: float,
    rounds: int = 1,
    event: Event | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = half_noise,
    trials: int = 4_000,
    seed: int = 0,
    **options: Any,
) -> list[CheckReport]:
    """No attack on `trials` runs in neighbouring worlds contradicts the stated privacy.

    subject  an algorithm with its data, run for `rounds` rounds as `fedjax_dp.audit` does; or a function
             `mechanism(key, there)` of what an adversary receives with the canary and without it, with the `event` that
             it is stated to release;
    wrong    programs that the same audit must reject: by default half the noise for an algorithm. For a function none
             can be made from outside: give functions that make one from it;
    options  of `fedjax_dp.audit` or `audit_mechanism`, such as view or canary.
    Errors:  right programs fail with probability at most 1e-6. How much too little noise is noticed depends on epsilon
             and trials: that half of it is, is tried here.
    Raises:  AssertionError; ConfigurationError for an algorithm without epsilon or too few trials.
    """

    fixed: dict[str, Any] = {"delta": delta, "trials": trials, "seed": seed, "significance": SIGNIFICANCE}
    run: Callable[[Any], Any]
    if isinstance(subject, Algorithm):
        if data is None:
            raise errors.refuse("data", None, "given with an algorithm")
        run = functools.partial(audit, data=data, rounds=rounds, **fixed, **options)
    else:
        if event is None:
            raise errors.refuse("event", None, "given with a function", "state what it is to release")
        run = functools.partial(audit_mechanism, event=event, **fixed, **options)
        wrong = None if wrong is half_noise else wrong

    def examine(subject: Any) -> None:
        result = run(subject)
        require(
            not result.proved,
            "audited privacy",
            f"epsilon at least {result.lower:.4g} from {result.outcome.evidence}",
            f"at most {result.tested:.4g} at delta {result.guarantee.delta:g} against {result.guarantee.view}",
            f"false alarm {SIGNIFICANCE:g}",
        )

    return run_check(examine, subject, wrong, "raise trials, or audit a larger epsilon")
