"""The guide shows what the command prints."""

import pathlib
import re

import pytest
from test_wrong_facts import ran

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "your_federation.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(4))
def test_an_example_prints_what_the_guide_shows(number, tmp_path):
    written, shown = EXAMPLES[number]
    path = tmp_path / "deployment.toml"
    path.write_text(written)
    code, out, err = ran("check", path)
    assert not err
    assert code == int("WRONG" in shown)
    assert set(shown.splitlines()) <= set(out.splitlines())


def test_the_numbers_in_its_text_are_what_plans_and_checks_say(tmp_path):
    flower = EXAMPLES[2][0]
    path = tmp_path / "deployment.toml"
    path.write_text(flower)
    settings = ran("plan", path, "--epsilon", "8", "--for", "flower-central")[1]
    assert re.search(r'"noise-multiplier" = 2\.079[23]', settings)
    path.write_text(flower.replace("size = 20, of = 100", "size = 4, of = 10").replace("0.05", "0.25"))
    assert "epsilon above 700 at" in ran("check", path)[1]
    path.write_text(flower.replace(', members = "known"', ""))
    assert "epsilon 197 at" in ran("check", path)[1]
