"""The slot `local`: what a client does in a round, and what accounting and inspection must know about it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Event
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batches
from fedjax_dp.parts.contexts import ClientContext, LocalResult
from fedjax_dp.parts.corrections import AcrossRounds
from fedjax_dp.parts.record_privacy import Privatizer


class AdditionalRelease(NamedTuple):
    """A release of a client's records in addition to the gradients of its local steps.

    event   of one round: event(local, noise multiplier, records, rates), as for `Privatizer`;
    sent    whether an update depends on it, in this round or later; if not, only the client's own state does;
    noised  if False, there is no privacy against anyone who sees what depends on it;
    stream  of private gradients, with its own batches and noise; None if the release has no gradients;
    steps   number of these gradients, as an argument of `batches.count`;
    most    largest number of rounds with this release; None: all rounds in which the client takes part;
    final   whether it happens once, after the last round, for every client.
    """

    event: Callable[["LocalTraining", float, int, Callable[[], np.ndarray]], Event]
    sent: bool
    noised: bool = True
    stream: int | None = None
    steps: int = 0
    most: int | None = None
    final: bool = False

    def times(self, rounds: float) -> float:
        """How often it happens in `rounds` rounds of a client."""
        return 1.0 if self.final else rounds if self.most is None else min(rounds, self.most)


class LocalTraining(AcrossRounds, Protocol):
    """Local training in a round, and its state across rounds. Implementations use `fedjax_dp.value`.

    Vectors of parameters are flat `(size,)`, in the order of `pytrees.ravel`. The defaults keep no state, send only the
    update and declare nothing about privacy. They train, but have no epsilon: each required privacy property must be
    declared in the class itself, not in a base class.

    A method `check(sizes, model, rounds)` may refuse what cannot run: sizes  records of each client `(num_clients,)`;
    model  None if not known yet.
    """

    privatizer: Privatizer  # a field, so that it can be replaced; computes every gradient of records
    batches: Batches  # a field; draws the records of the `batches.count` local steps
    steps: int  # a field; local steps of a round, or epochs: the argument of `batches.count(steps, records)`

    @property
    def no_epsilon_reason(self) -> str | None:
        """Required privacy property. Why there is no epsilon, if records are used without the privatizer; else None.

        None promises that what is sent or kept depends on records only through gradients of the privatizer.
        """
        name = type(self).__name__
        return f"{name} does not declare whether it uses records without its privatizer: implement no_epsilon_reason"

    @property
    def initial_release(self) -> bool:
        """Required privacy property. Whether `init` releases a round's privatized gradients of every client."""
        return False

    @property
    def extra_gradients(self) -> int:
        """Required privacy property. Privatized gradients per round beyond the local steps, each of a new batch."""
        return 0

    @property
    def is_sgd(self) -> bool:
        """Required privacy property. Whether, without client state, an update is minus the sum of rate times gradient.

        If members take one such step, their noise adds up in the sum of updates.
        """
        return False

    @property
    def sends_auxiliary(self) -> bool:
        """Whether clients send more than updates, or reveal their state to others."""
        return self.has_client_state

    @property
    def state_affects_messages(self) -> bool:
        """Whether a client's state affects its later messages."""
        return self.has_client_state

    @property
    def personal(self) -> bool:
        """Whether clients end with personal models, which `model_of` returns."""
        return False

    @property
    def sends_steps(self) -> bool:
        """Whether the local steps affect the update; if not, they only affect the client's state."""
        return True

    @property
    def additional_releases(self) -> tuple[AdditionalRelease, ...]:
        """Releases of records in addition to the gradients of the local steps; they are counted too."""
        return ()

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        """Whether each parameter tensor is shared, in the order of `pytrees.ravel`; None if all are."""
        return None

    def model_of(self, client: ClientContext) -> Any:
        """The client's personal model between rounds, a tree of parameters; traced. `client.key` is used only here."""
        return client.unravel(client.received.params)

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        """Required privacy property. Each further part on which the epsilon relies: (slot, part), see `facts.SLOTS`."""
        return ()

    def rates(self, round_index: Any, largest: int) -> jax.Array:
        """Required privacy property. Learning rates of a round's steps `(tau,)`; `largest`: records of the largest
        client."""
        ...

    def run(self, client: ClientContext) -> LocalResult:
        """Required privacy property. Runs one client's round; traced under `vmap` over clients."""
        ...


class Rule(Protocol):
    """How a gradient becomes a step: the slot `local rule` of `LocalTraining.parts`, with what accounting must know."""

    @property
    def is_sgd(self) -> bool:
        """Required privacy property. Whether the step's direction is the gradient itself."""
        ...


def extreme_rates(local: LocalTraining, largest: int, rounds: int) -> tuple[float, float]:
    """The smallest and the largest learning rate of a run."""
    rates = jax.vmap(lambda t: local.rates(t, largest))(jnp.arange(rounds))
    return float(rates.min()), float(rates.max())
