"""Auditing: the stated epsilon is put to the test by attacks on simulated runs in neighbouring worlds."""

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
from fedjax_dp.models import Model, usual_model
from fedjax_dp.privacy.guarantees import verification_error
from fedjax_dp.privacy.planned_run import PlannedRun, plan_run
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms, options_of_terms
from fedjax_dp.pytrees import replace, structure, value
from fedjax_dp.rounds.algorithm import Algorithm, without_noise
from fedjax_dp.tools.audits.attacks import Attack, LikelihoodRatio, Summed, Weighed
from fedjax_dp.tools.audits.game import Game
from fedjax_dp.tools.audits.hypothesis_test import LEAST_PILOT, PILOT, Outcome, counted_trials, run_hypothesis_test
from fedjax_dp.tools.audits.one_run import Guesses, guess
from fedjax_dp.tools.audits.setup import CANARY_NAMES, AttackOptions, AuditSetup, set_up
from fedjax_dp.tools.audits.trials import TrialRunner
from fedjax_dp.tools.audits.verdict import Audit, judge

TRACE, TRACED = 2**30, 256  # number of the first trial without noise, and how many must leave a trace
LEAST_CLAIM = 1e-3  # an epsilon that differs from 0
MOST_TRIALS = 10**9
MOST_CLAIM = 500.0  # exp of it is a number still
LEAST_TRACE = 1e-5  # of the largest number that is received


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
    canary      "gradient": the worst case. Records are gradients of a linear model of `parameters` parameters: the
                canary's is C e, that of what it replaces -C e, in every step; what the others' are is chosen to tell
                the most, see `canaries.gradient_game`. Every layer of the algorithm is run but the user's model.
                "label-flip", "blank", "mislabelled": the user's model and data, with record number `record` of the
                client (all of them, where whole clients are hidden) changed so, or absent in the other world;
    client      whose record it is, by number or name; default the one with the largest epsilon;
    claim       an epsilon that somebody states at this delta, to be tested beside the Guarantee; the attack is then
                chosen to tell the most against it;
    trials      runs in all, of which some tenths only choose the attack and its threshold;
    one_run     a number: one run instead, with so many canaries (records of the client, or clients), each there by a
                coin of its own, for models that cannot be trained often. Proves less;
    significance  chance of a wrong VIOLATED, at most; with a claim, if noise and sampling are of the stated kind;
    lanes       trials at once on a device;
    progress    called with (runs done, runs in all).
    Parts that are not the project's own are inspected too, as a Guarantee does (`privacy.guarantees`).
    Of a run that begins with a private phase, or stops by records that clients hold out, training is attacked and what
    is tested is its Guarantee alone: a claim about all of it is refuted where training alone refutes it.
    Not observed: the noised bits of an adaptive clip norm, and warm starts in view broadcast.
    Raises: ConfigurationError for an algorithm without epsilon, too few trials to prove anything, and a canary that
            leaves no trace.
    """
    options = {**locals(), **privacy}
    require_sane(canary, claim, significance, trials=trials, lanes=lanes)
    if privacy.get("stop_at_epsilon") is not None:
        remedy = "audit the rounds that it left of a run: result.ready.rounds"
        raise errors.refuse(
            "stop_at_epsilon", privacy["stop_at_epsilon"], "left out, as an audit takes all its rounds", remedy
        )
    model = model if model is not None else usual_model(data)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=PrivacyTerms(**privacy))
    attack = AttackOptions(**{name: options[name] for name in AttackOptions._fields})
    return audit_run(run, attack, _call(audit, options))


def audit_run(run: PlannedRun, attack: AttackOptions, repeat: str) -> Audit:
    """The audit of a planned run, with the noise of its epsilon if it has one; `repeat` is what makes it again.

    What is refused is as in `audit`, but for what `require_sane` refuses before.
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
    """Two worlds of a function: what an adversary receives with the canary, or without it."""

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
    """Audit any function: `mechanism(key, there)` is what an adversary receives with the canary, or without it.

    mechanism  jax code, vmapped over trials; `there` is a traced bool, for `jnp.where`. It returns numbers in any
               arrays; if it is one matrix, its rows are releases that follow one another;
    event      what it is stated to release, made of the values in `fedjax_dp.accounting`. VIOLATED says that the
               function does not release that; what epsilon it has instead is proved for the same kind of noise, or any.
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
        raise errors.refuse("mechanism", repr(mechanism), "a function of a key and of whether the canary is there")
    if not isinstance(event, Event):
        raise errors.refuse("event", repr(event), "a value from fedjax_dp.accounting, such as GaussianSteps(...)")
    epsilon = accounting.epsilon_of(event, delta, accountant)
    step = next((step for step, _ in event.leaves()), None)
    if step is None or math.isinf(epsilon):
        got = "nothing that is released" if step is None else "no epsilon"
        raise errors.refuse("event", got, "releases that have an epsilon to be tested")
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
    game = FunctionGame(mechanism=lambda key, there: mechanism(key, there))  # which has a hash, whatever was given
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
    """The call with all options that are plain values and not the default."""
    usual = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    usual |= {name: option.default for name, option in options_of_terms().items() if name not in usual}
    explicit = [
        f"{name}={value!r}"
        for name, value in options.items()
        if isinstance(value, int | float | str) and value != usual[name]
    ]
    return f"{function.__name__}({', '.join(['...', *explicit])})"


def require_sane(canary: str, claim: float | None, significance: float, **counts: int | None) -> None:
    """Refuse what cannot be meant, whatever is attacked."""
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
    """The curve against which attacks are chosen: what is stated, or what would have to be true for the claim.

    That is the same kind of mechanism with the noise at which two real neighbours attain the claim; where no such pair
    is known, the claim itself.
    """
    if claim is None:
        return accounting.trade_off(setup.event, accountant)
    try:
        factor = accounting.noise_factor_for(setup.event, max(claim, LEAST_CLAIM), setup.delta, accounting.ATTAINED)
        return accounting.trade_off(setup.event.scaled(factor), accountant)
    except errors.ConfigurationError:  # no such pair, or no such noise
        return TradeOff(None, np.array([claim]), np.array([setup.delta]))


def _require_trials(attack: AttackOptions, games: int, curve: TradeOff, epsilon: float) -> None:
    """Refuse trials with which nothing could ever be proved."""
    needed = accounting.trials_needed(curve, attack.significance)
    if counted_trials(attack.trials, games) < needed:
        least = max(math.ceil(2 * needed / (1 - games * PILOT)), games * LEAST_PILOT + 2 * needed)
        raise errors.refuse(
            "trials",
            attack.trials,
            f"at least {least}",
            f"with fewer not even a flawless attack would contradict epsilon {epsilon:.3g} with confidence "
            f"{100 * (1 - attack.significance):.4g}%",
        )


def _trace(runner: TrialRunner, game: Game) -> np.ndarray:
    """When the canary changes what the adversary receives, the noise left out `(times,)`."""
    quiet = replace(game, algorithm=without_noise(game.algorithm))
    trials = 1 if runner.bits else TRACED  # with many canaries one run is enough
    worlds = (np.full((trials, *runner.bits), there) for there in (False, True))
    absent, present = (runner.run(quiet, TRACE, world)[:, :, ::2] for world in worlds)  # the target's roles
    size = max(np.abs(absent).max(), np.abs(present).max())
    return np.any(np.abs(present - absent) > LEAST_TRACE * size, axis=(0, 2, 3))


def _attacks(
    algorithm: Algorithm, data: FederatedData, setup: AuditSetup, times: np.ndarray, short: int
) -> dict[str, Attack]:
    """Those that may show something here."""
    local, unit = algorithm.local, setup.guarantee.unit
    tau = local.batches.count(local.steps, int(data.sizes[setup.client])) if unit is Unit.RECORD else 1
    released = sum(count for _, count in setup.event.leaves())
    steps = released if setup.guarantee.view is View.FINAL_MODEL else tau
    attacks = _attacks_on(setup.event, times, steps, short)
    if local.has_client_state:
        attacks["summed changes"] = Summed(times, short, changes=True)
    return attacks


def _attacks_on(event: Event, times: np.ndarray, steps: int, short: int) -> dict[str, Attack]:
    """Those that suit releases of this kind, `steps` of them at a time; the first `short` numbers say the most."""
    attacks: dict[str, Attack] = {
        "summed": Summed(times, short),
        "weighed": Weighed(short),
        "weighed, shrunk": Weighed(short, 0.1),
        "summed by coordinate": Summed(times),
    }
    sampled = [step.sampling.rate for step, _ in event.leaves() if step.sampling.rate < 1]
    if sampled:
        attacks["likelihood ratio"] = LikelihoodRatio(times, short, steps, sampled[-1])
    return attacks
