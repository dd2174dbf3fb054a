"""Where the time of a round goes: parts that are left out one by one, and a floor that is counted."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp import prng
from fedjax_dp.models import logistic_regression
from fedjax_dp.parts.batches import FixedBatches
from fedjax_dp.parts.clipping import Unbounded
from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import Wrapper, value
from fedjax_dp.tools.cli import bench, main
from fedjax_dp.tools.latency import measurement
from fedjax_dp.tools.latency.floor import Floor, floor_of

CLIENTS, RECORDS, FEATURES, CLASSES = 6, 40, 30, 4
COHORT, BATCH, STEPS = 4, 5, 3
SIZE = FEATURES * CLASSES + CLASSES


@pytest.fixture(scope="module")
def data():
    return ragged_data((RECORDS,) * CLIENTS, classes=CLASSES, shape=(FEATURES,))


COMMON = {"cohort_size": COHORT, "batch_size": BATCH, "local_steps": STEPS, "learning_rate": 0.1}
NOISE = {"clip_norm": 1.0, "noise_multiplier": 1.0}
PLAIN, CLIENTS_HIDDEN = fdp.fedavg(**COMMON), fdp.dp_fedavg(**COMMON, **NOISE)


def private(**changes):
    return fdp.dpnfl(**COMMON, **NOISE, **changes)


@pytest.fixture(scope="module")
def model():
    return logistic_regression((FEATURES,), CLASSES)


TOLD = measurement.Latency(
    round_ms=9.0,
    spread=0.1,
    parts=dict.fromkeys(measurement.PARTS, 1.25),
    compile_s=2.0,
    turns=3,
    devices=2,
    floor=Floor(1e6, 1e5, 1e4, 1.0, 2.0, 3.0),
    changes=[measurement.Change("evaluate_every", "20 instead of 10", 0.5)],
)


def test_each_variant_lacks_one_more_part(model):
    ladder = measurement.variants(private(), model)
    assert list(ladder) == ["whole", "clipping", "noise", "sampling", "gradient", "gather"]
    assert isinstance(ladder["clipping"][0].local.privatizer.bound, Unbounded)
    assert not isinstance(ladder["clipping"][0].local.privatizer.source, measurement.Silence)
    assert isinstance(ladder["noise"][0].local.privatizer.source, measurement.Silence)
    assert isinstance(ladder["noise"][0].local.batches, FixedBatches)
    assert isinstance(ladder["sampling"][0].local.batches, measurement.ConsecutiveBatches)
    assert ladder["gradient"][1] == measurement.Idle(model, reads=True)
    assert ladder["gather"][1] == measurement.Idle(model, reads=False)


def test_what_is_not_there_is_not_left_out(model):
    assert list(measurement.variants(PLAIN, model)) == ["whole", "sampling", "gradient", "gather"]
    assert "noise" in measurement.variants(CLIENTS_HIDDEN, model)


@pytest.mark.slow
def test_batches_that_are_counted_off_have_the_shapes_of_drawn_ones():
    drawn, given = FixedBatches(size=BATCH), measurement.ConsecutiveBatches(base=FixedBatches(size=BATCH))
    key, records = jax.random.key(0), jnp.int32(RECORDS)
    for a, b in zip(
        drawn.sample(key, records, STEPS, RECORDS, RECORDS),
        given.sample(key, records, STEPS, RECORDS, RECORDS),
        strict=True,
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert np.asarray(given.sample(key, jnp.int32(7), STEPS, 7, 7).positions).max() == 6


@pytest.mark.slow
def test_a_round_without_noise_moves_as_a_plain_one_does(data, model):
    """What is left after clipping and noise are out is the gradient of the batch, step by step."""
    silent = measurement.variants(private(l2=0.0, schedule="constant"), model)["noise"][0]
    plain = private(l2=0.0, schedule="constant")
    plain = dataclasses.replace(plain, local=dataclasses.replace(plain.local, privatizer=fdp.parts.NonPrivate()))
    ends = [fdp.simulate(algorithm, data, rounds=3, model=model).params for algorithm in (silent, plain)]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_parts_add_up_to_the_round_and_its_share_of_an_evaluation(data, model):
    found = measurement.measure_round(private(), data, model, evaluate_every=10, turns=3)
    assert tuple(found.parts) == measurement.PARTS
    assert found.total_ms == pytest.approx(found.round_ms + found.parts["evaluation"], rel=1e-9)
    assert found.parts["evaluation"] > 0
    assert [change.saves_ms for change in found.changes] == sorted((c.saves_ms for c in found.changes), reverse=True)


@pytest.mark.slow
def test_the_floor_is_counted(data, model):
    floor = floor_of(private(), data, model, fdp.execution.all_devices())
    assert floor.normals == SIZE * STEPS * COHORT
    assert floor.bytes == (BATCH * FEATURES * 4 + 8 * SIZE) * STEPS * COHORT
    products = 4 * BATCH * FEATURES * CLASSES * STEPS * COHORT  # scores, and the gradient of the kernel
    assert products <= floor.flops <= 2 * products
    assert floor.ms == max(floor.flops_ms + floor.normals_ms, floor.bytes_ms) > 0
    drawn = [floor_of(one, data, model, fdp.execution.all_devices()).normals for one in (CLIENTS_HIDDEN, PLAIN)]
    assert drawn == [SIZE, 0]  # for whole clients once a round


@value
@restates(measurement.Silence)
class SlowNoise(measurement.Silence):
    """Noise that is drawn a thousand times over."""

    def draw(self, key, place, size, state):
        def again(i, total):
            return total + prng.normals(jax.random.fold_in(key, i), place.number, size)

        return jax.lax.fori_loop(0, 1000, again, jnp.zeros(size)), state


@value
class SlowBatches(Wrapper):
    """Batches that are drawn a thousand times over."""

    base: FixedBatches

    def sample(self, key, records, steps, largest, smallest):
        def again(i, drawn):
            fresh = self.base.sample(jax.random.fold_in(key, i), records, steps, largest, smallest)
            return fresh._replace(positions=(fresh.positions + drawn.positions) % records)

        return jax.lax.fori_loop(0, 1000, again, self.base.sample(key, records, steps, largest, smallest))


def with_slow_noise(local):
    return dataclasses.replace(local, privatizer=dataclasses.replace(local.privatizer, source=SlowNoise()))


def with_slow_batches(local):
    return dataclasses.replace(local, batches=SlowBatches(base=local.batches))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("part", "slowed"), [("noise", with_slow_noise), ("sampling", with_slow_batches)])
def test_the_part_that_is_made_slow_is_named_and_no_other(part, slowed, data, model):
    algorithm = private()
    slow = dataclasses.replace(algorithm, local=slowed(algorithm.local))
    seen = measurement.measure_round(slow, data, model, evaluate_every=10, turns=3)
    assert max(seen.parts, key=seen.parts.get) == part


HOW = fdp.models.explain_gradients(fdp.mlp((6,), 3))


def test_a_disturbed_measurement_says_so_instead_of_a_clean_number(capsys):
    bench._print(TOLD._replace(spread=0.31), HOW, 20, "x")
    assert "disturbed" in capsys.readouterr().out.splitlines()[0]
    bench._print(TOLD._replace(spread=0.29), HOW, 20, "x")
    assert "disturbed" not in capsys.readouterr().out


def test_people_read_parts_floor_and_changes(capsys):
    bench._print(TOLD, HOW, 20, "dpnfl on digits")
    out = capsys.readouterr().out
    assert all(
        part in out for part in (*measurement.PARTS, "floor", "change", "ms a round", "Dense_0/kernel", "bytes a batch")
    )


@pytest.mark.exhaustive
def test_command_measures_and_draws(tmp_path, capsys):
    small = ["--algorithm", "fedavg", "--cohort-size", "4", "--local-steps", "2", "--chunk-size", "2", "--turns", "2"]
    assert main(["bench", *small, "--plot", str(tmp_path / "bench.png"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total_ms"] == pytest.approx(sum(told["parts"].values()))
    assert {"device", "versions", "config", "floor", "disturbed", "gradients"} <= set(told)
    assert (tmp_path / "bench.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "bad",
    [["--turns", "0"], ["--plot", "x.gif"], ["--cohort-size", "0"], ["--turn", "3"], ["--compile-for", "h200"]],
)
def test_bad_input_is_one_line(bad, capsys):
    assert main(["bench", *bad]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedjax-dp: ")
    assert len(captured.err.splitlines()) == 1
