"""A check is worth its name if it rejects the wrong programs that it names."""

from collections.abc import Callable, Iterable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.statistics.verdict import Report


def must_reject(check: Callable[[Any], Any], wrong: Any, name: str, remedy: str) -> Report:
    """Runs the same check on a wrong program, which it has to reject.

    Raises: AssertionError if it does not: then the check is too weak here to say anything of the right program.
    """
    try:
        check(wrong)
    except AssertionError as rejected:
        return Report(f"wrong program {name}", "rejected", "rejected", str(rejected).split(":")[0])
    raise AssertionError(f"this check could not tell {name} from the right program; {remedy}")


Program = Callable[[Any], Any]  # makes a wrong program of the right one


def rejections(
    check: Callable[[Any], Any], subject: Any, wrong: Program | Iterable[Program] | None, remedy: str
) -> list[Report]:
    """A report for each of the named wrong programs made from `subject`; those that do not apply to it are left out.

    Raises: AssertionError if one of them passes; ConfigurationError if none of those given applies.
    """
    programs = () if wrong is None else (wrong,) if callable(wrong) else tuple(wrong)
    found, refused = [], []
    for program in programs:
        try:
            made = program(subject)
        except errors.ConfigurationError as refusal:
            refused.append(refusal)
        else:
            found.append(must_reject(check, made, program.__name__, remedy))
    if refused and not found:
        raise refused[0]
    return found
