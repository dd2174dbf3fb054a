"""`fedjax-dp bench`."""

import dataclasses
import json
from typing import Any

from rich.console import Console

from fedjax_dp import devices, errors
from fedjax_dp.cli.options import PlotOption, picture_of, take_flag
from fedjax_dp.cli.run_options import asked_with
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments import report
from fedjax_dp.experiments.build import build_algorithm, build_execution, build_model
from fedjax_dp.experiments.config import RunConfig
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.latency import Latency, latency
from fedjax_dp.experiments.population import build_data
from fedjax_dp.gradients import Explanation
from fedjax_dp.models import explain_gradients

DESCRIPTION = """Measure a round of a run, and where its time goes: the same round with one part after another left out.

usage: fedjax-dp bench [CONFIG.toml] [OPTIONS] [--json]; options are those of fedjax-dp run. Nothing is trained and no
noise is calibrated, which would not change the time. --json prints one JSON object on stdout and nothing else."""
SHOWN_CHANGES = 2


@dataclasses.dataclass(frozen=True)
class BenchOptions(PlotOption):
    """How to measure.

    turns  how often each variant of the round is timed
    """

    turns: int = 7


def bench_command(arguments: list[str]) -> int:
    """Measure and print."""
    as_json, arguments = take_flag(arguments, "--json")
    said, options, _ = asked_with("bench", arguments, DESCRIPTION, BenchOptions)
    look = picture_of(options)
    errors.require_count("turns", options.turns)
    screen = Screen()
    devices.cache_programs()
    config = configs.resolve(said)
    with config.naming_defaults():
        data = build_data(config.data)
        model, algorithm = build_model(config, data), build_algorithm(config, data)
    with config.naming_defaults(), screen.bar("measuring", total=1) as show:
        found = latency(
            algorithm,
            data,
            model,
            evaluate_every=config.output.evaluate_every,
            seed=config.data.seed,
            turns=options.turns,
            execution=build_execution(config, algorithm, data),
            show=show,
        )
    how = explain_gradients(model)
    name = f"{config.algorithm} on {config.data.dataset}"
    if options.plot:
        from fedjax_dp.experiments import plots

        plots.plot_latency(found, name, options.plot, **look)
    if as_json:
        print(json.dumps(to_dict(found, config) | {"gradients": how.to_dict()}, allow_nan=False))
    else:
        _print(found, how, config.options.get("batch_size"), name)
    return 0


def to_dict(found: Latency, config: RunConfig) -> dict[str, Any]:
    """The JSON object of a measurement."""
    return found._asdict() | {
        "total_ms": found.total_ms,
        "disturbed": found.disturbed,
        "floor": found.floor._asdict() | {"ms": found.floor.ms},
        "changes": [change._asdict() for change in found.changes],
        "config": config.to_dict(),
        "device": report.device(),
        "versions": report.versions(),
    }


def _print(found: Latency, how: Explanation, batch: int | None, name: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    floor, device, told = found.floor, report.device(), found.told
    lines = [f"{name}: {found.headline}"]
    if not found.disturbed:
        lines[0] += f"; {found.devices} {device['platform']} devices ({device['processor']})"
    lines += [f"  {part:<12}{told(ms):>12}  {ms / found.total_ms:5.0%}" for part, ms in found.parts.items()]
    lines += [
        f"floor     {told(floor.ms)}, {floor.ms / found.round_ms:.0%} of the round: gradients {told(floor.flops_ms)} "
        f"({floor.flops:.3g} operations), normals {told(floor.normals_ms)} ({floor.normals:.3g}), memory, meanwhile, "
        f"{told(floor.bytes_ms)} ({floor.bytes:.3g} bytes), at the speeds of this machine",
        *(
            f"change    {change.setting}: {change.told}; saves about {told(change.saves_ms)}"
            for change in found.changes[:SHOWN_CHANGES]
        ),
        f"gradients {how.summary}" + (f"; {how.cost(batch):,} bytes a batch" if batch else ""),
        *(f"  {line}" for line in how.table),
        f"compile   {found.compile_s:.1f} s; a second process finds the program on disk",
        "parts are differences between rounds that lack one more part each, so they add up; below 0: within the "
        "spread; aggregation is what is left at last, the loop over steps included",
    ]
    for line in lines:
        console.print(line, markup=False)
