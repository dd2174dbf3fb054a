"""Clients that have fewer records than a batch: each is accounted for its own batches."""

import numpy as np
import pytest

from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, GaussianSteps, NotCoveredError, Shuffled, epsilon_of, repeated
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.parts import EpochBatches, FixedBatches, PoissonBatches, RecordGaussian
from fedjax_dp.parts.clipping import ClipBatch

# Case by case `ragged_account` of the specification's participation_vectors.json: records of clients, batches, local
# steps or epochs, rounds of each client, z, delta, releases and epsilons; dp-accounting's PLD and, at rate 1, the
# closed form, which an own FFT and 40 digits agree with to 2.4e-6.
CASES = [
    ([7, 40, 400], FixedBatches(size=10), 5, [4, 4, 4], 4.0, 1e-5, [20, 20, 20], [11.4800228, 2.8856440, 0.2540603]),
    ([7, 40, 400], PoissonBatches(size=10), 5, [4, 4, 4], 2.0, 1e-5, [20, 20, 20], [11.4800228, 2.7957757, 0.2427309]),
    ([7, 25, 400], EpochBatches(size=10, last="keep"), 2, [4, 6, 4], 12.0, 1e-5, [8, 12, 8],
     [1.8663693, 2.3414271, 1.8663693]),
    ([60, 61, 200], FixedBatches(size=64), 3, [10, 2, 10], 6.0, 1e-4, [30, 6, 30], [7.9150787, 2.9954434, 2.2990881]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case[1]).__name__}-{case[0][0]}")
def test_clients_are_accounted_for_their_own_batches(case):
    sizes, batches, steps, rounds, z, delta, releases, wanted = case
    privatizer = RecordGaussian(clip_norm=1.0, noise_multiplier=z)
    for records, times, count, epsilon in zip(sizes, rounds, releases, wanted, strict=True):
        rate = 1.0 if isinstance(batches, EpochBatches) else min(batches.size / records, 1.0)
        assert batches.sampling(records).rate == pytest.approx(rate, rel=1e-8)
        of_round = privatizer.event(z, batches, records, batches.count(steps, records), lambda: np.ones(1))
        event = repeated(of_round, times)
        assert [times for _, times in event.leaves()] == [count]
        assert epsilon_of(event, delta) == pytest.approx(epsilon, rel=2e-3)


def test_kept_batches_are_steps_of_a_pass_and_cost_no_more():
    kept, dropped = Shuffled(10, 25, "keep"), Shuffled(10, 25)
    assert (kept.sizes, dropped.sizes) == ((10, 10, 5), (10, 10))
    events = [GaussianSteps(9.0, law, Adjacency.REPLACE_ONE, 4 * law.steps_per_epoch) for law in (kept, dropped)]
    assert epsilon_of(events[0], 1e-5) == epsilon_of(events[1], 1e-5)
    assert events[0].releases == 4
    with pytest.raises(ConfigurationError, match="a multiple of the 3 batches"):
        GaussianSteps(9.0, kept, Adjacency.REPLACE_ONE, 4)


def test_noise_on_a_mean_wants_batches_of_one_size():
    privatizer = RecordGaussian(clip_norm=1.0, noise_multiplier=2.0, bound=ClipBatch())
    with pytest.raises(ConfigurationError, match="batches of several sizes"):
        privatizer.event(2.0, EpochBatches(size=10, last="keep"), 25, 3, lambda: np.ones(1))
    assert privatizer.event(2.0, EpochBatches(size=10, last="keep"), 30, 3, lambda: np.ones(1)).releases == 1


def test_passes_of_equal_batches_attain_what_an_allocation_costs_which_is_less_than_their_price():
    event = GaussianSteps(3.0, Shuffled(4, 12), Adjacency.REPLACE_ONE, 4 * 3)
    attained = epsilon_of(event, 1e-5, accounting.ATTAINED)
    allocated = GaussianSteps(1.5, accounting.RandomAllocation(1, 3), Adjacency.ADD_REMOVE, 4 * 3)
    price = epsilon_of(allocated, 1e-5)
    assert price * (1 - 6e-3) <= attained <= price * (1 - 1e-3)  # a lower bound, rounded down by what grids may add
    assert attained < 0.7 * epsilon_of(event, 1e-5)
    for uneven in (Shuffled(4, 13), Shuffled(4, 13, "keep")):  # a record is not in every pass, or not in all alike
        with pytest.raises(NotCoveredError, match="no pair of neighbours"):
            epsilon_of(GaussianSteps(3.0, uneven, Adjacency.REPLACE_ONE, 12), 1e-5, accounting.ATTAINED)
