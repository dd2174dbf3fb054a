"""Clients and classes keep their names: from files, columns and users to pictures, Guarantees, audits and stores."""

import dataclasses
import itertools

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data.client_names import ClientNames, as_client_names, number_of, plain_name
from fedjax_dp.tools import figures

SIZES = (30, 12, 6)
NAMES = ("H0", "H1", "ward \u20ac")
OWNERS = np.repeat(NAMES, SIZES)
DRAWS = np.random.default_rng(0)
X, Y = DRAWS.normal(size=(48, 3)).astype(np.float32), np.arange(48) % 2
DATASET = fdp.dataset(X, Y, X[:8], Y[:8], client_ids=OWNERS)
DATA = fdp.federate(DATASET, fdp.data.natural(OWNERS))
TRAINED = {"batch_size": 5, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 2.0}


def test_ids_and_keys_are_names_unless_they_are_numbers_of_clients():
    assert DATA.names.listed == NAMES
    assert fdp.federate(DATASET, {"b": range(5), "a": [5, 6]}).names.listed == ("b", "a")
    assert fdp.federate(DATASET, {0: range(5), 1: [5, 6]}).names is None
    assert fdp.federate(DATASET, {7: range(5), 3: [5, 6]}).names.listed == ("7", "3")
    assert fdp.federate(DATASET, fdp.data.iid(DATASET, 3)).names is None
    assert fdp.federate(DATASET, [np.arange(31), np.arange(31, 48)]).names is None  # the second has records of two
    split = [np.arange(10), np.arange(10, 30), np.arange(30, 42), np.arange(42, 48)]
    assert fdp.federate(DATASET, split).names is None  # H0 is two clients


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("A", ["A ", "\u00a0A", '"A"', 'A"', "'A'", "A\u200b", "\ufeffA", "A\0", "A\u2060", "\uff21"]),
        ("A B", ["A  B", "A\u00a0B", " A\tB"]),
        ("Jos\u00e9", ["Jose\u0301", "Jo\u00ads\u00e9"]),
        ("7", ["7.0", "+7", "7.", "\uff17", '"7.0"']),
        ("O'Brien", []),
        ('"', []),
    ],
)
def test_a_name_is_the_same_however_it_is_written(name, spellings):
    assert {plain_name(one) for one in (name, *spellings)} == {name}
    assert plain_name("07") != plain_name("7")


def test_names_compile_nothing_again():
    calls = []

    @jax.jit
    def count(data):
        calls.append(1)
        return data.sizes.sum()

    for names in (NAMES, ("x", "y", "z")):
        data = fdp.federate(DATASET, dict(zip(names, fdp.data.natural(OWNERS), strict=True)))
        assert count(data) == 48
    assert len(calls) == 1


def test_a_client_is_found_by_name_or_number():
    for names, word, number in (
        (DATA.names, "H1", 1),
        (DATA.names, "2", 2),
        (DATA.names, 2, 2),
        (as_client_names(["7", "3", "0"]), "0", 2),  # a name comes first
        (as_client_names(["7", "3", "0"]), 0, 0),
        (None, "1", 1),
    ):
        assert number_of("client", names, 3, word) == number
    assert "client must be one of H0, H1, ward \u20ac, got 'ward'; did you mean ward" in refusal(
        number_of, "client", DATA.names, 3, "ward"
    )
    for word in (3, "3", -1):
        assert "client must be" in refusal(number_of, "client", DATA.names, 3, word)
    assert "as clients have no names" in refusal(number_of, "client", None, 3, "H0")


def test_a_name_is_one_line():
    assert ClientNames(["a\x1b[2J"])[0] == repr("a\x1b[2J")


def test_a_guarantee_says_whose_epsilon_is_the_largest_unless_clients_are_hidden():
    algorithm = fdp.dpnfl(cohort_size=3, **TRAINED)
    promise = fdp.guarantee(algorithm, DATA, rounds=2, delta=1e-2)
    assert f"({NAMES[2]})" in str(promise)
    assert promise.names == NAMES
    assert Guarantee.from_full_dict(promise.to_full_dict()).names == NAMES
    hidden = fdp.guarantee(fdp.dp_fedavg(cohort_size=2, **TRAINED), DATA, rounds=2, delta=1e-2)
    assert not any(name in str(hidden.to_full_dict()) for name in NAMES)
    numbered = fdp.federate(DATASET, dict(enumerate(fdp.data.natural(OWNERS))))
    plain = fdp.guarantee(algorithm, numbered, rounds=2, delta=1e-2)
    assert plain.names == ()


@pytest.mark.exhaustive  # CI: names of every other command, above
def test_an_audit_attacks_a_client_by_name():
    algorithm = fdp.dpnfl(cohort_size=3, **TRAINED)
    found = fdp.audit(algorithm, DATA, rounds=2, delta=1e-2, client="H1", trials=1000, parameters=5)
    assert (found.client, found.name) == (1, "H1")
    assert "one record of client H1" in found.verdict
    assert found.to_dict()["client_name"] == "H1"


def test_what_diverges_is_named():
    told = str(errors.DivergedError(3, [0, 2], DATA.called))
    assert f"clients H0, {NAMES[2]};" in told


@pytest.mark.parametrize("names", [NAMES, ("$H$", "a" * 200, "c\\")])
def test_pictures_show_names(names, tmp_path):
    figure = figures.plot_clients(np.ones((3, 2), int), "title", tmp_path / "p.png", names)
    shown = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert len(shown) == 3
    assert all(len(word) <= 26 for word in shown)
    assert names != NAMES or shown == list(NAMES)
    assert plt.imread(tmp_path / "p.png").std() > 0.02


WORDS = np.array(["cat", "dog", "cow, of a name that is too long for an axis"])


def animals(**options):
    x, y = np.ones((9, 2), np.float32), WORDS[np.arange(9) % 3]
    return fdp.dataset(x, y, x, y, **options)


def test_classes_keep_their_names_through_partitions():
    data = fdp.federate(animals(), [np.arange(4), np.arange(4, 9)])
    assert data.class_names.listed == tuple(sorted(WORDS))
    np.testing.assert_array_equal(np.sort(WORDS)[np.asarray(data.y)], WORDS[np.arange(9) % 3])


def test_a_guarantee_takes_named_classes_for_public():
    options = {"cohort_size": 2, "batch_size": 2, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}
    private = fdp.dpnfl(**options, noise_multiplier=2.0)
    data = fdp.federate(animals(), [np.arange(4), np.arange(4, 9)])
    line = "the classes and what they are called are public"
    assert line in fdp.guarantee(private, data, rounds=1, delta=1e-3).assumptions
    unnamed = dataclasses.replace(data, class_names=None)
    assert line not in fdp.guarantee(private, unnamed, rounds=1, delta=1e-3).assumptions


def test_cards_name_classes():
    assert "3 (cat, cow, of a name" in str(animals())


def test_more_classes_than_words_are_refused():
    assert "leave it out" in refusal(animals, classes=4)


@pytest.mark.parametrize(("clients", "classes"), [(3, 3), (40, 3), (3, 47), (40, 200)])
def test_pictures_show_names_of_classes_that_do_not_overlap(clients, classes, tmp_path):
    labels = [*WORDS, *(f"class {number}" for number in range(3, classes))]
    counts = np.ones((clients, classes), int)
    figure = figures.plot_clients(counts, "title", tmp_path / "p.png", labels=labels)
    shown = figure.axes[1].get_yticklabels()
    assert shown[0].get_text() == "cat"
    assert all(len(label.get_text()) <= 24 for label in shown)
    boxes = [label.get_window_extent() for label in shown]
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))
