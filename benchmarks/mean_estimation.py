"""What pulling clients' models to their mean gains under privacy: mean estimation, run and in closed form.

    python benchmarks/mean_estimation.py --out benchmarks/results/mean_estimation.json

Clients hold values around means that differ with variance h^2, and each releases one noisy mean: entries `local`,
`dp_fedavg_local` and `mr_mtl` with strength 0 run one round of one step of rate 1 on all records of a quadratic loss,
calibrated by the library, many runs at once. From the models and the shared mean of that round of `mr_mtl`, the pull of
MR-MTL (`parts.Pull`, implicit, without a gradient) goes on to each lambda: it sees no records, so one release pays for
all of them. Every error has to lie within MOST_OFF standard errors of the closed form.

Client k holds n_k values of variance sigma^2 around w_k, and releases one noisy mean hat w_k of error variance s_k; the
w_k have variance h^2. Its model is (hat w_k + lambda_k m) / (1 + lambda_k), the minimiser of |w - hat w_k|^2 +
lambda_k |w - m|^2, with m the mean of all models. Source: Liu et al. 2022, arXiv:2206.07902, section 5; clients of
different sizes, budgets and lambdas are derived here.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import accounting, errors
from fedjax_dp.execution import Execution
from fedjax_dp.parts.pull import Pull
from fedjax_dp.rounds.personal import models_of_clients
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves, run_key
from fedjax_dp.rounds.state import initial_state
from fedjax_dp.tools.figures import canvas, elements

SIGMA, CLIP_NORM, DELTA = 0.4, 1.0, 1e-5
EPSILONS, SPREADS = (0.25, 1.0, 4.0), (0.03, 0.08, 0.2)
ALIKE = (200,) * 20  # records of each client
OWN_SIZES, OWN_EPSILONS, OWN_SPREAD = (800, 400, 200, 200, 100, 50), (0.5, 1.0, 0.25, 2.0, 1.0, 4.0), 0.08
STRENGTHS = np.geomspace(0.01, 300, 13)
MOST_OFF = 4.9  # standard errors: one in a million at a normal point
AT_ONCE = 250  # runs


def noise_for(epsilon: float, delta: float) -> float:
    """The noise multiplier of one release of all records, neighbours by replacement, exactly."""
    one = accounting.GaussianSteps(1.0, accounting.FullBatch(), accounting.Adjacency.REPLACE_ONE, 1)
    return accounting.noise_multiplier_for(one, epsilon, delta, "gaussian")


def release_variance(records: float, sigma: float, clip_norm: float, noise_multiplier: float) -> float:
    """s = sigma^2 / n + (z C / n)^2: of the error of one client's noisy mean."""
    return sigma**2 / records + (noise_multiplier * clip_norm / records) ** 2


def errors_at(strengths: np.ndarray | float, variances: np.ndarray, spread: float) -> np.ndarray:
    """Mean squared error of every client's model `(clients,)`, at its own lambda.

    strengths  lambda, one number or `(clients,)`; infinite: the mean of all, as federated averaging;
    variances  s_k `(clients,)`; spread  h.

    | lambda 0: s_k | all alike: s/K + (1 - 1/K) (s + lambda^2 h^2) / (1 + lambda)^2 |
    """
    noise = np.asarray(variances, float)
    pulls = np.broadcast_to(np.asarray(strengths, float), noise.shape)
    if not np.all(pulls >= 0):
        raise errors.refuse("strength", strengths, "at least 0")
    kept = 1 / (1 + pulls)
    total = kept.sum()
    weights = kept / total if total > 0 else np.full(noise.shape, 1 / len(noise))  # noisy clients weigh less
    pulled = (1 - kept)[:, None] * weights
    of_noise = pulled + np.diag(kept)
    of_means = pulled - np.diag(1 - kept)
    found: np.ndarray = of_noise**2 @ noise + spread**2 * np.sum(of_means**2, 1)
    return found


def best_strength(variance: float, spread: float) -> float:
    """lambda* = s / h^2, whatever the number of clients, where they are alike."""
    return variance / spread**2


def least_error(variance: float, spread: float, clients: int) -> float:
    """E* = s/K + (1 - 1/K) s h^2 / (s + h^2) at lambda*."""
    return variance / clients + (1 - 1 / clients) * variance * spread**2 / (variance + spread**2)


@dataclasses.dataclass(frozen=True)
class Mean:
    """One number w, of loss |w - x|^2 / 2, from 0."""

    def init(self, key):
        return jnp.zeros(1)

    def loss(self, params, x, y, key=None):
        return 0.5 * jnp.sum((params - x) ** 2)

    def logits(self, params, x):
        return x


class Setting(NamedTuple):
    """Clients' numbers of records and budgets, and h."""

    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    spread: float

    @property
    def variances(self):
        """s of every client, in closed form."""
        pairs = zip(self.sizes, self.epsilons, strict=True)
        return np.array([release_variance(n, SIGMA, CLIP_NORM, noise_for(epsilon, DELTA)) for n, epsilon in pairs])


def store(sizes, shares=None):
    """Clients whose records are put in later, all of the same weight unless told."""
    x, y = np.zeros((sum(sizes), 1), np.float32), np.zeros(sum(sizes), np.int32)
    dataset = fdp.data.Dataset("means", x, y, x[:1], y[:1], classes=1)
    even = np.full(len(sizes), 1 / len(sizes))
    return fdp.federate(dataset, np.split(np.arange(len(x)), np.cumsum(sizes)[:-1]), even if shares is None else shares)


def calibrated(entry, setting, data):
    """One release at each client's budget, against everybody who gets the models."""
    options = {"strength": 0.0} if entry == "mr_mtl" else {}
    algorithm = fdp.algorithms.CATALOGUE[entry](
        cohort_size=None,
        batch_size=None,
        batches="full",
        local_steps=1,
        learning_rate=1.0,
        schedule="constant",
        l2=0.0,
        clip_norm=CLIP_NORM,
        **options,
    )
    view = "deployed" if algorithm.local.personal else "uploads"
    epsilon = setting.epsilons[0] if len(set(setting.epsilons)) == 1 else list(setting.epsilons)
    return fdp.calibrate(algorithm, data, rounds=1, epsilon=epsilon, delta=DELTA, view=view, model=Mean())


@jax.jit
def one_round(algorithm, data, x, keys):
    """Shared models `(runs,)` and clients' own `(runs, clients)`, where there are some, after a round of each run."""

    def one(x, key):
        here = dataclasses.replace(data, x=x)
        state = run_round(algorithm, Mean(), here, key, initial_state(algorithm, Mean(), here, key), Execution())[0]
        if not algorithm.local.personal:
            return state.params[0], None
        return state.params[0], models_of_clients(algorithm.local, state, here, key, model=Mean())[:, 0]

    return jax.vmap(one)(x, keys)


def runs_of(entry, setting, runs, seed, shares=None):
    """Clients' means `(runs, clients)`, shared models and own models after one round of so many runs."""
    rng, data = np.random.default_rng(seed), store(setting.sizes, shares)
    algorithm = as_float32_leaves(calibrated(entry, setting, data))
    found = []
    for first in range(0, runs, AT_ONCE):
        count = min(AT_ONCE, runs - first)
        signs = 2 * rng.integers(0, 2, (count, len(setting.sizes) + sum(setting.sizes))) - 1
        means = setting.spread * signs[:, : len(setting.sizes)]
        x = np.repeat(means, setting.sizes, axis=1) + SIGMA * signs[:, len(setting.sizes) :]
        keys = jax.vmap(functools.partial(jax.random.fold_in, run_key(seed)))(np.arange(first, first + count))
        shared, own = one_round(algorithm, data, np.asarray(x[..., None], np.float32), keys)
        found.append((means, np.asarray(shared, float), None if own is None else np.asarray(own, float)))
    means, shared, own = zip(*found, strict=True)
    return np.concatenate(means), np.concatenate(shared), None if own[0] is None else np.concatenate(own)


def pulled(own, shared, strengths):
    """Models that have been pulled to the shared ones, without records."""
    strengths = np.broadcast_to(strengths, own.shape)
    pull, none = Pull(strength=strengths, form="implicit"), np.zeros_like(own)
    return own - np.asarray(pull.gradient(none, own, shared[:, None], 1.0))


def errors_of(models, means):
    """Squared errors `(runs, clients)`."""
    return (models - means) ** 2


def row(name, squared, expected, **about):
    """Mean error over runs and clients beside the closed form; runs are independent, clients of a run are not."""
    each = squared.mean(1)
    error = float(each.std(ddof=1) / np.sqrt(len(each)))
    entry = {"way": name, **about, "mean": float(each.mean()), "standard_error": error, "closed_form": float(expected)}
    return entry | {"off": float((each.mean() - expected) / error)}


def alike(epsilon, spread, runs, seed):
    """Clients that are alike: both ends, and every lambda between them."""
    setting = Setting(ALIKE, (epsilon,) * len(ALIKE), spread)
    every, about = setting.variances, {"epsilon": epsilon, "spread": spread}
    best = best_strength(every[0], spread)
    means, _, own = runs_of("local", setting, runs, seed)
    rows = [row("local", errors_of(own, means), errors_at(0.0, every, spread)[0], **about)]
    means, shared, _ = runs_of("dp_fedavg_local", setting, runs, seed + 1)
    federated = np.broadcast_to(shared[:, None], means.shape)
    rows.append(row("fedavg", errors_of(federated, means), errors_at(np.inf, every, spread)[0], **about))
    means, shared, own = runs_of("mr_mtl", setting, runs, seed + 2)
    for strength in sorted({*map(float, STRENGTHS), float(best)}):
        squared = errors_of(pulled(own, shared, strength), means)
        expected = errors_at(strength, every, spread)[0]
        rows.append(row("mr_mtl", squared, expected, **about, strength=strength, best=bool(strength == best)))
    return rows


def own_sizes(runs, seed):
    """Clients with own sizes and budgets: both ends, the best common lambda, and everyone's own."""
    setting = Setting(OWN_SIZES, OWN_EPSILONS, OWN_SPREAD)
    every, grid = setting.variances, np.geomspace(0.01, 300, 2001)
    common = float(min(grid, key=lambda strength: errors_at(strength, every, OWN_SPREAD).mean()))
    best = np.array([best_strength(variance, OWN_SPREAD) for variance in every])
    kept = 1 / (1 + best)
    means, _, own = runs_of("local", setting, runs, seed)
    found = [("local", errors_of(own, means), 0.0)]
    means, shared, _ = runs_of("dp_fedavg_local", setting, runs, seed + 1)
    found.append(("fedavg", errors_of(np.broadcast_to(shared[:, None], means.shape), means), np.inf))
    means, shared, own = runs_of("mr_mtl", setting, runs, seed + 2)
    found.append(("best common lambda", errors_of(pulled(own, shared, common), means), common))
    means, shared, own = runs_of("mr_mtl", setting, runs, seed + 3, shares=kept / kept.sum())
    found.append(("own lambda", errors_of(pulled(own, shared, best), means), best))
    rows = []
    for name, squared, strengths in found:
        expected = errors_at(strengths, every, OWN_SPREAD)
        for client, (size, epsilon) in enumerate(zip(OWN_SIZES, OWN_EPSILONS, strict=True)):
            about = {"client": client, "records": size, "epsilon": epsilon}
            rows.append(row(name, squared[:, [client]], expected[client], **about))
    return {"spread": OWN_SPREAD, "common": common, "own": best.tolist(), "rows": rows}


def require_close(rows):
    """Stop where a run does not agree with the closed form."""
    for one in rows:
        if not abs(one["off"]) <= MOST_OFF:
            raise SystemExit(f"{one['way']} is {one['off']:.1f} standard errors off the closed form: {one}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for at, (epsilon, spread) in enumerate((epsilon, spread) for epsilon in EPSILONS for spread in SPREADS):
        found = alike(epsilon, spread, options.runs, 10 * at)
        require_close(found)
        rows += found
        print(f"epsilon {epsilon:g}, h {spread:g}: {max(abs(one['off']) for one in found):.2f} off", file=sys.stderr)
    silos = own_sizes(options.runs, 1000)
    require_close(silos["rows"])
    results = {
        "what": __doc__.split("\n")[0],
        "setting": {
            "clients": len(ALIKE),
            "records": ALIKE[0],
            "sigma": SIGMA,
            "clip_norm": CLIP_NORM,
            "delta": DELTA,
            "runs": options.runs,
            "most_off": MOST_OFF,
        },
        "rows": rows,
        "own": silos,
        "seconds": time.perf_counter() - began,
        **made_with(),
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, options.out.with_suffix(".png"))


ENDS = {"local": 0.002, "fedavg": 1500.0}  # where lambda 0 and infinity stand
OWN_LOOKS = {  # label, color, marker
    "local": ("local", "C7", "s"),
    "fedavg": ("FedAvg", "C5", "D"),
    "best common lambda": ("MR-MTL, best common lambda", "C9", "o"),
    "own lambda": ("MR-MTL, each its own lambda", "k", "*"),
}


def draw(results, path):
    """A panel for each epsilon, error against lambda; and one of clients with own sizes and budgets."""
    figure, panels = plt.subplots(2, 2, figsize=(10.5, 7.6), layout="constrained")
    for axes, epsilon in zip(panels.flat, EPSILONS):
        _against_lambda(axes, [row for row in results["rows"] if row["epsilon"] == epsilon])
        axes.set_title(
            f"epsilon {epsilon:g} for one record, delta {results['setting']['delta']:g}", loc="left", fontsize=10
        )
    _own_panel(panels.flat[-1], results["own"])
    shown, names = panels.flat[0].get_legend_handles_labels()
    figure.legend(shown, names, loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    clients, records = results["setting"]["clients"], results["setting"]["records"]
    figure.suptitle(
        f"Mean estimation by {clients} clients of {records} records: lines are the closed form, points "
        f"{results['setting']['runs']:,} runs",
        fontsize=11,
    )
    figure.savefig(path, dpi=canvas.DPI)


def _against_lambda(axes, rows):
    for color, spread in zip(("C0", "C1", "C2"), SPREADS, strict=True):
        mine = [row for row in rows if row["spread"] == spread]
        variance = next(row["closed_form"] for row in mine if row["way"] == "local")
        grid = np.geomspace(0.006, 500, 200)
        every = np.full(len(ALIKE), variance)
        axes.plot(grid, [errors_at(one, every, spread)[0] for one in grid], color=color, label=f"h = {spread:g}")
        places = [ENDS.get(row["way"], row.get("strength")) for row in mine]
        means, errors = ([row[name] for row in mine] for name in ("mean", "standard_error"))
        axes.errorbar(places, means, errors, color=color, marker="o", markersize=3.5, linestyle="none", capsize=2)
        (best,) = (row for row in mine if row.get("best"))
        star = {"label": "lambda* = s / h²"} if spread == SPREADS[-1] else {}
        axes.plot(best["strength"], best["mean"], "k*", markersize=10, zorder=3, linestyle="none", **star)
    axes.set(xscale="log", yscale="log", xlabel="lambda", ylabel="mean squared error")
    ticks = {ENDS["local"]: "local", 0.01: "0.01", 0.1: "0.1", 1.0: "1", 10.0: "10", 100.0: "100"}
    ticks[ENDS["fedavg"]] = "FedAvg"
    axes.set_xticks(list(ticks), list(ticks.values()), minor=False)
    axes.set_xticks([], minor=True)
    elements.plain_log(axes.yaxis)
    axes.grid(alpha=0.3)


def _own_panel(axes, own):
    clients = range(len(OWN_SIZES))
    for (way, (label, color, marker)), shift in zip(OWN_LOOKS.items(), (-0.24, -0.08, 0.08, 0.24), strict=True):
        mine = [row for row in own["rows"] if row["way"] == way]
        places = np.array(clients) + shift
        means, errors = ([row[name] for row in mine] for name in ("mean", "standard_error"))
        axes.hlines([row["closed_form"] for row in mine], places - 0.09, places + 0.09, color=color)
        axes.errorbar(places, means, errors, color=color, marker=marker, markersize=6, linestyle="none", label=label)
    names = [f"{size}\n{epsilon:g}" for size, epsilon in zip(OWN_SIZES, OWN_EPSILONS, strict=True)]
    axes.set_xticks(list(clients), names)
    axes.set(yscale="log", xlabel="records (above) and epsilon (below) of the client", ylabel="mean squared error")
    axes.set_title(f"clients with own sizes and budgets, h = {own['spread']:g}", loc="left", fontsize=10)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8, ncols=2, loc="upper left")
    axes.set_ylim(top=0.08)
    elements.plain_log(axes.yaxis)


if __name__ == "__main__":
    main()
