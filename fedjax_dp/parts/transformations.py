"""Optax transformations, made inside the compiled round of their numbers, that may be given how noisy a gradient is.

Optax hands further arguments by name through a chain to those updates that take them; here there is one, `variance`.
`optax.with_extra_args_support` lets it be given to an update that takes none.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_dp import errors

Variance = Callable[[], jax.Array]  # of each coordinate of the noise, a float32 scalar; computed where it is called


def uses_noise_variance(
    factory: Callable[..., optax.GradientTransformation], hyperparameters: dict[str, Any], whose: str
) -> bool:
    """Whether an update of `factory(**hyperparameters)` uses the variance of the noise; nothing is computed.

    Raises: ConfigurationError in one line for what makes no optax transformation of a vector.
    """
    name, calls = getattr(factory, "__name__", "factory"), []
    # Numbers of the host, as operations on a device's would be compiled one by one.
    numbers = jax.tree.map(lambda n: np.asarray(n)[()] if isinstance(n, jax.Array) else n, hyperparameters)

    def variance() -> jax.Array:
        calls.append(True)
        return jnp.zeros(())

    def update(vector: jax.Array) -> Any:
        transform = factory(**numbers)
        if not all(callable(getattr(transform, member, None)) for member in ("init", "update")):
            raise errors.refuse(f"factory of the {whose}", name, "a maker of optax optimizers", "such as optax.adam")
        return optax.with_extra_args_support(transform).update(
            vector, transform.init(vector), vector, variance=variance
        )

    def failed(error: Exception) -> str:
        return f"{name}, which fails: {' '.join(str(error).split())}"

    with errors.refuse_errors(f"factory of the {whose}", failed, "a function of its hyperparameters"):
        jax.eval_shape(update, jax.ShapeDtypeStruct((1,), jnp.float32))
    return bool(calls)


def require_variance(variance: Variance | None) -> jax.Array:
    """The variance of the noise, by a rule that cannot do without."""
    if variance is None:
        raise errors.refuse("rule", "nothing", "given the variance of the noise", "make it a local or server's rule")
    return variance()
