"""The valid targets of each task. Losses and metrics of the tasks are in `fedjax_dp.tasks`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp import errors

MOST_CLASSES = 1_000_000  # a model has an output for each
BLOCK = 1 << 24  # numbers checked together
FIRST = 5  # records named in a message
RENUMBER = "np.unique(labels, return_inverse=True)[1] numbers them from 0"
OWN = "own"  # the task of user-defined targets


class Vocabulary(NamedTuple):
    """The tokens of `sequence` data: ids from 0 to `size - 1`, of which some stand for no word.

    pad       fills a record up, and is predicted nowhere; -1: every record is full;
    oov       words that are not in the vocabulary; bos, eos: begin and end a text.
    """

    size: int
    pad: int = 0
    oov: tuple[int, ...] = ()
    bos: int | None = None
    eos: int | None = None


def vocabulary_of(fields: Mapping[str, Any] | None) -> Vocabulary | None:
    """The vocabulary that a file describes as JSON."""
    return None if fields is None else Vocabulary(**{**fields, "oov": tuple(fields["oov"])})


class Targets(NamedTuple):
    """The targets of one task: one for each record, `(records, *target_shape)`."""

    check: Callable[[str, Any], None]  # refuses invalid targets, by this name
    outputs: Callable[[str, Any, Any, int | None, Vocabulary | None], int]  # outputs of a model; refuses others
    shape: tuple[str, ...] | None  # of one target, in words; None for any, also of several arrays
    kind: Any = None  # the stored type; None leaves it

    @property
    def in_words(self) -> str:
        """The shape of all targets."""
        sizes = ("...",) if self.shape is None else self.shape
        return f"({', '.join(('records', *sizes))})" if sizes else "(records,)"


def targets_of(task: str) -> Targets:
    """The `Targets` of a task, by its name."""
    errors.require_choice("task", task, TARGETS)
    return TARGETS[task]


def count_records(y: Any) -> int:
    """The number of records of these targets."""
    return int(jax.tree.leaves(y)[0].shape[0])


def rows_of(y: Any, rows: Any) -> Any:
    """The targets in some rows."""
    return jax.tree.map(lambda a: a[rows], y)


def as_arrays(y: Any) -> Any:
    """Targets as arrays of NumPy; lists of numbers are one, dictionaries and tuples are pytrees of several."""

    def one(part: Any) -> np.ndarray:
        try:
            return native(part)
        except errors.ConfigurationError:
            raise
        except ValueError:  # lists of different lengths
            raise errors.refuse("targets", "lists of different lengths", "arrays", "pad or cut them") from None

    return jax.tree.map(one, y, is_leaf=lambda part: isinstance(part, list))


def native(numbers: Any) -> np.ndarray:
    """A NumPy array in this machine's byte order, which devices need; refuses one with masked entries."""
    if np.ma.is_masked(numbers):
        got, remedy = (
            f"{np.ma.getmaskarray(numbers).sum():,} masked entries",
            ".filled(...) states a value, or drop records",
        )
        raise errors.refuse("arrays", got, "a value in every place", remedy)
    array = np.asarray(numbers)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # no device has them
        array = array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_stored(task: str, y: Any) -> Any:
    """The targets in the type of a store."""
    kind = TARGETS[task].kind
    return y if kind is None else jax.tree.map(lambda a: a.astype(kind), y)


def check_vocabulary(what: str, vocabulary: Any) -> Vocabulary:
    """Refuse anything but a vocabulary, and ids outside of it."""
    if not isinstance(vocabulary, Vocabulary):
        remedy = "fedjax_dp.data.Vocabulary(size=...) says how many tokens there are"
        raise errors.refuse(what, "nothing" if vocabulary is None else repr(vocabulary)[:60], "a Vocabulary", remedy)
    errors.require_integer(f"{what}: size", vocabulary.size, 2, MOST_CLASSES)
    special = [("pad", vocabulary.pad), ("bos", vocabulary.bos), ("eos", vocabulary.eos)]
    for name, one in special + [("oov", one) for one in vocabulary.oov]:
        if one is not None:
            errors.require_integer(f"{what}: {name}", one, -(name == "pad"), vocabulary.size - 1)
    return vocabulary


def check_labels(what: str, y: np.ndarray) -> None:
    """Require integers from 0."""
    wanted = "integer labels from 0"
    require_finite(what, y, wanted, "drop records without a label")
    if y.dtype.kind == "b" or (y.dtype.kind == "f" and (y == np.floor(y)).all()):
        raise errors.refuse(what, y.dtype, wanted, ".astype(int)")
    if y.dtype.kind == "f":
        raise errors.refuse(what, f"{y.dtype} with fractions", wanted, "np.digitize makes classes of numbers")
    if y.dtype.kind not in "iu":
        raise errors.refuse(what, y.dtype, wanted, RENUMBER)
    if y.size and y.min() < 0:
        raise errors.refuse(what, f"{y.dtype} from {y.min()}", wanted, RENUMBER)


def _count_labels(where: str, y_train: Any, y_test: Any, classes: int | None, vocabulary: Vocabulary | None) -> int:
    if classes is None:
        return _count_classes(where, np.union1d(y_train, y_test))
    errors.require_integer(f"{where}classes", classes, 1, MOST_CLASSES)
    for name, y in (("y_train", y_train), ("y_test", y_test)):
        if y.max() >= classes:
            wanted = f"labels 0 to {classes - 1} of {classes} classes"
            raise errors.refuse(f"{where}{name}", f"label {y.max()}", wanted, f"give more classes, or {RENUMBER}")
    return int(classes)


def _count_classes(where: str, present: np.ndarray) -> int:
    """The number of classes, by default from the labels, of which each from 0 to the largest must occur."""
    most, known = int(present[-1]), "or give classes"
    if present[0] > 0 and len(present) == most - present[0] + 1:
        remedy = f"subtract {present[0]} from y_train and y_test, {known}"
        raise errors.refuse(f"{where}labels", f"{present[0]} to {most}", "counted from 0", remedy)
    if len(present) != most + 1:
        absent = int(np.argmax(present != np.arange(len(present))))
        got = f"{len(present)} labels up to {most} without {absent}"
        raise errors.refuse(f"{where}labels", got, "every number from 0 to the largest", f"{RENUMBER}, {known}")
    return most + 1


def without_records(task: str, classes: int, *targets: Any) -> list[str]:
    """The note on classes without records: more outputs than labels may be a mistake."""
    if task not in ("classes", "multi_label"):
        return []
    occurring = np.zeros(classes, bool)
    for y in targets:
        occurring[np.unique(y) if task == "classes" else np.asarray(y).any(0)] = True
    if occurring.all():
        return []
    what = "classes" if task == "classes" else "labels"
    absent = np.flatnonzero(~occurring)
    shown = ", ".join(map(str, absent[:FIRST])) + ", ..." * (len(absent) > FIRST)
    return [f"warning: {len(absent):,} of {classes:,} {what} have no record: {shown}"]


def _check_zeros_and_ones(what: str, y: np.ndarray) -> None:
    wanted = "0 or 1"
    require_finite(what, y, wanted, "drop records without a label")
    if y.dtype.kind not in "biu":
        raise errors.refuse(what, y.dtype, f"integers, {wanted}", "y > 0.5 makes them of numbers")
    if y.size and (y.min() < 0 or y.max() > 1):
        outside = int(y.min() if y.min() < 0 else y.max())
        raise errors.refuse(what, f"label {outside}", wanted, "y == 1 makes them of two classes")


def _check_numbers(what: str, y: np.ndarray) -> None:
    wanted = "finite numbers"
    if y.dtype.kind not in "biuf":
        raise errors.refuse(what, y.dtype, wanted)
    require_finite(what, y, wanted, "drop records without a target, or scale all by a public number")


def _check_token_type(what: str, y: np.ndarray) -> None:
    if y.dtype.kind not in "iu":
        raise errors.refuse(what, y.dtype, "ids of tokens, integers", "fill records up with the vocabulary's pad")


def _count_width(where: str, y_train: Any, y_test: Any, classes: int | None, vocabulary: Vocabulary | None) -> int:
    """The number of outputs: one for each number of a target."""
    width = int(y_train.shape[1])
    if y_test.shape[1] != width:
        raise errors.refuse(f"{where}y_test", tuple(y_test.shape), f"(records, {width}), as y_train")
    if classes is not None and classes != width:
        raise errors.refuse(f"{where}classes", classes, f"{width}, one for each number of a target", "leave it out")
    return width


def _count_one(where: str, y_train: Any, y_test: Any, classes: int | None, vocabulary: Vocabulary | None) -> int:
    if classes not in (None, 1):
        wanted = "1 for task binary, whose models have one output"
        raise errors.refuse(f"{where}classes", classes, wanted, "leave it out, or take task classes")
    return 1


def _count_tokens(where: str, y_train: Any, y_test: Any, classes: int | None, vocabulary: Vocabulary | None) -> int:
    size = check_vocabulary(f"{where}vocabulary", vocabulary).size
    if classes not in (None, size):
        raise errors.refuse(f"{where}classes", classes, f"{size}, the size of the vocabulary", "leave it out")
    if y_test.shape[1] != y_train.shape[1]:
        wanted = f"(records, {y_train.shape[1]}), as y_train"
        raise errors.refuse(f"{where}y_test", tuple(y_test.shape), wanted, "cut or fill up all records alike")
    for name, y in (("y_train", y_train), ("y_test", y_test)):
        check_tokens(f"{where}{name}", y, size)
    return size


def check_tokens(what: str, ids: Any, size: int) -> None:
    """Refuse ids outside of a vocabulary, and fractions."""
    if ids.dtype.kind == "f" and not np.array_equal(ids, np.floor(ids)):
        raise errors.refuse(what, f"{ids.dtype} with fractions", "ids of tokens, integers", ".astype(int)")
    if np.size(ids) and (np.min(ids) < 0 or np.max(ids) >= size):
        outside = int(np.min(ids) if np.min(ids) < 0 else np.max(ids))
        remedy = "an id of its own, the vocabulary's oov, stands for unknown words"
        raise errors.refuse(what, f"id {outside}", f"ids 0 to {size - 1} of the vocabulary", remedy)


def _check_arrays(what: str, y: Any) -> None:
    leaves = jax.tree.leaves(y)
    if not leaves:
        raise errors.refuse(what, "nothing", "arrays (records, ...)")
    for leaf in leaves:
        if not hasattr(leaf, "dtype") or leaf.dtype.kind not in "biuf" or leaf.ndim < 1:
            got = f"{getattr(leaf, 'dtype', type(leaf).__name__)} {getattr(leaf, 'shape', '')}".strip()
            raise errors.refuse(what, got, "arrays of numbers (records, ...)")
        if len(leaf) != len(leaves[0]):
            raise errors.refuse(what, f"arrays of {len(leaves[0])} and {len(leaf)} records", "one for every record")
        require_finite(what, np.asarray(leaf))
        require_32_bits(what, np.asarray(leaf))


def _count_outputs(where: str, y_train: Any, y_test: Any, classes: int | None, vocabulary: Vocabulary | None) -> int:
    looks = [[(a.shape[1:], a.dtype) for a in jax.tree.leaves(y)] for y in (y_train, y_test)]
    structures: list[Any] = [jax.tree.structure(y) for y in (y_train, y_test)]
    if structures[0] != structures[1] or looks[0] != looks[1]:
        raise errors.refuse(f"{where}y_test", "targets of another structure", "those of y_train")
    outputs = errors.require_given(f"{where}classes", classes)
    errors.require_integer(f"{where}classes", outputs, 1, MOST_CLASSES)
    return outputs


def require_finite(what: str, x: np.ndarray, wanted: str = "finite", remedy: str = "clean the array") -> None:
    """Refuse numbers that are not finite in float32."""
    if x.dtype.kind == "f" and (odd := _not_finite(x)):
        raise errors.refuse(what, odd, wanted, remedy)


def require_32_bits(what: str, x: np.ndarray) -> None:
    """Refuse whole numbers beyond the 32 bits that devices keep, which would be others there."""
    if x.dtype.kind in "iu" and x.dtype.itemsize > 4 and x.size:
        for number in map(int, (x.min(), x.max())):
            if not np.iinfo(f"{x.dtype.kind}4").min <= number <= np.iinfo(f"{x.dtype.kind}4").max:
                raise errors.refuse(what, f"{number} in {x.dtype}", "whole numbers of 32 bits", ".astype(np.float32)")


def _not_finite(x: np.ndarray) -> str:
    """The values not finite in float32, in which models compute, and their records `(records, ...)`; "" if none."""
    if all(np.isfinite(_extremes(block)).all() for block in _blocks(x)):
        return ""
    with np.errstate(over="ignore"):
        odd = [~np.isfinite(block.astype(np.float32)).reshape(len(block), -1) for block in _blocks(x)]
    values = np.concatenate([block.reshape(len(block), -1)[mask] for block, mask in zip(_blocks(x), odd)])
    records = np.flatnonzero(np.concatenate([mask.any(1) for mask in odd]))
    large = values[np.isfinite(values)]
    kinds = ["NaN"] * bool(np.isnan(values).any()) + ["infinity"] * bool(np.isinf(values).any())
    kinds += [f"{large[0]:g}, which is infinite in float32,"] if large.size else []
    first = ", ".join(map(str, records[:FIRST])) + ", ..." * (len(records) > FIRST)
    return f"{' and '.join(kinds)} in {len(records):,} of {len(x):,} records, counted from 0: {first}"


def _blocks(x: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks of records to check together."""
    rows = max(1, BLOCK // max(1, x[:1].size))
    return (x[at : at + rows] for at in range(0, len(x), rows))


def _extremes(block: np.ndarray) -> np.ndarray:
    """The least and the largest number in float32; NaN if any is NaN."""
    with np.errstate(over="ignore"):
        return np.array([block.min(initial=0), block.max(initial=0)]).astype(np.float32)


TARGETS: dict[str, Targets] = {
    "classes": Targets(check_labels, _count_labels, (), np.int32),
    "sequence": Targets(_check_token_type, _count_tokens, ("tokens",), np.int32),
    "multi_label": Targets(_check_zeros_and_ones, _count_width, ("labels",), np.uint8),
    "binary": Targets(_check_zeros_and_ones, _count_one, (), np.int32),
    "regression": Targets(_check_numbers, _count_width, ("numbers",), np.float32),
    OWN: Targets(_check_arrays, _count_outputs, None),
}
