"""How a check runs: on the right program, which has to pass, and on wrong ones made of it, which it has to reject."""

from collections.abc import Callable, Iterable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.verdict import CheckReport, recorded
from fedjax_dp.models import Model, usual_model
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import check
from fedjax_dp.testing.mutation import WrongProgram


def usable_model(algorithm: Algorithm, data: FederatedData | None, model: Model | None) -> Model:
    """The model of a check, by default the usual one of the data, on which the algorithm can run."""
    if data is None:
        raise errors.refuse("data", None, "given with an algorithm")
    model = model or usual_model(data)
    check(algorithm, data, 1, model)
    return model


def run_check(
    examine: Callable[..., Any],
    subject: Any,
    wrong: WrongProgram | Iterable[WrongProgram] | None,
    remedy: str,
    *context: Any,
) -> list[CheckReport]:
    """The reports of `examine(subject, *context)`, and one for each of the named wrong programs made from `subject`.

    Those that do not apply to it are left out.
    Raises: AssertionError if the examination fails, or one of the wrong programs passes: then it is too weak here to
            say anything of the right program; ConfigurationError if none of those given applies.
    """
    with recorded() as reports:
        examine(subject, *context)
    programs = () if wrong is None else (wrong,) if callable(wrong) else tuple(wrong)
    rejected, refused = [], []
    for program in programs:
        try:
            made = program(subject)
        except errors.ConfigurationError as refusal:
            refused.append(refusal)
        else:
            rejected.append(_rejection(examine, made, context, program.__name__, remedy))
    if refused and not rejected:
        raise refused[0]
    return reports + rejected


def _rejection(
    examine: Callable[..., Any], wrong: Any, context: tuple[Any, ...], name: str, remedy: str
) -> CheckReport:
    try:
        with recorded():  # reports of a wrong program are dropped
            examine(wrong, *context)
    except AssertionError as failure:
        return CheckReport(f"wrong program {name}", "rejected", "rejected", str(failure).split(":")[0])
    raise AssertionError(f"this check could not tell {name} from the right program; {remedy}")
