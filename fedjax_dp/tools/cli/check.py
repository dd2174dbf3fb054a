"""`fedjax-dp check`: what somebody else's private federation proves."""

import dataclasses
import math
import pathlib
from typing import Annotated

from fedjax_dp import errors, folders
from fedjax_dp.options import about
from fedjax_dp.tools.cli.options import PrintOptions, missing, parse
from fedjax_dp.tools.cli.output import Lines, print_json, show_lines
from fedjax_dp.tools.deployments import log, templates
from fedjax_dp.tools.deployments.check import Check, check, in_words
from fedjax_dp.tools.deployments.description import read
from fedjax_dp.tools.deployments.rules import Effect

DESCRIPTION = """Compute the epsilon of a federation that another system runs, from a description in public facts.

usage: fedjax-dp check DEPLOYMENT.toml [--log STEPS.csv] [--view server|clients] [--delta D] [--json]
       fedjax-dp check --template NAME [-o FILE.toml]

A template lists a system's settings as facts, with blanks to fill in; template blank suits any system. Exit code 1 says
that the claim is wrong, or that nothing is private; 2 that the input is wrong, or that a fact is missing."""
VIEWS = ("server", "clients")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(PrintOptions):
    """What is judged.

    Args:
        deployment: file that describes the federation
        log: what happened, a row per message or round, instead of sampling laws
        view: adversary; server sees each message, clients see each new model
        delta: delta, instead of that of the file
        template: print a description to fill in
        output: write the template to this new file
    """

    deployment: Annotated[str | None, about("", positional=True, metavar="DEPLOYMENT.toml")] = None
    log: Annotated[str | None, about("", metavar="STEPS.csv")] = None
    view: Annotated[str | None, about("", choices=VIEWS, default="whom the noise is added against")] = None
    delta: Annotated[float | None, about("")] = None
    template: Annotated[str | None, about("", metavar="NAME")] = None
    output: Annotated[str | None, about("", short="-o", metavar="FILE.toml")] = None


def check_command(arguments: list[str]) -> int:
    options = parse("check", arguments, CheckOptions, DESCRIPTION)
    if options.template is not None:
        return _write_template(options)
    errors.require_left_out(options, ["output"], "without --template", "add --template NAME, or drop it")
    if options.deployment is None:
        raise missing("template", why=", or a DEPLOYMENT.toml")
    deployment = read(options.deployment, free=() if options.log is None else log.FREE)
    checked = check(deployment, view=options.view, delta=options.delta, log=options.log)
    if options.json:
        print_json(checked.to_dict())
    else:
        show_lines(_result(checked), _rests_on(checked))
    return 1 if checked.fails else 0


def _write_template(options: CheckOptions) -> int:
    if options.deployment is not None:
        raise errors.refuse("template", options.template, "left out beside a deployment", "drop one of them")
    text = templates.text_of(str(options.template))
    if options.output is None:
        print(text, end="")
        return 0
    folders.write_new("output", pathlib.Path(options.output), text)
    print(f'wrote {options.output}\nnext  fill in each "?", then  fedjax-dp check {options.output}')
    return 0


def _result(checked: Check) -> Lines:
    yield "", checked.statement
    whole = checked.total
    if math.isfinite(checked.mechanism.epsilon) and (whole is None or whole.epsilon != checked.mechanism.epsilon):
        yield "all", "no epsilon of everything that leaves" if whole is None else f"epsilon {in_words(whole.epsilon)}"
    for line in checked.other_releases:
        yield "also", line
    claim = checked.claim
    if claim is None:
        yield "claim", checked.verdict
    else:
        per = "round" if claim.rounds else "run"
        at = f"epsilon {claim.epsilon:g} at delta {claim.delta:g} (per {per})"
        yield "claim", f"{at}: {checked.verdict.upper()}, {claim.reason}"
    for finding in checked.findings:
        shown = finding.effect in (Effect.CLAIM, Effect.NO_MECHANISM) or finding.code in ("extra_release", "assumes")
        if not shown:
            yield "found", f"{finding.reason}: {finding.words}"
    if checked.remedies:
        yield "change", "; ".join(checked.remedies)


def _rests_on(checked: Check) -> Lines:
    one = checked.mechanism
    if one.noise is not None:
        yield "noise", f"multiplier {one.noise}"
    if one.accountant is not None:
        yield "account", one.accountant
    for line in one.assumptions:
        yield "assumes", line
    for name in checked.missing:
        yield "unknown", f"{name}: the worst is counted"
    for line in checked.idle:
        yield "idle", line
    for line in one.warnings:
        yield "warning", line
    source = checked.deployment.source.to_dict()
    if source:
        yield "source", ", ".join(map(str, source.values()))
