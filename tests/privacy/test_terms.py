"""How privacy is counted is said once, and what is found of a run is found once."""

import dataclasses

import numpy as np
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import hooks
from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.privacy import planned_run
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms
from fedjax_dp.tools.papers.noise import NOISE_THEOREMS

DATA = ragged_data([20] * 6)
ALGORITHM = fdp.dpnfl(
    cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0, noise_multiplier=2.0
)


def test_keyword_arguments_are_the_fields_of_the_value():
    assert set(PrivacyOptions.__annotations__) == {field.name for field in dataclasses.fields(PrivacyTerms)}
    assert tuple(NOISE_THEOREMS) == tuple(hooks.NOISE_RULES)


@pytest.mark.parametrize("function", [fdp.run, fdp.calibrate, fdp.guarantee, fdp.audit])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"accountant": "pdl"}, "accountant must be one of .* did you mean pld"),
        ({"participation": "all"}, "participation must be one of schedule, expected, worst, once, law, got 'all'"),
        ({"sigma_mode": "paper"}, "sigma_mode must be one of per_client"),
        ({"view": "server"}, "view must be one of uploads"),
    ],
)
def test_terms_that_cannot_be_are_refused_everywhere_in_one_line(function, options, told):
    with pytest.raises(fdp.ConfigurationError, match=told):
        function(ALGORITHM, DATA, rounds=2, **{"delta": 1e-3, **options})


def test_unknown_terms_are_refused():
    with pytest.raises(fdp.ConfigurationError, match="did you mean epsilon"):
        fdp.run(ALGORITHM, DATA, rounds=2, epsilonn=1.0)
    for function in (fdp.calibrate, fdp.guarantee, fdp.audit):
        with pytest.raises(TypeError, match="'epsilonn'"):
            function(ALGORITHM, DATA, rounds=2, delta=1e-3, epsilonn=1.0)


def test_no_epsilon_rests_on_what_papers_claim(monkeypatch):
    known = fdp.guarantee(ALGORITHM, DATA, rounds=2, delta=1e-3)
    assert known.claims
    monkeypatch.setattr(hooks, "claims_about", lambda *_: ())
    assert fdp.guarantee(ALGORITHM, DATA, rounds=2, delta=1e-3) == dataclasses.replace(known, claims=())


@pytest.mark.slow
def test_a_run_checks_once_and_draws_its_schedule_once(monkeypatch):
    calls = {"check": 0, "cohorts_of": 0}
    for name in calls:
        function = getattr(planned_run, name)

        def counting(*arguments, name=name, function=function, **options):
            calls[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(planned_run, name, counting)
    fdp.run(ALGORITHM, DATA, rounds=2, epsilon=3.0, delta=1e-3)
    assert calls == {"check": 1, "cohorts_of": 1}


# What a private step is asked for, by name: a Guarantee is of what a run of the same arguments does, or refuses alike.
ARGUMENTS = {
    "own noise": {},
    "a budget for noise": {"epsilon": 3.0},
    "one that no noise meets": {"epsilon": 1e-9},
    "one for each client": {"epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
    "one for too few": {"epsilon": [1.0, 2.0]},
    "a paper's rule": {"epsilon": 3.0, "sigma_mode": "dpnfl"},
    "a budget for rounds": {"stop_at_epsilon": 2.2},
    "one that all rounds meet": {"stop_at_epsilon": 200.0},
    "one that no round meets": {"stop_at_epsilon": 0.01},
    "rounds for each client": {"stop_at_epsilon": [2.2] * 5 + [100.0]},
    "both": {"epsilon": 3.0, "stop_at_epsilon": 2.0},
    "no delta": {"delta": None},
    "a delta of 0": {"delta": 0.0},
    "a tiny delta": {"delta": 1e-18},
    "another accountant": {"accountant": "rdp"},
    "one without a theorem": {"accountant": "gaussian"},
    "one beyond its conditions": {"accountant": "tcdp", "epsilon": 50.0},
    "all clients worst": {"participation": "worst"},
    "a single round": {"participation": "once"},
    "a budget by the law": {"participation": "law", "epsilon": 1.0},
    "a mean": {"participation": "expected", "stop_at_epsilon": 2.0},
    "a view": {"view": "final_model"},
    "a view that nobody has": {"view": "deployed"},
    "a unit that nobody bounds": {"unit": "user"},
    "a deployment of records": {"deployment_cohort": 30, "deployment_population": 600},
}
OF_CLIENTS = fdp.dp_fedavg(
    cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.1, clip_norm=1.0, noise_multiplier=4.0
)
CLIENTS = {
    "clients": {},
    "clients, a budget": {"stop_at_epsilon": 3.0},
    "clients, a deployment": {"deployment_cohort": 30, "deployment_population": 600},
    "clients, noise": {"epsilon": 2.0},
}


@pytest.mark.parametrize("name", [*ARGUMENTS, *CLIENTS])
def test_a_guarantee_is_that_of_the_run_or_refused_in_the_same_words(name):
    """The wrong one states an epsilon of all rounds, or of the noise before it was found, where the run refuses."""
    algorithm = ALGORITHM if name in ARGUMENTS else OF_CLIENTS
    options = {"rounds": 3, "delta": 1e-3, **ARGUMENTS.get(name, {}), **CLIENTS.get(name, {})}
    answers = []
    for of in (fdp.guarantee, guarantee_of_run):
        try:
            promise = of(algorithm, DATA, **options)
        except fdp.ConfigurationError as error:
            answers.append(str(error))
        else:
            answers.append(promise)
    assert answers[0] == answers[1]


def guarantee_of_run(algorithm, data, **options):
    """What `run` promises before its first round, where it is left."""

    class Enough(BaseException):
        pass

    class First:
        def on_start(self, run):
            self.promise = run.guarantee
            raise Enough

    first = First()
    with pytest.raises(Enough):
        fdp.run(algorithm, data, callbacks=[first], **options)
    return first.promise


def test_noise_does_not_change_the_schedule_and_terms_do_not_change_the_run():
    run = fdp.privacy.plan_run(ALGORITHM, DATA, rounds=5, seed=3, terms=PrivacyTerms(delta=1e-3))
    assert run.with_noise(7.0).cohorts is run.cohorts
    assert run.with_terms(participation="worst").cohorts is run.cohorts
    np.testing.assert_array_equal(run.participation_counts(), fdp.privacy.participations(ALGORITHM, DATA, 5, 3))


HOSPITALS = ClientNames(["north", "St. Mary, Boston", "south"])


@pytest.mark.parametrize(
    ("epsilon", "budgets"),
    [
        ("1,2,3.5", [1, 2, 3.5]),
        ("2.0", [2, 2, 2]),
        ("south=3, north=1,St. Mary, Boston=2", [1, 2, 3]),
        ({"north": 1, "*": 4}, [1, 4, 4]),
        ("0=1,1=2,2=3", [1, 2, 3]),
    ],
)
def test_budgets_go_by_the_order_of_clients_or_by_their_names(epsilon, budgets):
    assert PrivacyTerms(epsilon=epsilon).by_number(3, HOSPITALS).budgets(3) == budgets


@pytest.mark.parametrize(
    ("epsilon", "line"),
    [
        ("1,2", "epsilon must be one budget or 3, one per client, got 2 budgets"),
        ("nort=1,*=2", "one of north, St. Mary, Boston, south, got 'nort'; did you mean north?"),
        ("north=1,south=2", "epsilon must be one for every client, got none for St. Mary, Boston"),
        ("north=1,north=2,*=3", "epsilon of north must be one, got two budgets"),
        ("1,-2,3", "epsilon must be positive and finite, got -2"),
        ("north=1,nan", "epsilon must be a number, one for each client, or one for each by name"),
        (True, "epsilon must be one number, or one per client, got True"),
        ({"north": "much"}, "epsilon must be a number, one for each client, or one for each by name"),
    ],
)
def test_budgets_that_are_not_one_for_each_client_are_refused_in_one_line(epsilon, line):
    assert line in refusal(lambda: PrivacyTerms(epsilon=epsilon).by_number(3, HOSPITALS).budgets(3))


@pytest.mark.parametrize("stop", ["accuracy", "accuracy=nan", "perplexity=1"])
def test_a_guarantee_refuses_the_stops_that_a_run_refuses(stop):
    algorithm = fdp.dpnfl(
        cohort_size=2, batch_size=4, local_steps=1, learning_rate=0.1, clip_norm=1, noise_multiplier=2
    )
    data, words = ragged_data((20, 30, 40)), {"rounds": 2, "delta": 1e-3, "stop": stop}
    assert refusal(fdp.guarantee, algorithm, data, **words) == refusal(fdp.run, algorithm, data, **words)


def test_budgets_by_name_are_those_in_order():
    data = dataclasses.replace(ragged_data((20, 30, 40)), names=HOSPITALS)
    words = {"rounds": 2, "delta": 1e-3}
    algorithm = fdp.algorithms.dpnfl(cohort_size=3, batch_size=5, clip_norm=1.0, local_steps=1, learning_rate=0.1)
    spellings = [1.0, 2.0, 3.0], "south=3,north=1,*=2", {"north": 1, "St. Mary, Boston": 2, "south": 3}
    first, *others = (fdp.guarantee(algorithm, data, epsilon=epsilon, **words).epsilons for epsilon in spellings)
    assert others == [first, first]
    assert first[0] < first[1] < first[2]
