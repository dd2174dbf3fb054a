"""Runs whose cohorts a log names: each client's own rounds are counted, and nothing is made of how they were drawn."""

import jax
import numpy as np
import pytest
import scipy
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import errors, parts
from fedjax_dp.accounting import ParticipationLog, gaussian_epsilon, pattern_sensitivity
from fedjax_dp.accounting.ledger import read_rounds, text_of
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.privacy.guarantees import verified_guarantee
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import equal, replace
from fedjax_dp.rounds import simulation
from fedjax_dp.tools import cli

COMMON = {"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
DELTA, N, ROUNDS = 1e-5, 6, 12
DATA = ragged_data([8] * N)
IN_TURN = np.array([(t, 2 * (t % 3) + place) for t in range(ROUNDS) for place in range(2)])  # as a cyclic cohort

COLUMNS = {"white": (1.0,), "correlated": (1.0, 0.5, 0.375), "negative": (1.0, -0.4)}  # the first one of C
PAIRS = [[0, 0], [0, 1], [1, 2], [2, 0], [3, 1], [4, 0], [5, 2], [7, 0]]


def logged(algorithm, pairs, rounds=ROUNDS, clients=N):
    return replace(algorithm, cohort=parts.LoggedCohort.of(ParticipationLog.of(np.array(pairs), rounds, clients)))


def client_level(noise_multiplier=5.0, source=None, **options):
    made = fdp.dp_fedavg(**COMMON, noise_multiplier=noise_multiplier, cohort="cyclic", **options)
    return made if source is None else replace(made, upload=replace(made.upload, source=source))


def banded(column, rounds):
    """Noise whose C begins with this column."""
    return parts.BandedNoise(bands=scipy.signal.lfilter([1.0], column, np.eye(1, rounds)[0]))


def planned(algorithm, data=DATA, rounds=ROUNDS, **terms):
    return fdp.privacy.plan_run(algorithm, data, rounds=rounds, terms=PrivacyTerms(delta=DELTA, **terms))


@pytest.mark.parametrize("name", COLUMNS)
def test_each_client_is_counted_for_its_very_rounds(name):
    """The wrong program takes the root of the number of rounds, which is too little where noise is correlated."""
    column, log = np.array(COLUMNS[name]), ParticipationLog.of(np.array(PAIRS), 8, 4)
    source = None if name == "white" else banded(column, 8)
    stated = verified_guarantee(planned(logged(client_level(5.0, source), PAIRS, 8, 4), ragged_data([8] * 4), 8))
    moved = np.array(
        [pattern_sensitivity(np.resize(np.append(column, np.zeros(8)), 8), pattern) for pattern in log.patterns]
    )
    wanted, wrong = ([gaussian_epsilon(DELTA, 2.5 / by) if by else 0.0 for by in of] for of in (moved, log.counts**0.5))
    assert stated.epsilons == pytest.approx(wanted, rel=1e-4)  # the noise multiplier is a float32
    assert (wrong[0] < wanted[0]) == (name != "white")
    assert any("trusted to depend on no records" in line for line in stated.assumptions)


def test_the_very_rounds_cost_no_more_than_the_worst_of_their_kind():
    source = parts.BandedNoise(bands=fdp.accounting.inverse_root_bands(4))
    cyclic = verified_guarantee(planned(client_level(source=source)))
    own = verified_guarantee(planned(logged(client_level(source=source), IN_TURN)))
    assert max(own.epsilons) == pytest.approx(cyclic.epsilon, rel=1e-9)  # the first two clients, at rounds 0, 3, 6, 9
    assert len(set(own.epsilons)) == 3
    for z in (2.0, 9.0):
        run = planned(client_level(z, source), epsilon=4.0)
        assert fdp.calibrate(run.algorithm, DATA, rounds=ROUNDS, epsilon=4.0, delta=DELTA).upload.noise_multiplier > 0


@pytest.mark.slow
def test_a_run_by_the_log_of_a_law_is_the_run_by_the_law_bit_for_bit():
    with_law, with_log = client_level(), logged(client_level(), IN_TURN)
    ends = [
        fdp.simulate(one, DATA, rounds=ROUNDS, seed=1, evaluate_every=ROUNDS).params for one in (with_law, with_log)
    ]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    before = simulation.advance._cache_size()
    other = logged(client_level(), np.stack([IN_TURN[:, 0], IN_TURN[::-1, 1]], 1))
    fdp.simulate(other, DATA, rounds=ROUNDS, seed=1, evaluate_every=ROUNDS)
    assert simulation.advance._cache_size() == before  # another log of the same shape


@pytest.mark.parametrize("source", [None, parts.BandedNoise(bands=(1.0, -0.5, -0.125))])
def test_the_ledger_of_a_log_gives_its_guarantee(source):
    run = planned(logged(client_level(source=source), PAIRS, 8), rounds=8)
    spending = Spending(run, verified_guarantee(run))
    phase = {"clients": {"count": N}}
    lines = list(spending.lines(0, 8))
    assert [line["so_far"] for line in lines] == [source is not None] * 8
    assert lines[0]["clients"][0][0] == [0, 1]
    ledger = read_rounds(text_of(lines), phase, "ledger")
    assert ledger.epsilons() == pytest.approx(spending.guarantee.epsilons, abs=1e-9)
    assert spending.guarantee.epsilons[3:] == (0.0, 0.0, 0.0)


def test_records_are_counted_by_the_rounds_of_their_client():
    counts = ParticipationLog.of(IN_TURN, ROUNDS, N).counts
    of = {1: verified_guarantee(planned(fdp.dpnfl(**COMMON, noise_multiplier=3.0), rounds=1))}
    assert counts.tolist() == [4] * N
    assert of[1].unit is fdp.accounting.Unit.RECORD
    once = logged(fdp.dpnfl(**COMMON, noise_multiplier=3.0), [[t, t % 3] for t in range(3)], 3)
    stated = verified_guarantee(planned(once, rounds=3))
    assert stated.epsilons[0] == pytest.approx(max(of[1].epsilons), rel=1e-9)
    assert stated.epsilons[3:] == (0.0, 0.0, 0.0)
    law = verified_guarantee(planned(once, rounds=3, participation="law"))
    assert law.epsilon > stated.epsilon  # a log has no law: every round counts
    assert any("nothing less is proved" in line for line in law.assumptions)


def test_a_budget_may_end_a_run_before_its_log():
    run, stated = fdp.privacy.guarantees.prepare(planned(logged(client_level(), IN_TURN), stop_at_epsilon=2.4))
    assert 0 < run.rounds < ROUNDS
    assert stated.epsilon <= 2.4


SHORT = [[t, 0] for t in range(5)]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (logged(client_level(), SHORT, 5), "of all 12 rounds of the run, got one of 5 rounds"),
        (logged(client_level(), [*SHORT, [12, 1]], 13), "of rounds 0 to 11, those of the run, got round 12"),
        (logged(client_level(), [[t, 7] for t in range(12)], 12, 8), "of clients 0 to 5, got client 7"),
        (logged(fdp.dp_ftrl(**COMMON, noise_multiplier=1.0), SHORT, 12), "of a fixed size for a mean"),
    ],
    ids=["short", "long", "stranger", "mean"],
)
def test_what_no_log_can_be_of_is_refused_in_one_line(algorithm, words):
    assert words in refusal(lambda: verified_guarantee(planned(algorithm)))


def test_a_deployment_has_no_log():
    terms = {"deployment_cohort": 4, "deployment_population": 60}
    with pytest.raises(errors.ConfigurationError, match="states no with_size"):
        planned(logged(client_level(), IN_TURN), **terms)


def test_a_configuration_takes_a_log_in_the_place_of_a_law(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("round,client\n0,1\n1,2\n")
    options = {"participation_log": str(file), "rounds": 2, "noise_multiplier": 2.0}
    spec = RunSpec.of(options)
    assert spec.options["cohort"] == "log"
    assert "cohort_size" not in spec.options
    assert RunSpec.of(spec.flat()).flat() == spec.flat()
    assert list(spec.files) == [str(file)]  # whose checksum a resumed run compares
    made = fdp.CATALOGUE["dpnfl"].of({**COMMON, "cohort_size": None, "cohort": "log", "participation_log": str(file)})
    assert made.cohort.log(3).patterns == [(), (0,), (1,)]
    for wrong, words in (
        ({"cohort_size": 3}, "cohort_size must be left out with cohort log"),
        ({"cohort": "poisson"}, "participation_log must be left out unless cohort is log"),
    ):
        with pytest.raises(errors.ConfigurationError, match=words):
            RunSpec.of(options | wrong)
    with pytest.raises(errors.ConfigurationError, match="left out with cohort log"):
        fdp.dpnfl.of({**COMMON, "cohort": "log", "participation_log": str(file)})
    with pytest.raises(errors.ConfigurationError, match="participation_log must be given"):
        fdp.dpnfl(**{**COMMON, "cohort_size": None}, cohort="log")


def test_the_first_rounds_of_a_log_are_a_log():
    whole = ParticipationLog.of(np.array([[0, 1], [1, 0], [1, 2], [3, 4], [3, 5], [3, 1]]), 4, N)
    for rounds in (1, 2, 3):
        first = whole.rounds < rounds
        pairs = np.stack([whole.rounds, whole.clients], 1)[first]
        own = parts.LoggedCohort.of(ParticipationLog.of(pairs, rounds, N))
        cohort = parts.LoggedCohort.of(whole).prefix(rounds)
        assert cohort.fixed == own.fixed
        np.testing.assert_array_equal(cohort.ids, own.ids)
        answering = parts.Dropout(cohort=parts.LoggedCohort.of(whole), rate=0.1).prefix(rounds)
        np.testing.assert_array_equal(answering.cohort.ids, own.ids)
        assert ParticipationLog.of(pairs, rounds, N).digest() == whole.digest(rounds) != whole.digest()
    made = client_level()
    assert made.prefix(2) == made


IRREGULAR = [[0, 0], [0, 1], [1, 2], [1, 3], [2, 0], [2, 4], [3, 0], [3, 1]]


def record_level(pairs, rounds, estimator="mean"):
    return logged(fdp.dpnfl(**COMMON, noise_multiplier=3.0, estimator=estimator), pairs, rounds)


@pytest.fixture(scope="module")
def shorter(tmp_path_factory):
    """The folder of a run of the first two rounds of a log."""
    path = tmp_path_factory.mktemp("logged") / "run"
    fdp.run(record_level(IRREGULAR[:4], 2), DATA, rounds=2, evaluate_every=1, delta=DELTA, out=path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "rounds", "words"),
    [
        ([[0, 0], [0, 2], *IRREGULAR[2:]], 4, "algorithm of the run must be unchanged"),
        ([*IRREGULAR, [3, 2]], 4, "no round of it has as many clients as the log has in a later one"),
        (IRREGULAR, 3, "participation log must be of rounds 0 to 2, those of the run, got round 3"),
        (IRREGULAR[:4], 4, "got one of 2 rounds"),
    ],
    ids=["other", "wider", "beyond", "ended"],
)
def test_a_run_goes_on_by_no_log_that_does_not_go_on_from_its_own(shorter, pairs, rounds, words):
    length = 1 + max(at for at, _ in pairs)
    assert words in refusal(fdp.resume, shorter, record_level(pairs, length), DATA, rounds=rounds)


def test_weights_that_know_the_whole_log_are_those_of_the_longer_log_from_the_start():
    """The wrong program goes on with updates over other rates than the first rounds had; cycles have the same."""
    known = {}
    for name, pairs, first, rounds in (("irregular", IRREGULAR, 2, 4), ("in turn", IN_TURN, 6, 12)):
        for estimator in ("mean", "wor_delta"):
            whole = record_level(pairs, rounds, estimator)
            rates = [cohort.rates(DATA.shares) for cohort in (whole.cohort, whole.prefix(first).cohort)]
            known[name, estimator] = whole.goes_by_rates and not equal(*rates)
    assert [key for key, other in known.items() if other] == [("irregular", "wor_delta")]


@pytest.mark.slow
def test_a_run_goes_on_by_a_longer_log_as_if_it_had_begun_with_it(shorter):
    whole = record_level(IRREGULAR, 4)
    wanted = fdp.run(whole, DATA, rounds=4, evaluate_every=1, delta=DELTA)
    for _ in range(2):  # the second time it is finished
        longer = fdp.resume(shorter, whole, DATA, rounds=4)
        jax.tree.map(np.testing.assert_array_equal, longer.params, jax.tree.map(np.asarray, wanted.params))
        assert longer.guarantee.epsilons == wanted.guarantee.epsilons


@pytest.mark.slow
def test_a_configured_run_goes_on_where_its_log_was_continued(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("round,client\n0,1\n0,2\n1,3\n1,0\n")
    words = ["--dataset", "digits", "--num-clients", "4", "--algorithm", "dpnfl", "--estimator", "mean", "--quiet",
             "--noise-multiplier", "2", "--delta", "1e-3", "--participation-log", "log.csv"]  # fmt: skip
    assert cli.main(["run", *words, "--rounds", "2", "--out", "short"]) == 0
    log.write_text("round,client\n0,1\n0,2\n1,3\n1,2\n2,0\n2,1\n")
    assert cli.main(["run", "--resume", "short", "--rounds", "3"]) == 2
    assert "content of log.csv of the run must be unchanged" in capsys.readouterr().err
    log.write_text("round,client\n1,3\n1,0\n0,1\n0,2\n\n2,0\n2,1\n")  # whatever the order of its lines
    assert cli.main(["run", "--resume", "short", "--rounds", "3"]) == 0
    epsilons = fdp.open_run("short").guarantee.epsilons
    assert epsilons[0] == epsilons[1] > epsilons[2] == epsilons[3] > 0  # of two rounds, and of one
