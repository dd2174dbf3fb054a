"""Sentiment140: short messages with natural clients."""

import csv
import os
import pathlib

import numpy as np

from fedjax_dp.data.files import damage_error, require_file, search_folders
from fedjax_dp.data.partition import natural
from fedjax_dp.data.records import RecordTable, make_dataset, split_rows
from fedjax_dp.data.sequences import cut_words, most_frequent, of_words, words_of
from fedjax_dp.data.store import Dataset

FILE = "sent140_subset.csv"
VOCABULARY = 3000  # ids: of padding, of unknown words, of words
LENGTH = 25  # words of a message; longer ones are cut
TEST_FRACTION = 0.1  # of every user's messages; users with one message keep it


def sent140(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """Messages as indices into a vocabulary of the training messages; label 1 is positive.

    Each user's messages are split before anything else, so that no test message shapes the vocabulary and none is in
    a client's training records (rfedavg's published code splits afterwards).
    """
    folders = search_folders([name], data_dir)
    source = "columns user, positive and text, after the 1.6 million of Sentiment140"
    path = require_file(name, folders, (FILE,), FILE, source)
    users, labels, texts = _read(path)
    train, test = rows = split_rows(natural(users), TEST_FRACTION, seed=0)
    if not len(test):
        raise damage_error(path, "one message of every user", "two of some user, one to test on")
    x = cut_words(texts, of_words(most_frequent((texts[row] for row in train), VOCABULARY - 2)), LENGTH)
    learnt = ("a vocabulary of the most frequent words of all training messages",)
    parts = RecordTable(users, x=x, y=labels).split(rows)
    return make_dataset(name, "", *parts, classes=2, class_names=("negative", "positive"), tokens=True, learnt=learnt)


def _read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    """Users, labels and words of every message."""
    users, labels, texts = [], [], []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != ["user", "positive", "text"]:
                raise damage_error(f"{path}, line 1", ",".join(header)[:60] or "nothing", "user,positive,text")
            for row in reader:
                if len(row) != 3:
                    raise damage_error(f"{path}, line {reader.line_num}", f"{len(row)} fields", "user,positive,text")
                if not row[0].isdecimal():
                    raise damage_error(f"{path}, line {reader.line_num}, user", repr(row[0][:40]), "a number")
                if row[1] not in ("0", "1"):
                    raise damage_error(f"{path}, line {reader.line_num}, positive", repr(row[1][:40]), "0 or 1")
                users.append(int(row[0]))
                labels.append(int(row[1]))
                texts.append(words_of(row[2]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise damage_error(path, f"damaged ({error})", "a CSV file in UTF-8") from None
    if not users:
        raise damage_error(path, "no message", "at least one")
    return np.array(users), np.array(labels, np.int32), texts
