"""Successive halving: at each rung only the better settings continue, until the last round.

Jamieson and Talwalkar 2016 (arXiv:1502.07943), algorithm 1, with the reduction factor eta of Hyperband (Li et al. 2018,
arXiv:1603.06560). With n settings, rung i of s = floor(log_eta n) is the first evaluation after a share eta^(i - s) of
the rounds, and n / eta^(i + 1) settings continue from it, so that all rungs take about equally many rounds. Settings
are compared by the mean over their seeds, within the same budget and algorithm: a sweep over these looks for the best
of each, and small budgets would otherwise all stop first.

>>> [(rung.round, rung.divisor) for rung in rungs_of(27, range(1, 91), 3)]
[(4, 3), (10, 9), (30, 27)]
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from fedjax_dp import errors
from fedjax_dp.display import count
from fedjax_dp.sweeps.axes import Values, varied_fields
from fedjax_dp.sweeps.settings import Record, metric_of, rank_settings, settings_of, value_key
from fedjax_dp.sweeps.winners import USUAL

Key = tuple[str, ...]  # of a setting, or of a group of settings that are compared


class Rung(NamedTuple):
    """An evaluation at which settings are compared."""

    evaluations: int  # evaluations of a point until then
    round: int
    divisor: int  # the number of settings divided by it continue


class Halving(NamedTuple):
    """The rungs of a sweep. `sizes` are the numbers of settings in the groups that are compared."""

    eta: int
    axes: tuple[str, ...]
    rungs: tuple[Rung, ...]
    rounds: int
    sizes: dict[Key, int]
    seeds: int

    @classmethod
    def of(cls, points: Sequence[Values], evaluation_rounds: Iterable[Sequence[int]], eta: int, seeds: int) -> Self:
        """The rungs for points and the rounds after which each is evaluated.

        Raises: ConfigurationError if points differ in their rounds, or if no rung comes before the last round.
        """
        different = {tuple(each) for each in evaluation_rounds}
        if len(different) > 1:
            remedy = "give them in [base]: points are compared after equal rounds"
            raise errors.refuse("halving", eta, "left out where rounds or evaluate_every vary", remedy)
        (each,) = different
        axes = varied_fields(points)
        groups = {key_of(values, axes): key_of(values, USUAL) for values in points}
        sizes = dict(Counter(groups.values()))
        rungs = rungs_of(max(sizes.values()), each, eta)
        if not rungs:
            most = count(max(sizes.values()), "setting")
            got = f"{eta}, for at most {most} of the same budget and algorithm and {count(len(each), 'evaluation')}"
            remedy = "add values, lower it, or lower evaluate_every"
            raise errors.refuse("halving", got, "such that a rung comes before the last round", remedy)
        return cls(eta, axes, tuple(rungs), each[-1], sizes, seeds)

    def num_survivors(self, rung: int) -> int:
        """The number of points that continue from a rung; of points that begin for -1."""
        divisor = 1 if rung < 0 else self.rungs[rung].divisor
        return self.seeds * sum(max(size // divisor, 1) for size in self.sizes.values())

    @property
    def share(self) -> float:
        """The share of all points' rounds that is run."""
        ends = [0, *(rung.round for rung in self.rungs), self.rounds]
        run = sum(
            (end - start) * self.num_survivors(at - 1) for at, (start, end) in enumerate(itertools.pairwise(ends))
        )
        return run / (self.rounds * self.num_survivors(-1))

    def line(self) -> str:
        """The rungs in words."""
        steps = [f"{self.num_survivors(at - 1):,} points to round {rung.round:,}" for at, rung in enumerate(self.rungs)]
        last = f"{self.num_survivors(len(self.rungs) - 1):,} to the last, {self.rounds:,}"
        return f"halving by {self.eta}: {', '.join([*steps, last])}; {self.share:.0%} of the rounds of all points"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rungs = [{"round": rung.round, "go_on": self.num_survivors(at)} for at, rung in enumerate(self.rungs)]
        return {"eta": self.eta, "rungs": rungs, "rounds": self.rounds, "share": self.share}

    def survivors(self, records: Iterable[Record], rung: Rung) -> set[Key]:
        """The settings that continue from a rung, among those whose points reached it or failed before.

        Ties are broken by the order of the plan. A setting with a failed seed never continues.
        """
        records_at_rung = [_cut_at(record, rung.round) for record in records]
        measure, groups = metric_of(records_at_rung, None), dict[Key, list[Key]]()
        for setting in rank_settings(settings_of(records_at_rung, self.axes), measure):
            groups.setdefault(key_of(setting.values, USUAL), []).append(key_of(setting.values, self.axes))
        return {key for group, keys in groups.items() for key in keys[: max(self.sizes[group] // rung.divisor, 1)]}


def rungs_of(settings: int, evaluation_rounds: Sequence[int], eta: int) -> list[Rung]:
    """The rungs for a number of settings. Of several rungs at one evaluation only the last is kept."""
    rounds, steps = evaluation_rounds[-1], 0
    while eta ** (steps + 1) <= min(settings, rounds):
        steps += 1
    rungs: dict[int, Rung] = {}
    for step in range(steps):
        place = next(at for at, mark in enumerate(evaluation_rounds) if mark * eta ** (steps - step) >= rounds)
        if evaluation_rounds[place] < rounds:
            rungs[place] = Rung(place + 1, evaluation_rounds[place], eta ** (step + 1))
    return list(rungs.values())


def key_of(values: Values, axes: Sequence[str]) -> Key:
    """A key that is equal for the points of a setting."""
    return tuple(value_key(values.get(name)) for name in axes)


def is_done_until(record: Record | None, until: int) -> bool:
    """Whether a point needs no more training to reach a round."""
    if record is None or record["status"] == "failed":
        return False
    return record["status"] != "stopped" or record["history"][-1]["round"] >= until


def _cut_at(record: Record, until: int) -> Record:
    """A point as it was after a round, if it reached that round."""
    history = [evaluation for evaluation in record["history"] if evaluation["round"] <= until]
    there = bool(history) and history[-1]["round"] == until
    return record | {"history": history, "status": "done" if there else record["status"]}
