"""The rows of a table: published numbers, both readings, and verdicts."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_dp.accounting.guarantee import mark_of, with_mark
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.settings import interval, proved_epsilon
from fedjax_dp.tools.papers.reproductions.cells import Cell, CellKey, Reading
from fedjax_dp.tools.papers.reproductions.measures import MEASURES
from fedjax_dp.tools.papers.reproductions.recipe import READINGS, Recipe, RecipeScale, concerns

NOT_REACHED = "not reached"
NOT_COMPARED = "not compared: another setting at this scale"


class ReadingResult(NamedTuple):
    """One reading of one number, over its seeds."""

    mean: float | None = None  # None if unknown, for `reason`
    std: float | None = None
    seeds: int = 0
    epsilon: float | None = None  # the largest of clients and seeds; infinite without privacy, None if not computed
    round_epsilon: float | None = None  # of a single round, for a budget per round
    delta: float | None = None
    about: str = ""  # unit, neighbours and view of epsilon
    reason: str = ""
    curve: tuple[tuple[int, float, float], ...] = ()  # round, mean, standard deviation


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """One number of a table or figure."""

    place: CellKey
    metric: str
    published: float | None
    published_std: float | None
    readings: Mapping[str, ReadingResult]
    verdicts: Mapping[str, str]
    why: str = ""

    @property
    def verdict(self) -> str:
        """Both verdicts in words."""
        known = {reading: verdict for reading, verdict in self.verdicts.items() if verdict}
        if len(set(known.values())) == 1 and len(known) == len(READINGS):
            words = next(iter(known.values()))
        else:
            words = ", ".join(f"{reading} {verdict}" for reading, verdict in known.items())
        return ": ".join(filter(None, (words, self.why)))


def rows_of(
    recipe: Recipe,
    cells: Sequence[Cell],
    records: Mapping[Reading, Sequence[Record]],
    missing: Mapping[str, str],
    round_epsilons: Mapping[Reading, float | None],
    schedule_epsilons: Mapping[Reading, float],
    numbers: Mapping[Reading, float],
    scale: RecipeScale,
) -> list[ResultRow]:
    """Rows in the order of the recipe; `records` of each cell, or `numbers` computed without runs. `schedule_epsilons`
    are of runs that were accounted for by other rounds than clients were drawn for."""
    comparable = recipe.comparable(scale)

    def result(key: Reading, metric: str) -> ReadingResult:
        if key[0].panel in missing:
            return ReadingResult(reason=missing[key[0].panel])
        if key in numbers:
            return ReadingResult(numbers[key], 0.0, 1)
        if key in records:
            return result_of(records[key], metric, round_epsilons.get(key), schedule_epsilons.get(key))
        return ReadingResult()

    return [
        _row(recipe, place, metric, {reading: result((place, reading), metric) for reading in READINGS}, comparable)
        for metric in recipe.metrics
        for place in dict.fromkeys(cell.place for cell in cells)
    ]


def result_of(
    records: Sequence[Record], metric: str, round_epsilon: float | None, epsilon: float | None = None
) -> ReadingResult:
    """The result of one cell over seeds; `epsilon` of the worst, if not that of the Guarantees."""
    measure = MEASURES[metric]
    done = [record for record in records if record["status"] == "done"]
    numbers = [number for record in done if (number := measure.of(record)) is not None]
    score = interval(numbers)
    epsilons = [proved_epsilon(record) for record in records]
    guarantee: Record = max(records, key=proved_epsilon)["guarantee"] if records else {}
    private = guarantee.get("delta") is not None
    whom = f"one {guarantee['unit']}, {guarantee['adjacency']}, {guarantee['view']}" if private else ""
    lost = len(records) - len(done)
    reason = ""
    if lost:
        reason = f"{lost} of {len(records)} seeds lost: " + next(r["reason"] for r in records if r["status"] != "done")
    elif len(numbers) < len(done):
        reason = f"{NOT_REACHED} by {len(done) - len(numbers)} of {len(done)} seeds"
    return ReadingResult(
        None if reason else score.mean,
        score.std if score.seeds > 1 else None,
        score.seeds,
        max(epsilons, default=None) if epsilon is None else epsilon,
        round_epsilon,
        guarantee.get("delta"),
        with_mark(whom, mark_of(guarantee)),
        reason,
        () if lost else _curve([dict(measure.curve(record)) for record in done]),
    )


def abouts(rows: Sequence[ResultRow]) -> list[tuple[Any, str]]:
    """The deltas, and units, neighbours and views, of all epsilons in the rows."""
    return sorted({(result.delta, result.about) for row in rows for result in row.readings.values() if result.about})


def _curve(curves: Sequence[Mapping[int, float]]) -> tuple[tuple[int, float, float], ...]:
    rounds = [at for at in (curves[0] if curves else {}) if all(at in curve for curve in curves)]
    scores = [interval([curve[at] for curve in curves]) for at in rounds]
    return tuple((at, s.mean, 0.0 if math.isnan(s.std) else s.std) for at, s in zip(rounds, scores, strict=True))


def _row(
    recipe: Recipe, place: CellKey, metric: str, readings: Mapping[str, ReadingResult], comparable: bool
) -> ResultRow:
    mean, std = published_number(recipe, place) if metric == recipe.metrics[0] else (None, None)
    target, measure = mean if comparable else None, MEASURES[metric]
    verdicts = {
        reading: _verdict(target, measure.spread if std is None else std, result)
        for reading, result in readings.items()
    }
    short = any(verdict in ("lower", "higher") for verdict in verdicts.values())
    remarks = [remark["statement"] for remark in recipe.impossible if concerns(remark, place.panel, place.line)]
    missing = {result.reason for result in readings.values() if result.reason}
    why = "; ".join(sorted(missing)) or ("impossible because " + "; ".join(remarks) if short and remarks else "")
    if not (why or comparable or mean is None):
        why = NOT_COMPARED
    return ResultRow(place, metric, mean, std, readings, verdicts, why)


def published_number(recipe: Recipe, place: CellKey) -> tuple[float | None, float | None]:
    """The published mean and standard deviation; None if the paper has none."""
    printed: Any = recipe.published.get(place.panel, {}).get(place.line)
    if isinstance(printed, Mapping):
        printed = printed.get(
            str(place.x) if isinstance(place.x, str) else f"{place.x:g}" if place.x is not None else ""
        )
    if isinstance(printed, list):
        return float(printed[0]), float(printed[1])
    return (None, None) if printed is None else (float(printed), None)


def _verdict(published: float | None, std: float, result: ReadingResult) -> str:
    """Reproduced: within two joint standard deviations of the published number and of the mean over seeds."""
    if result.mean is None:
        if not result.reason or result.reason.startswith(NOT_REACHED):
            return ""
        return "failed" if result.epsilon is not None else "skipped"
    if published is None:
        return ""
    spread = 2 * math.hypot(std, (result.std or 0.0) / math.sqrt(result.seeds))
    if abs(result.mean - published) <= spread:
        return "reproduced"
    return "higher" if result.mean > published else "lower"


class ClaimResult(NamedTuple):
    """A paper's claim about the order of two lines, and how often it holds."""

    statement: str
    reading: str
    holds: int
    cases: int

    @property
    def verdict(self) -> str:
        if not self.cases:
            return "no verdict, as one of the two is missing"
        if not self.holds:
            return "does not hold"
        return "holds" if self.holds == self.cases else f"holds in {self.holds} of {self.cases} cases"


def claims_of(recipe: Recipe, rows: Sequence[ResultRow]) -> list[ClaimResult]:
    """Every claim of the recipe, in both readings unless it names them."""
    claims: list[ClaimResult] = []
    for claim in recipe.claims:
        readings = [claim["reading"]] if "reading" in claim else READINGS
        claims += [_evaluate_claim(claim, reading, claim.get("than_reading", reading), rows) for reading in readings]
    return claims


def _evaluate_claim(claim: Mapping[str, Any], reading: str, other: str, rows: Sequence[ResultRow]) -> ClaimResult:
    metric = claim.get("metric", rows[0].metric)
    by_place = {
        row.place: {one: result.mean for one, result in row.readings.items()} | {"published": row.published}
        for row in rows
        if row.metric == metric
    }
    sign, holds, cases = MEASURES[metric].better, 0, 0
    for place, means in by_place.items():
        by_x = "better_x" in claim  # else by line
        meant = place.x == claim["better_x"] if by_x else place.line == claim["better"]
        against = place._replace(x=claim["than_x"]) if by_x else place._replace(line=claim["than"])
        ours = means[reading] if meant and concerns(claim, place.panel, place.line) else None
        theirs = by_place.get(against, {}).get(other)
        if ours is not None and theirs is not None:
            cases += 1
            holds += sign * (ours - theirs) > claim.get("by", 0.0)
    words = reading if other == reading else f"{reading} against {other}"
    return ClaimResult(claim["statement"], words, holds, cases)
