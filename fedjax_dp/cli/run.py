"""`fedjax-dp run`."""

import json
import pathlib
from typing import Any

from rich.console import Console

from fedjax_dp import devices
from fedjax_dp.cli.options import take_flag, take_option
from fedjax_dp.cli.run_options import asked
from fedjax_dp.execution import distributed
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments import configured
from fedjax_dp.experiments.console import Screen

DESCRIPTION = """Train a federated algorithm and say what privacy it gives.

usage: fedjax-dp run [CONFIG.toml] [OPTIONS] [--json]; --json prints one JSON object on stdout and nothing else;
fedjax-dp run --resume DIR continues a run from its last checkpoint;
with --coordinator HOST:PORT --processes P --process I (or --coordinator auto under SLURM and Kubernetes) it is one of P
processes that share the run, each started with its own I; --timeout SECONDS is how long they wait for each other."""


def run_command(arguments: list[str]) -> int:
    """Start or resume a run, and print its result; of several processes the first prints."""
    as_json, arguments = take_flag(arguments, "--json")
    resume, arguments = take_option(arguments, "--resume", "a run folder")
    group, arguments = _take_group(arguments)
    devices.cache_programs()
    with distributed.joined(group):
        screen = Screen(quiet=not distributed.first())
        said = distributed.together(
            lambda: asked("run", arguments, DESCRIPTION)[0],
            lambda said: {name: str(value) for name, value in said.items()},
        )
        if resume is None:
            result, where = configured.start(configs.resolve(said), screen)
        else:
            result, where = configured.resume(pathlib.Path(resume), said, screen)
        if as_json and distributed.first():
            print(json.dumps(result, allow_nan=False))
        elif distributed.first():
            _print_result(result, where)
    return 0


def _take_group(arguments: list[str]) -> tuple[distributed.Group | None, list[str]]:
    """The processes that share the run, and the other arguments."""
    coordinator, arguments = take_option(arguments, "--coordinator", "HOST:PORT or auto")
    if coordinator is None:
        return None, arguments
    words = {}
    for name in ("processes", "process", "timeout"):
        words[name], arguments = take_option(arguments, f"--{name}", "a whole number")
    return distributed.group_of(coordinator, **words), arguments


def _print_result(result: dict[str, Any], where: pathlib.Path) -> None:
    guarantee, timing, traffic = result["guarantee"], result["timing"], result["traffic"]
    console = Console(highlight=False, soft_wrap=True)
    lines = [
        f"{result['algorithm']} on {result['dataset']}: test accuracy {result['test_accuracy']:.4f}, "
        f"loss {result['test_loss']:.4f} after {result['rounds']} rounds",
        *_measured(result),
        f"privacy   {guarantee['statement']}",
        *(f"          assuming {text}" for text in guarantee["assumptions"] if guarantee["epsilon"] is not None),
        *(f"warning   {text}" for text in guarantee["warnings"]),
        *(f"claim     {claim['statement']}" for claim in guarantee["claims"]),
        f"traffic   {traffic['down']:,} bytes down and {traffic['up']:,} up per client and round, "
        f"{traffic['total']:,.0f} in all",
        f"time      {timing['round_s_median'] * 1e3:.1f} ms a round, {timing['compile_s']:.1f} s to compile, "
        f"{timing['total_s']:.1f} s in all",
        f"folder    {where} (config.toml, metrics.json, result.json, run.png, checkpoints)",
    ]
    for line in lines:
        console.print(line, markup=False)


def _measured(result: dict[str, Any]) -> list[str]:
    """What else is known of the last evaluation; the simulator's own view is labelled so."""
    last, target = result["history"][-1], result["config"].get("target_accuracy")
    clipped, ratio, norm = (last[name] for name in ("clipped", "noise_to_signal", "gradient_norm"))
    lines, probes = [], []
    if result["rounds_to_target"] is not None:
        lines.append(
            f"target    accuracy {target:g} first seen after round {result['rounds_to_target']}, "
            f"{result['bytes_to_target']:,.0f} bytes"
        )
    elif target is not None:
        lines.append(f"target    accuracy {target:g} not reached")
    if last["worst_tenth"] is not None:
        probes.append(
            f"worst tenth of clients {last['worst_tenth']:.4f}, mean {last['client_mean']:.4f}, "
            f"variance {last['client_variance']:.2g}"
        )
    if last["objective"] is not None:
        probes.append(f"objective {last['objective']:.4f}" + ("" if norm is None else f", gradient norm {norm:.3g}"))
    if ratio:
        seen = f"{clipped:.0%} of gradients clipped, " if clipped else ""
        probes.append(f"{seen}noise {ratio:.3g} times the signal")
    return lines + [f"{'probes' if index == 0 else '':<10}{text}" for index, text in enumerate(probes)]
