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
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batch, Batches
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.corrections import Correction, Floats, Memory, Setting, Step, Visit
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.local_training import LocalResult, LocalTraining, Received, extreme_rates
from fedjax_dp.parts.noise import Place
from fedjax_dp.parts.record_privacy import Privatizer, require_measured, variance_of
from fedjax_dp.parts.transformations import informed
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel, structure, value


@value
class LocalSgd(LocalTraining):
    """`steps` (tau) steps, or epochs for `EpochBatches`: w <- w - rate * rule(privatized gradient + corrections).

    schedule  factor on the rate in round t = 0, 1, ..., or, `per_step`, in the run's local step t = 0, 1, ...
              (dp_fedavg_output).
    A client keeps what each correction keeps, in their order, and then the state of the rule where that stays with it.
    """

    learning_rate: float
    privatizer: Privatizer
    batches: Batches
    corrections: tuple[Correction, ...] = ()
    rule: LocalRule = LocalRule(hyperparameters={})
    steps: int = structure(default=1)
    schedule: Callable[[jax.Array], jax.Array] = structure(default=schedules.constant)
    per_step: bool = structure(default=False)

    equation = r"w \leftarrow w - \eta_t\, d"

    def rates(self, round_index: Any, largest: int) -> jax.Array:
        """Learning rates of the steps of a round `(tau,)`; `largest`: records of the largest client."""
        tau = self.batches.count(self.steps, largest)
        steps = jnp.arange(tau)
        at = round_index * tau + steps if self.per_step else jnp.broadcast_to(round_index, (tau,))
        return self.learning_rate * self.schedule(at)

    @property
    def leak(self) -> str | None:
        return next((correction.leak for correction in self.corrections if correction.leak), None)

    @property
    def keeps(self) -> bool:
        return self.rule.keep or any(correction.keeps for correction in self.corrections)

    @property
    def looks(self) -> bool:
        return any(correction.looks or correction.warm for correction in self.corrections)

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
        return ("local rule", self.rule), *(("correction", correction) for correction in self.corrections)

    def init(self, setting: Setting) -> Memory:
        @functools.cache  # one release, however many corrections begin with it
        def warm() -> jax.Array:
            released: jax.Array = setting.look(self.mean_gradient)
            return released

        begun = [correction.init(setting._replace(warm=warm)) for correction in self.corrections]
        tables = [memory.clients for memory in begun]
        if self.rule.keep:
            state = self.rule.transform().init(ravel(setting.params)[0])
            every = setting.data.num_clients
            tables.append(jax.tree.map(lambda a: jnp.broadcast_to(a, (every, *jnp.shape(a))), state))
        return Memory(tuple(memory.server for memory in begun), tuple(tables))

    def send(self, memory: Memory, members: Members) -> tuple[Any, ...]:
        return tuple(correction.send(own, members) for correction, own in self._each(memory))

    def absorb(self, shared: Any, total: Any, num_clients: int) -> tuple[Any, ...]:
        each = zip(self.corrections, shared, total, strict=True)
        return tuple(correction.absorb(server, term, num_clients) for correction, server, term in each)

    def exchange(
        self, memory: Memory, look: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> Memory:
        after = [correction.exchange(own, look, members, upcoming) for correction, own in self._each(memory)]
        tables = (*(own.clients for own in after), *memory.clients[len(after) :])
        return Memory(tuple(own.server for own in after), tables)

    def _each(self, memory: Memory) -> list[tuple[Correction, Memory]]:
        """The corrections with what belongs to them."""
        pairs = zip(memory.server, memory.clients)  # the rule's table comes after theirs
        return list(zip(self.corrections, (Memory(*pair) for pair in pairs), strict=True))

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        each = [correction.floats(size, features, members, num_clients) for correction in self.corrections]
        return Floats(*(sum(numbers) for numbers in zip(*each)))

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
        rows = received.own[: len(self.corrections)]
        held = list(zip(self.corrections, received.shared, rows, received.extra, strict=True))
        more = self.extra_gradients
        rates = self.rates(round_index, data.largest)
        tau = rates.size
        with jax.named_scope("batch_draw"):
            batches = self.batches.sample(role_key(key, "batch"), client.size, tau + more, data.largest)
        batches = batches._replace(live=(batches.live > 0).astype(jnp.float32))
        drift = jnp.sum(jnp.abs(rates) * batches.live[:tau])
        last = tau - 1 - jnp.argmax(batches.live[:tau][::-1])  # of the steps that are taken
        start, unravel = ravel(received.params)
        start = spread(start)
        rule = informed(self.rule.transform())
        began = received.own[-1] if self.rule.keep else rule.init(start)

        # Whatever all steps can have at once stands before the loop: on an accelerator each of these is a launch.
        noise_key, model_key = role_key(key, "noise"), role_key(key, "model")

        def looked_up(batch: Batch) -> _Drawn:
            rows = data.at(client, batch.positions)
            return _Drawn(batch, rows, data.targets(rows))

        def at(index: Any) -> Place:
            rate = rates[jnp.minimum(index, tau - 1)]
            return Place(client.id, round_index, index, rate, drift, index == last)

        def privatized(params: jax.Array, index: Any, now: _Drawn) -> tuple[jax.Array, StepReport, Records]:
            batch = now.batch
            keys = _record_keys(model_key, index, batch)
            records = Records(data.features(data.x[now.rows]), now.y, batch.mask, batch.divisor, keys)
            gradient, report = self.privatizer.gradient(noise_key, at(index), model, unravel(params), records)
            return gradient, report, records

        @jax.named_scope("local_step")
        def step(carry: tuple[Any, ...], inputs: tuple[jax.Array, jax.Array, _Drawn]) -> tuple[Any, None]:
            moved, memory, told = carry
            params = spread(start + moved)
            index, rate, now = inputs
            batch = now.batch
            gradient, report, records = privatized(params, index, now)
            for correction, server, own, extra in held:
                seen = Step(params, start, server, own, extra, records, model, unravel)
                gradient = correction.gradient(gradient, seen)

            def variance() -> jax.Array:
                return variance_of(self.privatizer, at(index), batch.divisor)

            direction, kept = rule.update(spread(gradient), memory, params, variance=variance)
            memory = jax.tree.map(lambda new, old: jnp.where(batch.live > 0, new, old), kept, memory)
            told = told + jnp.stack(report) * batch.live  # one number after another would be as many launches
            return (spread(moved - rate * batch.live * direction), memory, told), None

        inner = looked_up(jax.tree.map(lambda a: a[:tau], batches))
        indices = jnp.arange(tau, dtype=jnp.uint32)
        # The way is added up by itself: in the rounding of a large parameter a small step's noise would be lost.
        nowhere = spread(jnp.zeros_like(start))
        nothing = jnp.zeros(len(StepReport._fields))
        (moved, memory, told), _ = lax.scan(step, (nowhere, began, nothing), (indices, rates, inner))

        asked: list[int] = []  # a batch and a noise of its own for each gradient that corrections ask for

        def again(params: jax.Array) -> jax.Array:
            number = len(asked)
            if number >= more:
                raise errors.refuse(
                    "corrections",
                    f"{number + 1} calls of visit.gradient",
                    f"at most the {more} that they state",
                    "state them as extra_gradients: each is one more release, which is counted",
                )
            asked.append(number)
            batch = jax.tree.map(lambda a: a[tau + number], batches)
            return privatized(params, jnp.uint32(tau + number), looked_up(batch))[0]

        def look(see: Callable[..., Any], params: jax.Array) -> Any:
            return see(role_key(key, "look"), unravel(params), client, data, model)

        terms, own_rows = [], []
        for correction, server, own, extra in held:
            term, row = correction.finish(Visit(start, moved, server, own, extra, drift, again, look))
            terms.append(term)
            own_rows.append(row)
        report = StepReport(*(told / jnp.maximum(inner.batch.live.sum(), 1.0)))
        if self.rule.keep:
            own_rows.append(memory)
        return LocalResult(moved, tuple(terms), tuple(own_rows), report)

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


class _Drawn(NamedTuple):
    """A round's batches, and what of their records all steps can look up at once."""

    batch: Batch
    rows: jax.Array  # of x and y (steps, rows)
    y: Any


def _record_keys(key: jax.Array, step: jax.Array, batch: Batch) -> jax.Array:
    """A key for each record of a batch in this step `(records,)`; of those that no model uses, nothing is computed."""
    step_key = jax.random.fold_in(key, step)
    return jax.vmap(jax.random.fold_in, (None, 0))(step_key, batch.positions)
