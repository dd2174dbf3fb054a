"""The game: an algorithm runs with or without a canary, and an adversary guesses which from its messages."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_dp.accounting import View
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Array
from fedjax_dp.pytrees import ravel, replace, structure, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.state import RoundReport, ServerState, Transcript, final_model, initial_state, with_final_model
from fedjax_dp.tools.audits import own_models
from fedjax_dp.tools.audits.observations import GameObservation
from fedjax_dp.tools.audits.wrappers import CanaryCohort, CanaryPrivatizer, CanaryTraining

MODELS = (View.BROADCAST, View.OWNER)  # of every round; a client's personal model follows from what it knows


class Canary(NamedTuple):
    """Records that differ between the worlds; every array `(records,)`.

    slots    their positions in `FederatedData.rows`;
    owners   their clients;
    coins    the index of the random bit of a run that decides whether they are present;
    present  rows of the store at these positions in the world with the canary;
    absent   rows in the other world: the replaced records, or a withdrawn one.
    """

    slots: Array
    owners: Array
    coins: Array
    present: Array
    absent: Array


@value
class Game:
    """Two neighbouring worlds that one program plays.

    algorithm   numbers as arrays;
    data        the store with the records of both worlds;
    client      the target, whose messages and model the adversary sees in views uploads and deployed;
    schedule    words of the key of the cohorts, or None, see `CanaryCohort`;
    leaves      whether owners are absent in the world without the canary (add-remove, client privacy);
    silent      whether they send zeros instead, and are counted as before (zero-out, client privacy);
    view        what the adversary receives;
    execution   how the clients of a run are computed.
    """

    algorithm: Algorithm
    data: FederatedData
    canary: Canary
    client: Array
    schedule: jax.Array | None
    observation: GameObservation
    model: Model = structure()
    rounds: int = structure()
    view: View = structure()
    leaves: bool = structure(default=False)
    silent: bool = structure(default=False)
    execution: Execution = structure(default=Execution())

    def play(self, key: jax.Array, there: jax.Array) -> jax.Array:
        """What the adversary receives in one run, `(times, roles, numbers)`.

        key    of the run;
        there  bool: whether the canary is present; `(bits,)` for several canaries.
        Times are rounds, plus one before for an initial release and one after for final local steps. Roles are the
        target and another client of its cohort in view uploads, one role in views of sums, and one time and role for a
        shared final model. In view deployed, roles of uploads are followed by those of personal models, see
        `own_models.as_messages`. Zeros if the target does not take part.
        """
        there = jnp.atleast_1d(there)[self.canary.coins]
        standing = jnp.where(there, self.canary.present, self.canary.absent)
        data = replace(self.data, rows=jnp.asarray(self.data.rows).at[self.canary.slots].set(standing))
        gone = jnp.zeros(data.num_clients, bool)
        if self.leaves or self.silent:
            gone = gone.at[self.canary.owners].set(~there)
        cohort = CanaryCohort(cohort=self.algorithm.cohort, schedule=self.schedule, gone=gone & self.leaves)
        local: Any = self.algorithm.local
        local = replace(local, privatizer=CanaryPrivatizer(base=local.privatizer))
        if self.silent:
            local = CanaryTraining(base=local, gone=gone)
        algorithm = replace(self.algorithm, cohort=cohort, local=local)
        models_of = functools.partial(own_models.models_of, local, self.model, data, key)

        def observe(params: Any, flat: jax.Array) -> jax.Array:
            return self.observation.message(self.model, data, params, flat)

        def one_round(before: ServerState, _: None) -> tuple[ServerState, jax.Array]:
            after, report = run_round(algorithm, self.model, data, key, before, self.execution, observe)
            received = self._receive_round(report)
            if self.gives_away_models:
                models = jnp.zeros((own_models.ROLES, received.shape[-1]))
                if not own_models.has_last_steps(local):
                    pair = self.client, report.clients[self._other_position(report)]
                    held = [models_of(state, pair) for state in (before, after)]
                    models = own_models.as_messages(observe, models.shape[1], (before.params, after.params), held)
                    models = jnp.where(jnp.any(self._target_messages(report)), models, 0.0)
                received = jnp.concatenate([received, models])
            return after, received

        start = initial_state(algorithm, self.model, data, key)
        if self.view is View.FINAL_MODEL or (self.view is View.DEPLOYED and not self.gives_away_models):
            end = lax.fori_loop(0, self.rounds, lambda _, state: one_round(state, None)[0], start)
            return self.observation.model(self.model, data, final_model(self.algorithm, end))[None, None]
        end, received = lax.scan(one_round, start, length=self.rounds)
        numbers, pair = received.shape[-1], (self.client, (self.client + 1) % data.num_clients)
        more = received.shape[1] - 2
        if self.view in (View.UPLOADS, View.DEPLOYED) and local.initial_release:
            warm = [
                own_models.fit_numbers(self._warm_start(start, who), observe, start.params, numbers) for who in pair
            ]
            first = jnp.stack([observe(start.params, flat) for flat in warm])
            received = jnp.concatenate([jnp.pad(first, ((0, more), (0, 0)))[None], received])
        if self.gives_away_models and own_models.has_last_steps(local):
            end = with_final_model(self.algorithm, end)
            held = models_of(end, pair)
            received_last = jnp.broadcast_to(ravel(end.params)[0], held.shape)
            last = own_models.as_messages(observe, numbers, (end.params, end.params), (received_last, held))
            received = jnp.concatenate([received, jnp.pad(last, ((2, 0), (0, 0)))[None]])
        return received

    @property
    def gives_away_models(self) -> bool:
        return self.view is View.DEPLOYED and self.algorithm.local.personal

    def _warm_start(self, start: ServerState, client: Array) -> jax.Array:
        """A client's release before the first round, in the form of its later messages."""
        kept = [table[client].ravel() for table in jax.tree.leaves(start.clients)]
        return jnp.concatenate([jnp.zeros_like(ravel(start.params)[0]), *kept])

    def _receive_round(self, report: RoundReport) -> jax.Array:
        """The messages of a round that the adversary receives, `(roles, numbers)`."""
        transcript: Transcript = report.transcript
        if self.view is View.SECURE_SUM or (self.view in MODELS and self._shares_auxiliary):
            return transcript.total[None]
        if self.view in MODELS:
            return transcript.update[None]
        own = self._target_messages(report)
        other = transcript.uploads[self._other_position(report)]
        target = jnp.sum(jnp.where(own[:, None], transcript.uploads, 0.0), 0)
        among = jnp.any(own)
        alone = ~jnp.any(report.present & (report.clients != self.client))
        return jnp.where(among, jnp.stack([target, jnp.where(alone, 0.0, other)]), 0.0)

    @property
    def _shares_auxiliary(self) -> bool:
        """Whether only auxiliary terms are shared and not the update, as with cluster models."""
        sent = self.algorithm.local.sent_tensors(self.model)
        return sent is not None and not any(sent)

    def _target_messages(self, report: RoundReport) -> jax.Array:
        return (report.clients == self.client) & report.present

    def _other_position(self, report: RoundReport) -> jax.Array:
        return jnp.argmax(report.present & (report.clients != self.client))
