"""Characters of plays as rows of ids: LEAF's windows, and the snippets of TensorFlow Federated."""

from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.files import damage_error
from fedjax_dp.data.reading import CUT, Reading
from fedjax_dp.data.records import TEST_FRACTION, RecordTable, divide
from fedjax_dp.data.sequences import (
    LEAF_CHARACTERS,
    TFF_CHARACTERS,
    check_cut,
    next_tokens,
    number_tokens,
    overlap_of,
    rows_of_text,
)
from fedjax_dp.data.store import Dataset, UnitBound
from fedjax_dp.data.targets import Vocabulary

WINDOW_OPTIONS = ("task", *CUT, "convention")
SNIPPET_OPTIONS = ("length", *CUT, "convention")
LENGTH = 80
LEAF = Vocabulary(len(LEAF_CHARACTERS), pad=-1)  # every row is full


def windows(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    """LEAF's windows, texts of `length + 1` characters that begin one character apart, as next-character sequences.

    For task `classes` the only target is the character after a window.
    A stride s keeps every s-th of consecutive windows; at a stride of `length` each character is the target of one
    record. Without a test split the last tenth of every client's windows is held out, and the windows before it that
    share characters with it are dropped. All windows of a client count as one text.
    """
    convention = reading.convention or "leaf"
    table, vocabulary = _table(convention)
    length, stride = len(train["rows"][0]) - 1, 1 if reading.stride is None else reading.stride
    check_cut(length, stride, length)
    parts, notes, chained = [], list[str](), True
    for part in (train, test):
        if part is not None:
            text, clients = "".join(part["rows"]).encode("utf-32-le", "surrogatepass"), part.clients
            points = np.frombuffer(text, np.uint32).reshape(-1, length + 1)
            numbers, chains = _thin(points, clients, stride)
            chained &= part is test or chains == len(np.unique(clients))
            ids = table[np.minimum(points[numbers], len(table) - 1)]
            if ids.min() < 0:
                stranger = chr(points[numbers][ids < 0][0])
                wanted, remedy = "one of LEAF's 80", "--convention tff gives unknown ones an id"
                raise damage_error(f"{where}: character", repr(stranger), wanted, remedy)
            parts.append(RecordTable(clients[numbers], ids=ids))
            if len(numbers) < len(points):
                notes.append(f"stride {stride}: {len(numbers):,} of {len(points):,} windows are kept")
    if test is None:
        gap = -(-length // stride)
        notes.append(f"no test split: the last {TEST_FRACTION:.0%} of every client's windows; {gap} before are dropped")
        parts = [parts[0].at(rows) for rows in _tails(where, parts[0].clients, gap)]
    train, test = parts
    if reading.windows_per_text is not None and np.intersect1d(train.clients, test.clients).size:
        wanted = "left out where test windows are of the training clients' texts"
        remedy = "split by clients: LEAF's preprocess.sh -t user"
        raise errors.refuse("windows_per_text", reading.windows_per_text, wanted, remedy)
    about = _bound_texts(train, train.clients, length + 1, stride, reading.windows_per_text, chained)
    if stride < length:
        notes.append(
            f"{about['overlap']}, so an epsilon for one record says little; --stride {length}, or protect the client"
        )
    train.notes += notes
    task = "sequence" if reading.task is None else reading.task
    errors.require_choice("task", task, ("sequence", "classes"))
    return next_tokens(name, where, train, test, vocabulary, task, **about)  # classes: as in LEAF's own models


def snippets(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    """Snippets of bytes as next-character sequences, `(length,)`, each between BOS and EOS.

    tff     each snippet by itself, in rows without common ids: a stride of length + 1;
    fedjax  a client's snippets end to end, so that every id but the first is a target once: a stride of length.
    A text is a snippet, or all snippets of a client end to end.
    """
    convention = reading.convention or "tff"
    errors.require_choice("convention", convention, ("tff", "fedjax"))
    joined = convention == "fedjax"
    length = LENGTH if reading.length is None else reading.length
    stride = length + (not joined) if reading.stride is None else reading.stride
    check_cut(length, stride, length + 1)
    table, vocabulary = _table(convention)
    parts = []
    for part in divide(where, train, test):
        texts, clients = part["snippets"], part.clients
        order = np.argsort(clients, kind="stable")
        begins = np.flatnonzero(clients[order][1:] != clients[order][:-1]) + 1
        groups = np.split(order, begins) if joined else order[:, None]
        cut = [
            rows_of_text([table[np.frombuffer(texts[at], np.uint8)] for at in group], vocabulary, length, stride)
            for group in groups
        ]
        text = np.repeat(np.arange(len(cut)), [len(rows) for rows in cut])
        whose = np.array([clients[group[0]] for group in groups])
        parts.append(RecordTable(whose[text], notes=part.notes, ids=np.concatenate(cut), text=text))
    about = _bound_texts(parts[0], parts[0]["text"], length + 1, stride, reading.windows_per_text)
    about["tests_of_units"] = joined and np.intersect1d(parts[0].clients, parts[1].clients).size > 0
    return next_tokens(name, where, parts[0], parts[1], vocabulary, **about)


def _bound_texts(
    train: RecordTable, texts: np.ndarray, width: int, stride: int, most: int | None, chained: bool = True
) -> dict[str, Any]:
    """The bounds on windows per token and per text; stores the text of each training window if there are any.

    chained  whether the windows of a text are known to begin `stride` apart, which bounds the windows of a token.
    """
    bounds = [UnitBound(Unit.TOKEN, -(-width // stride))] if chained else []
    if most is not None:
        errors.require_count("windows_per_text", most)
        bounds.append(UnitBound(Unit.TEXT, most))
    train.units = texts if bounds else None
    return {"bounds": tuple(bounds), "overlap": overlap_of(width, stride)}


def _table(convention: str) -> tuple[np.ndarray, Vocabulary]:
    """The ids of the characters below 256, -1 for none; all others share the id of the last one."""
    if convention == "leaf":
        vocabulary, unknown = LEAF, -1
        known = {character: place for place, character in enumerate(LEAF_CHARACTERS)}
    else:
        known, vocabulary = number_tokens(TFF_CHARACTERS, convention)
        unknown = vocabulary.oov[0]
    return np.array([known.get(chr(code), unknown) for code in range(256)], np.int32), vocabulary


def _thin(points: np.ndarray, owners: np.ndarray, stride: int) -> tuple[np.ndarray, int]:
    """The numbers of every `stride`-th of consecutive windows in the file, and the number of chains."""
    follows = np.append(False, (points[:-1, 1:] == points[1:, :-1]).all(1) & (owners[1:] == owners[:-1]))
    at = np.arange(len(points))
    begin = np.maximum.accumulate(np.where(follows, 0, at))
    return np.flatnonzero((at - begin) % stride == 0), int(np.sum(~follows))


def _tails(where: str, owners: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """The first windows of every client, for training, and its last ones, for testing, in the file's order."""
    train, tests = [], []
    for name in np.unique(owners):
        rows = np.flatnonzero(owners == name)
        count = min(int(TEST_FRACTION * len(rows)), max(0, len(rows) - gap - 1))
        train.append(rows[: len(rows) - count - (gap if count else 0)])
        tests.append(rows[len(rows) - count :])
    if not sum(map(len, tests)):
        wanted = f"more than {10 if gap < 9 else gap + 1} windows of some client, to test on its last ones"
        raise damage_error(
            where, "no test split and few windows", wanted, "LEAF's preprocess.sh -t sample makes a split"
        )
    return np.concatenate(train), np.concatenate(tests)
