"""The report of a run, finished or not, from its folder or from the JSON object that it printed."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_dp import errors, folders
from fedjax_dp.accounting import Unit
from fedjax_dp.accounting.guarantee import mark_of, with_mark
from fedjax_dp.display import count, duration, size, upward
from fedjax_dp.experiments.console import Screen
from fedjax_dp.tasks.measures import Measures, measures_of, plural
from fedjax_dp.tools.figures.tables import runs as tables
from fedjax_dp.tools.reports import charts, shared
from fedjax_dp.tools.reports.contents import Block, FactList, Figure, Prose, Report, Rows, Section, Tiles, in_words

KIND, FOLDER, KEYS = "run", "run.json", frozenset({"algorithm", "history", "guarantee", "config", "rounds"})
COMING = "datum.state === 'to come'"


class _Run(NamedTuple):
    """What a report is about; without a `result` the run has not finished."""

    config: Mapping[str, Any]
    history: Rows
    guarantee: Mapping[str, Any]
    result: Mapping[str, Any]
    about: Mapping[str, Any]
    spending: Rows  # epsilon by round, or why it is `missing`
    missing: str

    @property
    def done(self) -> int:
        """The last evaluated round."""
        return self.history[-1]["round"] if self.history else 0

    @property
    def measures(self) -> Measures:
        return measures_of(self.about["task"])


def of_folder(path: pathlib.Path) -> Report:
    from fedjax_dp.experiments import run_folder  # loads JAX

    manifest = run_folder.RUN_FOLDER.read(path)
    result = run_folder.result_of(path, manifest)
    history = folders.read_json(path / run_folder.METRICS) if (path / run_folder.METRICS).is_file() else []
    guarantee = run_folder.promise_of(path, manifest)
    spending, missing = _epsilons_by_round(path, manifest, guarantee)
    return _report(_Run(manifest["config"], history, guarantee, result or {}, manifest, spending, missing))


def of_content(content: Mapping[str, Any]) -> Report:
    """The report of what `fedjax-dp run --json` prints and `result.json` holds."""
    missing = "" if content["guarantee"]["epsilon"] is None else "only the run's folder holds it: report that"
    return _report(_Run(content["config"], content["history"], content["guarantee"], content, content, [], missing))


def _epsilons_by_round(path: pathlib.Path, about: Mapping[str, Any], guarantee: Mapping[str, Any]) -> tuple[Rows, str]:
    """Epsilon by round, with progress on stderr, or why it is not known."""
    if guarantee["epsilon"] is None:
        return [], ""
    from fedjax_dp.tools.reports.spending import epsilon_by_round  # loads JAX

    try:
        return epsilon_by_round(path, about, guarantee["epsilon"], Screen()), ""
    except errors.ConfigurationError as error:
        return [], str(error)


def _report(run: _Run) -> Report:
    config, guarantee = run.config, run.guarantee
    data: dict[str, Rows] = {"history": shared.thin_rows(run.history)}
    if run.spending:
        data["spent"] = [row | {"state": "spent" if row["round"] <= run.done else "to come"} for row in run.spending]
    clients, epsilons = _clients(run)
    if epsilons:
        data["epsilons"] = epsilons
    sections = [_result(run), _curves(run), *shared.guarantee_sections(guarantee)]
    sections += [clients, _cost(run.result), shared.setting(config, run.about)]
    of = f" with {count(int(config['num_clients']), 'client')}" if config.get("num_clients") else ""
    title = with_mark(f"{config['algorithm']} on {config['dataset']}", mark_of(guarantee))
    return Report(KIND, title, f"A run{of}, seed {config['seed']}", sections, data)


def _result(run: _Run) -> Section:
    """The most important numbers of the run."""
    config, history, guarantee, measures = run.config, run.history, run.guarantee, run.measures
    done, rounds = run.done, config["rounds"]
    of = f"after {count(done, 'round')}" if run.result else f"after {done:,} of {rounds:,} rounds"
    main, loss = measures.main, measures["test_loss"]
    if (baseline := run.result.get("baseline")) is not None:
        of += f"; {baseline['answer']}: {shared.number(main, baseline['value'])}"
    items = [(main.words, shared.number(main, tables.last_value(history, main.name)), of)]
    items += shared.tiles(guarantee, config.get("stop_at_epsilon") or config.get("epsilon"))
    for name, one in measures.tested.items():
        if name not in (main.name, loss.name):
            items.append((one.words, shared.number(one, tables.last_value(history, name)), "public test data"))
    of_loss = ", ".join(filter(None, [loss.words.removeprefix("test "), loss.unit]))
    if main is not loss:
        items.append(("test loss", in_words(tables.last_value(history, "test_loss")), of_loss))
    blocks: list[Block] = [Tiles(items), *shared.promise(guarantee)]
    if not run.result:
        line = f"The run is at round {done:,} of {rounds:,}. Its Guarantee covers all {rounds:,} rounds, done or not."
        blocks.append(Prose([line], "Unfinished"))
    if not history:
        blocks.append(Prose(["Nothing has been evaluated yet, so there are no curves."], "Missing"))
    blocks.append(FactList(_what(config)))
    return Section("Result", blocks)


def _what(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The most important fields of the configuration."""
    names = {
        "algorithm": "algorithm",
        "dataset": "data set",
        "partition": "partition",
        "model": "model",
        "num_clients": "clients",
        "cohort_size": "cohort size",
        "rounds": "rounds",
        "local_steps": "local steps",
        "batch_size": "batch size",
        "learning_rate": "learning rate",
        "clip_norm": "clipping norm",
        "noise_multiplier": "noise multiplier",
        "epsilon": "budget (epsilon)",
        "stop_at_epsilon": "stop at epsilon",
        "holdout": "held out for tests",
        "seed": "seed",
    }
    return [(label, config[name]) for name, label in names.items() if config.get(name) is not None]


def _curves(run: _Run) -> Section:
    history, guarantee, measures = run.history, run.guarantee, run.measures
    main, loss = measures.main, measures["test_loss"]
    words = main.words.removeprefix("test ")
    blocks: list[Block] = [
        *_figure(
            history,
            main.name.removeprefix("test_"),
            f"{shared.capital(words)} by round",
            shared.metric_caption(history, words),
            {name: label for name, label in tables.quality(measures).items() if name != "personal_mean"},
            shared.axis_of("value", main, words, whole=True),
            shared.format_of(main),
        ),
        *_figure(
            history,
            "loss",
            "Loss by round",
            f"Mean {loss.words.removeprefix('test ')}{f' in {loss.unit}' if loss.unit else ''}, without penalties.",
            tables.LOSS,
            charts.axis("value", loss.label.removeprefix("test ")),
        ),
    ]
    if run.spending:
        blocks.append(_epsilon(run))
    elif guarantee["epsilon"] is None:
        blocks.append(Prose(["Epsilon is infinite from the first round on."], "No privacy"))
    else:
        blocks.append(Prose([f"Epsilon by round is not known: {run.missing}."], "Missing"))
    blocks += _figure(
        history,
        "clipped",
        "Clipped fraction by round",
        "Share of the last round's updates that were clipped. About half is usual."
        if guarantee["unit"] == Unit.CLIENT.value
        else "Share of the last round's record gradients that were clipped. About half is usual, or nearly all with a "
        "learning rate to match.",
        {"clipped": "clipped fraction (probe)"},
        charts.axis("value", "clipped fraction", ".0%", domain=[0, 1]),
        ".1%",
        idle=guarantee["epsilon"] is None,  # nothing is clipped there
    )
    blocks += _figure(
        history,
        "learnt_clip_norm",
        "Clipping norm by round",
        "The clipping norm at the start of the round. It adapts to the share of updates within it.",
        {"learnt_clip_norm": "clipping norm (probe)"},
        charts.axis("value", "clipping norm"),
    )
    blocks += _figure(
        history,
        "noise",
        "Noise-to-signal ratio by round",
        "Norm of a round's noise over the norm of the sum that it is added to. Above 1 is usual: noise spreads over "
        "all directions, the signal over few, and averaging over rounds removes much of the noise.",
        {"noise_to_signal": "noise-to-signal ratio (probe)"},
        charts.axis("value", "noise / signal"),
        idle=True,
    )
    blocks += _figure(
        history,
        "gradient",
        "Gradient norm by round",
        "L2 norm of the objective's gradient over all training records.",
        {"gradient_norm": "gradient norm (probe)"},
        charts.axis("value", "gradient norm"),
    )
    if len(shared.thin_rows(history)) < len(history):
        line = f"The figures show {shared.DRAWN:,} of {len(history):,} evaluations, evenly spaced."
        blocks.append(Prose([line]))
    if history and tables.last_value(history, "objective") is None:
        line = (
            "The objective over all training records was not computed: --train-metrics true adds it and its gradient."
        )
        blocks.append(Prose([line], "Missing"))
    return Section("By round", blocks)


def _figure(
    history: Rows,
    name: str,
    title: str,
    about: str,
    fields: Mapping[str, str],
    y: charts.Spec,
    number: str = ".4g",
    *,
    idle: bool = False,
) -> list[Block]:
    """The figure of the fields that have a value; no figure if none has, or if `idle` and all are 0."""
    known = tables.known_fields(history, fields)
    if not known or (idle and not any(row.get(field) for field in known for row in history)):
        return []
    probes = all("probe" in label for label in known.values())
    return [Figure(name, title, about, charts.curves("history", known, y, number), "history", probes)]


def _epsilon(run: _Run) -> Figure:
    """Epsilon by round, for rounds done and rounds to come, with a line at the budget, if it is one number."""
    spending, guarantee, config = run.spending, run.guarantee, run.config
    budget = config.get("stop_at_epsilon") or (None if config.get("epsilon_high") else config.get("epsilon"))
    apart = any(row["epsilon"] != row["epsilon_median"] for row in spending)
    fields = {"epsilon": "worst client"} | ({"epsilon_median": "median client"} if apart else {})
    about = f"Epsilon of the run if it stopped there, at delta {guarantee['delta']:g}, by the Guarantee's accountant."
    if not run.result:
        about += " All planned rounds are shown: pale dots are rounds still to come."
    spec = charts.curves("spent", fields, charts.axis("epsilon", "epsilon (nats)"))
    spec["layer"][1]["encoding"]["opacity"] = {"condition": {"test": COMING, "value": 0.35}, "value": 1}
    if isinstance(budget, int | float):
        about += f" The horizontal line is the budget, {budget:g}."
        spec["layer"].append(charts.across(float(budget)))
    return Figure("epsilon", with_mark("Epsilon by round", mark_of(guarantee)), about, spec, "spent")


def _clients(run: _Run) -> tuple[Section, Rows]:
    """Epsilon and the main metric, client by client."""
    history, guarantee, measures = run.history, run.guarantee, run.measures
    blocks: list[Block] = []
    rows = _rank_clients(guarantee.get("epsilons"), guarantee.get("names") or ())
    if not rows and guarantee["epsilon"] is not None:
        line = f"Epsilon of clients: {shared.spread(guarantee)}. Only the folder of the run holds each client's."
        blocks.append(Prose([line]))
    elif rows and upward(rows[0]["epsilon"]) == upward(rows[-1]["epsilon"]):
        blocks.append(Prose([f"Epsilon is {upward(rows[-1]['epsilon'])} for each of {rows[-1]['rank']:,} clients."]))
        rows = []
    elif rows:
        about = "Each client's epsilon, from the best protected client to the worst."
        whose: list[Any] = ["client"] if "client" in rows[0] else [("rank", "rank", ",d")]
        few = "client" in rows[0] and len(rows) <= FEW_NAMES
        names = {"field": "client", "type": "nominal", "sort": None, "title": "clients, in order of epsilon"}
        spec = charts.chart(
            data={"name": "epsilons"},
            mark={"type": "bar", "width": {"band": 0.8}, "orient": "vertical"},
            encoding={
                "x": names
                if few
                else {"field": "rank", "type": "ordinal", "title": "clients, in order of epsilon", "axis": RANKS},
                "y": charts.axis("epsilon", "epsilon (nats)"),
                "tooltip": charts.tips(*whose, ("epsilon", "epsilon", ".5g")),
            },
        )
        blocks.append(Figure("clients", "Epsilon of each client", about, spec, "epsilons"))
    if tables.last_value(history, "client_mean") is None:
        line = (
            f"The spread of {measures.main.words.removeprefix('test ')} over clients is not known: clients have no "
            "test records. --holdout 0.2 holds out a fifth of each client's records."
        )
        blocks.append(Prose([line], "Missing"))
    else:
        blocks += _client_metrics(history, measures)
    return Section("Clients", blocks), rows


FEW_NAMES = 40  # below the bars of a chart
RANKS = {"labelAngle": 0, "labelOverlap": "greedy", "ticks": False}


def _rank_clients(epsilons: Sequence[tuple[float, int]] | None, names: Sequence[str]) -> Rows:
    """A row for each client in order of epsilon, with its name if it has one; evenly spaced rows of very many."""
    if not epsilons or any(epsilon is None for epsilon, _ in epsilons):
        return []
    every = [epsilon for epsilon, count in epsilons for _ in range(count)]
    order = sorted(range(len(every)), key=every.__getitem__)
    rows: Rows = [{"rank": place, "epsilon": every[client]} for place, client in enumerate(order, 1)]
    if len(names) == len(every):
        rows = [row | {"client": names[client]} for row, client in zip(rows, order)]
    return shared.thin_rows(rows)


def _client_metrics(history: Rows, measures: Measures) -> list[Block]:
    """The main metric by client: mean, spread, worst tenth."""
    main, words = measures.main, measures.main.words.removeprefix("test ")
    mean, worst, variance = (
        tables.last_value(history, name) for name in ("client_mean", "worst_tenth", "client_variance")
    )
    own = [row for row in history if row.get("personal_mean") is not None]
    items = [
        *(
            [("own models", shared.number(main, own[-1]["personal_mean"]), f"probe, mean {words} over clients")]
            if own
            else []
        ),
        (f"mean {words} over clients", shared.number(main, mean), "probe, last evaluation"),
        ("worst tenth of clients", shared.number(main, worst), f"probe, mean of their {plural(words)}"),
        ("standard deviation", shared.number(main, variance**0.5), "probe, over clients"),
    ]
    y = shared.axis_of("low", main, words, whole=True)
    spec = charts.curves("history", tables.known_fields(history, tables.CLIENTS), y, shared.format_of(main))
    low, high = ("datum.client_mean - sqrt(datum.client_variance)", "datum.client_mean + sqrt(datum.client_variance)")
    low = low if main.signed else f"max(0, {low})"
    high = f"min(1, {high})" if main.share else high
    band = {
        "transform": [
            {"filter": "isValid(datum.client_variance)"},
            {"calculate": low, "as": "low"},
            {"calculate": high, "as": "high"},
        ],
        "mark": {"type": "area", "opacity": 0.15, "aria": False},
        "encoding": {"x": charts.ROUND, "y": y, "y2": {"field": "high"}},
    }
    lines = {"transform": spec.pop("transform"), "encoding": spec.pop("encoding"), "layer": spec.pop("layer")}
    about = (
        f"The model's {words} on each client's test records: mean over clients, with a band of one standard deviation, "
        "and mean of the worst tenth of clients."
    )
    figure = Figure(
        "served", f"{shared.capital(words)} over clients", about, spec | {"layer": [band, lines]}, "history", True
    )
    return [Tiles(items), figure]


def _cost(result: Mapping[str, Any]) -> Section:
    timing, traffic = result.get("timing"), result.get("traffic")
    if not timing or not traffic:
        return Section("Time and traffic", [Prose(["Time and traffic are known once the run is finished."], "Missing")])
    facts = [
        ("total time", duration(timing["total_s"])),
        ("compilation time", duration(timing["compile_s"])),
        ("median time of a round", duration(timing["round_s_median"])),
        ("sent to a client in a round", size(traffic["down"])),
        ("sent by a client in a round", size(traffic["up"])),
        ("mean number of clients in a round", traffic["clients"]),
        ("total traffic, both directions", size(traffic["total"])),
    ]
    if result.get("rounds_to_target") is not None:
        facts.append(("rounds to reach the target", result["rounds_to_target"]))
        facts.append(("traffic to reach the target", size(result["bytes_to_target"])))
    return Section("Time and traffic", [FactList(facts)])
