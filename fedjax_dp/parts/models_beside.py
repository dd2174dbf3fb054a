"""Clients that train a model of their own beside the shared one, or after it (personalisation).

What is their own never flows back into what they send: its gradients cost only those who see the personal models
themselves (view `deployed`), unless they are clipped and noised together with the shared ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.parts.client_models import (
    PERSONAL,
    SHARED,
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
from fedjax_dp.parts.composed_models import pair_of
from fedjax_dp.parts.contexts import InitContext, LocalState
from fedjax_dp.parts.personal_models import MOST_STEPS
from fedjax_dp.parts.pull import INSIDE, Pull
from fedjax_dp.pytrees import ravel, structure, value


@value
class ModelBeside(ClientModels):
    """Beside the shared model a client trains one of its own, pulled to the one it receives (Ditto; Li et al. 2021,
    arXiv:2012.04221).

    steps  of its own model in a round; noise and speed of these, over those of the shared steps; clean: without
           clipping and noise, for nobody sees it but the client (view `owner`).
    """

    pull: Pull
    noise: float = 1.0
    speed: float = 1.0
    steps: int = structure(default=1)
    clean: bool = structure(default=False)

    equation = (
        r"w_k \leftarrow w_k - \eta_t \tilde g(w_k),\ v_k \leftarrow v_k - \eta_t (\tilde g(v_k) + \lambda (v_k - w_t))"
    )

    has_client_state = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return Phase(steps), Phase(self.steps, (Ask(PERSONAL, False, self.noise, self.clean),), (1,), self.speed)

    def init(self, run: InitContext) -> LocalState:
        return LocalState(clients=rows_of(ravel(run.params)[0], run.data.num_clients))

    def begin(self, here: Here) -> Begun:
        return Begun((here.received, here.own))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        model = self.pull.model(here.model, here.unravel(here.received)) if at.phase else here.model
        return (Point(model, here.unravel(at.vectors[at.phase])),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> Gradients:
        if not at.phase:
            return gradients, memory
        return (self.pull.gradient(gradients[0], at.vectors[1], here.received, at.rate),), memory

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        return Finished(moved[0], (), begun.vectors[1] + moved[1])

    def personal(self, here: Here) -> jax.Array:
        own: jax.Array = here.own
        return own

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        self.pull.check()
        errors.require_count("personal_steps", self.steps)
        _check_beside(self.noise, self.speed)


@value
class JointModels(ClientModels):
    """As `ModelBeside`, but a record's gradients of both models are clipped as one vector and noised once: one release
    in a step serves both."""

    pull: Pull

    equation = (
        r"(\tilde g_w, \tilde g_v)\ \text{of one clip},\ w_k \leftarrow w_k - \eta_t \tilde g_w,\ "
        r"v_k \leftarrow v_k - \eta_t (\tilde g_v + \lambda (v_k - w_t))"
    )

    has_client_state = state_affects_messages = True

    def init(self, run: InitContext) -> LocalState:
        return LocalState(clients=rows_of(ravel(run.params)[0], run.data.num_clients))

    def begin(self, here: Here) -> Begun:
        return Begun((jnp.stack([here.received, here.own]),))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        one, other = at.vectors[0]
        return (Point(pair_of(here.model), (here.unravel(one), here.unravel(other))),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> Gradients:
        both = gradients[0].reshape(2, -1)  # one array: see `walk`, of the noise of several models
        pulled = self.pull.gradient(both, at.vectors[0], here.received[None], at.rate)
        return (jnp.where(jnp.arange(2)[:, None] == 0, both, pulled),), memory

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        shared, own = moved[0]
        return Finished(shared, (), here.own + own)

    def personal(self, here: Here) -> jax.Array:
        own: jax.Array = here.own
        return own

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        self.pull.check()
        if self.pull.form == INSIDE:
            remedy = "use after, explicit or implicit"
            raise errors.refuse("proximal", INSIDE, "outside of the clip where both models have one", remedy)


@value
class MixedModels(ClientModels):
    """A client's model is alpha v + (1 - alpha) w, of its own v and the shared w (APFL; Deng et al. 2020,
    arXiv:2003.13461).

    In a step w moves by a gradient at w, and v by one at the mixture, which is another release.
    alpha_speed  0: alpha stays; else alpha <- alpha - alpha_speed <gradient at the mixture, v - w> within [0, 1] in the
                 first step of a round, from a gradient that is released anyway.
    """

    alpha: float
    alpha_speed: float = 0.0
    noise: float = 1.0
    clean: bool = structure(default=False)

    equation = (
        r"w_k \leftarrow w_k - \eta_t \tilde g(w_k),\ v_k \leftarrow v_k - \eta_t \alpha_k \tilde g(x_k),\ "
        r"x_k = \alpha_k v_k + (1 - \alpha_k) w_k"
    )

    has_client_state = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps, (Ask(SHARED), Ask(PERSONAL, False, self.noise, self.clean)), (0, 1)),)

    def init(self, run: InitContext) -> LocalState:
        clients = run.data.num_clients
        alphas = jnp.full((clients,), jnp.asarray(self.alpha, jnp.float32))
        return LocalState(clients={"alpha": alphas, "model": rows_of(ravel(run.params)[0], clients)})

    def begin(self, here: Here) -> Begun:
        return Begun((here.received, here.own["model"]), here.own["alpha"])

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        shared, own = at.vectors
        mixed = memory * own + (1 - memory) * shared
        return Point(here.model, here.unravel(shared)), Point(here.model, here.unravel(mixed))

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> Gradients:
        at_shared, at_mixed = gradients

        def turned(alpha: jax.Array, at_mixed: jax.Array) -> jax.Array:
            apart = here.own["model"] - here.received  # in the first step
            return jnp.clip(alpha - self.alpha_speed * jnp.vdot(at_mixed, apart), 0.0, 1.0)

        def in_first(alpha: jax.Array, at_mixed: jax.Array) -> Any:
            """On a CPU no other step computes it; on an accelerator it takes longer to ask."""
            return lax.cond(at.first, turned, lambda alpha, _: alpha, alpha, at_mixed)

        def always(alpha: jax.Array, at_mixed: jax.Array) -> jax.Array:
            return jnp.where(at.first, turned(alpha, at_mixed), alpha)

        alpha = lax.platform_dependent(memory, at_mixed, cpu=in_first, default=always)
        return (at_shared, memory * at_mixed), alpha

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        return Finished(moved[0], (), {"alpha": memory, "model": here.own["model"] + moved[1]})

    def personal(self, here: Here) -> jax.Array:
        alpha, own = here.own["alpha"], here.own["model"]
        mixed: jax.Array = alpha * own + (1 - alpha) * here.received
        return mixed

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        if not 0 <= float(self.alpha) <= 1:
            raise errors.refuse("alpha", self.alpha, "in [0, 1]", "0 is the shared model, 1 the client's own")
        errors.require_not_negative("alpha_speed", self.alpha_speed)
        _check_beside(self.noise, 1.0)


@value
class FineTuned(ClientModels):
    """After the last round every client goes on from the model by itself; before that, nothing is personal.

    steps  that it takes; noise and speed of these, over those of the rounds'; clean: without clipping and noise.
    """

    noise: float = 1.0
    speed: float = 1.0
    steps: int = structure(default=1)
    clean: bool = structure(default=False)

    equation = r"v_k \leftarrow w_T,\ \text{then}\ v_k \leftarrow v_k - \eta_t \tilde g(v_k)"

    @property
    def final(self) -> Phase | None:
        return Phase(self.steps, (Ask(PERSONAL, False, self.noise, self.clean),), speed=self.speed)

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        errors.require_integer("personal_steps", self.steps, 0, MOST_STEPS)
        _check_beside(self.noise, self.speed)


def _check_beside(noise: Any, speed: Any) -> None:
    errors.require_positive("personal_noise", noise, "0 leaves the personal steps without clipping and noise: clean")
    errors.require_positive("personal_speed", speed)
