"""The 30 worked examples of personalisation (tests/golden/personal_examples.json), through the public constructors.

They were computed by an independent NumPy loop; tolerance 1e-6 on numbers of order one.
"""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import own_parts
import pytest
from helpers import GivenCohorts, GivenNoise, QuadraticModel, benchmark, next_state, states_of, with_given

from fedjax_dp import accounting, algorithms, data, parts, privacy
from fedjax_dp.parts.clusters import GaussianChoice, GumbelChoice
from fedjax_dp.parts.cohorts import AllClients
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import value
from fedjax_dp.rounds.comparison import gain, standing
from fedjax_dp.rounds.personal import models_of_clients
from fedjax_dp.rounds.simulation import as_float32_leaves, run_key

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "personal_examples.json").read_text())
INPUTS, EXPECTED = GOLDEN["inputs"], GOLDEN["expected"]
LR, TAU, CLIP, SIGMA = INPUTS["lr"], INPUTS["tau"], INPUTS["clip"], INPUTS["sigma"]
SIZES = np.array([len(rows) for rows in INPUTS["clients"]])
NOISE, PERSONAL = (np.array(INPUTS[name]) for name in ("noise", "noise_personal"))
SERVER = np.array(INPUTS["server_noise"])
MODEL = QuadraticModel(start=tuple(INPUTS["w0"]))
COMMON = {
    "cohort_size": None,
    "batch_size": None,
    "batches": "full",
    "local_steps": TAU,
    "learning_rate": LR,
    "schedule": "constant",
    "l2": 0.0,
}
NOISY = {"clip_norm": CLIP, "noise_multiplier": SIGMA * SIZES / CLIP}  # sigma on the mean of n_i records
LAMBDA = INPUTS["lambda"]
B = INPUTS["bilinear"]
SHOWN = set()


@value
class GivenSeries(GivenNoise):
    """Noise from a table for each series of a client's steps; what follows the last round has its noise."""

    def draw(self, key, step, size, state):
        return self.table[step.stream][jnp.minimum(step.round, 1), step.client, step.number][:size], state


def store_of(clients):
    rows = [np.array(client, np.float32) for client in clients]
    x, sizes = np.concatenate(rows), [len(client) for client in rows]
    dataset = data.Dataset("worked", x, np.zeros(len(x), np.int32), x, np.zeros(len(x), np.int32), classes=1)
    return data.federate(dataset, np.split(np.arange(len(x)), np.cumsum(sizes)[:-1]))


STORE = store_of(INPUTS["clients"])


@dataclasses.dataclass(frozen=True)
class BilinearModel:
    """Prediction v u x, loss 1/2 (v u x - y)^2; u is shared, v a client's own."""

    start: tuple = tuple(B["start"])

    def init(self, key):
        return {"u": jnp.array([self.start[0]]), "v": jnp.array([self.start[1]])}

    def loss(self, params, x, y, key=None):
        return 0.5 * ((params["u"] * params["v"] * x[0] - x[1]) ** 2).sum()

    def logits(self, params, x):
        return x


PAIRS = store_of([np.stack([x, y], 1) for x, y in B["data"]])
PAIR_SIZES = np.array([len(x) for x, _ in B["data"]])
ON_PAIRS = {"head": "v", "learning_rate": B["lr"], "clip_norm": B["clip"]}
ON_PAIRS["noise_multiplier"] = B["sigma"] * PAIR_SIZES / B["clip"]


def run(entry, rounds=2, *, cohorts=None, tables=(NOISE, PERSONAL), server=None, model=MODEL, store=STORE, **options):
    """The states after each round of an entry, and its algorithm."""
    cohort = AllClients()
    if cohorts is not None:
        ids = np.array(cohorts)
        cohort = GivenCohorts(ids=ids, counts=np.ones(ids.shape), rate=np.full(3, 2 / 3), size=ids.shape[1])
    made = algorithms.CATALOGUE[entry](**{**COMMON, **options})
    made = with_given(made, cohort=cohort, server=None if server is None else server[:, None, None])
    if hasattr(made.local.privatizer, "source"):
        source = GivenSeries(table=tuple(jnp.asarray(table) for table in tables))
        made = own_parts.with_privatizer(made, source=source)
    return as_float32_leaves(made), states_of(made, model, store, rounds)[1:]


def own(made, state):
    return models_of_clients(made.local, state, STORE, run_key(0), model=MODEL)


def of_clients(name, server):
    """The options of an example with noise on the updates of clients."""
    private = {"clip_norm": EXPECTED[name]["clip"], "noise_multiplier": EXPECTED[name]["z"]}
    return {"noise_on": "clients", "cohort": "uniform", "server": server, **private}


def agree(name, got, expected):
    SHOWN.add(name)
    np.testing.assert_allclose(got, np.array(expected), atol=1e-6, rtol=1e-6)


def test_local_models_equal_worked_example():
    made, states = run("local", **NOISY)
    for state, expected in zip(states, EXPECTED["local_noise"]["personal"], strict=True):
        agree("local_noise", own(made, state), expected)
        agree("local_noise", state.params, INPUTS["w0"])


def test_the_shared_model_under_noise_equals_worked_example():
    _, states = run("finetune", **NOISY)
    for state, expected in zip(states, EXPECTED["fedavg_noise"]["w"], strict=True):
        agree("fedavg_noise", state.params, expected)


@pytest.mark.parametrize(("name", "noise"), [("finetune_noise", 1.0), ("finetune_clean", 0.0)])
def test_fine_tuned_models_equal_worked_example(name, noise):
    made, states = run("finetune", **NOISY, personal_noise=noise)
    agree(name, states[-1].params, EXPECTED[name]["start"])
    agree(name, own(made, states[-1]), EXPECTED[name]["personal"])


OF_PAIRS = {"model": BilinearModel(), "store": PAIRS, **ON_PAIRS}
ROUND_BY_ROUND = {  # the entry, and the options of `run`
    "ditto_noise": ("ditto", {**NOISY, "strength": LAMBDA}),
    "ditto_lambda0": ("ditto", {**NOISY, "strength": 0.0}),
    "ditto_partial": ("ditto", {**NOISY, "strength": LAMBDA, "estimator": "mean"}),
    # a record's two gradients have one noise vector: the shared model's before the client's own
    "ditto_joint": (
        "ditto_joint",
        {**NOISY, "strength": LAMBDA, "tables": (np.concatenate([NOISE, PERSONAL], -1),)},
    ),
    "mrmtl_noise": ("mr_mtl", {**NOISY, "strength": LAMBDA}),
    "mrmtl_lambda0": ("mr_mtl", {**NOISY, "strength": 0.0}),
    "mrmtl_implicit": ("mr_mtl", {**NOISY, "strength": LAMBDA, "proximal": "implicit"}),
    "mrmtl_rate_times_lambda_1": ("mr_mtl", {**NOISY, "strength": 10.0}),
    "mrmtl_prox_inside_clip": ("mr_mtl", {**NOISY, "strength": LAMBDA, "proximal": "inside"}),
    "mrmtl_partial": ("mr_mtl", {**NOISY, "strength": LAMBDA}),
    "apfl_noise": ("apfl", {**NOISY, "alpha": INPUTS["alpha"]}),
    "apfl_adaptive": ("apfl", {**NOISY, "alpha": INPUTS["alpha"], "alpha_learning_rate": INPUTS["rate_alpha"]}),
    "ppsgd_noise": ("ppsgd", {**NOISY, "personal_learning_rate": INPUTS["rate_personal"]}),
    # One gradient is clipped, and noise is added to it, not to what is subtracted: the server steps by -LR.
    "ppsgd_client_level": (
        "ppsgd",
        {
            **of_clients("ppsgd_client_level", -SERVER),
            "learning_rate": 1.0,
            "local_steps": 1,
            "server_learning_rate": LR,
            "personal_learning_rate": INPUTS["rate_personal"],
        },
    ),
    "fedper_noise": ("fedper", OF_PAIRS),
    "fedper_partial": ("fedper", {**OF_PAIRS, "estimator": "mean"}),
    "fedper_client_level": ("fedper", {**OF_PAIRS, **of_clients("fedper_client_level", SERVER[:, :1])}),
    "fedrep_noise": (
        "fedrep",
        {
            **OF_PAIRS,
            "local_steps": EXPECTED["fedrep_noise"]["base_steps"],
            "head_steps": EXPECTED["fedrep_noise"]["head_steps"],
            "tables": (PERSONAL[..., :1], NOISE[..., 1:]),
        },
    ),
}
FIELDS = {  # of an example, from a state
    "w": lambda state: state.params,
    "mean": lambda state: state.params,
    "v": lambda state: state.clients[-1]["model"],
    "alpha": lambda state: state.clients[-1]["alpha"],
    "theta": lambda state: state.clients[-1],
    "base": lambda state: state.params["u"][0],
    "heads": lambda state: state.clients[-1]["head"][:, 0],
}


@pytest.mark.parametrize("name", ROUND_BY_ROUND)
def test_models_of_their_own_equal_worked_example(name):
    entry, options = ROUND_BY_ROUND[name]
    made, states = run(entry, cohorts=EXPECTED[name].get("cohorts"), **options)
    assert EXPECTED[name]["rounds"][0].keys() <= {*FIELDS, "personal", "clipped"}
    for state, expected in zip(states, EXPECTED[name]["rounds"], strict=True):
        for field in FIELDS.keys() & expected.keys():
            agree(name, FIELDS[field](state), expected[field])
        if "personal" in expected:
            agree(name, own(made, state), expected["personal"])
        if "heads" in expected:  # of which the server's never moves
            agree(name, state.params["v"][0], B["start"][1])


def test_clients_with_their_own_models_tend_to_the_fixed_point():
    told = EXPECTED["mrmtl_fixed_point"]
    shares, minimisers = SIZES / SIZES.sum(), np.array([np.mean(rows, 0) for rows in INPUTS["clients"]])
    agree("mrmtl_fixed_point", shares @ minimisers, told["mean"])
    for strength, expected, distance in zip(
        told["lambdas"], told["personal"], told["distance_times_lambda"], strict=True
    ):
        options = {"clip_norm": 1e3, "noise_multiplier": 0.0, "strength": strength, "local_steps": 1}
        made, states = run("mr_mtl", 1, **options)
        state = states[-1]._replace(
            params=jnp.array(told["mean"], jnp.float32), clients=(*states[-1].clients[:-1], jnp.array(expected))
        )
        after = next_state(made, STORE, run_key(0), state, model=MODEL)
        agree("mrmtl_fixed_point", own(made, after), expected)
        agree("mrmtl_fixed_point", after.params, told["mean"])
        agree("mrmtl_fixed_point", strength * np.abs(np.array(expected) - told["mean"])[1, 0], distance)


def test_a_clean_head_moves_every_record_of_its_client():
    """The second gradient of what is shared differs by more than a record's bound: the head carries the record on."""
    told, leak = EXPECTED["clean_head_leaks"], B["leak"]
    u, differences, heads = leak["start"][0], [], [leak["start"][1]] * 2
    for _ in range(leak["steps"]):
        means = []
        for side, (x, y) in enumerate([(leak["x"], leak["y"]), (leak["x_other"], leak["y_other"])]):
            x, y = np.array(x), np.array(y)
            residual = u * heads[side] * x - y
            means.append(np.clip(residual * heads[side] * x, -leak["clip"], leak["clip"]).mean())
            heads[side] -= leak["lr"] * (residual * u * x).mean()
        differences.append(abs(means[0] - means[1]))
    records = len(leak["x"])
    agree("clean_head_leaks", differences, told["difference"])
    agree("clean_head_leaks", 2 * leak["clip"] / records, told["bound_per_record"])
    agree("clean_head_leaks", 2 * leak["clip"], told["bound_any"])


def test_private_choices_equal_worked_example():
    c = INPUTS["clusters"]
    losses, sizes, told = np.array(c["losses"]), np.array(c["n"]), EXPECTED["ifca_gaussian"]
    cut = np.clip(losses, 0, c["bound"])
    rule = GaussianChoice(bound=c["bound"])
    agree("ifca_gaussian", [rule.std(n, c["z"], 3) for n in sizes], told["std"])
    noisy = np.stack(
        [rule.noisy(jnp.array(a), n, c["z"], jnp.array(b)) for a, n, b in zip(cut, sizes, c["noise"], strict=True)]
    )
    agree("ifca_gaussian", noisy, told["noisy"])
    choice = np.argmin(noisy, 1)
    agree("ifca_gaussian", choice, told["choice"])
    models = parts.OwnClusters(choice=rule, number=3)
    shares, updates = sizes / sizes.sum(), np.array(c["updates"])
    mine = shares[:, None] * (np.arange(3) == choice[:, None])
    total = {"delta": np.einsum("ck,cn->kn", mine, updates), "weight": mine.sum(0)}
    agree("ifca_gaussian", models.absorb(np.zeros((3, 2)), total, 4), told["update"])
    event = rule.event(None, c["z"], 50, None)
    agree("ifca_gaussian", 1 / event.relative_noise, told["mu_of_one_selection"])
    told, gumbel = EXPECTED["ifca_gumbel"], GumbelChoice(bound=c["bound"], epsilon=c["epsilon"])
    agree("ifca_gumbel", [gumbel.scale(n) for n in sizes], told["scale"])
    noisy = np.stack(
        [gumbel.noisy(jnp.array(a), n, 0, jnp.array(b)) for a, n, b in zip(cut, sizes, c["gumbel"], strict=True)]
    )
    agree("ifca_gumbel", np.argmin(noisy, 1), told["choice"])
    rho = accounting.accountants.cost_of(gumbel.event(None, 0, 50, None), "zcdp").rho
    agree("ifca_gumbel", rho, told["rho_of_one_selection"])


def test_the_theory_of_mean_estimation_equals_worked_example():
    theory = benchmark("mean_estimation")
    m = INPUTS["mean"]
    for row in EXPECTED["mean_estimation"]["rows"]:
        z = theory.noise_for(row["epsilon"], m["delta"])
        s = theory.release_variance(m["n"], m["sigma"], m["clip"], z)
        every = np.full(m["K"], s)
        agree("mean_estimation", [z, s], [row["z"], row["s"]])
        agree("mean_estimation", theory.best_strength(s, row["tau"]), row["lambda_star"])
        agree("mean_estimation", theory.errors_at(0.0, every, row["tau"])[0], row["local"])
        agree("mean_estimation", theory.errors_at(np.inf, every, row["tau"])[0], row["fedavg"])
        agree("mean_estimation", theory.errors_at(row["lambda_star"], every, row["tau"])[0], row["mrmtl"])
        agree("mean_estimation", theory.least_error(s, row["tau"], m["K"]), row["mrmtl"])
        for strength, expected in row["at_lambda"].items():
            agree("mean_estimation", theory.errors_at(float(strength), every, row["tau"])[0], expected)


def test_clients_of_different_sizes_and_budgets_equal_worked_example():
    theory = benchmark("mean_estimation")
    m, told = INPUTS["mean_silos"], EXPECTED["mean_estimation_silos"]
    s = np.array(
        [
            theory.release_variance(n, m["sigma"], m["clip"], theory.noise_for(epsilon, m["delta"]))
            for n, epsilon in zip(m["n"], m["epsilon"], strict=True)
        ]
    )
    name = "mean_estimation_silos"
    agree(name, s, told["s"])
    agree(name, theory.errors_at(0.0, s, m["tau"]), told["local"])
    agree(name, theory.errors_at(np.inf, s, m["tau"]), told["fedavg"])
    for strength, expected in told["at_lambda"].items():
        agree(name, theory.errors_at(float(strength), s, m["tau"]), expected)
    own_strengths = [theory.best_strength(one, m["tau"]) for one in s]
    agree(name, own_strengths, told["at_own_lambda"]["lam"])
    agree(name, theory.errors_at(np.array(own_strengths), s, m["tau"]), told["at_own_lambda"]["error"])
    agree(name, theory.errors_at(told["best_common_lambda"], s, m["tau"]), told["best_common"])


def test_the_table_of_metrics_equals_worked_example():
    m, told = INPUTS["metrics"], EXPECTED["metrics_table"]
    tests = np.array(m["tests"])
    values = {name: np.array(correct) / np.maximum(tests, 1) for name, correct in m["correct"].items()}
    for name, expected in told["table"].items():
        agree("metrics_table", standing(values[name], tests), list(expected.values()))
    found = gain(values["personal"], [values["local"], values["global"]], tests)
    agree("metrics_table", found, [told["no_worse_than_both"], told["regret_to_better"]])
    assert np.sum(tests > 0) == told["clients_tested"]


RELEASES = {
    "local": ("local", {}),
    "finetune": ("finetune", {"personal_steps": 30}),
    "ditto": ("ditto", {}),
    "ditto_joint": ("ditto_joint", {}),
    "mrmtl": ("mr_mtl", {}),
    "fedper": ("fedper", {"head": "v"}),
    "fedrep": ("fedrep", {"head": "v", "local_steps": 1, "head_steps": 4}),
    "apfl": ("apfl", {}),
    "ppsgd": ("ppsgd", {}),
    "ifca": ("ifca", {"choices": 2}),
}


@pytest.mark.parametrize("name", RELEASES)
def test_releases_and_epsilons_equal_worked_example(name):
    told, r = EXPECTED["releases"], INPUTS["releases"]
    entry, options = RELEASES[name]
    options = {**COMMON, "local_steps": r["tau"], "clip_norm": 1.0, "noise_multiplier": r["z"], **options}
    made = algorithms.CATALOGUE[entry](**options)
    for at, view in enumerate(("uploads", "deployed")):
        terms = PrivacyTerms(delta=r["delta"], view=view)
        planned = plan_run(made, PAIRS, rounds=r["rounds"], terms=terms, model=BilinearModel())
        assert sum(count for _, count in client_events(planned)[0].leaves()) == told["counts"][name][at]
        found = privacy.guarantee(made, PAIRS, rounds=r["rounds"], delta=r["delta"], view=view, model=BilinearModel())
        agree("releases", found.epsilon, told["epsilon"][name][at])


def test_every_example_is_shown():
    assert set(EXPECTED) == SHOWN
