"""Sentiment140 with its users."""

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp import data
from fedjax_dp.data.sequences import cut_words, most_frequent, of_words, words_of
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.population import build_data
from fedjax_dp.experiments.presets import population_of, preset_of, resolve_population


def write_messages(folder, rows, header="user,positive,text"):
    (folder / "sent140").mkdir(exist_ok=True)
    (folder / "sent140" / "sent140_subset.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def test_words_are_those_of_the_basic_english_tokeniser():
    # source: the table of replacements in torchtext's documentation of "basic_english"
    words = "don ' t ( you ) ever stop now . ok , fine ! ?"
    assert words_of('Don\'t (you) "ever"; stop: NOW.<br />ok,fine!?') == words.split()


def test_vocabulary_is_of_training_messages_with_ties_in_alphabetical_order(folder):
    rows = [f'1,0,"b a b c message{i}"' for i in range(10)] + ["2,1,c c c lonely"]
    write_messages(folder, rows)
    got = data.load("sent140", folder)
    assert (got.tokens, got.x_train.dtype, got.x_train.shape, got.x_test.shape) == (True, np.int16, (10, 25), (1, 25))
    assert (got.test_client_ids.tolist(), sorted(got.client_ids.tolist())) == ([1], [1] * 9 + [2])
    # b 18 times, c 12, a 9 in training; the test message's own word was never seen
    assert got.x_test[0, :6].tolist() == [2, 4, 2, 3, 1, 0]
    lonely = got.x_train[got.client_ids == 2][0]
    assert lonely[:5].tolist() == [3, 3, 3, 5, 0]  # "lonely" comes before all "message..."
    assert of_words(most_frequent([["b", "a", "c"], ["c"]], 9)).known == {"c": 2, "a": 3, "b": 4}


def test_users_are_the_clients_unless_a_partition_is_named(folder):
    write_messages(folder, [f'{user},0,"message {at}"' for user in range(3) for at in range(4)])
    clients = {}
    for partition, count in ((None, None), ("iid", 2)):
        named = PopulationConfig(dataset="sent140", data_dir=str(folder), partition=partition, num_clients=count)
        clients[partition] = build_data(resolve_population(named, population_of("sent140"))).num_clients
    assert clients == {None: 3, "iid": 2}


def test_a_default_run_trains_users_with_more_messages_than_a_batch(folder):
    write_messages(folder, [f'{user},0,"message {at}"' for user in range(5) for at in range(user + 1)])
    clients = {}
    for least in (None, 1):
        named = PopulationConfig(dataset="sent140", data_dir=str(folder), min_records=least)
        clients[least] = build_data(resolve_population(named, population_of("sent140")))
    assert clients[1].num_clients == 5
    assert clients[None].sizes.tolist() == [size for size in clients[1].sizes if size >= 3]
    assert clients[None].smallest > preset_of("sent140")["batch_size"]


def test_long_messages_are_cut_and_empty_ones_are_unknown():
    table = cut_words([["a"] * 40, []], of_words(["a"]), 25)
    assert table[0].tolist() == [2] * 25
    assert table[1].tolist() == [1] + [0] * 24


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,0"], "line 2 must be user,positive,text, got 2 fields"),
        (["x,0,a"], "line 2, user must be a number"),
        (["1,0,a", "1,4,a"], "line 3, positive must be 0 or 1, got '4'"),
        ([], "at least one"),
        (["1,0,a", "2,0,b"], "one message of every user"),
        (['1,0,"a'], "damaged"),
    ],
)
def test_damaged_messages_are_refused_with_file_line_and_field(folder, rows, words):
    write_messages(folder, rows)
    message = refusal(data.load, "sent140", folder)
    assert words in message
    assert "sent140_subset.csv" in message


def test_wrong_header_and_encoding_of_messages_are_refused(folder):
    write_messages(folder, ["1,0,a"], header="polarity,user,text")
    assert "line 1 must be user,positive,text" in refusal(data.load, "sent140", folder)
    (folder / "sent140" / "sent140_subset.csv").write_bytes(b"user,positive,text\n1,0,\xff\n")
    assert "UTF-8" in refusal(data.load, "sent140", folder)


def test_real_messages_fill_the_vocabulary(real):
    got = data.load("sent140", real("sent140", "sent140_subset.csv"))
    assert len(got.y_train) + len(got.y_test) == 29_871
    assert (got.x_train.min(), got.x_train.max()) == (0, 2999)
    assert len(np.union1d(got.client_ids, got.test_client_ids)) == len(np.unique(got.client_ids)) == 27_113
    assert (got.x_train[:, 0] > 0).all()  # no message is empty
