"""Text as rows of ids: how other systems number characters and words, and how they cut and pad."""

import collections
import pathlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import check_file, damage_error
from fedjax_dp.data.records import RecordTable, make_dataset
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import Vocabulary

CONVENTIONS = ("tff", "fedjax")
TFF_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
LEAF_CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WORDS = 10_000  # of a vocabulary, unless it is given
MOST_WORDS = 1_000_000
LONGEST = 65_536  # tokens of a row
PAD = 0  # in every convention that pads


class Ids(NamedTuple):
    """Tokens -> ids; a token that is not `known` goes into one of the buckets `vocabulary.oov`, by its checksum."""

    known: dict[str, int]
    vocabulary: Vocabulary

    def of(self, token: str) -> int:
        known = self.known.get(token)
        if known is not None:
            return known
        buckets = self.vocabulary.oov
        return buckets[zlib.crc32(token.encode("utf-8", "surrogateescape")) % len(buckets)]


def number_tokens(tokens: Sequence[str], convention: str, buckets: int = 1) -> Ids:
    """Ids of tokens and of what stands beside them, as others number them; 0 is padding.

    tff     tokens 1 to n, then the buckets of unknown ones, then BOS and EOS;
    fedjax  BOS 1, EOS 2, tokens 3 to n + 2, then the buckets.
    With one bucket these are the ids of TensorFlow Federated's and of FedJAX's Shakespeare (n = 86) and Stack Overflow.
    """
    errors.require_choice("convention", convention, CONVENTIONS)
    errors.require_integer("oov_buckets", buckets, 1, MOST_WORDS)
    first = 1 if convention == "tff" else 3
    unknown = first + len(tokens)
    bos = unknown + buckets if convention == "tff" else 1
    vocabulary = Vocabulary(
        size=len(tokens) + buckets + 3, pad=PAD, oov=tuple(range(unknown, unknown + buckets)), bos=bos, eos=bos + 1
    )
    return Ids({token: first + place for place, token in enumerate(tokens)}, vocabulary)


def read_words(path: pathlib.Path, most: int) -> list[str]:
    """The first `most` words of a public list: one in each line, perhaps a blank and a count behind it."""
    check_file("vocabulary", path)
    words: dict[str, int] = {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                where, parts = f"{path}, line {number}", line.split()
                if not parts or len(parts) > 2 or (len(parts) == 2 and not parts[1].isdecimal()):
                    raise damage_error(
                        where, repr(line.strip()[:40]), "a word, perhaps with a count behind it", "drop it"
                    )
                if parts[0] in words:
                    raise damage_error(
                        where, f"{parts[0][:40]!r}, as in line {words[parts[0]]}", "another word", "drop it"
                    )
                words[parts[0]] = number
                if len(words) == most:
                    break
    except UnicodeDecodeError as error:
        raise damage_error(
            path, f"no text ({error.reason})", "a list of words in UTF-8", "write a word in each line"
        ) from None
    return list(words)


# The "basic english" tokeniser of rfedavg's published code: lower case, marks apart from words, some marks dropped.
_MARKS = str.maketrans({mark: f" {mark} " for mark in ".,()!?"} | {"'": " ' ", '"': None, ";": " ", ":": " "})


def words_of(text: str) -> list[str]:
    """The words and marks of a message, in lower case.

    >>> words_of('I like "it": good, no?')
    ['i', 'like', 'it', 'good', ',', 'no', '?']
    """
    return text.lower().replace("<br />", " ").translate(_MARKS).split()


def most_frequent(texts: Iterable[Iterable[str]], most: int) -> list[str]:
    """The most frequent words, ties in alphabetical order."""
    counts = collections.Counter(word for words in texts for word in words)
    return sorted(counts, key=lambda word: (-counts[word], word))[:most]


def cut_words(texts: Sequence[Sequence[str]], ids: Ids, length: int) -> np.ndarray:
    """Texts as rows `(texts, length)` of ids, cut or padded at the end; one without words is one unknown word."""
    table = np.full((len(texts), length), PAD, np.int32)
    for row, words in zip(table, texts):
        known = [ids.of(word) for word in words[:length]] or [ids.vocabulary.oov[0]]
        row[: len(known)] = known
    return smallest(table, ids.vocabulary.size)


def of_words(words: Sequence[str], buckets: int = 1) -> Ids:
    """Ids of words to classify by: 0 pads, 1 and on are unknown, words come then."""
    vocabulary = Vocabulary(1 + buckets + len(words), pad=PAD, oov=tuple(range(1, 1 + buckets)))
    return Ids({word: 1 + buckets + place for place, word in enumerate(words)}, vocabulary)


def rows_of_text(texts: Iterable[Iterable[int]], vocabulary: Vocabulary, length: int, stride: int) -> np.ndarray:
    """Texts, each between BOS and EOS and one after the other, as rows `(rows, length + 1)` that begin `stride` apart.

    As many rows as hold every id, the last one padded. A stride of `length` makes every id but the first the target of
    exactly one row; one of `length + 1` lets no two rows share an id, and leaves the first of each row unpredicted.
    """
    ids = np.array([one for text in texts for one in (vocabulary.bos, *text, vocabulary.eos)], np.int32)
    rows = 1 + max(0, -(-(ids.size - length - 1) // stride))
    filled = np.full((rows - 1) * stride + length + 1, PAD, np.int32)
    filled[: ids.size] = ids
    return np.lib.stride_tricks.sliding_window_view(filled, length + 1)[::stride]


def overlap_of(width: int, stride: int) -> str:
    """What is to be known of windows of `width` characters that begin `stride` apart; nothing, if they share none."""
    if stride >= width:
        return ""
    return f"a record is a window of {width} characters; one character stands in up to {-(-width // stride)} windows"


def check_cut(length: int, stride: int | None, most: int) -> None:
    """A length of rows, and how far apart they may begin without that something falls between them."""
    errors.require_integer("length", length, 1, LONGEST)
    if stride is not None:
        errors.require_integer("stride", stride, 1, most, "rows further apart would leave tokens out")


def next_tokens(
    name: str,
    where: str,
    train: RecordTable,
    test: RecordTable,
    vocabulary: Vocabulary,
    task: str = "sequence",
    **about: Any,
) -> Dataset:
    """The data set of rows of ids, a column `ids` `(rows, length + 1)`: inputs, and the tokens after them.

    Of task `classes` the token after a whole row alone is a target.
    """
    size, targets = vocabulary.size, -1 if task == "classes" else slice(1, None)
    train, test = (
        part.with_columns(x=smallest(part["ids"][:, :-1], size), y=part["ids"][:, targets].astype(np.int32))
        for part in (train, test)
    )
    about |= {"task": task, "tokens": True, "vocabulary": vocabulary, "classes": size}
    return make_dataset(name, where, train, test, **about)


def smallest(ids: np.ndarray, size: int) -> np.ndarray:
    """Ids below `size` in as few bytes as hold them."""
    return ids.astype(np.int16 if size <= 1 << 15 else np.int32)
