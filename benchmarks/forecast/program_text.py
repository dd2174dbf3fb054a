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
BYTES = {"pred": 1, "bf16": 2, "f16": 2}  # others have their bits in their names

OTHER = "other"  # what belongs to no part

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)(?=, |$)(.*)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_SCOPES = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"\b([a-z]+\d*)\w*\[([\d,]*)\]")


class Shape(NamedTuple):
    """Of an array."""

    kind: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def width(self) -> int:
        """Bytes of a number."""
        bits = re.sub(r"\D", "", self.kind)
        return BYTES.get(self.kind, max(int(bits or 32) // 8, 1))

    @property
    def bytes(self) -> int:
        return self.width * self.size


class Operation(NamedTuple):
    """A line of a program."""

    is_root: bool
    name: str
    shapes: tuple[Shape, ...]  # of its results
    kind: str
    arguments: str  # between its parentheses
    rest: str  # behind them

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @property
    def size(self) -> int:
        """Numbers of its first result."""
        return self.shapes[0].size if self.shapes else 0

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(shape.bytes for shape in self.shapes)

    def named(self, role: str) -> str:
        """The computation that it names so."""
        match = re.search(rf"\b{role}=%?([\w.\-]+)", self.rest)
        return match.group(1) if match else ""


Body = list[Operation]


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


class Program:
    """Computations by name, and the name of the first that is looked at.

    loops  whose end is not in the text that stand around what is looked at, one in another; nothing outside of them is.
    """

    def __init__(self, text: str, loops: int = 1) -> None:
        self.bodies, self.entry = _computations(text)
        self.operations = {each.name: each for body in self.bodies.values() for each in body}
        for _ in range(loops):
            self.entry = self._inside()

    def run(self, name: str = "", times: int = 1, around: Body | None = None) -> Iterator[tuple[Operation, int, Body]]:
        """Every operation that runs, how often, and the body of the loop that it is in, where that has a known end."""
        for operation in self.bodies[name or self.entry]:
            yield operation, times, around or []
            for inner, more in self._called(operation):
                yield from self.run(inner, times * more, self.bodies[inner] if more > 1 else around)

    def parts(self, name: str = "") -> Iterator[Body]:
        """Computations that are run by others."""
        for operation in self.bodies[name or self.entry]:
            for inner, _ in self._called(operation):
                yield self.bodies[inner]
                yield from self.parts(inner)

    def _inside(self) -> str:
        """The body of the loop whose end is not in the text, with its condition; or all, if there is no such loop."""
        loops = [each for each in self.bodies[self.entry] if each.kind == "while" and self._trips(each) == 1]
        if not loops:
            return self.entry
        loop = max(loops, key=lambda each: len(self.bodies[each.named("body")]))
        inside = f"inside {loop.named('body')}"
        self.bodies[inside] = self.bodies[loop.named("body")] + self.bodies[loop.named("condition")]
        return inside

    def _called(self, operation: Operation) -> list[tuple[str, int]]:
        """Computations that an operation runs, and how often."""
        if operation.kind == "while":
            trips = self._trips(operation)
            return [(operation.named("body"), trips), *([(operation.named("condition"), 1)] if trips == 1 else [])]
        if operation.kind == "call":
            return [(operation.named("to_apply"), 1)]
        if operation.kind == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", operation.rest)
            names = [name.strip().lstrip("%") for name in branches.group(1).split(",")] if branches else []
            names = names or [operation.named("true_computation"), operation.named("false_computation")]
            return [(max(names, key=lambda name: len(self.bodies[name])), 1)]  # the longer one
        return []

    def _trips(self, loop: Operation) -> int:
        known = _TRIPS.search(loop.rest)
        if known:
            return int(known.group(1))
        condition = self.bodies.get(loop.named("condition"), [])
        ends = {
            each.name: int(each.arguments) for each in condition if each.kind == "constant" and each.arguments.isdigit()
        }
        compared = [each for each in condition if each.is_root and "direction=LT" in each.rest]
        return next((int(ends[name]) for each in compared for name in each.operands if name in ends), 1)


def counted(program: Program, parts: tuple[str, ...], step: str) -> Counts:
    """Counts by `parts`, names of `jax.named_scope`; `step` is that of the body of the loop over local steps.

    An operation that XLA made of several belongs to the part of the last of them, one of no part to the loop it is in.
    """
    launches: Counter[str] = Counter()
    cycles: Counter[str] = Counter()
    collectives = []
    for operation, times, around in program.run():
        if operation.kind in FREE:
            continue
        part = _part_of(operation, parts)
        if part == OTHER and any(_part_of(other, (step,)) == step for other in around):
            part = step
        launches[part] += times
        cycles[part] += times * _cycles(operation)
        if (name := operation.kind.removesuffix("-start")) in COLLECTIVES:
            largest = max((shape.bytes for shape in operation.shapes), default=0)
            collectives.append(Collective(name, largest, times, part))

    def of_steps(body: Body) -> int:
        return sum(_part_of(operation, (step,)) == step for operation in body)

    steps = max(program.parts(), key=of_steps, default=[])
    steps = steps if of_steps(steps) else []
    per_step = sum(operation.kind not in FREE for operation in steps)
    return Counts(launches, cycles, tuple(collectives), per_step, sum(map(_cycles, steps)))


def _computations(text: str) -> tuple[dict[str, Body], str]:
    """The operations of every computation by name, and the name of the first to run."""
    bodies: dict[str, Body] = {}
    current = entry = ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            current = head.group(2)
            bodies[current] = []
            entry = current if head.group(1) else entry
        elif current and (match := _OPERATION.match(line)):
            root, name, shape, kind, arguments, rest = match.groups()
            shapes = tuple(Shape(of, tuple(int(n) for n in dims.split(",") if n)) for of, dims in _ARRAY.findall(shape))
            bodies[current].append(Operation(bool(root), name, shapes, kind, arguments, rest))
    return bodies, entry


def _cycles(operation: Operation) -> int:
    cost = _CYCLES.search(operation.rest)
    return int(cost.group(1)) if cost else 0


def _part_of(operation: Operation, parts: tuple[str, ...]) -> str:
    scopes = _SCOPES.search(operation.rest)
    return next((part for part in parts if scopes and part in scopes.group(1)), OTHER)
