"""The package does not grow back: what `benchmarks/structure.py` counts stays at or below what it is."""

import pytest
from helpers import benchmark

MOST = {
    "functions of a plain guarantee": 119,
    "files of a plain guarantee": 24,
    "functions of a plain run": 197,
    "files of a plain run": 38,
    "keywords of fedavg": 20,
    "keywords of dpnfl": 22,
    "modules of the core that import tools": 0,
    "public class names that stand twice": 0,
    "lines of the core": 46_510,
    "lines of tools": 19_190,
    "lines of tests": 47_288,
}


@pytest.fixture(scope="module")
def structure():
    return benchmark("structure")


def test_the_core_imports_no_tool(structure):
    assert structure.imports_of_tools() == []


@pytest.mark.slow
def test_nothing_that_is_counted_grows(structure):
    counted = structure.counted()
    assert counted.keys() == MOST.keys()
    assert {name: number for name, number in counted.items() if number > MOST[name]} == {}
