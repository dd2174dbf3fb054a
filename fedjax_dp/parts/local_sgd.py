"""Local steps of stochastic gradient descent, with corrections."""

import functools
import math
from collections.abc import Callable
from typing import Any

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
    Begun,
    ClientModels,
    Here,
    Phase,
    ReceivedModel,
    is_personal,
)
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.corrections import Correction, Floats, Memory, Setting, Visit
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.local_training import Beside, LocalResult, LocalTraining, Received, extreme_rates
from fedjax_dp.parts.noise import Place
from fedjax_dp.parts.personal_models import clean_refused
from fedjax_dp.parts.record_privacy import (
    Privatizer,
    multiplier_of,
    require_measured,
    variance_of,
)
from fedjax_dp.parts.walk import Walker, first_of, record_keys
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

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        return self.models.sent_tensors(model)

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

    def _rule_states(self, setting: Setting, models: Memory) -> Any:
        """Of the rule in each phase, before round 0."""
        start, unravel = ravel(setting.params)
        data, client = setting.data, setting.data.client(jnp.int32(0))
        own = jax.tree.map(lambda table: jnp.asarray(table[:1])[0], models.clients)
        look = functools.partial(data.mean_over_records, client)
        none, key = jnp.float32(0), jax.random.key(0, impl="threefry2x32")
        here = Here(start, models.server, own, setting.model, unravel, key, client, none, none, look)
        shapes = jax.eval_shape(lambda: self.models.begin(here).vectors)
        vectors = [start if shape.shape == start.shape else jnp.zeros(shape.shape) for shape in shapes]
        phases = self.models.phases(self.steps)
        return _kept([self.rule.transform().init(vectors[j]) for phase in phases for j in phase.moves])

    def _of_phase(self, kept: Any, number: int) -> tuple[Any, ...]:
        """The states of the rule in a phase, of those that a client keeps."""
        counts = [len(phase.moves) for phase in self.models.phases(self.steps)]
        states = (kept,) if sum(counts) == 1 else kept
        first = sum(counts[:number])
        return tuple(states[first : first + counts[number]])

    def send(self, memory: Memory, members: Members) -> tuple[Any, ...]:
        return tuple(correction.send(own, members) for correction, own in self._each(memory))

    def absorb(self, shared: Any, total: Any, num_clients: int) -> tuple[Any, ...]:
        telling: tuple[Any, ...] = (*self.corrections, *([self.models] if self.models.tells else []))
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
        visit, models = self._visit(key, round_index, client, received, data, model, spread), self.models
        here = visit.here
        begun = models.begin(here)
        vectors = tuple(map(spread, begun.vectors))
        # The way is added up by itself: in the rounding of a large parameter a small step's noise would be lost.
        ways = tuple(spread(jnp.zeros_like(vector)) for vector in vectors)
        held = list(zip(self.corrections, received.shared, received.own, received.extra))
        memory, rules, main = begun.memory, [], None
        for number, phase in enumerate(models.phases(self.steps)):
            shared = any(ask.series == SHARED for ask in phase.asks)
            old = self._of_phase(received.own[-1], number) if self.rule.keep else None
            more = self.extra_gradients if shared else 0
            walk = visit.walk(number, phase, vectors, ways, memory, held if shared else [], old, more)
            ways, memory = walk.ways, walk.memory
            main = (walk, phase.moves[0]) if shared else main
            rules += walk.rule
        assert main is not None
        (walk, moves), terms, own_rows = main, [], []

        def look(see: Callable[..., Any], params: jax.Array) -> Any:
            return see(role_key(key, "look"), here.unravel(params), client, data, model)

        for correction, server, own, extra in held:
            start, way = first_of(vectors[moves]), first_of(ways[moves])
            seen = Visit(start, way, server, own, extra, walk.drift, walk.again, look)
            term, row = correction.finish(seen)
            terms.append(term)
            own_rows.append(row)
        end = models.finish(here, Begun(vectors, begun.memory), ways, memory)
        terms += [end.terms] if models.tells else []
        own_rows += [end.own] if models.keeps else []
        own_rows += [_kept(rules)] if self.rule.keep else []
        return LocalResult(end.update, tuple(terms), tuple(own_rows), walk.report)

    def model_of(
        self,
        key: jax.Array,
        round_index: jax.Array,
        client: Client,
        received: Received,
        data: FederatedData,
        model: Model,
    ) -> Any:
        # Steps after the last round are a run of their own, whose schedule begins anew.
        visit = self._visit(key, jnp.zeros_like(round_index), client, received, data, model, lambda flat: flat)
        whole = self.models.personal(visit.here)
        if (phase := self.models.final) is not None and phase.steps:
            whole = whole + visit.walk(0, phase, (whole,), (jnp.zeros_like(whole),), (), [], None, 0).ways[0]
        return visit.here.unravel(whole)

    def _visit(
        self,
        key: jax.Array,
        round_index: jax.Array,
        client: Client,
        received: Received,
        data: FederatedData,
        model: Model,
        spread: Callable[[jax.Array], jax.Array],
    ) -> Walker:
        """A client with all that its steps need."""
        start, unravel = ravel(received.params)
        count = len(self.corrections)
        here = Here(
            spread(start),
            received.shared[count] if self.models.tells else (),
            received.own[count] if self.models.keeps else (),
            model,
            unravel,
            role_key(key, "models"),
            client,
            data.shares[client.id],
            multiplier_of(self.privatizer, client.id),
            functools.partial(data.mean_over_records, client),
        )
        rates = functools.partial(self._rates, round_index)
        return Walker(
            key, round_index, client, data, here, spread, self.privatizer, self.batches, self.rule, self.models, rates
        )

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
            records = Records(x, y, batch.mask, batch.divisor, record_keys(role_key(key, "model"), index, batch))
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


def _kept(states: list[Any]) -> Any:
    """The states of the rule as a client keeps them: the only one, or one for each vector that each phase moves."""
    return states[0] if len(states) == 1 else tuple(states)


def _event(phase: Phase, ask: Ask, local: LocalTraining, noise: float, records: int, rates: np.ndarray) -> Event:
    """What the gradients of a series release in a round."""
    count = local.batches.count(phase.steps, records)
    louder = noise if ask.noise is None else noise * float(np.float32(ask.noise))
    return local.privatizer.event(0.0 if ask.clean else louder, local.batches, records, count, rates)
