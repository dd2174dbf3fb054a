"""`fedjax-dp bench`."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from fedjax_dp import devices, errors
from fedjax_dp.cli.options import Detail, Device, PlotOption, PrintOptions, picture_of
from fedjax_dp.cli.output import page, show_lines
from fedjax_dp.cli.run_options import configured_by
from fedjax_dp.experiments.config import Overrides, RunSpec
from fedjax_dp.experiments.console import Screen

if TYPE_CHECKING:
    from fedjax_dp.figures.canvas import Look
    from fedjax_dp.forecast.compiled import Compiled
    from fedjax_dp.forecast.latency import Latency
    from fedjax_dp.gradients import Explanation

DESCRIPTION = """Measure a round of a run, and where its time goes: the same round with one part after another left out.

usage: fedjax-dp bench [CONFIG.toml] [OPTIONS] [--json]; options are those of fedjax-dp run. Nothing is trained and no
noise is calibrated, which would not change the time. --json prints one JSON object on stdout and nothing else.

--compile-for h200 (h100, a100, v5e, v5p, v6e) measures nothing: the round is compiled for that accelerator, which need
not be here, and what is printed is read off the program: launches or cycles, memory, exchanges between --devices N (1
unless given), and for one h200 the time by a model of its kernels. Records are on the devices."""
MEASURING = ("turns", "evaluate_every")  # mean nothing where nothing runs
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
        compile_for: compile for this accelerator instead, see above
    """

    turns: int = 7
    compile_for: Device | None = None


def bench_command(arguments: list[str]) -> int:
    """Measure, or compile for an accelerator, and print."""
    overrides, options, flagged, _ = configured_by("bench", arguments, DESCRIPTION, BenchOptions)
    look = picture_of(options)
    errors.require_count("turns", options.turns)
    if options.compile_for is not None:
        for name in MEASURING:
            if name in flagged:
                value = (overrides | vars(options))[name]
                raise errors.refuse(name, value, "left out with --compile-for", "as nothing is measured")
        return compile_for(overrides, options, look)
    return measure(overrides, options, look)


def measure(overrides: Overrides, options: BenchOptions, look: "Look") -> int:
    """Measure and print."""
    from fedjax_dp.experiments.build import build_algorithm, build_execution, build_model  # loads JAX
    from fedjax_dp.experiments.population import build_data
    from fedjax_dp.forecast.latency import latency
    from fedjax_dp.models import explain_gradients

    devices.cache_programs()
    config = RunSpec.of(overrides)
    with config.naming_defaults():
        data = build_data(config.data)
        model, algorithm = build_model(config, data), build_algorithm(config, data)
    with config.naming_defaults(), Screen().bar("measuring", total=1) as show:
        result = latency(
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
        from fedjax_dp.forecast import plots

        plots.plot_latency(result, name, options.plot, **look)
    if options.json:
        print(json.dumps(to_dict(result, config) | {"gradients": how.to_dict()}, allow_nan=False))
    else:
        _print(result, how, config.options.get("batch_size"), name)
    return 0


def compile_for(overrides: Overrides, options: BenchOptions, look: "Look") -> int:
    """Compile for a target and print."""
    import jax

    from fedjax_dp.experiments import environment
    from fedjax_dp.experiments.build import build_algorithm, build_model, check_execution, records_on_host
    from fedjax_dp.experiments.population import build_data
    from fedjax_dp.forecast.compiled import compiled_round
    from fedjax_dp.forecast.targets import target_of

    target = target_of(str(options.compile_for))
    jax.config.update("jax_platforms", "cpu")  # nothing runs on what else may be here
    config = RunSpec.of(overrides)
    execution = config.execution
    with config.naming_defaults(), Screen().bar(f"compiling for {target.name}", total=1):
        data = build_data(config.data)
        algorithm = build_algorithm(config, data)
        check_execution(execution, algorithm, data)
        if records_on_host(config, algorithm):
            wanted = "devices with --compile-for, which compiles no other round"
            raise errors.refuse("records", "host", wanted, "add --records devices")
        result = compiled_round(
            algorithm,
            data,
            build_model(config, data),
            target=target.name,
            devices=1 if execution.devices == "auto" else int(execution.devices),
            model_devices=execution.model_devices,
            chunk_size=execution.chunk_size,
            parts=execution.deterministic,
        )
    name = f"{config.algorithm} on {config.data.dataset}"
    if options.plot:
        from fedjax_dp.forecast import plots

        plots.plot_compiled(result, name, options.plot, **look)
    if options.json:
        print(json.dumps(result.to_dict() | {"config": config.to_dict(), "versions": environment.versions()}))
    else:
        _print_compiled(result, name)
    if not result.fits:
        needed, there = f"{result.needed_bytes:,} bytes", f"at most the {target.memory:,} of a {target.name}"
        remedy = "lower chunk_size, microbatch or batch_size, or take more devices"
        raise errors.refuse("memory of a device", needed, there, remedy)
    return 0


def _print_compiled(cost: "Compiled", name: str) -> None:
    console = page()
    unit, counts = ("cycles", cost.cycles) if cost.cycles else ("launches", cost.launches)
    step = cost.step_cycles if cost.cycles else cost.step_launches
    several = "" if cost.devices == 1 else f" on each of {cost.devices} devices"
    about = "" if cost.predicted_ms is None else f": about {cost.predicted_ms:.3g} ms a round, most of it {cost.bound}"
    lines = [
        f"{name}, compiled for {cost.target.name}, nothing is measured{about}",
        *(f"  {what:<12}{ms:9.3f} ms  {ms / (cost.predicted_ms or 1):5.0%}" for what, ms in cost.times_ms.items()),
        cost.about_time,
        f"{unit}: {sum(counts.values()):,} a round{several}, {step:,} a local step",
        *(f"  {part:<12}{count:12,}  {count / sum(counts.values()):5.0%}" for part, count in counts.items()),
    ]
    if cost.traffic is not None:
        lines.append(
            f"kernels   {_number(cost.traffic.bytes)} bytes read and written, {_number(cost.traffic.operations)} "
            f"operations of products, {_number(cost.traffic.normals)} normals a round{several}"
        )
    lines += [
        f"at least  {_number(cost.work.bytes)} bytes, {_number(cost.work.flops)} operations, "
        f"{_number(cost.work.normals)} normals a round, by what it computes",
        f"memory    {cost.needed_bytes / 1e9:.3g} GB of {cost.target.memory / 1e9:.3g}: records and state "
        f"{cost.argument_bytes / 1e9:.3g}, temporary {cost.temporary_bytes / 1e9:.3g}; at once {cost.at_once:,} of "
        "a cohort's clients",
    ]
    if cost.devices > 1:
        listed = ", ".join(f"{one.times} x {one.kind} of {one.bytes:,} bytes" for one in cost.collectives)
        lines.append(f"exchanges {listed or 'none'}")
    for line in lines:
        console.print(line)


def to_dict(result: "Latency", config: RunSpec) -> dict[str, Any]:
    """The JSON object of a measurement."""
    from fedjax_dp.experiments import environment

    return result._asdict() | {
        "total_ms": result.total_ms,
        "disturbed": result.disturbed,
        "floor": result.floor._asdict() | {"ms": result.floor.ms},
        "changes": [change._asdict() for change in result.changes],
        "config": config.to_dict(),
        "device": environment.device(),
        "versions": environment.versions(),
    }


def _print(result: "Latency", how: "Explanation", batch: int | None, name: str) -> None:
    from fedjax_dp.experiments import environment
    from fedjax_dp.forecast.latency import milliseconds

    console = page()
    floor, device = result.floor, environment.device()
    first = f"{name}: {result.headline}"
    if not result.disturbed:
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
    show_lines(lines, (), (), Detail.USUAL)
    for line in how.table:
        console.print(f"  {line}")
    rest = [
        ("", ABOUT_WAYS),
        ("compile", f"{result.compile_s:.1f} s; a second process finds the program on disk"),
        ("parts", ABOUT_PARTS),
    ]
    show_lines(rest, (), (), Detail.USUAL)


def _number(count: float) -> str:
    """A count that need not be exact: 32,500 or 2.72 million."""
    for size, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if count >= size:
            return f"{count / size:.3g}{word}"
    return f"{count:,.0f}"
