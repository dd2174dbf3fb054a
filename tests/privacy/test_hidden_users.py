"""People with several records: the rule that bounds them, and the Guarantee of all that is kept of one."""

import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, GaussianSteps, Poisson, Unit, WithoutReplacement, epsilon_of
from fedjax_dp.data.store import Dataset, of_users
from fedjax_dp.pytrees import changed

SIZES, DELTA = [40, 60], 1e-3


def bounded(users, bound, records=None):
    x = np.zeros((len(users) if records is None else records, 1), np.float32)
    y = np.zeros(len(x), np.int32)
    return Dataset("toy", x, y, x[:1], y[:1], classes=2, user_ids=np.array(users), records_per_user=bound)


def slowly(parts, users, bound):
    """The rule, a record at a time."""
    home, counts, kept = {}, {}, []
    for client, rows in enumerate(parts):
        kept.append([])
        for row in rows:
            user = users[row]
            if home.setdefault(user, client) == client and counts.get(user, 0) < bound:
                counts[user] = counts.get(user, 0) + 1
                kept[-1].append(row)
    return kept


def test_of_each_user_the_first_records_are_kept_at_the_first_client():
    rng = np.random.default_rng(0)
    for bound in (1, 2, 5):
        users = rng.integers(0, 30, 200)
        parts = np.split(rng.permutation(200)[:180], [50, 90])
        found = of_users(bounded(users.astype(str), bound), parts)
        assert [part.tolist() for part in found] == slowly(parts, users.astype(str), bound)


def test_what_is_kept_of_a_user_depends_on_no_other():
    """Else a neighbour, without one user, would differ in the records of others."""
    users = np.array([0, 1, 0, 2, 1, 0, 2, 2])
    parts = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7])]
    whole = of_users(bounded(users, 2), parts)
    for gone in range(3):
        rest = [part[users[part] != gone] for part in parts]
        without = of_users(bounded(users, 2), rest)
        assert [part[users[part] != gone].tolist() for part in whole] == [part.tolist() for part in without]


def algorithm(**changes):
    base = {"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.dpnfl(**{**base, "noise_multiplier": 6.0, **changes})


def promise(bound, **changes):
    data = changed(ragged_data(SIZES), records_per_user=bound)
    return fdp.guarantee(algorithm(**changes), data, rounds=5, delta=DELTA)


@pytest.mark.parametrize("batches", ["without-replacement", "poisson"])
def test_the_guarantee_is_of_all_records_of_a_user(batches):
    stated = promise(3, batches=batches)
    assert stated.unit is Unit.USER
    assert "one user with all their records" in str(stated)
    assert any("at most 3 records" in line for line in stated.assumptions)
    of = {
        "poisson": lambda n: (Poisson(4 / n), Adjacency.ADD_REMOVE),
        "without-replacement": lambda n: (WithoutReplacement(4, n), Adjacency.REPLACE_ONE),
    }[batches]
    wanted = [epsilon_of(GaussianSteps(6.0, *of(n), 10, Unit.USER, 3), DELTA) for n in SIZES]
    assert stated.epsilons == pytest.approx(wanted)


def test_one_record_of_a_user_is_a_record_and_more_cost_more():
    record = fdp.guarantee(algorithm(), ragged_data(SIZES), rounds=5, delta=DELTA)
    assert record.unit is Unit.RECORD
    grown = [promise(bound).epsilon for bound in (1, 2, 4)]
    assert grown[0] == record.epsilon
    assert grown == sorted(set(grown))


def test_noise_is_found_for_users():
    data = changed(ragged_data(SIZES), records_per_user=4)
    found = fdp.calibrate(algorithm(), data, rounds=5, epsilon=2.0, delta=DELTA)
    assert max(fdp.guarantee(found, data, rounds=5, delta=DELTA).epsilons) == pytest.approx(2.0, rel=2e-3)


def test_noise_on_whole_clients_hides_their_users_too():
    data = changed(ragged_data(SIZES), records_per_user=4)
    common = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1}
    stated = fdp.guarantee(fdp.dp_fedavg(**common, clip_norm=1.0, noise_multiplier=1.0), data, rounds=5, delta=DELTA)
    assert stated.unit is Unit.CLIENT


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"learnt": ("means of 3 columns",)}, "features were made with users' records"),
        ({}, "unit must be record or client for an audit"),
    ],
)
def test_what_is_not_of_users_is_refused_in_one_line(data, words):
    users = changed(ragged_data(SIZES), records_per_user=2, **data)
    with pytest.raises(errors.ConfigurationError, match=words):
        fdp.audit(algorithm(), users, rounds=2, delta=DELTA, trials=100)


def test_ids_of_other_records_are_refused():
    with pytest.raises(errors.ConfigurationError, match="of each of the 9 training records"):
        of_users(bounded([1, 2], 1, records=9), [np.arange(9)])


def test_a_column_of_users_is_no_feature_and_bounds_their_records(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{row % 2},h{row // 60},{row // 6:03d},train" for row, a in enumerate(rng.normal(size=120))]
    tests = ["0.1,0,h0,900,test", "0.2,1,h1,901,test"]
    (tmp_path / "visits.csv").write_text("\n".join(["a,label,who,patient,split", *rows, *tests]))
    reading = {"client_column": "who", "user_column": "patient", "records_per_user": 2}
    dataset = fdp.load(f"csv:{tmp_path / 'visits.csv'}", **reading)
    data = fdp.federate(dataset, fdp.data.natural(dataset.client_ids))
    assert data.record_shape == (1,)
    assert data.sizes.tolist() == [20, 20]
    assert data.records_per_user == 2
    for alone in ({"user_column": "patient"}, {"records_per_user": 2}):
        with pytest.raises(errors.ConfigurationError, match="must be given"):
            fdp.load(f"csv:{tmp_path / 'visits.csv'}", client_column="who", **alone)
