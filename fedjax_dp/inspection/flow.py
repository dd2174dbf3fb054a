"""Information flow from records to messages and to the next round, in the traced program of a round.

A round is traced with a stand-in in place of the noise on records. The stand-in's output is marked as released if only
the rows of a batch depend on records, as whole unmodified records: the model, the mask, the divisor and all other
inputs of a gradient must not depend on records, and a derivative of a release is no release. Everything else that
depends on records must end in diagnostics: if it reaches a message or a state, it is an unaccounted release, whatever
its part states. The analysis is static and needs no numbers.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from fedjax_dp import errors, own_code
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.gradients import equations
from fedjax_dp.gradients.record_independence import require_own_operations
from fedjax_dp.inspection.taint import Marks, Rows, Taint, output_taints
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.client_privacy import UpdatePrivatizer
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.clusters import ClusterChoice
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalState, Received, StepContext
from fedjax_dp.parts.corrections import Correction, finish_correction, init_correction
from fedjax_dp.pytrees import Wrapper, ravel, replace, structure, tensor_sizes, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves, run_key
from fedjax_dp.rounds.state import initial_state


def require_accounted(algorithm: Algorithm, data: FederatedData, model: Model) -> None:
    """Refuse an algorithm in which records reach a message or a later round through an unaccounted release.

    Raises: ConfigurationError with the place; also for more privatized gradients than are counted.
    """
    if all(facts.of_the_project(part) for _, part in facts.parts_of(algorithm)):
        return  # tests check the whole catalogue
    wanted = "of parts that keep the shapes and types of their Protocols"
    with own_code.refuse_errors("algorithm", "one of which no round can be traced", wanted):
        check(algorithm, data, model)


def check(algorithm: Algorithm, data: FederatedData, model: Model) -> None:
    """`require_accounted` that also checks algorithms made of the project's parts alone."""
    marks = Marks(f"released {secrets.token_hex(8)}")  # user code cannot guess it
    marked, data = _mark_releases(as_float32_leaves(algorithm), marks), jax.tree.map(np.asarray, data)
    key, by_record = run_key(0), algorithm.upload.unit is None
    held_out = ("x_test", "y_test") if data.test_clients is not None else ()
    records = {
        name: jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.asarray(a[:1]).dtype), getattr(data, name))
        for name in ("x", "y", *held_out)
    }

    def begin(records: dict[str, Any]) -> Any:
        return initial_state(marked, model, replace(data, **records), key)

    state = _require_clean("before the first round", begin, records, (), marks, rows=False)
    if by_record and not algorithm.local.initial_release and _has_gradients(begin, (records,), marks):
        raise errors.refuse(
            "corrections",
            "a gradient of records before the first round",
            "one that declares it by `initial_release`",
            "it is then counted as a release of every client",
        )

    def advance(marked: Algorithm) -> Callable[..., Any]:
        def one(records: dict[str, jax.Array], state: Any) -> Any:
            held = replace(data, **records)
            whole = Execution(pieces=False)  # the program as the parts wrote it
            new, report = run_round(marked, model, held, key, state, whole, lambda params, flat: flat)
            return new, (report.transcript.uploads if by_record else ())

        return one

    # A client's state may depend on its records if it leaves the client only in updates that are noised as a whole, or
    # if it is declared to be trained without noise: then it acts on no message.
    others = algorithm.local.additional_releases if by_record else ()
    alone = not by_record or any(not one.noised for one in others)
    _require_clean("in a round", advance(marked), records, (state,), marks, rows=alone)
    if any(one.noised and not (one.sent or one.final) for one in others) or (
        by_record and not algorithm.local.sends_steps
    ):
        unsent = _mark_releases(as_float32_leaves(algorithm), marks, only_sent=True)
        _require_clean(
            "in a round, from what should stay with its client", advance(unsent), records, (state,), marks, True
        )
    if by_record:
        _require_counted(algorithm, marked, data, model, records, state, marks)


def _mark_releases(algorithm: Algorithm, marks: Marks, only_sent: bool = False) -> Algorithm:
    """`only_sent`: gradients that are declared to act on no update count as plain ones."""
    by_record, local = algorithm.upload.unit is None, algorithm.local
    mine = only_sent and not local.sends_steps
    if facts.of_the_project(local):
        corrections = (part for slot, part in local.parts if slot == "correction")
        local = replace(local, corrections=tuple(ShapedCorrection(base=correction) for correction in corrections))
        models: Any = getattr(local, "models", None)
        choice = getattr(models, "choice", None)
        if choice is not None and facts.of_the_project(choice):
            local = replace(local, models=replace(models, choice=MarkedChoice(base=choice, mark=marks.released)))
    local = replace(
        local, privatizer=MarkedPrivatizer(marks=marks if by_record else None, only_sent=only_sent, plain=mine)
    )
    if by_record:
        return replace(algorithm, local=local)
    return replace(algorithm, local=local, upload=MarkedUpload(base=algorithm.upload, mark=marks.released))


@value
class ShapedCorrection(Wrapper):
    """A correction whose gradient must keep its shape: a scalar would be added to every entry.

    Its refusals name the correction that it wraps.
    """

    base: Correction

    def gradient(
        self, gradient: jax.Array, params: jax.Array, step: StepContext, client: ClientContext, records: Records
    ) -> jax.Array:
        result = self.base.gradient(gradient, params, step, client, records)
        if jnp.shape(result) != gradient.shape:
            whose, wanted = f"gradient of {type(self.base).__name__}", f"of shape {gradient.shape}, as its argument"
            raise errors.refuse(whose, f"shape {jnp.shape(result)}", wanted, "return that one with a term added")
        return result

    def init(self, run: InitContext) -> LocalState:
        return init_correction(self.base, run)

    def finish(self, *arguments: Any) -> tuple[Any, Any]:
        return finish_correction(self.base, *arguments)


@value
class MarkedPrivatizer:
    """A stand-in whose gradient depends on all arguments; its dependence on rows of records is marked if noised."""

    marks: Marks | None = structure()
    only_sent: bool = structure(default=False)  # personal series count as plain gradients
    plain: bool = structure(default=False)  # so does the shared one

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        x, y = records.x, records.y
        read = _total((x, y))
        marks = None if (self.only_sent and step.stream) or self.plain else self.marks
        if marks is not None:
            x, y = jax.tree.map(lambda a: checkpoint_name(a, marks.rows(a.ndim - 1)), (x, y))
        losses, gradients = jax.vmap(  # with all that the model closes over
            lambda x, y, key: jax.value_and_grad(model.loss)(params, x, y, key)
        )(x, y, records.keys)
        keys = tuple(jax.random.key_data(a) for a in (key, records.keys) if a is not None)
        every = _total((x, y, losses, gradients, step, records.mask, records.divisor, keys)) + ravel(params)[0]
        gradient = every * read * read  # so that every derivative depends on records
        if marks is not None:
            gradient = checkpoint_name(gradient, marks.of_stream(step.stream)) + 0.0 * every
        return gradient, StepReport(read, read, read, read)

    def noise_variance(self, step: StepContext, divisor: Any) -> jax.Array:
        """The stand-in for a variance, which depends on no records."""
        return _total((step, divisor))


@value
class MarkedChoice(Wrapper):
    """A private choice that marks its noisy losses."""

    base: ClusterChoice
    mark: str = structure()

    def noisy(self, losses: jax.Array, records: Any, noise_multiplier: Any, draw: jax.Array) -> jax.Array:
        return checkpoint_name(self.base.noisy(losses, records, noise_multiplier, draw), self.mark)


def _total(tree: Any) -> jax.Array:
    return sum((jnp.sum(jnp.asarray(leaf), dtype=jnp.float32) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


@value
class MarkedUpload(Wrapper):
    """An upload that marks its released mean."""

    base: UpdatePrivatizer
    mark: str = structure()

    def release(self, *arguments: Any) -> Any:
        """Mark the mean, and state for later rounds only for the project's uploads, which add noise to it."""
        update, state = self.base.release(*arguments)
        if facts.of_the_project(self.base):
            state = jax.tree.map(lambda a: checkpoint_name(a, self.mark), state)
        return checkpoint_name(update, self.mark), state


def _require_clean(
    when: str, function: Callable[..., Any], records: dict[str, Any], others: tuple[Any, ...], marks: Marks, rows: bool
) -> Any:
    """Refuse outputs of the function that depend on records; returns the shapes of all outputs.

    rows  client states may depend on records, from the beginning.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(records, *others)
    stores: list[Taint] = [
        Rows(1, object()) if name in ("x", "y") else ""
        for name in sorted(records)
        for _ in jax.tree.leaves(records[name])
    ]
    kept = [rows and "clients" in _fields(path) for path, _ in jax.tree_util.tree_flatten_with_path(others)[0]]
    inputs = stores + ["" if own else None for own in kept]
    outputs = output_taints(traced.jaxpr, inputs, marks)
    for (path, shape), where in zip(jax.tree_util.tree_flatten_with_path(shapes)[0], outputs, strict=True):
        if where is not None and shape.size and not (rows and "clients" in _fields(path)):
            raise errors.refuse(
                "algorithm",
                f"records that reach {_describe_path(path)} {when}{where if isinstance(where, str) else ''}, "
                "past what is accounted for",
                "one in which records act through the privatized gradient (or the noised mean of updates) alone",
                "use that gradient only, made with what is public or noised, or say why there is no epsilon by "
                "`no_epsilon_reason`",
            )
    require_own_operations("algorithm", traced.jaxpr, derivatives=False)  # others could read records from anywhere
    return shapes


def _fields(path: Any) -> list[str]:
    return [str(getattr(entry, "name", getattr(entry, "idx", getattr(entry, "key", "")))) for entry in path]


def _describe_path(path: Any) -> str:
    words = {
        "params": "the model",
        "optimizer": "the server's optimizer",
        "upload": "what the server keeps of uploads",
        "shared": "what the server keeps for local steps",
        "clients": "what clients keep",
    }
    return next((words[name] for name in _fields(path) if name in words), "a client's message")


class _PrivateGradient(NamedTuple):
    """A private gradient in a program."""

    stream: int
    times: float  # how often it is computed
    looped: bool
    shape: tuple[int, ...]


def _private_gradients(jaxpr: Any, marks: Marks, times: float = 1, looped: bool = False) -> Iterator[_PrivateGradient]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        stream = marks.stream_of(equations.label(equation)) if name == "name" else None
        if stream is not None:
            yield _PrivateGradient(stream, times, looped, equation.outvars[0].aval.shape)
        more = equations.scan_of(equation).length if name == "scan" else np.inf if name == "while" else 1
        for inside in equations.programs(equation):
            yield from _private_gradients(inside.jaxpr, marks, times * more, looped or name in ("scan", "while"))


def _has_gradients(function: Callable[..., Any], arguments: tuple[Any, ...], marks: Marks) -> bool:
    return any(True for _ in _private_gradients(jax.make_jaxpr(function)(*arguments).jaxpr, marks))


def _require_counted(
    algorithm: Algorithm,
    marked: Algorithm,
    data: FederatedData,
    model: Model,
    records: dict[str, Any],
    state: Any,
    marks: Marks,
) -> None:
    """Refuse a client's round with more private gradients than it states, or with a stream that is drawn twice."""
    local, key = marked.local, run_key(0)

    def held_by(records: dict[str, jax.Array], state: Any) -> tuple[FederatedData, Members]:
        held = jax.tree.map(jnp.asarray, replace(data, **records))
        return held, draw_cohort(marked.cohort, key, state.round, held.shares)

    def client_round(records: dict[str, jax.Array], state: Any) -> Any:
        held, members = held_by(records, state)
        extra = local.send(LocalState(state.shared, state.clients), members)
        own, extra = jax.tree.map(lambda a: a[0], (state.clients, extra))
        start, unravel = ravel(state.params)
        received = Received(start, state.shared, own, extra)
        client = held.client(members.ids[0])
        result = local.run(ClientContext(key, state.round, client, held, model, unravel, received))
        return result.update, result.auxiliary, result.client_state

    def exchange(records: dict[str, jax.Array], state: Any) -> Any:
        held, members = held_by(records, state)

        def map_members(see: Callable[..., Any], ids: jax.Array) -> Any:
            return jax.vmap(lambda i: see(key, state.params, held.client(i), held, model))(ids)

        return local.exchange(LocalState(state.shared, state.clients), map_members, members, lambda: members)

    if _has_gradients(exchange, (records, state), marks):
        raise errors.refuse(
            "local steps",
            "a privatized gradient after the new model, in `exchange`",
            "privatized gradients in a client's round alone",
            "compute it in the round, as one of extra_gradients: elsewhere it is not counted",
        )
    gradients = list(_private_gradients(jax.make_jaxpr(client_round)(records, state).jaxpr, marks))
    tried = sum(tensor_sizes(state.params))
    mine = [(slot, type(part).__name__) for slot, part in facts.parts_of(algorithm) if not facts.of_the_project(part)]
    for slot, name in mine:
        if slot in ("privatizer", "bound") and any(max(one.shape, default=0) > tried for one in gradients):
            wanted = "the project's own where one gradient is of two models, as yours is tried on one"
            raise errors.refuse(slot, name, wanted, "use RecordGaussian with ClipRecords, or ditto")
    allowed = stated_gradients(algorithm.local, data.largest)
    for stream in sorted({one.stream for one in gradients}):
        own = [one for one in gradients if one.stream == stream]
        times, most = sum(one.times for one in own), allowed.get(stream, 0)
        if times > most:
            raise errors.refuse(
                f"private gradients of a client's round, of stream {stream}",
                f"{times:g}",
                f"at most the {most} that are stated",
                "state them as extra_gradients of a correction, or in additional_releases: each is a release",
            )
        # User-defined local steps may have several loops and train a part: checks of runs see their keys and batches.
        alone = sum(not one.looped for one in own) > (local.extra_gradients if stream == 0 else 0)
        twice = facts.of_the_project(local) and (alone or sum(one.looped for one in own) > 1)
        if twice or any(len(one.shape) != 1 for one in own):
            raise errors.refuse(
                f"private gradients of stream {stream}",
                "some drawn twice, in a loop of their own or under vmap, with the same batch and noise",
                "drawn once, or one by one outside the local steps",
                "draw another stream, and state it in additional_releases; call extra_gradient for each of "
                "extra_gradients",
            )


def stated_gradients(local: Any, records: int, after: bool = False) -> dict[int, int]:
    """The number of private gradients in the round of a client with `records` records, by stream of draws.

    after  with those after the last round.
    """
    allowed = {0: local.batches.count(local.steps, records) + local.extra_gradients}
    for one in local.additional_releases:
        if one.stream and one.noised and (after or not one.final):
            allowed[one.stream] = allowed.get(one.stream, 0) + local.batches.count(one.steps, records)
    return allowed
