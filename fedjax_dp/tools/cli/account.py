"""`fedjax-dp account` and `calibrate`: accounting without running anything."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import (
    ACCOUNTANTS,
    ATTAINED,
    KINDS,
    VECTORS,
    Adjacency,
    AttackBounds,
    BallsInBins,
    Event,
    FullBatch,
    GaussianSteps,
    ParticipationLog,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Sampling,
    Shuffled,
    TruncatedPoisson,
    Unit,
    View,
    WithoutReplacement,
    WithReplacement,
    Workload,
    attack_bounds,
    compare,
    guarantee,
    least_error,
    noise_candidates,
    repeated,
    steps_in_view,
    windows_of_text,
    windows_of_token,
)
from fedjax_dp.accounting.calibrate import require_budget
from fedjax_dp.accounting.events import joined
from fedjax_dp.display import downward, upward
from fedjax_dp.options import about
from fedjax_dp.tools.cli.account_ledger import account_ledger
from fedjax_dp.tools.cli.help import FirstPage
from fedjax_dp.tools.cli.options import OUTPUT, PlotOption, PrintOptions, Switch, missing, parse, picture_of
from fedjax_dp.tools.cli.output import cell, columns, page, print_json

if TYPE_CHECKING:
    from fedjax_dp.tools.figures.canvas import Look

SAMPLING: dict[str, tuple[Callable[..., Sampling], tuple[str, ...]]] = {  # and the options that each takes
    "none": (FullBatch, ()),
    "poisson": (Poisson, ("rate",)),
    "without-replacement": (WithoutReplacement, ("batch_size", "records")),
    "with-replacement": (WithReplacement, ("batch_size", "records")),
    "shuffled": (Shuffled, ("batch_size", "records", "last")),
    "allocation": (RandomAllocation, ("chosen", "of")),
    "bins": (BallsInBins, ("of",)),
    "truncated": (TruncatedPoisson, ("rate", "capacity", "records")),
}
OF_TEXTS = ("tokens", "window", "stride")  # options of units that are parts of texts
OF_SAMPLING = tuple(dict.fromkeys(name for _, names in SAMPLING.values() for name in names))
CUT = ("without-replacement", "shuffled")  # batches of as many records as there are, where these are fewer
USUAL = {
    "steps": "1000",
    "delta": "1e-5",
    "adjacency": "add-remove",
    "sampling": "poisson",
    "rate": "0.01",
    "batch_size": "64",
    "records": "6000",
    "unit": "client",
    "view": "broadcast",
    "rounds": "100",
    "participation": "0.1",
}
OUT = {"plot": "epsilon.png", "quiet": "", "json": ""}
_STEPS = "--steps 1000 --delta 1e-5 --adjacency add-remove"
ACCOUNT = FirstPage(
    "Compute the epsilon of noisy steps by every accountant, side by side.",
    "--noise-multiplier Z --steps T --delta D --adjacency A [OPTIONS]",
    {
        f"account --noise-multiplier 1.1 {_STEPS} --sampling poisson --rate 0.01": "DP-SGD",
        f"account --noise-multiplier 50 {_STEPS} --plain": "full batches, explained in plain words",
        "run": "a run, whose ledger the next command reads",
        "account --ledger runs/digits-dpnfl-s0": "the epsilon of that run, derived from its ledger alone",
    },
    {"noise_multiplier": "1.1", **USUAL, "ledger": "runs/first", "accountant": "rdp", "plain": "", **OUT},
)
CALIBRATE = FirstPage(
    "Find the noise multiplier that each accountant asks for.",
    "--epsilon E --steps T --delta D --adjacency A [OPTIONS]",
    {
        f"calibrate --epsilon 2 {_STEPS} --sampling poisson --rate 0.01": "DP-SGD",
        f"calibrate --epsilon 2 {_STEPS}": "full batches",
        "calibrate --epsilon 2 --steps 256 --records 4096 --batch-size 64 --delta 1e-6 --adjacency add-remove "
        "--correlation auto": "noise that is correlated over 256 rounds of 64 out of 4,096 clients",
    },
    {"epsilon": "2", "correlation": "auto", "momentum": "0.9", **USUAL, **OUT},
)
A = TypeVar("A")
B = TypeVar("B")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseOptions(PrintOptions, PlotOption):
    """What is released; the noise or the budget comes on top.

    Args:
        steps: number of noisy sums; with --rounds: in each round
        delta: delta of the guarantee
        adjacency: neighbouring data sets: add-remove, replace-one or zero-out
        rate: probability that a member is drawn; for poisson and truncated
        batch_size: members of a batch of fixed size
        last: rest of an epoch: drop or keep; for shuffled
        chosen: sums of each pass that a member joins, at random; for allocation
        of: sums of a pass; for allocation and bins
        capacity: members that stay, at most; for truncated
        records: number of records (unit client: of clients), to draw from and to judge delta by
        unit: whose presence is hidden: record, client, user, text or token
        records_per_user: most records of a user at a client, or at each client, with commas; for unit user
        tokens: tokens of the longest text; for units text and token
        window: tokens of a record, a window of a text; for units text and token
        stride: tokens from one window to the next; for units text and token
        view: what the adversary sees: uploads (every noisy sum), secure_sum, broadcast or final_model
        cohort_size: clients that each add such noise; for other views, with --local-steps
        colluders: clients of the cohort that help the adversary
        local_steps: noisy steps between two uploads; the noises of a cohort add up for 1 only
        rounds: rounds that a client joins at random; with --participation
        participation: probability of joining a round
        participation_log: CSV of round,client instead of both; the steps are per round, and the busiest client counts
        quiet: print the numbers alone
    """

    steps: Annotated[int, about("", default="required")]
    delta: Annotated[float, about("", default="required")]
    adjacency: Annotated[str, about("", default="required")]
    sampling: Annotated[str, about(", ".join(SAMPLING))] = "none"
    rate: float | None = None
    batch_size: int | None = None
    last: Annotated[str | None, about("", default="drop")] = None
    chosen: int | None = None
    of: int | None = None
    capacity: int | None = None
    records: Annotated[int | None, about("", default="none", metavar="INT")] = None
    unit: str = "record"
    records_per_user: Annotated[str | None, about("", metavar="INT,...")] = None
    tokens: int | None = None
    window: int | None = None
    stride: Annotated[int | None, about("", default="window")] = None
    view: str = "uploads"
    cohort_size: int | None = None
    colluders: int | None = None
    local_steps: int | None = None
    rounds: int | None = None
    participation: float | None = None
    participation_log: Annotated[str | None, about("", metavar="FILE")] = None
    quiet: Switch = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountOptions(ReleaseOptions):
    """What is released, with its noise.

    Args:
        plain: explain the smallest epsilon in plain words
        noise_multiplier: standard deviation of the noise on the sum, over the clipping norm
        ledger: ledger of a run, or its folder, instead of all others but --delta, --accountant, --rounds
        accountant: accountant that reads the ledger
    """

    plain: Switch = False
    noise_multiplier: Annotated[float, about("", default="required")]
    ledger: Annotated[str | None, about("", metavar="FILE")] = None
    accountant: Annotated[str | None, about("", choices=tuple(ACCOUNTANTS), default="the run's")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ReleaseOptions):
    """What is released, and the budget.

    Args:
        epsilon: the budget, in nats
        correlation: compare noise that is correlated over rounds, of one kind or (auto) of all, for steps rounds of
            cohorts of batch_size out of records clients, by its error in the model
        momentum: of the server; for correlation
    """

    epsilon: Annotated[float, about("", default="required")]
    correlation: Annotated[str | None, about("", choices=("auto", *KINDS))] = None
    momentum: float | None = None


def account_command(arguments: list[str]) -> int:
    """Epsilon by every accountant, or that of a run by its ledger."""
    if any(word.partition("=")[0] == "--ledger" for word in arguments):
        return account_ledger(arguments)
    options = parse("account", arguments, AccountOptions, ACCOUNT)
    look = picture_of(options)
    errors.require_left_out(options, ["accountant"], "without --ledger", "without it every accountant answers")
    errors.require_positive("noise_multiplier", options.noise_multiplier, "without noise epsilon is infinite")
    event = _event(options, options.noise_multiplier)
    answers, least = compare.compare_epsilons(event, options.delta), compare.lower_bound(event, options.delta)
    noise = options.noise_multiplier
    head = f"noise multiplier {noise:g}"
    if options.plot:
        axis, counts = _curve_points(options)
        varied = functools.partial(dataclasses.replace, options)
        _plot(options, look, axis, lambda at: _event(varied(**{axis: at}), noise), counts, head)
    attack = _attack(event, options.delta, answers) if options.plain else None
    whose = Unit(options.unit), Adjacency(options.adjacency)
    content = {
        "attack": None if attack is None else attack.to_dict(*whose),
        "guarantees": [answer.to_dict("epsilon") for answer in answers],
        "lower_bound": least.to_dict("epsilon"),
    }
    means = [] if attack is None else attack.in_words(*whose)
    means = [f"{'       ' if at else 'means: '}{line}" for at, line in enumerate(means)]
    known = [] if options.quiet else _between(answers, least)
    return _print_answers(options, head, "epsilon", [*answers, least], content, known, means)


def _attack(event: Event, delta: float, answers: list[compare.Answer]) -> AttackBounds | None:
    """What attacks are held to by the accountant of the least epsilon; None where no accountant has one."""
    known = [(answer.number, answer.accountant) for answer in answers if answer.number is not None]
    if not known:
        return None
    epsilon, accountant = min(known)
    return attack_bounds(event, epsilon, delta, accountant)


def _between(answers: list[compare.Answer], least: compare.Answer) -> list[str]:
    """Where the true epsilon lies, if that is known from both sides."""
    known = [answer.number for answer in answers if answer.number is not None]
    if least.number is None or not known:
        return []
    low, high = downward(least.number, 5), upward(min(known), 5)
    if float(low) >= float(high):
        return [f"the true epsilon is {high}"]
    return [f"the true epsilon lies between {low} and {high}"]


def calibrate_command(arguments: list[str]) -> int:
    options = parse("calibrate", arguments, CalibrateOptions, CALIBRATE)
    look = picture_of(options)
    require_budget("epsilon", options.epsilon, "it is the budget in nats")
    if options.correlation is not None:
        return _compare_correlations(options)
    errors.require_left_out(options, ["momentum"], "without --correlation")
    answers = compare.compare_noise(_event(options, 1.0), options.epsilon, options.delta)
    if all(answer.number is None for answer in answers):
        raise errors.refuse("the budget", f"epsilon {options.epsilon:g}", "reachable", str(answers[0].reason))
    if options.plot:
        noises = [answer.number for answer in answers if answer.number]
        points = np.geomspace(min(noises) / 2, max(noises) * 2, 24).tolist()
        event, head = functools.partial(_event, options), f"{options.steps} steps"
        _plot(options, look, "noise multiplier", event, points, head, options.epsilon)
    content = {"noise_multipliers": [answer.to_dict("noise_multiplier") for answer in answers]}
    return _print_answers(options, f"for epsilon {options.epsilon:g}", "noise multiplier", answers, content)


def _compare_correlations(options: CalibrateOptions) -> int:
    """Noise of every kind over the rounds of a federation, by its error in the model."""
    used = {"epsilon", "correlation", "momentum", "steps", "delta", "adjacency", "records", "batch_size"} | {*OUTPUT}
    others = [one.name for one in dataclasses.fields(options) if getattr(options, one.name) != one.default]
    for name in (name for name in others if name not in used):
        got, wanted = getattr(options, name), "left out with --correlation, which compares rounds of whole clients"
        raise errors.refuse(name, got, wanted, f"drop --{name.replace('_', '-')}")
    errors.require_count("steps", options.steps)
    errors.require_delta(options.delta)
    errors.require_choice("adjacency", options.adjacency, [known.value for known in Adjacency])
    clients = errors.require_given("records", options.records, "the number of clients")
    size = errors.require_given("batch_size", options.batch_size, "the clients of a cohort")
    neighbours, workload = Adjacency(options.adjacency), Workload(momentum=options.momentum or 0.0)
    table = noise_candidates(
        *(options.steps, clients, size, options.epsilon, options.delta),
        hidden=None if neighbours is Adjacency.ZERO_OUT else neighbours,
        seen=neighbours,
        workload=workload,
        kinds=KINDS if options.correlation == "auto" else (str(options.correlation),),
    )
    best = least_error(table, VECTORS)
    rows = sorted(table, key=lambda one: one.error)
    if options.json:
        content = [one._asdict() | {"strategy": None, "chosen": one is best} for one in rows]
        return print_json({"inputs": _inputs(options), "candidates": content})
    page().print(
        f"for epsilon {options.epsilon:g} at delta {options.delta:g}, {neighbours.value}: {options.steps} rounds of "
        f"{size} out of {clients} clients, seen ones by turns and hidden ones by Poisson sampling; error: root mean "
        "square in the sum of updates, per clip norm;"
        " chosen: the least error, of ties within 0.4% what keeps least"
    )
    cells = {
        "noise": [str(one) for one in rows],
        "noise multiplier": [upward(one.noise, 5) for one in rows],
        "error": [f"{one.error:.4g}" for one in rows],
        "vectors kept": [str(one.vectors) for one in rows],
        "": ["chosen" if one is best else "" for one in rows],
    }
    columns(page(), cells, left=("noise", ""))
    return 0


def _both(names: tuple[str, str], first: A | None, second: B | None) -> tuple[A, B]:
    """Two options that mean something only together."""
    if first is None or second is None:
        there, lacking = names if second is None else names[::-1]
        got, remedy = f"{there} alone", f"add --{lacking.replace('_', '-')}"
        raise errors.refuse(" and ".join(names), got, "given together, or neither", remedy)
    return first, second


def _event(options: ReleaseOptions, noise: float) -> Event:
    """The event that the options describe, everything checked."""
    errors.require_count("steps", options.steps)
    errors.require_delta(options.delta)
    errors.require_choice("adjacency", options.adjacency, [known.value for known in Adjacency])
    errors.require_choice("unit", options.unit, [known.value for known in Unit])
    errors.require_choice("view", options.view, [known.value for known in View])
    sampling, adjacency, unit = _sampling(options), Adjacency(options.adjacency), Unit(options.unit)
    groups = _groups(options)
    if len(groups) > 1:  # changes of several clients add up in one sum, and their draws may be independent or one
        where, remedy = "for a user at several clients", "drop --{flag}: each client is counted by itself"
        errors.require_left_out(options, ("cohort_size", "colluders", "local_steps", "participation"), where, remedy)
    of_clients = (GaussianSteps(noise, sampling, adjacency, options.steps, unit, group) for group in groups)
    events = [_steps_in_view(own, options) for own in of_clients]  # of a record and a client there is one
    event = joined(events)
    if options.participation_log is not None:
        log = _log(options)
        fewest = int(np.unique(log.rounds, return_counts=True)[1].min())
        if options.cohort_size is not None and options.cohort_size > fewest:
            got = f"{options.cohort_size}, above the {fewest} in a round of {options.participation_log}"
            raise errors.refuse("cohort_size", got, "the fewest clients of a round", "lower it, or leave it out")
        return repeated(event, int(log.counts.max()))
    if options.rounds is None and options.participation is None:
        return event
    rounds, participation = _both(("rounds", "participation"), options.rounds, options.participation)
    return RandomParticipation(event, participation, rounds)


def _log(options: ReleaseOptions) -> ParticipationLog:
    """Who took part, as a file says it; refuses a law of participation beside it."""
    errors.require_left_out(
        options, ("rounds", "participation"), "beside a participation log", "drop --{flag}, or the log"
    )
    if options.unit == Unit.CLIENT.value and options.sampling != "none":
        got, remedy = options.sampling, "a log that is public amplifies nothing"
        raise errors.refuse("sampling", got, "none for unit client beside a participation log", remedy)
    return ParticipationLog.read(errors.require_given("participation_log", options.participation_log))


def _groups(options: ReleaseOptions) -> list[int]:
    """Records of the unit, at most, at every client that has some."""
    unit = Unit(options.unit)
    wanted = {Unit.USER: ("records_per_user",), Unit.TEXT: OF_TEXTS, Unit.TOKEN: OF_TEXTS}.get(unit, ())
    unwanted = [name for name in ("records_per_user", *OF_TEXTS) if name not in wanted]
    errors.require_left_out(options, unwanted, f"for unit {unit.value}")
    for name in wanted:
        if getattr(options, name) is None and name != "stride":
            raise missing(name, why=f" for unit {unit.value}, as without a bound nothing is known")
    if unit is Unit.USER:
        return _counts(str(options.records_per_user))
    if not wanted:
        return [1]
    tokens, window = options.tokens or 0, options.window or 0
    windows = windows_of_text if unit is Unit.TEXT else windows_of_token
    return [windows(tokens, window, window if options.stride is None else options.stride)]


def _counts(text: str) -> list[int]:
    counts = [int(word) if word.strip().isdecimal() else -1 for word in text.split(",")]
    if min(counts) < 0 or not any(counts):
        wanted = "a count, or one for each client with commas between, not all 0"
        raise errors.refuse("records_per_user", repr(text), wanted, "such as 4 or 3,0,2")
    return [count for count in counts if count]


def _steps_in_view(own: GaussianSteps, options: ReleaseOptions) -> GaussianSteps:
    """The steps with the noise that the view sees: the own noise, unless a cohort is said to add to it."""
    shared = ("cohort_size", "colluders", "local_steps")
    if options.view == View.UPLOADS.value:
        where = "in view uploads, where others' noise does not count"
        errors.require_left_out(options, shared, where, "drop --{flag} or give another --view")
        return steps_in_view(own, View.UPLOADS, cohort_size=1)
    if all(getattr(options, name) is None for name in shared):
        return steps_in_view(own, View(options.view), cohort_size=1)
    size, steps = _both(("cohort_size", "local_steps"), options.cohort_size, options.local_steps)
    return steps_in_view(own, View(options.view), cohort_size=size, colluders=options.colluders or 0, local_steps=steps)


def _sampling(options: ReleaseOptions) -> Sampling:
    errors.require_choice("sampling", options.sampling, SAMPLING)
    made, wanted = SAMPLING[options.sampling]
    unwanted = [name for name in OF_SAMPLING if name not in (*wanted, "records")]  # by which delta is judged, too
    errors.require_left_out(options, unwanted, f"for sampling {options.sampling}")
    for name in wanted:
        if getattr(options, name) is None and name != "last":
            raise missing(name, why=f" for {options.sampling} sampling")
    if options.records is not None:
        errors.require_count("records", options.records)
    given = {name: getattr(options, name) for name in wanted if getattr(options, name) is not None}
    if options.sampling in CUT and options.unit != Unit.CLIENT.value:
        given["batch_size"] = min(given["batch_size"], given["records"])
    return made(*given.values())


def _inputs(options: ReleaseOptions) -> dict[str, Any]:
    shown = (*OUTPUT, "plain")
    return {
        name: value for name, value in dataclasses.asdict(options).items() if value is not None and name not in shown
    }


def _statement(options: ReleaseOptions) -> str:
    times = f"{options.steps} steps"
    if options.participation_log is not None:
        log = _log(options)
        whose = f"{log.counts.max()} rounds of the busiest of {np.sum(log.counts > 0)} clients"
        word = "participation is public, and its log is trusted to depend on no records"
        times += f" a round, {whose} by {options.participation_log} ({word})"
    if options.rounds is not None:
        times += f" a round, {options.rounds} rounds taken part in with probability {options.participation:g}"
    if options.cohort_size is not None:
        gain = _steps_in_view(GaussianSteps(1.0, FullBatch(), Adjacency.REPLACE_ONE, 1), options).noise_multiplier
        times += (
            f" ({options.local_steps} between uploads), {options.cohort_size} clients of whom "
            f"{options.colluders or 0} collude, {gain:.3g} times one client's noise"
        )
    view, groups = View(options.view), _groups(options)
    whose = f"one {Unit(options.unit)}"
    if Unit(options.unit).of_records:
        at = "" if len(groups) == 1 else f" at {len(groups)} clients"
        whose += f", at most {' and '.join(map(str, groups))} record{'s' * (groups != [1])}{at}"
    whom = "whoever sees every noisy sum" if view is View.UPLOADS else view
    return (
        f"{times}, {_sampling(options)}, delta {options.delta:g}; unit: {whose}, "
        f"{options.adjacency} neighbours, against {whom}"
    )


def _print_answers(
    options: ReleaseOptions,
    head: str,
    what: str,
    answers: list[compare.Answer],
    content: dict[str, Any],
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> int:
    """Print the answers as a table, with notes before and after the warnings; or `content` as JSON."""
    warnings: Sequence[str] = ()
    if options.records is not None:
        warnings = guarantee.delta_warnings(options.delta, [options.records], Unit(options.unit))
    if options.json:
        inputs, statement = _inputs(options), _statement(options)
        return print_json({"inputs": inputs, "statement": statement, **content, "warnings": list(warnings)})
    console = page()
    if options.quiet:
        answers = [answer for answer in answers if answer.number is not None]
    else:
        console.print(f"{head}, {_statement(options)}")
    cells = {
        "accountant": [answer.accountant for answer in answers],
        what: [cell(one.number, 5, downward if one.accountant == ATTAINED.name else upward) for one in answers],
    }
    about = "what it is, or why it has no answer"
    if not options.quiet:
        cells[about] = [answer.reason or answer.about for answer in answers]
    columns(console, cells, left=("accountant", about), wrapped=[about])
    for note in [*before, *(f"warning: {line}" for line in warnings), *after]:
        console.print(note)
    return 0


def _curve_points(options: ReleaseOptions) -> tuple[str, list[int]]:
    """What the picture's axis counts, and at which numbers."""
    name = "steps" if options.rounds is None else "rounds"
    most = options.steps if options.rounds is None else options.rounds
    points = np.unique(np.geomspace(1, most, 24).round().astype(int)) if most > 24 else np.arange(1, most + 1)
    sampling = _sampling(options)
    per_epoch = sampling.steps_per_epoch if isinstance(sampling, Shuffled) else 1
    return name, [int(point) * per_epoch for point in points if point * per_epoch <= most]


def _plot(
    options: ReleaseOptions,
    look: "Look",
    axis: str,
    event: Callable[[Any], Event],
    points: Sequence[float],
    head: str,
    target: float | None = None,
) -> None:
    """Draw epsilon against the axis, by every accountant; `event` is that of a point."""
    from fedjax_dp.tools.figures.runs import plot_epsilon  # takes half a second to load

    curves = compare.epsilon_curves(event, points, options.delta)
    title = f"{head}, {_sampling(options)}, delta {options.delta:g}"
    plot_epsilon(curves, axis, title, f"one {Unit(options.unit)}, {options.adjacency}", options.plot, target, **look)
