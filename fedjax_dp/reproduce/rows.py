"""The lines of a table: what was published beside both readings, and what to think of it."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_dp.reproduce.cells import Cell, Place
from fedjax_dp.reproduce.measures import MEASURES
from fedjax_dp.reproduce.recipe import READINGS, Recipe, matching
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.settings import interval, proved

TEXT_SPREAD = 0.5  # in the unit of the table: of a published number without a standard deviation


class Found(NamedTuple):
    """One reading of one number, over its seeds."""

    mean: float | None  # None: nothing to show, `reason` says why
    std: float | None
    seeds: int
    epsilon: float | None  # the largest over clients and seeds; infinite without privacy, None where not accounted
    round_epsilon: float | None  # of a single round, where the budget is of each round
    delta: float | None
    about: str  # unit, neighbours and view that epsilon is about
    reason: str = ""
    curve: tuple[tuple[int, float, float], ...] = ()  # round, mean, standard deviation


@dataclasses.dataclass(frozen=True)
class Row:
    """One number of a table or figure."""

    place: Place
    metric: str
    published: float | None
    published_std: float | None
    readings: Mapping[str, Found]
    verdicts: Mapping[str, str]
    why: str = ""

    @property
    def verdict(self) -> str:
        """Both verdicts in words."""
        known = {reading: told for reading, told in self.verdicts.items() if told}
        if len(set(known.values())) == 1 and len(known) == len(READINGS):
            told = next(iter(known.values()))
        else:
            told = ", ".join(f"{reading} {told}" for reading, told in known.items())
        return f"{told}: {self.why}" if self.why else told


def rows_of(
    recipe: Recipe, cells: Sequence[Cell], records: Mapping[tuple[Place, str], Sequence[Record]],
    missing: Mapping[str, str], round_epsilons: Mapping[tuple[Place, str], float],
    numbers: Mapping[tuple[Place, str], float],
) -> list[Row]:  # fmt: skip
    """Rows in the order of the recipe; `records` of each cell, `numbers` that are counted instead of run."""
    places = list(dict.fromkeys(cell.place for cell in cells))
    rows = []
    for metric in recipe.metrics:
        for place in places:
            readings = {}
            for reading in READINGS:
                key = (place, reading)
                if place.panel in missing:
                    readings[reading] = _nothing(missing[place.panel])
                elif key in numbers:
                    readings[reading] = _nothing("")._replace(mean=numbers[key], std=0.0, seeds=1)
                else:
                    readings[reading] = found(records[key], metric, round_epsilons.get(key))
            rows.append(_row(recipe, place, metric, readings))
    return rows


def found(records: Sequence[Record], metric: str, round_epsilon: float | None) -> Found:
    """What the seeds of one cell say."""
    measure = MEASURES[metric]
    done = [record for record in records if record["status"] == "done"]
    numbers = [number for record in done if (number := measure.of(record)) is not None]
    score = interval(numbers)
    epsilons = [proved(record) for record in records]
    told: Record = max(records, key=proved)["guarantee"] if records else {}
    private = told.get("delta") is not None
    about = f"one {told['unit']}, {told['adjacency']}, {told['view']}" if private else ""
    lost = len(records) - len(done)
    reason = ""
    if lost:
        reason = f"{lost} of {len(records)} seeds lost: " + next(r["reason"] for r in records if r["status"] != "done")
    elif not numbers:
        reason = "not reached"
    return Found(
        score.mean if numbers and not lost else None, score.std if score.seeds > 1 else None, score.seeds,
        max(epsilons, default=None), round_epsilon, told.get("delta"), about, reason,
        () if lost else _curve([dict(measure.curve(record)) for record in done]),
    )  # fmt: skip


def _curve(curves: Sequence[Mapping[int, float]]) -> tuple[tuple[int, float, float], ...]:
    rounds = [at for at in (curves[0] if curves else {}) if all(at in curve for curve in curves)]
    scores = [interval([curve[at] for curve in curves]) for at in rounds]
    return tuple((at, s.mean, 0.0 if math.isnan(s.std) else s.std) for at, s in zip(rounds, scores, strict=True))


def _nothing(reason: str) -> Found:
    return Found(None, None, 0, None, None, None, "", reason)


def _row(recipe: Recipe, place: Place, metric: str, readings: Mapping[str, Found]) -> Row:
    mean, std = published(recipe, place) if metric == recipe.metrics[0] else (None, None)
    verdicts = {reading: _verdict(mean, std, found, MEASURES[metric].better) for reading, found in readings.items()}
    short = any(told in ("lower", "higher") for told in verdicts.values())
    remarks = [told["told"] for told in recipe.impossible if matching(told, place.panel, place.line)]
    missing = {found.reason for found in readings.values() if found.reason}
    why = "; ".join(sorted(missing)) or ("impossible because " + "; ".join(remarks) if short and remarks else "")
    return Row(place, metric, mean, std, readings, verdicts, why)


def published(recipe: Recipe, place: Place) -> tuple[float | None, float | None]:
    """Mean and standard deviation as printed; None where the paper prints none."""
    told: Any = recipe.published.get(place.panel, {}).get(place.line)
    if isinstance(told, Mapping):
        told = told.get(str(place.x) if isinstance(place.x, str) else f"{place.x:g}" if place.x is not None else "")
    if isinstance(told, list):
        return float(told[0]), float(told[1])
    return (None, None) if told is None else (float(told), None)


def _verdict(published: float | None, std: float | None, found: Found, better: int) -> str:
    """Reproduced: nearer than two standard deviations of paper and seeds together; half a unit where it prints none."""
    if found.mean is None:
        return "skipped" if found.seeds == 0 and found.epsilon is None else "failed"
    if published is None:
        return ""
    spread = 2 * math.hypot(TEXT_SPREAD if std is None else std, found.std or 0.0)
    if abs(found.mean - published) <= spread:
        return "reproduced"
    return "higher" if found.mean > published else "lower"


class Claimed(NamedTuple):
    """What a paper says of the order of two lines, and where it is so."""

    told: str
    reading: str
    holds: int
    cases: int

    @property
    def verdict(self) -> str:
        if not self.cases:
            return "nothing to compare"
        return "holds" if self.holds == self.cases else f"holds in {self.holds} of {self.cases} cases"


def claims_of(recipe: Recipe, rows: Sequence[Row]) -> list[Claimed]:
    """Every claim of the recipe in both readings: `better` ends ahead of `than` (a line, or an x of the same line)."""
    return [_claimed(claim, reading, rows) for claim in recipe.claims for reading in READINGS]


def _claimed(claim: Mapping[str, Any], reading: str, rows: Sequence[Row]) -> Claimed:
    metric = claim.get("metric", rows[0].metric)
    means = {row.place: row.readings[reading].mean for row in rows if row.metric == metric}
    other = _by_x if "better_x" in claim else _by_line
    cases = [(means[place], means.get(other(claim, place))) for place in means if _about(claim, place)]
    known = [(a, b) for a, b in cases if a is not None and b is not None]
    sign = MEASURES[metric].better
    return Claimed(claim["told"], reading, sum(sign * (a - b) > 0 for a, b in known), len(known))


def _about(claim: Mapping[str, Any], place: Place) -> bool:
    if not matching({"panels": claim.get("panels", "*")}, place.panel, place.line):
        return False
    if "better_x" in claim:
        return place.x == claim["better_x"] and matching({"lines": claim.get("lines", "*")}, place.panel, place.line)
    return place.line == claim["better"]


def _by_line(claim: Mapping[str, Any], place: Place) -> Place:
    return place._replace(line=claim["than"])


def _by_x(claim: Mapping[str, Any], place: Place) -> Place:
    return place._replace(x=claim["than_x"])


Name = Callable[[Place], str]
