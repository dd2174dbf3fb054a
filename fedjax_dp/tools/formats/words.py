"""Words as ids: sentences to continue, rows of tokens, and texts to classify."""

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import damage_error
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.records import RecordTable, divide, make_dataset
from fedjax_dp.data.sequences import (
    CONVENTIONS,
    MOST_WORDS,
    PAD,
    WORDS,
    check_cut,
    cut_words,
    most_frequent,
    next_tokens,
    number_tokens,
    of_words,
    read_words,
    words_of,
)
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import Vocabulary
from fedjax_dp.tools.formats.tokenizers import ENDING, Tokenizer

CLASSIFIED_OPTIONS = ("length", "vocabulary", "vocabulary_size", "oov_buckets")
SENTENCE_OPTIONS = (*CLASSIFIED_OPTIONS, "convention")
ROW_OPTIONS = ("vocabulary", "vocabulary_size", "oov_buckets", "convention")
SENTENCE, MESSAGE = 20, 25  # words of a record
LEARNT = "a vocabulary of the most frequent words of all training records"
SPECIAL = {"<PAD>": "pad", "<BOS>": "bos", "<EOS>": "eos"}  # in rows of tokens
UNKNOWN = "<UNK>"
_Rows = tuple[list[np.ndarray], Vocabulary, tuple[str, ...]]  # of each part; and what was learnt from records


def sentences(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    """Sentences, words separated by blanks, as next-word sequences `(length,)` between BOS and EOS, cut.

    So EOS is there only where fewer than `length` words are, as in TensorFlow Federated's and pfl's Stack Overflow.
    """
    length = SENTENCE if reading.length is None else reading.length
    check_cut(length, None, 0)
    train, test = divide(where, train, test)
    words, learnt = _vocabulary(where, (text.split() for text in train["tokens"]), reading)
    ids = number_tokens(words, reading.convention or "tff", _buckets(reading))

    def rows_of(texts: list[str]) -> np.ndarray:
        table = np.full((len(texts), length + 1), PAD, np.int32)
        for row, text in zip(table, texts):
            framed: list[Any] = [ids.vocabulary.bos, *map(ids.of, text.split()[:length]), ids.vocabulary.eos][
                : length + 1
            ]
            row[: len(framed)] = framed
        return table

    train, test = (part.with_columns(ids=rows_of(part["tokens"])) for part in (train, test))
    return next_tokens(name, where, train, test, ids.vocabulary, learnt=learnt)


def token_rows(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    """Rows of tokens, already cut and padded: `length + 1` tokens, of which the last `length` are targets."""
    train, test = divide(where, train, test)
    plain = ([token for token in row if token not in SPECIAL and token != UNKNOWN] for row in train["rows"])
    words, learnt = _vocabulary(where, plain, reading)
    ids = number_tokens(words, reading.convention or "tff", _buckets(reading))
    ids = ids._replace(known=ids.known | {token: getattr(ids.vocabulary, role) for token, role in SPECIAL.items()})
    train, test = (
        part.with_columns(ids=np.array([[*map(ids.of, row)] for row in part["rows"]], np.int32))
        for part in (train, test)
    )
    return next_tokens(name, where, train, test, ids.vocabulary, learnt=learnt)


def text_classes(
    name: str,
    where: str,
    train: RecordTable,
    test: RecordTable | None,
    reading: Reading,
    classes: int | None,
    **about: Any,
) -> Dataset:
    """Texts as ids of words in lower case, `(length,)`, numbered as in `of_words`, and their classes.

    A text without words is one unknown word.
    about  further arguments of `make_dataset`.
    """
    length = MESSAGE if reading.length is None else reading.length
    check_cut(length, None, 0)
    parts = divide(where, train, test)
    rows, vocabulary, learnt = (_by_tokenizer if is_tokenizer(reading) else _by_words)(where, parts, reading, length)
    train, test = (part.with_columns(x=x, y=np.array(part["y"], np.int32)) for part, x in zip(parts, rows, strict=True))
    about |= {"tokens": True, "vocabulary": vocabulary, "learnt": learnt}
    return make_dataset(name, where, train, test, classes=classes, **about)


def is_tokenizer(reading: Reading) -> bool:
    return reading.vocabulary is not None and reading.vocabulary.endswith(ENDING)


def _by_tokenizer(where: str, parts: Sequence[RecordTable], reading: Reading, length: int) -> _Rows:
    """Texts, or pairs of them, by the tokenizer of a pretrained model."""
    for option in ("vocabulary_size", "oov_buckets"):
        if getattr(reading, option) is not None:
            raise errors.refuse(
                option, getattr(reading, option), "left out with a tokenizer, which has its own", "drop it"
            )
    tokenizer = Tokenizer(pathlib.Path(str(reading.vocabulary)), length, pairs=not isinstance(parts[0]["text"][0], str))
    return [tokenizer.rows(part["text"]) for part in parts], tokenizer.vocabulary, ()


def _by_words(where: str, parts: Sequence[RecordTable], reading: Reading, length: int) -> _Rows:
    texts = [[*map(words_of, part["text"])] for part in parts]
    words, learnt = _vocabulary(where, texts[0], reading)
    if others := [word for word in words if words_of(word) != [word]]:
        shown = f"{len(others):,} of {len(words):,} words of the vocabulary, such as {others[0][:40]!r}"
        parts[0].notes.append(f"warning: {shown}, are in no text: texts are read in lower case, marks apart")
    ids = of_words(words, _buckets(reading))
    return [cut_words(text, ids, length) for text in texts], ids.vocabulary, learnt


def _vocabulary(where: str, texts: Iterable[Sequence[str]], reading: Reading) -> tuple[list[str], tuple[str, ...]]:
    """Words, public or of the training records, and what was learnt from the latter."""
    most = WORDS if reading.vocabulary_size is None else reading.vocabulary_size
    errors.require_integer("vocabulary_size", most, 1, MOST_WORDS)
    if reading.convention is not None:
        errors.require_choice("convention", reading.convention, CONVENTIONS)
    if reading.vocabulary is not None:
        return read_words(pathlib.Path(reading.vocabulary), most), ()
    words = most_frequent(texts, most)
    if not words:
        raise damage_error(where, "no word in any training record", "texts with words", "or use --vocabulary")
    return words, (LEARNT,)


def _buckets(reading: Reading) -> int:
    return 1 if reading.oov_buckets is None else reading.oov_buckets
