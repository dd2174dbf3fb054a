"""The report of a sweep, finished or not."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_dp import errors
from fedjax_dp.accounting.guarantee import with_mark
from fedjax_dp.display import count, duration, upward
from fedjax_dp.sweeps.comparison import compare
from fedjax_dp.sweeps.records import Record, read_records, read_selection_cost
from fedjax_dp.sweeps.settings import (
    CONFIDENCE,
    Setting,
    baseline_of_records,
    deployment_mark,
    group_by_value,
    measures_of_records,
    rank_settings,
    settings_of,
    value_key,
    values_of,
)
from fedjax_dp.sweeps.winners import USUAL, title, winners
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures.tables import sweeps as tables
from fedjax_dp.tools.reports import charts, shared
from fedjax_dp.tools.reports.contents import (
    Block,
    FactList,
    Figure,
    Filters,
    Grid,
    Prose,
    Report,
    Rows,
    Section,
    Tiles,
    exact,
    in_words,
    percent,
)

KIND, FOLDER = "sweep", "sweep.json"
GROUPS = 8  # that colours and shapes can distinguish
DRAWN, ROWS = 200, 6000  # settings whose curves are drawn, the best ones, and the rows of all of them
ENDS = (  # points without a result: their statuses, heading and text
    (
        ("diverged", "failed"),
        "Points that failed",
        "ended without a result. Their settings are not compared with others.",
    ),
    (
        ("stopped",),
        "Points that halving stopped",
        "stopped where other settings were better. Their settings are not compared further.",
    ),
)
FILTERED = 40  # values of an axis that have boxes


def of_folder(path: pathlib.Path) -> Report:
    about, records = read_records(path)
    axes, planned = [str(name) for name in about["axes"]], about.get("points", len(records))
    settings, main = settings_of(records, axes), measures_of_records(records).main
    rows, group = _rows(settings, axes, main)
    data: dict[str, Rows] = {"settings": rows, "front": tables.front(rows), "by_round": _by_round(settings, rows, main)}
    sections = [
        _result(settings, records, rows, axes, planned, about, main),
        Section(
            f"{shared.capital(words_of(main))} against epsilon",
            _privacy(settings, rows, axes, group, len({row["key"] for row in data["by_round"]}), main),
        ),
    ]
    if len(settings) > 1 and any(name in axes for name in USUAL):
        sections.append(best_of_each(records, axes))
    sections += comparison_section(records, axes)
    for statuses, heading, line in ENDS:
        if ended := [record for record in records if record["status"] in statuses]:
            sections.append(_ended_section(ended, axes, heading, f"{count(len(ended), 'point')} {line}"))
    sections += [_selection_cost(path, records, len(records) >= planned), *_promise(records), _cost(records)]
    common = shared.common([record["config"] for record in records])
    sections.append(shared.setting(common, about, "Fields that all points share"))
    lead = f"A sweep over {', '.join(axes) or 'nothing but seeds'}: {count(planned, 'point')}"
    lead = with_mark(lead, deployment_mark(records))
    name = str(about.get("name", path.name))
    return Report(KIND, name if name.lower().startswith(KIND) else f"Sweep {name}", lead, sections, data)


def comparison_section(records: Sequence[Record], axes: Sequence[str]) -> list[Section]:
    """Personal models against local training and one shared model, if the sweep compares them."""
    try:
        found = compare(records, axes)
    except errors.ConfigurationError:
        return []
    words = found.words
    columns = ["algorithm", "budget", f"mean {words}", "worst tenth", "no worse than both", "regret", "epsilon", "to"]
    rows = [
        [
            ", ".join([row.algorithm, *(f"{name} {exact(value)}" for name, value in row.values.items() if value)]),
            row.epsilon,
            shared.number(found.measure, row.standing.mean),
            shared.number(found.measure, row.standing.worst_tenth),
            None if row.against is None else percent(row.against.no_worse),
            None if row.against is None else shared.number(found.measure, row.against.regret),
            _epsilon_cell(row.proved),
            row.view,
        ]
        for row in found.rows
    ]
    about = (
        f"{shared.capital(words)} of each client on its own test records, for personal models, local training and one "
        'shared model, each at its best setting. "No worse than both" is the share of clients for whom the personal '
        "model is at least as good as local training and the best shared model. Regret is the mean loss of a client "
        "against the better of these two."
    )
    grid = Grid("Personal models", columns, rows)
    return [Section("Are personal models worth it?", [Prose([about]), grid])]


def words_of(metric: Measure) -> str:
    """The metric's name without the prefix of the test set, which all metrics of a sweep share."""
    return metric.words.removeprefix("test ")


def _rows(settings: Sequence[Setting], axes: Sequence[str], main: Measure) -> tuple[Rows, str | None]:
    """A row for each setting, and the axis that colours show."""
    places = {name: {value: place for place, value in enumerate(group_by_value(settings, name))} for name in axes}
    group = next((name for name in axes if name != "epsilon" and 1 < len(places[name]) <= GROUPS), None)
    rows = [
        {
            "at": [places[name][value_key(setting.values[name])] for name in axes],
            "setting": ", ".join(f"{name} {exact(setting.values[name])}" for name in axes) or "the only setting",
            "group": "all settings" if group is None else f"{group} {exact(setting.values[group])}",
        }
        | row
        for setting, row in zip(settings, tables.setting_rows(settings, main))
    ]
    return rows, group


def _by_round(settings: Sequence[Setting], rows: Rows, main: Measure) -> Rows:
    """The mean of the main metric over finished seeds, by round, for the best settings."""
    place = {id(setting): row for setting, row in zip(settings, rows)}
    best = [place[id(setting)] for setting in rank_settings(settings, main)]
    longest = max((len(point["history"]) for setting in settings for point in setting.points), default=1)
    most = min(DRAWN, max(ROWS // max(longest, 1), 1))
    keys = {row["key"] for row in best[:most]} or {row["key"] for row in rows[:most]}
    found = []
    for setting, row in zip(settings, rows):
        if row["key"] not in keys:
            continue
        for at, score in tables.curve(setting, main):
            found.append(
                {name: row[name] for name in ("key", "setting", "group")}
                | {"round": at, "value": score.mean, **tables.interval_ends(score, main)}
            )
    return found


def _result(
    settings: Sequence[Setting],
    records: Sequence[Record],
    rows: Rows,
    axes: Sequence[str],
    planned: int,
    about: Mapping[str, Any],
    main: Measure,
) -> Section:
    """The best setting, and the progress of the sweep."""
    blocks: list[Block] = []
    known = rank_settings(settings, main)
    if known:
        best = known[0]
        score, row = best.score(main.name), rows[[id(one) for one in settings].index(id(best))]
        of = f"mean over {count(score.seeds, 'seed')}, the best setting"
        if score.seeds > 1:
            of += f"; 95% interval {shared.number(main, row['low'])} to {shared.number(main, row['high'])}"
        items = [
            (main.words, shared.number(main, score.mean), of),
            ("epsilon", _epsilon_cell(best.epsilon), "worst seed of the best setting"),
            ("settings", in_words(len(settings)), f"{count(len(records), 'point')} of {planned:,}"),
            (
                "on the Pareto front",
                in_words(len(tables.front(rows))),
                "no other is better at the same epsilon or less",
            ),
        ]
        blocks.append(Tiles(items))
        way = "upwards" if main.better > 0 else "downwards"
        blocks.append(Prose([f"Best: {row['setting']}. Its mean is biased {way}: it was the criterion of the choice."]))
    else:
        blocks.append(Prose(["No setting has finished all its seeds yet, so there is nothing to compare."], "Missing"))
    if len(records) < planned:
        line = f"{len(records):,} of {planned:,} points are done, so the best setting may change."
        blocks.append(Prose([line], "Unfinished"))
    facts = [(f"axis {name}", _values(settings, name)) for name in axes]
    seeds = about.get("seeds") or sorted({record["values"]["seed"] for record in records})
    if baseline := baseline_of_records(records):
        facts.append(("baseline", baseline))
    blocks.append(FactList([*facts, ("seeds", seeds)]))
    return Section("Result", blocks)


def _values(settings: Sequence[Setting], axis: str) -> str:
    values = [exact(value) for value in values_of(settings, axis)]
    return ", ".join(values[:12]) + (f", ... ({len(values)} values)" if len(values) > 12 else "")


def _privacy(
    settings: Sequence[Setting], rows: Rows, axes: Sequence[str], group: str | None, drawn: int, main: Measure
) -> list[Block]:
    """Filters, and the Pareto front, the curves and the table of the settings that pass them."""
    named = {name: [exact(value) for value in values_of(settings, name)] for name in axes}
    mark = deployment_mark([point for setting in settings for point in setting.points])
    blocks: list[Block] = [Filters({name: values if len(values) <= FILTERED else [] for name, values in named.items()})]
    names = list(dict.fromkeys(row["group"] for row in rows))
    if any(row["epsilon"] is not None for row in rows):
        about = (
            "Mean over seeds with its 95% interval, at the proved epsilon. The line joins the settings that no other "
            "beats at the same epsilon or less."
        )
        blocks.append(Figure("front", "Pareto front", about, _front_spec(names, group, main, mark), "settings"))
    else:
        blocks.append(Prose(["No setting has a finite epsilon, so there is no front."], "No privacy"))
    if drawn:
        mean = main.words if main.words.startswith("mean ") else f"mean {main.words}"
        about = f"{shared.capital(mean)} over finished seeds, one line for each setting."
        if drawn < len(settings):
            about += f" Only the best {drawn:,} of {len(settings):,} settings are shown."
        blocks.append(
            Figure(
                "curves",
                f"{shared.capital(words_of(main))} by round",
                about,
                _curves_spec(names, group, main),
                "by_round",
            )
        )
    columns = [
        *axes,
        main.label.removeprefix("test "),
        "95% interval",
        with_mark("proved epsilon", mark),
        "seeds",
        "front",
    ]
    order = sorted(rows, key=lambda row: math.inf if row["good"] is None else -row["good"])  # unknown ones last
    best = {row["key"] for row in tables.front(rows)}
    table = [
        [
            *(exact(settings[row["key"]].values[name]) for name in axes),
            None if row["value"] is None else main.shown(row["value"]),
            _between(row, main),
            _epsilon_cell(settings[row["key"]].epsilon if row["private"] else math.inf),
            row["seeds"],
            "on the front" if row["key"] in best else "",
        ]
        for row in order
    ]
    caption = f"Settings, best first, with {CONFIDENCE:.0%} intervals over seeds"
    blocks.append(Grid(caption, columns, table, keys=[row["key"] for row in order]))
    return blocks


def _between(row: Mapping[str, Any], main: Measure) -> str:
    if row["low"] is None:
        return "–"
    low, high = main.shown(row["low"]), main.shown(row["high"])
    return f"{low:.1f} to {high:.1f}" if main.share else f"{low:.4g} to {high:.4g}"


def _front_spec(names: Sequence[str], group: str | None, main: Measure, mark: str) -> charts.Spec:
    x = charts.axis("epsilon", with_mark("proved epsilon (nats, logarithmic)", mark), ".3~g")
    x["scale"] = {"type": "log", "nice": False, "padding": 24}
    y, low = shared.axis_of("value", main, main.words), shared.axis_of("low", main, main.words)
    tips = _tips(main, ("epsilon", "epsilon", ".4g"), ("seeds", "seeds", ",d"))
    colour = charts.names("group", names, "circle", legend=group is not None)
    known = [{"filter": "isValid(datum.epsilon) && isValid(datum.value)"}]
    joined = charts.line(1.6, x=x, y=y, order={"field": "epsilon", "type": "quantitative"})
    joined["mark"] |= {"interpolate": "step-after", "opacity": 0.75}
    intervals = charts.rule(1, 0.55, "low", x=x, y=low, y2={"field": "high"}, color=colour)
    intervals["transform"] = known + intervals["transform"]
    dots = charts.points(70, tips, x=x, y=y, color=colour, shape=colour)
    return charts.chart(
        height=340,
        layer=[
            {"data": {"name": "front"}, **joined},
            {"data": {"name": "settings"}, **intervals},
            {"data": {"name": "settings"}, "transform": known, **dots},
        ],
    )


def _curves_spec(names: Sequence[str], group: str | None, main: Measure) -> charts.Spec:
    lines = charts.line(1.5)
    lines["mark"] |= {"opacity": 0.8}
    return charts.chart(
        height=340,
        data={"name": "by_round"},
        encoding={
            "x": charts.ROUND,
            "y": shared.axis_of("value", main, main.words, whole=True),
            "color": charts.names("group", names, legend=group is not None),
            "detail": {"field": "key", "type": "nominal"},
        },
        layer=[lines, charts.points(16, _tips(main, ("round", "round", ",d")))],
    )


def _tips(main: Measure, *more: tuple[str, str, str]) -> list[charts.Spec]:
    """Tooltips of a setting: its mean with the interval, and more."""
    form = shared.format_of(main)
    value = [("value", words_of(main), form), ("low", "95% interval from", form), ("high", "to", form)]
    return charts.tips("setting", *value, *more)


def best_of_each(records: Sequence[Record], axes: Sequence[str]) -> Section:
    """The best setting for each budget and algorithm, and the differences between algorithms."""
    found = winners(records, axes, [name for name in USUAL if name in axes])
    cells = found.cells()
    blocks: list[Block] = [Grid(shared.capital(title(found)), list(cells), list(zip(*cells.values(), strict=True)))]
    return Section(
        "Best setting for each " + " and ".join(found.by), [*blocks, Prose([shared.sentence(n) for n in found.notes()])]
    )


def _ended_section(points: Sequence[Record], axes: Sequence[str], heading: str, line: str) -> Section:
    rows = [
        [
            *(exact(one["values"].get(name)) for name in axes),
            one["values"]["seed"],
            one["status"],
            one["reason"] or "–",
        ]
        for one in points
    ]
    columns = [*axes, "seed", "status", "reason"]
    tone = "" if points[0]["status"] == "stopped" else "Warning"
    return Section(heading, [Prose([line], tone), Grid(heading, columns, rows)])


def _selection_cost(path: pathlib.Path, records: Sequence[Record], finished: bool) -> Section:
    """The privacy cost of choosing among the points."""
    cost = read_selection_cost(path, records) if finished else None
    if cost is None:
        line = "The cost is not known before the sweep is complete."
        return Section("Privacy cost of choosing a setting", [Prose([line], "Missing")])
    blocks: list[Block] = [Prose([shared.sentence(cost["short"]), shared.sentence(cost["statement"])])]
    if cost["short"] == cost["statement"]:
        blocks = [Prose([shared.sentence(cost["statement"])])]
    return Section("Privacy cost of choosing a setting", blocks)


def _promise(records: Sequence[Record]) -> list[Section]:
    """The Guarantee of the point with the largest finite epsilon, which covers all others on the same terms."""
    private = [record["guarantee"] for record in records if record["guarantee"].get("epsilon") is not None]
    if not private:
        return []
    worst = max(private, key=lambda one: float(one["epsilon"]))
    kinds = {tuple(json.dumps(one.get(name)) for name in ("unit", "adjacency", "view", "delta")) for one in private}
    blocks: list[Block] = [Prose(["The point with the largest epsilon: " + shared.sentence(worst["statement"])])]
    if len(kinds) > 1:
        line = "The points' Guarantees differ in unit, neighbours, view or delta, so their epsilons cannot be compared."
        blocks.append(Prose([line], "Warning"))
    (section,) = shared.guarantee_sections(worst)
    return [Section(section.title, [*blocks, *section.blocks])]


def _cost(records: Sequence[Record]) -> Section:
    total = math.fsum(record["seconds"] for record in records)
    facts = [("total time", duration(total)), ("points", len(records))]
    if records:
        facts.append(("mean time of a point", duration(total / len(records))))
    line = "A sweep does not measure traffic: fedjax-dp run does, with the configuration that fedjax-dp best prints."
    return Section("Time and traffic", [FactList(facts), Prose([line])])


def _epsilon_cell(epsilon: float) -> str:
    return upward(epsilon) if math.isfinite(epsilon) else "∞"
