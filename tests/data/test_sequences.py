"""How text becomes ids and rows: the numbers of other systems, and nothing lost between rows."""

import numpy as np
import pytest
from client_files import database, everything, example, hdf5, posts, snippet_file

from fedjax_dp.data import Vocabulary, load
from fedjax_dp.data.sequences import LEAF_CHARACTERS, TFF_CHARACTERS, number_tokens, rows_of_text


def test_ids_are_those_of_other_systems():
    """Sizes and special ids of TensorFlow Federated's and FedJAX's Shakespeare, and of Stack Overflow's words."""
    assert number_tokens(TFF_CHARACTERS, "tff").vocabulary == Vocabulary(90, 0, (87,), 88, 89)
    assert number_tokens(TFF_CHARACTERS, "fedjax").vocabulary == Vocabulary(90, 0, (89,), 1, 2)
    words = [f"w{place}" for place in range(10_000)]
    of_tff = number_tokens(words, "tff")
    assert of_tff.vocabulary == Vocabulary(10_004, 0, (10_001,), 10_002, 10_003)
    assert (of_tff.of("w0"), of_tff.of("w9999"), of_tff.of("other")) == (1, 10_000, 10_001)
    assert (len(LEAF_CHARACTERS), LEAF_CHARACTERS.index("\n"), LEAF_CHARACTERS.index("}")) == (80, 0, 79)


def test_unknown_words_spread_over_the_buckets_and_stay_there():
    ids = number_tokens(["a"], "tff", buckets=5)
    found = {ids.of(f"word{place}") for place in range(100)}
    assert found == set(ids.vocabulary.oov) == {2, 3, 4, 5, 6}
    assert ids.of("word7") == number_tokens(["b", "c"], "tff", buckets=5).of("word7") - 1


def slowly(ids, width, stride):
    """Rows from the first id on until every id stands in one."""
    rows, at = [], 0
    while True:
        rows.append(ids[at : at + width] + [0] * (width - len(ids[at : at + width])))
        if at + width >= len(ids):
            return rows
        at += stride


@pytest.mark.parametrize("letters", range(12))
@pytest.mark.parametrize(("length", "stride"), [(3, 1), (3, 3), (3, 4), (1, 1), (5, 2)])
def test_rows_hold_every_id_and_no_row_more(letters, length, stride):
    text, vocabulary = list(range(10, 10 + letters)), Vocabulary(99, 0, (), 88, 89)
    wanted = slowly([88, *text, 89], length + 1, stride)
    assert rows_of_text([text], vocabulary, length, stride).tolist() == wanted


def test_snippets_of_a_client_are_joined_as_fedjax_joins_them():
    """The example in the documentation of its `preprocess_client`: ABCD and E, three ids a row."""
    vocabulary = number_tokens("ABCDE", "fedjax").vocabulary
    rows = rows_of_text([[3, 4, 5, 6], [7]], vocabulary, 3, 3)
    assert rows[:, :-1].tolist() == [[1, 3, 4], [5, 6, 2], [1, 7, 2]]  # it has padding for the EOS that ends all
    assert rows[:, 1:].tolist() == [[3, 4, 5], [6, 2, 1], [7, 2, 0]]


def rows_by_client(found):
    _, y, ids = everything(found)
    return {str(name): y[ids == name] for name in np.unique(ids)}


def test_snippets_are_cut_by_their_convention(tmp_path):
    path = snippet_file(tmp_path)
    found = load(f"tff:{path}", length=10)
    rows = {name: len(y) for name, y in rows_by_client(found).items()}
    assert rows == {"ANNA": 2 + 12, "BEN": 1, "IT'S \"C": 1}  # 14 and 122 ids in rows of 11, 7 ids, 2 ids
    assert found.vocabulary == Vocabulary(90, 0, (87,), 88, 89)
    assert found.task == "sequence"
    with pytest.raises(ValueError, match="one record of every client"):
        load(f"tff:{hdf5(tmp_path / 'one.h5', {'a': {'snippets': [b'x']}})}")
    with pytest.raises(ValueError, match="stride must be an integer from 1 to 11"):
        load(f"tff:{path}", length=10, stride=12)
    with pytest.raises(ValueError, match="convention must be one of tff, fedjax"):
        load(f"tff:{path}", convention="leaf")


def test_bytes_that_are_no_known_character_are_unknown(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"snippets": [b"\xe9A\x07", b"\xe9A\x07"]}})
    found = load(f"tff:{path}", length=5)
    code = 1 + TFF_CHARACTERS.index("A")
    assert found.x_train.tolist() == [[88, 87, code, 87, 89]]
    assert found.y_train.tolist() == [[87, code, 87, 89, 0]]


def test_posts_become_sentences_of_public_words(tmp_path):
    (tmp_path / "words").write_text("it 10\nyou 9\nin 8\nunused 1\n")
    found = load(f"tff:{posts(tmp_path)}", length=6, vocabulary=str(tmp_path / "words"), vocabulary_size=3)
    assert found.vocabulary == Vocabulary(7, 0, (4,), 5, 6)
    assert found.learnt == ()
    x, y, _ = everything(found)
    rows = sorted(map(tuple, np.concatenate([x, y[:, -1:]], 1).tolist()))
    assert rows == [(5, 1, 4, 6, 0, 0, 0), (5, 2, 4, 4, 4, 4, 4), (5, 4, 4, 4, 4, 3, 4)]  # cut: no EOS


def test_a_learnt_vocabulary_knows_training_words_alone_and_says_that_it_was_learnt(tmp_path):
    rows = [(split, "a", example(tokens=[text])) for split, text in (("train", b"b a b"), ("test", b"c b"))]
    found = load(f"tff:{database(tmp_path / 's.sqlite', rows)}", length=3)
    assert found.learnt == ("a vocabulary of the most frequent words of all training records",)
    assert found.vocabulary == Vocabulary(6, 0, (3,), 4, 5)
    assert found.x_train.tolist() == [[4, 1, 2]]  # the most frequent word first
    assert found.y_test.tolist() == [[3, 1, 5]]


def test_a_sentence_has_eos_only_where_it_is_shorter_than_a_row(tmp_path):
    rows = [("train", "a", example(tokens=[" ".join("w" * count).encode()])) for count in (3, 4, 5, 5)]
    found = load(f"tff:{database(tmp_path / 's.sqlite', rows)}", length=4)
    _, y, _ = everything(found)
    eos = found.vocabulary.eos
    assert sorted(int((row == eos).sum()) for row in y) == [0, 0, 0, 1]
