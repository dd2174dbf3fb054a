"""Local steps of stochastic gradient descent: draw batches; in every step privatize, correct, follow the rule, move."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_dp import errors, schedules
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batch, Batches
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState, Received, StepContext
from fedjax_dp.parts.corrections import Correction, Floats, finish_correction, init_correction
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.local_training import LocalTraining, extreme_rates
from fedjax_dp.parts.record_privacy import LEAST_RATE, Privatizer, require_measured, variance_of
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import check_part, number, ravel, structure, value


class StepDraw(NamedTuple):
    """The draws of a step, which are known before the round's first step; of all steps with an axis `(tau,)`."""

    number: jax.Array
    rate: jax.Array
    batch: Batch
    rows: jax.Array  # of x and y `(batch rows,)`
    y: Any


class SgdState(NamedTuple):
    """State of the local steps within a round."""

    delta: jax.Array  # model minus its start: added to a large parameter, a small step's noise would be rounded away
    rule: Any
    probes: jax.Array  # sums of a `StepReport`


class PrivateGradients(NamedTuple):
    """The privatized gradients of one client's round, with their own batches, noise and dropout."""

    client: ClientContext
    privatizer: Privatizer
    rates: jax.Array  # (tau,), by number
    numbers: jax.Array  # (tau,) of the steps: those that are taken come first, so that skipped steps change no draw
    step_rates: jax.Array  # (tau,) of the steps
    total_rate: jax.Array  # sum of those of the steps taken
    last: jax.Array  # number of the last step taken
    batches: Batch  # of the tau steps, then of the extra gradients
    noise_key: jax.Array
    model_key: jax.Array

    @classmethod
    def draw(
        cls, client: ClientContext, privatizer: Privatizer, batches: Batches, rates: jax.Array, extra: int = 0
    ) -> "PrivateGradients":
        """One gradient per rate, and `extra` more."""
        with jax.named_scope("batch_draw"):
            data, is_kept = client.data, batches.sampling(client.data.largest).keeps_draw
            key = client.run_key if is_kept and client.run_key is not None else client.key
            drawn = batches.sample(
                role_key(key, "batch"), client.client.size, rates.size + extra, data.largest, data.smallest
            )
        drawn = drawn._replace(step_mask=(drawn.step_mask > 0).astype(jnp.float32))
        noise_key, model_key = (role_key(client.key, role) for role in ("noise", "model"))
        in_order = _in_order(batches, rates, drawn.step_mask[: rates.size])
        return cls(client, privatizer, rates, *in_order, drawn, noise_key, model_key)

    def at_rates(self, rates: jax.Array) -> "PrivateGradients":
        """The same with other rates, by number."""
        step_rates = rates[self.numbers]
        return self._replace(
            rates=rates, step_rates=step_rates, total_rate=jnp.sum(jnp.abs(step_rates) * self.step_mask)
        )

    def steps(self) -> StepDraw:
        """The draws of all steps, made together before the loop: on an accelerator each draw is a kernel launch."""
        return self._draws_at(self.numbers, self.step_rates, slice(self.rates.size))

    def step_draw(self, number: jax.Array) -> StepDraw:
        """The draws of one gradient, which may be an extra one."""
        return self._draws_at(number, self.rates[jnp.minimum(number, self.rates.size - 1)], number)

    def _draws_at(self, number: jax.Array, rate: jax.Array, at: Any) -> StepDraw:
        batch = jax.tree.map(lambda a: a[at], self.batches)
        rows = self.client.data.at(self.client.client, batch.positions)
        return StepDraw(number, rate, batch, rows, self.client.data.targets(rows))

    @property
    def step_mask(self) -> jax.Array:
        """1 for a step that this client takes, else 0 `(tau,)`."""
        return self.batches.step_mask[: self.rates.size]

    def context(self, number: jax.Array) -> StepContext:
        """The public numbers of a step."""
        client, rate = self.client, self.rates[jnp.minimum(number, self.rates.size - 1)]
        is_last = number == self.last
        return StepContext(client.client.id, client.round, number, rate, self.total_rate, is_last, client.stream)

    def gradient_at(self, params: jax.Array, drawn: StepDraw) -> tuple[jax.Array, StepReport, Records]:
        """The gradient of a step at `params`, its diagnostics, and the records of its batch."""
        client, batch = self.client, drawn.batch
        step_key = jax.random.fold_in(self.model_key, drawn.number)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(step_key, batch.positions)  # unused without dropout
        x = client.data.features(client.data.x[drawn.rows])
        records = Records(x, drawn.y, batch.mask, batch.divisor, keys)
        step, tree = self.context(drawn.number), client.unravel(params)
        gradient, report = self.privatizer.gradient(self.noise_key, step, client.model, tree, records)
        return gradient, report if client.signal else report._replace(signal=0.0), records

    def noise_variance(self, drawn: StepDraw) -> jax.Array:
        return variance_of(self.privatizer, self.context(drawn.number), drawn.batch.divisor)

    def extra_gradient(self) -> Callable[[jax.Array], jax.Array]:
        """A function that computes one extra gradient per call, each with its own batch and noise."""
        tau, most = self.rates.size, self.batches.step_mask.size - self.rates.size
        taken: list[int] = []

        def at(params: jax.Array) -> jax.Array:
            if len(taken) >= most:
                raise errors.refuse(
                    "corrections",
                    f"{len(taken) + 1} calls of extra_gradient",
                    f"at most the {most} that they declare",
                    "declare them in extra_gradients: each is one more release, which is counted",
                )
            taken.append(tau + len(taken))
            return self.gradient_at(params, self.step_draw(jnp.uint32(taken[-1])))[0]

        return at


def _of_corrections(combine: Callable[[Iterable[Any]], Any], name: str) -> Any:
    """A property of `LocalSgd` that combines the property `name` of its corrections."""
    return property(lambda self: combine(getattr(correction, name) for correction in self.corrections))


def _require_decay_factor(what: str, factor: Any) -> None:
    errors.require_positive(what, factor)
    if float(factor) > 1:
        raise errors.refuse(what, factor, "at most 1")


@value
class LocalSgd(LocalTraining):
    """`steps` (tau) steps, or epochs for `EpochBatches`: w <- w - rate * rule(privatized gradient + corrections).

    schedule  factor on the rate in round t = 0, 1, ..., or, `per_step`, in the run's local step t = 0, 1, ...
              (dp_fedavg_output); `timing` are its numbers by name.
    A client keeps the state of each correction, in their order, and then that of the rule if `rule.keep`.
    Parameters are one flat vector here, so that noise, corrections and step fuse into a single loop.
    """

    learning_rate: float = number(errors.require_positive)
    privatizer: Privatizer
    batches: Batches
    corrections: tuple[Correction, ...] = ()
    rule: LocalRule = LocalRule(hyperparameters={})
    steps: int = structure(default=1)
    schedule: Callable[..., jax.Array] = structure(default=schedules.constant)
    timing: dict[str, Any] = number(
        {
            "decay_factor": _require_decay_factor,
            "": errors.require_positive,
        },
        default_factory=dict,
    )
    per_step: bool = structure(default=False)

    equation = r"w \leftarrow w - \eta_t\, d"

    sends_steps, personal, additional_releases = True, False, ()

    # A client's round.

    def run(self, client: ClientContext) -> LocalResult:
        gradients = self.draw(client)
        step = functools.partial(self.step, gradients)
        skips = client.skips_steps and not self.batches.even and client.data.smallest < client.data.largest

        def one(state: SgdState, drawn: StepDraw) -> tuple[SgdState, None]:
            if not skips:
                return step(state, drawn), None
            return lax.cond(drawn.batch.step_mask > 0, step, lambda state, _: state, state, drawn), None

        state, _ = lax.scan(one, self.begin(client), gradients.steps())
        return self.finish(gradients, state)

    def draw(self, client: ClientContext) -> PrivateGradients:
        """The batches of all steps; `step` computes their gradients."""
        rates = self.rates(client.round, client.data.largest)
        gradients = PrivateGradients.draw(client, self.privatizer, self.batches, rates, self.extra_gradients)
        own = self._own_rates(rates, client.round, gradients.step_mask)
        return gradients if own is rates else gradients.at_rates(own)

    def begin(self, client: ClientContext) -> SgdState:
        start = client.shard(client.received.params)
        rule = client.received.client_state[-1] if self.rule.keep else self.rule.transform().init(start)
        return SgdState(client.shard(jnp.zeros_like(start)), rule, jnp.zeros(len(StepReport._fields)))

    @jax.named_scope("local_step")
    def step(self, gradients: PrivateGradients, state: SgdState, drawn: StepDraw) -> SgdState:
        """One local step: privatize and correct the gradient, then move by the rule."""
        client = gradients.client
        params = client.shard(client.received.params + state.delta)
        gradient, report, records = gradients.gradient_at(params, drawn)
        gradient = self.correct(client, gradient, params, gradients.context(drawn.number), records)
        return self.move(gradients, state, drawn, params, gradient, report)

    def correct(
        self, client: ClientContext, gradient: jax.Array, params: jax.Array, step: StepContext, records: Records
    ) -> jax.Array:
        for correction, own in self._each(client):
            gradient = correction.gradient(gradient, params, step, own, records)
        return gradient

    def move(
        self,
        gradients: PrivateGradients,
        state: SgdState,
        drawn: StepDraw,
        params: jax.Array,
        gradient: jax.Array,
        report: StepReport,
    ) -> SgdState:
        step_mask, shard = drawn.batch.step_mask, gradients.client.shard
        rule = optax.with_extra_args_support(self.rule.transform())
        variance = functools.partial(gradients.noise_variance, drawn)
        direction, new = rule.update(shard(gradient), state.rule, params, variance=variance)
        rule_state = jax.tree.map(lambda new, old: jnp.where(step_mask > 0, new, old), new, state.rule)
        probes = state.probes + jnp.stack(report) * step_mask  # stacked: one kernel launch instead of one per number
        return SgdState(shard(state.delta - drawn.rate * step_mask * direction), rule_state, probes)

    def finish(self, gradients: PrivateGradients, state: SgdState) -> LocalResult:
        total_rate, extra_gradient, update = gradients.total_rate, gradients.extra_gradient(), state.delta
        ends = [
            finish_correction(one, update, own, total_rate, extra_gradient) for one, own in self._each(gradients.client)
        ]
        rows = (*(row for _, row in ends), *([state.rule] if self.rule.keep else []))
        report = StepReport(*(state.probes / jnp.maximum(gradients.step_mask.sum(), 1.0)))
        return LocalResult(update, tuple(auxiliary for auxiliary, _ in ends), rows, report)

    def _each(self, client: ClientContext) -> list[tuple[Correction, ClientContext]]:
        """Each correction, with the client as that correction sees it."""
        start, server, rows, extra = client.received
        rows = rows[: len(self.corrections)]  # the state of a rule comes after theirs
        parts = zip(self.corrections, server, rows, extra, strict=True)
        return [(correction, client.receiving(start, *own)) for correction, *own in parts]

    def rates(self, round_index: Any, largest: int) -> jax.Array:
        tau = self.batches.count(self.steps, largest)
        steps = jnp.arange(tau)
        at = round_index * tau + steps if self.per_step else jnp.broadcast_to(round_index, (tau,))
        return self.learning_rate * self.schedule(at, **self.timing)

    def _own_rates(self, rates: jax.Array, round_index: Any, step_mask: jax.Array) -> jax.Array:
        """The rates of a client that takes the steps of `step_mask`: a schedule over steps counts only these."""
        if not self.per_step or self.batches.even:
            return rates
        taken = jnp.sum(step_mask > 0).astype(jnp.int32)
        return self.learning_rate * self.schedule(round_index * taken + jnp.arange(rates.size), **self.timing)

    # What is kept across rounds: of each correction, then of the rule.

    def init(self, run: InitContext) -> LocalState:
        @functools.cache  # one release, even if several corrections use it
        def initial_gradients() -> jax.Array:
            return run.map_clients(self.mean_gradient)

        begun = [init_correction(each, run._replace(initial_gradients=initial_gradients)) for each in self.corrections]
        tables = [state.clients for state in begun]
        if self.rule.keep:
            state, every = self.rule.transform().init(ravel(run.params)[0]), run.data.num_clients
            tables.append(jax.tree.map(lambda a: jnp.broadcast_to(a, (every, *jnp.shape(a))), state))
        return LocalState(tuple(state.server for state in begun), tuple(tables))

    def send(self, state: LocalState, members: Members) -> tuple[Any, ...]:
        return tuple(correction.send(own, members) for correction, own in self._states(state))

    def absorb(self, server_state: Any, total: Any, num_clients: int) -> tuple[Any, ...]:
        each = zip(self.corrections, server_state, total, strict=True)
        return tuple(correction.absorb(own, term, num_clients) for correction, own, term in each)

    def exchange(
        self, state: LocalState, map_clients: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> LocalState:
        after = [correction.exchange(own, map_clients, members, upcoming) for correction, own in self._states(state)]
        tables = (*(own.clients for own in after), *state.clients[len(after) :])
        return LocalState(tuple(own.server for own in after), tables)

    def _states(self, state: LocalState) -> list[tuple[Correction, LocalState]]:
        return list(zip(self.corrections, map(LocalState, state.server, state.clients)))

    # Facts: those of the corrections taken together.

    @property
    def no_epsilon_reason(self) -> str | None:
        return next((one.no_epsilon_reason for one in self.corrections if one.no_epsilon_reason), None)

    @property
    def has_client_state(self) -> bool:
        return self.rule.keep or self.sends_auxiliary

    sends_auxiliary = _of_corrections(any, "has_client_state")
    separable_state = _of_corrections(all, "separable_state")
    reads_records_outside_round = _of_corrections(any, "reads_records_outside_round")
    initial_release = _of_corrections(any, "initial_release")
    extra_gradients = _of_corrections(sum, "extra_gradients")

    @property
    def is_sgd(self) -> bool:
        return self.rule.is_sgd

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        return ("local rule", self.rule), *(("correction", correction) for correction in self.corrections)

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        each = [correction.floats(size, features, members, num_clients) for correction in self.corrections]
        return Floats(*(sum(numbers) for numbers in zip(*each, Floats())))

    def noise_variance(self, round_index: jax.Array, data: FederatedData) -> jax.Array:
        """Variance of each coordinate of the noise in each client's update of a round `(num_clients,)`.

        For plain SGD, the sum of rate^2 Phi over the steps; the effect of noise on later gradients is not included.
        """
        rates = self.rates(round_index, data.largest)

        def one(client: jax.Array, records: jax.Array) -> jax.Array:
            # Only what does not depend on the key is used, and so computed.
            key = jax.random.key(0, impl="threefry2x32")
            batches = self.batches.sample(key, records, rates.size, data.largest, data.smallest)
            step_mask = batches.step_mask > 0
            own = self._own_rates(rates, round_index, step_mask)
            steps, step_rates, total_rate, last = _in_order(self.batches, own, step_mask)

            def of(step: jax.Array, rate: jax.Array, divisor: jax.Array) -> jax.Array:
                at = StepContext(client, round_index, step, rate, total_rate, step == last)
                return rate**2 * variance_of(self.privatizer, at, divisor)

            return jnp.sum(jnp.where(step_mask, jax.vmap(of)(steps, step_rates, batches.divisor), 0.0))

        return jax.vmap(one)(jnp.arange(data.num_clients, dtype=jnp.int32), jnp.asarray(data.sizes))

    def mean_gradient(
        self, key: jax.Array, params: Any, client: Client, data: FederatedData, model: Model
    ) -> jax.Array:
        """Mean of tau privatized gradients at fixed parameters, flat: an initial release, drawn as round -1."""
        flat, unravel = ravel(params)
        before = ClientContext(key, jnp.int32(-1), client, data, model, unravel, Received(flat))
        rates = self.rates(jnp.int32(0), data.largest)
        gradients = PrivateGradients.draw(before, self.privatizer, self.batches, rates)

        def step(total: jax.Array, drawn: StepDraw) -> tuple[jax.Array, None]:
            return total + gradients.gradient_at(flat, drawn)[0], None

        return lax.scan(step, jnp.zeros(flat.shape), gradients.steps())[0] / rates.size

    def check(self, sizes: np.ndarray, model: Model | None, rounds: int) -> None:
        check_part(self.rule)
        if self.rule.corrects:
            require_measured(self.privatizer)
        for correction in self.corrections:
            check_part(correction, model, sizes)
        alike, reads_updates = self.batches.even, any(correction.even for correction in self.corrections)
        if reads_updates and not (self.rule.is_sgd and not self.per_step):
            raise errors.refuse(
                "local rule",
                "another",
                "sgd with one rate per round for control variates",
                "their change is the update divided by the learning rate",
            )
        if reads_updates or self.privatizer.on_upload:
            least, most = extreme_rates(self, int(sizes.max()), rounds)
            if not LEAST_RATE <= least <= most < math.inf:
                divided = "noise on the upload" if self.privatizer.on_upload else "control variates"
                wanted = f"one of rates from {LEAST_RATE:g} for {divided}"
                remedy = f"float32 would lose {divided} at smaller rates: let them fall less, or in fewer rounds"
                raise errors.refuse("schedule", f"rates from {least:g} to {most:g}", wanted, remedy)
        if (self.extra_gradients or self.initial_release) and not alike:
            got = type(self.batches).__name__
            raise errors.refuse("batches", got, "of equal number for every client", "use without-replacement")
        if self.privatizer.on_upload:
            if not (self.rule.is_sgd and of_the_project(self.rule) and alike):
                raise errors.refuse("local rule", "another", "sgd with a fixed number of steps for noise on the upload")
            pull = float(sum(c.pull for c in self.corrections))
            if pull and not 0 <= most * pull <= 2:
                raise errors.refuse(
                    "l2",
                    "so strong that steps are no contraction",
                    "at most 1 / learning_rate for noisy uploads",
                    "clipped gradients would not bound how far the steps can move",
                )
            if self.extra_gradients or self.initial_release:
                raise errors.refuse("controls", "extra gradients", "computed from the noisy upload", "use update")


def _in_order(
    batches: Batches, rates: jax.Array, step_mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Numbers and rates of a round's steps `(tau,)`, then the sum of rates and the last number of the steps taken.

    The steps that are taken have the numbers 0, 1, ..., before the skipped ones: so a client's noise and schedule do
    not depend on how many steps larger clients take.
    """
    if batches.even:
        return jnp.arange(step_mask.size, dtype=jnp.uint32), rates, *_total_and_last(rates, step_mask)
    taken = (step_mask > 0).astype(jnp.uint32)
    before, others = jnp.cumsum(taken) - taken, jnp.cumsum(1 - taken) - (1 - taken)
    numbers = jnp.where(step_mask > 0, before, jnp.sum(taken) + others).astype(jnp.uint32)
    total_rate, at = _total_and_last(rates[numbers], step_mask)
    return numbers, rates[numbers], total_rate, numbers[at]


def _total_and_last(rates: jax.Array, step_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum of the rates of the steps taken, those of `step_mask`, and the index of the last of them."""
    return jnp.sum(jnp.abs(rates) * step_mask), rates.size - 1 - jnp.argmax(step_mask[::-1])
