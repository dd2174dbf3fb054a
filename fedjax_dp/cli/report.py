"""`fedjax-dp report`."""

import dataclasses
import pathlib
from typing import Annotated

from fedjax_dp import errors
from fedjax_dp.cli.latest import RUNS, SWEEPS, named_or_latest
from fedjax_dp.cli.options import parse
from fedjax_dp.experiments.console import Screen
from fedjax_dp.options import about

DESCRIPTION = """One HTML file about a run, a sweep, an audit or a reproduction, which needs nothing else, no network
either: open it in a browser, send it to a colleague.

usage: fedjax-dp report [RUN|SWEEP|AUDIT|REPRODUCTION] [-o FILE.html]; it is the folder of a run, a sweep or a
reproduction, by default of the last run or sweep under runs/ and sweeps/, or a file with what fedjax-dp audit --json
has printed. The file that was written is named on stdout; it replaces a report that was written there before, and
nothing else.

fedjax-dp report RUN --statement writes a page for those who answer for data protection, as HTML and as Markdown: what
is protected, against whom, under which assumptions, and what is not covered.

fedjax-dp report RUN|SWEEP --serve [--port N] follows one that is under way, or not yet begun, in a browser on this
machine: the address on stdout holds a token, without which nothing is shown. Ctrl-C ends it."""
MOST_PORT = 65535


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Where the report goes.

    Args:
        folder: what is reported
        out: the .html file
        statement: a page for those who answer for data protection instead
        serve: follow it in a browser on this machine, instead of writing a file
        port: of --serve
    """

    folder: Annotated[str | None, about("", positional=True, default="the last run or sweep here")] = None
    out: Annotated[
        str | None, about("", short="-o", default="beside what is reported, by its name", metavar="FILE")
    ] = None
    statement: Annotated[bool, about("", switch=True)] = False
    serve: Annotated[bool, about("", switch=True)] = False
    port: Annotated[int | None, about("", default="one that is free")] = None


def report_command(arguments: list[str]) -> int:
    """Write a report, or serve one."""
    options = parse("report", arguments, ReportOptions, DESCRIPTION)
    if not options.serve:
        errors.require_left_out(options, ["port"], "without --serve", "add --serve, or drop it")
    wanted = "followed by a run, a sweep, an audit or a reproduction"
    kinds = [RUNS] if options.statement else [RUNS, SWEEPS]
    folder = named_or_latest("report", options.folder, wanted, "fedjax-dp report runs/mine", *kinds)
    if options.serve:
        return _serve(folder, options)
    from fedjax_dp.reports.written import report, report_statement

    if options.statement:
        print(*report_statement(folder, options.out), sep="\n")
        return 0
    print(report(folder, options.out))
    return 0


def _serve(path: pathlib.Path, options: ReportOptions) -> int:
    """Serve until it is interrupted, which is how it ends."""
    errors.require_left_out(options, ["out"], "beside --serve, which writes nothing", "drop one of them")
    if options.statement:
        raise errors.refuse("--serve and --statement", "both", "one of them", "drop one")
    port = 0 if options.port is None else options.port
    errors.require_integer("port", port, 0, MOST_PORT)
    from fedjax_dp.reports.server import ReportServer

    screen = Screen()
    with ReportServer(path, port) as server:
        try:
            print(server.address, flush=True)
            screen.say(f"following {path}, on this machine alone; Ctrl-C ends it")
            server.serve_forever()
        except KeyboardInterrupt:
            screen.say("ended")
    return 0
