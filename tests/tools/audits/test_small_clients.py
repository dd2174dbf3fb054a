"""Audits of a client of one record, and of one with fewer records than a batch."""

import pytest
from helpers import ragged_data, usual
from wrong_programs import mutated_part

import fedjax_dp as fdp
from fedjax_dp.pytrees import replace
from fedjax_dp.tools.audits.audit import audit

SIZES, BATCH = (1, 3, 12), 4
RULES = ("without-replacement", "poisson", "epochs")


def algorithm_of(batches):
    noise = {"clip_norm": 0.7, "noise_multiplier": 2.0}
    steps = {"batch_size": BATCH, "local_steps": 2, "learning_rate": 0.3, "batches": batches}
    return fdp.dp_fedavg_record(cohort_size=None, **steps, **noise)


def audited(algorithm, client, **options):
    return audit(algorithm, ragged_data(SIZES), rounds=4, delta=1e-3, trials=2_000, client=client, **options)


# CI: test_no_private_entry_is_caught, tests/tools/audits/test_audit.py, and tests/accounting/test_ragged_clients.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("batches", usual(RULES, RULES[:1]))
@pytest.mark.parametrize("client", usual([0, 1], [0]))
def test_an_audit_of_a_small_client_is_consistent_with_its_epsilon(batches, client):
    found = audited(algorithm_of(batches), client)
    assert not found.violated, found.verdict
    assert found.epsilon / 2 < found.lower <= found.epsilon


def _noise_on_the_mean(right, key, step, model, params, records):
    """Noise C z / B on the mean over n_k records, where C z / n_k is what hides one."""
    honest = right.gradient(key, step, model, params, records)[0]
    silent, report = replace(right, noise_multiplier=0.0).gradient(key, step, model, params, records)
    return silent + (honest - silent) * records.divisor / BATCH, report


@pytest.mark.exhaustive  # CI: such noise is refused before a run, tests/rounds/test_ragged_batches.py
@pytest.mark.parametrize("client", [0, 1])
def test_noise_on_the_mean_of_a_small_client_is_noticed(client):
    right = algorithm_of("without-replacement")
    wrong = mutated_part(right.local.privatizer, "gradient", _noise_on_the_mean)
    assert audited(replace(right, local=replace(right.local, privatizer=wrong)), client).violated


@pytest.mark.slow
def test_the_epsilon_of_a_client_that_is_sampled_does_not_hold_for_one_that_is_not():
    right = algorithm_of("without-replacement")
    sampled = fdp.guarantee(right, ragged_data(SIZES), rounds=4, delta=1e-3).epsilons[2]
    assert audited(right, 1, claim=float(sampled)).violated
