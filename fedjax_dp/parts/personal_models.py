"""Clients that keep a model of their own, or a part of one: personalisation.

What a client keeps and what flows back into its updates is counted as any other release; where a part never flows back,
its gradients cost only those who see the personal models themselves (view `deployed`).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.models.selection import tensors_named
from fedjax_dp.parts.client_models import (
    PERSONAL,
    SHARED,
    Ask,
    At,
    Begun,
    ClientModels,
    Finished,
    Here,
    Phase,
    Point,
    rows_of,
)
from fedjax_dp.parts.composed_models import pair_of, part_of, pulled_to
from fedjax_dp.parts.corrections import Memory, Setting
from fedjax_dp.pytrees import Part, ravel, structure, tensor_sizes, value

AFTER, EXPLICIT, IMPLICIT, INSIDE = "after", "explicit", "implicit", "inside"
PULLS = (AFTER, EXPLICIT, IMPLICIT, INSIDE)
LEAST_STEP = 1 + 1e-6  # an explicit pull may take a model all the way, whatever float32 says


@value
class Pull:
    """The pull of a personal model to a shared one, strength/2 |v - w|^2; data independent, so it costs no privacy.

    form  "explicit": the gradient strength (v - w) joins after the noise; "implicit": v solves the step for it,
          v <- (v - rate g + rate strength w) / (1 + rate strength); "after": explicit while rate * strength <= 1, else
          implicit; "inside": in the loss of every record, where it is clipped with the gradient (Liu et al. 2022's
          published code).
    """

    strength: float
    form: Literal["after", "explicit", "implicit", "inside"] = structure(default="after")

    @property
    def equation(self) -> str:
        if self.form == INSIDE:
            return r"\ell(v) + \frac{\lambda}{2} \|v - w\|^2\ \text{clipped}"
        return r"+\, \lambda (v - w)"

    def gradient(self, gradient: jax.Array, params: jax.Array, anchor: jax.Array, rate: jax.Array) -> jax.Array:
        """Of the step from `params`."""
        if self.form == INSIDE:
            return gradient
        pulled = gradient + self.strength * (params - anchor)
        if self.form == EXPLICIT:
            return pulled
        whole = rate * self.strength
        if self.form == IMPLICIT:
            return pulled / (1 + whole)
        return pulled / jnp.where(whole <= LEAST_STEP, 1.0, 1 + whole)

    def model(self, model: Model, anchor: Any) -> Model:
        """The model whose gradient is clipped, `anchor` as a tree."""
        return pulled_to(model, self.strength, anchor) if self.form == INSIDE else model

    def check(self) -> None:
        errors.require_not_negative("strength", self.strength)
        errors.require_choice("pull", self.form, PULLS)


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

    keeps = True

    @property
    def returns(self) -> bool:
        return self.shared

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps, (Ask(sent=self.shared, clean=self.clean),)),)

    def sent(self, model: Model) -> tuple[bool, ...] | None:
        return None if self.shared else nothing_of(model)

    def init(self, setting: Setting) -> Memory:
        return Memory(clients=rows_of(ravel(setting.params)[0], setting.data.num_clients))

    def begin(self, here: Here) -> Begun:
        return Begun((here.own,))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        model = self.pull.model(here.model, here.unravel(here.received))
        return (Point(model, here.unravel(at.vectors[0])),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> tuple[jax.Array, Any]:
        return self.pull.gradient(gradients[0], at.vectors[0], here.received, at.rate), memory

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
            return r"h_k \leftarrow h_k - \eta_t \tilde g_h(\theta_t, h_k),\ \text{then}\ \theta \leftarrow \theta - \eta_t \tilde g_\theta(\theta, h_k)"
        return r"(\theta, h_k) \leftarrow (\theta, h_k) - \eta_t \tilde g(\theta, h_k),\ \Delta_k = \theta - \theta_t"

    keeps = returns = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        if not self.head_steps:
            return (Phase(steps),)
        return Phase(self.head_steps, (Ask(PERSONAL),)), Phase(steps, moves=1)

    def kept(self, model: Model) -> tuple[bool, ...]:
        """Which tensors a client keeps."""
        return tensors_named("head", self.head, model)

    def sent(self, model: Model) -> tuple[bool, ...]:
        return tuple(not kept for kept in self.kept(model))

    def _parts(self, model: Model) -> tuple[Part, Part]:
        head = Part(tensor_sizes(jax.eval_shape(model.init, jax.random.key(0))), self.kept(model))
        return head, head.rest

    def init(self, setting: Setting) -> Memory:
        head, _ = self._parts(setting.model)
        return Memory(clients=rows_of(head.take(ravel(setting.params)[0]), setting.data.num_clients))

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
        chosen = self.sent(here.model) if at.phase else self.kept(here.model)
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


MOST_STEPS = 10**6


@value
class OwnOffset(ClientModels):
    """A client adds something of its own to the shared model; one gradient at the sum moves both (PPSGD; Bietti et al.
    2022, arXiv:2202.05318).

    speed  of the client's own part, over the learning rate of the shared one.
    The sum moves at the speed of both, and the way is shared out at the end.
    """

    speed: float = 1.0

    equation = r"w_k \leftarrow w_k - \eta_t \tilde g(w_k + \theta_k),\ \theta_k \leftarrow \theta_k - \eta'_t \tilde g"

    keeps = returns = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps, speed=1 + self.speed),)

    def init(self, setting: Setting) -> Memory:
        return Memory(clients=np.zeros((setting.data.num_clients, setting.size), np.float32))

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

    keeps = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return Phase(steps), Phase(self.steps, (Ask(PERSONAL, False, self.noise, self.clean),), 1, self.speed)

    def init(self, setting: Setting) -> Memory:
        return Memory(clients=rows_of(ravel(setting.params)[0], setting.data.num_clients))

    def begin(self, here: Here) -> Begun:
        return Begun((here.received, here.own))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        model = self.pull.model(here.model, here.unravel(here.received)) if at.phase else here.model
        return (Point(model, here.unravel(at.vectors[at.phase])),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> tuple[jax.Array, Any]:
        if not at.phase:
            return gradients[0], memory
        return self.pull.gradient(gradients[0], at.vectors[1], here.received, at.rate), memory

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

    keeps = returns = True

    def init(self, setting: Setting) -> Memory:
        return Memory(clients=rows_of(ravel(setting.params)[0], setting.data.num_clients))

    def begin(self, here: Here) -> Begun:
        return Begun((jnp.concatenate([here.received, here.own]),))

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        one, other = _halves(at.vectors[0])
        return (Point(pair_of(here.model), (here.unravel(one), here.unravel(other))),)

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> tuple[jax.Array, Any]:
        shared, own = _halves(gradients[0])
        pulled = self.pull.gradient(own, _halves(at.vectors[0])[1], here.received, at.rate)
        return jnp.concatenate([shared, pulled]), memory

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        shared, own = _halves(moved[0])
        return Finished(shared, (), here.own + own)

    def personal(self, here: Here) -> jax.Array:
        own: jax.Array = here.own
        return own

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        self.pull.check()
        if self.pull.form == INSIDE:
            remedy = "use after, explicit or implicit"
            raise errors.refuse("pull", INSIDE, "outside of the clip where both models have one", remedy)


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

    keeps = True

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps, (Ask(SHARED), Ask(PERSONAL, False, self.noise, self.clean))),)

    def init(self, setting: Setting) -> Memory:
        clients = setting.data.num_clients
        alphas = jnp.full((clients,), jnp.asarray(self.alpha, jnp.float32))
        return Memory(clients={"alpha": alphas, "model": rows_of(ravel(setting.params)[0], clients)})

    def begin(self, here: Here) -> Begun:
        return Begun((jnp.concatenate([here.received, here.own["model"]]),), here.own["alpha"])

    def points(self, at: At, here: Here, memory: Any) -> tuple[Point, ...]:
        shared, own = _halves(at.vectors[0])
        mixed = memory * own + (1 - memory) * shared
        return Point(here.model, here.unravel(shared)), Point(here.model, here.unravel(mixed))

    def gradient(self, gradients: tuple[jax.Array, ...], at: At, here: Here, memory: Any) -> tuple[jax.Array, Any]:
        at_shared, at_mixed = gradients
        shared, own = _halves(at.vectors[0])
        turned = jnp.clip(memory - self.alpha_speed * jnp.vdot(at_mixed, own - shared), 0.0, 1.0)
        return jnp.concatenate([at_shared, memory * at_mixed]), jnp.where(at.first, turned, memory)

    def finish(self, here: Here, begun: Begun, moved: tuple[jax.Array, ...], memory: Any) -> Finished:
        shared, own = _halves(moved[0])
        return Finished(shared, (), {"alpha": memory, "model": here.own["model"] + own})

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


def _halves(pair: jax.Array) -> tuple[jax.Array, jax.Array]:
    half = pair.size // 2
    return pair[:half], pair[half:]


def nothing_of(model: Model) -> tuple[bool, ...]:
    """No tensor of a model."""
    return (False,) * len(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def _check_beside(noise: Any, speed: Any) -> None:
    errors.require_positive("personal_noise", noise, "0 leaves the personal steps without clipping and noise: clean")
    errors.require_positive("personal_speed", speed)


def clean_refused(what: str) -> errors.ConfigurationError:
    """Where private parts without noise would act on updates whose records are noised."""
    return errors.refuse(
        "noise on the personal part",
        f"none, on {what}",
        "the shared steps' own where it acts on later updates",
        "a record would move it, and it every record's gradient; use ditto or finetune, or noise whole clients",
    )
