"""Auditing in a single run with many canaries, for models that cannot be trained thousands of times."""

from typing import Any, NamedTuple

import numpy as np
import scipy

from fedjax_dp import accounting
from fedjax_dp.accounting import Event, Gdp, TradeOff
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.tools.audits.game import Game
from fedjax_dp.tools.audits.trials import TrialRunner

LEAST = 20  # canaries


class Guesses(NamedTuple):
    """The canaries of a run and the guesses about them."""

    game: str
    attack: str
    correct: int
    guesses: int
    canaries: int
    significance: float
    absent: np.ndarray  # scores of the absent canaries
    present: np.ndarray  # scores of the present canaries

    @property
    def evidence(self) -> str:
        return f"one run with {self.canaries} canaries, {self.correct} of {self.guesses} guesses right"

    def to_dict(self) -> dict[str, Any]:
        return {
            "others": self.game,
            "attack": self.attack,
            "correct": self.correct,
            "guesses": self.guesses,
            "canaries": self.canaries,
        }

    def contradicts(self, curve: TradeOff) -> bool:
        """Whether a mechanism with this curve would not allow so many correct guesses."""
        return accounting.one_run_contradicts(self.correct, self.guesses, self.canaries, curve, self.significance)

    def noise_at_most(self, event: Event, accountant: str) -> float:
        """As `accounting.noise_at_most`, in closed form for Gaussian curves, else unknown (inf)."""
        mu = accounting.one_run_mu(self.correct, self.guesses, self.canaries, self.significance)
        stated = accounting.trade_off(event, accountant).mu
        return float("inf") if stated is None or mu == 0 else stated / mu

    def epsilon_at_least(self, event: Event, delta: float, accountant: str) -> float:
        """As `accounting.epsilon_at_least`: through mu for Gaussian events, else that of any mechanism."""
        anyway = self.epsilon_of_any(delta)
        if accounting.trade_off(event, accountant).mu is None:
            return anyway
        mu = accounting.one_run_mu(self.correct, self.guesses, self.canaries, self.significance)
        return max(Gdp(mu).epsilon(delta), anyway)

    def epsilon_of_any(self, delta: float) -> float:
        return accounting.one_run_epsilon(self.correct, self.guesses, self.canaries, delta, self.significance)


def guess(
    runner: TrialRunner, game: Game, name: str, epsilon: float, delta: float, seed: int, significance: float
) -> Guesses:
    """Play `game` once with a coin for each canary and guess about the most and the least suspicious.

    The stated epsilon fixes the number of guesses beforehand.
    """
    (canaries,) = runner.bits
    number = accounting.choose_guesses(canaries, _mu_of(epsilon, delta), significance)
    coins = numpy_stream("coins of canaries", seed, canaries).random(canaries) < 0.5
    received = runner.run(game, 0, coins[None])[0, :, :3:2, :canaries]  # the target's messages and models
    scores = _scores(received.reshape(-1, canaries))
    order = np.argsort(scores, kind="stable")
    right = int(np.sum(~coins[order[: number // 2]]) + np.sum(coins[order[-(number // 2) :]]))
    return Guesses(name, "sum over rounds", right, number, canaries, significance, scores[~coins], scores[coins])


def _scores(received: np.ndarray) -> np.ndarray:
    """A score for each canary from `(times, canaries)`: the sum of standardised numbers over times.

    An update points against the gradients, so a present canary makes numbers small.
    """
    deviation = np.median(np.abs(received - np.median(received, 1, keepdims=True)), 1)
    kept = deviation > 0
    return -(received[kept] / deviation[kept, None]).sum(0)


def _mu_of(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon, within limits."""
    return float(scipy.optimize.brentq(lambda mu: Gdp(mu).epsilon(delta) - np.clip(epsilon, 1e-3, 200.0), 1e-6, 100.0))
