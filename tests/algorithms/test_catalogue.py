"""Every catalogue entry, with its variants, against the slow NumPy reference (tests/reference.py), noise given.

The reference was written from the specification alone. Only raw random draws are shared: cohorts and noise are given,
batches are drawn with the simulator's keys."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
PLAIN = {"cohort_size": 3, "batch_size": 2, "local_steps": STEPS, "learning_rate": RATE}


class Softmax(nn.Module):
    """Softmax regression that does not start at zero."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, kernel_init=nn.initializers.normal(0.5), bias_init=nn.initializers.normal(0.5))(x)


MODELS = {
    "softmax": (fdp_model(Softmax(), (3,)), reference.softmax_problem(3, 3)),
    "two-layer": (TwoLayerModel(3, 4), reference.two_layer_problem(3, 4)),
}
SCHEDULES = {"constant": lambda t: 1.0, "inverse_sqrt": lambda t: 1 / np.sqrt(1 + t)}


class Setting:
    """One generated federation with everything that is random in a run."""

    def __init__(self, *, model="softmax", multiset=False, everyone=False, cohorts=None):
        rng = np.random.default_rng(11)
        self.sizes = rng.integers(3, 8, 5).tolist()
        self.data = ragged_data(self.sizes, seed=11)
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
        options = PLAIN | {"l2": 0.0, "schedule": "constant"} | options
        value = algorithms.CATALOGUE[entry].of(options)
        self.local, self.factor = value.local, SCHEDULES[options["schedule"]]
        noisy = hasattr(value.local.privatizer, "source")
        table = None
        if server_noise is not None:
            table = np.zeros((ROUNDS, 1, ROUNDS, self.start.size))
            for t in range(ROUNDS):
                table[t, 0, t] = server_noise[t]
        self.rate = np.full(len(self.sizes), 3 / len(self.sizes)) if rate is None else rate
        cohort = AllClients() if self.everyone else self.given_cohorts(self.rate)
        value = with_given(value, cohort=cohort, steps=self.noise if noisy else None, server=table)
        return states_of(value, self.model, self.data, ROUNDS)

    def case(self):
        """The same run for the reference; call it after `ours`, which fixes the local steps and rates."""
        law, largest = self.local.batches, self.data.largest
        steps = law.count(self.local.steps, largest)
        more = sum(c.extra_gradients for c in self.local.corrections)
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
                    law.sample(role_key(own, "batch"), jnp.int32(self.sizes[i]), rows, largest, self.data.smallest)
                )
            return drawn[t, i]

        def positions(t, i, s):
            found = batch(t, i)
            taken = [*np.flatnonzero(found.step_mask), *[None] * steps]  # a client's own steps; smaller ones take fewer
            return None if taken[s] is None else found.positions[taken[s]][found.mask[taken[s]]]

        stored = [self.data.x[o : o + n] for o, n in zip(self.data.offsets, self.sizes, strict=True)]
        labels = [self.data.y[o : o + n] for o, n in zip(self.data.offsets, self.sizes, strict=True)]
        return reference.Case(
            problem=self.problem,
            x=[np.asarray(x, float) for x in stored],
            y=labels,
            shares=self.shares,
            start=self.start,
            cohorts=self.cohorts,
            batches=positions,
            divisor=lambda t, i, s: float(batch(t, i).divisor[np.flatnonzero(batch(t, i).step_mask)[s]]),
            steps=steps,
            rate=lambda t, s: RATE * self.factor(t * steps + s if self.local.per_step else t),
            noise=self.noise,
            server_noise=self.server,
        )


def compare(states, expected, further=lambda state: {}):
    """Parameters after every round, and what else the two keep."""
    for state, result in zip(states[1:], expected, strict=True):
        for name, got in {"w": ravel(state.params)[0], **further(state)}.items():
            atol = 3e-6 if name == "nu" else 3e-5
            np.testing.assert_allclose(np.asarray(got), np.asarray(result[name]), rtol=3e-4, atol=atol, err_msg=name)


NOISE = np.linspace(0.5, 1.5, 5)
PRIVATE = {"clip_norm": CLIP, "noise_multiplier": NOISE}
REF = {"clip": "example", "bound": CLIP, "multiplier": lambda i: NOISE[i] / 2}  # of the sensitivity 2C/B
DELTA = {"estimator": "wor_delta"}
FALLING = {"schedule": "inverse_sqrt", "server_learning_rate": 0.1}
FALLING_RATES = [0.1 / np.sqrt(1 + t) for t in range(ROUNDS)]
Options = Mapping[str, Any] | Callable[[Setting], Mapping[str, Any]]


class Comparison(NamedTuple):
    """An entry beside the reference. Options that follow from the setting are functions of it."""

    entry: str
    run: Callable[..., Any]  # of the reference
    options: Options  # of `Setting.ours`
    arguments: Options  # to the reference
    setting: Mapping[str, Any] = {}
    further: Callable[[Any], Mapping[str, Any]] = lambda state: {}  # what is compared beside the model


def fedavg(options, arguments=DELTA, **setting):
    return Comparison("fedavg", reference.fedavg, options, arguments, setting)


def scaffold(entry, options, **arguments):
    run = reference.scaffold if entry == "scaffold" else reference.dp_scaffold
    return Comparison(
        entry, run, options, arguments, further=lambda state: {"c": state.shared[0], "c_i": state.clients[0]}
    )


def features(entry, everyone=False, **arguments):
    options = {{"scope": "delta_scope"}.get(name, name): value for name, value in arguments.items()}
    run = reference.rfedavg if entry == "rfedavg" else reference.rfedavg_plus
    arguments = {"lam": 0.3, "estimator": "renorm", **arguments}
    setting = {"model": "two-layer", "everyone": everyone}
    return Comparison(entry, run, {"feature_strength": 0.3, **options}, arguments, setting)


def unbiased(setting):
    """The noise of all clients that might take part, not of those that do."""
    rate, case, noise = setting.rate, setting.case(), []
    for t in range(ROUNDS):
        own = [sum(case.rate(t, s) ** 2 * (NOISE[i] * CLIP / 2) ** 2 for s in range(STEPS)) for i in range(5)]
        noise.append(sum(rate[i] * (setting.shares[i] / rate[i]) ** 2 * own[i] for i in range(5)))
    arguments = {"second_moment": "unbiased", "noise": noise, "server_rate": FALLING_RATES, "pi": 0.05}
    return {**arguments, "estimator": "is", "q": rate / 3, **REF}


def output(space, at, clip, estimator):
    def arguments(setting):
        case = setting.case()

        def std(t, i, s):
            return NOISE[i] * CLIP * sum(case.rate(t, step) for step in range(STEPS))

        kind = "example" if clip == "record" else "batch"
        variant = {"noise_space": space, "noise_at": at, "estimator": estimator}
        return {"bound": CLIP, "std": std, "clip": kind, **variant}

    options = {"noise_space": space, "noise_at": at, "clipping": clip, "estimator": estimator}
    return Comparison(
        "dp_fedavg_output", reference.dp_fedavg_output, {"schedule": "inverse_sqrt", **options, **PRIVATE}, arguments
    )


def central(options, **arguments):
    def ours(setting):
        more = {"weight_cap": float(np.median(setting.shares)), "server_noise": setting.server}
        return {"clip_norm": 0.2, "noise_multiplier": 0.4, "cohort": "uniform", **more, **options}

    def theirs(setting):
        share, known = float(np.median(setting.shares)), {"bound": 0.2, "z": 0.4, "q": 3 / 5}
        least = {"w_min": 0.5 * float(np.minimum(setting.shares / share, 1).sum())} if "estimator" in arguments else {}
        return {**known, "w_hat": share * sum(setting.sizes), **least, **arguments}

    return Comparison("dp_fedavg", reference.dp_fedavg_central, ours, theirs)


def with_rule(rule, keep, **numbers):
    numbers = {"b1": 0.8, "b2": 0.9, **numbers}
    options = {f"local_{name}": number for name, number in numbers.items()}
    arguments = {"rule": rule, "numbers": numbers, "state": "persist" if keep else "reset", "l2": 0.05, **REF}
    return Comparison(
        "dpnfl", reference.dpnfl, {"local_rule": rule, "keep_rule": keep, "l2": 0.05} | PRIVATE | options, arguments
    )


COMPARED = {
    **{name: fedavg({"estimator": name}, {"estimator": name}) for name in ("wor_model", "biased", "renorm", "mean")},
    "wor_delta": fedavg(DELTA),
    "full": fedavg({"estimator": "full"}, {"estimator": "full"}, everyone=True),
    "median": fedavg({"estimator": "median"}, {"estimator": "median"}),
    "median of an even number": fedavg(
        {"estimator": "median"}, {"estimator": "median"}, cohorts=[[0, 3, 2, 4], [4, 1, 0, 3], [2, 1, 3, 0]]
    ),
    "trimmed mean": fedavg({"estimator": "trimmed_mean", "trim": 0.35}, {"estimator": 0.35}),
    "md": fedavg(lambda setting: {"rate": 3 * setting.shares}, {"estimator": "md"}, multiset=True),
    "is": fedavg(
        lambda setting: {"rate": 3 * setting.chances},
        lambda setting: {"estimator": "is", "q": setting.chances},
        multiset=True,
    ),
    "full batches, l2": fedavg({"batches": "full", "batch_size": None, "l2": 0.05}, {"l2": 0.05, **DELTA}),
    "poisson batches": fedavg({"batches": "poisson"}),
    "epochs": fedavg({"batches": "epochs"}),
    "epochs, the rest kept": fedavg({"batches": "epochs", "last": "keep"}),
    "rmsprop, kept": fedavg(
        {"local_rule": "rmsprop", "keep_rule": True}, {"rule": "rmsprop", "state": "persist", **DELTA}
    ),
    "rmsprop, reset": fedavg({"local_rule": "rmsprop"}, {"rule": "rmsprop", "state": "reset", **DELTA}),
    "schedule per step": fedavg({"schedule": "inverse_sqrt", "per_step": True}),
    "fedavgm": Comparison(
        "fedavgm",
        reference.fedavg,
        {"server_learning_rate": 0.7, "momentum": 0.8},
        {"server": "momentum", "server_rate": 0.7, "momentum": 0.8, **DELTA},
    ),
    **{
        f"fed{name}": Comparison(
            f"fed{name}",
            reference.fedavg,
            {"server_learning_rate": 0.1},
            {"server": name, "server_rate": 0.1, **DELTA},
        )
        for name in ("adam", "yogi")
    },
    **{
        f"fedprox, {form}": Comparison(
            "fedprox",
            reference.fedprox,
            {"mu": 0.7, "prox_form": form, "estimator": "renorm"},
            {"mu": 0.7, "prox_form": form},
        )
        for form in ("half", "full")
    },
    "scaffold": scaffold("scaffold", {"server_learning_rate": 0.8}, eta_g=0.8),
    "scaffold, gradient": scaffold("scaffold", {"controls": "gradient"}, option="I"),
    "dp_scaffold": scaffold("dp_scaffold", PRIVATE, **REF),
    "dp_scaffold, by records": scaffold("dp_scaffold", {**PRIVATE, "estimator": "renorm"}, estimator="renorm", **REF),
    "dp_scaffold, gradient": scaffold("dp_scaffold", {**PRIVATE, "controls": "gradient"}, option="I", **REF),
    "dp_scaffold, warm": scaffold("dp_scaffold", {**PRIVATE, "warm_start": True}, warm=ROUNDS, **REF),
    "tensor median": scaffold(
        "dp_scaffold",
        {**PRIVATE, "clipping": "tensor-median"},
        clip="per_tensor_median",
        multiplier=REF["multiplier"],
    ),
    **{
        f"q_fedavg, {norm}": Comparison(
            "q_fedavg", reference.q_fedavg, {"q": q, "fair_norm": norm}, {"q": q, "q_h": norm}
        )
        for q, norm in ((0.7, "weighted"), (1.5, "update"))
    },
    "rfedavg": features("rfedavg"),
    "rfedavg, everyone": features("rfedavg", everyone=True),
    "rfedavg, all": features("rfedavg", scope="all"),
    "rfedavg, before": features("rfedavg", delta_at="global_before"),
    "rfedavg, self": features("rfedavg", leave_one_out=False),
    "plus": features("rfedavg_plus"),
    "plus, everyone": features("rfedavg_plus", everyone=True),
    "plus, all": features("rfedavg_plus", scope="all"),
    "plus, self": features("rfedavg_plus", leave_one_out=False),
    "dp_fedavg_local": Comparison("dp_fedavg_local", reference.dp_fedavg_local, PRIVATE, REF),
    "cpfed": Comparison("cpfed", reference.cpfed, {**PRIVATE, "secure": False}, REF),
    "cpfed, secure": Comparison("cpfed", reference.cpfed, {**PRIVATE, "ring_bits": 64, "fractional_bits": 40}, REF),
    "dp_sgd": Comparison("dp_sgd", reference.dp_sgd, {**PRIVATE, "local_steps": 1}, REF),
    **{
        f"addpnfl, {moment}": Comparison(
            "addpnfl",
            reference.addpnfl,
            {"second_moment": moment, "nu_init": start, **FALLING, **PRIVATE},
            {"second_moment": moment, "nu_init": start, "server_rate": FALLING_RATES, **REF},
            further=lambda state: {"nu": ravel(state.optimizer.nu)[0]},
        )
        for moment, start in (("delta", None), ("mu", 0.5))
    },
    "addpnfl, unbiased": Comparison(
        "addpnfl",
        reference.addpnfl,
        {"rate": np.array([0.6, 0.6, 0.6, 0.5, 0.7]), "second_moment": "unbiased", "pi": 0.05, **FALLING, **PRIVATE},
        unbiased,
    ),
    **{
        f"{rule}, {'kept' if keep else 'reset'}": with_rule(rule, keep, **numbers)
        for keep in (True, False)
        for rule, numbers in {
            "adam": {"eps": 0.05},
            "adam_bc": {"floor": 0.05},
            "adamw": {"eps": 0.05, "weight_decay": 0.3},
            "adamw_bc": {"floor": 0.05, "weight_decay": 0.3},
        }.items()
    },
    **{
        f"acs_pldp, {clipping}": Comparison(
            "acs_pldp",
            reference.acs_pldp,
            lambda setting, clipping=clipping: {"rate": 3 * setting.chances, "clipping": clipping, **PRIVATE},
            lambda setting, kind=kind: {"q": setting.chances, "sigma": NOISE / 2, "bound": CLIP, "clip": kind},
            {"multiset": True},
        )
        for clipping, kind in (("batch", "batch"), ("record", "example"))
    },
    **{
        f"dp_fedavg_output, {space}, {at}, {clip}": output(space, at, clip, estimator)
        for space in ("model", "literal")
        for at in ("last", "every")
        for clip, estimator in (("batch", "wor_model"), ("record", "wor_delta"))
    },
    "dp_fedavg, f_f": central({}),
    "dp_fedavg, f_c": central({"least_weight": 0.5}, estimator="f_c"),
    "dp_fedavg, by tensor": central({"clip_by": "tensor"}, clip="per_tensor"),
    "dp_fedavg, learnt clip norm": Comparison(
        "dp_fedavg",
        reference.dp_fedavg_central,
        lambda setting: {
            "clip_norm": 0.2,
            "noise_multiplier": 0.0,
            "adaptive_clip": True,
            "clip_quantile": 0.3,
            "clip_rate": 0.4,
            "bit_noise": 0.5,
            "cohort": "uniform",
            "server_noise": 0 * setting.server,
        },
        {"bound": 0.2, "z": 0.0, "q": 3 / 5, "w_hat": 1e-9, "clip_rate": 0.4, "quantile": 0.3, "expected": 3}
        | {"bit_sigma": 0.0, "bit_noise": np.zeros(ROUNDS)},
        further=lambda state: {"bound": state.upload.clip_norm},
    ),
}
# What no worked example of tests/algorithms/test_worked_examples.py and no golden number of a rule has.
IN_CI = [
    "median of an even number",
    "epochs, the rest kept",
    "fedyogi",
    "tensor median",
    "plus, self",
    "addpnfl, unbiased",
    "dp_fedavg, learnt clip norm",
]


def of(options, setting):
    return options(setting) if callable(options) else options


@pytest.mark.parametrize("name", usual(COMPARED, IN_CI))
def test_an_entry_equals_the_reference(name):
    one = COMPARED[name]
    setting = Setting(**one.setting)
    states = setting.ours(one.entry, **of(one.options, setting))
    compare(states, one.run(setting.case(), **of(one.arguments, setting)), one.further)


def test_clipped_features_equal_the_reference():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(6, 4))
    noisy = NoisyFeatures(clip_norm=0.5, noise_multiplier=2.0, batch_size=10.0)
    z = rng.normal(size=4)
    problem = reference.Problem(None, None, features=lambda w, x: features)
    expected = reference.noisy_delta(reference.mean_feature(problem, None, features, bound=0.5), 2.0, 0.5, 10, z)
    got = noisy.add(noisy.bound(jnp.asarray(features, jnp.float32)).mean(0), jnp.asarray(z, jnp.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_record_noise_equals_the_reference_and_a_wrong_one_would_be_found():
    """Noise in another unit, or a rule left out, is far outside the tolerance."""
    setting = Setting()
    states = setting.ours("dpnfl", **PRIVATE, l2=0.03)
    right = {"l2": 0.03, **REF}
    compare(states, reference.dpnfl(setting.case(), **right))
    for wrong in ({"l2": 0.0}, {"multiplier": lambda i: NOISE[i]}, {"bound": 2 * CLIP}):
        with pytest.raises(AssertionError):
            compare(states, reference.dpnfl(setting.case(), **right | wrong))


def test_every_entry_is_compared():
    compared = {one.entry for one in COMPARED.values()} | {"dp_fedavg_record"}  # dpnfl without what its paper brings
    rest = set(algorithms.CATALOGUE) - compared - set(algorithms.PERSONAL)  # which equal their worked examples
    assert rest == {"dp_ftrl"}  # its noise is compared in tests/parts/test_noise.py


def test_dp_fedavg_on_records_is_dpnfl_without_what_its_paper_brings():
    given = {**PLAIN, "clip_norm": 0.7, "noise_multiplier": 2.0}
    plain = algorithms.CATALOGUE["dp_fedavg_record"].of(given)
    assert plain == algorithms.CATALOGUE["dpnfl"].of({**given, "schedule": "constant", "l2": 0.0})


@pytest.mark.parametrize("quantile", [0.0, 1.0])
def test_a_clip_norm_that_nothing_ends_is_refused(quantile):
    given = {**PLAIN, "clip_norm": 0.7, "noise_multiplier": 2.0, "adaptive_clip": True, "clip_quantile": quantile}
    with pytest.raises(errors.ConfigurationError, match="at 0 the clip norm can only fall and at 1 only grow"):
        algorithms.CATALOGUE["dp_fedavg"].of(given).upload.check(4)
