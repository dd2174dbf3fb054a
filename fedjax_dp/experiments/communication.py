"""The bytes of a round, counted from the parts of the algorithm."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp import gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.models.model import size_of
from fedjax_dp.pytrees import Part, tensor_sizes
from fedjax_dp.rounds.algorithm import Algorithm


class Traffic(NamedTuple):
    """Bytes of payload; float32 numbers, or words of the ring of a secure sum."""

    down: int  # to one client of a cohort: the model and what corrections add
    up: int  # from one client: the update, extra numbers sent with it, and separate messages
    clients: float  # participating in a round, on average

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"round_down": self.down * self.clients, "round_up": self.up * self.clients}

    def total(self, rounds: int) -> float:
        """Average bytes of these rounds, both ways."""
        return rounds * self.clients * (self.down + self.up)

    def __str__(self) -> str:
        return (
            f"{self.down:,} bytes down and {self.up:,} up per client and round, "
            f"{self.clients * (self.down + self.up):,.0f} a round"
        )


def traffic(algorithm: Algorithm, model: Model, data: FederatedData) -> Traffic:
    """The bytes of one round of `algorithm`."""
    members = algorithm.cohort.capacity(data.num_clients)
    size, features = parameters(model, data)
    extra_floats = algorithm.local.floats(size, features, members, data.num_clients)
    shared = Part(tensor_sizes(jax.eval_shape(model.init, jax.random.key(0))), algorithm.local.sent_tensors(model)).size
    joined = shared + algorithm.aggregate.extra + algorithm.upload.extra + extra_floats.summed
    down = 4 * (shared + algorithm.upload.extra + extra_floats.down)
    up = algorithm.transport.word_bytes * joined + 4 * extra_floats.up
    rates = algorithm.cohort.rates(np.asarray(data.shares, float))
    clients = float(np.sum(rates)) if rates is not None else float(members)
    return Traffic(down, up, min(clients, members))


def parameters(model: Model, data: FederatedData) -> tuple[int, int | None]:
    """The numbers of parameters and of features of a model."""
    size = size_of(model)
    if not getattr(model, "has_features", False):
        return size, None
    params = jax.eval_shape(model.init, jax.random.key(0))
    row = jax.eval_shape(
        data.features, jax.ShapeDtypeStruct((1, *data.record_shape), jax.dtypes.canonicalize_dtype(data.x.dtype))
    )
    return size, jax.eval_shape(lambda p, x: gradients.features(model, p, x), params, row).shape[-1]
