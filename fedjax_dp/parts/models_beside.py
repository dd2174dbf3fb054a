"""Personalisation: clients that train a personal model in addition to the shared one, or after it.

Personal models never affect messages: their gradients count only against an adversary who sees the personal models
themselves (view `deployed`), unless they are clipped and noised together with the shared ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.parts.client_models import MOST_STEPS, ClientModels, OwnSteps, rows_of
from fedjax_dp.parts.composed_models import PairOf
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState
from fedjax_dp.parts.local_sgd import LocalSgd, SgdState, StepDraw
from fedjax_dp.parts.personal_models import with_pull, without_pull
from fedjax_dp.parts.pull import INSIDE, Pull
from fedjax_dp.pytrees import number, ravel, replace, structure, value


@value
class ModelBeside(ClientModels):
    """A client also trains a personal model, pulled to the shared one that it receives (Ditto; Li et al. 2021,
    arXiv:2012.04221).

    steps  of the personal model per round; noise, speed: factors on the shared steps' noise multiplier and learning
           rate; clean: without clipping and noise, as only the client sees the personal model (view `owner`).
    """

    pull: Pull
    noise: float = 1.0
    speed: float = 1.0
    steps: int = structure(errors.require_count, option="personal_steps", default=1)
    clean: bool = structure(default=False)

    equation = (
        r"w_k \leftarrow w_k - \eta_t \tilde g(w_k),\ v_k \leftarrow v_k - \eta_t (\tilde g(v_k) + \lambda (v_k - w_t))"
    )

    own_is_sent = state_affects_messages = False

    @property
    def own_steps(self) -> OwnSteps:
        return OwnSteps(noise=self.noise, speed=self.speed, steps=self.steps, clean=self.clean)

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        states = self.own_steps.of(sgd).init(run).clients
        return LocalState(clients={"model": rows_of(ravel(run.params)[0], run.data.num_clients), "steps": states})

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        result, anchor = sgd.run(client), client.shard(client.received.params)
        personal = self.own_steps.context(client).receiving(own["model"], (), own["steps"], ())
        steps, personal = with_pull(self.own_steps.of(sgd), personal, self.pull, anchor)
        mine = without_pull(steps.run(personal))
        return result, {"model": own["model"] + mine.update, "steps": mine.client_state}, ()

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        return own["model"]


@value
class JointModels(ClientModels):
    """As `ModelBeside`, but a record's gradients of both models are clipped as one vector and noised once: each step is
    a single release. Corrections apply to the shared model only."""

    pull: Pull

    equation = (
        r"(\tilde g_w, \tilde g_v)\ \text{of one clip},\ w_k \leftarrow w_k - \eta_t \tilde g_w,\ "
        r"v_k \leftarrow v_k - \eta_t (\tilde g_v + \lambda (v_k - w_t))"
    )

    def local_params(self, run: InitContext) -> InitContext:
        return run._replace(params=(run.params, run.params))

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        return LocalState(clients=rows_of(ravel(run.params)[0], run.data.num_clients))

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        received, *more = client.received
        size = received.size
        pair = client.receiving(jnp.concatenate([received, own]), *more)._replace(
            model=PairOf.of(client.model, ()), unravel=lambda v: (client.unravel(v[:size]), client.unravel(v[size:]))
        )
        gradients, anchor = sgd.draw(pair), client.shard(received)

        def step(state: SgdState, drawn: StepDraw) -> tuple[SgdState, None]:
            params = pair.shard(pair.received.params + state.delta)
            gradient, report, records = gradients.gradient_at(params, drawn)
            context, places = gradients.context(drawn.number), params.reshape(2, -1)

            def correct(gradient: jax.Array, params: jax.Array) -> jax.Array:
                return sgd.correct(client, gradient, params, context, records)

            # Both gradients are corrected and pulled, and the wrong one of each is undone: split into two, a CPU would
            # draw the noise of both for each of them.
            both, first = gradient.reshape(2, -1), jnp.arange(2)[:, None] == 0
            both = jnp.where(first, both, self.pull.gradient(both, places, anchor[None], drawn.rate))
            both = jnp.where(first, jax.vmap(correct)(both, places), both)
            return sgd.move(gradients, state, drawn, params, both.reshape(-1), report), None

        state, _ = lax.scan(step, sgd.begin(pair), gradients.steps())
        shared, mine = state.delta.reshape(2, -1)
        result = sgd.finish(gradients._replace(client=client), state._replace(delta=shared))
        return result, own + mine, ()

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        return own

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        if self.pull.form == INSIDE:
            remedy = "use after, explicit or implicit"
            raise errors.refuse("proximal", INSIDE, "outside of the clipping where both models share it", remedy)


@value
class MixedModels(ClientModels):
    """A client's model is alpha v + (1 - alpha) w, with its own v and the shared w (APFL; Deng et al. 2020,
    arXiv:2003.13461).

    In a step w moves by a gradient at w, and v by a gradient at the mixture, which is an additional release.
    alpha_speed  0: alpha is constant; else alpha <- alpha - alpha_speed <gradient at the mixture, v - w> within [0, 1]
                 in the first step of a round, from a gradient that is released in any case.
    """

    alpha: float = number(
        errors.Limits("in [0, 1]", lambda alpha: 0 <= alpha <= 1), remedy="0 is the shared model, 1 the client's own"
    )
    alpha_speed: float = number(errors.require_not_negative, default=0.0)
    noise: float = 1.0
    clean: bool = structure(default=False)

    equation = (
        r"w_k \leftarrow w_k - \eta_t \tilde g(w_k),\ v_k \leftarrow v_k - \eta_t \alpha_k \tilde g(x_k),\ "
        r"x_k = \alpha_k v_k + (1 - \alpha_k) w_k"
    )

    own_is_sent = state_affects_messages = False

    @property
    def own_steps(self) -> OwnSteps:
        return OwnSteps(noise=self.noise, clean=self.clean)

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        clients, states = run.data.num_clients, self.own_steps.of(sgd).init(run).clients
        alphas = jnp.full((clients,), jnp.asarray(self.alpha, jnp.float32))
        return LocalState(clients={"alpha": alphas, "model": rows_of(ravel(run.params)[0], clients), "steps": states})

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        own_sgd = self.own_steps.of(sgd)
        other = self.own_steps.context(client).receiving(own["model"], (), own["steps"], ())
        at_shared, at_mixture = sgd.draw(client), own_sgd.draw(other)
        start, mine = client.shard(client.received.params), client.shard(own["model"])

        def step(carry: tuple[Any, ...], drawn: tuple[StepDraw, StepDraw]) -> tuple[Any, None]:
            w, v, alpha = carry
            shared, personal = client.shard(start + w.delta), client.shard(mine + v.delta)
            gradient, report, _ = at_mixture.gradient_at(alpha * personal + (1 - alpha) * shared, drawn[1])
            w = sgd.step(at_shared, w, drawn[0])
            v = own_sgd.move(at_mixture, v, drawn[1], personal, alpha * gradient, report)
            return (w, v, self._alpha_after(alpha, gradient, own["model"] - client.received.params, drawn[0])), None

        begun = sgd.begin(client), own_sgd.begin(other), own["alpha"]
        (w, v, alpha), _ = lax.scan(step, begun, (at_shared.steps(), at_mixture.steps()))
        states = own_sgd.finish(at_mixture, v).client_state
        return sgd.finish(at_shared, w), {"alpha": alpha, "model": own["model"] + v.delta, "steps": states}, ()

    def _alpha_after(self, alpha: jax.Array, gradient: jax.Array, away: jax.Array, drawn: StepDraw) -> Any:
        """Alpha after a step; only the first step of a round changes it, if the client takes it."""
        first = drawn.number == 0  # for all clients at once: devices that share a model synchronise in the branch

        def new_alpha(alpha: jax.Array, gradient: jax.Array) -> jax.Array:
            new = jnp.clip(alpha - self.alpha_speed * jnp.vdot(gradient, away), 0.0, 1.0)
            return jnp.where(drawn.batch.step_mask > 0, new, alpha)

        def in_first(alpha: jax.Array, gradient: jax.Array) -> Any:
            """On a CPU other steps skip the computation; on an accelerator a branch takes longer."""
            return lax.cond(first, new_alpha, lambda alpha, _: alpha, alpha, gradient)

        def always(alpha: jax.Array, gradient: jax.Array) -> jax.Array:
            return jnp.where(first, new_alpha(alpha, gradient), alpha)

        return lax.platform_dependent(alpha, gradient, cpu=in_first, default=always)

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        alpha, mine = own["alpha"], own["model"]
        return alpha * mine + (1 - alpha) * client.received.params


@value
class FineTuned(ClientModels):
    """Fine-tuning: after the last round every client trains the final model on its own records.

    steps  number of these steps; noise, speed: factors on the rounds' noise multiplier and learning rate; clean:
           without clipping and noise.
    """

    noise: float = 1.0
    speed: float = 1.0
    steps: int = structure(errors.integers(0, MOST_STEPS), option="personal_steps", default=1)
    clean: bool = structure(default=False)

    equation = r"v_k \leftarrow w_T,\ \text{then}\ v_k \leftarrow v_k - \eta_t \tilde g(v_k)"

    own_is_sent = has_client_state = False
    own_comes_last = True

    @property
    def own_steps(self) -> OwnSteps:
        return OwnSteps(noise=self.noise, speed=self.speed, steps=self.steps, clean=self.clean)

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        return sgd.run(client), (), ()

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        whole = client.received.params
        if not self.steps:
            return whole
        steps = self.own_steps.of(replace(sgd, rule=replace(sgd.rule, keep=False)))
        return whole + steps.run(self.own_steps.context(client).receiving(whole)).update
