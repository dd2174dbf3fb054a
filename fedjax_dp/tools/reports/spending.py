"""Epsilon by round: the epsilon of a run if it stopped there, by the accountant of its Guarantee.

The ledger of a finished run gives it. For an unfinished run, rounds to come are shown too: they follow from the
configuration, so the noise is calibrated again, and the first rounds of that algorithm are accounted for.
"""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_dp import errors
from fedjax_dp.accounting.ledger import Ledger
from fedjax_dp.data import idx
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.display import finite
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments import run_folder
from fedjax_dp.experiments.build import planned_of
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.population import build_data, checksums
from fedjax_dp.experiments.round_ledger import read_ledger
from fedjax_dp.models.origins import LEDGER
from fedjax_dp.own_code import is_file_name
from fedjax_dp.privacy.guarantees import prepare
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.tools.reports import shared
from fedjax_dp.tools.reports.contents import Rows

MOST = 12  # rounds that are accounted for: a second each, or more
SAME = 1e-6  # relative: two machines may differ by this much


def epsilon_by_round(path: pathlib.Path, about: Mapping[str, Any], epsilon: float, screen: Screen) -> Rows:
    """Rows of round and epsilon (worst client, median, best), up to the last planned round.

    about    the content of `run.json`
    epsilon  of the run's Guarantee; the last round must give it again
    Raises:  ConfigurationError if epsilon by round cannot be computed.
    """
    if about["config"].get("stop") is not None:
        raise errors.ConfigurationError("results may end the run, so every round costs what all planned rounds do")
    ledger = read_ledger(path) if (path / LEDGER).is_file() else None
    if ledger is not None and ledger.rounds == about["config"]["rounds"]:
        return _of_ledger(ledger, about["config"]["evaluate_every"], epsilon, screen)
    if about["made of"] != configs.CONFIGURED:
        raise errors.ConfigurationError("the run was made of Python values, which its folder does not hold")
    fields = about["config"]
    if any(map(is_file_name, fields.values())):
        raise errors.ConfigurationError("the run uses user-defined code, which a report does not execute")
    config = configs.RunSpec.of(fields | {"devices": "auto"})
    kind = kind_of(config.data.dataset)
    if kind in idx.IDX and not idx.at_hand(kind, config.data.data_dir):
        raise errors.ConfigurationError(
            f"the files of {kind} are missing, and a report downloads nothing; set FEDJAX_DP_DATA to their folder"
        )
    data = build_data(config.data)
    run_folder.require_same(about, checksums(data, config.data))
    rounds = config.training.rounds
    with screen.counter("calibrating the noise again") as count:
        planned, promise = prepare(planned_of(config, data), count)
    if not math.isclose(promise.epsilon, epsilon, rel_tol=SAME):
        raise errors.ConfigurationError(
            f"this version computes {promise.epsilon:.6g} for all rounds, the folder holds {epsilon:.6g}"
        )
    every = config.output.evaluate_every
    return _rows(rounds, every, screen, Spending(planned, promise).epsilons)


def _of_ledger(ledger: Ledger, every: int, epsilon: float, screen: Screen) -> Rows:
    if not math.isclose(max(ledger.epsilons()), epsilon, rel_tol=SAME):
        raise errors.ConfigurationError(
            f"the ledger gives {max(ledger.epsilons()):.6g} for all rounds, the folder holds {epsilon:.6g}"
        )
    return _rows(ledger.rounds, every, screen, lambda until: ledger.epsilons(rounds=until))


def _rows(rounds: int, every: int, screen: Screen, epsilons: Callable[[int], Sequence[float]]) -> Rows:
    """Rows for the rounds that are shown, where `epsilons` gives all clients' epsilons after that many rounds."""
    rows, shown = Rows(), rounds_shown(rounds, every)
    with screen.bar("epsilon by round", total=1) as show:
        for place, until in enumerate(shown, 1):
            rows.append(_row(until, epsilons(until)))
            show(place / len(shown), f"round {until} of {rounds}")
    return rows


def _row(rounds: int, epsilons: Sequence[float]) -> dict[str, Any]:
    """Epsilon of the worst, the median and the best client, as a Guarantee reports them."""
    ordered = sorted(epsilons)
    names = {"epsilon": ordered[-1], "epsilon_median": ordered[len(ordered) // 2], "epsilon_min": ordered[0]}
    return {"round": rounds} | {name: finite(one) for name, one in names.items()}


def rounds_shown(rounds: int, every: int) -> Sequence[int]:
    """The first round, evaluated rounds and the last: at most `MOST`."""
    return shared.thin_rows(sorted({1, *range(every, rounds, every), rounds}), MOST)
