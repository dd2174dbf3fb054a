"""Models of networks: a network of any framework, the shape of a record, and the loss of one record."""

import dataclasses
import functools
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedjax_dp import errors, validation
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.data.targets import MOST_CLASSES
from fedjax_dp.gradients import Explanation, Model, equations, explain, losses, require_model
from fedjax_dp.gradients.analysis import GradientPlan, plan_of
from fedjax_dp.gradients.model import Params
from fedjax_dp.models import low_rank
from fedjax_dp.models.adaptation import Adaptation, Frozen, FrozenValues
from fedjax_dp.models.batch_axis import first_row, require_records_apart
from fedjax_dp.models.low_rank import LowRankFactors
from fedjax_dp.models.networks import Network, by_path, from_paths, network_of
from fedjax_dp.models.origins import Origin, values_digest
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import tensor_sizes
from fedjax_dp.tasks import Own, Task, cross_entropy, task_named

T = TypeVar("T")


def mean_loss(model: Model, params: Params, data: FederatedData, client: Client) -> jax.Array:
    """F_k, the mean loss over all records of a client."""
    return data.mean_over_records(client, lambda x, y: losses(model, params, x, y))


def size_of(model: Model) -> int:
    """Number of parameters of a model."""
    return sum(tensor_sizes(jax.eval_shape(model.init, jax.random.key(0))))


@dataclasses.dataclass(frozen=True)
class NetworkModel:
    """An unchanged network, with the loss of its scores of one record.

    loss_of  of scores and target of one record, a number; usually that of the task;
    task     what scores are judged by; None: by the task that the data name;
    tokens   records are indices into a vocabulary, int32;
    dtype    of the forward and backward pass of layers that set none of their own: float32, or bfloat16 for devices
             that multiply it faster. Parameters, losses, norms, clipped sums and noise are float32 with either: what is
             rounded is the gradient, before its norm is taken, so the clip norm holds as before;
    adaptation  which parameters are trained; None: all. `models.freeze` decides it. `init`, `loss` and `scores` are of
             the trained ones alone then, a dictionary by path;
    held     the values of all others.
    """

    network: Network
    record_shape: tuple[int, ...]
    loss_of: Callable[[Any, Any], jax.Array] = cross_entropy
    tokens: bool = False
    dtype: Any = jnp.float32
    task: Task | None = None
    adaptation: Adaptation | None = None
    held: Frozen | None = None

    @property
    def frozen(self) -> FrozenValues | None:
        """The frozen values, see `gradients.PartlyFrozenModel`."""
        return None if self.held is None else self.held.values

    def with_device_records(self, frozen: FrozenValues | None) -> "NetworkModel":
        """The same model with other frozen values; None: its structure without values."""
        return dataclasses.replace(self, held=None if frozen is None else Frozen(frozen))

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Origins of all initial and frozen values that are not random."""
        if self.adaptation is not None:
            held = self.held
            if held is None or held.checksum == self.adaptation.checksum:
                return self.adaptation.origins
            other = Origin("values put in the place of others", values_digest(held.values.values))
            return (*self.adaptation.origins, other)
        if not self.network.stands:
            return ()
        values = by_path(self.network.init(jax.random.key(0), jnp.zeros(self.blank.shape, self.blank.dtype)))
        values |= getattr(self.network, "statistics", {})
        return (Origin(f"{self.network.name} as it was given", values_digest(values)),)

    def is_constant(self, name: str) -> bool:
        """Whether this is no parameter of the network but what it keeps beside them, such as running statistics."""
        return name.partition("/")[0] in getattr(self.network, "constants", ())

    @property
    def base(self) -> "NetworkModel":
        """The model of the same network that trains all parameters."""
        return dataclasses.replace(self, adaptation=None, held=None)

    def for_data(
        self, data: Any, loss: str | None = None, ap: str | None = None, top_k: int | None = None
    ) -> "NetworkModel":
        """The model with the loss of the data's task; for other arguments see `tasks.task_named`."""
        task = task_named(data, loss, ap, top_k)
        if loss is None and ap is None and top_k is None:  # the data say it
            return dataclasses.replace(self, loss_of=task.loss)
        return self.for_task(task)

    def for_task(self, task: Task) -> "NetworkModel":
        """The model with another task and its loss.

        Raises: ConfigurationError for an object that lacks a member of `fedjax_dp.tasks.Task`.
        """
        if lacking := validation.missing_members(task, Task):
            got = f"{validation.describe(task)}, which lacks {', '.join(lacking)}"
            raise errors.refuse("task", got, "a value that follows fedjax_dp.tasks.Task", "see docs/guides/tasks.md")
        return dataclasses.replace(self, loss_of=task.loss, task=task)

    def init(self, key: jax.Array) -> Params:
        if self.adaptation is None:
            blank = jnp.zeros(self.record_shape, jnp.int32 if self.tokens else jnp.float32)
            return self._user_code(lambda: self.network.init(key, blank))
        start, adapters = self._frozen().start, self.adaptation.low_rank
        fresh = [name for name in self.adaptation.trained if name not in start]
        new = self.base.draw(key, fresh, alone=bool(start or self.adaptation.origins))
        kinds = by_path(jax.eval_shape(self.base.init, key)) if start else new  # what is stored may be narrower
        params = {
            name: jnp.asarray(start.get(name, new.get(name)), kinds[name].dtype) for name in self.adaptation.trained
        }
        if adapters is not None:
            kernels = low_rank.kernels_of(self._plan(None))
            for name in adapters.names:
                a, b = f"{name}/{low_rank.A}", f"{name}/{low_rank.B}"
                if adapters.both:
                    own = role_key(key, f"low rank {name}")
                    params[a] = start[a] if a in start else low_rank.random_a(own, kernels[name], adapters.rank)
                params[b] = start[b] if b in start else jnp.zeros(low_rank.shapes(kernels[name], adapters.rank)[1])
        return params

    def draw(self, key: jax.Array, names: Sequence[str], alone: bool) -> dict[str, Any]:
        """Random initial values of these parameters; `alone`: nothing is drawn for the others, which may be large."""
        if not names:
            return {}
        made = jax.jit(lambda key: {name: by_path(self.init(key))[name] for name in names}) if alone else None
        return by_path(self.init(key)) if made is None else made(key)

    def whole(self, params: Params) -> Params:
        """All parameters of the network, with low-rank terms added: W + (alpha / r) A B; for evaluation or export."""
        if self.adaptation is None:
            return params
        leaves, structure = jax.tree.flatten(self._own(params))
        return jax.tree.unflatten(
            structure, low_rank.add_low_rank(self._plan(None), leaves, self._pairs(params), self._frozen().scale)
        )

    def check(self, record_shape: tuple[int, ...], tokens: bool) -> None:
        """Refuse data with records of another shape, and a network in which the records of a batch mix."""
        got, wanted = ((" tokens" if kind else "") for kind in (tokens, self.tokens))
        if tuple(record_shape) != self.record_shape or tokens != self.tokens:
            remedy = "use another model, or make this one for these records"
            if tokens and not self.tokens:
                wanted = " numbers"
                remedy = "--model lstm (models.lstm) classifies a text, gpt goes on with it; so may a network of yours"
            wanted = f"{self.record_shape}{wanted} for this model"
            raise errors.refuse("shape of a record", f"{tuple(record_shape)}{got}", wanted, remedy)
        _check_batch(self.base)

    def scores(self, params: Params, x: jax.Array, key: jax.Array | None = None) -> Any:
        """The network's scores of one record; with a key in training mode."""
        if self.adaptation is not None:
            if self.adaptation.low_rank is None:
                return self.base.scores(self._own(params), x, key)
            leaves, record = jax.tree.leaves(self._own(params)), (x,) if key is None else (x, key)
            return low_rank.run(self._plan(key, x), leaves, record, self._pairs(params), self._frozen().scale)
        narrow, seen = jax.tree.map(lambda a: a.astype(self.dtype) if a.dtype == jnp.float32 else a, (params, x))
        if not self.network.for_batches:
            return jax.tree.map(_wide, self._user_code(lambda: self.network.run(narrow, seen, key)))
        made = self._user_code(lambda: self.network.run(narrow, seen[None], key))
        return jax.tree.map(_wide, first_row(self.network.name, made))

    def logits(self, params: Params, x: jax.Array) -> jax.Array:
        return self.scores(params, x)

    def loss(self, params: Params, x: jax.Array, y: Any, key: jax.Array | None = None) -> jax.Array:
        scores = self.scores(params, x, key)
        return self._user_code(lambda: self.loss_of(scores, y), "the loss")

    def _frozen(self) -> FrozenValues:
        if self.frozen is None:
            raise TypeError("the structure of a partly frozen model holds no values: see gradients.joined")
        return self.frozen

    def _own(self, params: Params) -> Params:
        """The network's own parameters, trained and frozen."""
        assert self.adaptation is not None
        trained = {name: params[name] for name in self.adaptation.trained}
        return from_paths({**self._frozen().values, **trained}, _structure(self.base))

    def _pairs(self, params: Params) -> dict[str, LowRankFactors]:
        """Factors of the low-rank terms by kernel."""
        assert self.adaptation is not None
        every = {**self._frozen().values, **params}
        names = () if self.adaptation.low_rank is None else self.adaptation.low_rank.names
        return {name: LowRankFactors(every[f"{name}/{low_rank.A}"], every[f"{name}/{low_rank.B}"]) for name in names}

    def _plan(self, key: jax.Array | None, x: Any = None) -> GradientPlan:
        """The traced program of the network, a function of all its parameters and one record."""
        base = self.base
        params = jax.eval_shape(base.init, jax.random.key(0))
        seen = self.blank if x is None else x
        return plan_of(base, "scores", params, (seen,) if key is None else (seen, key))

    def _user_code(self, call: Callable[[], T], what: str = "") -> T:
        """The result of a call of user-defined code; its errors become one line with their place in that code."""
        try:
            return call()
        except errors.ConfigurationError:
            raise
        except Exception as error:
            what, reason = what or self.network.name, str(error).strip().split("\n")[0].rstrip(".")
            got = f"{what} that fails on one record{_place(error)}: {type(error).__name__}: {reason}"
            wanted = f"one that runs on records {self.record_shape}"
            raise errors.refuse("model", got, wanted, _remedy(error)) from error

    @functools.cached_property
    def has_features(self) -> bool:
        """Whether there is a layer before the output one, so that features depend on parameters."""
        found = plan_of(self, "logits", jax.eval_shape(self.init, jax.random.key(0)), (self.blank,)).features
        return found is not None and found[2]

    @property
    def blank(self) -> jax.ShapeDtypeStruct:
        """The shape of one record."""
        return jax.ShapeDtypeStruct(self.record_shape, jnp.int32 if self.tokens else jnp.float32)


def require_sizes(record_shape: Sequence[int], classes: int, hidden: Sequence[int] = ()) -> None:
    """Refuse invalid sizes of a network."""
    for size in record_shape:
        errors.require_count("every size of record_shape", size)
    for size in hidden:
        errors.require_count("every size of hidden", size)
    errors.require_integer("classes", classes, 1, MOST_CLASSES)


def require_tokens(record_shape: Sequence[int]) -> None:
    """Refuse records that are no rows of tokens."""
    if len(record_shape) != 1:
        raise errors.refuse("record_shape", tuple(record_shape), "(length,) of tokens", "use another model or data set")


def model(
    network: Any,
    example: Any,
    *,
    task: Task | None = None,
    loss: Callable[[Any, Any], jax.Array] | None = None,
    dtype: Any = jnp.float32,
    trained: str | None = None,
) -> NetworkModel:
    """A model of any unchanged network.

    It is traced as a function of one record and batched by `vmap`. Operations other than JAX's own, which could mix the
    records of a batch, are refused before training.

    network  a Flax module (linen or nnx) or a transformed Haiku function that maps `(records, ...)` to scores
             `(records, ...)`; an Equinox module, which maps one record to scores; a function of a key that makes an nnx
             or Equinox module; or a pair of functions `(start, forward)`: start(key) makes parameters, forward(params,
             x), or forward(params, x, key), scores of one record;
    example  the data, or the features of one record, or their shape; integers are tokens;
    task     what its scores are judged by, a `fedjax_dp.tasks.Task`; left out, the task that the data name;
    loss     of scores and target of one record, a number; left out, the task's. Metrics of a task are measured with a
             loss of one's own too, where the scores have the shape that the task's loss takes;
    dtype    see `NetworkModel`;
    trained  the name of a flag that says whether the network is being trained, where it is not one of `networks.MODES`.
    Raises:  ConfigurationError for anything else, a network that keeps a state or whose output for a record depends on
             the others of its batch, a loss that is no number.
    """
    if hasattr(example, "record_shape"):
        shape, tokens = tuple(example.record_shape), bool(example.tokens)
    elif isinstance(example, tuple) and all(isinstance(size, int) for size in example):
        shape, tokens = example, False
    else:
        try:
            example = example if hasattr(example, "dtype") else jnp.asarray(example)
        except (TypeError, ValueError, OverflowError):
            wanted = "the data, features of one record, or their shape"
            raise errors.refuse("example", validation.describe(example), wanted) from None
        shape, tokens = tuple(example.shape), bool(jnp.issubdtype(example.dtype, jnp.integer))
    made = _with_constants(NetworkModel(network_of(network, trained), shape, cross_entropy, tokens, dtype))
    made = made.for_data(example) if hasattr(example, "task") else made
    made = made if task is None else made.for_task(task)
    made = made if loss is None else dataclasses.replace(made, loss_of=loss)
    _check_batch(made.base)
    return made


def with_frozen(model: NetworkModel, values: Mapping[str, Any], origins: tuple[Origin, ...] = ()) -> NetworkModel:
    """The model with these frozen values, by path."""
    trained = tuple(name for name in by_path(jax.eval_shape(model.init, jax.random.key(0))) if name not in values)
    held = Frozen(FrozenValues({name: jnp.asarray(value) for name, value in values.items()}, {}, jnp.float32(1.0)))
    return dataclasses.replace(model, adaptation=Adaptation(trained, None, origins, held.checksum), held=held)


def _with_constants(made: NetworkModel) -> NetworkModel:
    """The model with the network's values other than parameters, such as running statistics, frozen."""
    look = getattr(made.network, "with_constants", None)
    if look is None:
        return made
    blank = jnp.zeros(made.blank.shape, made.blank.dtype)
    made = dataclasses.replace(made, network=made._user_code(lambda: look(jax.random.key(0), blank)))
    if not getattr(made.network, "constants", ()):
        return made
    values = {name: value for name, value in by_path(made.init(jax.random.key(0))).items() if made.is_constant(name)}
    return with_frozen(made, values)


def explain_gradients(model: NetworkModel, target: Any = None) -> Explanation:
    """How the record gradients of a model are computed, by parameter, and what that costs; printable.

    target  of one record: the data, an array, its shape and type, or a pytree of such; left out, an integer for each
            row of scores, as for classes and sequences, or else numbers of the shape of the scores.
    """
    require_model(model)
    params = jax.eval_shape(model.init, jax.random.key(0))
    if hasattr(target, "blank_targets"):
        y = target.blank_targets(1)
    else:
        y = jax.tree.map(_one_row, _usual_target(model, params) if target is None else target)
    return explain(model, params, _one_row(model.blank), y)


def _usual_target(model: NetworkModel, params: Params) -> jax.ShapeDtypeStruct:
    """The probable target of one record, from the scores of a model."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(model.scores, params, model.blank))]
    ids = jax.ShapeDtypeStruct(shapes[0][:-1] if len(shapes) == 1 else (), jnp.int32)
    try:
        jax.eval_shape(model.loss, params, model.blank, ids)
    except errors.ConfigurationError:
        return jax.ShapeDtypeStruct(shapes[0], jnp.float32)
    return ids


def _one_row(a: Any) -> jax.ShapeDtypeStruct:
    a = a if hasattr(a, "dtype") else jnp.asarray(a)
    return jax.ShapeDtypeStruct((1, *a.shape), a.dtype)


def task_of(model: Model, data: FederatedData) -> Task:
    """The task that evaluates a model on some data: the model's own, or that of the data.

    With a user-defined loss, scores may mean anything: if their shape does not fit the task's loss, only the loss is
    evaluated.
    """
    shapes, structure = jax.tree.flatten(jax.tree.map(lambda a: a.shape[1:], data.y), lambda a: isinstance(a, tuple))
    about = data.task, data.vocabulary, data.classes, data.record_shape, data.tokens
    task: Any = getattr(model, "task", None) or task_named(data)
    # Frozen values may be traced, which are no keys of a cache.
    look: Callable[..., Task] = _task_of if getattr(model, "frozen", None) is None else _task_of.__wrapped__
    return look(model, task, about, structure, tuple(shapes))


@functools.lru_cache(maxsize=64)
def _task_of(model: Model, task: Task, about: tuple[Any, ...], structure: Any, shapes: tuple[Any, ...]) -> Task:
    *_, outputs, record_shape, tokens = about
    wanted = task.scores(jax.tree.unflatten(structure, shapes), outputs)
    if wanted is None or score_shapes(model, record_shape, tokens) == [wanted]:
        return task
    return Own()


def score_shapes(model: Model, record_shape: tuple[int, ...], tokens: bool) -> list[tuple[int, ...]]:
    """The shapes of a model's scores of one record."""
    blank = jax.ShapeDtypeStruct(record_shape, jnp.int32 if tokens else jnp.float32)
    made = jax.eval_shape(lambda key, x: model.logits(model.init(key), x), jax.random.key(0), blank)
    return [tuple(a.shape) for a in jax.tree.leaves(made)]


@functools.lru_cache(maxsize=64)
def _structure(made: NetworkModel) -> Any:
    return jax.tree.structure(jax.eval_shape(made.init, jax.random.key(0)))


@functools.lru_cache(maxsize=64)
def _check_batch(made: NetworkModel) -> None:
    params = jax.eval_shape(made.init, jax.random.key(0))
    wrong = [leaf.dtype.name for leaf in jax.tree.leaves(params) if not jnp.issubdtype(leaf.dtype, jnp.floating)]
    if wrong:
        raise errors.refuse(
            "model", f"parameters that are {wrong[0]}", "floating point numbers", "keep others as constants"
        )
    if not made.network.for_batches:
        jax.eval_shape(made.scores, params, made.blank)
        return
    name, run, key = made.network.name, made.network.run, jax.random.key(0)
    for mode in (None, key):  # as it is looked at, and as it is trained

        def call(params: Params, x: Any, mode: jax.Array | None = mode) -> Any:
            return made._user_code(lambda: run(params, x, mode))

        require_records_apart(name, call, params, made.blank)


def _wide(a: jax.Array) -> jax.Array:
    return a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) and a.dtype.itemsize < 4 else a


def _remedy(error: Exception) -> str:
    """The remedy for an error of user-defined code."""
    text = str(error)
    lacking = re.findall(r"'(\w+)'", text.partition("missing")[2]) if "required positional argument" in text else []
    if len(lacking) == 1:
        name = lacking[0]
        flag = f'fedjax_dp.model(network, data, trained="{name}")'
        return f"give {name} a default, or, if {name} says whether it is trained, write {flag}"
    if re.search(r"rng|deterministic|dropout|random key", text, re.IGNORECASE):
        return (
            "for dropout take a flag train in the call, which is True in training alone, and write "
            "Dropout(rate, deterministic=not train) (nnx: also rngs=; Haiku: only where is_training): keys are given"
        )
    return "a network is given one record (Flax and Haiku: a batch of one), a loss its scores and its target"


def _place(error: Exception) -> str:
    """The last line of user-defined code before an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return equations.place_of((frame.filename, frame.lineno, frame.name) for frame in reversed(frames))
