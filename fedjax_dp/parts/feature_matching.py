"""Feature matching of rFedAvg and rFedAvg+ (rfedavg): clients pull their mean features to those of the others."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, gradients, prng
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalState, StepContext
from fedjax_dp.parts.corrections import Correction, Floats, GradientAt, replace_rows
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import check_part, number, structure, value

WHEN = ("local_after", "global_before", "global_after")
SCOPES = ("participants", "all")


class FeatureRelease(Protocol):
    """How a client bounds and noises its mean features before it sends them.

    A method `check()` may refuse its numbers.
    """

    def bound(self, features: jax.Array) -> jax.Array:
        """Bounded features for the mean; k features on the last axis, and records on a leading axis if there is one."""
        return features

    def noise(self, key: jax.Array, mean: jax.Array) -> jax.Array:
        """The mean `(k,)` that the client sends; the key is used only here."""
        return mean


@value
class PlainFeatures(FeatureRelease):
    """Mean features without bound and noise."""


@value
class NoisyFeatures(FeatureRelease):
    """rfedavg's privacy evaluation: clips each record's features to `clip_norm` and adds noise to their mean.

    The noise has standard deviation noise_multiplier * clip_norm / batch_size per coordinate, as in rfedavg. There is
    no epsilon, because the model's uploads have no noise.
    """

    clip_norm: float = number(errors.require_positive, option="feature_clip_norm")
    noise_multiplier: float = number(errors.require_not_negative, option="feature_noise")
    batch_size: float

    def bound(self, features: jax.Array) -> jax.Array:
        norms = jnp.sqrt(jnp.sum(features * features, axis=-1, keepdims=True))
        return features * jnp.minimum(1.0, self.clip_norm / jnp.maximum(norms, 1e-12))

    def noise(self, key: jax.Array, mean: jax.Array) -> jax.Array:
        return self.add(mean, prng.normals(key, 0, mean.size))

    def add(self, mean: jax.Array, normals: jax.Array) -> jax.Array:
        """The mean with noise made of these standard normals."""
        return mean + self.noise_multiplier * self.clip_norm / self.batch_size * normals


@value
class FeatureMatching(Correction):
    """The gradient of strength * |mean feature of the batch - target|^2; the target is the others' mean features.

    Features are the layer before the output; delta^k is their mean over the records of client k. rfedavg prints both a
    penalty against each other client and one against their mean; the gradients are the same.
    when           the model at which delta is computed: "local_after", the client's own after its steps (rFedAvg);
                   "global_before", the received one (rfedavg, Algorithm 1, line 10, as printed); "global_after", the
                   new one, in a second exchange (rFedAvg+);
    scope          "participants": targets are means over this round's cohort; "all": over all clients' last delta;
    leave_one_out  whether a target excludes the client's own delta; False as in rfedavg's code;
    one_batch      number of random records for delta, as in rfedavg's code; 0 uses all records.
    """

    strength: float = number(errors.require_not_negative, option="feature_strength")
    release: FeatureRelease = PlainFeatures()
    when: str = structure(errors.one_of(*WHEN), option="delta_at", default="local_after")
    scope: str = structure(errors.one_of(*SCOPES), option="delta_scope", default="participants")
    leave_one_out: bool = structure(default=True)
    one_batch: int = structure(default=0)

    @property
    def equation(self) -> str:
        whose = r"j \ne k" if self.leave_one_out else "j"
        target = rf"\operatorname{{mean}}_{{{whose}}} \delta_j"
        at = {"local_after": "w_j", "global_before": "w_t"}.get(self.when, "w_{t+1}")
        return rf"+\, \lambda \nabla \| \bar\phi(w; \mathcal{{B}}) - {target} \|^2,\ \delta_j = \bar\phi({at}; D_j)"

    @property
    def no_epsilon_reason(self) -> str:
        return "mean features, and a gradient made of them, depend on the records without any bound"

    def init(self, run: InitContext) -> LocalState:
        return LocalState(clients=run.map_clients(self._mean_features))

    def send(self, state: LocalState, members: Members) -> tuple[jax.Array, jax.Array]:
        """Targets `(members, k)`, and 1 for members that have one: a client alone in its cohort has none."""
        table, own = state.clients, state.clients[members.ids]
        if self.scope == "all":
            total, others = table.sum(0), jnp.float32(table.shape[0])
        else:
            total = jnp.where(members.present[:, None], own, 0.0).sum(0)  # a product would keep their NaN
            others = members.present.sum(dtype=jnp.float32)
        if self.leave_one_out:
            others = others - 1
            total = total[None] - own
        target = jnp.broadcast_to(total / jnp.maximum(others, 1.0), own.shape)
        return target, jnp.broadcast_to((others > 0).astype(jnp.float32), own.shape[:1])

    def gradient(
        self, gradient: jax.Array, params: jax.Array, step: StepContext, client: ClientContext, records: Records
    ) -> jax.Array:
        target, exists = client.received.extra

        def distance(params: jax.Array) -> jax.Array:
            features = gradients.features(client.model, client.unravel(params), records.x)
            mean = jnp.where(records.mask[:, None], features, 0.0).sum(0) / jnp.maximum(records.mask.sum(), 1)
            return jnp.sum((mean - target) ** 2)

        return gradient + self.strength * exists * jax.grad(distance)(params)

    def finish(
        self, update: jax.Array, client: ClientContext, total_rate: jax.Array, extra_gradient: GradientAt
    ) -> tuple[Any, Any]:
        start, _, row, _ = client.received
        if self.when == "global_after":
            return (), row
        return (), client.evaluate(self._mean_features, start + update if self.when == "local_after" else start)

    def exchange(
        self, state: LocalState, map_clients: Callable[..., Any], members: Members, upcoming: Callable[[], Members]
    ) -> LocalState:
        if self.when != "global_after":
            return state
        senders = upcoming() if self.scope == "participants" else members  # rfedavg's code takes those who train next
        return LocalState(
            clients=replace_rows(
                state.clients, senders.ids, senders.present, map_clients(self._mean_features, senders.ids)
            )
        )

    def _mean_features(
        self, key: jax.Array, params: Any, client: Client, data: FederatedData, model: Model
    ) -> jax.Array:
        """The delta that one client sends `(k,)`."""

        def features(x: jax.Array, y: jax.Array) -> jax.Array:
            return self.release.bound(gradients.features(model, params, x))

        if self.one_batch:
            words = prng.bits(role_key(key, "feature batch"), 0, self.one_batch)
            mean = features(*data.gather(client, prng.without_replacement(words, client.size))).mean(0)
        else:
            mean = data.mean_over_records(client, features)
        return self.release.noise(role_key(key, "feature noise"), mean)

    def vectors(self, members: int, num_clients: int) -> int:
        """Feature vectors that a client receives: all of its scope in rFedAvg, one target in rFedAvg+."""
        if self.when == "global_after":
            return 1
        return members if self.scope == "participants" else num_clients

    def floats(self, size: int, features: int | None, members: int, num_clients: int) -> Floats:
        assert features is not None
        again = size if self.when == "global_after" and self.scope == "all" else 0  # the new model
        return Floats(down=features * self.vectors(members, num_clients) + again, up=features)

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        errors.require_integer("delta_batch", self.one_batch, 0, int(sizes.min()), "0 takes all records")
        check_part(self.release)
        if model is not None and not getattr(model, "has_features", False):
            raise errors.refuse(
                "model",
                "one without a hidden layer",
                "one with features for rfedavg and rfedavg_plus",
                "use --model mlp, or fedjax_dp.mlp(...)",
            )
