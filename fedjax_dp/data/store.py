"""The federated store: the records of a data set, and the rows of each client. Nothing is padded.

Another partition of the same data set shares its records: only the row numbers differ.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors, validation
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.checks import check_data
from fedjax_dp.data.client_names import ClientNames, as_client_names, client_label, in_brackets
from fedjax_dp.data.targets import Vocabulary, as_arrays, as_stored, native, rows_of, without_records
from fedjax_dp.display import Card, count, displayed, half
from fedjax_dp.pytrees import checksum_of_arrays, mask_rows, structure, value

# Fields of a data set that no partition changes.
KEPT = ("name", "scale", "shift", "classes", "class_names", "learnt", "notes", "overlap")
BLOCK = 256  # records of a client processed together; bounds memory
COPIED = 65_536  # records that are copied at once


class UnitBound(NamedTuple):
    """The most records of one unit above the record, by a public rule."""

    unit: Unit
    records: int  # at most, at a client
    clients: int = 1  # at most, with records of the unit


@displayed
class Dataset(NamedTuple):
    """A centralised data set on the host, before it is spread over clients.

    Features keep their stored type (images stay uint8); a record is seen as (x - shift) * scale.
    """

    name: str
    x_train: np.ndarray  # (records, ...)
    y_train: Any  # (records, *target_shape) of the task: for `classes` (records,) int32 in [0, classes)
    x_test: np.ndarray
    y_test: Any
    classes: int  # outputs of a model: classes, tokens of the vocabulary, labels, 1 for `binary`, numbers of a target
    scale: float = 1.0
    shift: float = 0.0
    client_ids: np.ndarray | None = None  # (records,) natural owners, if the data set has them
    test_client_ids: np.ndarray | None = None  # (test records,) natural owners
    tokens: bool = False  # features are indices into a vocabulary and reach the model as integers
    learnt: tuple[str, ...] = ()  # computations of features from training records, without privacy
    notes: tuple[str, ...] = ()  # the reader's decisions, for the user
    task: str = "classes"  # kind of the targets, a name in `fedjax_dp.data.TARGETS`
    vocabulary: Vocabulary | None = None  # of `sequence`
    overlap: str = ""  # how records share parts of a text, so that hiding one does not hide its text; "" if they do not
    unit_ids: np.ndarray | None = None  # (records,) the person or text of each training record
    bounds: tuple[UnitBound, ...] = ()  # on these units, see `of_units`; on tokens, by the cut
    tests_of_units: bool = False  # whether some of these people or texts have test records too
    class_names: ClientNames | None = None  # of classes, or of labels; None: their numbers
    tests_drawn: bool = False  # whether the loader drew the test records of all records, so that they are of one source

    @property
    def __advice__(self) -> str:
        """The remedy in a refusal of a data set that is not yet federated."""
        return "write fedjax_dp.federate(dataset, parts), parts such as fedjax_dp.data.natural(client_ids)"

    def _card(self) -> Card:
        owners = "none" if self.client_ids is None else count(len(np.unique(self.client_ids)), "client")
        facts = {
            "training": count(len(self.x_train), "record"),
            "test": count(len(self.x_test), "record"),
            **_facts_of(self, self.x_train, self.y_train),
            "natural owners": owners,
        }
        return Card(f"data set {self.name}", facts | _notes(self.notes))


class Client(NamedTuple):
    """The facts about a client's data that its local steps need; scalars, traced."""

    id: jax.Array
    offset: jax.Array  # into `FederatedData.rows`
    size: jax.Array


@displayed
@value
class FederatedData:
    """Records of all clients, and the global test set.

    Client i holds the records rows[offsets[i]], ..., rows[offsets[i] + sizes[i] - 1] of x and y.
    Shapes: x (records, ...), y (records, *target_shape) or a pytree of such, rows (records of all clients,), offsets,
            sizes and shares (num_clients,), test_clients (test records,).
    """

    x: jax.Array
    y: Any
    rows: Any  # or None: the records stand in the order of the clients
    offsets: jax.Array
    sizes: jax.Array
    shares: jax.Array  # p_i, public weights in the objective, sum to 1
    x_test: jax.Array
    y_test: Any
    scale: float
    shift: float
    test_clients: jax.Array | None = None  # client whose part of the test set a record is; None: no such parts
    mixed_tests: bool = structure(default=False)  # some test records are of clients or their units, so no such parts
    classes: int = structure()  # outputs of a model, as in `Dataset`
    largest: int = structure()  # records of the largest client
    smallest: int = structure(default=1)  # no client has fewer records
    tokens: bool = structure(default=False)  # features stay integers
    learnt: tuple[str, ...] = structure(default=())  # as in `Dataset`
    name: str = structure(default="")
    notes: tuple[str, ...] = structure(default=())  # as in `Dataset`
    task: str = structure(default="classes")  # likewise
    vocabulary: Vocabulary | None = structure(default=None)  # likewise
    overlap: str = structure(default="")  # likewise
    names: ClientNames | None = structure(default=None)  # what clients are called; None: by their numbers
    bounds: tuple[UnitBound, ...] = structure(default=())  # units above the record that are known to be bounded
    class_names: ClientNames | None = structure(default=None)  # as in `Dataset`

    def _card(self) -> Card:
        sizes = np.sort(np.asarray(self.sizes))
        middle, each = half(float(np.median(sizes))), count(int(sizes[-1]), "record")
        facts = {
            "clients": f"{len(sizes):,}{in_brackets(self.names)}",
            "training": count(int(sizes.sum()), "record"),
            "of a client": each if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {each}, median {middle}",
            "test": count(len(self.x_test), "record"),
            **_facts_of(self, self.x, self.y),
        }
        test_parts = {} if self.test_clients is None else {"test parts": "each client has its own"}
        return Card(f"federated data {self.name}".strip(), facts | test_parts | _notes(self.notes))

    @property
    def num_clients(self) -> int:
        return self.sizes.shape[0]

    @property
    def record_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def bound_of(self, unit: Unit) -> UnitBound | None:
        """The most records of one such unit; None if unknown."""
        return next((bound for bound in self.bounds if bound.unit is unit), None)

    @property
    def row_numbers(self) -> np.ndarray:
        """Row numbers of the records of client 0, then of client 1, ... `(records of all clients,)`."""
        return np.arange(len(self.x)) if self.rows is None else np.asarray(self.rows)

    @property
    def in_client_order(self) -> np.ndarray:
        """Rows of x and y of the records of client 0, then of client 1, ..., wherever those begin in `rows`."""
        starts, sizes = np.asarray(self.offsets, np.int64), np.asarray(self.sizes, np.int64)
        return self.row_numbers[np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())]

    @property
    def holds_tests(self) -> bool:
        """Whether test records are clients' own."""
        return self.test_clients is not None or self.mixed_tests

    @property
    def checksum(self) -> str:
        """The checksum of all clients' records, the same in memory and in a store; reads them all."""
        rows, columns = self.in_client_order, map(np.asarray, jax.tree.leaves((self.x, self.y)))
        places = range(0, len(rows), COPIED)
        blocks = (column[rows[at : at + COPIED]] for column in columns for at in places)
        return checksum_of_arrays(itertools.chain(blocks, [self.sizes]))

    @property
    def partition(self) -> dict[str, Any]:
        """The fields that hold the clients' records; all others are equal for every partition of the data set."""
        return {name: getattr(self, name) for name in ("rows", "offsets", "sizes", "shares", "test_clients")}

    def called(self, client: int) -> str:
        """A client's name, or its number where it has none."""
        return client_label(self.names, client)

    def client(self, client_id: jax.Array) -> Client:
        return Client(client_id, self.offsets[client_id], self.sizes[client_id])

    def gather(self, client: Client, positions: jax.Array) -> tuple[jax.Array, Any]:
        """Features and targets of the records at `positions` within a client."""
        rows = self.at(client, positions)
        return self.features(self.x[rows]), self.targets(rows)

    def targets(self, rows: Any) -> Any:
        """Targets of the records in these rows of x and y."""
        return rows_of(self.y, rows)

    def blank_targets(self, records: int) -> Any:
        """The shapes and types of the targets of this many records."""
        return jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((records, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype)), self.y
        )

    def at(self, client: Client, positions: jax.Array) -> jax.Array:
        """Rows of x and y of the records at `positions` within a client."""
        rows = client.offset + positions
        return rows if self.rows is None else self.rows[rows]

    def mean_over_records(self, client: Client, of: Callable[[jax.Array, Any], jax.Array]) -> jax.Array:
        """Mean over a client's records of the rows of `of(x, y)`, computed block by block."""
        rows = min(BLOCK, self.largest)
        positions = jnp.arange(math.ceil(self.largest / rows) * rows, dtype=jnp.int32).reshape(-1, rows)

        def add(total: jax.Array, at: jax.Array) -> tuple[jax.Array, None]:
            real = at < client.size
            values = of(*self.gather(client, jnp.where(real, at, 0)))
            return total + mask_rows(values, real).sum(0), None

        one = jax.eval_shape(lambda at: of(*self.gather(client, at)), positions[0])
        return lax.scan(add, jnp.zeros(one.shape[1:]), positions)[0] / client.size

    def features(self, x: jax.Array) -> jax.Array:
        """Stored features as the model sees them: float32, or int32 indices for tokens."""
        if self.tokens:
            return x.astype(jnp.int32)
        return (x.astype(jnp.float32) - self.shift) * self.scale


def federate(
    dataset: Dataset,
    clients: Mapping[Any, Any] | Sequence[Any] | np.ndarray,
    shares: np.ndarray | None = None,
    test_clients: np.ndarray | None = None,
) -> FederatedData:
    """Spread `dataset` over clients; `clients[i]` holds the training rows of client i, as arrays or lists.

    A dictionary, as other libraries' partitioners make, is read in its order: its i-th entry is client i, by its name.
    Where each client holds records of one id, and no other client does, that is its name.
    shares        public weights in the objective, n_i / sum n_j unless given;
    test_clients  for each test record the client whose part it is `(test records,)`, for accuracies by client; where
                  each id's records are at one client, that follows from `test_client_ids`.
    Raises ConfigurationError if a row is used twice, a client has no record, or `dataset` is not a data set.
    """
    y_train, y_test = as_arrays(dataset.y_train), as_arrays(dataset.y_test)
    x_train, x_test = (native(x) if isinstance(x, np.ndarray) else x for x in (dataset.x_train, dataset.x_test))
    dataset = dataset._replace(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    ids = dataset.client_ids, dataset.test_client_ids
    arrays = dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test
    about: dict[str, Any] = {name: getattr(dataset, name) for name in ("task", "vocabulary", "tokens")}
    rest: dict[str, Any] = {name: getattr(dataset, name) for name in KEPT}
    check_data(f"{dataset.name}: ", *arrays, errors.require_given("classes", dataset.classes), *ids, **about)
    rest["notes"] = (*dataset.notes, *without_records(dataset.task, dataset.classes, y_train, y_test))
    parts, bounds = of_units(dataset, row_lists(clients))
    sizes = np.array([len(rows) for rows in parts], np.int32)
    if sizes.size == 0 or sizes.min() < 1:
        empty = int(np.argmin(sizes)) if sizes.size else 0
        remedy = "use fewer clients or another partition"
        if sizes.size and len(row_lists(clients)[empty]):  # a bound of units has taken all
            remedy = (
                "its users' records are kept at other clients: divide by users (--client-column), or raise "
                "clients_per_user"
            )
        raise errors.refuse(f"client {empty}'s records", 0, "at least 1", remedy)
    order = np.concatenate(parts).astype(np.int64)
    if order.min() < 0 or order.max() >= len(dataset.x_train) or np.unique(order).size != order.size:
        raise errors.refuse("partitioned rows", "repeated or outside the data", "distinct training rows")
    owners = _owners(dataset, order, sizes)
    mixed_tests = False
    if test_clients is None:
        test_clients, mixed_tests = _clients_of_tests(dataset, order, sizes)
    by_name = isinstance(clients, Mapping)  # whose these records are, while lists may deal them anew
    mixed_tests |= dataset.tests_of_units or (dataset.tests_drawn and by_name)
    names = clients if by_name else owners
    if names is not None and len({*map(str, names)}) < len(names):
        raise errors.refuse("names of clients", "one twice, such as 1 and '1'", "different ones", "rename one")
    if test_clients is not None:
        test_clients = native(test_clients)
        tests = len(dataset.x_test)
        wanted = f"{tests} client numbers below {len(sizes)}"
        if (
            test_clients.dtype.kind not in "iu"
            or test_clients.shape != (tests,)
            or test_clients.min() < 0
            or test_clients.max() >= len(sizes)
        ):
            raise errors.refuse("test_clients", f"{test_clients.dtype} {test_clients.shape}, or others", wanted)
        test_clients = test_clients.astype(np.int32)
    public = sizes / sizes.sum() if shares is None else native(shares)
    if public.dtype.kind not in "biuf":
        raise errors.refuse("shares", public.dtype, "numbers that sum to 1")
    if public.shape != sizes.shape or not np.isclose(public.sum(), 1) or not (public >= 0).all():
        raise errors.refuse("shares", f"{public.shape} that sum to {public.sum():.4g}", f"{sizes.shape} that sum to 1")
    stored_arrays: dict[str, Any] = {  # NumPy here; `simulate` copies them to the devices
        "x": dataset.x_train,
        "y": as_stored(dataset.task, dataset.y_train),
        "rows": order.astype(np.int32),
        "offsets": (np.cumsum(sizes) - sizes).astype(np.int32),
        "sizes": sizes,
        "shares": public.astype(np.float32),
        "x_test": dataset.x_test,
        "y_test": as_stored(dataset.task, dataset.y_test),
        "test_clients": test_clients,
        "mixed_tests": mixed_tests,
    }
    return FederatedData(
        **stored_arrays,
        **about,
        **rest,
        largest=int(sizes.max()),
        smallest=int(sizes.min()),
        bounds=bounds,
        names=None if names is None else as_client_names(names),
    )


def of_units(dataset: Dataset, parts: list[np.ndarray]) -> tuple[list[np.ndarray], tuple[UnitBound, ...]]:
    """The rows of each client that the bounds of the data set keep, and the bounds that hold for them.

    Of each person or text the first `records` at each of the first `clients` that have some: a rule that knows ids
    alone, so that what it keeps of one depends on no other, and on no record. Tokens are not counted: their bound holds
    where all that is cut from a text is at one client.
    """
    if not dataset.bounds:
        return parts, ()
    ids = dataset.unit_ids
    if ids is None or len(ids) != len(dataset.x_train):
        got = "of none" if ids is None else f"of {len(ids)} records"
        wanted = f"of each of the {len(dataset.x_train)} training records, where units are bounded"
        raise errors.refuse("unit_ids", got, wanted, "bound units after others are held out")
    for bound in dataset.bounds:
        errors.require_count(f"records of a {bound.unit.value}", bound.records)
        errors.require_count(f"clients of a {bound.unit.value}", bound.clients)
        if bound.unit is not Unit.TOKEN:
            parts = _first_of_each(np.asarray(ids), parts, bound)
    texts = np.concatenate([np.unique(ids[part]) for part in parts])
    apart = len(np.unique(texts)) == len(texts)
    return parts, tuple(bound for bound in dataset.bounds if apart or bound.unit is not Unit.TOKEN)


def _first_of_each(ids: np.ndarray, parts: list[np.ndarray], bound: UnitBound) -> list[np.ndarray]:
    """The rows of each client that `of_units` keeps."""
    rows = np.concatenate(parts)
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(ids[rows], kind="stable")  # a unit's rows in the order of the clients
    unit_begins = np.append(True, ids[rows][order][1:] != ids[rows][order][:-1])
    begins = unit_begins | np.append(True, client[order][1:] != client[order][:-1])
    at, pair = np.arange(len(rows)), np.cumsum(begins)
    number = at - at[begins][pair - 1]  # of a row among those of its unit at its client
    place = pair - pair[unit_begins][np.cumsum(unit_begins) - 1]  # of that client among those of the unit
    kept = np.sort(order[(number < bound.records) & (place < bound.clients)])
    ends = np.cumsum(np.bincount(client[kept], minlength=len(parts)))
    return np.split(rows[kept], ends[:-1])


def _owners(dataset: Dataset, order: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
    """The id of each client, if all its records have one id that no other client has."""
    if dataset.client_ids is None:
        return None
    owners = np.asarray(dataset.client_ids)[order]
    firsts = owners[np.cumsum(sizes) - sizes]
    one_each = len(np.unique(firsts)) == len(sizes) and np.array_equal(owners, np.repeat(firsts, sizes))
    return firsts if one_each else None


def _clients_of_tests(dataset: Dataset, order: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray | None, bool]:
    """The client of each test record, if ids determine it; else whether some are clients' and others are not."""
    tests = dataset.test_client_ids
    if dataset.client_ids is None or tests is None:
        return None, False
    clients = np.repeat(np.arange(len(sizes)), sizes)
    names, first, place = np.unique(np.asarray(dataset.client_ids)[order], return_index=True, return_inverse=True)
    known = np.isin(tests, names)
    if not known.any():  # all are others'
        return None, False
    if not np.array_equal(clients[first][place], clients):  # records are dealt anew, or clients are parts of an id's
        return None, np.unique(clients * len(names) + place).size == len(sizes)
    return (clients[first][np.searchsorted(names, tests)], False) if known.all() else (None, True)


def require_clients(data: Any) -> None:
    """Refuse anything but federated data, such as a data set that is not yet spread over clients."""
    if not isinstance(data, FederatedData):
        wanted = "a fedjax_dp.data.FederatedData, which fedjax_dp.federate makes"
        raise errors.refuse("data", validation.describe(data), wanted, validation.advice(data))
    sizes, within = np.asarray(data.sizes), (data.smallest, data.largest)
    if sizes.size and not (within[0] <= sizes.min() and sizes.max() <= within[1]):
        got, wanted = f"{sizes.min():,} to {sizes.max():,}", f"{within[0]:,} to {within[1]:,}, as the data state"
        raise errors.refuse("records of clients", got, wanted, "make the data by fedjax_dp.federate")


def row_lists(clients: Any) -> list[np.ndarray]:
    """The training rows of each client, one array each."""
    lists = []
    if isinstance(clients, str) or not hasattr(clients, "__len__"):
        raise errors.refuse("clients", type(clients).__name__, "lists of training rows, one for each client")
    for client, rows in clients.items() if isinstance(clients, Mapping) else enumerate(clients):
        try:
            part = native(rows)
        except ValueError:
            part = np.asarray(None)
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            remedy = "fedjax_dp.data.natural(ids) makes them of one id per record" if part.ndim == 0 else ""
            remedy = "np.flatnonzero(mask)" if part.dtype.kind == "b" else remedy
            got = f"{part.dtype} {part.shape}"
            raise errors.refuse(f"rows of client {client}", got, "a list of row numbers", remedy)
        lists.append(part)
    return lists


def _facts_of(data: Dataset | FederatedData, x: Any, y: Any) -> dict[str, str]:
    """What a record is, and its target."""
    facts = {"a record": f"{x.dtype} of shape {tuple(x.shape[1:])}" + (", tokens" if data.tokens else "")}
    if data.task == "classes":
        return facts | {"classes": f"{data.classes}{in_brackets(data.class_names)}"}
    kinds = ", ".join(f"{a.dtype} of shape {tuple(a.shape[1:])}" for a in jax.tree.leaves(y))
    return facts | {"task": data.task, "a target": kinds, "outputs": str(data.classes)}


def _notes(notes: tuple[str, ...]) -> dict[str, str]:
    return {"notes": "; ".join(notes)} if notes else {}
