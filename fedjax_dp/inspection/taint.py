"""Taint analysis: what in a traced program depends on records, through all equations, calls, branches and loops.

Operations without a known rule are assumed to mix records, and their outputs to depend on all of them.
"""

import functools
import pathlib
from typing import Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.gradients import equations

_PACKAGE = str(pathlib.Path(__file__).parent.parent)


class Rows(NamedTuple):
    """Whole records along the leading axes: each place depends on one record, which was not chosen by records."""

    axes: int  # how many
    of: object  # equal if places stand for the same records


# The taint of a value: None if it depends on no records; Rows; else the last place in the user's code that computed
# it, in words, "" if only the project's code did.
Taint = str | Rows | None


class Marks(NamedTuple):
    """Secret names for `checkpoint_name`, which user code cannot guess."""

    released: str  # noised, so that it no longer depends on records

    def of_stream(self, number: int) -> str:
        """The name of a noised private gradient, from the number of its stream of draws."""
        return f"{self.released}, stream {number}"

    def stream_of(self, name: str) -> int | None:
        """The stream of the private gradient of this name; None for other names."""
        head, comma, number = name.partition(", stream ")
        return int(number) if comma and head == self.released else None

    def rows(self, rank: int) -> str:
        """The name of noised values that may depend on records: one record at each place of all but the last axes."""
        return f"{self.released}, rows of rank {rank}"


def output_taints(jaxpr: Any, inputs: list[Taint], marks: Marks) -> list[Taint]:
    """The taint of every output of a program, from the taints of its inputs."""
    return equations.interpret(jaxpr, inputs, None, functools.partial(_taint_equation, marks))


def _taint_equation(marks: Marks, equation: Any, reads: list[Taint]) -> list[Taint]:
    name = equation.primitive.name
    if all(read is None for read in reads):
        return [None] * len(equation.outvars)
    if name == "name":
        return [_taint_of_name(equations.label(equation), equation.invars[0].aval.ndim, reads[0], marks)]
    if name == "scan":
        scan = equations.scan_of(equation)
        ends = _taint_of_loop(scan.body.jaxpr, *scan.parts(reads), marks)
        stacked = ends[scan.carry :]
        return [*ends[: scan.carry], *(Rows(r.axes + 1, object()) if isinstance(r, Rows) else r for r in stacked)]
    if name == "while":
        loop = equations.while_of(equation)
        condition, body = loop.condition_consts, loop.body_consts
        ends = _taint_of_loop(
            loop.body.jaxpr, reads[condition : condition + body], reads[condition + body :], [], marks
        )
        decision = output_taints(loop.condition.jaxpr, [*reads[:condition], *ends], marks)[0]
        return ends if decision is None else _mix(equation, [decision, *ends])
    if name == "cond":
        if reads[0] is not None:
            return _mix(equation, reads)
        each = [output_taints(branch.jaxpr, reads[1:], marks) for branch in equations.branches_of(equation)]
        return [ends[0] if all(end == ends[0] for end in ends) else place_of(ends) for ends in zip(*each, strict=True)]
    if name in equations.ENTERED:
        return output_taints(equations.inner_program(equation).jaxpr, reads, marks)
    rows = _row_by_row(equation, reads)
    return _mix(equation, reads) if rows is None else [rows] * len(equation.outvars)


def _taint_of_name(name: str, rank: int, read: Taint, marks: Marks) -> Taint:
    if name == marks.released or marks.stream_of(name) is not None:
        return None
    if isinstance(read, Rows) and name == marks.rows(rank - read.axes):
        return None
    return read


def _mix(equation: Any, reads: list[Taint]) -> list[Taint]:
    """Outputs that depend on all records that are read; refuses records that leave in other ways."""
    if equation.effects or "callback" in equation.primitive.name:  # it prints or stores records
        raise errors.refuse(
            "algorithm",
            f"records that are passed on or written by {equation.primitive.name}{_user_place(equation)}",
            "one in which records act through the privatized gradient (or the noised mean of updates) alone",
            "leave out callbacks, prints and references that records reach",
        )
    return [_user_place(equation) or place_of(reads)] * len(equation.outvars)


def _taint_of_loop(body: Any, fixed: list[Taint], carried: list[Taint], rows: list[Taint], marks: Marks) -> list[Taint]:
    """Follow a loop, iteration by iteration, until nothing new depends on records."""
    while True:
        now = [_row_of(row) for row in rows]  # other rows than in the last iteration
        after = output_taints(body, [*fixed, *carried, *now], marks)
        wider = [old if new in (None, old) else place_of([old, new]) for old, new in zip(carried, after)]
        if wider == carried:
            return [*carried, *after[len(carried) :]]
        carried = wider


def _row_of(rows: Taint) -> Taint:
    """The taint of one place of the first axis."""
    if not isinstance(rows, Rows):
        return rows
    return Rows(rows.axes - 1, object()) if rows.axes > 1 else ""


def place_of(reads: Any) -> str:
    """The longest description among the reads, or ""."""
    return max((read for read in reads if isinstance(read, str)), key=len, default="")


_ELEMENTWISE = (
    "abs add and ceil clamp convert_element_type copy cos div eq exp floor ge gt integer_pow is_finite le log log1p "
    "logistic lt max min mul ne neg not or pow rem round rsqrt select_n sign sin sqrt square sub tanh"
)
_REDUCTIONS = "reduce_and reduce_max reduce_min reduce_or reduce_sum"


def _row_by_row(equation: Any, reads: list[Taint]) -> Rows | None:
    """Rows again, where each place of the output depends on one record alone; else None."""
    dirty = [read for read in reads if read is not None]
    rows, name = dirty[0], equation.primitive.name
    if not isinstance(rows, Rows) or any(read != rows for read in dirty) or equation.effects:
        return None
    if name in _ELEMENTWISE.split():
        return rows
    if reads[0] is None:
        return None
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    lead = tuple(range(rows.axes))
    if name == "gather" and len(dirty) == 1:
        return _gathered_rows(equations.gather_of(equation), before, len(after), rows)
    if name in (*_REDUCTIONS.split(), "squeeze", "rev"):
        return rows if min(equations.axes_of(equation), default=rows.axes) >= rows.axes else None
    if name == "reshape":
        return rows if equations.keeps_order(equation) and after[: rows.axes] == before[: rows.axes] else None
    if name == "broadcast_in_dim":
        kept = equations.axes_of(equation)[: rows.axes] == lead and after[: rows.axes] == before[: rows.axes]
        return rows if kept else None
    if name == "transpose":
        first = equations.axes_of(equation)[: rows.axes]
        return rows if first == lead else Rows(rows.axes, object()) if sorted(first) == list(lead) else None
    return None


def _gathered_rows(picked: equations.Gather, before: tuple[int, ...], rank: int, rows: Rows) -> Rows | None:
    """Whole records at chosen places of the last leading axis."""
    shape, last, rest = picked.numbers, rows.axes - 1, before[rows.axes :]
    whole = (
        picked.sizes == (*[1] * rows.axes, *rest)
        and tuple(shape.operand_batching_dims) == tuple(range(last))
        and tuple(shape.start_indices_batching_dims) == tuple(range(last))
        and tuple(shape.collapsed_slice_dims) == (last,)
        and tuple(shape.start_index_map) == (last,)
        and tuple(shape.offset_dims) == tuple(range(rank - len(rest), rank))
        and rank > len(rest)
    )
    return Rows(rank - len(rest), object()) if whole else None


def _user_place(equation: Any) -> str:
    frames = (frame for frame in equations.frames_of(equation) if not frame[0].startswith(_PACKAGE))
    return equations.place_of(frames)
