"""`fedjax-dp report`."""

import dataclasses
from typing import Annotated

from fedjax_dp.options import about
from fedjax_dp.tools.cli.latest import RUNS, SWEEPS, named_or_latest
from fedjax_dp.tools.cli.options import parse

DESCRIPTION = """One HTML file about a run, a sweep, an audit or a reproduction, which needs nothing else, no network
either: open it in a browser, send it to a colleague.

usage: fedjax-dp report [RUN|SWEEP|AUDIT|REPRODUCTION] [-o FILE.html]; it is the folder of a run, a sweep or a
reproduction, by default of the last run or sweep under runs/ and sweeps/, or a file with what fedjax-dp audit --json
has printed. The file that was written is named on stdout; it replaces a report that was written there before, and
nothing else.

fedjax-dp report RUN --statement writes a page for those who answer for data protection, as HTML and as Markdown: what
is protected, against whom, under which assumptions, and what is not covered."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Where the report goes.

    Args:
        folder: what is reported
        out: the .html file
        statement: a page for those who answer for data protection instead
    """

    folder: Annotated[str | None, about("", positional=True, default="the last run or sweep here")] = None
    out: Annotated[
        str | None, about("", short="-o", default="beside what is reported, by its name", metavar="FILE")
    ] = None
    statement: Annotated[bool, about("", switch=True)] = False


def report_command(arguments: list[str]) -> int:
    """Write a report."""
    options = parse("report", arguments, ReportOptions, DESCRIPTION)
    wanted = "followed by a run, a sweep, an audit or a reproduction"
    kinds = [RUNS] if options.statement else [RUNS, SWEEPS]
    folder = named_or_latest("report", options.folder, wanted, "fedjax-dp report runs/mine", *kinds)
    from fedjax_dp.tools.reports.written import report, report_statement

    if options.statement:
        print(*report_statement(folder, options.out), sep="\n")
        return 0
    print(report(folder, options.out))
    return 0
