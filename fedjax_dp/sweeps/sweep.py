"""Sweeps from Python: `sweep` over an algorithm value, `run_sweep` over configurations in a folder."""

import dataclasses
import hashlib
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from fedjax_dp import devices, errors, hooks
from fedjax_dp.data.store import FederatedData, require_clients
from fedjax_dp.display import Card, displayed, plain
from fedjax_dp.experiments import parameters, phases
from fedjax_dp.experiments.console import Screen
from fedjax_dp.folders import require_writable
from fedjax_dp.models import Model, usual_model
from fedjax_dp.privacy.guarantees import prepare
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.sweeps import axes as spans
from fedjax_dp.sweeps import cluster
from fedjax_dp.sweeps import folder as folders
from fedjax_dp.sweeps.axes import Values
from fedjax_dp.sweeps.comparison import Comparison, compare
from fedjax_dp.sweeps.engine import Job, evaluation_rounds_of
from fedjax_dp.sweeps.halving import Halving
from fedjax_dp.sweeps.parameter_paths import RUN_AXES, algorithm_of, integer_axes
from fedjax_dp.sweeps.plan import SweepConfig, collect, digest, expand, law_of, require_plain_search, to_toml
from fedjax_dp.sweeps.preparation import (
    PreparedPoint,
    Sources,
    build,
    checksum_of_data,
    find_noise,
    refuse_halting,
    with_data,
)
from fedjax_dp.sweeps.records import (
    SELECTION,
    SWEEP_FOLDER,
    Record,
    cost_by_metric,
    cost_statement,
    read_records,
    read_selection_cost,
)
from fedjax_dp.sweeps.runner import Keep, SweepPlan, Trained, announce, compile_plan, execute, execute_rungs
from fedjax_dp.sweeps.search import P, Search, search_of
from fedjax_dp.sweeps.selection_cost import ByResults, cost_of_choosing
from fedjax_dp.sweeps.settings import baseline_of_records, caveats_of, metric_of, settings_of
from fedjax_dp.sweeps.table import Best, best, column, overview, summary, tidy
from fedjax_dp.sweeps.winners import winners

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


# Called with points, known records, a function that keeps new ones, and the number of partial sums over a cohort.
Run = Callable[[Sequence[PreparedPoint], Sequence[Record], Keep, int | None], None]


@displayed
@dataclasses.dataclass(frozen=True)
class Sweep:
    """The results of a sweep: its points, finished or failed, with tables, pictures and the best setting."""

    name: str
    axes: tuple[str, ...]
    records: tuple[Record, ...]
    choosing: Mapping[str, Any] | None = None  # the privacy cost of choosing the best, see `cost_of_choosing`
    plan: SweepPlan | None = None  # of the points that are left, with `only_plan`
    folder: pathlib.Path | None = None  # where it is stored

    def _card(self) -> Card:
        statuses = Counter(record["status"] for record in self.records)
        facts = {"points": ", ".join(f"{many:,} {status}" for status, many in statuses.items()) or "none yet"}
        if any(len(setting.done_points) == 1 for setting in settings_of(self.records, self.axes)):
            facts["std"] = "one seed has no deviation"
        if baseline := baseline_of_records(self.records):
            facts["baseline"] = baseline
        if cost := cost_statement(self.choosing, self.folder):
            facts["choosing"] = cost
        if caveats := caveats_of(self.records):
            facts["caveat"] = "; ".join(caveats)
        if self.plan is not None:
            facts["planned"] = "; ".join(self.plan.lines())
        if self.folder is not None:
            facts["folder"] = str(self.folder)
        title = "sweep" if self.name == "sweep" else f"sweep {self.name}"
        return Card(f"{title} over {', '.join(self.axes) or 'seeds'}", facts, overview(self.records, self.axes))

    def table(self) -> "pandas.DataFrame":
        """One row per point and evaluated round, with all its numbers and fields."""
        return tidy(self.records, self.axes)

    def summary(self, metric: str | None = None) -> "pandas.DataFrame":
        """One row per setting: mean, standard deviation and 95% interval of each metric over the seeds."""
        return summary(self.records, self.axes, metric)

    def best(self, metric: str | None = None, epsilon_at_most: float | None = None) -> Best:
        """The setting with the best mean over seeds, of those whose proved epsilon is at most `epsilon_at_most`."""
        winner = best(self.records, self.axes, metric, epsilon_at_most)
        if self.choosing is None:
            return winner
        cost = cost_by_metric(self.choosing, self.records, metric_of(self.records, metric))
        return winner._replace(statement=cost_statement(cost, self.folder))

    def best_by(
        self, by: str | Sequence[str] | None = None, metric: str | None = None, against: str | None = None
    ) -> "pandas.DataFrame":
        """The best setting of each budget and algorithm, or of each value of the axes `by`, one row for each.

        mean, std, low and high (95%) are over its seeds, `minus_NAME_mean` and so on over the differences, seed by
        seed, to the algorithm `against`: the first one unless another is named. Numbers of too few seeds are NaN.
        """
        errors.require_installed("pandas", "tables", "for the tables of a sweep")
        import pandas

        named = [by] if isinstance(by, str) else by
        rows = winners(self.records, self.axes, named, metric, against).table()
        return pandas.DataFrame({name: column([row[name] for row in rows], float) for name in rows[0]})

    def comparison(self) -> Comparison:
        """The comparison of personal models with local training and a shared model, of a sweep over algorithms.

        Raises: ConfigurationError for a sweep without these, see `fedjax-dp compare --help`.
        """
        return compare(self.records, self.axes)

    @property
    def points(self) -> tuple[Record, ...]:
        """The record of each finished point, in the order of the plan."""
        return self.records

    def params(self, point: Record | None = None) -> Any:
        """The trained parameters of a point from the folder, by default of the first point of the best setting.

        Raises: ConfigurationError if they are not stored.
        """
        if point is None:
            values = self.best().values
            point = next(record for record in self.records if values.items() <= record["values"].items())
        if self.folder is None:
            raise errors.refuse("sweep", "one without a folder", "kept in a folder", "name one with out=")
        path = folders.params_of(self.folder, point)
        if not path.is_file():
            raise errors.refuse(
                "params", "none", f"kept in {path.parent}", "run its configuration, which trains it again"
            )
        return parameters.read(path)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        kind: str = "overview",
        *,
        metric: str | None = None,
        x: str | None = None,
        y: str | None = None,
        by: str | None = None,
        **look: Any,
    ) -> "Figure":
        """One picture, as `fedjax-dp plot` draws it: overview, axis (along x), privacy, heat, curves, parallel or
        personalisation.

        It is written to `path`, if there is one, as PNG, PDF or SVG by the ending of its name; `look` is ax, size and
        style, see `fedjax_dp.figures.Look`.
        """
        figure: Figure = hooks.plot_sweep(
            self.records, self.axes, self.name, path, kind, metric=metric, x=x, y=y, by=by, **look
        )
        return figure


def open_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """Read the finished points of a sweep's folder, which is not changed.

    Raises: ConfigurationError for any other folder.
    """
    path = pathlib.Path(folder)
    manifest, records = read_records(path)
    return Sweep(
        manifest["name"], tuple(manifest["axes"]), tuple(records), read_selection_cost(path, records), folder=path
    )


def sweep(
    algorithm: Algorithm | Callable[..., Algorithm],
    data: FederatedData | Callable[[int], FederatedData],
    *,
    rounds: int,
    axes: Mapping[str, Any],
    seeds: int | Sequence[int] = 1,
    trials: int | None = None,
    search_seed: int = 0,
    search: str = "random",
    search_batch: int = 8,
    halving: int | None = None,
    model: Model | None = None,
    evaluate_every: int | None = None,
    train_metrics: bool = False,
    chunk_size: int | None = None,
    name: str = "sweep",
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **privacy: Unpack[PrivacyOptions],
) -> Sweep:
    """Run an algorithm at every point of `axes`, with every seed, as few compiled programs.

    algorithm  a value whose fields axes name: `learning_rate`, `clip_norm`, `batches.size`, ...; or a function of
               the axes that makes one, such as `functools.partial(fdp.dpnfl, cohort_size=10, ...)`;
    data       for all seeds, or a function of the seed;
    axes       lists and ranges of `sweeps.axes`; `rounds`, `epsilon` and `delta` may vary too;
    seeds      their number, or a list of them;
    trials     number of points to draw at random, by `search_seed`, instead of the whole grid;
    search     "tpe" lets Optuna propose the `trials` from earlier results, `search_batch` at once, see
               `sweeps.search`;
    halving    3 lets the best third of the settings of each budget and algorithm continue at each rung of successive
               halving, see `sweeps.halving`; points that stop there are marked, and never the best;
    out        a folder where points are stored as they finish; the same call continues an interrupted sweep, and one
               with more values or seeds runs only the new points.
    The other options are those of `fedjax_dp.run`. On a CPU, model and test metrics of every point equal those of its
    single run bit for bit.
    Raises: ConfigurationError for all points that cannot run, before any runs.
    """
    screen = Screen(quiet=not progress)
    if not isinstance(axes, Mapping) or not all(isinstance(name, str) for name in axes):
        raise errors.refuse("axes", repr(axes)[:60], "names with lists or ranges", 'such as {"clip_norm": [1.0, 3.0]}')
    axes = {name: plain(values) for name, values in axes.items()}
    if out is not None:
        require_writable("out", pathlib.Path(out), "give another out")
    devices.cache_programs()
    terms = PrivacyTerms(**privacy)
    refuse_halting(terms)
    common: dict[str, Any] = {"rounds": rounds, "epsilon": terms.epsilon, "delta": terms.delta}
    chosen = spans.seeds_of(seeds)
    counts = {"evaluate_every": evaluate_every, "chunk_size": chunk_size, "trials": trials}
    for what, count in (counts | {"search_batch": search_batch}).items():
        if count is not None:
            errors.require_count(what, count)
    require_plain_search(search, search_batch, trials, halving)
    parsed = spans.parse(axes, integers=integer_axes(algorithm, axes))
    for field in (one for joined in parsed for one in spans.fields_of(joined)):
        if field in ("epsilon", "delta") and common[field] is not None:
            raise errors.refuse(field, common[field], "left out where it is an axis", "drop one of them")
    seedless = spans.grid(parsed) if trials is None else spans.random_points(parsed, trials, search_seed)
    points, sources = spans.with_seeds(seedless, chosen), Sources()
    datas = {seed: data(seed) if callable(data) else data for seed in chosen}
    for each in datas.values():
        require_clients(each)
    datas = {seed: sources.share(each) for seed, each in datas.items()}
    checksums = {seed: checksum_of_data(own) for seed, own in datas.items()} if out is not None else {}

    def prepare_point(index: int) -> PreparedPoint:
        values = points[index]
        own, seed = datas[values["seed"]], values["seed"]
        run_options = common | {key: value for key, value in values.items() if key in RUN_AXES}
        varied = {key: value for key, value in values.items() if key not in (*RUN_AXES, "seed")}
        if "noise_multiplier" in {name.split(".")[-1] for name in varied} and run_options["epsilon"] is not None:
            raise errors.refuse("noise_multiplier", "an axis", "left out where epsilon finds the noise", "drop one")
        counted = dataclasses.replace(terms, epsilon=run_options["epsilon"], delta=run_options["delta"])
        used, rounds = model or usual_model(own), run_options["rounds"]
        planned_run = plan_run(
            algorithm_of(algorithm, varied), own, rounds=rounds, seed=seed, model=used, terms=counted
        )
        run, promise = prepare(planned_run)
        job = Job(run, evaluate_every, train_metrics, chunk_size)
        identity = str(index) if out is None else _identity(values, job, checksums[seed])
        return PreparedPoint(index, identity, values, run_options, job, promise.without_attack())

    def prepare_points(seedless: Sequence[Values], first: int = 0) -> list[PreparedPoint]:
        points[first:] = spans.with_seeds(seedless, chosen)
        refusals = (TypeError, ValueError)  # also values of a type that their field cannot take
        return collect(points[first:], lambda at: prepare_point(first + at), refusals)

    if halving is not None:
        errors.require_integer("halving", halving, 2, spans.LARGEST, "3 keeps the best third")
        evaluated = [evaluation_rounds_of(values.get("rounds", rounds), evaluate_every) for values in points]
    rungs = None if halving is None else Halving.of(points, evaluated, halving, len(chosen))
    run_points = _local_run(screen, rungs, with_params=out is not None)
    folder = None if out is None else pathlib.Path(out)
    if trials is not None and search == "tpe":
        batches = Search(
            parsed, prepare_points, trials=trials, seeds=len(chosen), batch=search_batch, search_seed=search_seed
        )
        batches.next_points(_stored_records(folder))
        entries = sorted(batches.points.values(), key=lambda entry: entry.index)
        run_points = _search_run(batches, entries, list, run_points, screen, folder)
        planned_points = trials * len(chosen)
        settings_text = f" search {search} {search_seed} {search_batch} {trials}"
    else:
        entries = prepare_points(seedless)
        planned_points, settings_text = len(entries), f" halving {halving}" if rungs else ""
    names = spans.varied_fields(points)

    def price(grown: bool = False) -> dict[str, Any] | None:
        by_results: ByResults | None = "growth" if grown else "halving" if rungs else None
        by_results = "search" if search == "tpe" else by_results
        return cost_of_choosing(entries, trials is not None, None, screen, by_results)

    if folder is not None:
        always = search_batch * len(chosen) if search == "tpe" else len(points)  # points known before any result
        ids = sorted(entry.id for entry in entries if entry.index < always)
        own = hashlib.sha256("".join([*ids, settings_text]).encode()).hexdigest()[:12]
        manifest = folders.manifest_of(name, own, names, chosen, planned_points, halving)
        plan = {entry.id: (entry.index, entry.values) for entry in reversed(entries)}
        return _run_in_folder(folder, manifest, plan, None, lambda: entries, price, screen, run_points)
    results: dict[str, Record] = {}
    run_points(entries, [], lambda record, params: results.update({record["point"]: record}), None)
    return Sweep(name, names, tuple(sorted(results.values(), key=lambda record: record["index"])), price())


def run_sweep(
    sweep: SweepConfig,
    out: str | os.PathLike[str],
    *,
    name: str = "sweep",
    screen: Screen | None = None,
    only_plan: bool = False,
    ray: str | None = None,
    ray_cpus: int = 1,
    bare: bool = False,
) -> Sweep:
    """Run or continue a sweep of configurations in the folder `out`. Finished points are not run again.

    Every point is checked before anything runs. If seeds and values were added since the folder was made,
    only the new points are run.
    only_plan  stop at the plan, which is `plan` of the result; nothing is written;
    ray        address of a Ray cluster whose workers run the points, or "local"; `ray_cpus` cores for each;
    bare       without tables, picture and the cost of choosing, for callers that make their own.
    Raises: ConfigurationError for points that cannot run, or another kind of folder.
    """
    screen, out = screen or Screen(), pathlib.Path(out)
    if not isinstance(sweep, SweepConfig):
        raise errors.refuse("sweep", type(sweep).__name__, "a SweepConfig", "read_sweep reads one from a file")
    if not only_plan:
        require_writable("out", out, "give another out")
    devices.cache_programs()
    search, sources = None, Sources()
    if sweep.search == "random":
        expanded = with_data(expand(sweep), sources)
        points = {point.id: point for point in reversed(expanded)}  # the first of equal random points
    else:
        search = search_of(sweep, sources)
        search.next_points(_stored_records(out))
        points = search.points
    order = sorted(points.values(), key=lambda point: point.index)
    names = tuple(sweep.varying_fields) if search else spans.varied_fields([point.values for point in order])
    runs = build(order, sources)
    rungs = None
    if sweep.halving is not None:
        if ray is not None:
            raise errors.refuse("ray", ray, "left out with halving", "its rungs need all points of a machine")
        evaluated = [
            evaluation_rounds_of(one.rounds, point.config.output.evaluate_every) for one, point in zip(runs, order)
        ]
        rungs = Halving.of([point.values for point in order], evaluated, sweep.halving, len(sweep.seeds))
    planned_points = len(order) if search is None else search.trials * len(sweep.seeds)
    manifest = folders.manifest_of(name, digest(sweep), names, sweep.seeds, planned_points, sweep.halving)
    places = {point.id: (point.index, point.values) for point in order}
    prepared_points: list[PreparedPoint] = []

    def prepare_points() -> list[PreparedPoint]:
        prepared_points[:] = find_noise(order, runs, screen)
        return prepared_points

    def price(grown: bool) -> dict[str, Any] | None:
        by_results: ByResults | None = "search" if search else "growth" if grown else "halving" if rungs else None
        return cost_of_choosing(prepared_points, sweep.trials is not None, law_of(sweep), screen, by_results)

    def on_cluster(entries: Sequence[PreparedPoint], held: Sequence[Record], keep: Keep, parts: int | None) -> None:
        if left := _unfinished_points(entries, held):
            cluster.run_on(left, str(ray), parts or 1, ray_cpus, keep, screen)

    if only_plan:
        _, held = folders.read_own(out, manifest, places)
        left = prepare_points() if rungs else _unfinished_points(prepare_points(), held)
        plan = compile_plan(left, screen)._replace(halving=rungs, search=search.line() if search else None)
        return Sweep(name, names, tuple(held), plan=plan)
    run = _local_run(screen, rungs) if ray is None else on_cluster
    if search is not None:
        run = _search_run(
            search, prepared_points, lambda new: find_noise(new, build(new, sources), screen), run, screen, out
        )
    return _run_in_folder(out, manifest, places, to_toml(sweep), prepare_points, None if bare else price, screen, run)


def _stored_records(folder: pathlib.Path | None) -> dict[str, Record]:
    """The records of a sweep's folder, by the id of their points."""
    there = folder is not None and SWEEP_FOLDER.is_at(folder)
    return {record["point"]: record for record in (read_records(folder)[1] if folder and there else ())}


def _search_run(
    search: Search[P],
    entries: list[PreparedPoint],
    prepare_points: Callable[[list[P]], list[PreparedPoint]],
    run: Run,
    screen: Screen,
    folder: pathlib.Path | None,
) -> Run:
    """A function that runs the batches of a search one after another and adds their points to `entries`."""

    def run_points(known: Sequence[PreparedPoint], held: Sequence[Record], keep: Keep, parts: int | None) -> None:
        results = {record["point"]: record for record in held}

        def keep_result(record: Record, trained: Trained | None) -> None:
            results[record["point"]] = record
            keep(record, trained)

        while left := search.next_points(results):
            screen.say(search.line())
            ready = {entry.id for entry in entries}
            entries.extend(prepare_points([point for point in left if point.id not in ready]))
            ids = {point.id for point in left}
            run([entry for entry in entries if entry.id in ids], [], keep_result, parts)
        if folder is not None:
            folders.recount(folder, len(search.points))

    return run_points


def _run_in_folder(
    out: pathlib.Path,
    manifest: folders.Manifest,
    places: folders.Plan,
    text: str | None,
    entries: Callable[[], list[PreparedPoint]],
    price: Callable[[bool], dict[str, Any] | None] | None,
    screen: Screen,
    run: Run,
) -> Sweep:
    """Run the points that a folder lacks, and finish it if `price` is given; `text` is the sweep's TOML."""
    for package in ("pandas", "pyarrow") if price is not None else ():  # they write the tables
        errors.require_installed(package, "tables", "for the tables of a sweep")
    with folders.lock(out, manifest, places, text, screen) as (lock, own, held):
        finished = len(_finished_ids(held)) == own["points"]
        priced = (out / SELECTION).is_file() if price is not None or manifest.get("halving") else True
        everything = [] if finished and priced else entries()
        if held:
            stopped = sum(record["status"] == "stopped" for record in held)
            rungs = f", {stopped:,} of them up to a rung" if stopped else ""
            screen.say(f"{out} holds {len(_finished_ids(held)):,} of {own['points']:,} points{rungs}")
        run(everything, held, folders.open_points(out, lock), own["device"]["count"])
        if everything and price is not None:
            lock.require_own()
            folders.finish(out, price("grown" in own))
        return open_sweep(out)


def _local_run(screen: Screen, rungs: Halving | None, with_params: bool = True) -> Run:
    """A function that runs points in this process, and reuses its programs in later calls."""
    known: dict[Any, Any] = {}

    def run(entries: Sequence[PreparedPoint], held: Sequence[Record], keep: Keep, parts: int | None) -> None:
        if rungs is not None and entries:
            execute_rungs(entries, held, rungs, keep, screen, with_params=with_params, parts=parts)
            return
        plan = compile_plan(_unfinished_points(entries, held), screen, parts=parts, known=known)
        announce(plan, screen)
        execute(plan, keep, screen, with_params=with_params)

    return run


def _finished_ids(held: Iterable[Record]) -> set[str]:
    """The ids of finished points. A failed point runs again."""
    return {record["point"] for record in held if record["status"] != "failed"}


def _unfinished_points(entries: Sequence[PreparedPoint], held: Iterable[Record]) -> list[PreparedPoint]:
    finished = _finished_ids(held)
    return [entry for entry in entries if entry.id not in finished]


def _identity(values: Values, job: Job, data: str) -> str:
    """12 hexadecimal digits of everything that decides a point, equal in every process."""
    run = job.run
    settings = values, job[1:], run.rounds, run.seed, plain(vars(run.terms)), data
    facts = settings, phases.checksums_of_values(run.algorithm, run.model)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
