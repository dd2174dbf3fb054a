"""The best setting of each budget and algorithm, and the differences between algorithms seed by seed."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.accounting.guarantee import with_mark
from fedjax_dp.display import comma_separated, count, upward, words
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.settings import (
    OWN,
    Interval,
    Setting,
    caveats_of,
    deployment_mark,
    epsilon_terms,
    interval,
    metric_of,
    paired_difference,
    settings_of,
    value_key,
    values_of,
    varying_axes,
)
from fedjax_dp.sweeps.table import STOPPED, choose, excluded_in_words
from fedjax_dp.tasks.measures import Measure

USUAL = ("epsilon", "algorithm")
LATEX = str.maketrans({c: f"\\{c}" for c in "_%&#${}"} | {"∞": r"$\infty$", "–": "--"})
NOTHING = "–"


class Winner(NamedTuple):
    """The best setting among those with the same values of some axes."""

    values: dict[str, Any]  # of these axes
    setting: Setting | None  # None if none is comparable
    score: Interval  # of its metric over its seeds
    difference: Interval  # to the winner of `against` at the same values, over the seeds of both
    settings: int  # number of settings that were compared
    excluded: dict[str, int]  # number of settings that were not compared, by reason


class Winners(NamedTuple):
    """The winners, in the order of the values; their means are optimistic where several settings were compared."""

    by: tuple[str, ...]
    others: tuple[str, ...]  # axes that the best was taken over
    metric: Measure
    against: str | None  # the algorithm that differences are to
    own: bool  # some points have personal models, and the metric is not of these alone
    rows: tuple[Winner, ...]

    @property
    def mark(self) -> str:
        """The mark of the deployments that the Guarantees are of, if any."""
        return deployment_mark(self._points())

    def _points(self) -> list[Record]:
        return [point for row in self.rows if row.setting for point in row.setting.points]

    def table(self) -> list[dict[str, Any]]:
        """A row for each winner. Numbers that need more seeds are NaN; an epsilon without privacy is infinite."""
        return [self._row(winner) for winner in self.rows]

    def _row(self, winner: Winner) -> dict[str, Any]:
        chosen = winner.setting.values if winner.setting else {}
        row = winner.values | {name: chosen.get(name) for name in self.others} | {"metric": self.metric.name}
        row |= winner.score._asdict()
        if self.against is not None:
            row |= {f"minus_{self.against}_{part}": value for part, value in winner.difference._asdict().items()}
        return row | {
            "guarantee_epsilon": winner.setting.epsilon if winner.setting else math.nan,
            "guarantee_deployment": deployment_mark(winner.setting.points) if winner.setting else "",
            "settings": winner.settings,
        }

    def cells(self) -> dict[str, list[str]]:
        """Columns as texts, by their headers."""
        rows = self.rows
        shown: dict[str, list[str]] = {name: [_word(row.values[name]) for row in rows] for name in self.by}
        shown[self.metric.words] = [_number(row.score.mean) for row in rows]
        shown["std"] = [_number(row.score.std) for row in rows]
        shown["95% interval"] = [_ends(row.score.within(self.metric)) for row in rows]
        shown["seeds"] = [str(row.score.seeds) for row in rows]
        if self.against is not None:
            shown[f"minus {self.against}"] = [_number(row.difference.mean, "+") for row in rows]
            shown["its 95% interval"] = [_ends(row.difference, "+") for row in rows]
        shown[with_mark("proved epsilon", self.mark)] = [_epsilon_text(row.setting) for row in rows]
        for name in self.others:
            shown[name] = [NOTHING if row.setting is None else _word(row.setting.values[name]) for row in rows]
        return shown | {"of settings": [str(row.settings) for row in rows]}

    def notes(self) -> list[str]:
        """Remarks that readers of the numbers need."""
        lines = []
        if terms := epsilon_terms(self._points(), view=True):
            lines.append(f"proved epsilon: {', '.join(terms)}")
        lines += caveats_of(self._points())
        if any(row.score.seeds == 1 for row in self.rows):
            lines.append("one seed has no deviation and no interval")
        if any(row.score.seeds > 1 for row in self.rows):
            lines.append("std is over seeds, divided by one less than their number; intervals of the mean: Student's t")
        if self.against is not None:
            lines.append(f"minus {self.against}: mean of the differences seed by seed, over the seeds that both have")
        if self.own and self.metric.name == OWN:
            lines.append(
                f"{self.metric.words} is of their own models where an algorithm keeps some, else of the shared"
            )
        elif self.own:
            lines.append(f"{self.metric.words} is of the shared model: fedjax-dp compare reads clients' own models")
        if any(row.settings > 1 or STOPPED in row.excluded for row in self.rows):
            lines.append(
                "where several settings were compared, the mean of the best is optimistic: it was chosen by that mean"
            )
        for row in self.rows:
            if row.excluded:
                at = ", ".join(f"{name} {_word(value)}" for name, value in row.values.items())
                lines.append(f"{at}: {excluded_in_words(row.excluded)}")
        return lines

    def csv(self) -> str:
        """The rows of `table`; a number that is not known is empty."""
        rows = self.table()
        return comma_separated(
            list(rows[0]), [["" if value != value else value for value in row.values()] for row in rows]
        )

    def latex(self) -> str:
        """A tabular for the package booktabs, with mean and deviation in one column and the notes as comments."""
        cells = self.cells()
        spreads = cells.pop("std")
        means = cells[self.metric.words]
        cells[self.metric.words] = [
            mean if std == NOTHING else f"{mean} ± {std}" for mean, std in zip(means, spreads, strict=True)
        ]
        head = " & ".join(name.translate(LATEX) for name in cells)
        rows = zip(*cells.values(), strict=True)
        body = [" & ".join(re.sub(r"(?<!\w)-(?=\d)", "$-$", cell.translate(LATEX)) for cell in row) for row in rows]
        sides = "".join("l" if name == "algorithm" else "r" for name in cells)
        lines = [r"\begin{tabular}{" + sides + "}", r"\toprule", rf"{head} \\", r"\midrule"]
        lines += [*(rf"{row} \\" for row in body), r"\bottomrule", r"\end{tabular}"]
        text = "\n".join(lines).replace("±", r"$\pm$")
        return "".join(f"% {note}\n" for note in ["needs \\usepackage{booktabs}", *self.notes()]) + text + "\n"


def winners(
    records: Iterable[Record],
    axes: Sequence[str],
    by: Sequence[str] | None = None,
    metric: str | None = None,
    against: str | None = None,
) -> Winners:
    """The best setting of each value of the axes `by`, `usual_axes` by default.

    Settings are compared as by `best`: all their seeds are done and have the metric.
    against  the algorithm that others are compared with, seed by seed, by default the first of the axis. Equal seeds
             share clients and noise draws, so that differences vary less.
    """
    records = list(records)
    measure, settings = metric_of(records, metric, judges=True), settings_of(records, axes)
    varied = varying_axes(settings)
    chosen = usual_axes(settings) if by is None else tuple(dict.fromkeys(by))
    if not chosen and axes:
        raise errors.refuse("by", "nothing", "axes of the sweep", f"such as {', '.join(axes)}")
    for name in chosen:
        errors.require_choice("by", name, axes)
    if not settings:
        raise errors.refuse("sweep", "no finished point", "one with a finished point", "wait for the first")
    algorithms = list(dict.fromkeys(setting.values["algorithm"] for setting in settings if "algorithm" in chosen))
    if against is not None and not algorithms:
        raise errors.refuse("against", against, "left out unless the best is of each algorithm", "add it to by")
    if against is not None:
        errors.require_choice("against", against, algorithms)
    reference = (against or algorithms[0]) if len(algorithms) > 1 else None
    groups: dict[tuple[str, ...], list[Setting]] = {}
    for setting in settings:
        groups.setdefault(tuple(value_key(setting.values[name]) for name in chosen), []).append(setting)
    picked = [(key, group[0].values, *choose(group, measure, None)) for key, group in groups.items()]
    best = {key: winner for key, _, winner, _, _ in picked}
    place = chosen.index("algorithm") if reference is not None else 0
    rows = []
    for key, values, winner, candidates, excluded in picked:
        rival = best.get((*key[:place], value_key(reference), *key[place + 1 :])) if reference is not None else None
        both = () if rival is None or winner is None or rival is winner else (winner, rival)
        difference = paired_difference(*both, measure.name) if both else interval([])
        score = winner.score(measure.name) if winner else interval([])
        own = {name: values[name] for name in chosen}
        rows.append(Winner(own, winner, score, difference, len(candidates), excluded))
    order = [{key: at for at, key in enumerate(_sorted_values(settings, name))} for name in chosen]
    rows.sort(
        key=lambda row: [places[value_key(value)] for places, value in zip(order, row.values.values(), strict=True)]
    )
    others = tuple(name for name in varied if name not in chosen)
    known = [point["history"][-1].get(OWN) is not None for point in records if point["history"]]
    apart = any(known) and not (measure.name == OWN and all(known))
    return Winners(chosen, others, measure, reference, apart, tuple(rows))


def usual_axes(settings: Sequence[Setting]) -> tuple[str, ...]:
    """Budget and algorithm if they vary, else all axes that vary, else all axes."""
    varied = varying_axes(settings)
    every = tuple(settings[0].values) if settings else ()
    return tuple(name for name in USUAL if name in varied) or tuple(varied) or every


def _sorted_values(settings: Sequence[Setting], axis: str) -> list[str]:
    """The values of an axis by `value_key`: numbers sorted, then the rest in the order of the plan."""
    values = values_of(settings, axis)
    number = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return [value_key(value) for value in [*sorted(number), *(value for value in values if value not in number)]]


def _word(value: Any) -> str:
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else words(value).strip("'")


def _number(value: float, sign: str = "") -> str:
    return NOTHING if math.isnan(value) else f"{value:{sign}.4f}"


def _ends(score: Interval, sign: str = "") -> str:
    return NOTHING if math.isnan(score.low) else f"{score.low:{sign}.4f} to {score.high:{sign}.4f}"


def _epsilon_text(setting: Setting | None) -> str:
    if setting is None or math.isnan(setting.epsilon):
        return NOTHING
    return "∞" if math.isinf(setting.epsilon) else upward(setting.epsilon)


def title(best: Winners) -> str:
    """`the best of each epsilon and algorithm, of 24 settings`."""
    each = f" of each {' and '.join(best.by)}" if best.by else ""
    return f"the best{each}, of {count(sum(row.settings for row in best.rows), 'setting')}"
