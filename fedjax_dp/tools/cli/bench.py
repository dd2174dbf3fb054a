"""`fedjax-dp bench`."""

import dataclasses
from typing import TYPE_CHECKING, Any

from fedjax_dp import devices, errors
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.tools.cli.help import FirstPage
from fedjax_dp.tools.cli.options import PlotOption, PrintOptions, picture_of
from fedjax_dp.tools.cli.output import page, print_json, show_lines
from fedjax_dp.tools.cli.run_options import USUAL, parse_configuration

if TYPE_CHECKING:
    from fedjax_dp.gradients import Explanation
    from fedjax_dp.tools.latency.measurement import Latency

PAGE = FirstPage(
    "Measure a round of a run, and how its time divides over clipping, noise, sampling and the rest.",
    "[CONFIG.toml|RUN_FOLDER] [OPTIONS]",
    {
        "bench": "the default run",
        "bench --algorithm dp_fedavg --cohort-size 20": "another algorithm, a larger cohort",
        "bench --model mlp --turns 15 --plot bench.png": "with a picture; more turns are more certain",
        "bench --devices 1 --json": "on one device, printed as JSON",
    },
    {"turns": "15", "plot": "bench.png", **USUAL, "json": ""},
    "Each part is left out in turn, and the difference is its time. Nothing is trained, and no noise is calibrated.",
)
SHOWN_CHANGES = 2
ABOUT_PARTS = (
    "clipping, noise, sampling, gradient and gather: the time saved by leaving it out too, in this order; server: "
    "measured alone; aggregation: the rest, with the loop over steps; what is small or negative is measurement noise"
)
ABOUT_WAYS = (
    "a record's gradient of a weight is the sum, over the positions where the weight is used, of its input u times the "
    "gradient v of its output; factored: the norm is found from u and v; direct: the gradient is built for every record"
)


@dataclasses.dataclass(frozen=True)
class BenchOptions(PrintOptions, PlotOption):
    """How to measure.

    Args:
        turns: how often each variant of the round is timed
    """

    turns: int = 7


def bench_command(arguments: list[str]) -> int:
    overrides, options, _, _ = parse_configuration("bench", arguments, PAGE, BenchOptions)
    look = picture_of(options)
    errors.require_count("turns", options.turns)
    from fedjax_dp.experiments.build import build_algorithm, build_execution, build_model  # loads JAX
    from fedjax_dp.experiments.population import build_data
    from fedjax_dp.models import explain_gradients
    from fedjax_dp.tools.latency.measurement import measure_round

    devices.cache_programs()
    config = RunSpec.of(overrides)
    with config.naming_defaults():
        data = build_data(config.data)
        config = config.for_clients(data.num_clients)
        model, algorithm = build_model(config, data), build_algorithm(config, data)
    with config.naming_defaults(), Screen().bar("measuring", total=1) as show:
        result = measure_round(
            algorithm,
            data,
            model,
            evaluate_every=config.output.evaluate_every,
            seed=config.data.seed,
            turns=options.turns,
            execution=build_execution(config, algorithm, data),
            show=show,
        )
    how = explain_gradients(model, data)
    name = f"{config.algorithm} on {config.data.dataset}"
    if options.plot:
        from fedjax_dp.tools.latency import plots

        plots.plot_latency(result, name, options.plot, **look)
    if options.json:
        print_json(to_dict(result, config) | {"gradients": how.to_dict()})
    else:
        _print(result, how, config.options.get("batch_size"), name)
    return 0


def to_dict(result: "Latency", config: RunSpec) -> dict[str, Any]:
    from fedjax_dp.experiments import environment

    return result._asdict() | {
        "total_ms": result.total_ms,
        "disturbed": result.is_disturbed,
        "floor": result.floor._asdict() | {"ms": result.floor.ms},
        "changes": [change._asdict() for change in result.changes],
        "config": config.to_dict(),
        "device": environment.device(),
        "versions": environment.versions(),
    }


def _print(result: "Latency", how: "Explanation", batch: int | None, name: str) -> None:
    from fedjax_dp.experiments import environment
    from fedjax_dp.tools.latency.measurement import milliseconds

    console = page()
    floor, device = result.floor, environment.device()
    first = f"{name}: {result.headline}"
    if not result.is_disturbed:
        first += f"; {result.devices} {device['platform']} devices ({device['processor']})"
    console.print(first)
    for part, ms in result.parts.items():
        if part != "evaluation":
            console.print(f"  {part:<12}{milliseconds(ms):>12}  {ms / result.round_ms:5.0%} of a round")
    if ms := result.parts["evaluation"]:
        console.print(f"  {'evaluation':<12}{milliseconds(ms):>12}  a round on top, as the mean over rounds")
    least = (
        f"at least {milliseconds(floor.ms)} a round by this machine's speeds, {floor.ms / result.round_ms:.0%} of it"
    )
    gradients = f"gradients {milliseconds(floor.flops_ms)} ({_number(floor.flops)} operations)"
    noise = f" + noise {milliseconds(floor.normals_ms)} ({_number(floor.normals)} normals)"
    memory = f"memory traffic {milliseconds(floor.bytes_ms)} ({_number(floor.bytes)} bytes) overlaps"
    lines = [
        ("floor", f"{least}: {gradients}{noise if floor.normals else ''}; {memory}"),
        *(
            ("change", f"{change.setting}: {change.description}; saves about {milliseconds(change.saves_ms)}")
            for change in result.changes[:SHOWN_CHANGES]
        ),
        ("gradients", how.summary + (f"; {how.cost(batch):,} bytes a batch" if batch else "")),
    ]
    show_lines(lines)
    for line in how.table:
        console.print(f"  {line}")
    rest = [
        ("", ABOUT_WAYS),
        ("compile", f"{result.compile_s:.1f} s; a second process finds the program on disk"),
        ("parts", ABOUT_PARTS),
    ]
    show_lines(rest)


def _number(count: float) -> str:
    """A count that need not be exact: 32,500 or 2.72 million."""
    for size, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if count >= size:
            return f"{count / size:.3g}{word}"
    return f"{count:,.0f}"
