"""A page about a run for data protection officers: what is promised, to whom, and what is not covered."""

import importlib.resources
import math
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from fedjax_dp import __version__, errors
from fedjax_dp.accounting import Adjacency, Unit, View
from fedjax_dp.accounting.guarantee import FLOAT_NOISE, epsilon_text, mark_of, with_mark
from fedjax_dp.accounting.plain_words import MUCH
from fedjax_dp.display import count, upward
from fedjax_dp.tools.reports import shared
from fedjax_dp.tools.reports.contents import Block, FactList, Listing, Prose, Report, Section

KIND = "privacy statement"
TEXT = tomllib.loads(importlib.resources.files("fedjax_dp.tools.reports").joinpath("statement.toml").read_text("utf-8"))
MANY = 200  # clients in a list
LARGE = math.log(1e6)  # an epsilon whose factor means nothing


def statement_of(path: pathlib.Path) -> Report:
    """The statement about the run in a folder."""
    from fedjax_dp.experiments import run_folder  # loads JAX

    manifest = run_folder.RUN_FOLDER.read(path)
    return statement(run_folder.promise_of(path, manifest), manifest["config"], f"{path.name}, seal {manifest['seal']}")


def statement(guarantee: Mapping[str, Any], config: Mapping[str, Any], source: str) -> Report:
    """The statement from a saved Guarantee and configuration; `source` says where they come from."""
    title = with_mark(f"{config['algorithm']} on {config['dataset']}", mark_of(guarantee))
    lead = TEXT["lead"]["deployment" if mark_of(guarantee) else "run"]
    sections = [Section("The promise", _promise(guarantee))]
    if guarantee["epsilon"] is not None:
        unit = Unit(guarantee["unit"])
        assumed = [shared.sentence(line) for line in guarantee["assumptions"] if line != FLOAT_NOISE]  # in the promise
        assumed += [
            TEXT["public"].format(text=text, value=config[name])
            for name, text in TEXT["constants"].items()
            if config.get(name) not in (None, "records")  # computed from records: a warning says so
        ]
        uncovered = [TEXT["of_unit"][unit.value], *(line.format(unit=unit.value) for line in TEXT["always"])]
        sections += [
            Section("What it means", [FactList([*_terms(guarantee, config), *_by_client(guarantee)], wide=True)]),
            Section("It holds if all of these are true", [Listing(assumed)]),
            Section("What is not covered", [Listing(uncovered)]),
        ]
    origin = [("made from", source), ("written by", f"fedjax-dp {__version__}, fedjax-dp report RUN --statement")]
    sections += [
        Section("Words", [FactList(list(TEXT["words"].items()), wide=True)]),
        Section("Origin", [FactList(origin, wide=True)]),
    ]
    return Report(KIND, title, lead, sections, {})


def _promise(guarantee: Mapping[str, Any]) -> list[Block]:
    simulated = Prose([TEXT["simulated"]["deployment" if mark_of(guarantee) else "run"]], "Note")
    if guarantee["epsilon"] is None:
        reason = guarantee.get("reason")
        line = "Nothing is promised" + (f", because {reason}" if reason else "")
        return [Prose([f"{line}. An attacker may learn with certainty whose data were used."], "Warning"), simulated]
    blocks: list[Block] = [Prose([*map(shared.sentence, shared.plain_words(guarantee))])]
    first = guarantee["statement"] if mark_of(guarantee) else guarantee.get("caveat")
    if first:
        blocks.insert(0, Prose([shared.sentence(first)], "Read first"))
    if guarantee["warnings"]:
        blocks.append(Prose([*map(shared.sentence, guarantee["warnings"])], "Warning"))
    return [*blocks, simulated]


def _terms(guarantee: Mapping[str, Any], config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The terms that epsilon depends on, each number with its meaning."""
    unit, view, delta = Unit(guarantee["unit"]), View(guarantee["view"]), guarantee["delta"]
    low, high = upward(guarantee["epsilon_min"]), upward(guarantee["epsilon"])
    whose = "for every client" if low == high else f"for the least protected client; {low} for the best protected"
    adjacency = Adjacency(guarantee["adjacency"])
    terms = [
        ("protected", TEXT["protected"][unit.value]),
        ("against", f"{shared.capital(str(view))}, and anyone who sees less."),
        ("compared", f"{TEXT['compared'][adjacency.value].format(unit=unit.value)} ({adjacency.value} neighbours)"),
        (
            "epsilon",
            f"{high}, {whose}. {_factor(guarantee['epsilon'], unit)}. At 0 nothing could be learnt about it; "
            f"about 1 is usually called strong; above {MUCH:g} the number alone rules out almost nothing.",
        ),
        (
            "delta",
            f"{delta:g}, that is 1 in {1 / delta:,.0f}: the probability that this factor does not cover. It should be "
            f"far below 1 divided by the number of {unit.value}s.",
        ),
        ("trusted", TEXT["trusted"].get(view.value, TEXT["server"])),
        ("training", f"{count(config['rounds'], 'round')}."),
        ("computed by", f"the accountant {guarantee['accountant']}, which adds up what every noisy step can reveal."),
    ]
    others = [
        f"{View(other['view'])}: "
        + (
            "no promise"
            if other["epsilon"] is None
            else f"{epsilon_text(other['epsilon'])} at delta {other['delta']:g}"
        )
        for other in guarantee["elsewhere"]
    ]
    return [*terms, *([("against others", f"{'; '.join(others)}.")] if others else [])]


def _by_client(guarantee: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every client with its epsilon, where these differ; of very many where to find them."""
    every = [upward(epsilon) for epsilon, alike in guarantee["epsilons"] for _ in range(alike)]
    if len(set(every)) == 1:
        return []
    if len(every) > MANY:
        return [("epsilon of each client", TEXT["clients"])]
    names = guarantee.get("names") or [f"client {number}" for number in range(len(every))]
    return [(f"epsilon of {name}", epsilon) for name, epsilon in zip(names, every, strict=True)]


def _factor(epsilon: float, unit: Unit) -> str:
    """The bound exp(epsilon), rounded up, in a sentence."""
    if epsilon > LARGE:
        return f"Results may become more than a million times as likely because of the {unit.value}"
    factor = math.exp(epsilon)
    shown = f"{math.ceil(factor):,}" if factor >= 100 else f"{math.ceil(factor * 100) / 100:g}"
    return f"No result becomes more than {shown} times as likely because of the {unit.value}"


def markdown(report: Report) -> str:
    """A report of paragraphs, facts and lists as Markdown."""
    lines = [
        f"# {shared.capital(_plain(report.kind))}: {_plain(report.title)}",
        _plain(report.lead),
    ]
    for section in report.sections:
        lines.append(f"## {_plain(section.title)}")
        for block in section.blocks:
            lines += _lines(block)
    return "\n\n".join(lines) + "\n"


def _lines(block: Block) -> list[str]:
    """A block as paragraphs."""
    match block:
        case Prose(lines, tone):
            return [(f"**{tone}:** " if tone else "") + _plain(line) for line in lines]
        case FactList(items):
            return ["\n".join(f"- **{_plain(label)}**: {_plain(value)}" for label, value in items)]
        case Listing(lines):
            return ["\n".join(f"- {_plain(line)}" for line in lines)]
    raise errors.refuse("the block", type(block).__name__, "Prose, FactList or Listing")


def _plain(text: Any) -> str:
    """Text on one line, with the marks of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(str(text).split()))
