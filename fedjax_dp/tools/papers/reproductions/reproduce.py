"""`reproduce`: a recipe from its name to its table and figure, through the sweep engine."""

import datetime
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.experiments import environment
from fedjax_dp.experiments.communication import parameters
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.privacy.guarantees import prepare, unverified_guarantee, with_least_noise
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of
from fedjax_dp.sweeps.plan import SweepConfig, identity
from fedjax_dp.sweeps.preparation import Sources
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.sweep import run_sweep
from fedjax_dp.tools.papers.reproductions import features, tables
from fedjax_dp.tools.papers.reproductions.cells import Cell, Reading, cells_of, sweep_of, unavailable
from fedjax_dp.tools.papers.reproductions.features import Cloud
from fedjax_dp.tools.papers.reproductions.measures import BYTES, MEASURES, SEPARATION, message_bytes
from fedjax_dp.tools.papers.reproductions.recipe import SCALES, Recipe, RecipeScale, read_recipe
from fedjax_dp.tools.papers.reproductions.reproduction import Reproduction
from fedjax_dp.tools.papers.reproductions.rows import ResultRow, abouts, claims_of, rows_of

RUNS, SEARCH = "runs", "search"  # folders of the sweeps inside that of a reproduction
REPRODUCTION_FOLDER = folders.FolderKind(
    name="reproduction",
    manifest="table.json",
    fields={"recipe": str},
    beginning=(RUNS, SEARCH),
    remedy="fedjax-dp reproduce writes one",
    renewal="give another --out",
)
GOES_ON = "make room; the same command goes on where it stopped"
Planned = Callable[[Cell, int], PlannedRun]  # the run of a cell and a seed


def reproduce(
    name: str,
    *,
    scale: str = "small",
    seeds: int | None = None,
    panels: str = "*",
    out: str | os.PathLike[str] | None = None,
    data_dir: str | None = None,
    progress: bool = True,
    screen: Screen | None = None,
) -> Reproduction:
    """Run or resume a table or figure by name, and write table.md, .csv, .json and figure.png to `out`.

    scale   "smoke" (seconds, a test), "small" (minutes) or "full" (as in the paper);
    seeds   their number, by default that of the scale;
    panels  a pattern for the keys of panels to run;
    out     folder, new or of the same reproduction, by default reproduced/NAME-SCALE.
    Raises: ConfigurationError for an unknown name, a folder of something else, or if all data sets are missing.
    """
    screen = screen or Screen(quiet=not progress)
    recipe = read_recipe(name)
    errors.require_choice("scale", scale, SCALES)
    chosen_scale = recipe.scales[scale]
    if seeds is not None:
        errors.require_count("seeds", seeds)
        if seeds > 1 and recipe.metrics in ((BYTES,), (SEPARATION,)):
            raise errors.refuse("seeds", seeds, f"1 for {recipe.name}", "it is counted, or shows a single run")
    numbers = tuple(range(seeds or chosen_scale.seeds))
    folder = pathlib.Path(out or pathlib.Path("reproduced") / f"{name.replace('/', '-')}-{scale}")
    _require_own(folder, name)
    with folders.lock_folder("out", folder, "give another --out", screen.say):
        _require_own(folder, name)  # another process may have just begun in it
        return _run_recipe(recipe, chosen_scale, numbers, panels, folder, data_dir, screen)


def _run_recipe(
    recipe: Recipe,
    chosen_scale: RecipeScale,
    numbers: tuple[int, ...],
    panels: str,
    folder: pathlib.Path,
    data_dir: str | None,
    screen: Screen,
) -> Reproduction:
    """Run the table or figure in a locked folder."""
    cells = cells_of(recipe, chosen_scale, panels)
    missing = unavailable(recipe, cells, data_dir)
    for panel, reason in missing.items():
        screen.say(f"{panel} is left out: {reason}")
    cells_at_hand = [cell for cell in cells if cell.place.panel not in missing]
    if not cells_at_hand:
        raise errors.MissingDataError(next(iter(missing.values())))
    chosen, notes = _run_search(recipe, chosen_scale, folder, data_dir, screen)
    cells = cells_of(recipe, chosen_scale, panels, chosen)
    ready = [cell for cell in cells if cell.place.panel not in missing]
    by_cell: dict[Reading, list[Record]] = {}
    counts: dict[Reading, float] = {}
    clouds: dict[Reading, Cloud] = {}
    sources = Sources()

    def planned(cell: Cell, seed: int) -> PlannedRun:
        return sources.plan_run(cell.config(seed).replace(data_dir=data_dir))

    if recipe.metrics == (BYTES,):
        counts = _bytes(ready, planned)
    elif recipe.metrics == (SEPARATION,):
        clouds = _clouds(ready, folder, planned, screen)
        counts = {key: cloud.separation for key, cloud in clouds.items()}
    else:
        by_cell = _records(recipe, ready, numbers, folder, data_dir, screen)
    once, whole = _of_a_round(ready, planned), _of_the_schedule(ready, numbers if by_cell else (), planned)
    rows = rows_of(recipe, cells, by_cell, missing, once, whole, counts, chosen_scale)
    done = Reproduction(
        recipe,
        chosen_scale,
        numbers,
        tuple(rows),
        tuple(claims_of(recipe, rows)),
        tuple(_notes(recipe, chosen_scale, numbers, rows) + notes),
        folder,
        clouds,
    )
    with folders.storage_errors(folder, GOES_ON):
        _write(done, cells, {record["point"]: record["seconds"] for of_cell in by_cell.values() for record in of_cell})
    return done


def _require_own(folder: pathlib.Path, name: str) -> None:
    """Refuse a folder with other content."""
    if not REPRODUCTION_FOLDER.is_at(folder):
        REPRODUCTION_FOLDER.require_new("out", folder, "give another --out", ", or one of this recipe")
    elif (recipe := REPRODUCTION_FOLDER.read(folder)["recipe"]) != name:
        got = f"{folder}, one of {recipe}"
        raise errors.refuse("out", got, "a new or empty folder, or one of this recipe", "give another --out")


def _records(
    recipe: Recipe,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    folder: pathlib.Path,
    data_dir: str | None,
    screen: Screen,
) -> dict[Reading, list[Record]]:
    """The finished runs of every cell."""
    sweep = sweep_of(cells, seeds, data_dir)
    if len(sweep.points) * len(seeds) == 1:
        raise errors.refuse("panels and seeds", "a single run", "several runs", "fedjax-dp run does one")
    runs = run_sweep(sweep, folder / RUNS, name=recipe.name, screen=screen, bare=True)
    by_id = {identity(RunSpec.of(record["config"])): record for record in runs.records}
    return {cell.key: [by_id[identity(cell.config(seed))] for seed in seeds] for cell in cells}


def _run_search(
    recipe: Recipe, scale: RecipeScale, folder: pathlib.Path, data_dir: str | None, screen: Screen
) -> tuple[dict[str, Any], list[str]]:
    """The choice of a search on separate seeds, with notes on it and its privacy cost."""
    if not recipe.search:
        return {}, []
    search = recipe.search | scale.search
    axes = {
        name: values for name, values in search["axes"].items() if not _fields_of_axes([name]) & scale.fields.keys()
    }
    fields = recipe.base | recipe.readings["correct"] | search.get("fields", {}) | scale.fields
    fields = {name: value for name, value in fields.items() if name not in _fields_of_axes(axes)}
    sweep = SweepConfig(
        base=fields | ({} if data_dir is None else {"data_dir": data_dir}),
        axes=axes,
        seeds=tuple(search["seeds"]),
        trials=search["trials"],
        trials_law=search.get("law", "fixed"),
        search_seed=1,
    )
    runs = run_sweep(sweep, folder / SEARCH, name=f"{recipe.name}: search", screen=screen)
    best = runs.best()
    settings = ", ".join(f"{name} {_short(value)}" for name, value in best.values.items())
    cost = runs.choosing["short"] if runs.choosing else "nothing private was chosen"
    return best.values, [
        f"chosen among {best.considered} settings drawn at random, by test accuracy on seeds "
        f"{', '.join(map(str, sweep.seeds))}, which the table does not use: {settings}",
        f"what choosing costs: {cost}; {SEARCH}/selection.json says more",
    ]


def _fields_of_axes(axes: Iterable[str]) -> set[str]:
    return {field.strip() for name in axes for field in name.split(",")}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _of_a_round(cells: Sequence[Cell], planned: Planned) -> dict[Reading, float | None]:
    """Epsilon of a single round for cells with a budget per round, whose noise does not depend on the seed."""
    budgeted = [(cell, identity(cell.config(0))) for cell in cells if cell.fields.get("participation") == "once"]
    known: dict[str, float | None] = {}
    for cell, point in budgeted:
        if point not in known:
            run = planned(cell, 0)
            known[point] = None if noise_of(run.algorithm) is None else prepare(run).guarantee.epsilon
    return {cell.key: known[point] for cell, point in budgeted}


def _of_the_schedule(cells: Sequence[Cell], seeds: Sequence[int], planned: Planned) -> dict[Reading, float]:
    """The true epsilon of the worst client and seed, for cells whose noise is calibrated for other participation."""
    epsilons: dict[Reading, float] = {}
    for cell in cells:
        for seed in seeds if cell.fields.get("participation", "schedule") not in ("schedule", "law") else ():
            run = planned(cell, seed)
            if noise_of(run.algorithm) is None:
                continue
            if run.terms.epsilon is not None:
                run = with_least_noise(run)
            epsilon = unverified_guarantee(run.with_terms(participation="schedule", epsilon=None)).epsilon
            epsilons[cell.key] = max(epsilon, epsilons.get(cell.key, 0.0))
    return epsilons


def _bytes(cells: Sequence[Cell], planned: Planned) -> dict[Reading, float]:
    numbers = {}
    for cell in cells:
        run = planned(cell, 0)
        size, features = parameters(run.model, run.data)
        members = run.algorithm.cohort.capacity(run.data.num_clients)
        numbers[cell.key] = message_bytes(run.algorithm, size, features or 0, members, run.data.num_clients)
    return numbers


def _clouds(cells: Sequence[Cell], folder: pathlib.Path, planned: Planned, screen: Screen) -> dict[Reading, Cloud]:
    """Features of every cell, cached in the folder."""
    clouds = {}
    with folders.storage_errors(folder, GOES_ON), screen.bar("training", total=len(cells)) as show:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        for done, cell in enumerate(cells):
            path = folder / RUNS / f"{identity(cell.config(0))}.npz"
            cloud = features.load(path)
            if cloud is None:
                cloud = features.cloud_of(planned(cell, 0))
                features.save(cloud, path)
            clouds[cell.key] = cloud
            show(done + 1, "")
    return clouds


def _notes(recipe: Recipe, scale: RecipeScale, seeds: Sequence[int], rows: Sequence[ResultRow]) -> list[str]:
    notes = []
    changes = dict(recipe.changes(scale))
    if scale.name != "full":
        if len(seeds) != recipe.scales["full"].seeds:
            changes["seeds"] = len(seeds)
        differs = ", ".join(f"{name} {_short(value)}" for name, value in changes.items())
        notes.append(f"scale {scale.name}: {differs or 'as in full'}")
    notes.append("a single seed" if len(seeds) == 1 else f"mean ± standard deviation over {len(seeds)} seeds")
    if recipe.open:
        notes.append(recipe.open)
    for delta, about in abouts(rows):
        notes.append(f"epsilon is proved at delta {delta:g} for {about}, the worst client and seed")
    if recipe.comparable(scale) and any(row.published is not None for row in rows):
        notes.append(
            "reproduced: within two standard deviations, of what is printed "
            f"({MEASURES[recipe.metrics[0]].spread:g} where none is) and of the mean over seeds together"
        )
    if any(row.readings[reading].about for row in rows for reading in row.readings):
        notes.append("noise is seeded float32: it measures utility and protects nobody's data")
    return notes


def _write(done: Reproduction, cells: Sequence[Cell], seconds: Mapping[str, float]) -> None:
    """Write tables, figure and configurations; `seconds` of each run."""
    from fedjax_dp.tools.papers.reproductions import figure  # slow to import

    content = {
        "recipe": done.recipe.name,
        "source": done.recipe.source,
        "title": done.recipe.title,
        "scale": done.scale.name,
        "seeds": list(done.seeds),
        "rows": list(map(tables.to_dict, done.rows)),
        "claims": [claim._asdict() | {"verdict": claim.verdict} for claim in done.claims],
        "notes": list(done.notes),
        "configurations": [{**cell.place._asdict(), "reading": cell.reading, "fields": cell.fields} for cell in cells],
        "runs": len(seconds),
        "seconds_of_runs": round(sum(seconds.values()), 1),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": environment.versions(),
        "device": environment.device(),
    }
    REPRODUCTION_FOLDER.write(done.folder, content)  # first: an interrupted call resumes by it
    folders.write_atomically(done.folder / "table.md", tables.markdown(content, done.recipe.titles))
    folders.write_atomically(done.folder / "table.csv", tables.comma_separated(done.recipe, done.rows))
    figure.draw(done, done.folder / "figure.png")
