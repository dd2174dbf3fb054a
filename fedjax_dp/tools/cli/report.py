"""`fedjax-dp report`."""

import dataclasses
from typing import Annotated

from fedjax_dp.options import about
from fedjax_dp.tools.cli.latest import RUNS, SWEEPS, named_or_latest
from fedjax_dp.tools.cli.options import parse

DESCRIPTION = """Write one HTML page about a run, a sweep, an audit or a reproduction. It needs no network and no
other file: open it in a browser, send it to a colleague.

usage: fedjax-dp report [RUN|SWEEP|AUDIT|REPRODUCTION] [-o FILE.html]; give the folder of a run, a sweep or a
reproduction, or a file with the output of fedjax-dp audit --json. Without any the last run or sweep is taken. The page
is named on stdout; it replaces an older report of the same name, and nothing else.

fedjax-dp report RUN --statement writes a page for data protection officers, as HTML and as Markdown: what is protected,
against whom, under which assumptions, and what is not covered."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Where the report goes.

    Args:
        folder: what to report
        out: the .html file to write
        statement: write a page for data protection officers instead
    """

    folder: Annotated[str | None, about("", positional=True, default="the last run or sweep here")] = None
    out: Annotated[
        str | None, about("", short="-o", default="beside what is reported, by its name", metavar="FILE")
    ] = None
    statement: Annotated[bool, about("", switch=True)] = False


def report_command(arguments: list[str]) -> int:
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
