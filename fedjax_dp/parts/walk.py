"""The steps of a client, a phase of its round at a time."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_dp import errors
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.parts.batches import Batch, Batches
from fedjax_dp.parts.client_models import SHARED, Ask, At, ClientModels, Here, Phase, Point
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.corrections import Correction, Step
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.record_privacy import NonPrivate, Privatizer, scale_noise, variance_of
from fedjax_dp.parts.transformations import informed
from fedjax_dp.prng import role_key


class Walk(NamedTuple):
    """What the steps of a phase came to."""

    ways: tuple[jax.Array, ...]  # of all vectors
    memory: Any
    rule: Any  # the rule's states, one for each vector that is moved
    report: StepReport
    drift: jax.Array  # sum of the learning rates of the steps taken
    again: Callable[[jax.Array], jax.Array]  # one more privatized gradient, at given parameters


class _Series(NamedTuple):
    """What is drawn for a series of gradients."""

    batches: Batch
    noise_key: jax.Array
    model_key: jax.Array


class _Drawn(NamedTuple):
    """A round's batches, and what of their records all steps can look up at once."""

    batch: Batch
    rows: jax.Array  # of x and y (steps, rows)
    y: Any


class Walker(NamedTuple):
    """A client whose round has begun."""

    key: jax.Array  # of client and round
    round_index: jax.Array
    client: Client
    data: FederatedData
    here: Here
    spread: Callable[[jax.Array], jax.Array]
    privatizer: Privatizer
    batches: Batches
    rule: LocalRule
    models: ClientModels
    rates: Callable[[int], jax.Array]  # of so many steps

    def walk(
        self,
        number: int,
        phase: Phase,
        vectors: tuple[jax.Array, ...],
        ways: tuple[jax.Array, ...],
        memory: Any,
        held: Sequence[tuple[Any, ...]],
        old: Any,
        more: int,
    ) -> Walk:
        """The steps of a phase, which is the `number`th.

        vectors, ways  where vectors stood when the round began, and how far they have come since;
        memory         of the models;
        held           the corrections that join, each with its server part, own row and what it received;
        old            states of the rule, None: new ones;
        more           gradients that corrections may ask for afterwards.
        """
        client, data, here, spread, models = self.client, self.data, self.here, self.spread, self.models
        rates = self.rates(self.batches.count(phase.steps, data.largest))
        rates = rates if phase.speed is None else rates * phase.speed
        tau, moves = rates.size, phase.moves
        series = [self._series(ask, tau + more) for ask in phase.asks]
        live = series[0].batches.live
        drift = jnp.sum(jnp.abs(rates) * live[:tau])
        last = tau - 1 - jnp.argmax(live[:tau][::-1])  # of the steps that are taken
        rule = informed(self.rule.transform())

        def place(index: Any, ask: Ask) -> StepContext:
            rate = rates[jnp.minimum(index, tau - 1)]
            return StepContext(client.id, self.round_index, index, rate, drift, index == last, ask.series)

        # Whatever all steps can have at once stands before the loop: on an accelerator each of these is a launch.
        def looked_up(batch: Batch) -> _Drawn:
            rows = data.at(client, batch.positions)
            return _Drawn(batch, rows, data.targets(rows))

        def privatized(
            ask: Ask, drawn: _Series, point: Point, now: _Drawn, index: Any
        ) -> tuple[jax.Array, StepReport, Records]:
            batch = now.batch
            keys = record_keys(drawn.model_key, index, batch)
            records = Records(data.features(data.x[now.rows]), now.y, batch.mask, batch.divisor, keys)
            gradient, report = self._privatizer(ask).gradient(
                drawn.noise_key, place(index, ask), point.model, point.params, records
            )
            return gradient, report, records

        @jax.named_scope("local_step")
        def step(carry: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, None]:
            moved, rule_states, memory, told = carry
            params = tuple(spread(vectors[j] + way) for j, way in zip(moves, moved, strict=True))
            index, rate, now = inputs
            batch = now[0].batch
            moving = dict(zip(moves, params, strict=True))
            others = (moving.get(j, vector + way) for j, (vector, way) in enumerate(zip(vectors, ways, strict=True)))
            stand = At(number, rate, index == 0, tuple(others))
            asked = zip(phase.asks, series, models.points(stand, here, memory), now, strict=True)
            found = [privatized(*each, index) for each in asked]
            (gradient, *rest), after = models.gradient(tuple(made for made, *_ in found), stand, here, memory)
            for correction, server, own, extra in held:
                seen = (server, own, extra, found[0][2], here.model, here.unravel)
                corrected = functools.partial(_corrected, correction, seen)
                gradient = _of_first(corrected, gradient, params[0], vectors[moves[0]])

            def variance() -> jax.Array:
                return variance_of(self._privatizer(phase.asks[0]), place(index, phase.asks[0]), batch.divisor)

            steps = [
                rule.update(spread(one), state, at, variance=variance)
                for one, state, at in zip((gradient, *rest), rule_states, params, strict=True)
            ]
            new = (tuple(state for _, state in steps), after)
            rule_states, memory = jax.tree.map(
                lambda new, old: jnp.where(batch.live > 0, new, old), new, (rule_states, memory)
            )
            told = told + jnp.stack(found[0][1]) * batch.live  # one number after another would be as many launches
            moved = tuple(
                spread(way - rate * batch.live * direction) for way, (direction, _) in zip(moved, steps, strict=True)
            )
            return (moved, rule_states, memory, told), None

        inner = tuple(looked_up(jax.tree.map(lambda a: a[:tau], each.batches)) for each in series)
        indices = jnp.arange(tau, dtype=jnp.uint32)
        states = tuple(rule.init(vectors[j]) for j in moves) if old is None else old
        begun = (tuple(ways[j] for j in moves), states, memory, jnp.zeros(len(StepReport._fields)))
        (moved, states, memory, told), _ = lax.scan(step, begun, (indices, rates, inner))
        ended = dict(zip(moves, moved, strict=True))

        asked_for: list[int] = []  # a batch and a noise of its own for each gradient that corrections ask for

        def again(params: jax.Array) -> jax.Array:
            if len(asked_for) >= more:
                raise errors.refuse(
                    "corrections",
                    f"{len(asked_for) + 1} calls of visit.gradient",
                    f"at most the {more} that they state",
                    "state them as extra_gradients: each is one more release, which is counted",
                )
            index = tau + len(asked_for)
            asked_for.append(index)
            batch = jax.tree.map(lambda a: a[index], series[0].batches)
            point = Point(here.model, here.unravel(params))
            return privatized(phase.asks[0], series[0], point, looked_up(batch), jnp.uint32(index))[0]

        report = StepReport(*(told / jnp.maximum(live[:tau].sum(), 1.0)))
        ways = tuple(ended.get(j, way) for j, way in enumerate(ways))
        return Walk(ways, memory, states, report, drift, again)

    def _series(self, ask: Ask, steps: int) -> _Series:
        """The batches of so many gradients, and their keys."""
        key = self.key if ask.series == SHARED else role_key(self.key, f"series {ask.series}")
        with jax.named_scope("batch_draw"):
            batches = self.batches.sample(role_key(key, "batch"), self.client.size, steps, self.data.largest)
        batches = batches._replace(live=(batches.live > 0).astype(jnp.float32))
        return _Series(batches, role_key(key, "noise"), role_key(key, "model"))

    def _privatizer(self, ask: Ask) -> Privatizer:
        """Of the gradients of a series."""
        if ask.clean:
            return NonPrivate()
        found: Privatizer = self.privatizer if ask.noise is None else scale_noise(self.privatizer, ask.noise)
        return found


def _corrected(
    correction: Correction, seen: tuple[Any, ...], gradient: jax.Array, params: jax.Array, start: jax.Array
) -> jax.Array:
    return correction.gradient(gradient, Step(params, start, *seen))


def first_of(vector: jax.Array) -> jax.Array:
    """A vector, or the first of several models `(models, size)`."""
    return vector if vector.ndim == 1 else vector[0]


def _of_first(corrected: Callable[..., jax.Array], gradient: jax.Array, *others: jax.Array) -> jax.Array:
    """The gradient with that of the first model corrected.

    Those of all are, and the others put back: cut apart, a CPU would draw the noise of all for each of them.
    """
    if gradient.ndim == 1:
        return corrected(gradient, *others)
    first = jnp.arange(len(gradient))[:, None] == 0
    return jnp.where(first, jax.vmap(corrected)(gradient, *others), gradient)


def record_keys(key: jax.Array, step: jax.Array, batch: Batch) -> jax.Array:
    """A key for each record of a batch in this step `(records,)`; of those that no model uses, nothing is computed."""
    step_key = jax.random.fold_in(key, step)
    return jax.vmap(jax.random.fold_in, (None, 0))(step_key, batch.positions)
