"""Help as wide as the terminal."""

import re
import shutil
import textwrap

WIDEST = 120  # letters of a line


def width() -> int:
    """Letters of a line of help: those of the terminal, if it is no wider than help is written."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def wrapped(text: str) -> str:
    """Help as wide as the terminal: paragraphs, and beside names what they are, wrap between words; what is indented by
    four letters stays as it is.
    """
    found: list[str] = []
    for paragraph in text.split("\n\n"):
        lines: list[tuple[str, str]] = []  # what stands before a text, and the text
        for line in paragraph.split("\n"):
            named = re.fullmatch(r"( {0,3}\S+(?: \S+)* {2,}| {7}(?=fedjax-dp ))(\S.*)", line)
            if named or line.startswith("    "):
                lines.append((named[1], named[2]) if named else (line, ""))
            elif lines and not lines[-1][0]:
                lines[-1] = ("", f"{lines[-1][1]} {line}")
            else:
                lines.append(("", line))
        found.append("\n".join(_filled(before, told) for before, told in lines))
    return "\n\n".join(found)


def _filled(before: str, text: str) -> str:
    if not text:
        return before
    return textwrap.fill(
        text,
        width(),
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_on_hyphens=False,
        break_long_words=False,
    )
