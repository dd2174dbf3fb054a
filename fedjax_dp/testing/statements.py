"""Are an algorithm's parts what they state, and is there no way for records past what is accounted for?"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_dp import errors, inspection
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import flow
from fedjax_dp.inspection.verdict import CheckReport, require
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalState, StepContext
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.pytrees import changed, structure, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing import instruments
from fedjax_dp.testing.checks import run_check, usable_model
from fedjax_dp.testing.mutation import WrongProgram


@value
class _Sending(Correction):
    """A correction whose messages, `send(update, client, another_gradient)`, the server only keeps."""

    send_beside: Callable[[jax.Array, ClientContext, Callable[..., Any]], Any] = structure()
    extra_gradients: int = structure(default=0)

    has_client_state, pull = False, 0.0

    def init(self, run: InitContext) -> LocalState:
        return LocalState(jnp.zeros(run.size))

    def finish(
        self, update: jax.Array, client: ClientContext, total_rate: jax.Array, another_gradient: Callable[..., Any]
    ) -> tuple[Any, Any]:
        return self.send_beside(update, client, another_gradient), ()

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        return total


def _extra_gradient(update: jax.Array, client: ClientContext, another_gradient: Callable[..., Any]) -> Any:
    return another_gradient(client.received.params + update)


def _extra_gradients_in_a_loop(update: jax.Array, client: ClientContext, another_gradient: Callable[..., Any]) -> Any:
    return jax.lax.map(lambda part: another_gradient(part * client.received.params), jnp.arange(2.0)).sum(0)


def _update_itself(update: jax.Array, client: ClientContext, another_gradient: Callable[..., Any]) -> Any:
    return update


@value
class _ReadsTargets(Correction):
    pull = 0.0

    def gradient(
        self, gradient: jax.Array, params: jax.Array, step: StepContext, client: ClientContext, records: Records
    ) -> jax.Array:
        return gradient + 1e-3 * sum(jnp.mean(a) for a in jax.tree.leaves(records.y))


def _with(algorithm: Algorithm, correction: Correction) -> Algorithm:
    local: Any = algorithm.local
    return changed(algorithm, local=changed(local, corrections=(*local.corrections, correction)))


def _of_records(algorithm: Algorithm, correction: Correction) -> Algorithm:
    if algorithm.upload.unit is not None:
        raise errors.refuse("algorithm", "one that noises whole clients", "one that noises steps")
    return _with(algorithm, correction)


def undeclared_gradient(algorithm: Algorithm) -> Algorithm:
    """One more privatized gradient leaves every client, which nobody counts."""
    return _of_records(algorithm, _Sending(send_beside=_extra_gradient))


def repeated_gradient(algorithm: Algorithm) -> Algorithm:
    """Two more privatized gradients are stated, and made in a loop: with one batch and one noise."""
    if not algorithm.local.batches.even:
        raise errors.refuse("batches", "epochs", "of equal number for every client", "these have no further gradients")
    return _of_records(algorithm, _Sending(send_beside=_extra_gradients_in_a_loop, extra_gradients=2))


def reading_correction(algorithm: Algorithm) -> Algorithm:
    """A correction reads the targets of a batch past the privatizer."""
    return _of_records(algorithm, _ReadsTargets())


def unnoised_term(algorithm: Algorithm) -> Algorithm:
    """A term travels beside the noised update of whole clients."""
    if algorithm.upload.unit is None:
        raise errors.refuse("algorithm", "one that noises steps", "one that noises whole clients")
    return _with(algorithm, _Sending(send_beside=_update_itself))


LEAKS = (undeclared_gradient, repeated_gradient, reading_correction, unnoised_term)


def check_statements(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    model: Model | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = LEAKS,
    seed: int = 0,
) -> list[CheckReport]:
    """Every part states its facts, nothing contradicts them, and records reach messages by what is counted alone.

    Looked at: the exact classes of the parts; the traced round, from records to messages and states; draws, noise and
    bounds of the parts that are not the project's own. It is what a Guarantee requires, and of the project's parts too.
    wrong    programs that the same check must reject, those that do not apply left out: gradients that are not counted,
             or made in a loop; targets read past the privatizer; a term beside the noised update.
    Errors:  the trace is exact; statistical assertions as `fedjax_dp.inspection` says.
    Raises:  AssertionError; ConfigurationError for an algorithm without an epsilon.
    """
    model = usable_model(algorithm, data, model)
    instruments.require_private(algorithm)
    return run_check(_examine, algorithm, wrong, "this should not happen", data, model, seed)


def _examine(algorithm: Algorithm, data: FederatedData, model: Model, seed: int) -> None:
    try:
        facts.require_facts(algorithm)
        flow.check(algorithm, data, model)
        inspection.require_true(algorithm, data, model, 10, seed)
    except errors.ConfigurationError as refusal:
        raise AssertionError(str(refusal)) from None
    require(True, "parts are what they state", "nothing against it", "so", "the trace of the round is exact")
