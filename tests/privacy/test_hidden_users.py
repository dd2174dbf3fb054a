"""Units of several records: the rule that bounds them, and the Guarantee of all that is kept of one."""

import math

import numpy as np
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Adjacency, GaussianSteps, Unit, WithoutReplacement, epsilon_of, gaussian_epsilon
from fedjax_dp.accounting.ledger import read_rounds, text_of
from fedjax_dp.data.records import pool_records
from fedjax_dp.data.store import Dataset, UnitBound, of_units
from fedjax_dp.privacy.guarantees import verified_guarantee
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import replace

SIZES, DELTA = [40, 60], 1e-3


def bounded(users, records, clients=1, of=None):
    x = np.zeros((len(users) if of is None else of, 1), np.float32)
    y = np.zeros(len(x), np.int32)
    bounds = (UnitBound(Unit.USER, records, clients),)
    return Dataset("toy", x, y, x[:1], y[:1], classes=2, unit_ids=np.array(users), bounds=bounds)


def slowly(parts, users, records, clients):
    """The rule, a record at a time."""
    homes, counts, kept = {}, {}, []
    for client, rows in enumerate(parts):
        kept.append([])
        for row in rows:
            home = homes.setdefault(users[row], [])
            if client not in home and len(home) < clients:
                home.append(client)
            at = users[row], client
            if client in home and counts.get(at, 0) < records:
                counts[at] = counts.get(at, 0) + 1
                kept[-1].append(row)
    return kept


def test_of_each_user_the_first_records_are_kept_at_the_first_clients():
    rng = np.random.default_rng(0)
    for records, clients in ((1, 1), (2, 1), (5, 1), (1, 2), (2, 3), (1, 9)):
        users = rng.integers(0, 30, 200)
        parts = np.split(rng.permutation(200)[:180], [50, 90])
        found, bounds = of_units(bounded(users.astype(str), records, clients), parts)
        assert [part.tolist() for part in found] == slowly(parts, users.astype(str), records, clients)
        assert bounds == (UnitBound(Unit.USER, records, clients),)


def test_what_is_kept_of_a_user_depends_on_no_other():
    """Else a neighbour, without one user, would differ in the records of others."""
    users = np.array([0, 1, 0, 2, 1, 0, 2, 2])
    parts = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7])]
    for clients in (1, 2):
        whole, _ = of_units(bounded(users, 1, clients), parts)
        for gone in range(3):
            rest = [part[users[part] != gone] for part in parts]
            without, _ = of_units(bounded(users, 1, clients), rest)
            assert [part[users[part] != gone].tolist() for part in whole] == [part.tolist() for part in without]


def test_a_token_is_bounded_where_each_text_is_at_one_client():
    """Windows of a text that are dealt to several clients hold one token at several."""
    texts, token = np.array([0, 0, 0, 1, 1, 1]), UnitBound(Unit.TOKEN, 3)
    data = bounded(texts, 1)._replace(bounds=(token,))
    assert of_units(data, [np.arange(3), np.arange(3, 6)])[1] == (token,)
    assert of_units(data, [np.array([0, 2, 4]), np.array([1, 3, 5])])[1] == ()
    assert pool_records(data).bounds == ()


def algorithm(**changes):
    base = {"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.dpnfl(**{**base, "noise_multiplier": 6.0, **changes})


def promise(bound, **changes):
    data = replace(ragged_data(SIZES), bounds=(UnitBound(Unit.USER, bound),))
    return fdp.guarantee(algorithm(**changes), data, rounds=5, delta=DELTA)


@pytest.mark.parametrize("batches", ["without-replacement", "poisson"])
def test_the_guarantee_is_of_all_records_of_a_user(batches):
    stated = promise(3, batches=batches)
    assert stated.unit is Unit.USER
    assert "one user with all their records" in str(stated)
    assert any("at most 3 records" in line for line in stated.assumptions)
    of = {
        "poisson": lambda n: (accounting.Poisson(4 / n), Adjacency.ADD_REMOVE),
        "without-replacement": lambda n: (WithoutReplacement(4, n), Adjacency.REPLACE_ONE),
    }[batches]
    wanted = [epsilon_of(GaussianSteps(6.0, *of(n), 10, Unit.USER, 3), DELTA) for n in SIZES]
    assert stated.epsilons == pytest.approx(wanted)


def test_noise_on_whole_clients_hides_their_users_too():
    data = replace(ragged_data(SIZES), bounds=(UnitBound(Unit.USER, 4),))
    common = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1}
    of_clients = fdp.guarantee(
        fdp.dp_fedavg(**common, clip_norm=1.0, noise_multiplier=1.0), data, rounds=5, delta=DELTA
    )
    assert of_clients.unit is Unit.CLIENT
    assert "which records are kept of a user is fixed beforehand: with or without a client" in of_clients.assumptions
    assert any("shares and all divisors are public constants, whoever takes" in line for line in of_clients.assumptions)


def several(records=2, clients=2, sizes=(40, 40, 40), **data):
    return replace(ragged_data(list(sizes)), bounds=(UnitBound(Unit.USER, records, clients),), **data)


def full(**changes):
    return algorithm(**{"batches": "full", "batch_size": None, "cohort_size": None, **changes})


def test_releases_of_the_clients_of_a_user_compose():
    """mu^2 = sum_i K_i tau (2 n_i / z_i)^2 over as many clients, the dearest ones (time_vectors.json, user_joint)."""
    stated = fdp.guarantee(full(), several(3, 2), rounds=5, delta=DELTA)
    mu = math.sqrt(2 * 5 * 2 * (2 * 3 / 6.0) ** 2)
    assert stated.unit is Unit.USER
    assert stated.epsilons == pytest.approx([gaussian_epsilon(DELTA, 1 / mu)] * 3, rel=1e-6)
    assert any("at most 3 records at each of at most 2 clients" in line for line in stated.assumptions)
    noises = np.array([6.0, 12.0, 8.0])
    own = fdp.guarantee(full(noise_multiplier=noises), several(3, 2), rounds=5, delta=DELTA)
    squares = 5 * 2 * (2 * 3 / noises) ** 2
    wanted = [gaussian_epsilon(DELTA, 1 / math.sqrt(one + squares.max())) for one in squares]
    assert own.epsilons == pytest.approx(wanted, rel=1e-6)


def test_more_clients_of_a_user_cost_more_and_one_is_as_before():
    grown = [fdp.guarantee(algorithm(), several(2, clients), rounds=2, delta=DELTA).epsilon for clients in (1, 2, 3, 9)]
    assert grown[:3] == sorted(set(grown[:3]))
    assert grown[3] == grown[2]  # there are no more
    one = fdp.guarantee(algorithm(), replace(several(), bounds=(UnitBound(Unit.USER, 2),)), rounds=2, delta=DELTA)
    assert grown[0] == one.epsilon


def test_noise_of_others_hides_no_user_at_several_clients():
    """In one sum of h clients the changes of a user at m of them add up to m, over noise sqrt(h) z: releases that
    compose with the noise of the sum, the wrong program, would say sqrt(m)."""
    secure = {"secure": True, "local_steps": 1, "noise_multiplier": 20.0, "estimator": "mean"}
    made = full(**secure)
    stated = fdp.guarantee(made, several(1, 3), rounds=1, delta=DELTA)
    summed, wrong = (gaussian_epsilon(DELTA, 20.0 * math.sqrt(3) / (2 * moved)) for moved in (3, math.sqrt(3)))
    assert wrong < summed == pytest.approx(stated.epsilon, rel=1e-6)


def test_noise_is_found_for_users():
    one = replace(ragged_data(SIZES), bounds=(UnitBound(Unit.USER, 4),))
    for made, data in ((algorithm(), one), (full(cohort_size=2), several(2, 2))):
        found = fdp.calibrate(made, data, rounds=5, epsilon=3.0, delta=DELTA)
        assert fdp.guarantee(found, data, rounds=5, delta=DELTA).epsilon == pytest.approx(3.0, rel=2e-3)
    assert len(set(np.asarray(found.local.privatizer.noise_multiplier).tolist())) == 1  # users are at several clients


def test_a_law_of_cohorts_that_decides_of_several_clients_at_once_is_counted_as_the_worst():
    stated = fdp.guarantee(full(cohort_size=2), several(), rounds=3, delta=DELTA, participation="law")
    worst = fdp.guarantee(full(cohort_size=2), several(), rounds=3, delta=DELTA, participation="worst")
    assert stated.epsilons == worst.epsilons


def test_where_no_client_is_known_to_be_the_dearest_there_is_no_epsilon():
    with pytest.raises(errors.ConfigurationError, match=r"unit must be at one client .* got user; use clients of"):
        fdp.guarantee(algorithm(), several(sizes=(40, 60)), rounds=3, delta=DELTA)
    mixed = fdp.guarantee(full(), several(sizes=(40, 60)), rounds=3, delta=DELTA)
    assert mixed.unit is Unit.USER


def test_the_ledger_of_users_at_several_clients_gives_their_guarantee():
    run = fdp.privacy.plan_run(algorithm(), several(), rounds=3, terms=PrivacyTerms(delta=DELTA))
    spending = Spending(run, verified_guarantee(run))
    phase = {"clients": {"count": 3}}
    lines = spending.lines(0, 3)
    ledger = read_rounds(text_of(lines), phase, "ledger")
    assert ledger.epsilons() == pytest.approx(spending.guarantee.epsilons, abs=1e-9)


TEXTS = (UnitBound(Unit.TOKEN, 2), UnitBound(Unit.TEXT, 5))


def test_the_guarantee_is_of_the_unit_that_is_named():
    """Text >= token >= window, each with as many windows as the data keep."""
    data = replace(ragged_data(SIZES), bounds=TEXTS, overlap="a record is a window")
    made = algorithm()
    stated = {unit: fdp.guarantee(made, data, rounds=3, delta=DELTA, unit=unit) for unit in ("record", "token", "text")}
    assert [one.unit.value for one in stated.values()] == list(stated)
    assert stated["record"].epsilon < stated["token"].epsilon < stated["text"].epsilon
    assert fdp.guarantee(made, data, rounds=3, delta=DELTA) == stated["text"]  # what somebody bounds is meant
    assert fdp.guarantee(made, replace(data, bounds=TEXTS[:1]), rounds=3, delta=DELTA).unit is Unit.RECORD
    assert any("of which one text may have 5" in line for line in stated["record"].warnings)
    assert not stated["token"].warnings
    assert any("stands in at most 2 records" in line for line in stated["token"].assumptions)
    wanted = [epsilon_of(GaussianSteps(6.0, WithoutReplacement(4, n), Adjacency.REPLACE_ONE, 6, Unit.TOKEN, 2), DELTA)
              for n in SIZES]  # fmt: skip
    assert stated["token"].epsilons == pytest.approx(wanted)


@pytest.mark.parametrize(("unit", "bounds"), [("record", TEXTS), ("token", TEXTS), ("record", TEXTS[1:])])
def test_a_record_that_leaves_a_text_lets_its_next_one_in(unit, bounds):
    """One out and one in is a replacement: twice the change of one record more or less, and a token may move more."""
    users = np.array([0, 0, 0, 1])
    whole, less = (of_units(bounded(users, 2), [rows])[0][0].tolist() for rows in (np.arange(4), np.arange(1, 4)))
    assert ({*whole} - {*less}, {*less} - {*whole}) == ({0}, {2})
    data = replace(ragged_data(SIZES), bounds=bounds)
    told = refusal(fdp.guarantee, algorithm(batches="poisson"), data, rounds=2, delta=DELTA, unit=unit)
    assert told.startswith("unit must be text, of which another record is kept where one leaves, got")
    replaced = fdp.guarantee(algorithm(), data, rounds=2, delta=DELTA, unit=unit)  # in its place at its client
    assert any("what takes the place of a record is of its text" in line for line in replaced.assumptions)


CLIENT_LEVEL = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}


@pytest.mark.parametrize(
    ("made", "unit", "words"),
    [
        (algorithm(), "user", "one whose records the data bound, got user; give --user-column and --records-per-user"),
        (algorithm(), "text", "got text; give --windows-per-text"),
        (algorithm(), "token", "got token; use texts that are cut into windows"),
        (algorithm(), "client", "of records here, got client; use dp_fedavg, or noise_on clients"),
        (fdp.dp_fedavg(**CLIENT_LEVEL, noise_multiplier=1.0), "user", "left out, for noise on whole clients"),
        (algorithm(), "person", "unit must be one of"),
    ],
)
def test_a_unit_that_nothing_hides_is_refused_in_one_line(made, unit, words):
    assert words in refusal(fdp.guarantee, made, ragged_data(SIZES), rounds=2, delta=DELTA, unit=unit)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"learnt": ("means of 3 columns",)}, "unit must be record where features were made with training"),
        ({}, "unit must be record or client for an audit, which plants one record, got user; with --unit record"),
    ],
)
def test_what_is_not_of_users_is_refused_in_one_line(data, words):
    users = replace(ragged_data(SIZES), bounds=(UnitBound(Unit.USER, 2),), **data)
    with pytest.raises(errors.ConfigurationError, match=words):
        fdp.audit(algorithm(), users, rounds=2, delta=DELTA, trials=100)


def test_ids_of_other_records_are_refused():
    for data in (bounded([1, 2], 1, of=9), bounded([1] * 9, 1)._replace(unit_ids=None)):
        with pytest.raises(errors.ConfigurationError, match="of each of the 9 training records"):
            of_units(data, [np.arange(9)])


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
    assert data.bounds == (UnitBound(Unit.USER, 2),)
    fdp.data.save_store(data, tmp_path / "store")
    assert fdp.data.open_store(tmp_path / "store").bounds == data.bounds
    for alone in ({"user_column": "patient"}, {"records_per_user": 2}, {"clients_per_user": 2}):
        with pytest.raises(errors.ConfigurationError, match="must be given"):
            fdp.load(f"csv:{tmp_path / 'visits.csv'}", client_column="who", **alone)
