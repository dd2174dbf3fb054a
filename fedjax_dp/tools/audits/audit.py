"""Auditing: attacks on simulated runs in neighbouring worlds test the stated epsilon."""

import functools
import inspect
import math
import time
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Event, Guarantee, TradeOff, Unit, View
from fedjax_dp.accounting.accountants import about_at
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import upward
from fedjax_dp.models import Model, usual_model
from fedjax_dp.privacy.guarantees import verification_error
from fedjax_dp.privacy.planned_run import PlannedRun, plan_run
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms, options_of_terms
from fedjax_dp.pytrees import replace, structure, value
from fedjax_dp.rounds.algorithm import Algorithm, without_noise
from fedjax_dp.tools.audits.attacks import Attack, LikelihoodRatio, SumOverTimes, WeightedTimes
from fedjax_dp.tools.audits.game import Game
from fedjax_dp.tools.audits.hypothesis_test import LEAST_PILOT, PILOT, Outcome, counted_trials, run_hypothesis_test
from fedjax_dp.tools.audits.one_run import Guesses, guess
from fedjax_dp.tools.audits.setup import CANARY_NAMES, AttackOptions, AuditSetup, set_up
from fedjax_dp.tools.audits.trials import TrialRunner
from fedjax_dp.tools.audits.verdict import Audit, judge

TRACE, TRACE_TRIALS = 2**30, 256  # number of the first trial without noise, and how many such trials there are
LEAST_CLAIM = 1e-3  # an epsilon that differs from 0
MOST_TRIALS = 10**9
MOST_CLAIM = 500.0  # its exp is finite
LEAST_TRACE = 1e-5  # relative to the largest number received


def audit(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    model: Model | None = None,
    canary: str = "gradient",
    client: int | str | None = None,
    record: int = 0,
    trials: int = 10_000,
    one_run: int | None = None,
    significance: float = 0.05,
    claim: float | None = None,
    parameters: int = 20,
    lanes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **privacy: Unpack[PrivacyOptions],
) -> Audit:
    """Run `algorithm` `trials` times, half of them with a canary, and prove a lower bound on epsilon.

    The worlds are neighbours under unit and adjacency of the algorithm's Guarantee. The cohorts are those of `seed`
    where the adversary of the view knows them; all else is fresh in every trial.
    privacy     `delta`, `view`, ...: the fields of `PrivacyTerms`; with an `epsilon` its noise is calibrated first. The
                `participation` is schedule or worst;
    canary      "gradient": the worst case. Records are gradients of a linear model with `parameters` parameters: C e
                for the canary and -C e for the record it replaces, in every step; those of other records are chosen
                for the strongest attack, see `canaries.gradient_game`. All of the algorithm runs except the model.
                "label-flip", "blank", "mislabelled": the user's model and data, with record number `record` of the
                client (all records, if the unit is a client) changed accordingly, or absent in the other world;
    client      the owner of the record, by number or name; by default the client with the largest epsilon;
    claim       an epsilon claimed at this delta, to be tested instead of the Guarantee's; the attack is then chosen
                to refute it;
    trials      total runs, of which some tenths only choose the attack and its threshold;
    one_run     a number of canaries (records of the client, or clients), each present by an independent coin, in one
                run, for models that cannot be trained often. Proves less;
    significance  chance of a wrong VIOLATED, at most; with a claim, if noise and sampling are of the stated kind;
    lanes       trials at once on a device;
    progress    called with (runs done, total runs).
    User-defined parts are inspected too, as for a Guarantee (`privacy.guarantees`).
    For a run with an earlier private phase, or early stopping by held-out records, only training is attacked, and only
    its Guarantee is tested: a claim about the whole run is refuted if training alone refutes it.
    Not observed: the noised bits of an adaptive clip norm, and warm starts in view broadcast.
    Raises: ConfigurationError for an algorithm without epsilon, too few trials to prove anything, and a canary that
            leaves no trace.
    """
    options = {**locals(), **privacy}
    require_sane(canary, claim, significance, trials=trials, lanes=lanes)
    if privacy.get("stop_at_epsilon") is not None:
        remedy = "audit the rounds until it stopped: result.ready.rounds"
        raise errors.refuse(
            "stop_at_epsilon", privacy["stop_at_epsilon"], "left out, as an audit takes all its rounds", remedy
        )
    model = model if model is not None else usual_model(data)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=PrivacyTerms(**privacy))
    attack = AttackOptions(**{name: options[name] for name in AttackOptions._fields})
    return audit_run(run, attack, _call(audit, options))


def audit_run(run: PlannedRun, attack: AttackOptions, repeat: str) -> Audit:
    """Audit a planned run, with the noise for its epsilon if it has one; `repeat` is the command that repeats it.

    It refuses what `audit` refuses, without the checks of `require_sane`.
    """
    began = time.perf_counter()
    run, setup = set_up(run, attack)
    curve = _tested_curve(setup, attack.claim, run.terms.accountant)
    tested = setup.epsilon if attack.claim is None else attack.claim
    if attack.one_run is None:
        _require_trials(attack, len(setup.games), curve, tested)
    contradiction = verification_error(run)
    first, game = next(iter(setup.games.items()))
    runner = TrialRunner(game, run.seed, attack.lanes, setup.bits)
    traces = {name: _trace(runner, game) for name, game in setup.games.items()}
    times = np.any(list(traces.values()), axis=0)
    if not times.any():
        raise errors.refuse(
            "canary",
            f"{attack.canary} at client {setup.name}",
            "one that leaves a trace once gradients are clipped",
            contradiction or "take another canary, record or client",
        )
    outcome: Outcome | Guesses
    if attack.one_run is None:
        outcome = run_hypothesis_test(
            {name: functools.partial(runner.run, game) for name, game in setup.games.items() if traces[name].any()},
            _attacks(run.algorithm, run.data, setup, times, game.observation.short(runner.numbers)),
            curve,
            trials=attack.trials,
            significance=attack.significance,
            progress=attack.progress,
        )
    else:
        attack.progress(0, 1)
        outcome = guess(runner, game, first, tested, setup.delta, run.seed, attack.significance)
    attack = attack._replace(trials=attack.trials if attack.one_run is None else 1)
    seconds = time.perf_counter() - began
    return judge(setup, outcome, run.terms.accountant, attack, run.seed, seconds, repeat, contradiction)


@value
class FunctionGame:
    """Two worlds of a function, with and without the canary."""

    mechanism: Callable[[jax.Array, jax.Array], Any] = structure()

    def play(self, key: jax.Array, there: jax.Array) -> jax.Array:
        """As `Game.play`, with the rows of one matrix as times, or all numbers at one time."""
        released = self.mechanism(key, there)
        if not (isinstance(released, jax.Array) and released.ndim == 2):
            released = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(released)])[None]
        return released[:, None]


def audit_mechanism(
    mechanism: Callable[[jax.Array, jax.Array], Any],
    event: Event,
    *,
    delta: float,
    seed: int = 0,
    accountant: str = "pld",
    trials: int = 10_000,
    significance: float = 0.05,
    lanes: int = 256,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Audit any function: `mechanism(key, there)` returns what an adversary receives with or without the canary.

    mechanism  jax code, vmapped over trials; `there` is a traced bool, for `jnp.where`. It returns numbers in any
               arrays; if it is one matrix, its rows are releases that follow one another;
    event      what it is stated to release, in values of `fedjax_dp.accounting`. VIOLATED means that the function
               releases more; lower bounds on its epsilon hold for the same kind of noise, or for any noise.
    The other options are those of `audit`. Raises: ConfigurationError as there.

    >>> from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps
    >>> def mean(key, there):  # of records in [-1, 1], whose noise was calibrated for a sensitivity of 1 instead of 2
    ...     return jnp.where(there, 1.0, -1.0) + 2.0 * jax.random.normal(key, (1, 1))
    >>> claimed = GaussianSteps(4.0, FullBatch(), Adjacency.REPLACE_ONE, 1)
    >>> audit_mechanism(mean, claimed, delta=1e-5).violated
    True
    """
    options, began = dict(locals()), time.perf_counter()
    require_sane("gradient", None, significance, trials=trials, lanes=lanes)
    if not callable(mechanism):
        raise errors.refuse("mechanism", repr(mechanism), "a function of a key and of whether the canary is present")
    if not isinstance(event, Event):
        raise errors.refuse("event", repr(event), "a value from fedjax_dp.accounting, such as GaussianSteps(...)")
    epsilon = accounting.epsilon_of(event, delta, accountant)
    step = next((step for step, _ in event.leaves()), None)
    if step is None or math.isinf(epsilon):
        got = "no release" if step is None else "no epsilon"
        raise errors.refuse("event", got, "releases with an epsilon to test")
    promise = Guarantee(
        (epsilon,),
        delta,
        step.unit,
        step.adjacency,
        View.UPLOADS,
        about_at(accountant, delta),
        (f"the function releases {event}",),
    )
    setup = AuditSetup(promise, delta, 0, "0", epsilon, event, {"function": None}, ())
    curve = accounting.trade_off(event, accountant)
    attack = AttackOptions("function", trials=trials, significance=significance, lanes=lanes, progress=progress)
    _require_trials(attack, 1, curve, epsilon)
    game = FunctionGame(mechanism=lambda key, there: mechanism(key, there))  # hashable for any mechanism
    runner = TrialRunner(game, seed, lanes)
    outcome = run_hypothesis_test(
        {"function": functools.partial(runner.run, game)},
        _attacks_on(event, np.ones(runner.times, bool), 1, runner.numbers),
        curve,
        trials=trials,
        significance=significance,
        progress=progress,
    )
    seconds = time.perf_counter() - began
    return judge(setup, outcome, accountant, attack, seed, seconds, _call(audit_mechanism, options))


def _call(function: Callable[..., Any], options: dict[str, Any]) -> str:
    """The call with all options that are plain values and differ from their default."""
    usual = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    usual |= {name: option.default for name, option in options_of_terms().items() if name not in usual}
    explicit = [
        f"{name}={value!r}"
        for name, value in options.items()
        if isinstance(value, int | float | str) and value != usual[name]
    ]
    return f"{function.__name__}({', '.join(['...', *explicit])})"


def require_sane(canary: str, claim: float | None, significance: float, **counts: int | None) -> None:
    errors.require_choice("canary", canary, CANARY_NAMES)
    errors.require_in_unit_interval("significance", significance)
    for name, count in counts.items():
        if count is not None:
            errors.require_count(name, count)
            if count > MOST_TRIALS:
                raise errors.refuse(name, count, f"at most {MOST_TRIALS:,}")
    if claim is None:
        return
    errors.require_not_negative("claim", claim)
    if claim > MOST_CLAIM:
        raise errors.refuse(
            "claim", claim, f"from 0 to {MOST_CLAIM}", "no audit distinguishes larger ones from infinity"
        )


def _tested_curve(setup: AuditSetup, claim: float | None, accountant: str) -> TradeOff:
    """The trade-off curve that attacks are chosen against: the stated one, or the one of the claim.

    The latter is the same kind of mechanism with the noise at which two real neighbours attain the claim; if no such
    pair is known, the claim itself.
    """
    if claim is None:
        return accounting.trade_off(setup.event, accountant)
    try:
        factor = accounting.noise_factor_for(setup.event, max(claim, LEAST_CLAIM), setup.delta, accounting.ATTAINED)
        return accounting.trade_off(setup.event.scaled(factor), accountant)
    except errors.ConfigurationError:  # no such pair, or no such noise
        return TradeOff(None, np.array([claim]), np.array([setup.delta]))


def _require_trials(attack: AttackOptions, games: int, curve: TradeOff, epsilon: float) -> None:
    needed = accounting.trials_needed(curve, attack.significance)
    if counted_trials(attack.trials, games) < needed:
        least = max(math.ceil(2 * needed / (1 - games * PILOT)), games * LEAST_PILOT + 2 * needed)
        raise errors.refuse(
            "trials",
            attack.trials,
            f"at least {least}",
            f"with fewer not even a flawless attack would contradict epsilon {upward(epsilon, 3)} with confidence "
            f"{100 * (1 - attack.significance):.4g}%",
        )


def _trace(runner: TrialRunner, game: Game) -> np.ndarray:
    """The times `(times,)` at which the canary changes the messages without noise."""
    quiet = replace(game, algorithm=without_noise(game.algorithm))
    trials = 1 if runner.bits else TRACE_TRIALS  # with many canaries one run is enough
    worlds = (np.full((trials, *runner.bits), there) for there in (False, True))
    absent, present = (runner.run(quiet, TRACE, world)[:, :, ::2] for world in worlds)  # the target's roles
    size = max(np.abs(absent).max(), np.abs(present).max())
    return np.any(np.abs(present - absent) > LEAST_TRACE * size, axis=(0, 2, 3))


def _attacks(
    algorithm: Algorithm, data: FederatedData, setup: AuditSetup, times: np.ndarray, short: int
) -> dict[str, Attack]:
    local, unit = algorithm.local, setup.guarantee.unit
    tau = local.batches.count(local.steps, int(data.sizes[setup.client])) if unit is Unit.RECORD else 1
    released = sum(count for _, count in setup.event.leaves())
    steps = released if setup.guarantee.view is View.FINAL_MODEL else tau
    attacks = _attacks_on(setup.event, times, steps, short)
    if local.has_client_state:
        attacks["summed changes"] = SumOverTimes(times, short, changes=True)
    return attacks


def _attacks_on(event: Event, times: np.ndarray, steps: int, short: int) -> dict[str, Attack]:
    """The attacks on such releases, `steps` of them at a time; the first `short` numbers reveal the most."""
    attacks: dict[str, Attack] = {
        "summed": SumOverTimes(times, short),
        "weighed": WeightedTimes(short),
        "weighed, shrunk": WeightedTimes(short, 0.1),
        "summed by coordinate": SumOverTimes(times),
    }
    sampled = [step.sampling.rate for step, _ in event.leaves() if step.sampling.rate < 1]
    if sampled:
        attacks["likelihood ratio"] = LikelihoodRatio(times, short, steps, sampled[-1])
    return attacks
