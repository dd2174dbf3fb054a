"""The game: an algorithm runs with a canary or without it, and an adversary is to tell which from what it received."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_dp.accounting import View
from fedjax_dp.audits.observations import Ear
from fedjax_dp.audits.wrappers import StagedCohort, StagedPrivatizer
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Array
from fedjax_dp.pytrees import changed, ravel, structure, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.round import Heard, RoundReport, ServerState, initial_state, run_round


class Canary(NamedTuple):
    """Records that differ between the worlds; every array `(records,)`.

    slots    where they stand in `FederatedData.rows`;
    owners   their clients;
    coins    which of the bits that are drawn for a run decides about them;
    present  rows of the store that stand there in the world with the canary;
    absent   and in the other: what it replaces, or a record that is withdrawn.
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
    client      whose messages the adversary looks at, in view uploads;
    schedule    words of the key of the cohorts, or None, see `StagedCohort`;
    leaves      owners are not there at all in the world without the canary (add-remove, whole clients);
    view        what the adversary receives;
    execution   how the clients of a run are computed.
    """

    algorithm: Algorithm
    data: FederatedData
    canary: Canary
    client: Array
    schedule: jax.Array | None
    ear: Ear
    model: Model = structure()
    rounds: int = structure()
    view: View = structure()
    leaves: bool = structure(default=False)
    execution: Execution = structure(default=Execution())

    def play(self, key: jax.Array, there: jax.Array) -> jax.Array:
        """What the adversary receives in one run, `(times, roles, numbers)`.

        key    of the run;
        there  bool: the canary is; or `(bits,)` where there are several canaries.
        Times are rounds (and one before, where clients tell something first), roles the target and another client of
        its cohort, in view uploads; one role in views of sums; one time and role in view final_model. Zeros where the
        target does not take part.
        """
        there = jnp.atleast_1d(there)[self.canary.coins]
        standing = jnp.where(there, self.canary.present, self.canary.absent)
        data = changed(self.data, rows=jnp.asarray(self.data.rows).at[self.canary.slots].set(standing))
        gone = jnp.zeros(data.num_clients, bool)
        if self.leaves:
            gone = gone.at[self.canary.owners].set(~there)
        cohort = StagedCohort(cohort=self.algorithm.cohort, schedule=self.schedule, gone=gone)
        local = self.algorithm.local
        local = changed(local, privatizer=StagedPrivatizer(base=local.privatizer))
        algorithm = changed(self.algorithm, cohort=cohort, local=local)

        def listen(params: Any, flat: jax.Array) -> jax.Array:
            return self.ear.message(self.model, data, params, flat)

        def one_round(state: Any, _: None) -> tuple[Any, jax.Array]:
            state, report = run_round(algorithm, self.model, data, key, state, self.execution, listen)
            return state, self._received(report)

        start = initial_state(algorithm, self.model, data, key)
        if self.view is View.FINAL_MODEL:
            end = lax.fori_loop(0, self.rounds, lambda _, state: one_round(state, None)[0], start)
            return self.ear.model(self.model, data, end.params)[None, None]
        received = lax.scan(one_round, start, length=self.rounds)[1]
        if self.view is not View.UPLOADS or not self.algorithm.local.warm:
            return received
        before = jnp.stack([listen(start.params, self._warm(start, who)) for who in (self.client, self._companion)])
        return jnp.concatenate([before[None], received])

    @property
    def _companion(self) -> Array:
        return (self.client + 1) % self.data.num_clients

    def _warm(self, start: ServerState, client: Array) -> jax.Array:
        """What a client told before the first round, as the change that its messages tell later."""
        kept = [table[client].ravel() for table in jax.tree.leaves(start.clients)]
        return jnp.concatenate([jnp.zeros_like(ravel(start.params)[0]), *kept])

    def _received(self, report: RoundReport) -> jax.Array:
        """Of a round, `(roles, numbers)`."""
        heard: Heard = report.heard
        if self.view is View.SECURE_SUM:
            total: jax.Array = heard.total
            return total[None]
        if self.view is View.BROADCAST:
            update: jax.Array = heard.update
            return update[None]
        own = report.clients == self.client
        other = heard.uploads[jnp.argmax(report.present & ~own)]
        target = jnp.sum(jnp.where(own[:, None], heard.uploads, 0.0), 0)
        among = jnp.any(own & report.present)
        alone = ~jnp.any(report.present & ~own)
        return jnp.where(among, jnp.stack([target, jnp.where(alone, 0.0, other)]), 0.0)
