"""Epsilon by round: what a run would have spent had it been stopped there, by the accountant of its Guarantee.

Of a finished run its ledger says it. While it goes on, rounds to come are shown too: they follow from the configuration
alone, so the noise is found again, and the first rounds of that very algorithm are accounted for.
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
from fedjax_dp.experiments.population import build_data, checksum
from fedjax_dp.experiments.round_ledger import read_ledger
from fedjax_dp.models.origins import LEDGER
from fedjax_dp.own_code import is_file_name
from fedjax_dp.privacy.guarantees import prepare
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.tools.reports import shared
from fedjax_dp.tools.reports.contents import Rows

MOST = 12  # rounds that are accounted for: a second each, or more
SAME = 1e-6  # relative: as far as two machines may differ


def spent(path: pathlib.Path, about: Mapping[str, Any], epsilon: float, screen: Screen) -> Rows:
    """Rows of round and epsilon (worst client, median, best) for rounds up to the last that is planned.

    about    what `run.json` says; epsilon: of the run's Guarantee, which the last round must have again
    Raises:  ConfigurationError where it cannot be known: with a remedy, where there is one.
    """
    ledger = read_ledger(path) if (path / LEDGER).is_file() else None
    whole = ledger is not None and ledger.rounds == about["config"]["rounds"]
    if ledger is not None and whole and not ledger.follows_results:
        return _of_ledger(ledger, about["config"]["evaluate_every"], epsilon, screen)
    if about["made of"] != configs.CONFIGURED:
        raise errors.ConfigurationError("the run was made of values of Python, which its folder does not hold")
    fields = about["config"]
    if any(map(is_file_name, fields.values())):
        raise errors.ConfigurationError("the run is made with code of its user, which a report does not run")
    config = configs.RunSpec.of(fields | {"devices": "auto"})
    kind = kind_of(config.data.dataset)
    if kind in idx.IDX and not idx.at_hand(kind, config.data.data_dir):
        raise errors.ConfigurationError(
            f"the files of {kind} are not at hand, and a report downloads nothing; FEDJAX_DP_DATA names them"
        )
    data = build_data(config.data)
    run_folder.require_same(about, {"data": checksum(config.data, data)})
    rounds = config.training.rounds
    with screen.counter("finding the noise again") as count:
        planned, promise = prepare(planned_of(config, data), count)
    if not math.isclose(promise.epsilon, epsilon, rel_tol=SAME):
        raise errors.ConfigurationError(
            f"this version finds {promise.epsilon:.6g} for all rounds, the folder says {epsilon:.6g}"
        )
    every = config.output.evaluate_every
    return _rows(rounds, every, screen, Spending(planned, promise).epsilons)


def _of_ledger(ledger: Ledger, every: int, epsilon: float, screen: Screen) -> Rows:
    if not math.isclose(max(ledger.epsilons()), epsilon, rel_tol=SAME):
        raise errors.ConfigurationError(
            f"the ledger gives {max(ledger.epsilons()):.6g} for all rounds, the folder says {epsilon:.6g}"
        )
    return _rows(ledger.rounds, every, screen, lambda until: ledger.epsilons(rounds=until))


def _rows(rounds: int, every: int, screen: Screen, epsilons: Callable[[int], Sequence[float]]) -> Rows:
    """`epsilons` of the clients after so many rounds, at the rounds that are shown."""
    rows, chosen = Rows(), rounds_shown(rounds, every)
    with screen.bar("epsilon by round", total=1) as show:
        for place, until in enumerate(chosen, 1):
            rows.append(_row(until, epsilons(until)))
            show(place / len(chosen), f"round {until} of {rounds}")
    return rows


def _row(rounds: int, epsilons: Sequence[float]) -> dict[str, Any]:
    """The worst, the median and the best client's, as a Guarantee has them."""
    ordered = sorted(epsilons)
    names = {"epsilon": ordered[-1], "epsilon_median": ordered[len(ordered) // 2], "epsilon_min": ordered[0]}
    return {"round": rounds} | {name: finite(one) for name, one in names.items()}


def rounds_shown(rounds: int, every: int) -> Sequence[int]:
    """The first round, evaluated ones, and the last: `MOST` at most."""
    return shared.thin_rows(sorted({1, *range(every, rounds, every), rounds}), MOST)
