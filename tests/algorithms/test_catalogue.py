"""Every catalogue entry, with its variants, against the slow NumPy reference (tests/reference.py), noise given.

The reference was written from the specification alone. Only raw random draws are shared: cohorts and noise are given,
batches are drawn with the simulator's keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flax import linen as nn
from helpers import GivenCohorts, TwoLayerModel, ragged_data, states_of, usual, with_given

from fedjax_dp import algorithms, errors
from fedjax_dp.models import model as fdp_model
from fedjax_dp.parts.cohorts import AllClients
from fedjax_dp.parts.feature_matching import NoisyFeatures
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.simulation import run_key

pytestmark = pytest.mark.slow  # each compiles a round of its own; the worked examples run by default

ROUNDS, STEPS, RATE, CLIP = 3, 3, 0.2, 0.6


class Softmax(nn.Module):
    """Softmax regression that does not start at zero."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, kernel_init=nn.initializers.normal(0.5), bias_init=nn.initializers.normal(0.5))(x)


MODELS = {
    "softmax": (fdp_model(Softmax(), (3,)), reference.softmax_problem(3, 3)),
    "two-layer": (TwoLayerModel(3, 4), reference.two_layer_problem(3, 4)),
}
SCHEDULES = {"constant": lambda t: 1.0, "inverse_sqrt": lambda t: 1 / np.sqrt(1 + t), "inverse": lambda t: 1 / (1 + t)}


class Setting:
    """One generated federation with everything that is random in a run."""

    def __init__(self, seed, *, model="softmax", sizes=None, multiset=False, everyone=False, cohorts=None):
        rng = np.random.default_rng(seed)
        self.sizes = sizes or rng.integers(3, 8, 5).tolist()
        self.data = ragged_data(self.sizes, seed=seed)
        self.model, self.problem = MODELS[model]
        self.everyone, count = everyone, len(self.sizes)
        self.start = np.asarray(ravel(self.model.init(role_key(run_key(0), "init")))[0], float)
        size = self.start.size
        self.noise = rng.normal(size=(ROUNDS + 1, count, STEPS + 1, size))  # the last round's place is the warm start
        self.server = rng.normal(size=(ROUNDS, size))
        self.chances = rng.dirichlet(np.full(count, 5.0))
        if cohorts:
            self.cohorts = cohorts
        elif everyone:
            self.cohorts = [list(range(count))] * ROUNDS
        elif multiset:
            self.cohorts = [rng.permutation([0, 2, 2] if t % 2 else [1, 4, 4]).tolist() for t in range(ROUNDS)]
        else:
            self.cohorts = [rng.permutation(count)[:3].tolist() for _ in range(ROUNDS)]
        self.shares = np.asarray(self.data.shares, float)

    def given_cohorts(self, rate):
        distinct = [list(dict.fromkeys(ids)) for ids in self.cohorts]
        counts = [[ids.count(i) for i in unique] for ids, unique in zip(self.cohorts, distinct, strict=True)]
        again, counts = [*distinct, distinct[0]], [*counts, counts[0]]  # one more, for exchanges after the last round
        return GivenCohorts(
            ids=np.array(again), counts=np.array(counts), rate=np.asarray(rate, float), size=len(distinct[0])
        )

    def ours(self, entry, *, rate=None, server_noise=None, **options):
        """States of the simulator."""
        common = {
            "cohort_size": 3,
            "batch_size": 2,
            "local_steps": STEPS,
            "learning_rate": RATE,
            "l2": 0.0,
            "schedule": "constant",
        }
        value = algorithms.CATALOGUE[entry].of({**common, **options})
        self.law, self.value = value.local.batches, value
        noisy = hasattr(value.local.privatizer, "source")
        table = None
        if server_noise is not None:
            table = np.zeros((ROUNDS, 1, ROUNDS, self.start.size))
            for t in range(ROUNDS):
                table[t, 0, t] = server_noise[t]
        rate = np.full(len(self.sizes), 3 / len(self.sizes)) if rate is None else rate
        cohort = AllClients() if self.everyone else self.given_cohorts(rate)
        value = with_given(value, cohort=cohort, steps=self.noise if noisy else None, server=table)
        return states_of(value, self.model, self.data, ROUNDS)

    def case(self, *, schedule="constant", per_step=False):
        """The same run for the reference; call it after `ours`, which fixes the law of batches."""
        largest, steps = self.data.largest, self.law.count(STEPS, self.data.largest)
        more = sum(c.extra_gradients for c in self.value.local.corrections)
        drawn = {}

        def batch(t, i):
            if (t, i) not in drawn:
                key = run_key(0)
                if t == ROUNDS:
                    own = jax.random.fold_in(role_key(key, "look at the start"), i)
                else:
                    own = jax.random.fold_in(jax.random.fold_in(role_key(key, "local"), t), i)
                rows = steps + (more if t < ROUNDS else 0)
                drawn[t, i] = jax.device_get(
                    self.law.sample(role_key(own, "batch"), jnp.int32(self.sizes[i]), rows, largest, self.data.smallest)
                )
            return drawn[t, i]

        def positions(t, i, s):
            found = batch(t, i)
            taken = [*np.flatnonzero(found.step_mask), *[None] * steps]  # a client's own steps; smaller ones take fewer
            return None if taken[s] is None else found.positions[taken[s]][found.mask[taken[s]]]

        stored = [self.data.x[o : o + n] for o, n in zip(self.data.offsets, self.sizes, strict=True)]
        labels = [self.data.y[o : o + n] for o, n in zip(self.data.offsets, self.sizes, strict=True)]
        factor = SCHEDULES[schedule]
        return reference.Case(
            problem=self.problem,
            x=[np.asarray(x, float) for x in stored],
            y=labels,
            shares=self.shares,
            start=self.start,
            cohorts=self.cohorts,
            batches=positions,
            divisor=lambda t, i, s: float(batch(t, i).divisor[s]),
            steps=steps,
            rate=lambda t, s: RATE * factor(t * steps + s if per_step else t),
            noise=self.noise,
            server_noise=self.server,
        )


def compare(states, expected, what=lambda state: {}):
    """Parameters after every round, and what else the two keep."""
    for state, result in zip(states[1:], expected, strict=True):
        for name, got in {"w": ravel(state.params)[0], **what(state)}.items():
            np.testing.assert_allclose(np.asarray(got), np.asarray(result[name]), rtol=3e-4, atol=3e-5, err_msg=name)


NOISE = np.linspace(0.5, 1.5, 5)
PRIVATE = {"clip_norm": CLIP, "noise_multiplier": NOISE}
REF = {"clip": "example", "bound": CLIP, "multiplier": lambda i: NOISE[i] / 2}  # of the sensitivity 2C/B


FEDAVG = {
    "full": ({"everyone": True}, {"estimator": "full"}, {}),
    "wor_delta": ({}, {"estimator": "wor_delta"}, {}),
    "wor_model": ({}, {"estimator": "wor_model"}, {}),
    "biased": ({}, {"estimator": "biased"}, {}),
    "renorm": ({}, {"estimator": "renorm"}, {}),
    "mean": ({}, {"estimator": "mean"}, {}),
    "median": ({}, {"estimator": "median"}, {}),
    "trimmed mean": ({}, {"estimator": "trimmed_mean", "trim": 0.35}, {"estimator": 0.35}),
    "median of an even number": ({"cohorts": [[0, 3, 2, 4], [4, 1, 0, 3], [2, 1, 3, 0]]}, {"estimator": "median"}, {}),
    "md": ({"multiset": True}, {"estimator": "wor_delta"}, {"estimator": "md"}),
    "is": ({"multiset": True}, {"estimator": "wor_delta"}, {"estimator": "is"}),
    "full batches, l2": ({}, {"batches": "full", "batch_size": None, "l2": 0.05}, {"l2": 0.05}),
    "poisson batches": ({}, {"batches": "poisson"}, {"estimator": "wor_delta"}),
    "epochs": ({}, {"batches": "epochs", "local_steps": STEPS}, {"estimator": "wor_delta"}),
    "rmsprop, kept": (
        {},
        {"local_rule": "rmsprop", "keep_rule": True, "learning_rate": RATE},
        {"estimator": "wor_delta", "rule": "rmsprop", "state": "persist"},
    ),
    "rmsprop, reset": ({}, {"local_rule": "rmsprop"}, {"estimator": "wor_delta", "rule": "rmsprop", "state": "reset"}),
    "schedule per step": ({}, {"schedule": "inverse_sqrt", "per_step": True}, {"estimator": "wor_delta"}),
}


@pytest.mark.parametrize("name", usual(FEDAVG, ["median of an even number"]))
def test_fedavg_equals_the_reference(name):
    setting, options, told = FEDAVG[name]
    given = Setting(11, **setting)
    rate = {"md": 3 * given.shares, "is": 3 * given.chances}.get(name)
    if name == "full":
        rate = np.ones(5)
    states = given.ours("fedavg", rate=rate, **options)
    told = {"estimator": options.get("estimator", "wor_delta"), **told}
    if name == "is":
        told["q"] = given.chances
    case = given.case(schedule=options.get("schedule", "constant"), per_step=options.get("per_step", False))
    compare(states, reference.fedavg(case, **told))


SERVERS = {
    "fedavgm": (
        {"server_learning_rate": 0.7, "momentum": 0.8},
        {"server": "momentum", "server_rate": 0.7, "momentum": 0.8},
    ),
    "fedadam": ({"server_learning_rate": 0.1}, {"server": "adam", "server_rate": 0.1}),
    "fedyogi": ({"server_learning_rate": 0.1}, {"server": "yogi", "server_rate": 0.1}),
}


@pytest.mark.parametrize("entry", usual(["fedyogi", "fedavgm", "fedadam"], ["fedyogi"]))
def test_servers_equal_the_reference(entry):
    options, told = SERVERS[entry]
    given = Setting(3)
    compare(given.ours(entry, **options), reference.fedavg(given.case(), estimator="wor_delta", **told))


# CI: test_fedprox_equals_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("form", usual(["half", "full"], ["half"]))
def test_fedprox_equals_the_reference(form):
    given = Setting(4)
    states = given.ours("fedprox", mu=0.7, prox_form=form, estimator="renorm")
    compare(states, reference.fedprox(given.case(), mu=0.7, prox_form=form))


SCAFFOLD = {
    "update": ("scaffold", {"server_learning_rate": 0.8}, {"eta_g": 0.8}),
    "gradient": ("scaffold", {"controls": "gradient"}, {"option": "I"}),
    "private": ("dp_scaffold", PRIVATE, REF),
    "private, by records": ("dp_scaffold", {**PRIVATE, "estimator": "renorm"}, {**REF, "estimator": "renorm"}),
    "private, gradient": ("dp_scaffold", {**PRIVATE, "controls": "gradient"}, {**REF, "option": "I"}),
    "private, warm": ("dp_scaffold", {**PRIVATE, "warm_start": True}, {**REF, "warm": ROUNDS}),
    "tensor median": (
        "dp_scaffold",
        {"clip_norm": CLIP, "noise_multiplier": NOISE, "clipping": "tensor-median"},
        {"clip": "per_tensor_median", "multiplier": REF["multiplier"]},
    ),
}


@pytest.mark.parametrize("name", usual(SCAFFOLD, ["tensor median"]))
def test_scaffold_equals_the_reference(name):
    entry, options, told = SCAFFOLD[name]
    given = Setting(5)
    states = given.ours(entry, **options)
    run = reference.scaffold if entry == "scaffold" else reference.dp_scaffold
    expected = run(given.case(), **told)
    compare(states, expected, lambda state: {"c": state.shared[0], "c_i": state.clients[0]})


# CI: test_q_fedavg_equals_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
@pytest.mark.parametrize(("q", "norm"), [(0.7, "weighted"), pytest.param(1.5, "update", marks=pytest.mark.exhaustive)])
def test_q_fedavg_equals_the_reference(q, norm):
    given = Setting(6)
    states = given.ours("q_fedavg", q=q, fair_norm=norm)
    compare(states, reference.q_fedavg(given.case(), q=q, q_h=norm))


FEATURES = {
    "rfedavg": ("rfedavg", {}, {}),
    "rfedavg, everyone": ("rfedavg", {"everyone": True}, {}),
    "rfedavg, all": ("rfedavg", {}, {"delta_scope": "all"}),
    "rfedavg, before": ("rfedavg", {}, {"delta_at": "global_before"}),
    "rfedavg, self": ("rfedavg", {}, {"leave_one_out": False}),
    "plus": ("rfedavg_plus", {}, {}),
    "plus, everyone": ("rfedavg_plus", {"everyone": True}, {}),
    "plus, all": ("rfedavg_plus", {}, {"delta_scope": "all"}),
    "plus, self": ("rfedavg_plus", {}, {"leave_one_out": False}),
}


@pytest.mark.parametrize("name", usual(FEATURES, ["plus, self"]))
def test_feature_matching_equals_the_reference(name):
    entry, setting, options = FEATURES[name]
    given = Setting(7, model="two-layer", **setting)
    states = given.ours(entry, feature_strength=0.3, **options)
    told = {"lam": 0.3, "estimator": "renorm", "scope": options.get("delta_scope", "participants")}
    told |= {key: options[key] for key in ("delta_at", "leave_one_out") if key in options}
    run = reference.rfedavg if entry == "rfedavg" else reference.rfedavg_plus
    compare(states, run(given.case(), **told))


def test_clipped_features_equal_the_reference():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(6, 4))
    noisy = NoisyFeatures(clip_norm=0.5, noise_multiplier=2.0, batch_size=10.0)
    z = rng.normal(size=4)
    problem = reference.Problem(None, None, features=lambda w, x: features)
    expected = reference.noisy_delta(reference.mean_feature(problem, None, features, bound=0.5), 2.0, 0.5, 10, z)
    got = noisy.add(noisy.bound(jnp.asarray(features, jnp.float32)).mean(0), jnp.asarray(z, jnp.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


RECORDS = {
    "dpnfl": (reference.dpnfl, {}),
    "dp_fedavg_local": (reference.dp_fedavg_local, {}),
    "cpfed": (reference.cpfed, {"secure": False}),
    "cpfed, secure": (reference.cpfed, {"ring_bits": 64, "fractional_bits": 40}),
}


# CI of masks: test_cpfed_with_masks_and_its_ciphertexts_equal_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.parametrize("name", usual(RECORDS, ["dpnfl"]))
def test_record_noise_equals_the_reference_and_a_wrong_one_would_be_found(name):
    """Noise in another unit, or a rule left out, is far outside the tolerance."""
    run, options = RECORDS[name]
    given = Setting(8)
    states = given.ours(name.split(",")[0], **PRIVATE, l2=0.03, **options)
    right = {"l2": 0.03, **REF}
    compare(states, run(given.case(), **right))
    for wrong in ({"l2": 0.0}, {"multiplier": lambda i: NOISE[i]}, {"bound": 2 * CLIP}):
        with pytest.raises(AssertionError):
            compare(states, run(given.case(), **right | wrong))


# CI: test_addpnfl_equals_worked_example_over_two_rounds, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
@pytest.mark.parametrize(("moment", "start"), [pytest.param("delta", None, marks=pytest.mark.exhaustive), ("mu", 0.5)])
def test_addpnfl_equals_the_reference(moment, start):
    given = Setting(9)
    states = given.ours(
        "addpnfl", **PRIVATE, second_moment=moment, nu_init=start, server_learning_rate=0.1, schedule="inverse_sqrt"
    )
    case = given.case(schedule="inverse_sqrt")
    rates = [0.1 / np.sqrt(1 + t) for t in range(ROUNDS)]
    expected = reference.addpnfl(case, second_moment=moment, nu_init=start, server_rate=rates, **REF)
    for state, result in zip(states[1:], expected, strict=True):
        np.testing.assert_allclose(ravel(state.params)[0], result["w"], rtol=3e-4, atol=3e-5)
        np.testing.assert_allclose(ravel(state.optimizer.nu)[0], result["nu"], rtol=3e-4, atol=3e-6)


def test_addpnfl_less_the_variance_of_its_noise_equals_the_reference():
    """Of the noise of all clients that might take part, not of those that do."""
    given = Setting(9)
    rate = np.array([0.6, 0.6, 0.6, 0.5, 0.7])
    options = {"second_moment": "unbiased", "server_learning_rate": 0.1, "pi": 0.05, "schedule": "inverse_sqrt"}
    states = given.ours("addpnfl", rate=rate, **PRIVATE, **options)
    case = given.case(schedule="inverse_sqrt")
    noise = []
    for t in range(ROUNDS):
        own = [sum(case.rate(t, s) ** 2 * (NOISE[i] * CLIP / 2) ** 2 for s in range(STEPS)) for i in range(5)]
        noise.append(sum(rate[i] * (given.shares[i] / rate[i]) ** 2 * own[i] for i in range(5)))
    rates = [0.1 / np.sqrt(1 + t) for t in range(ROUNDS)]
    aggregated = {"estimator": "is", "q": rate / 3}
    told = {"second_moment": "unbiased", "noise": noise, "server_rate": rates, "pi": 0.05}
    expected = reference.addpnfl(case, **told, **aggregated, **REF)
    for state, result in zip(states[1:], expected, strict=True):
        np.testing.assert_allclose(ravel(state.params)[0], result["w"], rtol=3e-4, atol=3e-5)


RULES = {
    "adam": {"local_eps": 0.05},
    "adam_bc": {"local_floor": 0.05},
    "adamw": {"local_eps": 0.05, "local_weight_decay": 0.3},
    "adamw_bc": {"local_floor": 0.05, "local_weight_decay": 0.3},
}


# CI: test_four_steps_equal_golden_numbers, tests/parts/test_local_rules.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("keep", usual([True, False], [True]))
@pytest.mark.parametrize("rule", usual(RULES, ["adamw_bc"]))
def test_rounds_of_adaptive_local_rules_equal_the_reference(rule, keep):
    """Over several rounds, with noise of another size for each client and an L2 penalty."""
    given, numbers = Setting(21), {"local_b1": 0.8, "local_b2": 0.9, **RULES[rule]}
    states = given.ours("dpnfl", local_rule=rule, keep_rule=keep, l2=0.05, **PRIVATE, **numbers)
    case = given.case()
    numbers = {name.removeprefix("local_"): number for name, number in numbers.items()}
    kept = "persist" if keep else "reset"
    compare(states, reference.dpnfl(case, rule=rule, numbers=numbers, state=kept, l2=0.05, **REF))


# CI: test_dp_sgd_equals_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
def test_dp_sgd_equals_the_reference():
    given = Setting(10)
    states = given.ours("dp_sgd", **PRIVATE, local_steps=1)
    case = given.case()
    case.steps = 1
    compare(states, reference.dp_sgd(case, **REF))


# CI: test_acs_pldp_round_equals_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("clipping", usual(["batch", "record"], ["batch"]))
def test_acs_pldp_equals_the_reference(clipping):
    given = Setting(12, multiset=True)
    states = given.ours("acs_pldp", rate=3 * given.chances, clipping=clipping, **PRIVATE)
    kind = "example" if clipping == "record" else "batch"
    expected = reference.acs_pldp(given.case(), q=given.chances, sigma=NOISE / 2, bound=CLIP, clip=kind)
    compare(states, expected)


OUTPUT = {
    f"{space}, {at}, {clip}, {estimator}": (space, at, clip, estimator)
    for space in ("model", "literal")
    for at in ("last", "every")
    for clip, estimator in (("batch", "wor_model"), ("record", "wor_delta"))
}


# CI: test_dp_fedavg_output_equals_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", usual(OUTPUT, list(OUTPUT)[3:4]))
def test_dp_fedavg_output_equals_the_reference(name):
    space, at, clip, estimator = OUTPUT[name]
    given = Setting(13)
    states = given.ours(
        "dp_fedavg_output",
        noise_space=space,
        noise_at=at,
        clipping=clip,
        estimator=estimator,
        schedule="inverse_sqrt",
        **PRIVATE,
    )
    case = given.case(schedule="inverse_sqrt", per_step=True)

    def std(t, i, s):
        return NOISE[i] * CLIP * sum(case.rate(t, step) for step in range(STEPS))

    kind = "example" if clip == "record" else "batch"
    expected = reference.dp_fedavg_output(
        case, bound=CLIP, std=std, clip=kind, noise_space=space, noise_at=at, estimator=estimator
    )
    compare(states, expected)


CENTRAL = {
    "f_f": ({}, {}),
    "f_c": ({"least_weight": 0.5}, {"estimator": "f_c"}),
    "by tensor": ({"clip_by": "tensor"}, {"clip": "per_tensor"}),
}


# CI: test_dpfedavg_central_equals_worked_example, tests/algorithms/test_worked_examples.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", usual(["f_c", "f_f", "by tensor"], ["by tensor"]))
def test_dp_fedavg_equals_the_reference(name):
    options, told = CENTRAL[name]
    given = Setting(14)
    share = float(np.median(given.shares))
    states = given.ours(
        "dp_fedavg",
        clip_norm=0.2,
        noise_multiplier=0.4,
        weight_cap=share,
        cohort="uniform",
        server_noise=given.server,
        **options,
    )
    total = sum(given.sizes)
    if "estimator" in told:
        told = {**told, "w_min": 0.5 * float(np.minimum(given.shares / share, 1).sum())}
    expected = reference.dp_fedavg_central(given.case(), bound=0.2, z=0.4, q=3 / 5, w_hat=share * total, **told)
    compare(states, expected)


def test_learnt_clip_norms_equal_the_reference():
    given = Setting(15)
    states = given.ours(
        "dp_fedavg",
        clip_norm=0.2,
        noise_multiplier=0.0,
        adaptive_clip=True,
        clip_quantile=0.3,
        clip_rate=0.4,
        bit_noise=0.5,
        cohort="uniform",
        server_noise=0 * given.server,
    )
    expected = reference.dp_fedavg_central(
        given.case(),
        bound=0.2,
        z=0.0,
        q=3 / 5,
        w_hat=1e-9,
        clip_rate=0.4,
        quantile=0.3,
        bit_sigma=0.0,
        bit_noise=np.zeros(ROUNDS),
        expected=3,
    )
    compare(states, expected, lambda state: {"bound": state.upload.clip_norm})


def test_every_entry_is_compared():
    compared = {
        "fedavg",
        *SERVERS,
        "fedprox",
        *(entry for entry, *_ in SCAFFOLD.values()),
        "q_fedavg",
        *(entry for entry, *_ in FEATURES.values()),
        *(name.split(",")[0] for name in RECORDS),
        "addpnfl",
        "dp_sgd",
        "acs_pldp",
        "dp_fedavg_output",
        "dp_fedavg",
        "dp_fedavg_record",  # which is dpnfl without what its paper brings
    }
    rest = set(algorithms.CATALOGUE) - compared - set(algorithms.PERSONAL)  # which equal their worked examples
    assert rest == {"dp_ftrl"}  # its noise is compared in test_upload.py


PLAIN = {"cohort_size": 3, "batch_size": 2, "local_steps": 3, "learning_rate": 0.3}


def test_dp_fedavg_on_records_is_dpnfl_without_what_its_paper_brings():
    given = {**PLAIN, "clip_norm": 0.7, "noise_multiplier": 2.0}
    plain = algorithms.CATALOGUE["dp_fedavg_record"].of(given)
    assert plain == algorithms.CATALOGUE["dpnfl"].of({**given, "schedule": "constant", "l2": 0.0})


@pytest.mark.parametrize("quantile", [0.0, 1.0])
def test_a_clip_norm_that_nothing_ends_is_refused(quantile):
    given = {**PLAIN, "clip_norm": 0.7, "noise_multiplier": 2.0, "adaptive_clip": True, "clip_quantile": quantile}
    with pytest.raises(errors.ConfigurationError, match="at 0 the clip norm can only fall and at 1 only grow"):
        algorithms.CATALOGUE["dp_fedavg"].of(given).upload.check(4)
