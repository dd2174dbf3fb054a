"""The slot `client models` of `PersonalSgd`: the personal models of a client, and its second stream of steps."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Event
from fedjax_dp.models import Model
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState
from fedjax_dp.parts.corrections import Floats
from fedjax_dp.parts.local_training import AdditionalRelease
from fedjax_dp.parts.record_privacy import LastRates, NonPrivate, scale_noise
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import number, replace, structure, value

MOST_STEPS = 10**6


@value
class OwnSteps:
    """A second stream of a client's private steps, with its own batches and noise, and so a separate release.

    noise, speed  factors on noise multiplier and learning rate of the first stream;
    steps         None: as many as in the first stream;
    clean         without clipping and noise.
    One value both takes and counts these steps, so that every step is accounted for.
    """

    noise: float = number(
        errors.require_positive,
        option="personal_noise",
        remedy="for personal steps without clipping and noise use clean",
        default=1.0,
    )
    speed: float = number(errors.require_positive, option="personal_speed", default=1.0)
    steps: int | None = structure(errors.integers(0, MOST_STEPS), option="personal_steps", default=None)
    clean: bool = structure(default=False)

    def of(self, sgd: Any) -> Any:
        """The `LocalSgd` of these steps: that of the first stream with these changes, and without corrections."""
        privatizer = NonPrivate() if self.clean else scale_noise(sgd.privatizer, self.noise)
        numbers = {"learning_rate": sgd.learning_rate * self.speed, "steps": self.count(sgd)}
        return replace(sgd, privatizer=privatizer, corrections=(), **numbers)

    def count(self, sgd: Any) -> int:
        return sgd.steps if self.steps is None else self.steps

    def context(self, client: ClientContext) -> ClientContext:
        """The client with its own draws for these steps, which differ from those of the first stream."""
        return client._replace(key=role_key(client.key, "series 1"), stream=1)

    def event(self, local: Any, noise: float, records: int, rates: LastRates) -> Event:
        """The event of these steps in a round, as for `AdditionalRelease`."""
        count = local.batches.count(self.count(local), records)
        z = 0.0 if self.clean else noise * float(np.float32(self.noise))
        return local.privatizer.event(z, local.batches, records, count, rates)


class ClientModels(Protocol):
    """The personal models of clients. Implementations use `fedjax_dp.value` and write `run` and `model_of`.

    sgd     the first stream of steps, a `LocalSgd`;
    client  the client of these steps: `client.received` holds only the state of the steps and their corrections;
    server  LocalState.server of this part, which every client receives;
    own     this client's row of LocalState.clients of this part.
    For user-defined parts, `inspection.flow` traces what is sent instead of trusting these members.
    A method `check(model, sizes)` may refuse what cannot be used, as that of a `Correction`.
    """

    @property
    def own_steps(self) -> OwnSteps | None:
        """The second stream of steps, if any: `run` takes its steps, or `model_of` if `own_comes_last`."""
        return None

    @property
    def own_is_sent(self) -> bool:
        """Whether a message depends on the second stream, in this round or later; if not, only client state does."""
        return True

    @property
    def own_comes_last(self) -> bool:
        """Whether the second stream runs once after the last round, instead of in every round."""
        return False

    @property
    def sends_steps(self) -> bool:
        """Whether a message depends on the first stream."""
        return True

    @property
    def has_client_state(self) -> bool:
        """Whether clients keep state across rounds."""
        return True

    @property
    def state_affects_messages(self) -> bool:
        """Whether a client's state affects its later messages."""
        return self.has_client_state

    @property
    def sends_auxiliary(self) -> bool:
        """Whether clients send more than the update, and the server keeps state for this part."""
        return False

    @property
    def releases(self) -> tuple[AdditionalRelease, ...]:
        """Releases of records in addition to both streams."""
        return ()

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        """Whether each parameter tensor is shared, in the order of `pytrees.ravel`; None if all are."""
        return None

    def local_params(self, run: InitContext) -> InitContext:
        """The run of the first stream of steps: `params` are the parameters that it trains."""
        return run

    def init(self, sgd: Any, run: InitContext) -> LocalState:
        """State before round 0: the server's, and the clients', arrays `(num_clients, ...)`."""
        return LocalState()

    def run(self, sgd: Any, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        """A client's round: the result of the first stream, the new row, and the extra message; traced."""
        ...

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        """The server's new state, from the sum `total` of the extra messages."""
        return server

    def model_of(self, sgd: Any, client: ClientContext, server: Any, own: Any) -> jax.Array:
        """The client's personal model between rounds, flat `(size,)`; traced."""
        ...

    def floats(self, size: int) -> Floats:
        """Count of numbers sent to and from a client in addition to the shared part of the model, which has `size`."""
        return Floats()


def rows_of(vector: Any, num_clients: int) -> jax.Array:
    return jnp.broadcast_to(vector, (num_clients, *jnp.shape(vector)))


def no_tensors(model: Model) -> tuple[bool, ...]:
    return (False,) * len(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def refuse_clean_steps(what: str) -> errors.ConfigurationError:
    """The refusal of a personal part without noise that affects updates with record-level noise."""
    return errors.refuse(
        "noise on the personal part",
        f"none, on {what}",
        "that of the shared steps if the part affects later updates",
        "a record would change it, and so every record's gradient; use ditto or finetune, or client-level privacy",
    )
