"""The site: it builds without a warning, names everything that is public, and its links lead somewhere."""

import html.parser
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.parse

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parent.parent
LEFT = ("_build", "api", "gallery", "catalogue.md", "results.md", "systems.md", "__pycache__")  # what a build writes
MINUTES = 3  # that a build may take


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx_book_theme", reason="the site needs the extra docs")
    home = tmp_path_factory.mktemp("site")
    for name in ("docs", "notebooks", "benchmarks"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns(*LEFT))
    began = time.monotonic()
    # The tree of all pages beside every page takes a third of a build, and Sphinx makes its links of the pages.
    short = ("-D", "html_theme_options.max_navbar_depth=1")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *short, "-b", "html", "docs", "out"]
    built = subprocess.run(command, cwd=home, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert built.returncode == 0, built.stderr
    assert not built.stderr
    assert time.monotonic() - began < 60 * MINUTES
    return home / "out"


class Page(html.parser.HTMLParser):
    """Where a page leads to, what it may be entered by, and what says nothing to a reader of screens."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.mute = [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id") or values.get("name"))
        self.links += [values[name] for name in ("href", "src") if values.get(name)]
        if tag == "img" and not values.get("alt"):
            self.mute.append(values.get("src"))


@pytest.fixture(scope="module")
def pages(site):
    # That of the theme is no page; sources lead back to the page of a name, which may show it under another one.
    own = (path for path in site.rglob("*.html") if not {"_static", "_modules"} & {*path.parts})
    return {path: Page(path) for path in own}


def test_every_link_leads_somewhere(site, pages):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(address.path)).resolve() if address.path else path
            if not target.exists():
                lost.append(f"{path.relative_to(site)}: {link}")
            elif address.fragment and target in pages and address.fragment not in pages[target].anchors:
                lost.append(f"{path.relative_to(site)}: {link}, which has no such place")
    assert not lost


def test_pages_show_the_version_and_the_source_and_code_that_can_be_copied(site):
    import fedjax_dp as fdp

    front = (site / "index.html").read_text()
    assert f"fedjax_dp {fdp.__version__}" in front
    assert "copybutton.js" in front
    reference = (site / "api" / "fedjax_dp.html").read_text()
    for name in (*fdp.CATALOGUE, "run", "Algorithm"):
        assert f'id="fedjax_dp.{name}"' in reference, name
        assert f'#{name}"><span class="viewcode-link">' in reference, name


def test_nothing_is_loaded_from_elsewhere(site, pages):
    """Pages load only their own files: no script, style or picture comes from another host."""
    for path in pages:
        text = path.read_text()
        assert 'src="http' not in text, path.name
        assert '<link rel="stylesheet" href="http' not in text, path.name


def test_every_public_name_is_in_the_reference(site):
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as stream:
        inventory = InventoryFile.load(stream, "", lambda base, path: path)
    listed = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        import written
    finally:
        sys.path.pop(0)
    assert len(written.public_names()) > 300
    assert set(written.public_names()) <= listed


def test_every_picture_is_described(site, pages):
    mute = {f"{path.relative_to(site)}: {src}" for path, page in pages.items() for src in page.mute}
    assert not {line for line in mute if "gallery" not in line}  # pictures that notebooks printed have no words


def test_the_catalogue_shows_every_entry_with_its_equations(site):
    import fedjax_dp as fdp

    text = (site / "catalogue.html").read_text()
    assert text.index("<table") < text.index('id="letters"')  # what there is before what its symbols mean
    for name in fdp.CATALOGUE:
        assert f'id="{name.replace("_", "-")}"' in text, name
    assert text.count("<math") > 10 * len(fdp.CATALOGUE)
    assert "\\frac" not in text.replace("annotation", "")  # every equation was understood
