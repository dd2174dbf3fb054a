"""A check is worth its name if it rejects the wrong programs that it names."""

from collections.abc import Callable, Iterable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.inspection.verdict import CheckReport, recorded
from fedjax_dp.testing.mutation import WrongProgram


def run_check(
    examine: Callable[[Any], Any], subject: Any, wrong: WrongProgram | Iterable[WrongProgram] | None, remedy: str
) -> list[CheckReport]:
    """The reports of an examination, and one for each of the named wrong programs made from `subject`.

    Those that do not apply to it are left out.
    Raises: AssertionError if the examination fails, or one of the wrong programs passes: then it is too weak here to
            say anything of the right program; ConfigurationError if none of those given applies.
    """
    with recorded() as reports:
        examine(subject)
    programs = () if wrong is None else (wrong,) if callable(wrong) else tuple(wrong)
    rejected, refused = [], []
    for program in programs:
        try:
            made = program(subject)
        except errors.ConfigurationError as refusal:
            refused.append(refusal)
        else:
            rejected.append(_rejection(examine, made, program.__name__, remedy))
    if refused and not rejected:
        raise refused[0]
    return reports + rejected


def _rejection(examine: Callable[[Any], Any], wrong: Any, name: str, remedy: str) -> CheckReport:
    try:
        with recorded():  # reports of a wrong program are dropped
            examine(wrong)
    except AssertionError as failure:
        return CheckReport(f"wrong program {name}", "rejected", "rejected", str(failure).split(":")[0])
    raise AssertionError(f"this check could not tell {name} from the right program; {remedy}")
