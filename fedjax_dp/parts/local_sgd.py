"""Local steps of stochastic gradient descent, with corrections."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors, schedules
from fedjax_dp.accounting.events import Event
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batch, Batches
from fedjax_dp.parts.client_models import (
    SHARED,
    Ask,
    At,
    Begun,
    ClientModels,
    Here,
    Phase,
    Point,
    ReceivedModel,
    is_personal,
)
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.corrections import Correction, Floats, Memory, Setting, Step, Visit
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.local_training import Beside, LocalResult, LocalTraining, Received, extreme_rates
from fedjax_dp.parts.noise import Place
from fedjax_dp.parts.personal_models import clean_refused
from fedjax_dp.parts.record_privacy import (
    NonPrivate,
    Privatizer,
    louder,
    multiplier_of,
    require_measured,
    variance_of,
)
from fedjax_dp.parts.transformations import informed
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel, structure, value


@value
class LocalSgd(LocalTraining):
    """`steps` (tau) steps, or epochs for `EpochBatches`: w <- w - rate * rule(privatized gradient + corrections).

    schedule  factor on the rate in round t = 0, 1, ..., or, `per_step`, in the run's local step t = 0, 1, ...
              (dp_fedavg_output).
    models    which models a client has: where its steps begin, what it sends of them and what it keeps.
    A client keeps what each correction keeps, in their order, then what its models keep, and then the states of the
    rule in each phase where they stay with it.
    """

    learning_rate: float
    privatizer: Privatizer
    batches: Batches
    corrections: tuple[Correction, ...] = ()
    rule: LocalRule = LocalRule(hyperparameters={})
    models: ClientModels = ReceivedModel()
    steps: int = structure(default=1)
    schedule: Callable[[jax.Array], jax.Array] = structure(default=schedules.constant)
    per_step: bool = structure(default=False)

    equation = r"w \leftarrow w - \eta_t\, d"

    def rates(self, round_index: Any, largest: int) -> jax.Array:
        """Learning rates of the steps of a round `(tau,)`; `largest`: records of the largest client."""
        return self._rates(round_index, self.batches.count(self.steps, largest))

    def _rates(self, round_index: Any, tau: int) -> jax.Array:
        steps = jnp.arange(tau)
        at = round_index * tau + steps if self.per_step else jnp.broadcast_to(round_index, (tau,))
        return self.learning_rate * self.schedule(at)

    @property
    def leak(self) -> str | None:
        return next((correction.leak for correction in self.corrections if correction.leak), None)

    @property
    def keeps(self) -> bool:
        return self.rule.keep or self.models.keeps or any(correction.keeps for correction in self.corrections)

    @property
    def tells(self) -> bool:
        return self.models.tells or any(correction.keeps for correction in self.corrections)

    @property
    def returns(self) -> bool:
        return self.rule.keep or self.models.returns or any(correction.keeps for correction in self.corrections)

    @property
    def personal(self) -> bool:
        return is_personal(self.models)

    @property
    def sends_steps(self) -> bool:
        return all(ask.sent for phase in self.models.phases(self.steps) for ask in phase.asks if ask.series == SHARED)

    @property
    def beside(self) -> tuple[Beside, ...]:
        rounds = [(phase, False) for phase in self.models.phases(self.steps)]
        every = rounds + ([] if self.models.final is None else [(self.models.final, True)])
        found = [
            Beside(functools.partial(_event, phase, ask), ask.sent, ask.clean, final=final)
            for phase, final in every
            for ask in phase.asks
            if final or ask.series != SHARED or ask.clean
        ]
        choices = self.models.choices
        return (*found, *(() if choices is None else (choices.beside,)))

    def sent(self, model: Model) -> tuple[bool, ...] | None:
        return self.models.sent(model)

    @property
    def looks(self) -> bool:
        final = self.models.final is not None
        return final or any(correction.looks or correction.warm for correction in self.corrections)

    @property
    def apart(self) -> bool:
        return all(correction.apart for correction in self.corrections)

    @property
    def warm(self) -> bool:
        return any(correction.warm for correction in self.corrections)

    @property
    def extra_gradients(self) -> int:
        return sum(correction.extra_gradients for correction in self.corrections)

    @property
    def plain(self) -> bool:
        return self.rule.plain

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        corrections = (("correction", correction) for correction in self.corrections)
        return ("local rule", self.rule), ("client models", self.models), *corrections

    def init(self, setting: Setting) -> Memory:
        @functools.cache  # one release, however many corrections begin with it
        def warm() -> jax.Array:
            released: jax.Array = setting.look(self.mean_gradient)
            return released

        begun = [correction.init(setting._replace(warm=warm)) for correction in self.corrections]
        servers, tables = [memory.server for memory in begun], [memory.clients for memory in begun]
        models = self.models.init(setting)
        if self.models.tells:
            servers.append(models.server)
        if self.models.keeps:
            tables.append(models.clients)
        if self.rule.keep:
            states = self._rule_states(setting, models)
            every = setting.data.num_clients
            tables.append(jax.tree.map(lambda a: jnp.broadcast_to(a, (every, *jnp.shape(a))), states))
        return Memory(tuple(servers), tuple(tables))

    def _rule_states(self, setting: Setting, models: Memory) -> tuple[Any, ...]:
        """Of the rule in each phase, before round 0."""
        start, unravel = ravel(setting.params)
        data, client = setting.data, setting.data.client(jnp.int32(0))
        own = jax.tree.map(lambda table: jnp.asarray(table[:1])[0], models.clients)
        look = functools.partial(data.mean_over_records, client)
        none, key = jnp.float32(0), jax.random.key(0, impl="threefry2x32")
        here = Here(start, models.server, own, setting.model, unravel, key, client, none, none, look)
        shapes = jax.eval_shape(lambda: self.models.begin(here).vectors)
        vectors = [start if shape.size == start.size else jnp.zeros(shape.size) for shape in shapes]
        return tuple(self.rule.transform().init(vectors[phase.moves]) for phase in self.models.phases(self.steps))

    def send(self, memory: Memory, members: Members) -> tuple[Any, ...]:
        return tuple(correction.send(own, members) for correction, own in self._each(memory))

    def absorb(self, shared: Any, total: Any, num_clients: int) -> tuple[Any, ...]:
        telling = (*self.corrections, *([self.models] if self.models.tells else []))
        each = zip(telling, shared, total, strict=True)
        return tuple(part.absorb(server, term, num_clients) for part, server, term in each)

    def exchange(
        self, memory: Memory, look: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> Memory:
        after = [correction.exchange(own, look, members, upcoming) for correction, own in self._each(memory)]
        tables = (*(own.clients for own in after), *memory.clients[len(after) :])
        return Memory((*(own.server for own in after), *memory.server[len(after) :]), tables)

    def _each(self, memory: Memory) -> list[tuple[Correction, Memory]]:
        """The corrections with what belongs to them."""
        pairs = zip(memory.server, memory.clients)  # what belongs to models and rule comes after theirs
        return list(zip(self.corrections, (Memory(*pair) for pair in pairs)))

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        each = [correction.floats(size, features, members, num_clients) for correction in self.corrections]
        return Floats(*(sum(numbers) for numbers in zip(*each, self.models.floats(size))))

    def run(
        self,
        key: jax.Array,
        round_index: jax.Array,
        client: Client,
        received: Received,
        data: FederatedData,
        model: Model,
        spread: Callable[[jax.Array], jax.Array] = lambda flat: flat,
    ) -> LocalResult:
        """One client's round; `key` belongs to this client and round alone.

        Parameters are one flat vector here, so that noise, corrections and step fuse into a single loop; `spread` says
        which device computes which part of it.
        """
        at = self._stand(key, round_index, client, received, data, model, spread)
        here, count = at.here, len(self.corrections)
        begun = self.models.begin(here)
        vectors = tuple(map(spread, begun.vectors))
        # The way is added up by itself: in the rounding of a large parameter a small step's noise would be lost.
        ways = [spread(jnp.zeros_like(vector)) for vector in vectors]
        held = list(zip(self.corrections, received.shared, received.own, received.extra))
        memory, kept, main = begun.memory, [], None
        for number, phase in enumerate(self.models.phases(self.steps)):
            shared = any(ask.series == SHARED for ask in phase.asks)
            old = received.own[-1][number] if self.rule.keep else None
            walk = self._walk(at, number, phase, vectors, ways, memory, held if shared else [], old)
            ways[phase.moves], memory = walk.way, walk.memory
            kept.append(walk.rule)
            main = (walk, phase.moves) if shared else main
        assert main is not None
        (walk, moves), terms, own_rows = main, [], []

        def look(see: Callable[..., Any], params: jax.Array) -> Any:
            return see(role_key(key, "look"), here.unravel(params), client, data, model)

        for correction, server, own, extra in held:
            visit = Visit(vectors[moves], ways[moves], server, own, extra, walk.drift, walk.again, look)
            term, row = correction.finish(visit)
            terms.append(term)
            own_rows.append(row)
        end = self.models.finish(here, Begun(vectors, begun.memory), tuple(ways), memory)
        if self.models.tells:
            terms.append(end.terms)
        if self.models.keeps:
            own_rows.append(end.own)
        if self.rule.keep:
            own_rows.append(tuple(kept))
        assert len(held) == count
        return LocalResult(end.update, tuple(terms), tuple(own_rows), walk.report)

    def model_of(
        self, key: jax.Array, round_index: jax.Array, client: Client, received: Received, data: FederatedData, model: Model
    ) -> Any:
        # Steps after the last round are a run of their own, whose schedule begins anew.
        at = self._stand(key, jnp.zeros_like(round_index), client, received, data, model, lambda flat: flat)
        whole = self.models.personal(at.here)
        if (phase := self.models.final) is not None and phase.steps:
            whole = whole + self._walk(at, 0, phase, (whole,), [jnp.zeros_like(whole)], (), [], None).way
        return at.here.unravel(whole)

    def _stand(
        self,
        key: jax.Array,
        round_index: jax.Array,
        client: Client,
        received: Received,
        data: FederatedData,
        model: Model,
        spread: Callable[[jax.Array], jax.Array],
    ) -> "_Stand":
        """A client with all that its round needs."""
        start, unravel = ravel(received.params)
        rows, count = iter(received.own[len(self.corrections) :]), len(self.corrections)
        here = Here(
            spread(start),
            received.shared[count] if self.models.tells else (),
            next(rows) if self.models.keeps else (),
            model,
            unravel,
            role_key(key, "models"),
            client,
            data.shares[client.id],
            multiplier_of(self.privatizer, client.id),
            functools.partial(data.mean_over_records, client),
        )
        return _Stand(key, round_index, client, data, here, spread)

    def _walk(
        self,
        at: "_Stand",
        number: int,
        phase: Phase,
        vectors: tuple[jax.Array, ...],
        ways: list[jax.Array],
        memory: Any,
        held: list[tuple[Any, ...]],
        old: Any,
    ) -> "_Walk":
        """The steps of a phase, from the vectors and their ways so far; `held`: the corrections that join."""
        _, round_index, client, data, here, spread = at
        more = self.extra_gradients if held else 0
        rates = self._rates(round_index, self.batches.count(phase.steps, data.largest))
        rates = rates if phase.speed is None else rates * phase.speed
        tau, moves = rates.size, phase.moves
        draws = [self._drawn(at, ask, tau, more) for ask in phase.asks]
        live = draws[0].batches.live
        drift = jnp.sum(jnp.abs(rates) * live[:tau])
        last = tau - 1 - jnp.argmax(live[:tau][::-1])  # of the steps that are taken
        start = vectors[moves]
        rule = informed(self.rule.transform())
        began = rule.init(start) if old is None else old

        def place(index: Any, series: int) -> Place:
            rate = rates[jnp.minimum(index, tau - 1)]
            return Place(client.id, round_index, index, rate, drift, index == last, series)

        # Whatever all steps can have at once stands before the loop: on an accelerator each of these is a launch.
        def looked_up(batch: Batch) -> _Drawn:
            rows = data.at(client, batch.positions)
            return _Drawn(batch, rows, data.targets(rows))

        def privatized(
            ask: Ask, draw: "_Draw", point: Point, index: Any, now: _Drawn
        ) -> tuple[jax.Array, StepReport, Records]:
            batch = now.batch
            keys = _record_keys(draw.model_key, index, batch)
            records = Records(data.features(data.x[now.rows]), now.y, batch.mask, batch.divisor, keys)
            privatizer = self._privatizer(ask)
            gradient, report = privatizer.gradient(
                draw.noise_key, place(index, ask.series), point.model, point.params, records
            )
            return gradient, report, records

        @jax.named_scope("local_step")
        def step(carry: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, None]:
            way, kept, memory, told = carry
            params = spread(start + way)
            index, rate, now = inputs
            batch = now[0].batch
            others = (params if j == moves else vector + done for j, (vector, done) in enumerate(zip(vectors, ways)))
            stand = At(number, rate, index == 0, tuple(others))
            points = self.models.points(stand, here, memory)
            found = [privatized(*given, index, one) for *given, one in zip(phase.asks, draws, points, now)]
            gradient, new = self.models.gradient(tuple(made for made, _, _ in found), stand, here, memory)
            for correction, server, own, extra in held:
                seen = Step(params, start, server, own, extra, found[0][2], here.model, here.unravel)
                gradient = correction.gradient(gradient, seen)

            def variance() -> jax.Array:
                return variance_of(self._privatizer(phase.asks[0]), place(index, 0), batch.divisor)

            direction, after = rule.update(spread(gradient), kept, params, variance=variance)
            kept, memory = jax.tree.map(
                lambda new, old: jnp.where(batch.live > 0, new, old), (after, new), (kept, memory)
            )
            told = told + jnp.stack(found[0][1]) * batch.live  # one number after another would be as many launches
            return (spread(way - rate * batch.live * direction), kept, memory, told), None

        inner = tuple(looked_up(jax.tree.map(lambda a: a[:tau], draw.batches)) for draw in draws)
        indices = jnp.arange(tau, dtype=jnp.uint32)
        nothing = jnp.zeros(len(StepReport._fields))
        (way, kept, memory, told), _ = lax.scan(step, (ways[moves], began, memory, nothing), (indices, rates, inner))

        asked: list[int] = []  # a batch and a noise of its own for each gradient that corrections ask for

        def again(params: jax.Array) -> jax.Array:
            if len(asked) >= more:
                raise errors.refuse(
                    "corrections",
                    f"{len(asked) + 1} calls of visit.gradient",
                    f"at most the {more} that they state",
                    "state them as extra_gradients: each is one more release, which is counted",
                )
            asked.append(next_one := tau + len(asked))
            batch = jax.tree.map(lambda a: a[next_one], draws[0].batches)
            point = Point(here.model, here.unravel(params))
            return privatized(phase.asks[0], draws[0], point, jnp.uint32(next_one), looked_up(batch))[0]

        report = StepReport(*(told / jnp.maximum(live[:tau].sum(), 1.0)))
        return _Walk(way, memory, kept, report, drift, again)

    def _drawn(self, at: "_Stand", ask: Ask, tau: int, more: int) -> "_Draw":
        """The batches of a series, and its keys."""
        key = at.key if ask.series == SHARED else role_key(at.key, f"series {ask.series}")
        with jax.named_scope("batch_draw"):
            batches = self.batches.sample(role_key(key, "batch"), at.client.size, tau + more, at.data.largest)
        batches = batches._replace(live=(batches.live > 0).astype(jnp.float32))
        return _Draw(batches, role_key(key, "noise"), role_key(key, "model"))

    def _privatizer(self, ask: Ask) -> Privatizer:
        """Of the gradients of a series."""
        if ask.clean:
            return NonPrivate()
        found: Privatizer = self.privatizer if ask.noise is None else louder(self.privatizer, ask.noise)
        return found

    def _check_models(self, sizes: np.ndarray, model: Model | None) -> None:
        models = self.models
        models.check(model, sizes)
        asks = [ask for phase in models.phases(self.steps) for ask in phase.asks]
        if any(ask.clean and (ask.sent or models.returns) for ask in asks):
            raise clean_refused(f"gradients of {type(models).__name__} that act on updates")
        if self.rule.corrects and len(asks) > 1:
            remedy = "use a rule that takes nothing off, such as adam"
            raise errors.refuse("local rule", "one that takes noise off", "used with one gradient in a step", remedy)
        if self.privatizer.on_upload and is_personal(models):
            remedy = "noise the gradients instead, as dpnfl does"
            raise errors.refuse("what clients keep", "a model", "nothing under noise on the upload", remedy)

    def noise_variance(self, round_index: jax.Array, data: FederatedData) -> jax.Array:
        """Of each coordinate of the noise that the gradients of a round bring into a client's update `(num_clients,)`.

        sum of rate^2 Phi over its steps, for plain ones: what a step's noise does to later gradients is not noise.
        """
        rates = self.rates(round_index, data.largest)
        steps = jnp.arange(rates.size, dtype=jnp.uint32)

        def one(client: jax.Array, records: jax.Array) -> jax.Array:
            # Of the draw only what does not depend on the key is used, and so computed.
            batches = self.batches.sample(jax.random.key(0, impl="threefry2x32"), records, rates.size, data.largest)
            live = batches.live > 0
            drift = jnp.sum(jnp.abs(rates) * live)
            last = rates.size - 1 - jnp.argmax(live[::-1])

            def of(step: jax.Array, rate: jax.Array, divisor: jax.Array) -> jax.Array:
                place = Place(client, round_index, step, rate, drift, step == last)
                return rate**2 * variance_of(self.privatizer, place, divisor)

            return jnp.sum(jnp.where(live, jax.vmap(of)(steps, rates, batches.divisor), 0.0))

        return jax.vmap(one)(jnp.arange(data.num_clients, dtype=jnp.int32), jnp.asarray(data.sizes))

    def mean_gradient(
        self, key: jax.Array, params: Any, client: Client, data: FederatedData, model: Model
    ) -> jax.Array:
        """Mean of tau privatized gradients at fixed parameters, flat; what a warm start releases. Round -1."""
        rates = self.rates(jnp.int32(0), data.largest)
        batches = self.batches.sample(role_key(key, "batch"), client.size, rates.size, data.largest)

        def step(total: jax.Array, inputs: tuple[jax.Array, Batch]) -> tuple[jax.Array, None]:
            index, batch = inputs
            x, y = data.gather(client, batch.positions)
            place = Place(client.id, jnp.int32(-1), index, rates[index], rates.sum(), index == rates.size - 1)
            records = Records(x, y, batch.mask, batch.divisor, _record_keys(role_key(key, "model"), index, batch))
            return total + self.privatizer.gradient(role_key(key, "noise"), place, model, params, records)[0], None

        indices = jnp.arange(rates.size, dtype=jnp.uint32)
        return lax.scan(step, jnp.zeros(ravel(params)[0].shape), (indices, batches))[0] / rates.size

    def check(self, sizes: np.ndarray, model: Model | None, rounds: int) -> None:
        """Refuse what cannot run for so many rounds on clients with these numbers of records."""
        errors.require_positive("learning_rate", self.learning_rate)
        self.rule.check()
        if self.rule.corrects:
            require_measured(self.privatizer)
        for correction in self.corrections:
            correction.check(model, sizes)
        self._check_models(sizes, model)
        alike = self.batches.even
        if any(correction.even for correction in self.corrections) and not (self.rule.plain and not self.per_step):
            raise errors.refuse(
                "local rule",
                "another",
                "sgd with one rate per round for control variates",
                "their change is the update divided by the learning rate",
            )
        if (self.extra_gradients or self.warm) and not alike:
            raise errors.refuse("batches", "epochs", "of equal number for every client", "use without-replacement")
        if self.privatizer.on_upload:
            least, most = extreme_rates(self, int(sizes.max()), rounds)
            if not 0 < least <= most < math.inf:
                raise errors.refuse(
                    "schedule",
                    f"rates from {least:g} to {most:g}",
                    "one of positive rates for noise on the upload",
                    "what the steps can move is counted in them",
                )
            if not (self.rule.plain and of_the_project(self.rule) and alike):
                raise errors.refuse("local rule", "another", "sgd with a fixed number of steps for noise on the upload")
            pull = float(sum(c.pull for c in self.corrections))
            if pull and not 0 <= most * pull <= 2:
                raise errors.refuse(
                    "l2",
                    "so strong that steps drive models apart",
                    "at most 1 / learning_rate for noisy uploads",
                    "what the steps can move would not be bounded by their clipped gradients",
                )
            if self.extra_gradients or self.warm:
                raise errors.refuse("controls", "gradients of their own", "read off the noised upload", "use update")


def _event(
    phase: Phase, ask: Ask, local: LocalTraining, noise: float, records: int, rates: np.ndarray
) -> Event:
    """What the gradients of a series release in a round."""
    count = local.batches.count(phase.steps, records)
    louder = noise if ask.noise is None else noise * float(np.float32(ask.noise))
    return local.privatizer.event(0.0 if ask.clean else louder, local.batches, records, count, rates)


class _Stand(NamedTuple):
    """A client at the beginning of its round."""

    key: jax.Array
    round_index: jax.Array
    client: Client
    data: FederatedData
    here: Here
    spread: Callable[[jax.Array], jax.Array]


class _Draw(NamedTuple):
    """What is drawn for a series of gradients."""

    batches: Batch
    noise_key: jax.Array
    model_key: jax.Array


class _Walk(NamedTuple):
    """What the steps of a phase came to."""

    way: jax.Array  # of the vector that they move
    memory: Any
    rule: Any  # the rule's state
    report: StepReport
    drift: jax.Array
    again: Callable[[jax.Array], jax.Array]


class _Drawn(NamedTuple):
    """A round's batches, and what of their records all steps can look up at once."""

    batch: Batch
    rows: jax.Array  # of x and y (steps, rows)
    y: Any


def _record_keys(key: jax.Array, step: jax.Array, batch: Batch) -> jax.Array:
    """A key for each record of a batch in this step `(records,)`; of those that no model uses, nothing is computed."""
    step_key = jax.random.fold_in(key, step)
    return jax.vmap(jax.random.fold_in, (None, 0))(step_key, batch.positions)
