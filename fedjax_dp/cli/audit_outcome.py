"""What `fedjax-dp audit` does once its options are known, and how its result is printed."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedjax_dp import devices
from fedjax_dp.accounting import Guarantee, Unit
from fedjax_dp.audits.audit import audit, require_sane
from fedjax_dp.audits.hypothesis_test import Outcome
from fedjax_dp.audits.verdict import Audit
from fedjax_dp.cli.options import OUTPUT, SWITCHES, Detail
from fedjax_dp.cli.output import INDENT, show_lines
from fedjax_dp.experiments import environment
from fedjax_dp.experiments.build import planned_of
from fedjax_dp.experiments.config import Overrides, RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.population import build_data
from fedjax_dp.privacy.guarantees import prepared

if TYPE_CHECKING:
    from fedjax_dp.cli.audit import AuditOptions
    from fedjax_dp.figures.canvas import Look

OTHERS = {"opposite": "opposite to it", "zero": "zero", "following": "following the model"}
_IF = f"{INDENT}if noise and sampling are as described, and only the amount of noise is in doubt"
_UNTESTED = "your model, which is not run: this canary chooses gradients, and all that is done to them is run"


def carry_out(
    overrides: Overrides, options: "AuditOptions", detail: Detail, look: "Look", idle: Sequence[str], repeat: str
) -> int:
    """The exit code; `idle` are flags without an effect, `repeat` the command that does the same again."""
    require_sane(
        options.canary, options.claim, options.significance, trials=options.trials, lanes=options.lanes
    )  # before minutes of calibration
    screen = Screen(quiet=detail is Detail.QUIET)
    if idle:
        screen.say(f"of no effect on an audit: {', '.join(idle)}")
    devices.cache_programs()
    config = RunSpec.of(overrides)
    with config.naming_defaults():
        result, promise = _audited(config, options, screen)
    result = dataclasses.replace(result, repeat=repeat)
    if options.plot:
        from fedjax_dp.figures.audits import plot_audit  # slow to import, and only needed here

        plot_audit(result, options.plot, **look)
        screen.say(f"picture in {options.plot}")
    if options.json:
        content = result.to_dict() | {
            "options": {name: value for name, value in vars(options).items() if name not in SWITCHES},
            "config": config.to_dict(),
            "versions": environment.versions(),
            "device": environment.device(),
        }
        print(json.dumps(content, allow_nan=False))
    else:
        _print(result, promise, options, config.privacy.participation, detail)
    return int(result.violated)


def _audited(config: RunSpec, options: "AuditOptions", screen: Screen) -> tuple[Audit, Guarantee]:
    """The audit of a configuration, and the Guarantee of its run."""
    data = build_data(config.data)
    with screen.counter("calibrating noise") as count:
        planned, promise = prepared(planned_of(config, data), count)
    terms = planned.terms
    attack = {name: value for name, value in vars(options).items() if name not in OUTPUT}
    with screen.bar("auditing", total=options.trials if options.one_run is None else 1) as show:
        result = audit(
            planned.algorithm,
            data,
            rounds=planned.rounds,
            seed=planned.seed,
            model=planned.model,
            delta=terms.delta,
            accountant=terms.accountant,
            view=terms.view,
            participation=terms.participation,
            colluders=terms.colluders,
            progress=lambda done, total: show(done, ""),
            **attack,
        )
    return result, promise


def _print(result: Audit, promise: Guarantee, options: "AuditOptions", participation: str, detail: Detail) -> None:
    sure = f"with confidence {result.confidence}"
    noise = f"at most {result.noise:.3g} times what is stated" if result.noise < 1e3 else "nothing is proved about it"
    if not result.violated:
        noise += f"; half the stated noise would {'' if result.noise < 2 else 'not '}have been noticed"
    lines = [
        ("", result.verdict),
        ("stated", str(result.guarantee)),
        *_own_statement(result, promise, participation),
        *([] if result.claim is None else [("claimed", f"epsilon {result.claim:g}, which is what was tested")]),
        ("proved", f"{_at_least(result.lower)} {sure}; {_runs(result)}"),
        *([("", _IF)] if result.lower > result.of_any else []),
        *(("warning", text) for text in result.guarantee.warnings),
        *(("REFUTED" if str(claim) in result.refuted else "paper", str(claim)) for claim in result.guarantee.claims),
    ]
    rests_on = [
        ("always", f"{_at_least(result.of_any)} {sure}, whatever the mechanism is"),
        ("noise", noise),
        ("attack", _attack(result, options)),
        *([("untested", _UNTESTED)] if result.canary == "gradient" else []),
    ]
    show_lines(lines, rests_on, [*_errors(result), ("time", f"{result.seconds:.1f} s")], detail)


def _own_statement(result: Audit, promise: Guarantee, participation: str) -> list[tuple[str, str]]:
    """What the run itself states of the audited client, where that is another number."""
    own = promise.epsilons[result.client]
    if abs(own - result.epsilon) <= 1e-6 * own:
        return []
    whose = f"its own model and participation {participation}"
    return [("", f"{INDENT}the run itself states {own:.4g} of client {result.client}, for {whose}")]


def _runs(result: Audit) -> str:
    """How many runs say so."""
    if isinstance(result.outcome, Outcome):
        return f"{result.outcome.evidence} counted, {result.outcome.pilot:,} more used to choose the attack"
    return result.outcome.evidence


def _at_least(epsilon: float) -> str:
    return f"epsilon at least {epsilon:.4g}" if epsilon > 0 else "nothing"


def _attack(result: Audit, options: "AuditOptions") -> str:
    """`score summed; planted (the canary): gradient in record 0 of client 2, all other gradients zero`."""
    by_record, where = result.guarantee.unit is Unit.RECORD, f"client {result.client}"
    if not isinstance(result.outcome, Outcome):
        count = result.outcome.canaries
        where = f"{count} records of {where}" if by_record else f"{count} clients"
    elif by_record:
        where = f"record {options.record} of {where}"
    others = ""
    if result.canary == "gradient":
        others = f", all other gradients {OTHERS[result.outcome.game]}"
    return f"score {result.outcome.attack}; planted (the canary): {result.canary} in {where}{others}"


def _errors(result: Audit) -> list[tuple[str, str]]:
    """How often the attack erred."""
    if not isinstance(result.outcome, Outcome):
        return []
    bounds = result.outcome.bounds
    if bounds.mean is None:
        most = f"rates at most {bounds.false_positive:.3g} and {bounds.false_negative:.3g}"
    else:
        most = f"mean of both rates at most {bounds.mean:.3g}"
    seen = f"canary seen in {bounds.false_positives:,} of {bounds.negatives:,} runs without it, missed in"
    return [("errors", f"{seen} {bounds.false_negatives:,} of {bounds.positives:,} with it; {most}")]
