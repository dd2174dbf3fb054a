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
from fedjax_dp.parts.contexts import InitContext, LocalResult, LocalState, Received, StepContext
from fedjax_dp.parts.corrections import Correction, Floats, Visit
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.local_training import AdditionalRelease, LocalTraining, extreme_rates
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
    def no_epsilon_reason(self) -> str | None:
        return next(
            (correction.no_epsilon_reason for correction in self.corrections if correction.no_epsilon_reason), None
        )

    @property
    def has_client_state(self) -> bool:
        return (
            self.rule.keep
            or self.models.has_client_state
            or any(correction.has_client_state for correction in self.corrections)
        )

    @property
    def sends_auxiliary(self) -> bool:
        return self.models.sends_auxiliary or any(correction.has_client_state for correction in self.corrections)

    @property
    def state_affects_messages(self) -> bool:
        return (
            self.rule.keep
            or self.models.state_affects_messages
            or any(correction.has_client_state for correction in self.corrections)
        )

    @property
    def personal(self) -> bool:
        return is_personal(self.models)

    @property
    def sends_steps(self) -> bool:
        return all(ask.sent for phase in self.models.phases(self.steps) for ask in phase.asks if ask.series == SHARED)

    @property
    def additional_releases(self) -> tuple[AdditionalRelease, ...]:
        rounds = [(phase, False) for phase in self.models.phases(self.steps)]
        every = rounds + ([] if self.models.final is None else [(self.models.final, True)])
        found = [
            AdditionalRelease(
                functools.partial(_event, phase, ask), ask.sent, not ask.clean, ask.series, phase.steps, final=final
            )
            for phase, final in every
            for ask in phase.asks
            if final or ask.series != SHARED or ask.clean
        ]
        choices = self.models.choices
        return (*found, *(() if choices is None else (choices.additional_release,)))

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        return self.models.sent_tensors(model)

    @property
    def reads_records_outside_round(self) -> bool:
        final = self.models.final is not None
        return final or any(
            correction.reads_records_outside_round or correction.initial_release for correction in self.corrections
        )

    @property
    def separable_state(self) -> bool:
        return all(correction.separable_state for correction in self.corrections)

    @property
    def initial_release(self) -> bool:
        return any(correction.initial_release for correction in self.corrections)

    @property
    def extra_gradients(self) -> int:
        return sum(correction.extra_gradients for correction in self.corrections)

    @property
    def is_sgd(self) -> bool:
        return self.rule.is_sgd

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        corrections = (("correction", correction) for correction in self.corrections)
        return ("local rule", self.rule), ("client models", self.models), *corrections

    def init(self, run: InitContext) -> LocalState:
        @functools.cache  # one release, however many corrections begin with it
        def initial_gradients() -> jax.Array:
            released: jax.Array = run.look(self.mean_gradient)
            return released

        begun = [correction.init(run._replace(initial_gradients=initial_gradients)) for correction in self.corrections]
        servers, tables = [memory.server for memory in begun], [memory.clients for memory in begun]
        models = self.models.init(run)
        if self.models.sends_auxiliary:
            servers.append(models.server)
        if self.models.has_client_state:
            tables.append(models.clients)
        if self.rule.keep:
            states = self._rule_states(run, models)
            every = run.data.num_clients
            tables.append(jax.tree.map(lambda a: jnp.broadcast_to(a, (every, *jnp.shape(a))), states))
        return LocalState(tuple(servers), tuple(tables))

    def _rule_states(self, run: InitContext, models: LocalState) -> Any:
        """Of the rule in each phase, before round 0."""
        start, unravel = ravel(run.params)
        data, client = run.data, run.data.client(jnp.int32(0))
        own = jax.tree.map(lambda table: jnp.asarray(table[:1])[0], models.clients)
        look = functools.partial(data.mean_over_records, client)
        none, key = jnp.float32(0), jax.random.key(0, impl="threefry2x32")
        here = Here(start, models.server, own, run.model, unravel, key, client, none, none, look)
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

    def send(self, memory: LocalState, members: Members) -> tuple[Any, ...]:
        return tuple(correction.send(own, members) for correction, own in self._each(memory))

    def absorb(self, shared: Any, total: Any, num_clients: int) -> tuple[Any, ...]:
        telling: tuple[Any, ...] = (*self.corrections, *([self.models] if self.models.sends_auxiliary else []))
        each = zip(telling, shared, total, strict=True)
        return tuple(part.absorb(server, term, num_clients) for part, server, term in each)

    def exchange(
        self, memory: LocalState, look: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> LocalState:
        after = [correction.exchange(own, look, members, upcoming) for correction, own in self._each(memory)]
        tables = (*(own.clients for own in after), *memory.clients[len(after) :])
        return LocalState((*(own.server for own in after), *memory.server[len(after) :]), tables)

    def _each(self, memory: LocalState) -> list[tuple[Correction, LocalState]]:
        """The corrections with what belongs to them."""
        pairs = zip(memory.server, memory.clients)  # what belongs to models and rule comes after theirs
        return list(zip(self.corrections, (LocalState(*pair) for pair in pairs)))

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
        held = list(zip(self.corrections, received.server_state, received.client_state, received.extra))
        memory, rules, main = begun.memory, [], None
        for number, phase in enumerate(models.phases(self.steps)):
            shared = any(ask.series == SHARED for ask in phase.asks)
            old = self._of_phase(received.client_state[-1], number) if self.rule.keep else None
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
        terms += [end.terms] if models.sends_auxiliary else []
        own_rows += [end.own] if models.has_client_state else []
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
            received.server_state[count] if self.models.sends_auxiliary else (),
            received.client_state[count] if self.models.has_client_state else (),
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
        if any(ask.clean and (ask.sent or models.state_affects_messages) for ask in asks):
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
                at = StepContext(client, round_index, step, rate, drift, step == last)
                return rate**2 * variance_of(self.privatizer, at, divisor)

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
            at = StepContext(client.id, jnp.int32(-1), index, rates[index], rates.sum(), index == rates.size - 1)
            records = Records(x, y, batch.mask, batch.divisor, record_keys(role_key(key, "model"), index, batch))
            return total + self.privatizer.gradient(role_key(key, "noise"), at, model, params, records)[0], None

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
        if any(correction.even for correction in self.corrections) and not (self.rule.is_sgd and not self.per_step):
            raise errors.refuse(
                "local rule",
                "another",
                "sgd with one rate per round for control variates",
                "their change is the update divided by the learning rate",
            )
        if (self.extra_gradients or self.initial_release) and not alike:
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
            if not (self.rule.is_sgd and of_the_project(self.rule) and alike):
                raise errors.refuse("local rule", "another", "sgd with a fixed number of steps for noise on the upload")
            pull = float(sum(c.pull for c in self.corrections))
            if pull and not 0 <= most * pull <= 2:
                raise errors.refuse(
                    "l2",
                    "so strong that steps drive models apart",
                    "at most 1 / learning_rate for noisy uploads",
                    "what the steps can move would not be bounded by their clipped gradients",
                )
            if self.extra_gradients or self.initial_release:
                raise errors.refuse("controls", "gradients of their own", "read off the noised upload", "use update")


def _kept(states: list[Any]) -> Any:
    """The states of the rule as a client keeps them: the only one, or one for each vector that each phase moves."""
    return states[0] if len(states) == 1 else tuple(states)


def _event(phase: Phase, ask: Ask, local: LocalTraining, noise: float, records: int, rates: np.ndarray) -> Event:
    """What the gradients of a series release in a round."""
    count = local.batches.count(phase.steps, records)
    louder = noise if ask.noise is None else noise * float(np.float32(ask.noise))
    return local.privatizer.event(0.0 if ask.clean else louder, local.batches, records, count, rates)
