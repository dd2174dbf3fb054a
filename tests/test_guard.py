"""The guard of counted work: what is more than expected is told, and so is what is less."""

import dataclasses
import json
import pathlib

import pytest
from helpers import benchmark

from fedjax_dp.parts.clipping import ClipTensorsAtMedian

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def guard():
    return benchmark("guard")


EXPECTED = {"W1": {"flops": 1000, "dispatches": 9, "compiled_again": 0}}


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"flops": 1000, "dispatches": 9, "compiled_again": 0}, []),
        ({"flops": 1015, "dispatches": 9, "compiled_again": 0}, []),
        ({"flops": 1030, "dispatches": 9, "compiled_again": 0}, ["W1: flops 1,030, expected 1,000: more"]),
        ({"flops": 900, "dispatches": 9, "compiled_again": 0}, ["W1: flops 900, expected 1,000: less"]),
        ({"flops": 1000, "dispatches": 9, "compiled_again": 1}, ["W1: compiled_again 1, expected 0: more"]),
        ({"flops": 1000, "dispatches": 45, "compiled_again": 0}, ["W1: dispatches 45, expected 9: more"]),
        ({"flops": 1000, "dispatches": 9}, ["W1: compiled_again is not counted any more"]),
    ],
)
def test_differences_are_told(guard, counts, told):
    found = guard.differences({"W1": counts}, EXPECTED)
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True))


def test_the_file_covers_every_workload(guard):
    known = json.loads((BENCHMARKS / "guard.json").read_text())
    assert set(known["counts"]) == set(guard.round_latency.NAMES)
    assert known["counts"]["W1"]["compiled_again"] == 0


@pytest.mark.slow
def test_gradients_of_single_records_are_noticed(guard):
    """A round that builds every record's gradient moves far more bytes than the committed one."""
    algorithm, model, data = guard.workload("W1")
    privatizer = dataclasses.replace(algorithm.local.privatizer, bound=ClipTensorsAtMedian())
    slow = dataclasses.replace(algorithm, local=dataclasses.replace(algorithm.local, privatizer=privatizer))
    known = json.loads((BENCHMARKS / "guard.json").read_text())["counts"]["W1"]
    found = guard.counted(slow, model, data)
    assert found["bytes"] > 1.4 * known["bytes"]
    assert any("bytes" in line for line in guard.differences({"W1": found}, {"W1": known}))
