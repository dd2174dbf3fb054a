"""Sections that several kinds of reports share: the Guarantee and its assumptions, configuration, versions, device."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fedjax_dp.accounting import Unit, View
from fedjax_dp.accounting.guarantee import EarlierPhase, NoiseMultipliers, epsilon_text, mark_of, spends, with_mark
from fedjax_dp.accounting.plain_words import at_most
from fedjax_dp.display import upward
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures.tables import runs as tables
from fedjax_dp.tools.reports import charts
from fedjax_dp.tools.reports.contents import Block, FactList, Grid, Listing, Prose, Section, in_words, percent

T = TypeVar("T")
UNITS = {unit.value: f"one {unit}" for unit in Unit}
DRAWN = 500  # rows of a curve
LONG_VERDICTS = {
    "holds": "holds: valid for this run",
    "conditional": "conditional: see the reason",
    "heuristic": "heuristic: not proved",
    "wrong": "wrong: contradicted",
}


def promise(guarantee: Mapping[str, Any]) -> list[Block]:
    """The Guarantee as a sentence, what an attacker can still learn in plain words, and its warnings."""
    blocks: list[Block] = [Prose([sentence(guarantee["statement"])])]
    if plain := plain_words(guarantee):
        blocks.append(Prose([" ".join(map(sentence, plain))], "In plain words"))
    if guarantee["warnings"]:
        blocks.append(Prose([sentence(line) for line in guarantee["warnings"]], "Warning"))
    return blocks


def plain_words(guarantee: Mapping[str, Any]) -> list[str]:
    """What an attacker can still learn, if it was computed: audits use epsilon itself."""
    attack = guarantee.get("attack")
    return [] if attack is None else list(attack["statement"])


def sentence(line: str) -> str:
    """A line with a capital and a full stop."""
    return capital(line) if line.endswith((".", "!", "?")) else f"{capital(line)}."


def tiles(guarantee: Mapping[str, Any], budget: Any = None) -> list[tuple[str, str, str]]:
    """Epsilon and delta with explanations; an epsilon that uses up one common budget is shown as within it."""
    if guarantee["epsilon"] is None:
        return [("epsilon", "∞", "no privacy")]
    unit = UNITS.get(guarantee["unit"], str(guarantee["unit"]))
    alone = "; read its caveat" if guarantee.get("caveat") else ""
    attack = guarantee.get("attack")
    best: list[tuple[str, str, str]] = []
    if attack is not None:
        best = [("attacker's best guess", f"≤ {at_most(attack['right'])}", "correct, where blind guessing gives 50%")]
    shown, exactly = upward(guarantee["epsilon"]), ""
    if spends(guarantee["epsilon"], budget):
        shown, exactly = f"within {budget:g}", f"{shown} "
    return [
        ("epsilon", shown, with_mark(f"{exactly}for {unit}, {guarantee['adjacency']}{alone}", mark_of(guarantee))),
        ("delta", f"{guarantee['delta']:g}", "probability that epsilon does not cover"),
        *best,
    ]


def guarantee_sections(guarantee: Mapping[str, Any]) -> list[Section]:
    """Terms, assumptions, and what theorems of papers claim about the same run."""
    if guarantee["epsilon"] is None:
        reason = guarantee.get("reason")
        why = f"Nothing is promised, because {reason}." if reason else "Nothing is promised."
        return [Section("What the promise depends on", [Prose([why])])]
    terms = [
        ("protected", UNITS.get(guarantee["unit"], guarantee["unit"])),
        ("neighbours", guarantee["adjacency"]),
        ("against", str(View(guarantee["view"]))),
        ("accountant", guarantee["accountant"]),
        ("epsilon of clients", spread(guarantee)),
    ]
    if guarantee.get("noise_multiplier") is not None:
        noise = str(NoiseMultipliers(**guarantee["noise_multiplier"]))
        terms.append(("noise multiplier", with_mark(noise, mark_of(guarantee))))
    if deployment := guarantee.get("deployment"):
        own = "infinite" if guarantee["own"] is None else upward(guarantee["own"])
        ratio = f"{deployment['noise_ratio']:.3g} of the deployment's noise"
        terms.append(("epsilon of this run", f"{own}, with {ratio}; the promise is about the deployment"))
    before = [EarlierPhase(**phase) for phase in guarantee.get("phases") or ()]
    terms += [("phase before", f"{phase.in_words()}; {phase.members}") for phase in before]
    if guarantee.get("alone") is not None:
        terms.append(("this run alone", epsilon_text(guarantee["alone"])))
    blocks: list[Block] = [FactList(terms, wide=True)]
    if guarantee["assumptions"]:
        blocks += [Prose(["It holds if all of these are true:"]), Listing(guarantee["assumptions"])]
    if guarantee["claims"]:
        rows = [
            [
                claim["source"],
                "no epsilon" if claim["epsilon"] is None else f"{upward(claim['epsilon'])} at delta {claim['delta']:g}",
                LONG_VERDICTS.get(claim["verdict"], claim["verdict"]),
                claim["reason"],
            ]
            for claim in guarantee["claims"]
        ]
        columns = ["theorem", "epsilon", "verdict", "reason"]
        grid = Grid("Claims of papers about this run", columns, rows, folded=True)
        blocks.append(grid)
    return [Section("What the promise depends on", blocks)]


def spread(guarantee: Mapping[str, Any]) -> str:
    names = ("epsilon_min", "epsilon_median", "epsilon_max")
    low, middle, high = (guarantee[name] for name in names)
    if upward(low) == upward(high):
        return f"{upward(high)} for each"
    return f"smallest {upward(low)}, median {upward(middle)}, largest {upward(high)}"


def setting(config: Mapping[str, Any], about: Mapping[str, Any], caption: str = "Configuration") -> Section:
    """The full configuration, and the versions and the device, which are in `about`."""
    set_fields = {name: value for name, value in config.items() if value is not None}
    rows = [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in set_fields.items()]
    blocks: list[Block] = []
    if rows:
        blocks.append(Grid(caption, ["field", "value"], rows, folded=True))
    versions, device = about.get("versions") or {}, about.get("device") or {}
    made = [("versions", ", ".join(f"{name} {number}" for name, number in versions.items()))] if versions else []
    made += [("machine", machine(device))] if device else []
    if made:
        blocks.append(FactList(made, wide=True))
    return Section("Configuration and versions", blocks)


def common(configurations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields that are equal in all configurations."""
    first = configurations[0] if configurations else {}
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in configurations)}


def machine(device: Mapping[str, Any]) -> str:
    """`2 cpu devices, AMD EPYC, 2 cores`."""
    kind = device.get("kind") or device.get("platform")
    words = [f"{device.get('count')} {kind} device" + "s" * (device.get("count") != 1)]
    words += [str(device["processor"])] if device.get("processor") else []
    words += [f"{device['cores']} cores"] if device.get("cores") else []
    return ", ".join(words)


def thin_rows(rows: Sequence[T], most: int = DRAWN) -> list[T]:
    """At most `most` rows, evenly spaced, with the first and the last."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(step * place)] for place in range(most)]


def metric_caption(rows: Sequence[Mapping[str, Any]], words: str) -> str:
    """The metric, and the records it is measured on."""
    held = tables.last_value(rows, "client_mean") is not None
    return f"{capital(words)} on {'records that clients hold out' if held else 'public test data'}."


def capital(words: str) -> str:
    """Words with a capital first letter."""
    return words[:1].upper() + words[1:]


def axis_of(field: str, measure: Measure, title: str, whole: bool = False) -> charts.Spec:
    """A channel of a metric; `whole`: its whole range, if it is a share."""
    if not measure.share:
        return charts.axis(field, title + (f" ({measure.unit})" if measure.unit else ""), zero=False)
    return charts.axis(field, title, ".0%", zero=whole, **({"domain": [0, 1]} if whole else {}))


def number(measure: Measure, value: float | None) -> str:
    """A metric as a tile shows it."""
    return percent(value) if measure.share else in_words(value)


def format_of(measure: Measure) -> str:
    """The D3 format of a metric in tooltips."""
    return ".2%" if measure.share else ".4g"
