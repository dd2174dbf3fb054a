"""What a round lets out of the records: every way from them to a message or to the next round, in the traced program.

A round is traced with a stand-in where records are noised, whose output is marked. All that depends on records and is
not behind a mark must end in probes; what reaches a message or a state is a release that nobody accounts for, whatever
its part says of itself. A program says it all: nothing is tried, and no numbers are needed.
"""

import pathlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.gradients import program
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.client_privacy import Sent, Upload
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.corrections import Memory
from fedjax_dp.parts.local_training import Received
from fedjax_dp.parts.noise import Place
from fedjax_dp.pytrees import changed, ravel, structure, tensor_sizes, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import draw_cohort, initial_state, run_round
from fedjax_dp.rounds.simulation import numbers, run_key

_PACKAGE = str(pathlib.Path(__file__).parent.parent)


def require_accounted(algorithm: Algorithm, data: FederatedData, model: Model) -> None:
    """Refuse an algorithm by which records reach a message, or a later round, past what is accounted for.

    Raises: ConfigurationError that says where; also for more privatized gradients than are counted.
    """
    if all(facts.of_the_project(part) for _, part in facts.parts_of(algorithm)):
        return  # tests look at all of the catalogue
    try:
        check(algorithm, data, model)
    except errors.ConfigurationError:
        raise
    except Exception as failure:  # of a stranger's code, whatever it is
        told = (str(failure).splitlines() or [""])[0]
        raise errors.refuse(
            "algorithm",
            f"one of which no round can be traced: {type(failure).__name__}: {told}",
            "of parts that keep the shapes and types of their Protocols",
        ) from failure


def check(algorithm: Algorithm, data: FederatedData, model: Model) -> None:
    """The same, for whatever parts."""
    mark = f"released {secrets.token_hex(8)}"  # nobody else can write it
    marked, data = _marked(numbers(algorithm), mark), jax.tree.map(np.asarray, data)
    x, y = (jax.ShapeDtypeStruct(np.shape(a), jnp.asarray(a[:1]).dtype) for a in (data.x, data.y))
    key, by_record = run_key(0), algorithm.upload.unit is None

    def begin(x: jax.Array, y: jax.Array) -> Any:
        return initial_state(marked, model, changed(data, x=x, y=y), key)

    state = _clean("before the first round", begin, (x, y), (), mark)
    if by_record and not algorithm.local.warm:
        begun = jax.make_jaxpr(begin)(x, y)
        if any(True for _ in _marks(begun.jaxpr, mark)):
            raise errors.refuse(
                "corrections",
                "a gradient of records before the first round",
                "one that says so by `warm`",
                "it is a release of every client, which is counted then",
            )

    def advance(x: jax.Array, y: jax.Array, state: Any) -> Any:
        held = changed(data, x=x, y=y)
        new, report = run_round(marked, model, held, key, state, Execution(), lambda params, flat: flat)
        return new, (report.heard.uploads if by_record else ())

    _clean("in a round", advance, (x, y), (state,), mark)
    if by_record:
        _counted(algorithm, marked, data, model, (x, y), state, mark)


def _marked(algorithm: Algorithm, mark: str) -> Algorithm:
    if algorithm.upload.unit is None:
        return changed(algorithm, local=changed(algorithm.local, privatizer=Marked(mark=mark)))
    local = changed(algorithm.local, privatizer=Marked(mark=None))
    return changed(algorithm, local=local, upload=MarkedUpload(base=algorithm.upload, mark=mark))


@value
class Marked:
    """A privatizer whose gradient depends on the records, behind a mark if it is where they are noised."""

    mark: str | None = structure()

    def gradient(
        self, key: jax.Array, place: Place, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        seen = jnp.sum(records.x, dtype=jnp.float32) + jnp.sum(records.y, dtype=jnp.float32)
        flat = 0.0 * ravel(params)[0] + seen
        return flat if self.mark is None else checkpoint_name(flat, self.mark), StepReport(seen, seen, seen, seen)


@value
class MarkedUpload:
    """An upload whose released mean is marked."""

    base: Upload
    mark: str = structure()

    @property
    def unit(self) -> Any:
        return self.base.unit

    @property
    def extra(self) -> int:
        return self.base.extra

    def init(self) -> Any:
        return self.base.init()

    def message(self, key: jax.Array, update: jax.Array, sizes: Any, state: Any, sent: Sent) -> Any:
        return self.base.message(key, update, sizes, state, sent)

    def release(self, *arguments: Any) -> Any:
        """What it keeps for later rounds is marked for the project's own alone, which noise it by itself."""
        update, state = self.base.release(*arguments)
        if facts.of_the_project(self.base):
            state = jax.tree.map(lambda a: checkpoint_name(a, self.mark), state)
        return checkpoint_name(update, self.mark), state

    def noise_std(self, state: Any, reach: Any, round_index: jax.Array) -> Any:
        return self.base.noise_std(state, reach, round_index)


def _clean(when: str, function: Callable[..., Any], records: Any, others: Any, mark: str) -> Any:
    """Shapes of what the function returns (the state, where there are two), none of which may depend on records."""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*records, *others)
    count = len(jax.tree.leaves(records))
    inputs = ["" if i < count else None for i in range(len(traced.jaxpr.invars))]
    outputs = _reach(traced.jaxpr, inputs, mark)
    for (path, _), where in zip(jax.tree_util.tree_flatten_with_path(shapes)[0], outputs, strict=True):
        if where is not None:
            raise errors.refuse(
                "algorithm",
                f"records that reach {_named(path)} {when}{where}, past what is accounted for",
                "one in which records act through the privatized gradient (or the noised mean of updates) alone",
                "use that gradient only, or say by `leak` why there is no epsilon",
            )
    return shapes


def _named(path: Any) -> str:
    names = [str(getattr(entry, "name", getattr(entry, "idx", getattr(entry, "key", "")))) for entry in path]
    known = [name for name in names if name in ("params", "optimizer", "upload", "shared", "clients")]
    words = {
        "params": "the model",
        "optimizer": "the server's optimizer",
        "upload": "what the server keeps of uploads",
        "shared": "what the server keeps for local steps",
        "clients": "what clients keep",
    }
    return words[known[0]] if known else "a client's message"


# Where something that depends on records has come from: None if nothing does; else the place in the user's code at
# which it was last made, in words, "" if that is all the project's own.
Where = str | None


def _reach(jaxpr: Any, inputs: list[Where], mark: str) -> list[Where]:
    """Of every output of a program, whether and where it depends on inputs that depend on records."""
    known: dict[Any, Where] = dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        reads = [None if isinstance(v, core.Literal) else known.get(v) for v in equation.invars]
        if all(where is None for where in reads):
            continue
        known.update(zip(equation.outvars, _through(equation, reads, mark), strict=True))
    return [None if isinstance(v, core.Literal) else known.get(v) for v in jaxpr.outvars]


def _through(equation: Any, reads: list[Where], mark: str) -> list[Where]:
    name, params = equation.primitive.name, equation.params
    if name == "name" and params["name"] == mark:
        return [None] * len(equation.outvars)
    if name == "scan":
        fixed, carried = params["num_consts"], params["num_carry"]
        return _repeated(
            params["jaxpr"].jaxpr, reads[:fixed], reads[fixed : fixed + carried], reads[fixed + carried :], mark
        )
    if name == "while":
        asks, does = params["cond_nconsts"], params["body_nconsts"]
        rest = reads[asks + does :]
        ends = _repeated(params["body_jaxpr"].jaxpr, reads[asks : asks + does], rest, [], mark)
        told = _reach(params["cond_jaxpr"].jaxpr, [*reads[:asks], *ends], mark)[0]
        return ends if told is None else [told] * len(ends)
    if name == "cond":
        if reads[0] is not None:
            return [reads[0]] * len(equation.outvars)
        each = [_reach(branch.jaxpr, reads[1:], mark) for branch in params["branches"]]
        return [_any(wheres) for wheres in zip(*each, strict=True)]
    for inside in _programs(equation):
        if len(inside.invars) == len(reads) and len(inside.outvars) == len(equation.outvars):
            return _reach(inside, reads, mark)
    found = _where(equation) or _any(reads)
    return [found] * len(equation.outvars)


def _repeated(body: Any, fixed: list[Where], carried: list[Where], rows: list[Where], mark: str) -> list[Where]:
    """Of a loop: once around after another, until nothing new depends on records."""
    while True:
        made = _reach(body, [*fixed, *carried, *rows], mark)
        wider = [old if old is not None else new for old, new in zip(carried, made)]
        if wider == carried:
            return [*carried, *made[len(carried) :]]
        carried = wider


def _any(wheres: Any) -> Where:
    found = [where for where in wheres if where is not None]
    return max(found, key=len) if found else None


def _programs(equation: Any) -> Iterator[Any]:
    """The programs inside an equation."""
    for inside in jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda a: isinstance(a, core.ClosedJaxpr | core.Jaxpr)
    ):
        if isinstance(inside, core.ClosedJaxpr):
            yield inside.jaxpr
        elif isinstance(inside, core.Jaxpr):
            yield inside


def _where(equation: Any) -> str:
    trace = equation.source_info.traceback
    frames = [] if trace is None else [(f.file_name, f.line_num, f.function_name) for f in trace.frames]
    return program.place_of(frame for frame in frames if not frame[0].startswith(_PACKAGE))


class _Mark(NamedTuple):
    """A privatized gradient in a program."""

    times: float  # that it is made
    looped: bool
    shape: tuple[int, ...]


def _marks(jaxpr: Any, mark: str, times: float = 1, looped: bool = False) -> Iterator[_Mark]:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "name" and params["name"] == mark:
            yield _Mark(times, looped, equation.outvars[0].aval.shape)
        more = params["length"] if name == "scan" else np.inf if name == "while" else 1
        for inside in _programs(equation):
            yield from _marks(inside, mark, times * more, looped or name in ("scan", "while"))


def _counted(
    algorithm: Algorithm, marked: Algorithm, data: FederatedData, model: Model, records: Any, state: Any, mark: str
) -> None:
    """Refuse a client's round that makes more privatized gradients than are counted, or one in a loop of its own."""
    local, key = marked.local, run_key(0)

    def visit(x: jax.Array, y: jax.Array, state: Any) -> Any:
        held = jax.tree.map(jnp.asarray, changed(data, x=x, y=y))
        members = draw_cohort(marked.cohort, key, state.round, held.shares)
        extra = local.send(Memory(state.shared, state.clients), members)
        own, extra = jax.tree.map(lambda a: a[0], (state.clients, extra))
        received = Received(state.params, state.shared, own, extra)
        found = local.run(key, state.round, held.client(members.ids[0]), received, held, model)
        return found.update, found.terms, found.own

    steps = local.batches.count(local.steps, data.largest)
    allowed = steps + local.extra_gradients
    size = sum(tensor_sizes(state.params))
    found = list(_marks(jax.make_jaxpr(visit)(*records, state).jaxpr, mark))
    made = sum(one.times for one in found)
    if made > allowed:
        raise errors.refuse(
            "privatized gradients of a client's round",
            made,
            f"at most the {allowed} that are counted",
            "state the others as extra_gradients of the correction that asks for them",
        )
    if sum(one.looped for one in found) > 1 or any(one.shape != (size,) for one in found):
        raise errors.refuse(
            "privatized gradients",
            "some asked for in a loop or under vmap, with the same batch and noise",
            "asked for one by one outside the local steps",
            "call visit.gradient once for each of extra_gradients",
        )
