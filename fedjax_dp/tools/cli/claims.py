"""`fedjax-dp claims`: the papers' theorems beside what can be proved."""

import dataclasses
import itertools
import math
from typing import Annotated

from rich.console import Console
from rich.table import Table

from fedjax_dp import errors
from fedjax_dp.accounting.guarantee import Verdict
from fedjax_dp.experiments.console import Screen
from fedjax_dp.options import about
from fedjax_dp.tools.cli.options import PlotOption, PrintOptions, parse, picture_of
from fedjax_dp.tools.cli.output import cell, columns, page, print_json
from fedjax_dp.tools.deployments.systems import system_rows
from fedjax_dp.tools.papers.row import PaperRow
from fedjax_dp.tools.papers.settings import DETAILS, LEAST_DELTA, PAPERS, SYMBOLS, claim_rows

OF = ("papers", "systems")


def claims_command(arguments: list[str]) -> int:
    options = parse(
        "claims",
        arguments,
        ClaimsOptions,
        "The papers' theorems, or what other systems' configurations state, and what can be proved.\n\n"
        "usage: fedjax-dp claims [--of papers|systems] [--paper NAME] [OPTIONS] [--json]",
    )
    errors.require_choice("of", options.of, OF)
    look = picture_of(options)
    if options.of == "systems":
        return _systems(options)
    with Screen().counter("claims") as count:
        rows = claim_rows(options.paper, count)
    if options.plot:
        from fedjax_dp.tools.papers import plots

        plots.plot_claims(rows, options.plot, **look)
    if options.json:
        return print_json({"claims": [row.to_dict() for row in rows]})
    _print_claims(rows)
    return 0


@dataclasses.dataclass(frozen=True)
class ClaimsOptions(PrintOptions, PlotOption):
    """Whose claims.

    Args:
        paper: one paper only, the moments accountant or adaptive clipping
        of: whose claims: papers, or configurations of other systems in public repositories
    """

    paper: Annotated[str | None, about("", choices=PAPERS, default="all")] = None
    of: Annotated[str, about("", choices=OF)] = "papers"


def _systems(options: ClaimsOptions) -> int:
    """What other systems' configurations state, each row at its commit."""
    errors.require_left_out(options, ("paper", "plot"), "with --of systems")
    with Screen().counter("configurations") as count:
        rows = system_rows(count)
    if options.json:
        return print_json({"claims": [row.to_dict() for row in rows]})
    console = page()
    console.print(
        "What private federations in public repositories state, each at the commit that was read: what a setting\n"
        "does, not whose fault it is. alone: epsilon of the noisy updates; everything: of all that leaves.\n"
    )
    cells = {
        "configuration": [row.id for row in rows],
        "verdict": [row.verdict for row in rows],
        "claimed": [row.claim_text for row in rows],
        "alone": [row.noisy_text for row in rows],
        "everything": [row.total_text for row in rows],
    }
    columns(console, cells, left=("configuration", "verdict"))
    for row in rows:
        console.print(f"{row.id}: {', '.join(str(one) for one in row.source.to_dict().values())}", style="bold")
        console.print(f" {row.does}")
        for reason in row.reasons:
            console.print(f" {reason}")
        if row.check is not None:
            console.print(f" {row.check.statement}")
        console.print(f" {row.needs}\n")
    return 0


def _print_claims(rows: list[PaperRow]) -> None:
    console = page()
    legend = {
        "claimed": "epsilon by the paper's theorem",
        "provable": "epsilon of the paper's noise by the rigorous accountant",
        "noise": "what the paper's calibration asks for; tight: what suffices; ratio: noise / tight",
    }
    _print_legend(console, legend | {verdict.value: verdict.about for verdict in Verdict})
    console.print(
        "Unless a claim says otherwise: one record of one client, replace-one neighbours, a server that sees every "
        "upload.\n"
    )
    for paper, of_paper in itertools.groupby(rows, lambda row: row.paper):
        console.print(f"{paper}: {SYMBOLS[paper]}\n")
        for _, group in itertools.groupby(of_paper, lambda row: row.claim.source):
            _print_claim(console, list(group))


def _print_legend(console: Console, legend: dict[str, str]) -> None:
    widest = max(map(len, legend)) + 2
    if not console.is_terminal:
        for name, text in legend.items():
            console.print(f"{name:<{widest}}{text}")
        return
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True)
    for name, text in legend.items():
        rows.add_row(name, text)
    console.print(rows)


def _print_claim(console: Console, rows: list[PaperRow]) -> None:
    unit = next((row.noise_unit for row in rows if row.noise_unit), "")
    (paper, source), deltas = (rows[0].paper, rows[0].claim.source), {row.claim.delta for row in rows}
    title = f"{paper}: {source}"
    if len(deltas) == 1:
        title += f", delta {'at most ' if deltas == {LEAST_DELTA} else ''}{min(deltas):g}"
    console.print(title + (f"; noise: {unit}" if unit else ""), style="bold")
    cells = {
        "verdict": [row.claim.verdict.value for row in rows],
        "claimed": [cell(row.claim.epsilon) for row in rows],
        # losses above 700 are not resolved
        "provable": [">700" if row.noise and row.provable == math.inf else cell(row.provable) for row in rows],
        "noise": [cell(row.noise) for row in rows],
        "tight": [cell(row.tight) for row in rows],
        "ratio": [cell(row.noise_ratio, 3) for row in rows],
    }
    settings = {"setting": [row.setting for row in rows]}
    left = ("setting", "verdict")
    columns(console, settings | {name: column for name, column in cells.items() if set(column) != {"-"}}, left=left)
    details = list(dict.fromkeys(name for row in rows for name in row.details))
    if details:
        more = {name.replace("_", " "): [cell(row.details.get(name)) for row in rows] for name in details}
        columns(console, settings | more, left=left)
        _print_legend(console, {f" {name.replace('_', ' ')}": DETAILS[name] for name in details})
        console.print()
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row.claim.reason, []).append(row.setting)
    for reason, where in reasons.items():
        place = "" if len(reasons) == 1 else f"{'; '.join(where[:3])}{' ...' if len(where) > 3 else ''}: "
        console.print(f" {place}{reason}")
    console.print()
