"""What a client does in a round, as the rounds, the accountants and the inspection know it: the slot `local`."""

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
    """What else of a client's records is released, beside the gradients of its local steps.

    event   of one round, in the accountants' words: event(local, noise multiplier, records, rates), as of `Privatizer`;
    sent    whether an update depends on it, in this round or later; else what the client keeps does alone;
    noised  else there is no privacy for whoever sees what depends on it;
    stream  of the private gradients that it is of, each stream with batches and noise of its own; None: it is of none;
    steps   how many these are, as `batches.count` takes it;
    most    rounds in which it is taken at most; None: all in which the client takes part;
    final   it is taken once, after the last round, for every client.
    """

    event: Callable[["LocalTraining", float, int, np.ndarray], Event]
    sent: bool
    noised: bool = True
    stream: int | None = None
    steps: int = 0
    most: int | None = None
    final: bool = False

    def times(self, rounds: float) -> float:
        """How often it is taken, in so many rounds of a client."""
        return 1.0 if self.final else rounds if self.most is None else min(rounds, self.most)


class LocalTraining(AcrossRounds, Protocol):
    """Local steps, and what clients and server keep for them from round to round.

    Implementations are made with `fedjax_dp.value`. Vectors of the model's parameters are flat `(size,)`, in the order
    of `pytrees.ravel`. The bodies given here are those of local steps that keep and send nothing beside an update, and
    that say nothing of their privacy. Those train, but have no epsilon: all that is marked as a fact must be stated in
    the very class, as what a base class states is not believed of its subclasses.
    """

    privatizer: Privatizer  # a field, so that another can be put in its place; makes every gradient of records
    batches: Batches  # a field; draws the records of every local step, as often as `batches.count` says
    steps: int  # a field; local steps of a round, or epochs, as `batches.count(steps, records)` takes it

    @property
    def no_epsilon_reason(self) -> str | None:
        """Required privacy property. Why there is no epsilon: records act past the privatizer; None: they do not.

        What is sent or kept must then depend on records through gradients of the privatizer alone.
        """
        return (
            f"{type(self).__name__} does not say whether records act past its privatizer: implement no_epsilon_reason"
        )

    @property
    def initial_release(self) -> bool:
        """Required privacy property. Whether `init` releases a round's privatized gradients of every client."""
        return False

    @property
    def extra_gradients(self) -> int:
        """Required privacy property. Privatized gradients of a round beyond its local steps, each of a new batch."""
        return 0

    @property
    def is_sgd(self) -> bool:
        """Required privacy property. Whether, without client state, an update is minus the sum of rate times gradient.

        The noise of members that take one such step adds up in their sum.
        """
        return False

    @property
    def sends_auxiliary(self) -> bool:
        """Whether something is sent beside the updates, or others than the client learn of what it keeps."""
        return self.has_client_state

    @property
    def state_affects_messages(self) -> bool:
        """Whether what a client keeps acts on what it sends later."""
        return self.has_client_state

    @property
    def personal(self) -> bool:
        """Whether clients end with models of their own, which `model_of` gives."""
        return False

    @property
    def sends_steps(self) -> bool:
        """Whether the local steps act on an update; else only on what the client keeps."""
        return True

    @property
    def additional_releases(self) -> tuple[AdditionalRelease, ...]:
        """What else of records is released, counted with the gradients of the steps."""
        return ()

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        """Of each parameter tensor, in the order of `pytrees.ravel`, whether it is shared; None: all are."""
        return None

    def model_of(self, client: ClientContext) -> Any:
        """A client's own model after so many rounds, a tree of parameters; traced. `client.key` is for this alone."""
        return client.unravel(client.received.params)

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        """Required privacy property. (slot, part) of each further part that a proof rests on, as in `facts.SLOTS`."""
        return ()

    def check(self, sizes: np.ndarray, model: Model | None, rounds: int) -> None:
        """Raise ConfigurationError, in one line, where so many rounds cannot run.

        sizes: records of each client `(num_clients,)`; model: None where it is not known yet.
        """

    def rates(self, round_index: Any, largest: int) -> jax.Array:
        """Required privacy property. Rates of the steps of a round `(tau,)`; `largest`: records of a client."""
        ...

    def run(self, client: ClientContext) -> LocalResult:
        """Required privacy property. One client's round, traced under `vmap` over clients."""
        ...


class Rule(Protocol):
    """How a gradient becomes a step, as far as a proof knows it: the slot `local rule` of `LocalTraining.parts`."""

    @property
    def is_sgd(self) -> bool:
        """Required privacy property. Whether the step is the gradient itself."""
        ...


def extreme_rates(local: LocalTraining, largest: int, rounds: int) -> tuple[float, float]:
    """The smallest and the largest learning rate of all steps of a run."""
    rates = jax.vmap(lambda t: local.rates(t, largest))(jnp.arange(rounds))
    return float(rates.min()), float(rates.max())
