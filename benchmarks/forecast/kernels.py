"""The time of a program on a GPU, from what each of its kernels reads, writes and computes.

A kernel takes a fixed time, and the cubic norm of the times of what runs side by side in it: bytes, products, normals,
and branches that code as XLA writes it has. Of operands it reads what its results need of them: slices and gathers
what they take, in-place updates what is new, nothing twice, as caches hold it. The speeds are fitted by hand to the
kernels of seven rounds on one NVIDIA H200 (`benchmarks/results/h200`), so they hold for code of kinds that are there; a
convolution of a library, which none of them had, counts by its bytes alone.
"""

import math
import re
from collections import defaultdict
from typing import NamedTuple

from forecast.program_text import FREE, Operation, Program

CALIBRATED = "h200"
PROFILED_WITHIN, OTHERS_WITHIN = 0.08, 0.35  # of the seven rounds; of others that were measured
POWER = 3  # of the norm: of two times alike, a quarter more than one

LAUNCH_US, REDUCTION_US = 1.6, 2.2  # a kernel that does nothing, and the gap before it
BYTES = 4.1e6  # a microsecond, as everything below
COLUMN_BYTES = 2.4e6  # sums over an axis that is not the last
PRODUCT_BYTES, THIN_BYTES = 3.5e6, 2.0e6  # products, and those of at most 16 outputs on a side, one for each client
EXACT = ((64, 40e6), (33, 30e6), (0, 18e6))  # operations of float32 products, by the shorter side
TENSOR = 150e6  # of products in TF32; assumed, as none that was measured is bound by it
NORMALS = 0.18e6
PADDED, PADDED_SUM = 0.17e6, 0.37e6  # numbers of vectors put together by pads: stored, or added up
PIECES, SHORT_PIECES = 5.0e6, 1.5e6  # numbers times pieces of a concatenation; pieces shorter than 32
FEW = 4096  # numbers whose branches nobody notices
TERM_US = 0.0065  # of a product's sum, one after another
DRAWN_US = 0.00115  # of a number of a row that one block draws and adds up
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # in place: the operand that is new
WHOLE = ("reduce", "concatenate", "dot", *UPDATES)  # of whose operands as large a share is needed as of the result


class Product(NamedTuple):
    """Problems of one kernel, and their sides."""

    problems: int
    rows: int
    columns: int
    terms: int  # of each sum
    exact: bool  # in float32

    @property
    def us(self) -> float:
        """At full speed, in tiles of 16."""
        sides = (16 * math.ceil(side / 16) for side in (self.rows, self.columns, self.terms))
        speed = next(speed for side, speed in EXACT if min(self.rows, self.columns) >= side)
        return 2.0 * self.problems * math.prod(sides) / (speed if self.exact else TENSOR)


class Kernel:
    """What one kernel does, and microseconds of each of what runs side by side in it."""

    def __init__(self) -> None:
        self.read: dict[str, float] = {}  # bytes, by operand
        self.written = self.normals = 0.0
        self.products: list[Product] = []
        self.joined: list[float] = []  # concatenations
        self.padded = 0.0  # numbers of a vector put together by pads
        self.summed = 0  # numbers of the longest sum
        self.reduces = False

    @property
    def bytes(self) -> float:
        return sum(self.read.values()) + self.written

    @property
    def fixed(self) -> float:
        return REDUCTION_US if self.reduces else LAUNCH_US

    @property
    def parts(self) -> dict[str, float]:
        read, speed = sum(self.read.values()), BYTES
        if self.products:
            first, sides = self.products[0], [min(one.rows, one.columns) for one in self.products]
            thin = max(sides) <= 16 and first.rows * first.columns <= 1024 and self.written < 0.05 * read
            speed = THIN_BYTES if thin else PRODUCT_BYTES
        elif self.reduces and 8 < self.summed < 256 and self.written < 0.1 * read:
            speed = COLUMN_BYTES
        padded = PADDED_SUM if self.reduces and self.written < 0.2 * read else PADDED
        row = DRAWN_US * self.summed if self.reduces and self.normals else 0.0
        return {
            "memory": self.bytes / speed,
            "operations": _norm(sum(one.us for one in self.products), *(TERM_US * one.terms for one in self.products)),
            "normals": _norm(self.normals / NORMALS, row),
            "branches": _norm(self.padded / padded, *self.joined),
        }

    def add(self, inner: "Kernel") -> None:
        """What a part of it does, but for memory."""
        self.normals += inner.normals
        self.products += inner.products
        self.joined += inner.joined
        self.padded, self.summed = max(self.padded, inner.padded), max(self.summed, inner.summed)


class Traffic(NamedTuple):
    """What the kernels of a program do, once through (one round)."""

    bytes: float  # read and written
    operations: float  # of products
    normals: float
    times_ms: dict[str, float]  # on an H200: of launches, and of kernels by what takes longest in them


def traffic(program: Program) -> Traffic:
    """What the kernels of a program do, all together."""
    moved = operations = normals = 0.0
    spent = defaultdict[str, float](float)
    for operation, times, _ in program.run():
        if operation.kind in FREE:
            continue
        kernel = kernel_of(program, operation)
        parts = kernel.parts
        moved, normals = moved + times * kernel.bytes, normals + times * kernel.normals
        operations += 2.0 * times * sum(math.prod(one[:4]) for one in kernel.products)
        spent["launches"] += 1e-3 * times * kernel.fixed
        spent[max(parts, key=lambda name: parts[name])] += 1e-3 * times * _norm(*parts.values())
    return Traffic(moved, operations, normals, dict(spent))


def _norm(*times: float) -> float:
    return float(sum(each**POWER for each in times) ** (1 / POWER))


def kernel_of(program: Program, operation: Operation) -> Kernel:
    """What an operation does that is launched."""
    if operation.kind == "fusion":
        kernel = _fused(program, operation.named("calls"))
        kernel.reduces = "kind=kInput" in operation.rest and not kernel.products
        return kernel
    kernel, operands = Kernel(), [program.operations[name] for name in operation.operands if name in program.operations]
    kernel.read = {each.name: float(each.bytes) for each in operands}
    kernel.written = sum(shape.bytes for shape in operation.shapes if shape.kind != "s8")  # but for room to work in
    if operation.kind == "dot" or "lhs_contracting_dim" in operation.rest:
        kernel.products = [_product(operation, operands[0], operands[1])]
    return kernel


def _fused(program: Program, name: str) -> Kernel:
    """What the operations of a computation do as one kernel: what is needed of them, from the last to the first."""
    body, by = program.bodies[name], program.operations
    draws = sum(each.kind in ("xor", "shift-right-logical") for each in body) >= 20  # Threefry
    kernel, needed, in_place = Kernel(), defaultdict[str, float](float), set()
    root = next(each for each in body if each.is_root)
    for end in [by[name] for name in root.operands] if root.kind == "tuple" else [root]:
        core = end
        while core.kind in ("bitcast", "copy"):
            core = by[core.operands[0]]
        if core.kind in UPDATES:
            in_place.add(core.name)
        kernel.written += by[core.operands[UPDATES[core.kind]]].bytes if core.kind in UPDATES else end.bytes
        needed[end.name] += end.size
    for each in reversed(body):
        count = min(needed[each.name], each.size)
        operands = [by[name] for name in each.operands]
        if not count or each.kind == "tuple":
            continue
        if each.kind == "parameter":
            kernel.read[each.arguments] = count * each.shapes[0].width
        elif each.kind == "fusion":
            inner = _fused(program, each.named("calls"))
            kernel.add(inner)
            for number, read in inner.read.items():
                needed[operands[int(number)].name] += read / operands[int(number)].shapes[0].width
        else:
            share = count / each.size
            for operand in operands[each.name in in_place :]:
                needed[operand.name] += share * operand.size if each.kind in WHOLE else min(operand.size, count)
            _note(kernel, each, operands, count, draws)
    return kernel


def _note(kernel: Kernel, each: Operation, operands: list[Operation], count: float, draws: bool) -> None:
    """What an operation of a kernel does besides reading."""
    if each.kind == "dot":
        kernel.products.append(_product(each, operands[0], operands[1]))
    elif each.kind == "reduce":
        kernel.summed = max(kernel.summed, operands[0].size // each.size)
    elif each.kind == "log" and draws:
        kernel.normals += count
    elif each.kind == "pad" and count > FEW and len(each.shapes[0].dims) == 2:
        kernel.padded = max(kernel.padded, count)
    elif each.kind == "concatenate" and count > FEW and len(operands) > 2:
        (axis,) = _axes(each, "dimensions")
        shortest = min(math.prod(one.shapes[0].dims[axis:]) for one in operands)
        kernel.joined.append(count * len(operands) / (PIECES if shortest >= 32 else SHORT_PIECES))


def _product(operation: Operation, left: Operation, right: Operation) -> Product:
    """Of an operation of XLA, or of a call of a library."""
    dims = left.shapes[0].dims
    terms = math.prod(dims[axis] for axis in _axes(operation, "lhs_contracting_dim(?:ension)?s"))
    problems = math.prod(dims[axis] for axis in _axes(operation, "lhs_batch_dim(?:ension)?s"))
    rows, columns = (each.size // (terms * problems) for each in (left, right))
    exact = re.search(r"operand_precision\W+highest", operation.rest, re.IGNORECASE)
    return Product(problems, rows, columns, terms, exact is not None)


def _axes(operation: Operation, name: str) -> list[int]:
    match = re.search(rf'\b{name}\W+([\d,"]*)', operation.rest)
    return [int(axis) for axis in re.findall(r"\d+", match.group(1))] if match else []
