"""Search for records of clients in a model: in the arrays that it closes over and in its frozen values."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from scipy.spatial import cKDTree

from fedjax_dp import errors, own_code
from fedjax_dp.data.store import FederatedData
from fedjax_dp.gradients import equations
from fedjax_dp.models import Model
from fedjax_dp.rounds.simulation import run_key

COLUMNS = 32  # columns of a record that are compared first
SHORT = 16  # shorter records are compared by distance, as any few numbers correlate
ALIKE = 0.98  # correlation above which two records are the same, scaled, shifted, rounded or blurred
SAME = 1 - 1e-5  # the same, for what many arrays resemble: means of clients, and tokens, of which near ones are others
STORED = 2**16  # records that are compared
PRODUCTS = 2**22  # pairs of a record and a row of a constant
LABELS = 32  # consecutive targets that agree by more than chance


def require_no_records(model: Model, data: FederatedData) -> None:
    """Refuse a model with a constant that resembles records of clients: copied, scaled, shifted, cast, or a part.

    It examines the arrays that `loss` and `init` close over, at any depth, and the frozen values. A function of the
    records that no row shows (a checksum, a mean over several clients) is not found: there the model is trusted.
    """
    held: Any = None
    for where, constant in _constants(model, data):
        if constant.size < min(int(np.prod(data.record_shape)), LABELS):
            continue
        held = _client_records(data) if held is None else held
        if held_rows := _resemblance(constant, held, data):
            raise errors.refuse(
                "model",
                f"an array {constant.shape} in its {where} that holds {held_rows}",
                "one that receives the clients' records as arguments only",
                "leave the array out: no noise covers what it reveals of a record",
            )


def _constants(model: Model, data: FederatedData) -> Iterator[tuple[str, np.ndarray]]:
    failed, wanted = "one of which loss or init cannot be traced", "functions of JAX arrays of one record"
    with own_code.refuse_errors("model", failed, wanted):
        params = jax.eval_shape(model.init, run_key(0))
        x = jax.ShapeDtypeStruct(data.record_shape, np.int32 if data.tokens else np.float32)
        y = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), data.blank_targets(1))
        traced = {
            "loss": jax.make_jaxpr(model.loss)(params, x, y, run_key(0)),
            "init": jax.make_jaxpr(model.init)(run_key(0)),
        }
    for leaf in jax.tree.leaves(getattr(model, "frozen", None)):
        yield "frozen values", np.asarray(leaf)
    for where, program in traced.items():
        yield from ((where, constant) for constant in _constants_of(program))


def _constants_of(program: core.ClosedJaxpr) -> Iterator[np.ndarray]:
    constants = list(program.consts)
    for equation in program.jaxpr.eqns:
        constants += [read.val for read in equation.invars if isinstance(read, core.Literal)]
        for inside in equations.programs(equation):
            yield from _constants_of(inside)
    for constant in filter(np.ndim, constants):
        if jnp.iscomplexobj(constant):
            yield from (np.asarray(constant).real, np.asarray(constant).imag)
        elif jnp.issubdtype(constant.dtype, jnp.floating):  # NumPy lacks the short types
            yield np.asarray(constant, np.promote_types(np.float32, constant.dtype))
        elif np.dtype(constant.dtype).kind in "iub":
            yield np.asarray(constant)


class _ClientRecords(NamedTuple):
    """Records of clients, and the columns that are compared first."""

    rows: np.ndarray  # (records, ...), as they are stored
    alike: float  # correlation above which a row is one of them
    columns: np.ndarray  # of flattened records
    some: np.ndarray  # (records, columns), float32
    means: np.ndarray  # (clients, columns)
    targets: list[np.ndarray]


def _client_records(data: FederatedData) -> _ClientRecords:
    rows = np.asarray(data.x)
    order = data.row_numbers if data.rows is not None else None
    if order is not None:
        order = order[:: -(-len(order) // STORED)]
        rows = rows[order]
    rows = rows[:: -(-len(rows) // STORED)]
    if data.test_clients is not None:
        rows = np.concatenate([rows, np.asarray(data.x_test)[:STORED]])
    flat = rows.reshape(len(rows), -1)
    probe = flat[:: -(-len(flat) // 512)].astype(np.float32)
    columns = np.sort(np.argsort(-probe.var(0), kind="stable")[:COLUMNS])
    some = flat[:, columns].astype(np.float32)
    sizes = np.asarray(data.sizes)
    means = np.zeros((0, columns.size), np.float32)
    if int(sizes.sum()) <= len(some):
        begins = np.cumsum(sizes) - sizes
        means = np.add.reduceat(some[: int(sizes.sum())], begins, axis=0) / sizes[:, None]
    targets = [np.asarray(a) for a in jax.tree.leaves(data.y)]
    targets += [a[data.row_numbers] for a in targets]
    return _ClientRecords(rows, SAME if data.tokens else ALIKE, columns, some, means, targets)


def _resemblance(constant: np.ndarray, held: _ClientRecords, data: FederatedData) -> str:
    """The client data found in an array, in words; "" for none."""
    size = int(np.prod(data.record_shape))
    for rows in _as_rows(constant, size):
        rows = rows[np.isfinite(rows).all(1) & (np.ptp(rows, axis=1) > 0)]
        near = _find_by_correlation if size >= SHORT else _find_by_distance
        if len(rows) and (resemblance := near(rows, held)):
            return resemblance
    return "the clients' targets" if _contains_targets(constant, held.targets, data.classes) else ""


def _as_rows(constant: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """All readings of an array as records `(rows, size)`, float32; of many rows, evenly spaced ones."""
    shape = constant.shape
    ways = [constant.reshape(-1, size)] if constant.size % size == 0 else []
    if shape and shape[0] == size and len(shape) > 1:
        ways.append(constant.reshape(size, -1).T)
    if len(shape) == 2 and size < shape[1] <= size + SHORT:  # with targets in other columns
        ways += [constant[:, :size], constant[:, -size:]]
    for rows in ways:
        yield rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), 1024)).astype(int))].astype(np.float32)


def _find_by_correlation(rows: np.ndarray, held: _ClientRecords) -> str:
    """Compare rows by correlation: with records, centred and standardised records, and as sorted numbers."""
    most = max(PRODUCTS // len(held.some), 32)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int))]
    some = _centre(rows[:, held.columns])
    mean, spread = held.some.mean(0), held.some.std(0) + 1e-6
    if len(held.means) and np.max(np.abs(some @ _centre(held.means).T), initial=0.0) > SAME:
        return "the mean of a client's records"
    for less, over in ((0.0, 1.0), (mean, 1.0), (mean, spread)):
        products = np.abs(some @ _centre((held.some - less) / over).T)
        nearest = products.argmax(1)
        for at in np.flatnonzero(products.max(1) > held.alike)[:64]:
            if _correlation(rows[at], held, int(nearest[at])) > held.alike:
                return f"record {int(nearest[at])} of the clients, or one near it"
    few = held.rows[:: -(-len(held.rows) * rows.shape[1] // 2**19)].reshape(-1, rows.shape[1])
    if np.max(_centre(np.sort(rows)) @ _centre(np.sort(few).astype(np.float32)).T) > 1 - 1e-6:
        return "the numbers of a record in another order"
    return ""


def _correlation(row: np.ndarray, held: _ClientRecords, at: int) -> float:
    """The largest correlation of a row with a record: raw, less the mean of records, or standardised."""
    few = held.rows[:: -(-len(held.rows) // 1024)].reshape(-1, row.size).astype(np.float32)
    record, mean, spread = held.rows[at].reshape(-1).astype(np.float32), few.mean(0), few.std(0)
    forms = np.stack([record, record - mean, (record - mean) / np.where(spread > 0, spread, np.inf)])
    return float(np.max(np.abs(_centre(forms) @ _centre(row[None])[0])))


def _centre(rows: np.ndarray) -> np.ndarray:
    """Rows less their mean, each scaled to length 1."""
    away = rows - rows.mean(1, keepdims=True)
    return away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-12)


def _find_by_distance(rows: np.ndarray, held: _ClientRecords) -> str:
    """Compare rows by distance in units of the columns' spread; rows may be raw, centred or standardised."""
    rows = rows[[np.unique(row).size >= min(row.size, 3) for row in rows]]
    mean, spread = held.some.mean(0), held.some.std(0) + 1e-6
    tree, within = cKDTree((held.some - mean) / spread), 1e-3 * len(held.some) ** (-1 / max(rows.shape[1], 1))
    for less, over in ((mean, spread), (0.0, spread), (0.0, 1.0)):
        away, _ = tree.query((rows - less) / over, distance_upper_bound=within)
        if np.sum(np.isfinite(away)) >= max(min(len(rows), 3), 1):
            return f"{np.sum(np.isfinite(away))} rows that are records of the clients"
    return ""


def _contains_targets(constant: np.ndarray, targets: list[np.ndarray], classes: int) -> bool:
    """Whether a constant holds consecutive targets, as numbers or one-hot."""
    if constant.ndim > 1 and constant.shape[-1] == classes:
        constant = constant.reshape(-1, classes).argmax(1)
    numbers = constant.ravel()
    if numbers.size < LABELS or np.unique(numbers[:LABELS]).size < 2:
        return False
    needle = numbers[: 4 * LABELS].astype(np.float32).tobytes()
    return any(needle in a.astype(np.float32).tobytes() for a in targets)
