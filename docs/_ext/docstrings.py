"""The house's docstrings as reStructuredText.

They are written for the eye: paragraphs; rows such as `clip_norm  C, bound on one record's gradient`, whose texts go
on below one another; the arguments of an option's owner below `Args:`; labels such as `Raises: ...`; tables between
bars; doctests.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_origin

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

from fedjax_dp.options import of_class, of_function

LABELS = ("Adjacency", "Errors", "Limits", "Raises", "Returns", "Shapes", "Sensitivity", "Source", "Units", "Zeros")
ROW = re.compile(r"(?P<name>[\w.*\"'|,()=\[\] -]*?[\w*\"')\]])(?P<gap> {2,})(?P<text>\S.*)")
ARGUMENT = re.compile(r"^(\w+): ")
LABEL = re.compile(rf"(?P<name>{'|'.join(LABELS)}):(?P<gap> +)(?P<text>\S.*)")


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring, without its indentation, as reStructuredText."""
    found: list[str] = []
    for block in _blocks(_with_rows(lines)):
        found += [*_told(block), ""]
    return found


def _with_rows(lines: list[str]) -> list[str]:
    """The lines, what stands below `Args:` as rows."""
    if "Args:" not in lines:
        return lines
    start = lines.index("Args:")
    below = [ARGUMENT.sub(r"\1  ", line.removeprefix("    ")) for line in lines[start + 1 :]]
    return [*lines[:start], *below]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs, and each row or label with the lines that go on with it."""
    block: list[str] = []
    column = 0  # where a row's text stands; 0 outside of rows
    for line in lines:
        starts = ROW.fullmatch(line) or LABEL.fullmatch(line)
        goes_on = column and line.startswith(" ") and len(line) - len(line.lstrip()) >= min(column, 2)
        kind = line[:1] in "|>" and line.strip() != ""
        before = bool(block) and block[-1][:1] in "|>"
        if not line.strip() or starts or (column and not goes_on) or (block and kind != before and not column):
            if block:
                yield block
            block, column = [], 0
        if line.strip():
            block.append(line)
            if starts:
                column = starts.start("text")
    if block:
        yield block


def _told(block: list[str]) -> list[str]:
    first = block[0]
    if first.startswith(">>>"):
        return block
    if first.startswith("|"):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block]
        rows = [row for row in rows if not all(set(cell) <= set("-: ") for cell in row)]
        return [".. list-table::", "", *(line for row in rows for line in _cells(row))]
    if label := LABEL.fullmatch(first):
        return [f"**{label['name']}:** " + _escaped(" ".join([label["text"], *map(str.strip, block[1:])]))]
    if row := ROW.fullmatch(first):
        return [f"``{row['name']}``", "   " + _escaped(" ".join([row["text"], *map(str.strip, block[1:])]))]
    return [_escaped(" ".join(map(str.strip, block)))]


def _cells(row: list[str]) -> Iterator[str]:
    for number, cell in enumerate(row):
        yield f"   {'* -' if number == 0 else '  -'} {_escaped(cell)}"


def _escaped(text: str) -> str:
    """Backticks hold code, and nothing else is markup."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts = [text.replace("`", "'")]
    return "".join(
        f"``{part}``" + ("\\ " if after[:1].isalnum() else "") if number % 2 else re.sub(r"([\\*|_])", r"\\\1", part)
        for number, (part, after) in enumerate(zip(parts, [*parts[1:], ""]))
    )


def _process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines)
    equation = getattr(thing, "equation", None)
    if isinstance(thing, type) and isinstance(equation, str):  # of a part
        lines += [".. math::", "", f"   {equation}", ""]


def _skip(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Members that say nothing here: defaults that are other people's functions, fields of tuples."""
    home = getattr(thing, "__module__", None) or "fedjax_dp"
    elsewhere = not home.startswith("fedjax_dp") and not isinstance(thing, property)
    return True if elsewhere or (getattr(thing, "__doc__", None) or "").startswith("Alias for field") else None


def _sign(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A Protocol is not called; types stand without what is said of an option beside them."""
    if getattr(thing, "_is_protocol", False):
        return "", None
    return (plain(thing), None) if "Annotated" in (signature or "") else (signature, returns)


def plain(thing: Any) -> str:
    """The signature of a function or class, of its options the types and the names that they may have."""
    whole = inspect.signature(thing)
    known = of_class(thing) if isinstance(thing, type) else of_function(thing)
    parameters = [
        one.replace(annotation=known[name].parameter.annotation) if get_origin(one.annotation) is Annotated else one
        for name, one in whole.parameters.items()
    ]
    returned = inspect.Signature.empty if isinstance(thing, type) else whole.return_annotation
    found = whole.replace(parameters=parameters, return_annotation=returned)
    return stringify_signature(found, unqualified_typehints=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
