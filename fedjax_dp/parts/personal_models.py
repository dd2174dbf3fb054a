"""Personalisation: clients that keep a model, some of its parameters, or an offset to it.

What they keep affects their messages, so it is computed from noisy gradients only and costs no additional privacy.
"""

from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.models.selection import tensors_named
from fedjax_dp.parts.client_models import MOST_STEPS, ClientModels, OwnSteps, no_tensors, refuse_clean_steps, rows_of
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.composed_models import part_of
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState, StepContext
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.parts.local_sgd import LocalSgd
from fedjax_dp.parts.local_training import AdditionalRelease
from fedjax_dp.parts.pull import Pull
from fedjax_dp.parts.record_privacy import NonPrivate
from fedjax_dp.pytrees import Part, number, ravel, replace, structure, tensor_sizes, value


@value
class _PullToReceived(Correction):
    """The pull of a client's own model to the received one, which is in `client.received.extra`."""

    form: Pull

    def gradient(
        self, gradient: jax.Array, params: jax.Array, step: StepContext, client: ClientContext, records: Records
    ) -> jax.Array:
        return self.form.gradient(gradient, params, client.received.extra, step.rate)


def with_pull(sgd: LocalSgd, client: ClientContext, pull: Pull, anchor: jax.Array) -> tuple[LocalSgd, ClientContext]:
    """The steps with a pull to an anchor before their other corrections, and the client that takes these steps."""
    start, server, rows, extra = client.received
    client = client.receiving(start, ((), *server), ((), *rows), (anchor, *extra))
    steps = replace(sgd, corrections=(_PullToReceived(form=pull), *sgd.corrections))
    return steps, client._replace(model=pull.model(client.model, client.unravel(anchor)))


def without_pull(result: LocalResult) -> LocalResult:
    """The result without the pull's message and state, which are empty."""
    return result._replace(auxiliary=result.auxiliary[1:], client_state=result.client_state[1:])


@value
class OwnModel(ClientModels):
    """A client trains its own model, pulled to the one it receives (MR-MTL; Liu et al. 2022, arXiv:2206.07902).

    shared  whether it sends the change of its model. The server's model is then the mean of the clients' models if
            weights do not depend on the cohort (`Estimator` biased). False: it trains alone and sends nothing;
    clean   without clipping and noise, for clients that send nothing.
    """

    pull: Pull = Pull(strength=0.0)
    shared: bool = structure(default=True)
    clean: bool = structure(default=False)

    equation = r"v_k \leftarrow v_k - \eta_t (\tilde g(v_k) + \lambda (v_k - w_t)),\ \Delta_k = v_k - v_k^{\text{old}}"

    @property
    def sends_steps(self) -> bool:
        return self.shared

    @property
    def state_affects_messages(self) -> bool:
        return self.shared

    @property
    def releases(self) -> tuple[AdditionalRelease, ...]:
        unnoised = AdditionalRelease(OwnSteps(clean=True).event, sent=self.shared, noised=False, stream=0)
        return (unnoised,) if self.clean else ()

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        return None if self.shared else no_tensors(model)

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        return LocalState(clients=rows_of(ravel(run.params)[0], run.data.num_clients))

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        sgd = replace(sgd, privatizer=NonPrivate()) if self.clean else sgd
        received, *more = client.received
        steps, client = with_pull(sgd, client.receiving(own, *more), self.pull, client.shard(received))
        result = without_pull(steps.run(client))
        update = result.update if self.shared else result.update[:0]
        return result._replace(update=update), own + result.update, ()

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        return own

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        if self.clean and self.shared:
            raise refuse_clean_steps("a model that is sent")


@value
class OwnPart(ClientModels):
    """A client keeps some parameters, such as its head, and shares the others (FedPer; Arivazhagan et al. 2019).

    head        comma-separated patterns of parameter paths, or `head`, the layer of the last matrix product;
    head_steps  0: both parts move together and are clipped as one vector. Else `head_steps` steps on the kept part come
                first, then the steps on the shared part, each part clipped separately (FedRep; Collins et al. 2021).
    """

    head: str = structure(default="head")
    head_steps: int = structure(errors.integers(0, MOST_STEPS), default=0)

    @property
    def equation(self) -> str:
        if self.head_steps:
            return (
                r"h_k \leftarrow h_k - \eta_t \tilde g_h(\theta_t, h_k),\ "
                r"\text{then}\ \theta \leftarrow \theta - \eta_t \tilde g_\theta(\theta, h_k)"
            )
        return r"(\theta, h_k) \leftarrow (\theta, h_k) - \eta_t \tilde g(\theta, h_k),\ \Delta_k = \theta - \theta_t"

    @property
    def own_steps(self) -> OwnSteps | None:
        return OwnSteps(steps=self.head_steps) if self.head_steps else None

    def head_tensors(self, model: Model) -> tuple[bool, ...]:
        return tensors_named("head", self.head, model)

    def sent_tensors(self, model: Model) -> tuple[bool, ...]:
        return tuple(not in_head for in_head in self.head_tensors(model))

    def part(self, model: Model) -> Part:
        return Part(tensor_sizes(jax.eval_shape(model.init, jax.random.key(0))), self.head_tensors(model))

    def local_params(self, run: InitContext) -> InitContext:
        if not self.head_steps:
            return run
        rest = self.part(run.model).rest.take(ravel(run.params)[0])
        return run._replace(params=rest, size=rest.size)

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        head, own = self.part(run.model).take(ravel(run.params)[0]), self.own_steps
        rows = () if own is None else own.of(sgd).init(run._replace(params=head, size=head.size)).clients
        return LocalState(clients={"head": rows_of(head, run.data.num_clients), "steps": rows})

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        received, *more = client.received
        part, head, steps = self.part(client.model), own["head"], self.own_steps
        if steps is None:
            whole = part.insert(head, received)
            result = sgd.run(client.receiving(whole, *more))
            own = {"head": part.take(whole + result.update), "steps": ()}
            return result._replace(update=part.rest.take(result.update)), own, ()
        first = on_part(steps.context(client), self.head_tensors(client.model), received)
        first = first.receiving(head, (), own["steps"], ())
        mine = steps.of(sgd).run(first)
        head = head + mine.update
        rest = on_part(client, self.sent_tensors(client.model), part.insert(head, received))
        result = sgd.run(rest.receiving(part.rest.take(received), *more))
        return result, {"head": head, "steps": mine.client_state}, ()

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        return self.part(client.model).insert(own["head"], client.received.params)

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        if model is None:
            return
        if all(self.head_tensors(model)):
            remedy = "name fewer, or use local"
            raise errors.refuse("head", f"{self.head!r}, which is all parameters", "some of the parameters", remedy)


def on_part(client: ClientContext, chosen: tuple[bool, ...], whole: jax.Array) -> ClientContext:
    """The client with a model of the chosen tensors only; the other parameters are fixed at those of `whole`."""
    part = Part(tensor_sizes(client.unravel(whole)), chosen)

    def of(vector: jax.Array) -> Any:
        return part_of(client.model, client.unravel(part.insert(vector, whole)), chosen)

    return client._replace(model=of(part.take(whole))[0], unravel=lambda vector: of(vector)[1])


@value
class OwnOffset(ClientModels):
    """A client adds its own offset to the shared model; one gradient at the sum moves both (PPSGD; Bietti et al. 2022,
    arXiv:2202.05318).

    speed  learning rate of the offset, divided by that of the shared model.
    The sum moves with both learning rates, and its change is divided between them at the end.
    """

    speed: float = number(errors.require_not_negative, option="personal_speed", default=1.0)

    equation = r"w_k \leftarrow w_k - \eta_t \tilde g(w_k + \theta_k),\ \theta_k \leftarrow \theta_k - \eta'_t \tilde g"

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        return LocalState(clients=np.zeros((run.data.num_clients, run.size), np.float32))

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        received, *more = client.received
        faster = replace(sgd, learning_rate=sgd.learning_rate * (1 + self.speed))
        result = faster.run(client.receiving(received + own, *more))
        shared = result.update / (1 + self.speed)
        return result._replace(update=shared), own + self.speed * shared, ()

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        return client.received.params + own
