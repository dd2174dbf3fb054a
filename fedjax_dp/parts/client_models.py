"""Which models a client has in a round: where its steps begin, what they move, what it sends and what it keeps."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.data.store import Client
from fedjax_dp.models import Model
from fedjax_dp.parts.contexts import InitContext, LocalState
from fedjax_dp.parts.corrections import Floats
from fedjax_dp.pytrees import value

SHARED, PERSONAL = 0, 1  # series of gradients, each with batches and noise of its own


class Ask(NamedTuple):
    """A privatized gradient in every step of a phase.

    series  whose batches and noise it has: no two of a round have the same;
    sent    whether an update depends on it, in this round or later; else only what the client keeps does;
    noise   over that of the privatizer; None: as it is;
    clean   the plain gradient, which hides nothing.
    """

    series: int = SHARED
    sent: bool = True
    noise: Any = None
    clean: bool = False


class Phase(NamedTuple):
    """Steps of a round that move some vectors.

    steps  as `batches.count` takes them;
    moves  which of the vectors, that which corrections join first;
    speed  of the steps, over the learning rate; None: 1.
    Corrections join where one of the gradients is of series SHARED.
    """

    steps: int
    asks: tuple[Ask, ...] = (Ask(),)
    moves: tuple[int, ...] = (0,)
    speed: Any = None


class Here(NamedTuple):
    """What a client has when its round begins; vectors are flat."""

    received: jax.Array  # the model of the server (size,)
    shared: Any  # LocalState.server of this part, which every client receives
    own: Any  # its row of LocalState.clients
    model: Model
    unravel: Callable[[jax.Array], Any]
    key: jax.Array  # of the client's round, for this part alone
    client: Client
    share: jax.Array  # its public weight
    noise: jax.Array  # the noise multiplier of its privatizer
    look: Callable[[Callable[[jax.Array, Any], jax.Array]], jax.Array]  # mean of f(x, y) over its records


class Begun(NamedTuple):
    """Where the steps begin."""

    vectors: tuple[jax.Array, ...]  # which they move: flat, or several models alike, whose first corrections join
    memory: Any = ()  # whatever else changes with them


class At(NamedTuple):
    """A step."""

    phase: int
    rate: jax.Array
    first: jax.Array  # bool: of its phase
    vectors: tuple[jax.Array, ...]  # before it


Gradients = tuple[tuple[jax.Array, ...], Any]  # of the vectors that a step moves, and the new memory


class Point(NamedTuple):
    """Where a gradient is taken."""

    model: Model
    params: Any


class Finished(NamedTuple):
    """What comes of a client's steps."""

    update: jax.Array  # the change that it sends (sent size,)
    terms: Any = ()  # what joins it in its sum, float32 arrays
    own: Any = ()  # its new row


class ClientModels(Protocol):
    """The models of a client. Implementations are made with `fedjax_dp.value`.

    The methods given here are those of a client that begins with the model it receives, sends how that has moved, and
    keeps nothing. What is said of `sent`, `state_affects_messages` and clean gradients is not believed of other
    people's parts: `inspection.flow` traces it.
    """

    @property
    def has_client_state(self) -> bool:
        """Whether a client keeps something from round to round."""
        return False

    @property
    def state_affects_messages(self) -> bool:
        """Whether what it keeps acts on what it sends later."""
        return False

    @property
    def sends_auxiliary(self) -> bool:
        """Whether `finish` sends terms beside the update, and the server keeps something for this part."""
        return False

    @property
    def final(self) -> Phase | None:
        """Steps after the last round, from the model that is received then, for every client."""
        return None

    @property
    def choices(self) -> Any:
        """What else of records is released in a round, see `clusters.Choices`; None: nothing."""
        return None

    def phases(self, steps: int) -> tuple[Phase, ...]:
        """What happens in a round, in this order; `steps`: those of the local training. One has the series SHARED."""
        return (Phase(steps),)

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        """Of each parameter tensor, in the order of `pytrees.ravel`, whether it is shared; None: all are.

        What is not shared is in no message, in no sum, and no byte is counted for it.
        """
        return None

    def init(self, run: InitContext) -> LocalState:
        """What the server keeps for it before round 0, and what clients keep, in arrays `(num_clients, ...)`."""
        return LocalState()

    def begin(self, here: Here) -> Begun:
        """Where a client's steps begin; traced, as all that follows."""
        return Begun((here.received,))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        """Where the gradients of a step are taken, one for each of `asks`."""
        return (Point(here.model, here.unravel(at.vectors[0])),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> Gradients:
        """From the privatized gradients of a step to those of the vectors which it moves, and the new memory."""
        return gradients, memory

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        """What a client sends and keeps, after its steps have moved the vectors by `moved`."""
        return Finished(moved[0])

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        """The server's part after the sum of the terms has arrived."""
        return server

    def personal(self, here: Here) -> jax.Array:
        """The client's own model `(size,)`, between rounds; where there is a `final` phase, before it."""
        return here.received

    def floats(self, size: int) -> Floats:
        """Numbers that travel to and from a client beside what is shared of the model, of `size` parameters."""
        return Floats()

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        """Raise ConfigurationError, in one line, where it cannot be used."""
        return None


@value
class ReceivedModel(ClientModels):
    """A client begins with the model it receives, sends how that has moved, and keeps nothing."""

    equation = r"w \leftarrow w_t,\ \Delta_k = w - w_t"

    def begin(self, here: Here) -> Begun:
        return Begun((here.received,))

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        return Finished(moved[0])


def rows_of(vector: jax.Array, num_clients: int) -> jax.Array:
    """The same vector for every client."""
    return jnp.broadcast_to(vector, (num_clients, *vector.shape))


def is_personal(models: ClientModels) -> bool:
    """Whether clients end with models of their own."""
    return models.has_client_state or models.final is not None
