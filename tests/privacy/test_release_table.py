"""What rounds release of which clients: a row of the table for a client, worked out once for those that are alike."""

import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp.privacy.client_events import ReleaseTable
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms

DATA, ROUNDS = ragged_data([8, 8, 8, 10, 12, 9]), 6
COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.3, "noise_multiplier": 2.0}
FALLS = {"noise_schedule": "linear", "noise_end": 0.5, "noise_rounds": ROUNDS, "noise_stages": 3}


def planned(entry, participation="schedule", **options):
    terms = PrivacyTerms(delta=1e-3, participation=participation)
    algorithm = fdp.CATALOGUE[entry].of({**COMMON, "clip_norm": 0.7, **options})
    return plan_run(algorithm, DATA, rounds=ROUNDS, seed=3, terms=terms)


@pytest.mark.parametrize("participation", ["law", "worst", "expected"])
def test_clients_that_are_alike_share_one_event(participation):
    """A million clients are of a few kinds: one event each is what accountants would price one by one."""
    events = ReleaseTable(planned("dpnfl", participation)).events()
    assert len({id(event) for event in events}) == len(set(events)) == len(set(DATA.sizes.tolist()))


@pytest.mark.parametrize("options", [{}, {"cohort": "uniform"}])
@pytest.mark.parametrize("entry", ["dpnfl", "dp_fedavg"])
def test_a_single_round_is_counted_as_a_run_of_one_in_the_worst_case(entry, options):
    once, one = planned(entry, "once", **options), planned(entry, "worst", **options).prefix(1)
    assert ReleaseTable(once).events() == ReleaseTable(one).events()


@pytest.mark.parametrize("options", [{}, FALLS])
def test_rounds_of_all_levels_are_those_that_each_client_is_drawn_for(options):
    run = planned("dpnfl", **options)
    for rounds in (1, 4, ROUNDS):
        first = run.prefix(rounds)
        counted = [sum(one.counts) for one in ReleaseTable(first).attendance()]
        np.testing.assert_array_equal(counted, run.participation_counts(slice(rounds)))
        at_least = [sum(one.counts) for one in ReleaseTable(first).attendance(at_least=2)]
        np.testing.assert_array_equal(at_least, np.maximum(counted, 2))
