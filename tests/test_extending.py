"""The pages on extending: short, one for each Protocol, and every template on them runs."""

import contextlib
import io
import math
import pathlib
import re

import pytest
from helpers import usual

import fedjax_dp as fdp
from fedjax_dp import experiments, models, parts, validation
from fedjax_dp.parts.facts import SLOTS

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "extending"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PUBLIC = [
    found
    for home in (parts, models, experiments)
    for found in (getattr(home, name) for name in home.__all__)
    if isinstance(found, type) and vars(found).get("_is_protocol")
]
LONG = ("client_models", "client_privacy", "feature_matching", "local_training", "model", "training", "transport")


def run_page(name):
    (code,) = BLOCK.findall(PAGES[name])
    names, output = {"__name__": f"docs_{name}"}, io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, f"{name}.md", "exec"), names)
    return names, output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(PAGES, [name for name in PAGES if name not in LONG]))
def test_a_template_runs_and_has_the_epsilon_of_the_parts_that_it_replaces(name):
    names, output = run_page(name)
    assert output
    if "guarantee" in PAGES[name].partition("```")[2].partition("```")[0]:
        assert "epsilon" in output
        assert "no privacy" not in output.lower()
    private, algorithm = names.get("private"), names.get("algorithm")
    if private is not None and algorithm is not None:
        terms = {"rounds": 3, "delta": 1e-3, "model": names.get("model"), "accountant": "rdp"}
        ours, theirs = (fdp.guarantee(one, names["data"], **terms) for one in (algorithm, private))
        assert math.isfinite(ours.epsilon)
        assert ours.epsilon == pytest.approx(theirs.epsilon, rel=1e-3)
        assert any(" is trusted: " in line for line in ours.assumptions)


def test_pages_are_short_and_say_the_same_things():
    for name, text in PAGES.items():
        assert len(text.splitlines()) <= 60, name
        assert max(map(len, text.splitlines())) <= 120, name
        if name != "index":
            assert all(word in text for word in ("**Epsilon**", "**Test**", "**Command line**")), name
            assert f"({name}.md)" in PAGES["index"]
        for other in re.findall(r"\]\(([^)]+)\)", text):
            assert (FOLDER / other).is_file(), f"{name}: {other}"
        for check in re.findall(r"fedjax_dp\.testing\.(\w+)", text):
            assert check in fdp.testing.__all__, f"{name}: {check}"


@pytest.mark.parametrize("protocol", dict.fromkeys([*PUBLIC, *SLOTS.values()]), ids=lambda protocol: protocol.__name__)
def test_every_protocol_is_public_has_a_page_and_says_what_each_member_must_be(protocol):
    assert protocol in PUBLIC
    assert protocol.__doc__
    path = FOLDER.parents[1] / validation.page_of(protocol)
    if protocol is not models.FeatureModel:
        assert protocol.__name__ in path.read_text()
    for base in protocol.__mro__:
        for name, member in vars(base).items() if vars(base).get("_is_protocol") else ():
            if name == "__hash__" or not name.startswith("_"):
                assert isinstance(member, bool) or member.__doc__, f"{protocol.__name__}.{name}"
