"""A report as one HTML page: text, rows as JSON, and the script that draws them. The page loads nothing."""

import base64
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

from fedjax_dp import __version__, errors
from fedjax_dp.tools.reports.contents import PROBE, Block, Figure, Markup, Report, tag, text

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'none'; base-uri 'none'; form-action 'none'"
)
MARK = "written by fedjax-dp report"  # near the head of every file that a report may replace


def page(report: Report) -> str:
    """The whole page, in ASCII; the same report makes the same page."""
    drawn = any(isinstance(block, Figure) for section in report.sections for block in section.blocks)
    scripts = [*([_library()] if drawn else []), _resource("page.js")]
    policy = policy_of(scripts)
    sections = "".join(_section(number, *section) for number, section in enumerate(report.sections))
    links = "".join(
        tag("li", tag("a", section.title, href=f"#section-{number}")) for number, section in enumerate(report.sections)
    )
    programs = "".join(f"<script>{script}</script>\n" for script in scripts)
    title = text(report.title)
    licences = f"<!--\n{_resource('library.txt')}-->\n" if drawn else ""
    probes = ""
    if drawn:
        badge = tag("span", PROBE, class_="badge")
        probes = f"Numbers marked {badge} are diagnostics of the simulator and are not covered by epsilon. "
    return f"""<!doctype html>
<!-- {MARK} -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}: {text(report.kind)}, fedjax-dp</title>
<link rel="icon" href="data:,">
<style>{_resource("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<div class="bar"><p class="kind">fedjax-dp report: {text(report.kind)}</p>
<button type="button" id="theme" aria-pressed="false">Dark</button></div>
<h1>{title}</h1>
<p class="lead">{text(report.lead)}</p>
<nav aria-label="Sections"><ol>{links}</ol></nav>
</header>
<main id="main" tabindex="-1">
{sections}
</main>
<footer><p>Written by fedjax-dp {__version__}. This file is complete and loads nothing.
{probes}The noise comes from a seed: it measures utility and protects nobody's data.</p></footer>
<script type="application/json" id="report">{embedded(payload(report))}</script>
{licences}{programs}</body>
</html>
"""


def payload(report: Report) -> dict[str, Any]:
    """What the page draws."""
    blocks = (block for section in report.sections for block in section.blocks)
    figures = {block.name: block.spec for block in blocks if isinstance(block, Figure)}
    return {"figures": figures, "data": dict(report.data)}


def embedded(content: Any) -> str:
    """JSON without characters that HTML could read as markup."""
    written = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        written = written.replace(letter, f"\\u{ord(letter):04x}")
    return written


def policy_of(scripts: list[str]) -> str:
    """A content security policy that runs the page's own scripts and no others."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return POLICY.format(scripts=allowed)


def _section(number: int, title: str, blocks: Sequence[Block]) -> Markup:
    inside = [Markup(f"\n{block.html()}") for block in blocks]
    if sum(isinstance(block, Figure) for block in blocks) > 1:
        inside = [tag("div", *inside, class_="figures")]
    head = tag("h2", title, id=f"head-{number}")
    return tag("section", head, *inside, "\n", id=f"section-{number}", aria_labelledby=f"head-{number}")


def _resource(name: str) -> str:
    return (importlib.resources.files("fedjax_dp.tools.reports") / name).read_text(encoding="utf-8")


@functools.cache
def _library() -> str:
    """The bundle of Vega-Lite from vl-convert, with its few characters outside ASCII escaped (they are in strings)."""
    errors.require_installed("vl_convert", "report", "to draw the figures of reports")
    import vl_convert  # here alone: it takes a second

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if "</script" in bundle.lower() or "<!--" in bundle:
        raise RuntimeError("the charting library cannot be embedded in a page")
    return "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in bundle)
