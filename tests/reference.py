"""Slow, obvious NumPy float64 versions of the algorithms, written from their specification alone.

Nothing is drawn here: a `Case` says who takes part, which records every step uses and what the standard normals are.
Every system is a function of a case that returns one dict per round, with at least `w` (the global model after the
round) and `deltas` (client -> local model minus the global model that it started from). A client that a cohort names
several times trains once and counts several times. Section numbers are those of the specification.

Options `**local` of the systems are those of `train` (local rule) and of `step_gradient` (clip, bound, sigma,
multiplier, l2).
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.linalg import norm


@dataclasses.dataclass
class Problem:
    """A model on a flat float64 parameter vector."""

    gradients: Callable  # (w, x, y) -> (records, d), the gradient of each record's loss
    losses: Callable  # (w, x, y) -> (records,)
    features: Callable | None = None  # (w, x) -> (records, k)
    feature_jacobian: Callable | None = None  # (w, x) -> (records, k, d)
    tensors: list[slice] | None = None  # the parameter tensors inside w; None: w is one tensor


@dataclasses.dataclass
class Case:
    """A problem, its federation and every random draw of a run."""

    problem: Problem
    x: list[np.ndarray]  # per client
    y: list[np.ndarray]
    shares: np.ndarray  # (N,), p_i
    start: np.ndarray  # (d,), w_0
    cohorts: list[list[int]]  # per round; repeats make a multiset
    batches: Callable  # (t, i, s) -> positions of the records of a step, with repeats; None: no such step
    divisor: Callable  # (t, i, s) -> the number that divides the sum over the batch
    steps: int  # tau
    rate: Callable  # (t, s) -> local learning rate
    noise: np.ndarray  # (rounds, N, steps, d), standard normals of the local steps
    server_noise: np.ndarray | None = None  # (rounds, d), of the server
    upload_noise: np.ndarray | None = None  # (rounds, N, d), of an upload

    def batch(self, t, i, s):
        chosen = np.asarray(self.batches(t, i, s), int)
        return self.x[i][chosen], self.y[i][chosen]

    def tensors(self):
        return self.problem.tensors or [slice(0, len(self.start))]

    def steps_of(self, t, i):
        return sum(self.batches(t, i, s) is not None for s in range(self.steps))

    def clients(self, t):
        """The cohort of a round, each client once."""
        return list(dict.fromkeys(self.cohorts[t]))


def known(choice, *choices):
    assert choice in choices, f"{choice} is not one of {choices}"


def at(value, index):
    """A constant, a function of the index or a table by index."""
    if callable(value):
        return value(index)
    return value[index] if np.ndim(value) else value


# 0.1 aggregation


def aggregate(estimator, w, models, cohort, p, q=None):
    """The new global model from {client: local model}; an empty cohort changes nothing."""
    if not cohort:
        return w
    r, n = len(cohort), len(p)
    if estimator == "median":
        return np.median([models[i] for i in cohort], axis=0)
    if isinstance(estimator, float):  # the fraction that a trimmed mean leaves out at either end
        least = [sorted(models[i][j] for i in cohort) for j in range(len(w))]
        out = math.floor(estimator * r + 1e-9)
        return np.array([np.mean(values[out : r - out]) for values in least])
    assert estimator != "full" or sorted(cohort) == list(range(n))
    weight = {
        "full": lambda i: p[i],
        "wor_delta": lambda i: n / r * p[i],
        "wor_model": lambda i: n / r * p[i],
        "md": lambda i: 1 / r,
        "is": lambda i: p[i] / (r * q[i]),
        "biased": lambda i: p[i],
        "renorm": lambda i: p[i] / sum(p[j] for j in cohort),
        "mean": lambda i: 1 / r,
        "poisson": lambda i: p[i] / q,
    }[estimator]
    if estimator in ("full", "wor_model", "md", "renorm", "mean"):
        return sum(weight(i) * models[i] for i in cohort)
    return w + sum(weight(i) * (models[i] - w) for i in cohort)


# 0.3 clipping


def clip_to(g, bound):
    """g / max(1, ||g|| / bound)."""
    return g if norm(g) <= bound else g * (bound / norm(g))


def clipped_mean(gradients, divisor, clip, bound, tensors):
    """The clipped mean gradient of a batch, and how far replacing one record can move it."""
    known(clip, "none", "example", "batch", "per_tensor_median")
    mean = np.zeros(gradients.shape[1])
    if clip == "none":
        for g in gradients:
            mean += g / divisor
        return mean, np.inf
    if clip == "example":
        for g in gradients:
            mean += clip_to(g, bound) / divisor
        return mean, 2 * bound / divisor
    if clip == "batch":
        for g in gradients:
            mean += g / divisor
        return clip_to(mean, bound), 2 * bound
    sensitivity = np.zeros_like(mean)
    for tensor in tensors if len(gradients) else []:
        median = np.median([norm(g[tensor]) for g in gradients])
        for g in gradients:
            mean[tensor] += clip_to(g[tensor], median) / divisor
        sensitivity[tensor] = 2 * median / divisor
    return mean, sensitivity


def step_gradient(case, t, i, s, w, *, clip="none", bound=np.inf, sigma=0.0, multiplier=None, l2=0.0):
    """Clipped mean + noise + 2 h w. The noise has std `sigma`, or `multiplier` times the sensitivity of `clip`;
    both may be tables by client."""
    gradients = case.problem.gradients(w, *case.batch(t, i, s))
    mean, sensitivity = clipped_mean(gradients, case.divisor(t, i, s), clip, bound, case.tensors())
    assert multiplier is None or clip != "none", "no sensitivity without a clip"
    std = at(sigma, i) if multiplier is None else at(multiplier, i) * sensitivity
    if np.any(std):
        mean = mean + std * case.noise[t, i, s]
    return mean + 2 * l2 * w


def noise_variance(case, t, i, s, *, clip="none", bound=np.inf, sigma=0.0, multiplier=None, l2=0.0):
    """Of each coordinate of the noise in `step_gradient`."""
    if multiplier is None:
        return at(sigma, i) ** 2
    known(clip, "example", "batch")
    return (at(multiplier, i) * 2 * bound / (case.divisor(t, i, s) if clip == "example" else 1)) ** 2


# Local training


RULES = ("sgd", "rmsprop", "adam", "adam_bc", "adamw", "adamw_bc")


def train(case, t, i, w, memory, *, extra=None, rule="sgd", numbers=None, state="persist", **step):
    """Client i's model after its steps from w. `extra(i, s, w)` joins the gradient after the noise.

    `memory` holds the rule's state of each client, which the client keeps between rounds or drops (state="reset").
    """
    known(state, "persist", "reset")
    kept = memory.get(i, (0, 0.0, 0.0, 0.0)) if state == "persist" else (0, 0.0, 0.0, 0.0)
    for s in range(case.steps_of(t, i)):
        g = step_gradient(case, t, i, s, w, **step)
        if extra is not None:
            g = g + extra(i, s, w)
        variance = noise_variance(case, t, i, s, **step) if rule.endswith("_bc") else 0.0
        step_of, kept = direction(rule, g, variance, w, kept, **(numbers or {}))
        w = w - case.rate(t, s) * step_of
    memory[i] = kept
    return w


def direction(rule, g, variance, w, kept, *, decay=0.99, eps=1e-8, b1=0.9, b2=0.999, floor=1e-5, weight_decay=0.01):
    """What a step subtracts at rate 1, and the state after it: steps, first and second moment, that of the noise."""
    known(rule, *RULES)
    if rule == "sgd":
        return g, kept
    steps, first, second, noise = kept
    if rule == "rmsprop":
        second = decay * second + (1 - decay) * g**2
        return g / (np.sqrt(second) + eps), (steps, first, second, noise)
    steps += 1
    first = b1 * first + (1 - b1) * g
    second = b2 * second + (1 - b2) * g**2
    noise = b2 * noise + (1 - b2) * variance
    mean, square, own = first / (1 - b1**steps), second / (1 - b2**steps), noise / (1 - b2**steps)
    root = np.sqrt(np.maximum(square - own, floor)) if rule.endswith("_bc") else np.sqrt(square) + eps
    return mean / root + (weight_decay * w if "adamw" in rule else 0.0), (steps, first, second, noise)


def train_cohort(case, t, w, memory, **local):
    return {i: train(case, t, i, w, memory, **local) for i in case.clients(t)}


def deltas_of(models, w):
    return {i: model - w for i, model in models.items()}


# FedAvg with a server optimiser (Reddi et al. 2021 without bias correction)


def fedavg(
    case,
    *,
    estimator="renorm",
    q=None,
    server="sgd",
    server_rate=1.0,
    momentum=0.9,
    betas=(0.9, 0.99),
    adaptivity=1e-3,
    **local,
):
    """`q`: probabilities by client for `is`, the joining rate for `poisson`."""
    known(server, "sgd", "momentum", "adam", "yogi")
    w, memory, results = case.start, {}, []
    m, v = np.zeros_like(w), np.full_like(w, adaptivity**2)
    for t, cohort in enumerate(case.cohorts):
        models = train_cohort(case, t, w, memory, **local)
        deltas = deltas_of(models, w)
        delta = aggregate(estimator, w, models, cohort, case.shares, q) - w
        if server == "sgd":
            step = delta
        elif server == "momentum":
            m = momentum * m + delta
            step = m
        else:
            m = betas[0] * m + (1 - betas[0]) * delta
            if server == "adam":
                v = betas[1] * v + (1 - betas[1]) * delta**2
            else:
                v = v - (1 - betas[1]) * delta**2 * np.sign(v - delta**2)
            step = m / (np.sqrt(v) + adaptivity)
        w = w + at(server_rate, t) * step
        results.append({"w": w, "deltas": deltas, "delta": delta, "m": m, "v": v})
    return results


# 1 DPNFL and AdDPNFL


def dpnfl(case, *, estimator="wor_delta", clip="example", **local):
    return fedavg(case, estimator=estimator, clip=clip, **local)


def addpnfl(
    case,
    *,
    estimator="wor_delta",
    clip="example",
    second_moment="delta",
    server_rate=0.01,
    betas=(0.9, 0.99),
    pi=1e-3,
    nu_init=None,
    noise=None,
    q=None,
    **local,
):
    """`noise`: by round, the variance that is taken off where the second moment is unbiased."""
    known(second_moment, "delta", "mu", "unbiased")
    w, memory, results = case.start, {}, []
    mu, nu, p = np.zeros_like(w), np.full_like(w, pi**2 if nu_init is None else nu_init), 0.0
    for t, cohort in enumerate(case.cohorts):
        models = train_cohort(case, t, w, memory, clip=clip, **local)
        deltas = deltas_of(models, w)
        delta = aggregate(estimator, w, models, cohort, case.shares, q) - w
        mu = betas[0] * mu + (1 - betas[0]) * delta
        nu = betas[1] * nu + (1 - betas[1]) * (mu if second_moment == "mu" else delta) ** 2
        if second_moment == "unbiased":
            p = betas[1] * p + (1 - betas[1]) * noise[t]
        w = w + at(server_rate, t) * mu / (np.sqrt(np.maximum(nu - p, 0)) + pi)
        results.append({"w": w, "deltas": deltas, "delta": delta, "mu": mu, "nu": nu})
    return results


# 2.1 SCAFFOLD and DP-SCAFFOLD


def scaffold(
    case,
    *,
    option="II",
    estimator="mean",
    eta_g=1.0,
    warm=None,
    clip="none",
    rule="sgd",
    decay=0.99,
    eps=1e-8,
    state="persist",
    **step,
):
    """Option I takes one more gradient at x, with batch and noise of step `steps`.

    `estimator="renorm"` weighs by n_i. `warm`: the round whose batches and noise make the first controls.
    """
    known(option, "I", "II")
    step = {"clip": clip, **step}
    local = {"rule": rule, "numbers": {"decay": decay, "eps": eps}, "state": state, **step}
    x, n, memory, results = case.start, len(case.shares), {}, []
    c_i = [np.zeros_like(x) for _ in range(n)]
    if warm is not None:
        for i in range(n):
            steps = case.steps_of(warm, i)
            c_i[i] = sum(step_gradient(case, warm, i, s, x, **step) for s in range(steps)) / steps
    c = sum(c_i) / n
    for t, cohort in enumerate(case.cohorts):
        models = train_cohort(case, t, x, memory, extra=lambda i, s, y, c=c, c_i=c_i: c - c_i[i], **local)
        old, c_i = c_i, list(c_i)
        for i, y in models.items():
            if option == "I":
                c_i[i] = step_gradient(case, t, i, case.steps, x, **step)
            else:
                eta_l = case.rate(t, 0)
                assert all(case.rate(t, s) == eta_l for s in range(case.steps)), "option II needs a constant rate"
                c_i[i] = old[i] - c + (x - y) / (case.steps_of(t, i) * eta_l)
        deltas = deltas_of(models, x)
        x = x + eta_g * (aggregate(estimator, x, models, cohort, case.shares) - x)
        c = c + sum(c_i[i] - old[i] for i in models) / n
        results.append({"w": x, "deltas": deltas, "c": c, "c_i": c_i})
    return results


def dp_scaffold(case, *, clip="example", **options):
    """With `multiplier` as sigma_g the noise has std 2 C sigma_g / B, C by tensor for clip="per_tensor_median"."""
    return scaffold(case, clip=clip, **options)


# 2.2 DP-FedAvg


def dp_fedavg_local(case, *, clip="example", **options):
    """Record level: the noisy steps of DPNFL, averaged with the sizes of the cohort."""
    return fedavg(case, estimator="renorm", clip=clip, **options)


def dp_fedavg_central(
    case,
    *,
    bound,
    z,
    q,
    w_hat,
    estimator="f_f",
    w_min=None,
    clip="flat",
    clip_rate=0.0,
    quantile=0.5,
    bit_sigma=0.0,
    bit_noise=None,
    expected=None,
    **local,
):
    """Client level: clipped updates, noise once per round at the server.

    The clip norm of the next round is bound * exp(-clip_rate (noised share of unclipped updates - quantile)), after
    Andrew et al. 2021; `bit_noise` (rounds,) are standard normals, `expected` is the cohort's expected size (q N).
    """
    known(estimator, "f_f", "f_c")
    known(clip, "flat", "per_tensor")
    w, memory, results = case.start, {}, []
    n, tensors = len(case.shares), case.tensors()
    weight = [min(len(case.x[i]) / w_hat, 1) for i in range(n)]
    for t in range(len(case.cohorts)):
        deltas = deltas_of(train_cohort(case, t, w, memory, **local), w)
        total, mass, bits = np.zeros_like(w), 0.0, 0
        for i in case.cohorts[t]:
            clipped = deltas[i].copy()
            if clip == "flat":
                clipped = clip_to(clipped, bound)
            else:
                for tensor in tensors:
                    clipped[tensor] = clip_to(clipped[tensor], bound / np.sqrt(len(tensors)))
            total += weight[i] * clipped
            mass += weight[i]
            bits += norm(deltas[i]) <= bound
        if estimator == "f_f":
            delta, std = total / (q * sum(weight)), z * bound / (q * sum(weight))
        else:
            delta, std = total / max(q * w_min, mass), 2 * z * bound / (q * w_min)
        if std:
            delta = delta + std * case.server_noise[t]
        w = w + delta
        share = (bits + (bit_sigma * bit_noise[t] if bit_sigma else 0)) / (q * n if expected is None else expected)
        bound = bound * np.exp(-clip_rate * (share - quantile))
        results.append({"w": w, "deltas": deltas, "delta": delta, "std": std, "share": share, "bound": bound})
    return results


# 3 rFedAvg, rFedAvg+, FedProx, q-FedAvg


def fedprox(case, *, mu=1.0, prox_form="half", estimator="renorm", **local):
    """Adds mu/2 ||w - w_c||^2 (half) or mu ||w - w_c||^2 (full) to the local loss."""
    known(prox_form, "half", "full")
    pull = mu if prox_form == "half" else 2 * mu
    w, memory, results = case.start, {}, []
    for t, cohort in enumerate(case.cohorts):
        models = train_cohort(case, t, w, memory, extra=lambda i, s, v, w=w: pull * (v - w), **local)
        deltas = deltas_of(models, w)
        w = aggregate(estimator, w, models, cohort, case.shares)
        results.append({"w": w, "deltas": deltas})
    return results


def q_fedavg(case, *, q=1.0, q_h="update", **local):
    """`q_h`: the squared norm in h_k is that of dw_k ("update") or of F_k^q dw_k ("weighted", the bug)."""
    known(q_h, "update", "weighted")
    w, memory, results = case.start, {}, []
    for t, cohort in enumerate(case.cohorts):
        models = train_cohort(case, t, w, memory, **local)
        deltas = deltas_of(models, w)
        lipschitz = 1 / case.rate(t, 0)
        losses, h, step = {}, {}, {}
        for k in models:
            losses[k] = case.problem.losses(w, case.x[k], case.y[k]).mean()
            dw = lipschitz * (w - models[k])
            step[k] = losses[k] ** q * dw
            square = norm(dw if q_h == "update" else step[k]) ** 2
            h[k] = (q * losses[k] ** (q - 1) * square if q else 0.0) + lipschitz * losses[k] ** q
        if cohort:
            w = w - sum(step[k] for k in cohort) / sum(h[k] for k in cohort)
        results.append({"w": w, "deltas": deltas, "losses": losses, "h": h})
    return results


def mean_feature(problem, w, x, bound=np.inf):
    """delta^k(w): the mean over the records of their features, each clipped to `bound`."""
    return sum(clip_to(phi, bound) for phi in problem.features(w, x)) / len(x)


def noisy_delta(delta, sigma2, bound, batch, z):
    """delta + (1/L) N(0, sigma2^2 C2^2)."""
    return delta + sigma2 * bound / batch * z


def penalty_gradient(problem, w, x, targets):
    """Gradient of the mean over the targets of || mean feature of x - target ||^2."""
    if not targets or not len(x):
        return np.zeros_like(w)
    phi, jacobian = problem.features(w, x).mean(0), problem.feature_jacobian(w, x).mean(0)
    return sum(2 * jacobian.T @ (phi - target) for target in targets) / len(targets)


def targets_of(case, t, i, delta, scope, leave_one_out):
    """The deltas that client i is pulled to in round t."""
    known(scope, "participants", "all")
    clients = case.clients(t) if scope == "participants" else range(len(case.shares))
    return [delta[j] for j in clients if j != i or not leave_one_out]


def feature_matching(
    case,
    *,
    lam,
    delta_at,
    mean_target,
    scope="participants",
    leave_one_out=True,
    estimator="renorm",
    **local,
):
    """`mean_target`: clients are pulled to the mean of the deltas of others, those at the model of the round."""
    w, memory, results = case.start, {}, []
    delta = [mean_feature(case.problem, w, x) for x in case.x]
    for t, cohort in enumerate(case.cohorts):
        delta = list(delta)
        if mean_target and scope == "participants":
            for i in case.clients(t):
                delta[i] = mean_feature(case.problem, w, case.x[i])

        def pull(i, s, v, t=t, delta=delta):
            targets = targets_of(case, t, i, delta, scope, leave_one_out)
            if mean_target and targets:
                targets = [sum(targets) / len(targets)]
            return lam * penalty_gradient(case.problem, v, case.batch(t, i, s)[0], targets)

        models = train_cohort(case, t, w, memory, extra=pull, **local)
        deltas, before = deltas_of(models, w), w
        w = aggregate(estimator, w, models, cohort, case.shares)
        delta = list(delta)
        for i in models:
            model = {"local_after": models[i], "global_before": before, "global_after": w}[delta_at]
            delta[i] = mean_feature(case.problem, model, case.x[i])
        results.append({"w": w, "deltas": deltas, "models": models, "delta": delta})
    return results


def rfedavg(case, *, delta_at="local_after", **options):
    known(delta_at, "local_after", "global_before")
    return feature_matching(case, delta_at=delta_at, mean_target=False, **options)


def rfedavg_plus(case, **options):
    return feature_matching(case, delta_at="global_after", mean_target=True, **options)


# 4 CPFed and DP-SGD


def cpfed(case, *, clip="example", **options):
    """The masks of secure aggregation cancel and are left out."""
    return fedavg(case, estimator="mean", clip=clip, **options)


def dp_sgd(case, *, clip="example", **options):
    return cpfed(dataclasses.replace(case, steps=1), clip=clip, **options)


# 5 ACS-PLDP-FL


def acs_pldp(case, *, q, sigma, bound, clip="example", **local):
    """Noise of std S_i sigma_i with S_i = 2C/m (example) or 2C (batch)."""
    known(clip, "example", "batch")
    return fedavg(case, estimator="is", q=q, clip=clip, bound=bound, multiplier=sigma, **local)


# 6 DP-FedAvg in heterogeneous settings


def dp_fedavg_output(
    case, *, bound, std=None, clip="batch", noise_space="model", noise_at="last", estimator="wor_model", l2=0.0
):
    """`std(t, i, s)` is sigma_t^k; None: no noise. The noise of the last step is `upload_noise`, if the case has it.

    `model` adds it to the model; `literal` adds it to the gradient, which the rate then multiplies.
    """
    known(noise_space, "model", "literal")
    known(noise_at, "last", "every")
    w, results = case.start, []
    for t, cohort in enumerate(case.cohorts):
        models = {}
        for i in case.clients(t):
            v, last = w, case.steps_of(t, i) - 1
            for s in range(last + 1):
                g = step_gradient(case, t, i, s, v, clip=clip, bound=bound, l2=l2)
                v = v - case.rate(t, s) * g
                if std is not None and (noise_at == "every" or s == last):
                    z = case.noise[t, i, s] if s < last or case.upload_noise is None else case.upload_noise[t, i]
                    xi = std(t, i, s) * z
                    v = v + xi if noise_space == "model" else v - case.rate(t, s) * xi
            models[i] = v
        deltas = deltas_of(models, w)
        w = aggregate(estimator, w, models, cohort, case.shares)
        results.append({"w": w, "deltas": deltas, "models": models})
    return results


# Problems


def softmax_problem(features, classes):
    """Softmax regression on w = (bias, kernel (features, classes) row by row)."""

    def split(w):
        return w[:classes], w[classes:].reshape(features, classes)

    def probabilities(w, x):
        bias, kernel = split(w)
        scores = bias + x.reshape(len(x), features) @ kernel
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)

    def losses(w, x, y):
        return -np.log(probabilities(w, x)[np.arange(len(x)), y])

    def gradients(w, x, y):
        result = np.zeros((len(x), len(w)))
        for j, (p_j, x_j, y_j) in enumerate(zip(probabilities(w, x), x, y)):
            error = p_j - np.eye(classes)[y_j]
            result[j] = np.concatenate([error, np.outer(x_j.ravel(), error).ravel()])
        return result

    size = classes + features * classes
    return Problem(gradients, losses, tensors=[slice(0, classes), slice(classes, size)])


def two_layer_problem(features, hidden):
    """1/2 (v . tanh(x u) - y)^2 on w = (u (features, hidden) row by row, v); the features are tanh(x u)."""
    size = features * hidden + hidden

    def split(w):
        return w[: features * hidden].reshape(features, hidden), w[features * hidden :]

    def phi(w, x):
        return np.tanh(x.reshape(len(x), features) @ split(w)[0])

    def losses(w, x, y):
        return 0.5 * (phi(w, x) @ split(w)[1] - y) ** 2

    def jacobian(w, x):
        result, value = np.zeros((len(x), hidden, size)), phi(w, x)
        for j in range(len(x)):
            for h in range(hidden):
                for f in range(features):
                    result[j, h, f * hidden + h] = x[j].ravel()[f] * (1 - value[j, h] ** 2)
        return result

    def gradients(w, x, y):
        result, value, slopes, v = np.zeros((len(x), size)), phi(w, x), jacobian(w, x), split(w)[1]
        for j in range(len(x)):
            inner = v @ slopes[j]
            inner[features * hidden :] = value[j]
            result[j] = (value[j] @ v - y[j]) * inner
        return result

    tensors = [slice(0, features * hidden), slice(features * hidden, size)]
    return Problem(gradients, losses, phi, jacobian, tensors)
