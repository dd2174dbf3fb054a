"""Personal models by the steps of `LocalSgd`.

A personal algorithm takes these steps once or twice per round: from another start, on another model, or with a second
stream of draws, which is a separate release.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.parts.client_models import ClientModels, refuse_clean_steps
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState
from fedjax_dp.parts.corrections import Floats
from fedjax_dp.parts.facts import restates
from fedjax_dp.parts.local_sgd import LocalSgd
from fedjax_dp.parts.local_training import AdditionalRelease
from fedjax_dp.pytrees import as_class, check_part, require_numbers, value


@restates(LocalSgd)
@value
class PersonalSgd(LocalSgd):
    """Steps of `LocalSgd` that train the personal models of `models`.

    All state is a pair: that of the steps and their corrections, and that of the models.
    """

    models: ClientModels

    @property
    def sgd(self) -> LocalSgd:
        return as_class(self, LocalSgd)

    def run(self, client: ClientContext) -> LocalResult:
        steps, server, own = _split_context(client)
        result, own, message = self.models.run(self.sgd, steps, server, own)
        return result._replace(auxiliary=(result.auxiliary, message), client_state=(result.client_state, own))

    def model_of(self, client: ClientContext) -> Any:
        # Steps after the last round are a separate run, whose schedule begins again.
        steps, server, own = _split_context(client._replace(round=jnp.zeros_like(client.round)))
        return client.unravel(self.models.model_of(self.sgd, steps, server, own))

    # What is kept across rounds.

    def init(self, run: InitContext) -> LocalState:
        steps, own = self.sgd.init(self.models.local_params(run)), self.models.init(self.sgd, run)
        return LocalState((steps.server, own.server), (steps.clients, own.clients))

    def send(self, state: LocalState, members: Members) -> Any:
        return self.sgd.send(LocalState(state.server[0], state.clients[0]), members)

    def absorb(self, server_state: Any, total: Any, num_clients: int) -> Any:
        (steps, own), (auxiliary, message) = server_state, total
        return self.sgd.absorb(steps, auxiliary, num_clients), self.models.absorb(own, message, num_clients)

    def exchange(
        self, state: LocalState, map_clients: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> LocalState:
        steps = self.sgd.exchange(LocalState(state.server[0], state.clients[0]), map_clients, members, upcoming)
        return LocalState((steps.server, state.server[1]), (steps.clients, state.clients[1]))

    # Facts: those of the steps, and of the models.

    personal = True

    @property
    def has_client_state(self) -> bool:
        return self.sgd.has_client_state or self.models.has_client_state

    @property
    def sends_auxiliary(self) -> bool:
        return self.sgd.sends_auxiliary or self.models.sends_auxiliary

    @property
    def state_affects_messages(self) -> bool:
        return self.sgd.has_client_state or self.models.state_affects_messages

    @property
    def sends_steps(self) -> bool:  # type: ignore[override]  # LocalSgd states it as a constant
        return self.models.sends_steps or self.sgd.sends_auxiliary

    @property
    def reads_records_outside_round(self) -> bool:
        return self.sgd.reads_records_outside_round or self.models.own_comes_last

    @property
    def additional_releases(self) -> tuple[AdditionalRelease, ...]:  # type: ignore[override]
        own, models = self.models.own_steps, self.models
        if own is None:
            return models.releases
        sent, final = models.own_is_sent, models.own_comes_last
        release = AdditionalRelease(own.event, sent, not own.clean, stream=1, steps=own.count(self), final=final)
        return (release, *models.releases)

    @property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        return (*self.sgd.parts, ("client models", self.models))

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        return self.models.sent_tensors(model)

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        each = self.sgd.floats(size, features, members, num_clients), self.models.floats(size)
        return Floats(*(sum(numbers) for numbers in zip(*each)))

    def check(self, sizes: np.ndarray, model: Model | None, rounds: int) -> None:
        check_part(self.sgd, sizes, model, rounds)
        models, own = self.models, self.models.own_steps
        check_part(models, model, sizes)
        require_numbers(own)
        if own is not None and own.clean and (models.own_is_sent or models.state_affects_messages):
            raise refuse_clean_steps(f"gradients of {type(models).__name__} that act on updates")
        if self.sgd.sends_auxiliary and any(not one.noised and one.stream == 0 for one in models.releases):
            raise refuse_clean_steps("gradients that corrections send")
        if self.rule.corrects and own is not None and not models.own_comes_last:
            remedy = "use a rule that subtracts nothing, such as adam"
            raise errors.refuse("local rule", "one that subtracts noise", "used with one gradient in a step", remedy)
        if self.privatizer.on_upload:
            remedy = "noise the gradients instead, as dpnfl does"
            raise errors.refuse("client state", "a model", "nothing under noise on the upload", remedy)


def _split_context(client: ClientContext) -> tuple[ClientContext, Any, Any]:
    """The client of the steps, and the server's and client's state of its models."""
    start, (server, models), (step_rows, own), extra = client.received
    return client.receiving(start, server, step_rows, extra), models, own
