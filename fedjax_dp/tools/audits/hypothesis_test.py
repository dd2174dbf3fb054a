"""The test: pilot trials choose canary, attack and threshold, then fresh trials are counted."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import ChosenTest, ErrorBounds, Event, TradeOff, choose_test
from fedjax_dp.tools.audits.attacks import Attack, Score

Fit = tuple[Score, ChosenTest]
Play = Callable[[int, np.ndarray, Callable[[int], None]], np.ndarray]
# (number of the first trial, canary present (trials,), progress) -> messages (trials, times, roles, numbers)

PILOT = 0.1  # of all trials, for each game
LEAST_PILOT = 200
LARGEST = 1e15  # of a received number
BLOCK = 2**26  # bytes of messages in memory at once


class Outcome(NamedTuple):
    """The counted errors and the attack."""

    game: str
    attack: str
    threshold: float
    bounds: ErrorBounds
    absent: np.ndarray  # scores of the counted trials without the canary
    present: np.ndarray  # and with it
    pilot: int  # trials for learning only

    @property
    def evidence(self) -> str:
        return f"{len(self.absent) + len(self.present):,} runs"

    def to_dict(self) -> dict[str, Any]:
        return {
            "others": self.game,
            "attack": self.attack,
            "pilot_trials": self.pilot,
            "threshold": self.threshold,
            "errors": dataclasses.asdict(self.bounds),
        }

    def contradicts(self, curve: TradeOff) -> bool:
        return accounting.contradicts(self.bounds, curve)

    def noise_at_most(self, event: Event, accountant: str) -> float:
        return accounting.noise_at_most(self.bounds, event, accountant)

    def epsilon_at_least(self, event: Event, delta: float, accountant: str) -> float:
        return accounting.epsilon_at_least(self.bounds, event, delta, accountant)

    def epsilon_of_any(self, delta: float) -> float:
        return accounting.epsilon_of_any(self.bounds, delta)


def pilot_trials(trials: int) -> int:
    """Pilot trials of each game, an even number."""
    return max(LEAST_PILOT, int(trials * PILOT)) // 2 * 2


def counted_trials(trials: int, games: int) -> int:
    """Counted trials of each world."""
    return (trials - games * pilot_trials(trials)) // 2


def run_hypothesis_test(
    games: Mapping[str, Play],
    attacks: Mapping[str, Attack],
    curve: TradeOff,
    *,
    trials: int,
    significance: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Play `trials` runs, half of them with the canary, and count the errors of the best attack.

    games    ways to place the canary; all are tried, and the one that reveals most is counted;
    attacks  each learns on one half of a game's pilot trials and is rated on the other; the best learns again from
             both. The threshold is chosen on the same trials, none of which is counted.
    """
    pilot, counted = pilot_trials(trials), counted_trials(trials, len(games))
    worlds, done = np.arange(pilot) % 2 == 1, 0
    half, whole = np.arange(pilot) % 4 < 2, np.ones(pilot, bool)

    def fit(attack: Attack, received: np.ndarray, learnt: np.ndarray, judged: np.ndarray) -> Fit | None:
        score = attack.learn(received[learnt & ~worlds], received[learnt & worlds])
        if score is None:
            return None
        scores = score(received)
        return score, choose_test(scores[judged & ~worlds], scores[judged & worlds], counted, significance, curve)

    best: tuple[float, str, str, np.ndarray] | None = None
    for name, play in games.items():
        received = _limit_numbers(play(0, worlds, lambda now: progress(done + now, trials)))  # noqa: B023
        done += pilot
        for label, attack in attacks.items():
            fits = [fit(attack, received, *parts) for parts in ((half, ~half), (~half, half))]
            promises = [fitted[1].promise for fitted in fits if fitted]
            if len(promises) == 2 and (best is None or np.mean(promises) > best[0]):
                best = (float(np.mean(promises)), name, label, received)
    if best is None:
        raise errors.refuse(
            "canary", "no difference in any trial", "one that leaves a trace in what the adversary receives"
        )
    _, game, label, received = best
    fitted = fit(attacks[label], received, whole, whole)
    assert fitted is not None
    score, plan = fitted
    each = max(2, BLOCK // max(received[0].nbytes, 1) // 2 * 2)
    fresh = np.arange(2 * counted) % 2 == 1
    scored = []
    for at in range(0, fresh.size, each):
        part = games[game](pilot + at, fresh[at : at + each], lambda now: progress(done + now, trials))  # noqa: B023
        scored.append(score(_limit_numbers(part)))
        done += len(part)
    counted_scores = np.concatenate(scored)
    absent, present = counted_scores[~fresh], counted_scores[fresh]
    bounds = plan.judge(absent, present)
    return Outcome(game, label, plan.threshold, bounds, absent, present, pilot * len(games))


def _limit_numbers(received: np.ndarray) -> np.ndarray:
    """Numbers that can be squared; infinite or huge ones stay outliers."""
    return np.clip(np.nan_to_num(received.astype(float)), -LARGEST, LARGEST)
