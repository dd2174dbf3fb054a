"""McMahan's FedAvg, E = 5 passes in batches of B = 10, on files of LEAF's FEMNIST, against a slow NumPy simulator.

Written from Algorithm 1 of McMahan et al. 2017 (arXiv:1602.05629): in each pass a client's records are split into
batches of size B, each a step w <- w - eta grad l(w; b) of the batch's mean, and models are averaged by n_k / n. The
last batch of a pass holds the rest. Only the order of the records is shared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from client_files import leaf_file
from helpers import states_of

import fedjax_dp as fdp
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.simulation import run_key

EPOCHS, BATCH, RATE, ROUNDS, CLASSES = 5, 10, 0.05, 2, 62
SIZES = {"f0001_07": 23, "f0002_11": 4, "f0003_41": 10, "f0004_02": 37}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Writers of several sizes in two files, 28 x 28 pixels in rows of 784 and labels 0 to 61, as LEAF writes them."""
    folder, rng = tmp_path_factory.mktemp("femnist") / "data", np.random.default_rng(0)
    writers = {}
    for name, size in SIZES.items():
        pixels = np.where(rng.random((size, 784)) < 0.05, 1.0, 0.0)
        writers[name] = (pixels.tolist(), rng.integers(0, CLASSES, size).tolist())
    writers["f0001_07"][1][0] = CLASSES - 1  # so that all classes are there
    names, test = list(SIZES), {name: ([[0.0] * 784], [1]) for name in SIZES}
    for at, part in enumerate((names[:2], names[2:])):
        leaf_file(
            folder / "train" / f"all_data_{at}_niid_0_keep_0_train_9.json", {name: writers[name] for name in part}
        )
    leaf_file(folder / "test" / "all_data_0_niid_0_keep_0_test_9.json", test)
    dataset = fdp.load(f"leaf:{folder.parent}")
    return fdp.federate(dataset, fdp.data.natural(dataset))


def orders(t, client, size, largest, batches):
    """The records of every pass in the order that the run draws: (pass, n_k)."""
    key = jax.random.fold_in(jax.random.fold_in(role_key(run_key(0), "local"), t), client)
    drawn = jax.device_get(
        batches.sample(
            role_key(key, "batch"), jnp.int32(size), batches.count(EPOCHS, largest), largest, min(SIZES.values())
        )
    )
    positions = [row[mask] for row, mask in zip(drawn.positions, drawn.mask, strict=True)]
    return np.concatenate([row for row in positions if len(row)]).reshape(EPOCHS, size)


def step(bias, kernel, x, y):
    """One step of softmax regression on the mean loss of a batch."""
    scores = np.exp((s := bias + x @ kernel) - s.max(1, keepdims=True))
    error = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[y]
    return bias - RATE * error.mean(0), kernel - RATE * x.T @ error / len(x)


def by_hand(data, batches, last):
    """The model after every round."""
    bias, kernel, models = np.zeros(CLASSES), np.zeros((784, CLASSES)), []
    sizes = np.asarray(data.sizes).tolist()
    for t in range(ROUNDS):
        trained = []
        for k, (offset, size) in enumerate(zip(np.asarray(data.offsets).tolist(), sizes, strict=True)):
            x, y = np.asarray(data.x[offset : offset + size], float), np.asarray(data.y[offset : offset + size])
            own = bias, kernel
            for order in orders(t, k, size, max(sizes), batches):
                assert sorted(order.tolist()) == list(range(size))  # a pass has every record once
                cut = min(BATCH, size)
                for begin in range(0, size, cut):
                    records = order[begin : begin + cut]
                    if last == "keep" or len(records) == cut:
                        own = step(*own, x[records], y[records])
            trained.append(own)
        bias, kernel = (sum(n * w[part] for n, w in zip(sizes, trained, strict=True)) / sum(sizes) for part in (0, 1))
        models.append(np.concatenate([bias, kernel.ravel()]))
    return models


def flat(params):
    return np.concatenate([params["Dense_0"]["bias"], params["Dense_0"]["kernel"].ravel()])


@pytest.fixture(scope="module")
def run(data):
    algorithm = fdp.fedavg.of(
        {
            "cohort_size": None,
            "estimator": "full",
            "batches": "epochs",
            "last": "keep",
            "batch_size": BATCH,
            "local_steps": EPOCHS,
            "learning_rate": RATE,
        }
    )
    model = fdp.logistic_regression(data.record_shape, data.classes)
    with jax.default_matmul_precision("float32"):  # an accelerator's products have ten bits by default
        return algorithm.local.batches, [flat(s.params) for s in states_of(algorithm, model, data, ROUNDS)]


def test_writers_of_all_sizes_are_clients(data):
    assert data.classes == CLASSES
    assert sorted(np.asarray(data.sizes).tolist()) == sorted(SIZES.values())


@pytest.mark.slow
def test_two_rounds_equal_the_slow_simulator(data, run):
    batches, states = run
    assert not np.any(states[0])
    for got, wanted in zip(states[1:], by_hand(data, batches, "keep"), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-6)


@pytest.mark.slow
def test_a_simulator_that_drops_the_rest_of_a_pass_is_rejected(data, run):
    batches, states = run
    wrong = by_hand(data, batches, "drop")
    assert np.max(np.abs(states[-1] - wrong[-1])) > 1e-3
