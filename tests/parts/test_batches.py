"""Which records a step sees, whoever else takes part."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import thinned, usual

from fedjax_dp import accounting
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.parts import batches
from fedjax_dp.pytrees import check_part, value

RULES = [
    rule
    for name, rule in inspect.getmembers(batches, inspect.isclass)
    if rule.__module__ == batches.__name__ and hasattr(rule, "equation")
]


sample = jax.jit(lambda rule, *given: rule.sample(*given), static_argnums=(3, 4, 5))


def drawn(rule, seed, records, steps, largest, smallest=1):
    """The steps that a client takes, each with its records in their order."""
    count = rule.count(steps, largest)
    batch = jax.device_get(sample(rule, jax.random.key(seed), jnp.int32(records), count, largest, smallest))
    return [
        (row[mask].tolist(), int(divisor))
        for row, mask, divisor, live in zip(batch.positions, batch.mask, batch.divisor, batch.step_mask, strict=True)
        if live
    ]


def made(rule, size):
    return rule(size=size) if "size" in inspect.signature(rule).parameters else rule()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("records", usual([1, 3, 4, 12], [3]))
def test_draws_of_a_client_do_not_depend_on_the_sizes_of_the_largest_and_the_smallest(rule, records):
    for seed in range(2):
        alone = drawn(made(rule, 4), seed, records, 1, records)
        assert alone
        for largest in (4, 37):
            for smallest in (1, records):
                if largest >= records:
                    assert drawn(made(rule, 4), seed, records, 1, largest, smallest) == alone


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("records", thinned([1, 7, 10, 25, 30], [25], 5))
def test_steps_divisors_and_rows_are_those_that_are_stated(rule, records):
    """Of clients with fewer records than a batch, exactly as many, and with more."""
    batches_of = made(rule, 10)
    for largest in (records, 38):
        steps = drawn(batches_of, 0, records, 1, largest)
        assert len(steps) == batches_of.count(1, records)
        assert [divisor for _, divisor in steps] == batches.divisors_of(batches_of, records, len(steps)).tolist()
        assert all(0 <= at < records for row, _ in steps for at in row)


# Case by case `ragged_batches` of the specification's participation_vectors.json: rule, steps or passes, records,
# largest client, rows with mask of each live step, steps of the arrays.
CASES = [
    (batches.FixedBatches(size=10), 3, 7, 25, [7] * 3, 3),
    (batches.EpochBatches(size=10), 2, 25, 25, [10] * 4, 4),
    (batches.EpochBatches(size=10, last="keep"), 2, 25, 25, [10, 10, 5] * 2, 6),
    (batches.EpochBatches(size=10, last="keep"), 2, 7, 25, [7] * 2, 6),
    (batches.EpochBatches(size=10, last="keep"), 1, 30, 38, [10] * 3, 4),
    (batches.PoissonBatches(size=10), 4, 7, 25, [7] * 4, 4),
    (batches.EpochBatches(size=10), 3, 1, 25, [1] * 3, 6),
]


@pytest.mark.parametrize(("rule", "count", "records", "largest", "rows", "array_steps"), CASES)
def test_sizes_divisors_and_steps_are_those_of_the_specification(rule, count, records, largest, rows, array_steps):
    assert rule.count(count, largest) == array_steps
    steps = drawn(rule, 0, records, count, largest)
    assert [(len(row), divisor) for row, divisor in steps] == [(of, of) for of in rows]


def test_a_client_with_no_more_records_than_a_batch_is_in_every_step_with_all():
    for rule in (batches.FixedBatches, batches.PoissonBatches, batches.EpochBatches):
        for records in (1, 3, 8):
            for row, divisor in drawn(made(rule, 8), 0, records, 3, 20):
                assert (sorted(row), divisor) == (list(range(records)), records)
    assert batches.FixedBatches(size=8).sampling(8) == accounting.FullBatch()
    assert batches.PoissonBatches(size=8).sampling(3) == accounting.Poisson(1.0)
    assert batches.EpochBatches(size=8).sampling(3) == accounting.Shuffled(3, 3)


@pytest.mark.parametrize("last", ["drop", "keep"])
def test_a_pass_takes_every_record_once_but_for_the_rest_that_is_dropped(last):
    rule = batches.EpochBatches(size=10, last=last)
    for records in (1, 7, 10, 25, 30):
        size = min(10, records)
        steps = drawn(rule, 0, records, 2, 38)
        of_pass, left = len(steps) // 2, []
        for one in (steps[:of_pass], steps[of_pass:]):
            taken = [at for row, _ in one for at in row]
            assert len(set(taken)) == len(taken) == (records if last == "keep" else records - records % size)
            assert all(divisor == len(row) for row, divisor in one)
            left.append(set(range(records)) - set(taken))
        assert (left[0] != left[1]) == (last == "drop" and records == 25)  # another rest each pass
        if records % size == 0:
            assert steps == drawn(batches.EpochBatches(size=10), 0, records, 2, 38)


def picked(rule, passes=2000):
    """Of 25 records, the batch of each in every pass `(passes, 25)`, of three a pass."""
    of = np.full((passes, 25), -1)
    for number, (row, divisor) in enumerate(drawn(rule, 1, 25, passes, 38)):
        assert divisor == 25 // 3
        assert np.all(of[number // 3, row] == -1)
        of[number // 3, row] = number % 3
    assert np.all(of >= 0)  # every record once a pass
    return of


@value
class PickedOnce(batches.AllocatedBatches):
    """Wrong: what a record picks stays for all passes of a round."""

    def sample(self, key, records, steps, largest, smallest):
        longest = self.count(1, largest)
        found = super().sample(key, records, longest, largest, smallest)
        return jax.tree.map(lambda a: jnp.concatenate([a] * (steps // longest)), found)


@pytest.mark.slow
def test_records_pick_their_batch_of_a_pass_by_themselves_and_afresh():
    rule = batches.AllocatedBatches(size=10)
    assert rule.sampling(25) == accounting.RandomAllocation(1, 3)
    assert rule.sampling(10) == accounting.RandomAllocation(1, 1)
    assert drawn(rule, 0, 10, 2, 38) == [(list(range(10)), 10)] * 2

    def deviates(of):
        """Of how often each record is in each batch, each pair together, and each in the same batch of two passes."""
        pairs = np.triu_indices(25, 1)
        each = np.stack([np.sum(of == at, 0) for at in range(3)])
        together = sum(((of == at).T.astype(float) @ (of == at))[pairs] for at in range(3))
        again = np.sum(of[1:] == of[:-1])
        trials = [(each, len(of)), (together, len(of)), (again, of[1:].size)]
        return [np.abs(seen - n / 3).max() / np.sqrt(n * 2 / 9) for seen, n in trials]

    assert max(deviates(picked(rule))) < 4.89
    kept = batches.AllocatedBatches(size=10, kept=True)
    assert kept.sampling(25) == accounting.BallsInBins(3)
    once = picked(kept, 20)
    assert np.all(once == once[0])
    assert np.array_equal(once[0], picked(rule, 1)[0])
    assert deviates(picked(PickedOnce(size=10), 20))[2] > 4.89


@pytest.mark.parametrize(("records", "batches_of_pass", "divisor"), [(7, 1, 7), (25, 3, 8), (30, 3, 10), (41, 5, 8)])
def test_opacus_rate_is_one_over_the_batches_of_a_pass(records, batches_of_pass, divisor):
    """Its DPDataLoader: sample_rate = 1 / len(data_loader), expected_batch_size = int(records * sample_rate)."""
    rule, steps = batches.PoissonBatches(size=10, rate="opacus"), 4000
    assert rule.sampling(records) == accounting.Poisson(1 / batches_of_pass)
    drawn_steps = drawn(rule, 0, records, steps, 60)
    assert {of for _, of in drawn_steps} == {divisor} == {rule.divisor(records)}
    joined = sum(len(row) for row, _ in drawn_steps)
    rate = 1 / batches_of_pass
    away = (joined - steps * records * rate) / np.sqrt(max(steps * records * rate * (1 - rate), 1e-9))
    assert abs(away) < 4.89
    if records in (25, 41):  # size / records is another rate, and would be seen
        assert abs(joined - steps * 10) / np.sqrt(steps * 10 * (1 - 10 / records)) > 4.89
    with pytest.raises(ConfigurationError, match="poisson_rate"):
        check_part(batches.PoissonBatches(size=10, rate="mine"))


def test_steps_that_a_client_lacks_come_at_the_end_of_each_pass():
    batch = batches.EpochBatches(size=10, last="keep").sample(jax.random.key(0), jnp.int32(25), 8, 38, 1)
    assert np.asarray(batch.step_mask).tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    assert not np.asarray(batch.mask)[np.asarray(batch.step_mask) == 0].any()


@pytest.mark.parametrize("refused", [{"size": 0}, {"size": 4, "last": "repeat"}])
def test_what_no_batch_can_be_is_refused(refused):
    with pytest.raises(ConfigurationError):
        check_part(batches.EpochBatches(**refused))


def test_places_of_a_pass_are_uniform_in_every_pass():
    """20,000 keys: a record's place in the first and second pass, jointly; |z| below 4.9 for all 9 cells."""
    rule, keys = batches.EpochBatches(size=1), jax.random.split(jax.random.key(0), 20_000)
    positions = jax.jit(jax.vmap(lambda key: rule.sample(key, jnp.int32(3), 6, 3, 3).positions[:, 0]))(keys)
    first, second = np.asarray(positions).reshape(-1, 2, 3).transpose(1, 0, 2)
    cells = np.bincount(3 * np.argmax(first == 0, 1) + np.argmax(second == 0, 1), minlength=9)
    expected = keys.size / 9
    assert np.all(np.abs(cells - expected) < 4.9 * np.sqrt(expected * (1 - 1 / 9)))
