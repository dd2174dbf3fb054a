"""What a program compiled for an accelerator does, counted in its text: launches, cycles, sums over devices.

On a GPU every operation that is no mere name for memory is one launch. On a TPU the compiler writes the cycles beside
each operation. Operations of a loop count as often as it runs: as often as XLA says, or as the condition compares with.
A loop whose end is not in the text is one over rounds, or stands around that: the innermost body is a round.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

NAMES = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id")
CALLS = ("while", "call", "conditional")
ENDS = ("copy-done", "all-reduce-done", "all-gather-done", "collective-permute-done", "async-done", "slice-done")
FREE = frozenset((*NAMES, *CALLS, *ENDS, "replica-id"))
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}

OTHER = "other"  # what belongs to no part

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) ([\w\-]+)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_SCOPES = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


class Collective(NamedTuple):
    """Devices that wait for one another."""

    kind: str
    bytes: int  # of its result
    times: int  # a round
    part: str


class Counts(NamedTuple):
    """What a program does, once through (one round)."""

    launches: Counter[str]  # by part
    cycles: Counter[str]  # by part, on a TPU
    collectives: tuple[Collective, ...]
    per_step: int  # launches of a local step
    step_cycles: int


def counted(text: str, parts: tuple[str, ...], step: str, loops: int = 1) -> Counts:
    """Counts by `parts`, names of `jax.named_scope`; `step` is that of the body of the loop over local steps.

    loops  whose end is not in the text that stand around what is counted, one in another; nothing outside of them is.
    An operation that XLA made of several belongs to the part of the last of them, one of no part to the loop it is in.
    """
    bodies, entry = _computations(text)
    for _ in range(loops):
        entry = _inside(bodies, entry)
    launches: Counter[str] = Counter()
    cycles: Counter[str] = Counter()
    collectives = []
    for line, times, around in _run(bodies, entry, 1, []):
        shape, kind = _launched(line)
        if not kind:
            continue
        cost = _CYCLES.search(line)
        part = _part_of(line, parts)
        if part == OTHER and any(_part_of(other, (step,)) == step for other in around):
            part = step
        launches[part] += times
        cycles[part] += times * int(cost.group(1)) if cost else 0
        if (name := kind.removesuffix("-start")) in COLLECTIVES:
            collectives.append(Collective(name, _bytes(shape), times, part))

    def of_steps(body: list[str]) -> int:
        return sum(_part_of(line, (step,)) == step for line in body)

    steps = max(_bodies(bodies, entry), key=of_steps, default=[])
    steps = steps if of_steps(steps) else []
    spent = sum(int(cost.group(1)) for cost in map(_CYCLES.search, steps) if cost)
    return Counts(launches, cycles, tuple(collectives), sum(bool(_launched(line)[1]) for line in steps), spent)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of every computation by name, and the name of the first to run."""
    bodies: dict[str, list[str]] = {}
    current = entry = ""
    for line in text.splitlines():
        head = _HEAD.match(line.rstrip())
        if head:
            current = head.group(2)
            bodies[current] = []
            entry = current if head.group(1) else entry
        elif current:
            bodies[current].append(line)
    return bodies, entry


def _inside(bodies: dict[str, list[str]], entry: str) -> str:
    """The body of the loop whose end is not in the text, with its condition; all of it where there is no such loop."""
    loops = [line for line in bodies[entry] if " while(" in line and _trips(bodies, line) == 1]
    if not loops:
        return entry
    body, condition = max(
        ((_named(line, "body"), _named(line, "condition")) for line in loops), key=lambda names: len(bodies[names[0]])
    )
    inside = f"inside {body}"
    bodies[inside] = bodies[body] + bodies[condition]
    return inside


def _run(
    bodies: dict[str, list[str]], name: str, times: int, around: list[str]
) -> Iterator[tuple[str, int, list[str]]]:
    """Every line that runs, how often, and the body of the loop that it is in, where that has a known end."""
    for line in bodies[name]:
        yield line, times, around
        for inner, more in _called(bodies, line):
            yield from _run(bodies, inner, times * more, bodies[inner] if more > 1 else around)


def _bodies(bodies: dict[str, list[str]], name: str) -> Iterator[list[str]]:
    """The lines of what is run by others."""
    for line in bodies[name]:
        for inner, _ in _called(bodies, line):
            yield bodies[inner]
            yield from _bodies(bodies, inner)


def _launched(line: str) -> tuple[str, str]:
    """Shape and kind of an operation that is launched; empty for other lines."""
    operation = _OPERATION.match(line)
    if operation is None or operation.group(2) in FREE:
        return "", ""
    return operation.group(1), operation.group(2)


def _called(bodies: dict[str, list[str]], line: str) -> list[tuple[str, int]]:
    """Computations that a line runs, and how often."""
    operation = _OPERATION.match(line)
    kind = operation.group(2) if operation else ""
    if kind == "while":
        trips = _trips(bodies, line)
        return [(_named(line, "body"), trips), *([(_named(line, "condition"), 1)] if trips == 1 else [])]
    if kind == "call":
        return [(_named(line, "to_apply"), 1)]
    if kind == "conditional":
        branches = re.search(r"branch_computations=\{([^}]*)\}", line)
        names = branches.group(1).split(",") if branches else []
        named = [name.strip().lstrip("%") for name in names] or [
            _named(line, "true_computation"),
            _named(line, "false_computation"),
        ]
        return [(max(named, key=lambda name: len(bodies[name])), 1)]  # the longer one
    return []


def _named(line: str, role: str) -> str:
    match = re.search(rf"{role}=%?([\w.\-]+)", line)
    return match.group(1) if match else ""


def _trips(bodies: dict[str, list[str]], line: str) -> int:
    known = _TRIPS.search(line)
    if known:
        return int(known.group(1))
    condition = bodies.get(_named(line, "condition"), [])
    compared = next((text for text in condition if "direction=LT" in text and "ROOT" in text), "")
    for constant in re.finditer(r"%?([\w.\-]+) = s32\[\]\S* constant\((\d+)\)", "\n".join(condition)):
        if re.search(rf"%{re.escape(constant.group(1))}\b", compared):
            return int(constant.group(2))
    return 1


def _part_of(line: str, parts: tuple[str, ...]) -> str:
    scopes = _SCOPES.search(line)
    return next((part for part in parts if scopes and part in scopes.group(1)), OTHER)


def _bytes(shape: str) -> int:
    arrays = [match.groups() for match in _ARRAY.finditer(shape)]
    sizes = [BYTES.get(kind, 4) * math.prod(map(int, filter(None, dims.split(",")))) for kind, dims in arrays]
    return max(sizes, default=0)
