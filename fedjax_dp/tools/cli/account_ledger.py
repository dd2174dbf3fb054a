"""`fedjax-dp account --ledger`: the epsilon of a run, derived again from the ledger in its folder alone."""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Annotated

from fedjax_dp import errors
from fedjax_dp.accounting import ACCOUNTANTS, Adjacency, Guarantee, Unit, View, epsilons_of
from fedjax_dp.accounting.accountants import about_at
from fedjax_dp.accounting.guarantee import DeploymentSummary, infinity_of_null, with_mark
from fedjax_dp.display import count, downward
from fedjax_dp.options import about
from fedjax_dp.tools.cli.options import PlotOption, PrintOptions, Switch, parse, picture_of
from fedjax_dp.tools.cli.output import page, print_json

if TYPE_CHECKING:
    from fedjax_dp.accounting.ledger import Ledger

EQUAL = 1e-9  # relative
DRAWN = 24  # rounds at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerOptions(PrintOptions, PlotOption):
    """Which rounds are accounted for, and how.

    Args:
        ledger: ledger.jsonl of a run, or its folder
        delta: delta of the epsilon
        rounds: only the first rounds
        quiet: print the statement alone
    """

    ledger: Annotated[str, about("", metavar="FILE")]
    delta: Annotated[float | None, about("", default="the run's")] = None
    accountant: Annotated[str | None, about("", choices=tuple(ACCOUNTANTS), default="the run's")] = None
    rounds: Annotated[int | None, about("", default="all that are done")] = None
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
    from fedjax_dp.models.run_files import newest_checkpoint

    path = pathlib.Path(options.ledger)
    if not path.exists():
        raise errors.refuse("ledger", options.ledger, "ledger.jsonl of one run, or its folder")
    newest = newest_checkpoint(path if path.is_dir() else path.parent)  # first: a run goes on meanwhile
    ledger = read_ledger(path)
    if newest is not None and int(newest.name) > ledger.rounds:
        got, remedy = f"of {ledger.rounds} rounds, but a checkpoint is of {newest.name}", "put the run's own back"
        raise errors.refuse("ledger", got, "of all rounds that are done", remedy)
    _check_terms(ledger, options)
    if options.rounds is not None:
        errors.require_integer("rounds", options.rounds, 1, ledger.rounds, "these are done")
    promise = _promise(ledger, options)
    notes = [*_own(ledger, options, promise), *_budget(ledger, promise)]
    if ledger.prior_phases and not promise.phases:
        notes.append(f"what {count(len(ledger.prior_phases), 'phase')} before cost is counted too")
    if ledger.is_cut:
        notes.append("the file ends in the middle of a line, which does not count")
    if options.plot and ledger.follows_results:
        raise errors.refuse("plot", options.plot, "left out where results end the run")
    if options.plot:
        from fedjax_dp.tools.figures.runs import plot_spending  # takes half a second to load
        from fedjax_dp.tools.reports.shared import thin_rows

        rounds = thin_rows(range(1, 1 + (options.rounds or ledger.rounds)), DRAWN)
        curve = {"worst client": [max(ledger.epsilons(options.delta, options.accountant, at)) for at in rounds]}
        if options.delta is None and all(line["epsilon_at_any_time"] is not None for line in ledger.lines):
            curve["at any time"] = [ledger.lines[at - 1]["epsilon_at_any_time"] for at in rounds]
        title = with_mark(f"{ledger.phase['algorithm']} on {ledger.phase['dataset']}", promise.mark)
        plot_spending(rounds, curve, title, str(promise), options.plot, ledger.last["budget"], **look)
    if options.json:
        return print_json(promise.to_dict() | {"rounds": options.rounds or ledger.rounds, "notes": notes})
    console = page()
    console.print(f"after {options.rounds or ledger.rounds} of {count(ledger.phase['rounds'], 'round')}: {promise}")
    for note in [] if options.quiet else notes:
        console.print(note)
    return 0


def _check_terms(ledger: "Ledger", options: LedgerOptions) -> None:
    """Refuse other terms where the epsilon of a run is known on its own terms alone."""
    whose = "a run that stands for a deployment" if ledger.phase.get("deployment") is not None else ""
    if ledger.follows_results:
        whose = "a run that results may end, of which its first rounds bound nothing"
    if whose:
        errors.require_left_out(options, ("delta", "accountant", "rounds"), f"for {whose}")


def _promise(ledger: "Ledger", options: LedgerOptions) -> Guarantee:
    """The Guarantee of these rounds."""
    last = ledger.last
    if ledger.follows_results:  # what its rounds would have cost if they had been planned bounds nothing
        epsilons = [infinity_of_null(epsilon) for epsilon, clients in ledger.phase["epsilons"] for _ in range(clients)]
    else:
        epsilons = ledger.epsilons(options.delta, options.accountant, options.rounds)
    accountant = about_at(options.accountant or last["accountant"], options.delta or last["delta"])
    unit, adjacency, view = Unit(last["unit"]), Adjacency(last["adjacency"]), View(last["view"])
    delta, caveat = options.delta or last["delta"], ledger.phase.get("caveat")
    promise = Guarantee(tuple(epsilons), delta, unit, adjacency, view, accountant, (), caveat=caveat)
    promise = _with_phases(ledger, options, promise) if ledger.prior_phases and options.rounds is None else promise
    if last["deployment"] is None:
        return promise
    deployment = DeploymentSummary(**last["deployment"])._replace(rounds=ledger.rounds)
    own = infinity_of_null(ledger.phase["epsilon"])  # of all its rounds
    return dataclasses.replace(promise, deployment=deployment, own=own)


def _with_phases(ledger: "Ledger", options: LedgerOptions, promise: Guarantee) -> Guarantee:
    """The Guarantee that names the phases before, and what the run costs without them."""
    from fedjax_dp.accounting.composed_phases import costs_of, events_of, kind_of

    kind, delta = kind_of(ledger.phase), promise.delta
    if kind is None or delta is None:
        return promise
    accountant = options.accountant or ledger.last["accountant"]
    events = events_of(ledger.phase, kind)
    alone = None if events is None else max(epsilons_of(events, delta, accountant))
    return dataclasses.replace(
        promise, phases=costs_of(ledger.prior_phases, ledger.phase, delta, accountant), alone=alone
    )


def _own(ledger: "Ledger", options: LedgerOptions, promise: Guarantee) -> list[str]:
    """That the run promised the same, where it is of the same; refuses a ledger where it did not."""
    phase = ledger.phase
    if ledger.follows_results:
        return [f"as its run promised: results may end it: stop {ledger.last['law']['stop']}"]
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
    last = ledger.last
    lines = []
    if last["budget"] is not None:
        left = downward(round(last["budget"] - promise.epsilon, 6))
        lines.append(f"budget {last['budget']:g}, of which {left} is left")
    by = {"budget": "the budget", "rule": "results"}.get(last["halt"])
    if by is not None:
        lines.append(f"halted by {by} after round {last['round'] + 1}")
    return lines
