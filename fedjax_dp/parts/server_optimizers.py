"""The server's optimizer: an optax transformation, built from its numbers inside the compiled round."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_dp import errors, schedules
from fedjax_dp.parts.by_round import FunctionOfRounds
from fedjax_dp.parts.transformations import Variance, require_variance, uses_noise_variance
from fedjax_dp.pytrees import check_part, number, replace, structure, value


class ServerOptimizer(Protocol):
    """The slot `server`: how the server updates the model. Implementations use `fedjax_dp.value`.

    It sees only the aggregated update after all noise. By post-processing it changes no epsilon, as long as it holds no
    records itself, so it has no privacy properties.

    An optional member `final(state, params)` returns the model with which a run would end now, such as a mean over
    rounds; `rounds.final_model` calls it. Without it that model is `params`.
    A method `check()` may refuse its numbers.
    """

    def init(self, params: Any) -> Any:
        """The server's state before round 0, in addition to the model: a pytree of arrays, () for none; traced.

        params: the tree of the model's parameters, float32.
        """
        ...

    def move(self, round_index: jax.Array, update: Any, variance: Variance, state: Any, params: Any) -> tuple[Any, Any]:
        """The new parameters and the new state, both shaped as before; traced.

        round_index  of this round, from 0, an int32 scalar;
        update       the mean update, minus a gradient: a tree like `params`; plain SGD adds it to them;
        variance     `variance()` is the variance of each coordinate of the noise in the update, a float32 scalar. It is
                     computed from public numbers: the mean over all possible cohorts. It raises ConfigurationError if
                     public numbers do not determine it.
        """
        ...


def _refuse_arrays(what: str, content: Any) -> None:
    for leaf in jax.tree.leaves(content):
        if np.ndim(leaf):
            wanted = "a number: it may not hold anything that depends on records"
            raise errors.refuse(f"{what} of the server", f"an array {np.shape(leaf)}", wanted)


@value
class Server:
    """Applies `factory(**hyperparameters)` to minus the aggregated update.

    `factory` is a module-level function (a ready optimizer would be a closure, compiled again for every number).
    Its `learning_rate` is multiplied by `schedule(round, **timing)`.
    """

    hyperparameters: dict[str, Any] = number(
        {
            "learning_rate": lambda _, rate: errors.require_positive("server_learning_rate", rate),
            **dict.fromkeys(("b1", "b2", "momentum"), errors.require_decay),
            "nu_init": errors.require_not_negative,
            "pi": errors.require_positive,
            "": _refuse_arrays,
        }
    )
    factory: Callable[..., optax.GradientTransformation] = structure(default=optax.sgd)
    schedule: Callable[..., jax.Array] = structure(default=schedules.constant)
    timing: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, name: str, **numbers: Any) -> "Server":
        """A server of `SERVERS` with other numbers: `Server.of("adam", learning_rate=0.02, b1=0.5)`.

        Raises: ConfigurationError for numbers that this server does not have.
        """
        errors.require_choice("server", name, SERVERS)
        usual = SERVERS[name].hyperparameters
        for key in numbers:
            errors.require_choice(f"a number of server {name}", key, [*usual, *MORE_NUMBERS.get(name, ())])
        return replace(SERVERS[name], hyperparameters=usual | numbers)

    @property
    def equation(self) -> str:
        name = getattr(self.factory, "__name__", "a rule")
        rule = RULES.get(self.factory)
        if self.factory is optax.sgd and self.hyperparameters.keys() > {"learning_rate"}:
            rule = MOMENTUM if self.hyperparameters.keys() == {"learning_rate", "momentum"} else None
        return rf"w_{{t+1}} = w_t + \text{{{name}}}(\Delta)" if rule is None else rule

    def init(self, params: Any) -> optax.OptState:
        return self.factory(**self.hyperparameters).init(params)

    def move(
        self, round_index: jax.Array, update: Any, variance: Variance, state: Any, params: Any
    ) -> tuple[Any, optax.OptState]:
        rate = self.hyperparameters["learning_rate"] * self.schedule(round_index, **self.timing)
        transform = optax.with_extra_args_support(self.factory(**{**self.hyperparameters, "learning_rate": rate}))
        gradient = jax.tree.map(jnp.negative, update)
        moves, state = transform.update(gradient, state, params, variance=variance)
        return optax.apply_updates(params, moves), state

    @functools.cached_property
    def corrects(self) -> bool:
        """Whether it uses the variance of the noise. Numbers are concrete here.

        Raises: ConfigurationError without a learning rate.
        """
        if "learning_rate" not in self.hyperparameters:
            got = dict(self.hyperparameters)
            raise errors.refuse("hyperparameters of the server", got, "with a learning_rate", "add one")
        return uses_noise_variance(self.factory, self.hyperparameters, "server")


def exponential(t: jax.Array, average_decay: Any = 0.9) -> jax.Array:
    """(1 - b) / (1 - b^(t+1)): model t - k has a weight proportional to b^k, the first model included."""
    decay = jnp.asarray(average_decay, jnp.float32)
    return jnp.where(t == 0, 1.0, (1 - decay) / -jnp.expm1((t + 1) * jnp.log(decay)))


def polyak(t: jax.Array, average_from: Any = 0) -> jax.Array:
    """Equal weights for all models from round `average_from` on (Polyak and Juditsky 1992)."""
    return 1 / (jnp.maximum(t - jnp.asarray(average_from, jnp.float32), 0.0) + 1)


def polynomial(t: jax.Array, average_power: Any = 8.0) -> jax.Array:
    """(p + 1) / (t + 1 + p): model t has a weight of about t^p, so late models dominate (Shamir and Zhang 2013)."""
    power = jnp.asarray(average_power, jnp.float32)
    return (power + 1) / (t + 1 + power)


AVERAGES: dict[str, Callable[..., jax.Array]] = {"exponential": exponential, "polyak": polyak, "polynomial": polynomial}


@value
class ModelAverage(FunctionOfRounds):
    """The slot `average`: a run ends with a mean of the models of its rounds; see `AveragedServer`.

    weight   of `AVERAGES`, or a module-level function of the round like them;
    numbers  its numbers by name; traced.
    """

    weight: Callable[..., jax.Array] = structure()
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    FUNCTIONS, KIND = AVERAGES, "average"


class AverageState(NamedTuple):
    """The state of the base server, and the mean of the models."""

    base: Any
    mean: Any


@value
class AveragedServer:
    """Moves like its base; the run ends with a mean of the models of all rounds, which is post-processing.

    weight   of round t's model in the running mean: weight(t, **numbers) in [0, 1], 1 for t = 0; a module-level
             function, so that its hash is stable. With weight 1 the mean becomes that model.
    """

    base: ServerOptimizer
    weight: Callable[..., jax.Array] = structure()
    numbers: dict[str, Any] = number(
        {
            "average_decay": functools.partial(errors.require_decay, remedy="0 is the last model"),
            "": errors.require_not_negative,
        },
        default_factory=dict,
    )

    @property
    def equation(self) -> str:
        mean = r"\bar w_{t+1} = (1 - a_t) \bar w_t + a_t w_{t+1}"
        return rf"{getattr(self.base, 'equation', '')};\ {mean}".lstrip(r";\ ")

    @functools.cached_property
    def corrects(self) -> bool:
        return getattr(self.base, "corrects", False)

    def init(self, params: Any) -> AverageState:
        return AverageState(self.base.init(params), params)

    def move(
        self, round_index: jax.Array, update: Any, variance: Variance, state: Any, params: Any
    ) -> tuple[Any, AverageState]:
        params, base = self.base.move(round_index, update, variance, state.base, params)
        weight = self.weight(round_index, **self.numbers)
        return params, AverageState(
            base, jax.tree.map(lambda mean, w: (1 - weight) * mean + weight * w, state.mean, params)
        )

    def final(self, state: AverageState, params: Any) -> Any:
        return state.mean

    def check(self) -> None:
        check_part(self.base)


class AdaptiveState(NamedTuple):
    """Moments of an adaptive server."""

    mu: Any
    nu: Any
    noise: Any = ()  # the noise's part of nu, a scalar; () if it is not subtracted


def _adaptive(
    numbers: dict[str, Any],
    second: Callable[[jax.Array, jax.Array, Any], jax.Array] = lambda v, s, b2: b2 * v + (1 - b2) * s * s,
    of_mu: bool = False,
    corrects: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """The second moment v <- second(v, s, b2), where s is the gradient, or the first moment if `of_mu`."""
    rate, b1, b2, pi = (numbers[name] for name in ("learning_rate", "b1", "b2", "pi"))
    nu_init = numbers.get("nu_init")

    def init(params: Any) -> AdaptiveState:
        start = pi**2 if nu_init is None else nu_init
        return AdaptiveState(
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(lambda w: jnp.full_like(w, start), params),
            jnp.zeros(()) if corrects else (),
        )

    def update(
        gradient: Any, state: AdaptiveState, params: Any = None, *, variance: Variance | None = None, **more: Any
    ) -> tuple[Any, AdaptiveState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradient)
        nu = jax.tree.map(lambda v, s: second(v, s, b2), state.nu, mu if of_mu else gradient)
        noise, own = (), nu
        if corrects:
            noise = b2 * state.noise + (1 - b2) * require_variance(variance)
            own = jax.tree.map(lambda v: jnp.maximum(v - noise, 0.0), nu)
        return jax.tree.map(lambda m, v: -rate * m / (jnp.sqrt(v) + pi), mu, own), AdaptiveState(mu, nu, noise)

    return optax.GradientTransformationExtraArgs(init, update)


def adaptive_delta(**numbers: Any) -> optax.GradientTransformation:
    """dpnfl, Algorithm 2: mu = b1 mu + (1-b1) Delta, nu = b2 nu + (1-b2) Delta^2, w += rate mu / (sqrt(nu) + pi).

    No bias correction; mu starts at zero, nu at pi^2 or at `nu_init`. Numbers: learning_rate, b1, b2, pi, [nu_init].
    The same rule is FedAdam of Reddi et al. 2021 (arXiv:2003.00295, Algorithm 2), where pi is called tau.
    """
    return _adaptive(numbers)


def adaptive_mu(**numbers: Any) -> optax.GradientTransformation:
    """The displayed equation of dpnfl instead of its Algorithm 2: nu = b2 nu + (1-b2) mu^2."""
    return _adaptive(numbers, of_mu=True)


def adaptive_unbiased(**numbers: Any) -> optax.GradientTransformation:
    """`adaptive_delta` with max(nu - p, 0) instead of nu under the root, where p is the noise's part of nu.

    p = b2 p + (1-b2) Phi from 0, with Phi the variance of each coordinate of the noise in the round's update:
    DP-AdamBC (Tang, Shpilevskiy, Lecuyer 2024, arXiv:2312.14334) for a server without other bias corrections. As nu - p
    may be zero, only pi bounds the steps: a small pi makes them huge.
    """
    return _adaptive(numbers, corrects=True)


def adaptive_yogi(**numbers: Any) -> optax.GradientTransformation:
    """FedYogi of Reddi et al. 2021: FedAdam with nu <- nu - (1-b2) Delta^2 sign(nu - Delta^2)."""
    return _adaptive(numbers, lambda v, s, b2: v - (1 - b2) * s * s * jnp.sign(v - s * s))


def adaptive_adagrad(**numbers: Any) -> optax.GradientTransformation:
    """FedAdagrad of Reddi et al. 2021: FedAdam with nu <- nu + Delta^2; b2 is not used."""
    return _adaptive(numbers, lambda v, s, b2: v + s * s)


_ADAPTIVE = (
    r"\mu \leftarrow \beta_1 \mu + (1 - \beta_1) \Delta,\ {}, \ w_{{t+1}} = w_t + \eta_s \mu / (\sqrt{{{}}} + \pi)"
)
_SQUARE = r"\nu \leftarrow \beta_2 \nu + (1 - \beta_2) \Delta^2"
_NOISE = r"p \leftarrow \beta_2 p + (1 - \beta_2) \Phi"
MOMENTUM = r"v \leftarrow \beta v + \Delta,\ w_{t+1} = w_t + \eta_s v"
RULES: dict[Callable[..., optax.GradientTransformation], str] = {  # as LaTeX
    optax.sgd: r"w_{t+1} = w_t + \eta_s \Delta",
    adaptive_delta: _ADAPTIVE.format(_SQUARE, r"\nu"),
    adaptive_mu: _ADAPTIVE.format(r"\nu \leftarrow \beta_2 \nu + (1 - \beta_2) \mu^2", r"\nu"),
    adaptive_unbiased: _ADAPTIVE.format(rf"{_SQUARE},\ {_NOISE}", r"\max(\nu - p, 0)"),
    adaptive_yogi: _ADAPTIVE.format(
        r"\nu \leftarrow \nu - (1 - \beta_2) \Delta^2 \operatorname{sign}(\nu - \Delta^2)", r"\nu"
    ),
    adaptive_adagrad: _ADAPTIVE.format(r"\nu \leftarrow \nu + \Delta^2", r"\nu"),
}
SECOND_MOMENTS = {"delta": adaptive_delta, "mu": adaptive_mu, "unbiased": adaptive_unbiased}

_USUAL = {"learning_rate": 0.01, "b1": 0.9, "b2": 0.99, "pi": 1e-3}
SERVERS: dict[str, Server] = {
    "sgd": Server(hyperparameters={"learning_rate": 1.0}),
    "adam": Server(hyperparameters=_USUAL, factory=adaptive_delta),
    "yogi": Server(hyperparameters=_USUAL, factory=adaptive_yogi),
    "adagrad": Server(hyperparameters=_USUAL, factory=adaptive_adagrad),
}
MORE_NUMBERS = {"sgd": ("momentum",), "adam": ("nu_init",)}  # optional numbers of a server
