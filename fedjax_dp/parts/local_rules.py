"""Local optimizers: optax transformations of a local step's gradient; some use the variance of its noise."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_dp import errors
from fedjax_dp.parts.transformations import Variance, require_variance, uses_noise_variance
from fedjax_dp.pytrees import number, replace, structure, value

ADVICE = "use a transformation without one, such as optax.scale_by_adam instead of optax.adam"


def _refuse_rate(what: str, rate: Any) -> None:
    wanted = "without a learning_rate, as the local steps have one"
    raise errors.refuse("hyperparameters of the local rule", {"learning_rate": rate}, wanted, ADVICE)


@value
class LocalRule:
    """How a gradient becomes a direction: an optax transformation without a rate, `factory(**hyperparameters)`.

    Its update receives the privatized gradient with the terms of the corrections, flat `(size,)`, and the local model.
    If it takes a keyword `variance`, that is a function without arguments that returns the variance Phi of each
    coordinate of the noise in this gradient, a float32 scalar.
    keep  whether a client keeps its state across rounds; if not, the state starts anew in every round.
    """

    hyperparameters: dict[str, Any] = number(
        {
            **dict.fromkeys(("decay", "b1", "b2"), errors.require_decay),
            **dict.fromkeys(("eps", "weight_decay"), errors.require_not_negative),
            "floor": functools.partial(errors.require_positive, remedy="the gradient is divided by its root"),
            "learning_rate": _refuse_rate,
        },
        option="local_",
    )
    factory: Callable[..., optax.GradientTransformation] = structure(default=optax.identity)
    keep: bool = structure(default=False)

    @classmethod
    def of(cls, name: str, *, keep: bool = False, **numbers: Any) -> "LocalRule":
        """A rule of `LOCAL_RULES` with other numbers: `LocalRule.of("momentum", decay=0.5)`.

        Raises: ConfigurationError for numbers that this rule does not have.
        """
        errors.require_choice("local_rule", name, LOCAL_RULES)
        default = LOCAL_RULES[name]
        for key in numbers:
            errors.require_choice(f"a number of local rule {name}", key, default.hyperparameters)
        return replace(default, hyperparameters=default.hyperparameters | numbers, keep=keep)

    @property
    def equation(self) -> str:
        name = getattr(self.factory, "__name__", "a rule")
        return RULES.get(self.factory, rf"d = \text{{{name}}}(g)")

    def transform(self) -> optax.GradientTransformation:
        return self.factory(**self.hyperparameters)

    @property
    def is_sgd(self) -> bool:
        """Whether it is plain stochastic gradient descent."""
        return self.factory is optax.identity

    @functools.cached_property
    def corrects(self) -> bool:
        """Whether it uses the variance of the noise. Numbers are concrete here."""
        return uses_noise_variance(self.factory, self.hyperparameters, "local rule")


def rmsprop(decay: float = 0.99, eps: float = 1e-8) -> optax.GradientTransformation:
    """g / (sqrt(s) + eps) with s <- decay s + (1 - decay) g^2, as PyTorch does (rfedavg's text model)."""
    return optax.scale_by_rms(decay=decay, eps=eps, eps_in_sqrt=False)


class Moments(NamedTuple):
    """Exponential means, from zero, of the gradient, its square, and the variance of its noise."""

    steps: jax.Array  # int32, number of steps so far
    first: Any
    second: Any
    noise: Any  # a scalar; () if it is not subtracted


def _adaptive(
    b1: float, b2: float, root: Callable[[jax.Array, Any], jax.Array], corrects: bool
) -> optax.GradientTransformationExtraArgs:
    """The first moment divided by `root(second moment, the noise's part of it)`, with bias corrections."""

    def init(params: Any) -> Moments:
        first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return Moments(jnp.int32(0), first, second, jnp.zeros(()) if corrects else ())

    def update(
        gradient: Any, state: Moments, params: Any = None, *, variance: Variance | None = None, **more: Any
    ) -> tuple[Any, Moments]:
        steps = state.steps + 1
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, gradient)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.second, gradient)
        least_first, least_second = (1 - jnp.asarray(b, jnp.result_type(float)) ** steps for b in (b1, b2))
        noise, known = (), None
        if corrects:
            noise = b2 * state.noise + (1 - b2) * require_variance(variance)
            known = noise / least_second
        direction = jax.tree.map(lambda m, v: m / least_first / root(v / least_second, known), first, second)
        return direction, Moments(steps, first, second, noise)

    return optax.GradientTransformationExtraArgs(init, update)


def adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015, Algorithm 1)."""
    return _adaptive(b1, b2, lambda second, _: jnp.sqrt(second) + eps, corrects=False)


def adam_bc(b1: float = 0.9, b2: float = 0.999, floor: float = 1e-5) -> optax.GradientTransformation:
    """DP-AdamBC (Tang, Shpilevskiy, Lecuyer 2024, arXiv:2312.14334, Algorithm 1): Adam that subtracts the noise's
    variance from the second moment, which stays at least `floor`.

    Deviation: if the variance of the noise differs between steps, its exponential mean is subtracted. If it is
    constant, that is the paper's constant.
    """
    return _adaptive(b1, b2, lambda second, noise: jnp.sqrt(jnp.maximum(second - noise, floor)), corrects=True)


def adamw(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay: a step also subtracts rate * weight_decay * w (Loshchilov, Hutter 2019)."""
    return optax.chain(adam(b1, b2, eps), optax.add_decayed_weights(weight_decay))


def adamw_bc(
    b1: float = 0.9, b2: float = 0.999, floor: float = 1e-5, weight_decay: float = 0.01
) -> optax.GradientTransformation:
    """`adam_bc` with the weight decay of `adamw`, which is added after all noise."""
    return optax.chain(adam_bc(b1, b2, floor), optax.add_decayed_weights(weight_decay))


_MOMENTS = (
    r"m \leftarrow \beta_1 m + (1 - \beta_1) g,\ v \leftarrow \beta_2 v + (1 - \beta_2) g^2,\ "
    r"\hat m = m / (1 - \beta_1^s),\ \hat v = v / (1 - \beta_2^s)"
)
_NOISE = r"p \leftarrow \beta_2 p + (1 - \beta_2) \Phi,\ \hat p = p / (1 - \beta_2^s)"
_ADAM = r"\hat m / (\sqrt{\hat v} + \epsilon)"
_ADAM_BC = r"\hat m / \sqrt{\max(\hat v - \hat p, \gamma)}"
RULES: dict[Callable[..., optax.GradientTransformation], str] = {  # as LaTeX
    optax.identity: "d = g",
    optax.trace: r"d \leftarrow \beta d + g",
    rmsprop: r"d = g / (\sqrt{s} + \epsilon),\ s \leftarrow \beta s + (1 - \beta) g^2",
    adam: rf"d = {_ADAM},\ {_MOMENTS}",
    adam_bc: rf"d = {_ADAM_BC},\ {_MOMENTS},\ {_NOISE}",
    adamw: rf"d = {_ADAM} + \lambda w,\ {_MOMENTS}",
    adamw_bc: rf"d = {_ADAM_BC} + \lambda w,\ {_MOMENTS},\ {_NOISE}",
}


def _by_defaults(factory: Callable[..., optax.GradientTransformation]) -> LocalRule:
    numbers = {name: parameter.default for name, parameter in inspect.signature(factory).parameters.items()}
    return LocalRule(hyperparameters=numbers, factory=factory)


LOCAL_RULES: dict[str, LocalRule] = {
    "sgd": LocalRule(hyperparameters={}),
    "momentum": LocalRule(hyperparameters={"decay": 0.9}, factory=optax.trace),
    **{rule.__name__: _by_defaults(rule) for rule in (rmsprop, adam, adam_bc, adamw, adamw_bc)},
}
