"""The data part of a configuration, and the command that shows it."""

import json
import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import command_output, command_refusal, refusal

from fedjax_dp import data
from fedjax_dp.experiments import config
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.partitions import OPTIONS, PARTITIONS, divide
from fedjax_dp.experiments.population import build_data
from fedjax_dp.experiments.presets import population_of, resolve_population
from fedjax_dp.pytrees import equal


def resolved(**changes):
    plain = PopulationConfig(**changes)
    return resolve_population(plain, population_of(plain.dataset.partition(":")[0]))


def test_every_data_set_brings_every_option_and_a_way_to_train():
    for name in data.DATASETS:
        preset = population_of(name)
        assert set(preset) == {"partition", *OPTIONS} - {"client_ids", "shard_size"}, name
        assert preset["partition"] in PARTITIONS
        training = config.RunSpec.of({"dataset": f"{name}:x" if name in ("npz", "tfds", "store") else name}).training
        assert training.rounds > 0, name


WAYS = [
    {"partition": "iid"},
    {"partition": "labels", "labels_per_client": 3},
    {"partition": "one-class", "num_clients": 30},
    {"partition": "dirichlet", "concentration": 0.3},
    {"partition": "dirichlet", "concentration_scale": "hsu"},
    {"partition": "similarity", "similarity": 20.0},
    {"partition": "inner-dirichlet", "sizes": "linear"},
    {"partition": "class-dirichlet", "balance": False, "concentration": 5.0},
    {"partition": "class-dirichlet"},
    {"partition": "shards"},
    {"partition": "shards", "shard_size": 30},
    {"partition": "pathological", "labels_per_client": 2, "assignment": "first"},
    {"partition": "continuous", "column_strength": 1.0},
    {"partition": "continuous", "column": "20"},
    {"sizes": "square"},
    {"sizes": "exponential", "num_clients": 7},
    {"sizes": "power-law"},
    {"sizes": "zipf", "zipf_exponent": 0.5},
    {"partition": "dirichlet", "sizes": "zipf"},
    {"holdout": 0.25},
    {"partition": "similarity", "holdout": 0.1},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_partition_is_built_and_a_resolved_one_stays_as_it_is(way):
    settings = resolved(seed=5, **way)
    assert resolve_population(settings, population_of("digits")) == settings
    store = build_data(settings)
    assert store.num_clients == settings.num_clients
    used = store.sizes.sum() + (len(store.y_test) if settings.holdout else 0)
    if settings.partition == "one-class":  # classes are not multiples of each other
        assert (np.unique(store.sizes).size, data.summarise(store).labels_per_client) == (1, (1, 1, 1))
    else:
        assert 0 <= (1797 if settings.holdout else 1437) - used < max(store.num_clients, 30)
    assert (store.test_clients is not None) == (settings.partition == "similarity" or settings.holdout is not None)


def test_seed_decides_partition_sizes_and_synthetic_data():
    for way in ({"partition": "similarity"}, {"sizes": "zipf"}, {"dataset": "synthetic:1,1,9"}):
        one, same, other = (build_data(resolved(seed=seed, **way)) for seed in (1, 1, 2))
        assert equal(one, same)
        assert one.rows.shape != other.rows.shape or (one.x[one.rows] != other.x[other.rows]).any()


def test_similarity_gives_each_client_test_records_of_its_own_labels():
    store = build_data(resolved(partition="similarity", similarity=0.0))
    for client in range(10):
        own = store.y[store.rows[store.offsets[client] :][: store.sizes[client]]]
        tested = store.y_test[store.test_clients == client]
        assert len(tested) == 36
        assert np.isin(tested, [*own, *(own + 1), *(own - 1)]).all()  # test labels have slightly other shares


def test_natural_clients_bring_their_test_records_and_small_ones_can_be_dropped():
    whole = build_data(resolved(dataset="synthetic:1,1,20"))
    assert whole.num_clients == 20
    assert np.unique(whole.test_clients).size == 20
    least = int(np.median(whole.sizes)) + 1
    fewer = build_data(resolved(dataset="synthetic:1,1,20", min_records=least))
    assert fewer.sizes.tolist() == [size for size in whole.sizes if size >= least]
    assert np.unique(fewer.test_clients).size == fewer.num_clients


def test_natural_clients_are_put_together_with_their_test_records():
    whole = build_data(resolved(dataset="synthetic:1,1,21", partition="grouped-natural", group_size=4))
    assert whole.num_clients == 6
    assert whole.sizes.sum() == build_data(resolved(dataset="synthetic:1,1,21")).sizes.sum()
    assert np.unique(whole.test_clients).size == 6
    fewer = build_data(
        resolved(dataset="synthetic:1,1,21", partition="grouped-natural", group_size=4, remainder="drop")
    )
    np.testing.assert_array_equal(fewer.sizes, whole.sizes[:5])
    assert len(fewer.y_test) == (whole.test_clients < 5).sum()


def sequences():
    """Eight texts of three tokens, whose clients are known."""
    ids = np.arange(32).reshape(8, 4) % 5
    about = {"classes": 5, "tokens": True, "task": "sequence", "vocabulary": data.Vocabulary(5)}
    owners = {"client_ids": np.arange(8) % 3, "test_client_ids": np.arange(8) % 3}
    return data.Dataset("texts", ids[:, :-1], ids[:, 1:], ids[:, :-1], ids[:, 1:], **about, **owners)


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_by_label_are_refused_for_targets_that_are_none(name):
    np.save("ids.npy", np.arange(8) % 2)
    brought = population_of("digits") | {"seed": 0, "num_clients": 2, "client_ids": "ids.npy", "min_records": 1}
    values = brought | {"column": "1"}
    if PARTITIONS[name].by_label:
        told = refusal(divide, name, sequences(), values)
        assert told.startswith("partition must be one that needs no labels, which task sequence does not have")
        return
    dataset, clients, _ = divide(name, sequences(), values)
    assert data.federate(dataset, clients).sizes.sum() == 8


def test_a_target_is_a_column_where_it_is_a_number():
    x = np.arange(12.0).reshape(6, 2)
    y = np.array([[3, 0], [1, 1], [2, 2], [5, 3], [4, 4], [0, 5]], np.float32)
    numbers = data.Dataset("numbers", x, y, x, y, 2, task="regression")
    for column, order in (("target:0", [5, 1, 2, 0, 4, 3]), ("1", list(range(6)))):
        found = divide("continuous", numbers, {"num_clients": 3, "seed": 0, "column_strength": 1.0, "column": column})[
            1
        ]
        assert np.concatenate(found).tolist() == order
    for column in ("target", "target:2", "2", "-1", "", "x:1", "target:", "²"):
        told = refusal(
            divide, "continuous", numbers, {"num_clients": 3, "seed": 0, "column_strength": 1.0, "column": column}
        )
        assert told.startswith("column must be target, target:J, or the number of a feature")


def test_clients_are_given_in_a_file():
    pathlib.Path("ids.txt").write_text("\n".join(str(row % 7) for row in range(1437)))
    store = build_data(resolved(partition="given", client_ids="ids.txt"))
    assert store.num_clients == 7
    np.testing.assert_array_equal(store.x[store.rows[: store.sizes[0]]], data.load("digits").x_train[::7])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"similarity": 10.0}, "similarity must be left out for partition iid with sizes equal, got 10.0; drop it"),
        ({"zipf_exponent": 1.0, "sizes": "power-law"}, "zipf_exponent must be left out"),
        ({"partition": "dirichlet", "labels_per_client": 2}, "labels_per_client must be left out"),
        ({"partition": "natural", "num_clients": 5}, "num_clients must be left out for partition natural"),
        ({"partition": "shards", "shard_size": 0}, "shard_size must be an integer of at least 1"),
        ({"partition": "given"}, "name a file with --client-ids"),
        ({"partition": "dirichelt"}, "did you mean dirichlet?"),
        ({"holdout": 1.0}, "holdout must be strictly between 0 and 1"),
        ({"seed": -1}, "seed must be an integer"),
        ({"partition": "similarity", "similarity": 101.0}, "similarity must be between 0 and 100"),
        ({"partition": "similarity", "num_clients": 2000}, "records must be at least 1"),
        ({"partition": "dirichlet", "concentration": 0.0}, "concentration must be positive"),
        ({"partition": "dirichlet", "concentration_scale": "x"}, "concentration_scale must be one of"),
        ({"partition": "given", "client_ids": "absent"}, "client_ids must be an existing file of ids"),
        ({"partition": "natural"}, "client_ids"),
        ({"partition": "grouped-natural"}, "partition must be used with a data set that has client_ids"),
        ({"partition": "shards", "shard_size": 9, "shards_per_client": 2}, "shard_size must be left out where"),
        (
            {"partition": "class-dirichlet", "concentration": 0.01, "balance": False},
            "min_records must be what the smallest client can",
        ),
        ({"partition": "continuous", "column_strength": np.nan}, "strength must be between 0 and 1"),
        ({"partition": "pathological", "labels_per_client": 11}, "labels_per_client must be between 1 and the 10"),
        ({"sizes": "exponential"}, "sizes must be at least a record for each client, got exponential for 10"),
        ({"sizes": "zipf", "min_records": 200}, "min_records must be at most"),
        ({"partition": "one-class", "num_clients": 3, "sizes": "power-law"}, "records left for client"),
    ],
    ids=str,
)
def test_partitions_that_cannot_be_and_options_that_mean_nothing_are_refused(options, words):
    assert words in refusal(lambda: build_data(resolved(**options)))


def test_holdout_of_natural_clients_needs_ids_of_test_records():
    x, y = np.zeros((8, 2)), np.arange(8) % 2
    ids = np.arange(8) % 3
    np.savez("mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_ids=ids)
    settings = resolved(dataset="npz:mine.npz", partition="natural", holdout=0.5)
    assert "test records have client ids" in refusal(build_data, settings)
    np.savez("mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_ids=ids, test_client_ids=ids)
    assert build_data(settings).sizes.tolist() == [3, 3, 2]


# The command


def test_command_prints_a_table(capsys):
    out = command_output(capsys, "data").out
    for words in (
        "digits, partition iid, seed 0",
        "records per client",
        "143",
        "8 x 8 (uint8), one of 10 classes",
        "360 for testing (not divided among clients)",
        "label distance",
    ):
        assert words in out


def test_command_prints_one_json_object_and_draws(capsys):
    words = ["data", "synthetic:1,1,12", "--seed", "3", "--plot", "clients.png", "--json"]
    out = command_output(capsys, *words).out
    told = json.loads(out)
    assert out.count("\n") == 1
    assert (told["clients"], told["classes"], told["record_shape"]) == (12, 10, [60])
    assert told["options"] == {
        "dataset": "synthetic:1,1,12",
        "seed": 3,
        "partition": "natural",
        "min_records": 1,
        "plot": "clients.png",
    }
    assert plt.imread("clients.png").std() > 0.05


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mnits"], "did you mean mnist?"),
        (["--plot", "a.jpg"], "plot must be a file name that ends in .png, .pdf, .svg"),
        (["--plot", "absent/a.png"], "plot must be in a folder that exists"),
        (["--rounds", "3"], "argument must be an option of fedjax-dp data"),
        (["tfds:cifar10", "--data-dir", "."], "where TensorFlow is installed run"),
    ],
)
def test_bad_words_end_in_one_line(words, expected, capsys):
    assert expected in command_refusal(capsys, "data", *words)


def test_features_are_normalised_by_public_numbers():
    plain, other = (build_data(resolved(normalise=told)) for told in (None, "0.25,0.5"))
    seen = np.asarray(plain.features(plain.x_test))
    np.testing.assert_allclose(other.features(other.x_test), (seen - 0.25) / 0.5, rtol=1e-5, atol=1e-6)
    for told in ("1", "0,0", "a,b", "nan,1"):
        assert "normalise must be two numbers" in refusal(build_data, resolved(normalise=told))


def test_one_projection_at_a_time():
    assert "pca must be left out" in refusal(resolved, pca=3, cosines=3)
