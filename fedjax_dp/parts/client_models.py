"""Which models a client has, and its second stream of steps: the slot `client models` of `PersonalSgd`."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Event
from fedjax_dp.models import Model
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState
from fedjax_dp.parts.corrections import Correction, Floats
from fedjax_dp.parts.local_training import AdditionalRelease
from fedjax_dp.parts.record_privacy import NonPrivate, scale_noise
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import replace, structure, value

MOST_STEPS = 10**6


@value
class OwnSteps:
    """A second stream of a client's private steps, with batches and noise of its own, and so a release of its own.

    noise, speed  over those of the first stream; steps  None: as many; clean  without clipping and noise.
    The same value makes these steps and is counted, so that none is taken for which nobody pays.
    """

    noise: float = 1.0
    speed: float = 1.0
    steps: int | None = structure(default=None)
    clean: bool = structure(default=False)

    def of(self, sgd: Any, corrections: tuple[Correction, ...] = ()) -> Any:
        """These steps, like those of the first stream but for what is said here."""
        privatizer = NonPrivate() if self.clean else scale_noise(sgd.privatizer, self.noise)
        numbers = {"learning_rate": sgd.learning_rate * self.speed, "steps": self.count(sgd)}
        return replace(sgd, privatizer=privatizer, corrections=corrections, **numbers)

    def count(self, sgd: Any) -> int:
        return sgd.steps if self.steps is None else self.steps

    def context(self, client: ClientContext) -> ClientContext:
        """The client with draws of its own for these steps: none of two streams is the same."""
        return client._replace(key=role_key(client.key, "series 1"), stream=1)

    def event(self, local: Any, noise: float, records: int, rates: np.ndarray) -> Event:
        """What they release in a round, as of `AdditionalRelease`."""
        count = local.batches.count(self.count(local), records)
        z = 0.0 if self.clean else noise * float(np.float32(self.noise))
        return local.privatizer.event(z, local.batches, records, count, rates)

    def check(self) -> None:
        if self.steps is not None:
            errors.require_count("personal_steps", self.steps)
        remedy = "0 leaves the personal steps without clipping and noise: clean"
        errors.require_positive("personal_noise", self.noise, remedy)
        errors.require_positive("personal_speed", self.speed)


class ClientModels(Protocol):
    """Which models a client has. Implementations are made with `fedjax_dp.value`, and write `run` and `model_of`.

    sgd     the steps, a `LocalSgd`, with what they draw, noise and correct;
    client  as these steps know it: `client.received` is of them and their corrections alone;
    server  LocalState.server of this part, which every client receives;
    own     this client's row of LocalState.clients of this part.
    What is said here of what is sent is not believed of other people's parts: `inspection.flow` traces it.
    """

    @property
    def own_steps(self) -> OwnSteps | None:
        """A second stream of steps, if there is one: `run`, or `model_of` where they come last, makes steps of it."""
        return None

    @property
    def own_is_sent(self) -> bool:
        """Whether a message depends on the second stream, in this round or later; else what the client keeps does."""
        return True

    @property
    def own_comes_last(self) -> bool:
        """Whether the second stream follows the last round, once, instead of being part of every round."""
        return False

    @property
    def sends_steps(self) -> bool:
        """Whether a message depends on the first stream."""
        return True

    @property
    def has_client_state(self) -> bool:
        """Whether a client keeps something from round to round."""
        return True

    @property
    def state_affects_messages(self) -> bool:
        """Whether what it keeps acts on what it sends later."""
        return self.has_client_state

    @property
    def sends_auxiliary(self) -> bool:
        """Whether something is sent beside the update, and the server keeps something for this part."""
        return False

    @property
    def releases(self) -> tuple[AdditionalRelease, ...]:
        """What else of records is released, beside both streams."""
        return ()

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        """Of each parameter tensor, in the order of `pytrees.ravel`, whether it is shared; None: all are."""
        return None

    def local_params(self, run: InitContext) -> InitContext:
        """The run as the first stream of steps knows it: `params` are those that it moves."""
        return run

    def init(self, sgd: Any, run: InitContext) -> LocalState:
        """What the server keeps before round 0, and what clients keep, in arrays `(num_clients, ...)`."""
        return LocalState()

    def run(self, sgd: Any, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        """A client's round, traced: what the first stream came to, the new row, and what else is sent."""
        ...

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        """The server's part after the sum of what else is sent has arrived."""
        return server

    def model_of(self, sgd: Any, client: ClientContext, server: Any, own: Any) -> jax.Array:
        """The client's own model between rounds, flat `(size,)`; traced."""
        ...

    def floats(self, size: int) -> Floats:
        """Numbers that travel to and from a client beside what is shared of the model, of `size` parameters."""
        return Floats()

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        """Raise ConfigurationError, in one line, where it cannot be used."""
        return None


def rows_of(vector: Any, num_clients: int) -> jax.Array:
    return jnp.broadcast_to(vector, (num_clients, *jnp.shape(vector)))


def no_tensors(model: Model) -> tuple[bool, ...]:
    return (False,) * len(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def refuse_clean_steps(what: str) -> errors.ConfigurationError:
    """Where private parts without noise would act on updates whose records are noised."""
    return errors.refuse(
        "noise on the personal part",
        f"none, on {what}",
        "the shared steps' own where it acts on later updates",
        "a record would move it, and it every record's gradient; use ditto or finetune, or noise whole clients",
    )
