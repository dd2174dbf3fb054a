"""`fedjax-dp audit`."""

import dataclasses
import pathlib
import shlex
from typing import TYPE_CHECKING, Annotated, Literal

from fedjax_dp import devices, errors
from fedjax_dp.accounting import Guarantee, Unit
from fedjax_dp.display import downward, upward
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.groups import ExecutionConfig, OutputConfig
from fedjax_dp.options import about, of_class
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.tools.audits.hypothesis_test import Outcome
from fedjax_dp.tools.cli.help import FirstPage
from fedjax_dp.tools.cli.latest import RUNS, latest
from fedjax_dp.tools.cli.options import (
    OUTPUT,
    SWITCHES,
    Detail,
    DetailOptions,
    PlotOption,
    Switch,
    known_flags,
    picture_of,
)
from fedjax_dp.tools.cli.output import INDENT, print_json, show_lines
from fedjax_dp.tools.cli.run_options import parse_configuration

if TYPE_CHECKING:
    from fedjax_dp.tools.audits.verdict import Audit

PAGE = FirstPage(
    "Attack a run thousands of times and prove a lower bound on its epsilon.",
    "[RUN_FOLDER|CONFIG.toml] [OPTIONS]",
    {
        "audit": "attack the last run below runs/, or the default run",
        "audit --trials 2000 --seed 1": "fewer attacks, other random numbers",
        "audit --algorithm dp_fedavg --epsilon 8": "a configuration instead of a run",
        "audit --one-run 1000 --json": "one run with 1,000 canaries, printed as JSON",
    },
    {
        "trials": "2000",
        "one_run": "1000",
        "canary": "label-flip",
        "client": "3",
        "record": "7",
        "claim": "0.5",
        "significance": "0.01",
        "lanes": "64",
        "own": "",
        "plot": "audit.png",
        "json": "",
        "quiet": "",
        "verbose": "",
    },
    "It takes the options of fedjax-dp run too, which describe the run. Exit code 1 says that the stated epsilon is "
    "violated; with --significance 0.05 that happens to at most one sound run in twenty.",
)
IDLE = {**of_class(ExecutionConfig), **of_class(OutputConfig)}  # options of runs without an effect on audits
_IF = f"{INDENT}if noise and sampling are as described, and only the amount of noise is in doubt"
_UNTESTED = "your model, which is not run: this canary chooses gradients, and all that is done to them is run"


@dataclasses.dataclass(frozen=True)
class AuditOptions(DetailOptions, PlotOption):
    """How to attack.

    Args:
        trials: number of attacked runs; a few tenths of them only choose the attack
        one_run: canaries of a single run, instead of many runs with one canary; proves less
        canary: gradient: the worst gradients, in a model made for them; label-flip, blank or mislabelled: a record of
            your data, in your model
        client: client to attack, by name or by number from 0
        record: record of that client to attack, where noise hides records
        significance: probability of a false VIOLATED, at most
        claim: epsilon to test instead of the stated one
        parameters: parameters of the model that the gradient canary is run in
        lanes: runs at once on a device
        own: attack what the run itself releases, if it stands for a deployment
    """

    trials: int = 10_000
    one_run: Annotated[int | None, about("", default="many runs")] = None
    canary: Literal["gradient", "label-flip", "blank", "mislabelled"] = "gradient"
    client: Annotated[str | None, about("", metavar="NAME|INT", default="the one with the largest epsilon")] = None
    record: int = 0
    significance: float = 0.05
    claim: float | None = None
    parameters: int = 20
    lanes: Annotated[int | None, about("", default="what fits into its memory, or cache")] = None
    own: Switch = False


def audit_command(arguments: list[str]) -> int:
    """Run an audit and print its result; 1 where what is stated is violated."""
    overrides, options, flagged, path = parse_configuration("audit", arguments, PAGE, AuditOptions)
    if not overrides and (last := latest(RUNS)) is not None:
        arguments = [str(last), *arguments]
        overrides, options, flagged, path = parse_configuration("audit", arguments, PAGE, AuditOptions)
    detail, look = options.detail, picture_of(options)
    from fedjax_dp.experiments import environment
    from fedjax_dp.tools.audits.audit import require_sane  # loads JAX

    require_sane(
        options.canary, options.claim, options.significance, trials=options.trials, lanes=options.lanes
    )  # before minutes of calibration
    screen = Screen(quiet=detail is Detail.QUIET)
    if idle := [option.flag for name, option in IDLE.items() if name in flagged]:
        screen.say(f"of no effect on an audit: {', '.join(idle)}")
    devices.cache_programs()
    config = RunSpec.of(overrides)
    _require_released(config, options.own)
    with config.naming_defaults():
        result, promise = _run_audit(config, path, options, screen, _repeat_command(arguments))
    if options.plot:
        from fedjax_dp.tools.figures.audits import plot_audit  # slow to import, and only needed here

        plot_audit(result, options.plot, **look)
        screen.say(f"picture in {options.plot}")
    if options.json:
        content = result.to_dict() | {
            "options": {name: value for name, value in vars(options).items() if name not in SWITCHES},
            "config": config.to_dict(),
            "versions": environment.versions(),
            "device": environment.device(),
        }
        print_json(content)
    else:
        _print(result, promise, options, config.privacy, detail)
    return int(result.violated)


def _require_released(config: RunSpec, own: bool) -> None:
    """Refuse to attack what a run does not release itself."""
    if config.privacy.deployment is not None and not own:
        raise errors.refuse(
            "deployment_cohort",
            config.privacy.deployment_cohort,
            "left out of an audit: a run releases less noise than the deployment that it stands for",
            "add --own to attack the epsilon of the run itself",
        )
    if config.privacy.deployment is None and own:
        raise errors.refuse("own", True, "left out for a run that stands for no deployment", "drop --own")


def _run_audit(
    config: RunSpec, path: pathlib.Path | None, options: AuditOptions, screen: Screen, repeat: str
) -> "tuple[Audit, Guarantee]":
    """The audit of a configuration, from a path or without one, and the Guarantee of its run."""
    from fedjax_dp.experiments import run_folder
    from fedjax_dp.experiments.build import planned_of
    from fedjax_dp.experiments.population import build_data
    from fedjax_dp.privacy.guarantees import prepare
    from fedjax_dp.tools.audits.audit import audit_run
    from fedjax_dp.tools.audits.setup import AttackOptions

    data = build_data(config.data)
    if path is not None and path.is_dir():
        run_folder.require_own_data(path, config, data)
    with screen.counter("calibrating noise") as count:
        planned, promise = prepare(planned_of(config.for_clients(data.num_clients), data), count)
    chosen = {name: value for name, value in vars(options).items() if name not in (*OUTPUT, "own")}
    with screen.bar("auditing", total=options.trials if options.one_run is None else 1) as show:
        released = planned.without_deployment.with_terms(epsilon=None)  # its noise is known
        attack = AttackOptions(**chosen, progress=lambda done, total: show(done, ""))
        result = audit_run(released, attack, repeat)
    return result, promise


def _repeat_command(arguments: list[str]) -> str:
    """The command that repeats an audit, as it can be pasted; how its result was shown is left out."""
    shown = {name: option for name, option in of_class(AuditOptions).items() if name in OUTPUT}
    return shlex.join(["fedjax-dp", "audit", *known_flags(arguments, shown)[1]])


def _print(result: "Audit", promise: Guarantee, options: AuditOptions, terms: PrivacyTerms, detail: Detail) -> None:
    sure = f"with confidence {result.confidence}"
    noise = f"at most {result.noise:.3g} times what is stated" if result.noise < 1e3 else "nothing is proved about it"
    if not result.violated:
        noise += f"; half the stated noise would {'' if result.noise < 2 else 'not '}have been noticed"
    lines = [
        ("", result.verdict),
        ("stated", str(result.guarantee)),
        *_own_statement(result, promise, terms),
        *([] if result.claim is None else [("claimed", f"epsilon {result.claim:g}, which is what was tested")]),
        ("proved", f"{_at_least(result.lower)} {sure}; {_runs(result)}"),
        *([("", _IF)] if result.lower > result.of_any else []),
        *(("warning", text) for text in result.guarantee.warnings),
        *(
            ("REFUTED" if str(claim) in result.refuted_claims else "paper", str(claim))
            for claim in result.guarantee.claims
            if claim.epsilon is not None or detail is Detail.VERBOSE
        ),
    ]
    rests_on = [
        ("always", f"{_at_least(result.of_any)} {sure}, whatever the mechanism is"),
        ("noise", noise),
        ("attack", _attack(result, options)),
        *([("untested", _UNTESTED)] if result.canary == "gradient" else []),
    ]
    if detail is Detail.VERBOSE:
        rests_on += [*_errors(result), ("time", f"{result.seconds:.1f} s")]
    show_lines(lines, () if detail is Detail.QUIET else rests_on)


def _own_statement(result: "Audit", promise: Guarantee, terms: PrivacyTerms) -> list[tuple[str, str]]:
    """What the run itself states of the audited client, where that is another number."""
    own = promise.epsilons[result.client]
    if promise.deployment is not None:
        return [("", f"{INDENT}of the run itself; to clients of the {promise.mark} it promises {upward(own)}")]
    if abs(own - result.epsilon) <= 1e-6 * own:
        return []
    whose = f"its own model and participation {terms.participation}"
    if promise.phases:
        whose += ", with the phases before it"
    return [("", f"{INDENT}the run itself states {upward(own)} of client {result.name}, for {whose}")]


def _runs(result: "Audit") -> str:
    if isinstance(result.outcome, Outcome):
        return f"{result.outcome.evidence} counted, {result.outcome.pilot:,} more used to choose the attack"
    return result.outcome.evidence


def _at_least(epsilon: float) -> str:
    return f"epsilon at least {downward(epsilon)}" if epsilon > 0 else "nothing"


def _attack(result: "Audit", options: AuditOptions) -> str:
    """`score summed; planted (the canary): gradient in record 0 of client 2, all other gradients zero`."""
    by_record, where = result.guarantee.unit is Unit.RECORD, f"client {result.name}"
    if not isinstance(result.outcome, Outcome):
        count = result.outcome.canaries
        where = f"{count} records of {where}" if by_record else f"{count} clients"
    elif by_record:
        where = f"record {options.record} of {where}"
    others = f", all other gradients {result.outcome.game}" if result.canary == "gradient" else ""
    return f"score {result.outcome.attack}; planted (the canary): {result.canary} in {where}{others}"


def _errors(result: "Audit") -> list[tuple[str, str]]:
    if not isinstance(result.outcome, Outcome):
        return []
    bounds = result.outcome.bounds
    if bounds.mean is None:
        most = f"rates at most {bounds.false_positive:.3g} and {bounds.false_negative:.3g}"
    else:
        most = f"mean of both rates at most {bounds.mean:.3g}"
    seen = f"canary seen in {bounds.false_positives:,} of {bounds.negatives:,} runs without it, missed in"
    return [("errors", f"{seen} {bounds.false_negatives:,} of {bounds.positives:,} with it; {most}")]
