"""`fedjax-dp run`."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

from fedjax_dp import devices, errors, folders
from fedjax_dp.accounting.guarantee import NoiseMultipliers, mark_of, spends, with_mark
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.display import count, upward
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.presets import paper_of
from fedjax_dp.options import about, of_class
from fedjax_dp.tasks.measures import Measure, Measures, measures_of, target_of
from fedjax_dp.tools.cli.help import FirstPage
from fedjax_dp.tools.cli.options import Detail, DetailOptions, Switch, known_flags
from fedjax_dp.tools.cli.output import INDENT, print_json, show_lines
from fedjax_dp.tools.cli.run_options import USUAL, parse_configuration
from fedjax_dp.tools.cli.tracking import TrackOptions, lost, trackers_of

if TYPE_CHECKING:
    from fedjax_dp.execution.distributed import ProcessGroup
    from fedjax_dp.tools.cli.tracking import Tracker

PAGE = FirstPage(
    "Train a federated algorithm and report its privacy guarantee.",
    "[CONFIG.toml|RUN_FOLDER] [OPTIONS]",
    {
        "run": "a private run on scikit-learn's digits",
        "run --algorithm dp_fedavg --epsilon 8": "hide whole clients instead of records",
        "run --algorithm fedavg --rounds 20": "the same without privacy",
        "run runs/digits-dpnfl-s0 --epsilon 2": "the first run with a smaller privacy budget",
    },
    {**USUAL, "resume": "runs/first", "json": "", "quiet": ""},
)
FEW = 0.1  # of the gradients
PARTS = (0.25, 0.5, 1.0)  # of the rounds, at which epsilon is shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(DetailOptions, TrackOptions):
    """How a run is carried out, which decides nothing of it.

    Args:
        plain: explain the epsilon in plain words
        resume: folder of an interrupted run, which goes on from its last checkpoint
        coordinator: HOST:PORT of process 0 of several that share the run; auto: as SLURM or Kubernetes say
        processes: number of processes that share the run
        process: number of this process, from 0
        timeout: seconds that processes wait for each other
    """

    plain: Switch = False
    resume: Annotated[str | None, about("", metavar="DIR")] = None
    coordinator: Annotated[str | None, about("", metavar="HOST:PORT")] = None
    processes: Annotated[int | None, about("", default="as the cluster says")] = None
    process: Annotated[int | None, about("", default="as the cluster says")] = None
    timeout: int = 300

    def group(self) -> "ProcessGroup | None":
        """The processes that share the run."""
        if self.coordinator is not None:
            from fedjax_dp.execution.distributed import group_of  # loads JAX

            return group_of(self.coordinator, self.processes, self.process, self.timeout)
        errors.require_left_out(self, ("processes", "process"), "without --coordinator", "add --coordinator")
        return None


def run_command(arguments: list[str]) -> int:
    """Start or resume a run, and print its result; of several processes the first prints.

    What is wrong in the options of a single process is refused before JAX is loaded.
    """
    values, rest = known_flags(arguments, of_class(RunOptions))
    options = RunOptions(**values)
    detail = options.detail

    def overridden() -> dict[str, Any]:
        return parse_configuration("run", rest, PAGE, RunOptions)[0]

    early = overridden() if options.coordinator is None else None
    from fedjax_dp.execution import distributed  # loads JAX
    from fedjax_dp.experiments import configured
    from fedjax_dp.experiments.training import Callbacks

    devices.cache_programs()
    with distributed.join_processes(options.group()):
        screen = Screen(quiet=not distributed.is_first() or detail is Detail.QUIET)
        overrides, trackers = distributed.run_in_agreement(
            lambda: (overridden() if early is None else early, trackers_of(options)),
            lambda made: {name: str(value) for name, value in made[0].items()},
        )
        callbacks = Callbacks(trackers, lost)
        caption = ""
        if options.resume is None:
            config = RunSpec.of(overrides)
            caption = _caption(config)
            result, where = configured.start(config, screen, callbacks)
        else:
            result, where = configured.resume(pathlib.Path(options.resume), overrides, screen, callbacks)
        if options.json and distributed.is_first():
            print_json(result)
        elif distributed.is_first():
            _print_result(result, where, options, caption, trackers)
    return 0


def _caption(config: RunSpec) -> str:
    """Whose delta it is, where nobody gave one."""
    kind = kind_of(config.data.dataset)
    paper = paper_of(kind)
    if "delta" in config.explicit or paper is None:
        return ""
    return f"; it is that of the {paper} paper, the default on {kind}"


def _print_result(
    result: dict[str, Any], where: pathlib.Path, options: RunOptions, caption: str, trackers: "list[Tracker]"
) -> None:
    guarantee, timing, traffic = result["guarantee"], result["timing"], result["traffic"]
    measures = measures_of(result["task"])
    main = measures.main
    reached, baseline = "", result.get("baseline")  # which older folders lack
    if main.name != "test_loss":
        score = "not known" if result[main.name] is None else f"{result[main.name]:.4f}"
        same = "" if baseline is None else f" ({baseline['answer']}: {baseline['value']:.4f})"
        reached = f"{_plainly(main)} {score}{same}, "
    name = with_mark(f"{result['algorithm']} on {result['dataset']}", mark_of(guarantee))
    last, place = result["history"][-1], folders.quote_path(where)
    shared = f"test {reached}loss {result['test_loss']:.4f}"
    done = f"after {count(last['round'], 'round')}"
    headline = f"{name}: {shared} {done}"
    if last["personal_mean"] is not None:
        headline = (
            f"{name}: {_plainly(main)} {last['personal_mean']:.4f} of clients' own models on their own records, worst "
            f"tenth {last['personal_worst_tenth']:.4f}, {done}"
        )
    lines = [
        ("", headline),
        *_own_models(result, shared),
        *_others(result, measures),
        *_target(result, measures),
        *_halt(result),
        *_guessing(result),
        ("privacy", within(guarantee["epsilon"], result["config"].get("epsilon")) + guarantee["statement"]),
        *_meaning(guarantee, options.plain),
        *(("", INDENT + other["statement"]) for other in guarantee["elsewhere"]),
        *(("trusts", text) for text in guarantee["assumptions"] if " is trusted: " in text),
        *(("warning", text + caption * text.startswith("delta ")) for text in guarantee["warnings"]),
        ("folder", str(where)),
        *(("tracked", tracker.place) for tracker in trackers if tracker.place),
        *([] if options.detail is Detail.QUIET else [("next", _next(guarantee, place))]),
    ]
    in_all = f"{traffic['total']:,.0f} in all"
    compiled = f"{timing['compile_s']:.1f} s to compile, {timing['total_s']:.1f} s in all"
    more = [
        *_noise(result),
        *_privacy_by_round(result, place),
        *(("assumes", text) for text in guarantee["assumptions"] if guarantee["epsilon"] is not None),
        *(("claim", claim["statement"]) for claim in guarantee["claims"]),
        *diagnostics_of(result),
        ("traffic", f"{traffic['down']:,} bytes down and {traffic['up']:,} up per client and round, {in_all}"),
        ("time", f"{timing['round_s_median'] * 1e3:.1f} ms a round, {compiled}"),
    ]
    show_lines(lines, more if options.detail is Detail.VERBOSE else ())


def _halt(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What ended the run before its time."""
    from fedjax_dp.experiments.training import describe_early_end  # loads JAX

    spending = result.get("spending")  # folders of before have none
    if spending is None:
        return []
    done, wanted = result["history"][-1]["round"], spending["rounds_wanted"]
    words = describe_early_end(done, wanted, spending["halt"], spending["budget"])
    return [("halted", words)] if words else []


def _privacy_by_round(result: dict[str, Any], place: str) -> list[tuple[str, str]]:
    """Epsilon after a few rounds; the last is that of the Guarantee."""
    spending = result.get("spending")
    if spending is None or not spending["planned"] or spending["halt"] == "rule":  # the Guarantee is of all rounds
        return []
    rounds: int = result["rounds"]
    known: dict[int, float] = dict(spending["planned"])
    chosen = sorted({min(known, key=lambda one: abs(one - share * rounds)) for share in PARTS})
    words = ", ".join(f"{upward(known[at], 3)} after {at:,}" for at in chosen)
    if spending["at_any_time"] is not None:
        words += f"; {upward(spending['at_any_time'], 3)} if results may also prolong the run"
    words = with_mark(f"epsilon {words}", mark_of(result["guarantee"]))
    return [("by round", f"{words}; for every round: fedjax-dp account --ledger {place}")]


def within(epsilon: float | None, budget: Any) -> str:
    """That a budget is met, where the number does not read like it."""
    if epsilon is None or not spends(epsilon, budget) or upward(epsilon) == f"{budget:.4g}":
        return ""
    return f"within {budget:g}: "


def _next(guarantee: dict[str, Any], place: str) -> str:
    """What people do with a run."""
    own = " --own" if guarantee["deployment"] else ""
    played = not Unit(guarantee["unit"]).of_records and guarantee["adjacency"] != Adjacency.ZERO_OUT.value
    attackable = guarantee["epsilon"] is not None and played
    attacked = f", fedjax-dp audit {place}{own} tests its epsilon" if attackable else ""
    return f"fedjax-dp report {place} opens it in a browser{attacked}"


def _meaning(guarantee: dict[str, Any], plain: bool) -> list[tuple[str, str]]:
    """Epsilon in plain words, where they are wanted."""
    if not plain:
        return []
    attack = guarantee.get("attack")  # folders of before have none
    if attack is None and guarantee["epsilon"] is not None:
        return [("means", "unknown; run it again to compute it")]
    if attack is None:
        return [("means", "nothing is guaranteed: an attacker may find out with certainty whose data were used")]
    return [("" if at else "means", INDENT * bool(at) + text) for at, text in enumerate(attack["statement"])]


def _own_models(result: dict[str, Any], shared: str) -> list[tuple[str, str]]:
    """What is printed of the shared model, where clients have their own."""
    if result["history"][-1]["personal_mean"] is not None:
        return [
            ("shared", f"{shared} of the shared model" if result["traffic"]["up"] else "none: clients send nothing")
        ]
    if any(one["view"] == "deployed" for one in (result["guarantee"], *result["guarantee"]["elsewhere"])):
        return [("personal", "clients' own models are not measured; hold out some records of each with --holdout 0.2")]
    return []


def _guessing(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Where nothing was learnt, and what may help."""
    own = result["history"][-1]["personal_mean"] is not None
    if own or result["task"]["name"] != "classes" or result["test_accuracy"] * result["classes"] > 1:
        return []
    remedy = "a higher --epsilon, --batch-size or --cohort-size" if result["guarantee"]["epsilon"] else "other rates"
    return [("warning", f"no better than guessing one of {result['classes']} classes at random; {remedy} may help")]


def _plainly(measure: Measure) -> str:
    """Without saying that it is of the test set."""
    return measure.words.removeprefix("test ")


def _others(result: dict[str, Any], measures: Measures) -> list[tuple[str, str]]:
    """The task's other metrics, and what its records are where that is not plain."""
    others = [one for name, one in measures.tested.items() if name not in (measures.main.name, "test_loss")]
    text = ", ".join(f"{_plainly(one)} {one.in_words(result[one.name])}" for one in others)
    lines = [("also", text)] if text else []
    if result["task"]["name"] == "sequence":
        lines.append(("record", "one stored row, here one sequence; a text cut into several is several records"))
    return lines


def _target(result: dict[str, Any], measures: Measures) -> list[tuple[str, str]]:
    """When the target was reached."""
    wanted, reached = result["config"].get("target"), result["rounds_to_target"]
    if wanted is None:
        return []
    target = target_of(wanted, measures)
    aim = f"{_plainly(target.measure)} {target.value:g}"
    if reached is None:
        return [("target", f"{aim} not reached")]
    return [("target", f"{aim} first seen after round {reached}, {result['bytes_to_target']:,.0f} bytes")]


def _noise(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What the promise was bought with."""
    multiplier = result["guarantee"]["noise_multiplier"]
    if multiplier is None:
        return []
    learnt, clip_norm = result["history"][-1]["learnt_clip_norm"], result["config"].get("clip_norm")
    clip = "" if clip_norm is None else f", clip norm {clip_norm:g}{_changing(result['config'], 'clip')}"
    clip += "" if learnt is None else f" at first, {learnt:.4g} in the last round"
    noise, deployment = _changing(result["config"], "noise"), result["guarantee"].get("deployment")
    text = f"multiplier {NoiseMultipliers(**multiplier)}{noise}{clip}"
    if deployment:
        text += f"; in the {mark_of(result['guarantee'])}, of which {deployment['noise_ratio']:.3g} is simulated"
    return [("noise", text)]


def _changing(config: dict[str, Any], what: str) -> str:
    """How a number of round 0 goes on."""
    schedule = config.get(f"{what}_schedule") or "constant"
    if schedule == "constant":
        return ""
    if schedule == "list":
        return f" at first, times {config[f'{what}_factors']} by round"
    return f" at first, {schedule} to {config[f'{what}_end']:g} times that"


def diagnostics_of(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What else is known of the last evaluation; it is made of the records themselves."""
    last = result["history"][-1]
    lines = ["not private, and not covered by epsilon; only a simulator can know this:"]
    if last["worst_tenth"] is not None:
        lines.append(
            f"worst tenth of clients {last['worst_tenth']:.4f}, mean {last['client_mean']:.4f}, "
            f"variance {last['client_variance']:.2g}"
        )
    if last["objective"] is not None:
        norm = last["gradient_norm"]
        lines.append(f"objective {last['objective']:.4f}" + ("" if norm is None else f", gradient norm {norm:.3g}"))
    if last["clipped"] is not None and result["config"].get("clip_norm") is not None:
        updates = result["guarantee"]["unit"] == Unit.CLIENT.value
        what = f"{last['clipped']:.0%} of {'updates' if updates else 'gradients'} clipped"
        lines.append(f"{what}; {_about_clipping(last['clipped'], updates)}")
    if last["noise_to_signal"]:  # which GPUs take only where it is wanted
        lines.append(
            f"noise is {last['noise_to_signal']:.3g} times the signal; {_about_noise(last['noise_to_signal'])}"
        )
    if len(lines) == 1:
        return []
    return [("", INDENT + text) if index else ("internals", text) for index, text in enumerate(lines)]


def _about_clipping(clipped: float, updates: bool) -> str:
    """What is usual: Abadi et al. 2016 and Andrew et al. 2021 take the median norm, De et al. 2022 clip nearly all."""
    usual = "half is usual (Andrew et al. 2021)"
    if not updates:
        usual = "half is usual (Abadi et al. 2016), as is nearly all with a learning rate to match (De et al. 2022)"
    if clipped > FEW:
        return usual
    return f"{usual}; clipping so few adds more noise than needed: try a lower --clip-norm"


def _about_noise(ratio: float) -> str:
    """It is a ratio of lengths, and noise has as many directions as the model has parameters."""
    usual = "above 1 is usual, as noise has as many directions as the model has parameters, and rounds average it out"
    if ratio <= 1:
        return usual
    return f"{usual}; if training stalls, try a larger --batch-size, --cohort-size or --epsilon"
