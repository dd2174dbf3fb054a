"""Reports in a browser: what is drawn is what is in the files, by mouse, by keyboard, on a phone, in the dark."""

import itertools
import json

import numpy as np
import pytest
from helpers import usual
from report_inputs import HOSTILE, write_sweep

from fedjax_dp.tools import cli
from fedjax_dp.tools.reports import kinds
from fedjax_dp.tools.reports.page import page

pytestmark = pytest.mark.slow  # their pages are made of whole runs

SIZES = {"desk": (1280, 900), "phone": (400, 800)}
DRAWN = "() => window.report && window.report.ready"
# What a view holds, without the marks that Vega puts on its rows.
HELD = "([figure, name]) => JSON.parse(JSON.stringify(window.report.views[figure].data(name)))"
TEXTS = "p, h1, h2, h3, dt, b, small, th, td, caption, summary, li, legend, label, button, span, svg text"
# The contrast of each text with what is behind it, as WCAG 2 defines it.
LUMINANCE = """(where) => {
  const seen = [];
  const lum = (c) => {
    const parts = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
    const lin = parts.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2];
  };
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(c) && c !== "transparent") return c;
    }
    return "rgb(255, 255, 255)";
  };
  for (const e of document.querySelectorAll(where)) {
    const svg = e.namespaceURI.endsWith("svg");
    if (!e.textContent.trim() || (!svg && e.offsetParent === null)) continue;
    const front = svg ? getComputedStyle(e).fill : getComputedStyle(e).color;
    const [a, b] = [lum(front), lum(back(e))].sort((x, y) => y - x);
    seen.push([(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)]);
  }
  return seen;
}"""


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the report of a path; what the browser complains of, and what it asks a network for, is wrong."""
    complaints, pages = [], []

    def open_(path, size="desk", scheme="light"):
        context = browser.new_context(
            viewport=dict(zip(("width", "height"), SIZES[size])), color_scheme=scheme, offline=True
        )
        made = context.new_page()
        made.on("console", lambda message: complaints.append((message.type, message.text)))
        made.on("pageerror", lambda error: complaints.append(("error", str(error))))
        file = tmp_path / f"{len(pages)}.html"
        allowed = (file.as_uri(), "data:")
        made.on("request", lambda asked: asked.url.startswith(allowed) or complaints.append(("asked", asked.url)))
        file.write_text(page(kinds.read_report(path)))
        made.goto(file.as_uri())
        made.evaluate(DRAWN)
        pages.append(context)
        return made

    yield open_
    for context in pages:
        context.close()
    assert complaints == []


@pytest.fixture(params=["run", "sweep", "audit", "reproduction"])
def reported(request, run_folder, sweep_folder, audit_file, reproduction_folder):
    paths = {"run": run_folder, "sweep": sweep_folder, "audit": audit_file, "reproduction": reproduction_folder}
    return paths[request.param]


def names_of(spec):
    """The rows that a spec draws."""
    if isinstance(spec, dict):
        own = {spec["data"]["name"]} if isinstance(spec.get("data"), dict) else set()
        return own.union(*map(names_of, spec.values()))
    return set().union(*map(names_of, spec)) if isinstance(spec, list) else set()


def test_every_figure_holds_the_rows_of_the_files(reported, opened):
    made, report = opened(reported), kinds.read_report(reported)
    figures = {block.name: block for section in report.sections for block in section.blocks if hasattr(block, "spec")}
    assert len(figures) >= 2
    for name, figure in figures.items():
        for rows in names_of(figure.spec):
            assert made.evaluate(HELD, [name, rows]) == json.loads(json.dumps(report.data[rows])), (name, rows)
        assert made.locator(f"#figure-{name} .chart svg [role='graphics-symbol']").count() > 0, name
        details = made.locator(f"#figure-{name} details")
        details.locator("summary").click()
        details.locator("tbody").wait_for()
        assert details.locator("tbody tr").count() == len(report.data[figure.table])


@pytest.mark.parametrize("scheme", usual(["light", "dark"], ["dark"]))
def test_a_phone_shows_all_in_colours_that_can_be_read_without_scrolling_sideways(reported, opened, scheme):
    made = opened(reported, "phone", scheme)
    assert made.evaluate("document.documentElement.scrollWidth") <= 400
    wide = "[...document.querySelectorAll('.chart svg')].filter((e) => e.getBoundingClientRect().right > 400.5).length"
    assert made.evaluate(wide) == 0
    cut = """[...document.querySelectorAll('.chart svg')].flatMap((svg) =>
      [...svg.querySelectorAll('.role-legend-label text')].filter((label) =>
        label.getBoundingClientRect().right > svg.getBoundingClientRect().right).map((label) => label.textContent))"""
    assert made.evaluate(cut) == []  # legends are whole
    made.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true })")
    sideways = """[...document.querySelectorAll('.scroll:has(.stacked)')].filter((e) =>
      e.scrollWidth > e.clientWidth).map((e) => e.getAttribute('aria-label'))"""
    assert made.evaluate(sideways) == []  # tables with reasons are read downwards
    found = made.evaluate(LUMINANCE, TEXTS)
    assert len(found) > 30
    assert [one for one in found if one[0] < 4.5] == []
    made.set_viewport_size({"width": 1280, "height": 900})
    made.wait_for_timeout(100)
    assert made.evaluate("document.querySelector('.chart svg').getBoundingClientRect().width") > 400


def test_a_screen_reader_finds_its_way(reported, opened):
    made = opened(reported)
    levels = made.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((e) => Number(e.tagName[1]))")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert made.evaluate("document.documentElement.lang") == "en"
    assert made.locator("main").count() == made.locator("header").count() == made.locator("footer").count() == 1
    unnamed = """[...document.querySelectorAll(NAMED)].filter((e) => !(e.textContent.trim() || e.alt
      || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
      || (e.labels && e.labels[0] && e.labels[0].textContent.trim()))).map((e) => e.outerHTML)"""
    named = "button, input, summary, a[href], [role=region], nav, form, section, figure, img"
    unnamed = unnamed.replace("NAMED", json.dumps(named))
    assert made.evaluate(unnamed) == []
    ids = made.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    dangling = """[...document.querySelectorAll('[aria-labelledby],[aria-describedby]')]
      .flatMap((e) => [e.getAttribute('aria-labelledby'), e.getAttribute('aria-describedby')])
      .filter((id) => id && !document.getElementById(id))"""
    assert made.evaluate(dangling) == []
    for chart in made.locator(".chart [role='graphics-document']").all():
        assert len(chart.get_attribute("aria-label")) > 20
    assert made.evaluate("[...document.querySelectorAll('table')].every((t) => t.querySelector('th[scope=col]'))")


def test_the_keyboard_alone_reaches_the_report_and_turns_it_dark(run_folder, opened):
    made = opened(run_folder)
    made.keyboard.press("Tab")
    assert made.evaluate("document.activeElement.className") == "skip"
    assert made.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    made.keyboard.press("Tab")
    assert made.evaluate("document.activeElement.id") == "theme"
    ink = "getComputedStyle(document.querySelector('.chart svg text')).fill"
    before, paper = made.evaluate(ink), made.evaluate("getComputedStyle(document.body).backgroundColor")
    made.keyboard.press("Enter")
    made.evaluate(DRAWN)
    assert made.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert made.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    assert made.evaluate(ink) != before
    made.keyboard.press("Space")
    made.evaluate(DRAWN)
    assert made.evaluate(ink) == before


def test_filters_change_the_front(sweep_folder, opened):
    """Against the front of the settings that are left, by its definition in NumPy."""
    made, rows = opened(sweep_folder), kinds.read_report(sweep_folder).data["settings"]
    random = np.random.default_rng(0)
    boxes = made.locator(".filters input")
    for _ in range(6):
        off = [bool(random.random() < 0.3) for _ in range(boxes.count())]
        for place, hidden in enumerate(off):
            boxes.nth(place).set_checked(not hidden)
        made.wait_for_timeout(50)
        shut = {
            (int(box.get_attribute("data-axis")), int(box.get_attribute("data-value")))
            for box, hidden in zip(boxes.all(), off)
            if hidden
        }
        left = [row for row in rows if not any((axis, value) in shut for axis, value in enumerate(row["at"]))]
        whole = [row for row in left if row["good"] is not None]  # no seed of it was lost
        epsilon, accuracy = (np.array([row[name] for row in whole]) for name in ("epsilon", "good"))
        beaten = [
            np.any((epsilon <= e) & (accuracy >= a) & ((epsilon < e) | (accuracy > a)))
            for e, a in zip(epsilon, accuracy)
        ]
        wanted = {row["key"] for row, worse in zip(whole, beaten) if not worse}
        assert {row["key"] for row in made.evaluate(HELD, ["front", "front"])} == wanted
        assert {row["key"] for row in made.evaluate(HELD, ["front", "settings"])} == {row["key"] for row in left}
        assert made.locator("tr[data-key]:visible").count() == len(left)
        assert made.inner_text("#count") == f"{len(left)} of 12 settings, {len(wanted)} on the Pareto front"
        marked = made.locator("tr[data-key]:visible", has_text="on the front").all()
        assert {int(line.get_attribute("data-key")) for line in marked} == wanted
    made.locator(".filters button").click()
    made.wait_for_timeout(100)
    assert made.inner_text("#count").startswith("12 of 12 settings")


def test_filters_work_by_keyboard(sweep_folder, opened):
    made = opened(sweep_folder)
    made.locator(".filters input").first.focus()
    made.keyboard.press("Space")
    made.wait_for_timeout(50)
    assert made.inner_text("#count").startswith("6 of 12 settings")


def test_tooltips_tell_the_numbers(run_folder, opened):
    made = opened(run_folder)
    last = json.loads((run_folder / "metrics.json").read_text())[-1]
    points = made.locator("#figure-noise .chart svg [aria-roledescription='point']")
    assert f"{last['noise_to_signal']:.6g}"[:5] in points.last.get_attribute("aria-label")
    points.last.hover(force=True)
    told = made.locator("#vg-tooltip-element").inner_text().split()
    assert told[:2] == ["round", "6"]
    assert float(told[-1]) == pytest.approx(last["noise_to_signal"], rel=1e-3)


def test_names_of_users_stay_text_in_the_browser(tmp_path, opened):
    made = opened(write_sweep(tmp_path / "hostile", {HOSTILE: [HOSTILE, "other"], "epsilon": [1.0, 2.0]}))
    assert made.title().startswith("Sweep sixty")
    assert made.locator("img").count() == 0
    assert made.locator("legend").first.inner_text() == HOSTILE.replace("\u2028", "\u2028")
    made.locator("#figure-front .chart svg [aria-roledescription='point']").first.hover(force=True)
    assert "onerror" in made.locator("#vg-tooltip-element").inner_text()
    assert made.locator("img").count() == 0


@pytest.mark.exhaustive
def test_what_the_program_leaves_is_shown_without_complaint(tmp_path, opened, capsys):
    """A sweep of 60 points, an audit and a reproduction, all made by the command line."""
    (tmp_path / "sixty.toml").write_text(
        'seeds = 5\n[base]\ndataset = "digits"\nrounds = 20\n[axes]\nalgorithm = ["dpnfl", "addpnfl"]\n'
        "epsilon = [1.0, 2.0, 4.0]\nclip_norm = [0.5, 2.0]\n"
    )
    assert cli.main(["sweep", "sixty.toml", "--out", "sixty"]) == 0
    assert cli.main(["reproduce", "dpnfl/table2", "--scale", "smoke", "--out", "table2"]) == 0
    capsys.readouterr()
    assert cli.main(["audit", "--trials", "2000", "--json"]) == 0
    (tmp_path / "audit.json").write_text(capsys.readouterr().out)
    for name in ("sixty", "table2", "audit.json"):
        path = tmp_path / name
        for size, scheme in itertools.product(SIZES, ("light", "dark")):
            made = opened(path, size, scheme)
            assert made.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert len(page(kinds.read_report(path))) < 5e6
    assert len(kinds.read_report(tmp_path / "sixty").data["settings"]) == 12
