"""Terms added to the gradient of a local step after clipping and noise, and what clients and server keep for them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import InitContext, LocalState
from fedjax_dp.pytrees import structure, value


class Step(NamedTuple):
    """One local step as a correction sees it; vectors are flat `(size,)`."""

    params: jax.Array
    start: jax.Array  # the model that the round began with
    server: Any  # LocalState.server, which every client receives
    own: Any  # this client's row of LocalState.clients
    received: Any  # what `send` gave this client alone
    records: Records
    model: Model
    unravel: Callable[[jax.Array], Any]


class Visit(NamedTuple):
    """A client's finished local steps."""

    start: jax.Array
    moved: jax.Array  # local model minus start, without the rounding of either
    server: Any
    own: Any
    received: Any
    drift: jax.Array  # sum of the learning rates of the steps taken
    gradient: Callable[[jax.Array], jax.Array]  # one more privatized gradient, at given parameters
    look: Callable[[Callable[..., Any], jax.Array], Any]  # look(f, params) = f(key, params tree, client, data, model)

    @property
    def end(self) -> jax.Array:
        """The local model."""
        return self.start + self.moved


class Floats(NamedTuple):
    """Numbers of four bytes that travel to and from one client of a cohort, beside model and update."""

    down: int = 0
    up: int = 0  # sent apart
    summed: int = 0  # sent along with the update, and summed like it


class Correction(Protocol):
    """A term of a local step's gradient. Implementations are made with `fedjax_dp.value`.

    The methods given here are those of a term that neither keeps nor sends anything. What one says of itself here,
    `inspection.flow` finds out, but for the fact `pull`. Vectors are flat `(size,)`, in the order of `pytrees.ravel`.
    """

    @property
    def no_epsilon_reason(self) -> str | None:
        """Why there is no epsilon, where records act past the privatizer; None: nowhere do they."""
        return None

    @property
    def has_client_state(self) -> bool:
        """Whether clients keep something across rounds."""
        return False

    even: bool = False  # reads gradients off the update, so it needs plain steps of one rate

    @property
    def extra_gradients(self) -> int:
        """Privatized gradients of a client's round beyond its local steps."""
        return 0

    @property
    def initial_release(self) -> bool:
        """Whether every client releases a round's privatized gradients before round 0."""
        return False

    @property
    def reads_records_outside_round(self) -> bool:
        """Whether records of clients are looked at apart from their local steps."""
        return False

    @property
    def separable_state(self) -> bool:
        """Whether a client's row concerns nobody else, so that only those of a cohort need to be at hand."""
        return type(self).send is Correction.send and type(self).exchange is Correction.exchange

    @property
    def pull(self) -> float:
        """Fact. How strongly a step of rate 1 draws the model to a fixed point."""
        return 0.0

    def init(self, run: InitContext) -> LocalState:
        """What the server keeps before round 0, and what clients keep, in arrays `(num_clients, ...)`."""
        return LocalState()

    def send(self, memory: LocalState, members: Members) -> Any:
        """What a member receives beside the model and LocalState.server; leading axis `(members,)`."""
        return ()

    def gradient(self, gradient: jax.Array, step: Step) -> jax.Array:
        """The gradient that the step uses `(size,)`, from the privatized one with the terms before this."""
        return gradient

    def finish(self, visit: Visit) -> tuple[Any, Any]:
        """What joins the update in its sum over the members, float32 arrays, and the client's new row."""
        return (), ()

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        """The server part after the sum has arrived."""
        return server

    def exchange(
        self, memory: LocalState, look: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> LocalState:
        """After the new model: what clients of this round or the next send about it.

        look(f, ids) = f(key, new params tree, client, data, model) for each id.
        """
        return memory

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        """Numbers that travel to and from one member in a round, beside model and update.

        size, features: parameters of the model, and the width of its last hidden layer, if it has one.
        """
        return Floats()

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        """Raise ConfigurationError, in one line, where it cannot be used.

        model: None where it is not known yet; sizes: records of each client `(num_clients,)`.
        """
        return None


@value
class L2Penalty(Correction):
    """The gradient 2 h w of h |w|^2 on all parameters. Data independent, so it is added after the noise."""

    strength: float

    equation = r"+\, 2 h w"

    @property
    def pull(self) -> float:
        return 2 * float(self.strength)

    def gradient(self, gradient: jax.Array, step: Step) -> jax.Array:
        return gradient + 2 * self.strength * step.params

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        errors.require_not_negative("l2", self.strength)


@value
class Proximal(Correction):
    """The gradient mu (w - w_start) of (mu/2) |w - w_start|^2 (FedProx, Li et al. 2020)."""

    strength: float

    equation = r"+\, \mu (w - w_t)"

    @property
    def pull(self) -> float:
        return float(self.strength)

    def gradient(self, gradient: jax.Array, step: Step) -> jax.Array:
        return gradient + self.strength * (step.params - step.start)

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        errors.require_not_negative("mu", self.strength)


@value
class ControlVariates(Correction):
    """SCAFFOLD (Karimireddy et al. 2020): every step adds c - c_i, so that clients drift alike.

    A client keeps c_i and sends its change with the update; the server keeps c, their mean over all N clients.
    again        False: option II, c_i <- c_i - c + (w_start - w_end) / sum of rates, which is the mean of the gradients
                 that the steps used, so it releases nothing new; True: option I, c_i <- one more privatized gradient at
                 the received model, which is one more release;
    warm_start   every client begins with the mean of tau privatized gradients at the first model instead of zero: tau
                 more releases for every client (DP-SCAFFOLD, Noble et al. 2022).
    """

    even = True
    pull = 0.0

    again: bool = structure(default=False)
    warm_start: bool = structure(default=False)

    @property
    def equation(self) -> str:
        option = r"\tilde g(w_t)" if self.again else r"c_k - c + (w_t - w_k) / \textstyle\sum_s \eta_s"
        return rf"+\, c - c_k;\ c_k \leftarrow {option},\ c = \frac{{1}}{{N}} \textstyle\sum_k c_k"

    @property
    def has_client_state(self) -> bool:
        return True

    @property
    def extra_gradients(self) -> int:
        return int(self.again)

    @property
    def initial_release(self) -> bool:
        return self.warm_start

    def init(self, run: InitContext) -> LocalState:
        if not self.warm_start:
            # NumPy's zeros take no memory until they are copied to where the run wants them
            rows = np.zeros((run.data.num_clients, run.size), np.float32)
            return LocalState(np.zeros(run.size, np.float32), rows)
        assert run.initial_gradients is not None
        controls = run.initial_gradients()
        return LocalState(controls.mean(0), controls)

    def gradient(self, gradient: jax.Array, step: Step) -> jax.Array:
        apart: jax.Array = step.server - step.own
        return gradient + apart

    def finish(self, visit: Visit) -> tuple[Any, Any]:
        step = -visit.moved / visit.drift  # the mean of what the steps subtracted
        control = visit.gradient(visit.start) if self.again else visit.own - visit.server + step
        return control - visit.own, control

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        return server + total / num_clients

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        return Floats(down=size, summed=size)


def kept(table: jax.Array, places: jax.Array, present: jax.Array, rows: jax.Array) -> jax.Array:
    """A table with the rows at the places `(members,)` of the present members replaced."""
    return table.at[jnp.where(present, places, table.shape[0])].set(rows, mode="drop")
