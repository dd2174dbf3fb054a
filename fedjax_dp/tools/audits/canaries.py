"""Neighbouring worlds: the canary, its place in the data, and all other records."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, FullBatch, Release, Unit
from fedjax_dp.data.store import FederatedData
from fedjax_dp.data.targets import rows_of
from fedjax_dp.models import Model
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.privacy.protection import unit_of
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel, replace
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import as_float32_leaves, run_key
from fedjax_dp.tools.audits.game import Canary, Game
from fedjax_dp.tools.audits.observations import Alignment, Directions
from fedjax_dp.tools.audits.wrappers import FOLLOWING, WITHDRAWN, linear_model, wide_targets, withdrawn_targets

SINGLE = 10  # coordinates of each tensor that are observed one by one
BEYOND = 1e6  # clipping norms: length of gradients that must be clipped


def tensors_of(parameters: int) -> tuple[int, ...]:
    """Sizes of the two tensors of the linear model."""
    errors.require_integer("parameters", parameters, 2, 2**24)
    return parameters - parameters // 2, parameters // 2


def linear_data(data: FederatedData, records: np.ndarray, labels: np.ndarray) -> FederatedData:
    """Clients of the same sizes and shares whose records all equal the first of `records`."""
    return replace(
        data,
        x=records.astype(np.float32),
        y=labels.astype(np.int32),
        rows=np.zeros(len(data.row_numbers), np.int32),
        x_test=records[:0].astype(np.float32),
        y_test=labels[:0].astype(np.int32),
        test_clients=None,
        scale=1.0,
        shift=0.0,
        classes=1,
        tokens=False,
        learnt=(),
        task="classes",
        vocabulary=None,
        name="gradients",
    )


def pattern(widths: tuple[int, ...]) -> np.ndarray:
    """A gradient of length 1 with equal length in every tensor and mixed signs in all parameters."""
    signs = numpy_stream("canary gradient").choice([-1.0, 1.0], sum(widths))
    return signs * np.concatenate([np.full(width, (len(widths) * width) ** -0.5) for width in widths])


def single_parameter(widths: tuple[int, ...]) -> np.ndarray:
    """A gradient of length 1 in the first parameter alone, which noise on other parameters does not hide in L1."""
    return np.eye(sum(widths))[0]


SHAPES = {
    2: {"": pattern},
    1: {"": pattern, ", the canary of one parameter": single_parameter},
}  # by the norm of the bound
OPPOSITE, ZERO, AFTER_MODEL = "opposite to it", "zero", "following the model"  # gradients of other records


def gradient_game(
    algorithm: Algorithm,
    data: FederatedData,
    place: "CanaryRows",
    *,
    others: str,
    parameters: int,
    shape: Callable[[tuple[int, ...]], np.ndarray] = pattern,
    **common: Any,
) -> Game:
    """The worst case: the canary's gradient is C e in every step, and -C e for the record it replaces.

    Depending on `others`, the gradients of all other records are -C e, 0, or C e or -C e, whichever way the model has
    moved (`AFTER_MODEL`: the first move decides all later steps). For client privacy, the same holds for clients.
    Several canaries have different directions. Every gradient is far longer than the clipping norm C before clipping;
    under `ScaleGradients`, which does not clip, it has the largest allowed length.
    shape  gives e, of length 1, from the widths of the tensors, for a single canary.
    """
    widths = tensors_of(parameters)
    model, count = linear_model(widths), place.coins[-1] + 1
    canaries = length_of(algorithm) * (shape(widths)[None] if count == 1 else np.eye(parameters)[:count])
    other = {OPPOSITE: -1, ZERO: 0, AFTER_MODEL: 1}[others] * canaries[0]
    replaced = 0 * canaries if place.withdrawn else -canaries
    records = np.concatenate([other[None], canaries, replaced])
    first = FOLLOWING if others == AFTER_MODEL else 0
    labels = np.repeat([first, 0, WITHDRAWN if place.withdrawn else 0], [1, count, count])
    present, absent = 1 + place.coins, 1 + count + place.coins
    along = _gradients(model, canaries)
    return Game(
        algorithm=as_float32_leaves(algorithm),
        data=linear_data(data, records, labels),
        model=model,
        canary=Canary(place.slots, place.owners, place.coins, present, absent),
        observation=_observation(widths, along),
        **common,
    )


def others_for(algorithm: Algorithm, place: "CanaryRows") -> tuple[str, ...]:
    """The gradients of other records that may reveal the canary most; see `gradient_game`."""
    if place.coins[-1] > 0:
        return (ZERO,)
    several = algorithm.local.privatizer.on_upload and algorithm.local.steps > 1
    return (OPPOSITE, ZERO, AFTER_MODEL) if several else (OPPOSITE, ZERO)


def input_game(
    algorithm: Algorithm, data: FederatedData, model: Model, place: "CanaryRows", *, kind: str, seed: int, **common: Any
) -> Game:
    """The user's model and data; the canaries are inputs made from the records at `place`."""
    replaced = data.row_numbers[place.slots].astype(np.int32)
    data = replace(data, y=wide_targets(data.y))
    x, y = CANARIES[kind](data, replaced, numpy_stream("canaries", seed))
    present = np.arange(len(replaced), dtype=np.int32) + len(data.x)
    xs, ys, absent = [np.asarray(data.x), x], [data.y, y], replaced
    if place.withdrawn:
        xs, ys, absent = [*xs, x[:1] * 0], [*ys, withdrawn_targets(y)], np.full_like(present, present[-1] + 1)
    store = replace(
        data,
        x=np.concatenate(xs),
        y=jax.tree.map(lambda *parts: np.concatenate(parts).astype(parts[0].dtype), *ys),
        rows=data.row_numbers.astype(np.int32),
        x_test=data.x_test[:0],
        y_test=rows_of(data.y_test, slice(0)),
        test_clients=None,
    )
    several = place.coins[-1] > 0
    return Game(
        algorithm=as_float32_leaves(algorithm),
        data=store,
        model=model,
        canary=Canary(place.slots, place.owners, place.coins, present, absent),
        observation=Alignment(canary=present, others=absent, apart=bool(several)),
        **common,
    )


class CanaryRows(NamedTuple):
    """The rows of canaries as in `Canary`, and whether the other world has no record there instead of another."""

    slots: np.ndarray
    owners: np.ndarray
    coins: np.ndarray
    withdrawn: bool


def place_one(algorithm: Algorithm, data: FederatedData, step: Release, client: int, record: int) -> CanaryRows:
    """One record of a client, or all of its records for client privacy."""
    offset, size = int(data.offsets[client]), int(data.sizes[client])
    errors.require_integer("record", record, 0, size - 1, f"client {client} has {size} records")
    whole = unit_of(algorithm) is Unit.CLIENT
    slots = offset + np.arange(size) if whole else np.array([offset + record])
    return _canary_rows(slots, np.full(len(slots), client), np.zeros(len(slots)), step)


def place_many(algorithm: Algorithm, data: FederatedData, step: Release, client: int, canaries: int) -> CanaryRows:
    """The first records of a client, or the first clients with all their records, with one coin each."""
    offsets, sizes = np.asarray(data.offsets), np.asarray(data.sizes)
    if unit_of(algorithm) is Unit.RECORD:
        some = np.arange(min(canaries, int(sizes[client])))
        return _canary_rows(offsets[client] + some, np.full(len(some), client), some, step)
    some = np.arange(min(canaries, data.num_clients))
    owners = np.repeat(some, sizes[some])
    slots = np.concatenate([offsets[i] + np.arange(sizes[i]) for i in some])
    return _canary_rows(slots, owners, owners, step)


def _canary_rows(slots: np.ndarray, owners: np.ndarray, coins: np.ndarray, step: Release) -> CanaryRows:
    withdrawn = step.adjacency is not Adjacency.REPLACE_ONE and step.unit is Unit.RECORD
    return CanaryRows(slots.astype(np.int32), owners.astype(np.int32), coins.astype(np.int32), withdrawn)


def target_of(seed: int, client: int, step: Release) -> dict[str, Any]:
    """Fields of a game: the target, and whether the adversary knows when it takes part."""
    of_client = step.unit is Unit.CLIENT
    hidden = of_client and not isinstance(step.sampling, FullBatch)
    return {
        "client": np.int32(client),
        "schedule": None if hidden else jax.random.key_data(role_key(run_key(seed), "cohort")),
        "leaves": of_client and step.adjacency is Adjacency.ADD_REMOVE,
        "silent": of_client and step.adjacency is Adjacency.ZERO_OUT,
    }


def length_of(algorithm: Algorithm) -> float:
    """The length of the worst case's gradients."""
    part: Any = algorithm.local.privatizer if unit_of(algorithm) is Unit.RECORD else algorithm.upload
    allowed = getattr(getattr(part, "bound", None), "gradient_bound", None)
    return BEYOND * float(part.clip_norm) if allowed is None else float(allowed)


def _gradients(model: Model, records: np.ndarray) -> np.ndarray:
    """Directions of the gradients on records of the linear model `(records, parameters)`, in the order of `ravel`."""
    params = model.init(run_key(0))

    def gradient(record: jax.Array) -> jax.Array:
        return ravel(jax.grad(lambda p: model.loss(p, record, jnp.int32(0), None))(params))[0]

    flat = np.asarray(jax.vmap(gradient)(jnp.asarray(records, jnp.float32)))
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def _observation(widths: tuple[int, ...], along: np.ndarray) -> Directions:
    """For one canary its part in each tensor and the first coordinates; for several, each one's direction."""
    if len(along) > 1:
        return Directions(along=along, single=np.zeros(0, np.int32))
    starts = np.cumsum([0, *widths[:-1]])
    single = np.concatenate([start + np.arange(min(width, SINGLE)) for start, width in zip(starts, widths)])
    inside = np.repeat(np.arange(len(widths)), widths) == np.arange(len(widths))[:, None]
    parts = np.where(inside, along[0], 0.0)  # (tensors, parameters), to be of length 1, or 0
    parts /= np.maximum(np.linalg.norm(parts, axis=1, keepdims=True), 1e-30)
    return Directions(along=parts, single=single.astype(np.int32))


Inputs = tuple[np.ndarray, Any]


def _next_token(data: FederatedData, y: np.ndarray, step: Any) -> np.ndarray:
    """Another token id except for padding."""
    pad = None if data.vocabulary is None else data.vocabulary.pad
    return np.where(y == pad, y, (y + np.reshape(step, (-1, 1))) % data.classes).astype(y.dtype)


def _mirror_target(data: FederatedData, y: np.ndarray, step: Any) -> np.ndarray:
    """The target mirrored at the middle of all training targets."""
    every = np.asarray(data.y)
    return (every.max(0) + every.min(0) - y).astype(y.dtype)


WRONG_TARGETS: dict[str, Callable[[FederatedData, np.ndarray, Any], np.ndarray]] = {  # a wrong target, `step` places on
    "classes": lambda data, y, step: (y + step) % data.classes,
    "binary": lambda data, y, step: 1 - y,
    "multi_label": lambda data, y, step: 1 - y,
    "sequence": _next_token,
    "regression": _mirror_target,
}


def _wrong_target(data: FederatedData, y: Any, step: Any = 1) -> Any:
    if data.task not in WRONG_TARGETS:
        remedy = "use gradient or blank"
        raise errors.refuse(
            "canary", "one with another target", "made for a task that names its kind of target", remedy
        )
    return WRONG_TARGETS[data.task](data, y, step)


def _mislabel(data: FederatedData, rows: np.ndarray, rng: np.random.Generator) -> Inputs:
    """Records of the test set with wrong targets."""
    drawn = rng.choice(len(data.x_test), len(rows), replace=len(rows) > len(data.x_test))
    wrong = rng.integers(1, max(data.classes, 2), len(rows))
    return np.asarray(data.x_test)[drawn], _wrong_target(data, rows_of(wide_targets(data.y_test), drawn), wrong)


CANARIES: dict[str, Callable[[FederatedData, np.ndarray, np.random.Generator], Inputs]] = {
    # The same inputs with another target, such as the next label; inputs of zeros with the same targets.
    "label-flip": lambda data, rows, rng: (np.asarray(data.x)[rows], _wrong_target(data, rows_of(data.y, rows))),
    "blank": lambda data, rows, rng: (np.asarray(data.x)[rows] * 0, rows_of(data.y, rows)),
    "mislabelled": _mislabel,
}
