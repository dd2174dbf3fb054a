"""Clients that go on with something of their own: a model, a part of one, or an offset (personalisation).

All of them flow back into what their client sends, so they are made of noised gradients and cost nothing beside these.
"""

from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.models.selection import tensors_named
from fedjax_dp.parts.client_models import (
    PERSONAL,
    Ask,
    At,
    Begun,
    ClientModels,
    Finished,
    Gradients,
    Here,
    Phase,
    Point,
    rows_of,
)
from fedjax_dp.parts.composed_models import part_of
from fedjax_dp.parts.contexts import InitContext, LocalState
from fedjax_dp.parts.pull import Pull
from fedjax_dp.pytrees import Part, ravel, structure, tensor_sizes, value

MOST_STEPS = 10**6


@value
class OwnModel(ClientModels):
    """A client goes on with its own model, pulled to the one it receives (MR-MTL; Liu et al. 2022, arXiv:2206.07902).

    shared  whether it sends how that has moved: the server's model is then the mean of the clients' if every client
            weighs as much as it always does, absent or not (`Estimator` biased); False: it trains alone and sends
            nothing;
    clean   of a client that sends nothing: without clipping and noise.
    """

    pull: Pull = Pull(strength=0.0)
    shared: bool = structure(default=True)
    clean: bool = structure(default=False)

    equation = r"v_k \leftarrow v_k - \eta_t (\tilde g(v_k) + \lambda (v_k - w_t)),\ \Delta_k = v_k - v_k^{\text{old}}"

    has_client_state = True

    @property
    def state_affects_messages(self) -> bool:
        return self.shared

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps, (Ask(sent=self.shared, clean=self.clean),)),)

    def sent_tensors(self, model: Model) -> tuple[bool, ...] | None:
        return None if self.shared else nothing_of(model)

    def init(self, run: InitContext) -> LocalState:
        return LocalState(clients=rows_of(ravel(run.params)[0], run.data.num_clients))

    def begin(self, here: Here) -> Begun:
        return Begun((here.own,))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        model = self.pull.model(here.model, here.unravel(here.received))
        return (Point(model, here.unravel(at.vectors[0])),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> Gradients:
        return (self.pull.gradient(gradients[0], at.vectors[0], here.received, at.rate),), memory

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        return Finished(moved[0] if self.shared else moved[0][:0], (), begun.vectors[0] + moved[0])

    def personal(self, here: Here) -> jax.Array:
        own: jax.Array = here.own
        return own

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        self.pull.check()
        if self.clean and self.shared:
            raise clean_refused("a model that is sent")


@value
class OwnPart(ClientModels):
    """A client keeps some parameters, such as its head, and shares the others (FedPer; Arivazhagan et al. 2019).

    head        patterns of parameter paths with commas between, or `head`, the layer of the last product;
    head_steps  0: all move together, one clip over both; else so many steps on the kept part come first, and then those
                on the shared part, each clipped by itself (FedRep; Collins et al. 2021).
    """

    head: str = structure(default="head")
    head_steps: int = structure(default=0)

    @property
    def equation(self) -> str:
        if self.head_steps:
            return (
                r"h_k \leftarrow h_k - \eta_t \tilde g_h(\theta_t, h_k),\ "
                r"\text{then}\ \theta \leftarrow \theta - \eta_t \tilde g_\theta(\theta, h_k)"
            )
        return r"(\theta, h_k) \leftarrow (\theta, h_k) - \eta_t \tilde g(\theta, h_k),\ \Delta_k = \theta - \theta_t"

    has_client_state = state_affects_messages = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        if not self.head_steps:
            return (Phase(steps),)
        return Phase(self.head_steps, (Ask(PERSONAL),)), Phase(steps, moves=(1,))

    def kept(self, model: Model) -> tuple[bool, ...]:
        """Which tensors a client keeps."""
        return tensors_named("head", self.head, model)

    def sent_tensors(self, model: Model) -> tuple[bool, ...]:
        return tuple(not kept for kept in self.kept(model))

    def _parts(self, model: Model) -> tuple[Part, Part]:
        head = Part(tensor_sizes(jax.eval_shape(model.init, jax.random.key(0))), self.kept(model))
        return head, head.rest

    def init(self, run: InitContext) -> LocalState:
        head, _ = self._parts(run.model)
        return LocalState(clients=rows_of(head.take(ravel(run.params)[0]), run.data.num_clients))

    def begin(self, here: Here) -> Begun:
        if not self.head_steps:
            return Begun((self.personal(here),))
        return Begun((here.own, self._parts(here.model)[1].take(here.received)))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        if not self.head_steps:
            return (Point(here.model, here.unravel(at.vectors[0])),)
        head, _ = self._parts(here.model)
        own, shared = at.vectors
        whole = here.unravel(head.put(own, head.rest.put(shared, here.received)))
        chosen = self.sent_tensors(here.model) if at.phase else self.kept(here.model)
        return (Point(*part_of(here.model, whole, chosen)),)

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        head, shared = self._parts(here.model)
        if self.head_steps:
            return Finished(moved[1], (), begun.vectors[0] + moved[0])
        return Finished(shared.take(moved[0]), (), head.take(begun.vectors[0] + moved[0]))

    def personal(self, here: Here) -> jax.Array:
        return self._parts(here.model)[0].put(here.own, here.received)

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        errors.require_integer("head_steps", self.head_steps, 0, MOST_STEPS)
        if model is None:
            return
        kept = self.kept(model)
        if all(kept):
            remedy = "name a part of them, or use local"
            raise errors.refuse("head", f"{self.head!r}, which is every parameter", "a part of them", remedy)


@value
class OwnOffset(ClientModels):
    """A client adds something of its own to the shared model; one gradient at the sum moves both (PPSGD; Bietti et al.
    2022, arXiv:2202.05318).

    speed  of the client's own part, over the learning rate of the shared one.
    The sum moves at the speed of both, and the way is shared out at the end.
    """

    speed: float = 1.0

    equation = r"w_k \leftarrow w_k - \eta_t \tilde g(w_k + \theta_k),\ \theta_k \leftarrow \theta_k - \eta'_t \tilde g"

    has_client_state = state_affects_messages = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps, speed=1 + self.speed),)

    def init(self, run: InitContext) -> LocalState:
        return LocalState(clients=np.zeros((run.data.num_clients, run.size), np.float32))

    def begin(self, here: Here) -> Begun:
        return Begun((self.personal(here),))

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        way = moved[0] / (1 + self.speed)
        return Finished(way, (), here.own + self.speed * way)

    def personal(self, here: Here) -> jax.Array:
        whole: jax.Array = here.received + here.own
        return whole

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        errors.require_not_negative("personal_speed", self.speed)


def nothing_of(model: Model) -> tuple[bool, ...]:
    """No tensor of a model."""
    return (False,) * len(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def clean_refused(what: str) -> errors.ConfigurationError:
    """Where private parts without noise would act on updates whose records are noised."""
    return errors.refuse(
        "noise on the personal part",
        f"none, on {what}",
        "the shared steps' own where it acts on later updates",
        "a record would move it, and it every record's gradient; use ditto or finetune, or noise whole clients",
    )
