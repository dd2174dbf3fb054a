"""Optax transformations, built from their numbers inside the compiled round, that may use the variance of the noise.

Optax passes extra arguments by name through a chain to the updates that take them; here there is one, `variance`.
`optax.with_extra_args_support` makes an update accept it that does not use it.
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
    """Whether an update of `factory(**hyperparameters)` uses the variance of the noise; it is traced, not computed.

    Raises: ConfigurationError in one line if `factory` does not return an optax transformation of a vector.
    """
    name, calls = getattr(factory, "__name__", "factory"), []
    # NumPy numbers, as each operation on JAX arrays would be compiled separately.
    numbers = jax.tree.map(lambda n: np.asarray(n)[()] if isinstance(n, jax.Array) else n, hyperparameters)

    def variance() -> jax.Array:
        calls.append(True)
        return jnp.zeros(())

    def update(vector: jax.Array) -> Any:
        transform = factory(**numbers)
        if not all(callable(getattr(transform, member, None)) for member in ("init", "update")):
            wanted = "a function that returns an optax optimizer"
            raise errors.refuse(f"factory of the {whose}", name, wanted, "such as optax.adam")
        return optax.with_extra_args_support(transform).update(
            vector, transform.init(vector), vector, variance=variance
        )

    def failure(error: Exception) -> str:
        return f"{name}, which fails: {' '.join(str(error).split())}"

    with errors.refuse_errors(f"factory of the {whose}", failure, "a function of its hyperparameters"):
        jax.eval_shape(update, jax.ShapeDtypeStruct((1,), jnp.float32))
    return bool(calls)


def require_variance(variance: Variance | None) -> jax.Array:
    """The variance of the noise, for a rule that needs it."""
    if variance is None:
        raise errors.refuse("rule", "nothing", "given the variance of the noise", "use it as a local or server's rule")
    return variance()
