"""fedjax_dp: several rounds in one dispatch, on every core."""

import jax
import jax.numpy as jnp
import numpy as np
import workloads
from flax import linen as nn

import fedjax_dp as fdp  # before JAX is used, so that every core is a device
from fedjax_dp import gradients
from fedjax_dp.data import Dataset, federate
from fedjax_dp.models import cnn, logistic_regression, mlp
from fedjax_dp.models.vision import halve
from fedjax_dp.rounds import simulation

ROUNDS = {
    "W3": 2,
    "W3dp": 5,
    "cifar": 2,
    "cifar-client": 2,
    "cifar-record": 2,
    "cifar-images": 5,
    "cifar-images-client": 5,
}


class Cifar(nn.Module):
    """The network of pfl-research's benchmark, without dropout."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))  # a line each, as Flax numbers layers when they are made
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Dense(128)(halve(x).reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def model_of(w):
    if w.images:
        return fdp.models.simple_cnn(w.shape, workloads.CLASSES)
    if w.model == "pfl":
        return fdp.model(Cifar(), w.shape)
    return {"logistic": logistic_regression, "mlp": lambda *a: mlp(*a, (1200,)), "cnn": cnn}[w.model](w.shape, 10)


def settings_of(w):
    return {
        "cohort_size": w.cohort,
        "batch_size": w.batch,
        **({"batches": "epochs", "local_steps": 1} if w.images else {"local_steps": w.steps}),
        "learning_rate": w.rate,
        "schedule": "constant",
        "l2": 0.0,
    }


def algorithm_of(w):
    noise = {"clip_norm": w.clip_norm, "noise_multiplier": w.noise_multiplier}
    if w.private == "record":
        return fdp.dpnfl(**settings_of(w), **noise)
    if w.private == "client":  # a cohort of fixed size, as the others draw it
        return fdp.dp_fedavg(**settings_of(w), **noise, cohort="uniform")
    return fdp.fedavg(**settings_of(w))


def clients_of(w):
    x, y = workloads.records(w)
    total = w.clients * w.records
    x, y = x.reshape(total, *w.shape), y.reshape(total)
    dataset = Dataset("random", x, y, x[:100], y[:100], classes=workloads.CLASSES, scale=1 / 255)
    return federate(dataset, np.split(np.arange(total), w.clients))


def rounds_of(w, algorithm, data, model, execution=None):
    """Runs some rounds in one dispatch from where the last ones ended, and tells how many."""
    rounds, state = simulation.initialize(algorithm, data, model, execution or fdp.execution.all_devices())
    held, each = [state], ROUNDS.get(w.name, 10)

    def run():
        held[0], report = rounds.advance(held[0], int(held[0].round) + each)
        jax.block_until_ready((held[0], report))
        return each

    def accuracy():
        x, y = workloads.images()[2:]
        each = jax.jit(lambda params, x: jnp.argmax(jax.vmap(model.scores, (None, 0))(params, x / 255.0), -1))
        parts = [each(held[0].params, part) for part in np.array_split(x, len(x) // 500)]
        return float(np.mean(np.concatenate(parts) == y))

    run.accuracy = accuracy
    return run


def gradient_of(w, model):
    """The clipped mean gradient of a batch at the weights of `workloads.weights`, layer by layer."""

    def gradient(weights, x, y):
        params = with_weights(model.init(jax.random.key(0)), weights)
        found = jax.jit(gradients.clipped_sum, static_argnums=0)(
            model, params, jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y), bool), w.clip_norm
        ).total
        return [(found[name]["kernel"] / len(y), found[name]["bias"] / len(y)) for name in in_order(found)]

    return gradient


def make(w):
    model = model_of(w)
    run = rounds_of(w, algorithm_of(w), clients_of(w), model)
    return run, gradient_of(w, model) if w.private == "record" else None, *([run.accuracy] if w.images else [])


def in_order(params):
    """Names of Flax layers from input to output."""
    return sorted(params, key=lambda name: (name.startswith("Dense"), name))


def with_weights(params, weights):
    layers = zip(in_order(params), weights, strict=True)
    return {name: {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)} for name, (kernel, bias) in layers}
