"""`fedjax-dp audit`."""

import dataclasses
import inspect
import json
import shlex
from typing import Annotated

from fedjax_dp import devices
from fedjax_dp.accounting import Guarantee, Unit
from fedjax_dp.audits.audit import audit, require_sane
from fedjax_dp.audits.hypothesis_test import Outcome
from fedjax_dp.audits.setup import CANARY_NAMES
from fedjax_dp.audits.verdict import Audit
from fedjax_dp.cli.options import OUTPUT, SWITCHES, Detail, DetailOptions, PlotOption, known_flags, picture_of
from fedjax_dp.cli.run_options import configured_by
from fedjax_dp.cli.telling import INDENT, tell
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments import environment
from fedjax_dp.experiments.build import build_algorithm, build_model, terms_of
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.population import build_data
from fedjax_dp.options import about, of_class
from fedjax_dp.privacy.guarantees import prepared
from fedjax_dp.privacy.planned_run import plan_run

DESCRIPTION = """Put the epsilon of a run to the test: attack it, and prove a lower bound.

usage: fedjax-dp audit [CONFIG.toml] [OPTIONS] [--json]; options are those of fedjax-dp run, and after them those of the
audit. --json prints one JSON object on stdout and nothing else; --quiet prints the result alone, --verbose also how
often the attack erred. Exit code 1 says that what is stated is violated: with
--significance 0.05 at most one sound run in twenty is told so."""
USUAL = {name: parameter.default for name, parameter in inspect.signature(audit).parameters.items()}
OTHERS = {"opposite": "opposite to it", "zero": "zero", "following": "following the model"}
IDLE = (
    "evaluate_every",
    "train_metrics",
    "target",
    "ap",
    "checkpoint_every",
    "chunk_size",
    "devices",
    "records",
    "deterministic",
    "out",
)

_IF = f"{INDENT}if noise and sampling are as described, and only the amount of noise is in doubt"
_UNTESTED = "your model, which is not run: this canary chooses gradients, and all that is done to them is run"


@dataclasses.dataclass(frozen=True)
class AuditOptions(DetailOptions, PlotOption):
    """How to attack.

    Args:
        trials: runs in all; some tenths of them only choose the attack
        one_run: one run with so many canaries instead of many runs with one; proves less
        canary: gradient: the worst gradients in a model made for them; label-flip, blank or mislabelled: a record of
            your data in your model
        client: whom to attack
        record: of that client, where single records are hidden
        significance: chance of a wrong VIOLATED, at most
        claim: an epsilon to test instead of the one stated
        parameters: of the model that the gradient canary is run in
        lanes: runs at once on a device
    """

    trials: int = USUAL["trials"]
    one_run: Annotated[int | None, about("", default="many runs")] = USUAL["one_run"]
    canary: Annotated[str, about("", choices=CANARY_NAMES)] = USUAL["canary"]
    client: Annotated[int | None, about("", default="the one with the largest epsilon")] = USUAL["client"]
    record: int = USUAL["record"]
    significance: float = USUAL["significance"]
    claim: float | None = USUAL["claim"]
    parameters: int = USUAL["parameters"]
    lanes: Annotated[int | None, about("", default="what fits into its memory, or cache")] = USUAL["lanes"]


def audit_command(arguments: list[str]) -> int:
    """Run an audit and print what it found; 1 where what is stated is violated."""
    overrides, options, flagged = configured_by("audit", arguments, DESCRIPTION, AuditOptions)
    detail, look = options.detail, picture_of(options)
    require_sane(
        options.canary, options.claim, options.significance, trials=options.trials, lanes=options.lanes
    )  # before minutes of calibration
    screen = Screen(quiet=detail is Detail.QUIET)
    idle = [f"--{name.replace('_', '-')}" for name in IDLE if name in flagged]
    if idle:
        screen.say(f"of no effect on an audit: {', '.join(idle)}")
    devices.cache_programs()
    config = configs.RunSpec.of(overrides)
    with config.naming_defaults():
        found, promise = _audited(config, options, screen)
    found = dataclasses.replace(found, repeat=_again(arguments))
    if options.plot:
        from fedjax_dp.figures.audits import plot_audit  # slow to import, and only needed here

        plot_audit(found, options.plot, **look)
        screen.say(f"picture in {options.plot}")
    if options.json:
        content = found.to_dict() | {
            "options": {name: value for name, value in vars(options).items() if name not in SWITCHES},
            "config": config.to_dict(),
            "versions": environment.versions(),
            "device": environment.device(),
        }
        print(json.dumps(content, allow_nan=False))
    else:
        _print(found, promise, options, config.privacy.participation, detail)
    return int(found.violated)


def _audited(config: RunSpec, options: AuditOptions, screen: Screen) -> tuple[Audit, Guarantee]:
    """The audit of a configuration, and the Guarantee of its run."""
    data = build_data(config.data)
    model, algorithm = build_model(config, data), build_algorithm(config, data)
    rounds, seed, terms = config.training.rounds, config.data.seed, terms_of(config, data)
    with screen.counter("calibrating noise") as count:
        planned = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)
        algorithm, promise = prepared(planned, count)
    attack = {name: value for name, value in vars(options).items() if name not in OUTPUT}
    with screen.bar("auditing", total=options.trials if options.one_run is None else 1) as show:
        found = audit(
            algorithm,
            data,
            rounds=rounds,
            seed=seed,
            model=model,
            delta=terms.delta,
            accountant=terms.accountant,
            view=terms.view,
            participation=terms.participation,
            colluders=terms.colluders,
            progress=lambda done, total: show(done, ""),
            **attack,
        )
    return found, promise


def _again(arguments: list[str]) -> str:
    """The command that repeats an audit, as it can be pasted; how its result was shown is left out."""
    shown = {name: option for name, option in of_class(AuditOptions).items() if name in OUTPUT}
    return shlex.join(["fedjax-dp", "audit", *known_flags(arguments, shown)[1]])


def _print(found: Audit, promise: Guarantee, options: AuditOptions, participation: str, detail: Detail) -> None:
    sure = f"with confidence {found.confidence}"
    noise = f"at most {found.noise:.3g} times what is stated" if found.noise < 1e3 else "nothing is proved about it"
    if not found.violated:
        noise += f"; half the stated noise would {'' if found.noise < 2 else 'not '}have been noticed"
    told = [
        ("", found.verdict),
        ("stated", str(found.guarantee)),
        *_own_statement(found, promise, participation),
        *([] if found.claim is None else [("claimed", f"epsilon {found.claim:g}, which is what was tested")]),
        ("proved", f"{_at_least(found.lower)} {sure}; {_runs(found)}"),
        *([("", _IF)] if found.lower > found.of_any else []),
        *(("warning", text) for text in found.guarantee.warnings),
        *(("REFUTED" if str(claim) in found.refuted else "paper", str(claim)) for claim in found.guarantee.claims),
    ]
    rests_on = [
        ("always", f"{_at_least(found.of_any)} {sure}, whatever the mechanism is"),
        ("noise", noise),
        ("attack", _attack(found, options)),
        *([("untested", _UNTESTED)] if found.canary == "gradient" else []),
    ]
    tell(told, rests_on, [*_errors(found), ("time", f"{found.seconds:.1f} s")], detail)


def _own_statement(found: Audit, promise: Guarantee, participation: str) -> list[tuple[str, str]]:
    """What the run itself states of the audited client, where that is another number."""
    own = promise.epsilons[found.client]
    if abs(own - found.epsilon) <= 1e-6 * own:
        return []
    told = f"its own model and participation {participation}"
    return [("", f"{INDENT}the run itself states {own:.4g} of client {found.client}, for {told}")]


def _runs(found: Audit) -> str:
    """How many runs say so."""
    if isinstance(found.outcome, Outcome):
        return f"{found.outcome.evidence} counted, {found.outcome.pilot:,} more used to choose the attack"
    return found.outcome.evidence


def _at_least(epsilon: float) -> str:
    return f"epsilon at least {epsilon:.4g}" if epsilon > 0 else "nothing"


def _attack(found: Audit, options: AuditOptions) -> str:
    """`score summed; planted (the canary): gradient in record 0 of client 2, all other gradients zero`."""
    by_record, where = found.guarantee.unit is Unit.RECORD, f"client {found.client}"
    if not isinstance(found.outcome, Outcome):
        count = found.outcome.canaries
        where = f"{count} records of {where}" if by_record else f"{count} clients"
    elif by_record:
        where = f"record {options.record} of {where}"
    others = ""
    if found.canary == "gradient":
        others = f", all other gradients {OTHERS[found.outcome.game]}"
    return f"score {found.outcome.attack}; planted (the canary): {found.canary} in {where}{others}"


def _errors(found: Audit) -> list[tuple[str, str]]:
    """How often the attack erred."""
    if not isinstance(found.outcome, Outcome):
        return []
    bounds = found.outcome.bounds
    if bounds.mean is None:
        most = f"rates at most {bounds.false_positive:.3g} and {bounds.false_negative:.3g}"
    else:
        most = f"mean of both rates at most {bounds.mean:.3g}"
    seen = f"canary seen in {bounds.false_positives:,} of {bounds.negatives:,} runs without it, missed in"
    return [("errors", f"{seen} {bounds.false_negatives:,} of {bounds.positives:,} with it; {most}")]
