"""`fedjax-dp account --ledger`: the epsilon of a run, derived again from the ledger in its folder alone."""

import dataclasses
import json
import math
import pathlib
from typing import TYPE_CHECKING, Annotated

from fedjax_dp import errors
from fedjax_dp.accounting import ACCOUNTANTS, Adjacency, Guarantee, Unit, View
from fedjax_dp.accounting.guarantee import Deployment, infinite, marked
from fedjax_dp.cli.options import PlotOption, PrintOptions, Switch, parse, picture_of
from fedjax_dp.cli.output import page
from fedjax_dp.options import about

if TYPE_CHECKING:
    from fedjax_dp.accounting.ledger import Ledger

EQUAL = 1e-9  # relative
DRAWN = 24  # rounds at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerOptions(PrintOptions, PlotOption):
    """Which rounds are accounted for, and how.

    Args:
        quiet: print the statement alone
    """

    ledger: Annotated[str, about("ledger.jsonl of a run, or its folder", metavar="FILE")]
    delta: Annotated[float | None, about("delta of the epsilon", default="the run's")] = None
    accountant: Annotated[str | None, about("", choices=tuple(ACCOUNTANTS), default="the run's")] = None
    rounds: Annotated[int | None, about("only the first rounds", default="all that are done")] = None
    quiet: Switch = False


def account_ledger(arguments: list[str]) -> int:
    """Epsilon of a ledger, compared with what the run promised."""
    options = parse(
        "account",
        arguments,
        LedgerOptions,
        "The epsilon of a run, derived again from its ledger.\n\n"
        "usage: fedjax-dp account --ledger FILE [--delta D] [--accountant A] [--rounds T] [--quiet] [--json]",
    )
    look = picture_of(options)
    if options.delta is not None:
        errors.require_delta(options.delta)
    if options.accountant is not None:
        errors.require_choice("accountant", options.accountant, ACCOUNTANTS)
    from fedjax_dp.experiments.round_ledger import read_ledger  # loads JAX

    path = pathlib.Path(options.ledger)
    if not path.exists():
        raise errors.refuse("ledger", options.ledger, "ledger.jsonl of a run, or its folder")
    ledger = read_ledger(path)
    _check_deployment(ledger, options)
    if options.rounds is not None:
        errors.require_integer("rounds", options.rounds, 1, ledger.rounds, "these are done")
    promise = _promise(ledger, options)
    notes = [*_own(ledger, options, promise), *_budget(ledger, promise)]
    if ledger.cut:
        notes.append("the file ends in the middle of a line, which does not count")
    if options.plot:
        from fedjax_dp.figures.runs import plot_spending  # takes half a second to load

        rounds = _drawn(options.rounds or ledger.rounds)
        curve = {"worst client": [max(_epsilons(ledger, options, at)) for at in rounds]}
        if options.delta is None and all(line["epsilon_at_any_time"] is not None for line in ledger.lines):
            curve["at any time"] = [ledger.lines[at - 1]["epsilon_at_any_time"] for at in rounds]
        title = marked(f"{ledger.phase['algorithm']} on {ledger.phase['dataset']}", promise.mark)
        plot_spending(rounds, curve, title, str(promise), options.plot, ledger.lines[-1]["budget"], **look)
    if options.json:
        content = promise.to_dict() | {"rounds": options.rounds or ledger.rounds, "notes": notes}
        print(json.dumps(content, allow_nan=False))
        return 0
    console = page()
    console.print(f"after {options.rounds or ledger.rounds} of {ledger.phase['rounds']} rounds: {promise}")
    for note in [] if options.quiet else notes:
        console.print(note)
    return 0


def _check_deployment(ledger: "Ledger", options: LedgerOptions) -> None:
    """Refuse other terms where a run stands for a deployment, as its own epsilon is known on its own terms alone."""
    for name in ("delta", "accountant", "rounds"):
        if ledger.phase.get("deployment") is not None and getattr(options, name) is not None:
            raise errors.refuse(name, getattr(options, name), "left out for a run that stands for a deployment")


def _epsilons(ledger: "Ledger", options: LedgerOptions, rounds: int | None) -> list[float]:
    return ledger.epsilons(options.delta, options.accountant, rounds)


def _promise(ledger: "Ledger", options: LedgerOptions) -> Guarantee:
    """The Guarantee of these rounds."""
    epsilons = _epsilons(ledger, options, options.rounds)
    last = ledger.lines[-1]
    accountant = ACCOUNTANTS[options.accountant or last["accountant"]].about
    unit, adjacency, view = Unit(last["unit"]), Adjacency(last["adjacency"]), View(last["view"])
    promise = Guarantee(tuple(epsilons), options.delta or last["delta"], unit, adjacency, view, accountant, ())
    if last["deployment"] is None:
        return promise
    deployment = Deployment(**last["deployment"])._replace(rounds=ledger.rounds)
    own = infinite(ledger.phase["epsilon"])  # of all its rounds
    return dataclasses.replace(promise, deployment=deployment, own=own)


def _own(ledger: "Ledger", options: LedgerOptions, promise: Guarantee) -> list[str]:
    """That the run promised the same, where it is of the same.

    Raises: ConfigurationError where it did not.
    """
    phase = ledger.phase
    others = (options.delta, options.accountant, options.rounds)
    if any(value is not None for value in others) or ledger.rounds != phase["rounds"]:
        return []
    stated = (phase.get("deployment") or phase)["epsilon"]
    if stated is None or not math.isclose(promise.epsilon, stated, rel_tol=EQUAL):
        got = f"{promise.epsilon:.10g} by its rounds"
        raise errors.refuse("epsilon of the ledger", got, f"{stated}, as its run says", "it was edited")
    return ["equal to what the run promised"]


def _budget(ledger: "Ledger", promise: Guarantee) -> list[str]:
    """What is left of the budget, and why the run ended."""
    last = ledger.lines[-1]
    lines = []
    if last["budget"] is not None:
        lines.append(f"budget {last['budget']:g}, of which {last['budget'] - promise.epsilon:.4g} is left")
    if last["halt"] == "budget":
        lines.append(f"halted by the budget after round {last['round'] + 1}")
    return lines


def _drawn(rounds: int) -> list[int]:
    """Rounds of a picture, evenly spaced, the first and the last among them."""
    count = min(rounds, DRAWN)
    return sorted({1 + round((rounds - 1) * place / max(count - 1, 1)) for place in range(count)})
