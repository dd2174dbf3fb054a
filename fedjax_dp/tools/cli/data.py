"""`fedjax-dp data`: what clients a data set and a partition make."""

import dataclasses
from typing import Annotated

from fedjax_dp import errors
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.partitions import OPTIONS
from fedjax_dp.experiments.presets import population_of, resolve_population
from fedjax_dp.options import about, of_class
from fedjax_dp.tools.cli.help import FirstPage
from fedjax_dp.tools.cli.options import SWITCHES, PlotOption, PrintOptions, known_flags, parse, picture_of
from fedjax_dp.tools.cli.output import print_json

HIDDEN = ("named", *SWITCHES)  # that decide nothing of what is shown
TABULATED = ("num_clients", "min_records", "client_ids")  # of a partition's options: the table has them

PAGE = FirstPage(
    "Show how a partition splits a data set over clients: sizes, labels, heterogeneity.",
    "[DATASET] [OPTIONS]",
    {
        "data digits --partition dirichlet --concentration 0.5": "clients with different labels",
        "data digits --num-clients 20 --plot clients.png": "with a picture of the labels of each client",
        "data digits --json": "printed as JSON",
        "data convert digits --out store": "write the clients to a store, which run takes as --dataset store:store",
    },
    {
        "named": "mnist",
        "partition": "dirichlet",
        "concentration": "0.5",
        "num_clients": "100",
        "labels_per_client": "2",
        "shards_per_client": "2",
        "similarity": "10",
        "sizes": "power-law",
        "min_records": "10",
        "label_column": "diagnosis",
        "client_column": "hospital",
        "seed": "1",
        "data_dir": "data",
        "out": "store",
        "plot": "clients.png",
        "json": "",
    },
    "Options mean what they mean for fedjax-dp run.",
)


@dataclasses.dataclass(frozen=True)
class DataOptions(PrintOptions, PlotOption, PopulationConfig):
    named: Annotated[str | None, about("data set, as --dataset of fedjax-dp run", positional=True)] = None
    out: Annotated[str | None, about("for convert: a new folder", metavar="DIR")] = None


def data_command(arguments: list[str]) -> int:
    converts = arguments[:1] == ["convert"]
    arguments = arguments[converts:]
    named = known_flags(arguments, of_class(DataOptions))[0].get("named", "digits")
    preset = population_of(kind_of(named))
    resolved = vars(resolve_population(DataOptions(dataset=named), preset))
    shown = preset | {name: value for name, value in resolved.items() if value is not None}
    options = parse("data", arguments, DataOptions, PAGE, {"dataset": named}, shown=shown)
    look = picture_of(options)
    if converts != (options.out is not None):
        raise errors.refuse("out", options.out or "none", "given to data convert, and to nothing else")
    from fedjax_dp.data import label_counts, save_store, summarise  # loads JAX
    from fedjax_dp.data.disk import check_place
    from fedjax_dp.experiments.population import build_data, notes

    if options.out is not None:
        check_place(options.out)
    options = resolve_population(options, population_of(kind_of(options.dataset)))
    data = build_data(options)
    summary, counts = summarise(data), label_counts(data) if options.plot else None
    for line in notes(options, data):
        Screen().say(line)
    if options.out is not None:
        with Screen().bar("writing", total=1) as show:
            save_store(data, options.out, show)
        Screen().say(f"store in {options.out}: fedjax-dp run --dataset store:{options.out}")
    if options.plot and counts is not None:
        from fedjax_dp.tools.figures.runs import plot_clients  # slow to import, and only needed here

        clients, labels = (None if one is None else one.listed for one in (data.names, data.class_names))
        plot_clients(
            counts, f"{summary.name}, {_partition_text(options)}", options.plot, names=clients, labels=labels, **look
        )
        Screen().say(f"picture in {options.plot}")
    if options.json:
        used = {name: value for name, value in dataclasses.asdict(options).items() if name not in HIDDEN}
        used = {name: value for name, value in used.items() if value is not None}
        return print_json({"options": used, **summary._asdict()})
    print(summary.card(f"{summary.name}, {_partition_text(options)}").text)
    return 0


def _partition_text(options: PopulationConfig) -> str:
    """The partition in words: `partition dirichlet, concentration 0.5, seed 0`."""
    words = [] if options.partition is None else [f"partition {options.partition}"]
    for name in (*(name for name in OPTIONS if name not in TABULATED), "holdout"):
        value = getattr(options, name)
        if value not in (None, "per_class", "equal"):
            shown = (
                f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else value
            )
            words.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join([*words, f"seed {options.seed}"])
