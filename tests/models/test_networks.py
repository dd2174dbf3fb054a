# ruff: noqa: B023 (what is made in a loop here is called in the same pass)
"""Networks of four frameworks, generated: clipped sums and norms equal float64 gradients of single records.

Half of the networks run on batches whose size is also the number of positions and of features, where nothing can be
known from shapes. None may be wrong; what is refused says why.
"""

import functools
import re
from unittest import mock

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from helpers import ragged_data, refusal, usual
from jax import lax
from single_gradients import check_clipped_sum

import fedjax_dp as fdp
from fedjax_dp import errors, gradients
from fedjax_dp.models import NetworkModel
from fedjax_dp.models.networks import network_of

CLASSES = 3
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # compiled once, run once
FRAMEWORKS = ("functions", "linen", "nnx", "equinox", "haiku")


class Case:
    """A generated network: sizes, records and random choices."""

    def __init__(self, framework, seed):
        self.rng = rng = np.random.default_rng([FRAMEWORKS.index(framework), seed])
        self.records = int(rng.integers(2, 6))
        alike = seed % 2 == 0
        self.length = self.records if alike else int(rng.integers(2, 7))
        self.width = self.length if alike else int(rng.integers(2, 6))
        self.tokens = bool(rng.random() < 0.3)
        self.many = bool(rng.random() < 0.4)  # a label for each position
        self.blocks = [int(b) for b in rng.integers(0, 10**6, rng.integers(1, 4))]
        shape = (self.records, self.length)
        self.x = rng.integers(0, 5, shape) if self.tokens else rng.normal(size=(*shape, self.width))
        self.y = rng.integers(0, CLASSES, shape if self.many else self.records)

    def loss(self, scores, label):
        picked = jnp.take_along_axis(scores, label[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - picked)

    def pick(self, block, choices):
        return choices[block % len(choices)]


# Blocks of plain functions: (parameters for width d and length t, forward on (t, d)).


def functions_blocks(d, t):
    half = max(1, d // 2)
    return [
        ({"w": (d, d), "b": (d,)}, lambda p, h: jnp.tanh(h @ p["w"] + p["b"])),
        ({"w": (d, d)}, lambda p, h: jnp.tanh(jnp.tanh(h @ p["w"]) @ p["w"])),
        ({"w": (d, 4)}, lambda p, h: jnp.tanh(h @ p["w"]) @ p["w"].T),
        ({"w": (t, t)}, lambda p, h: p["w"] @ h),
        ({"w": (t, t)}, lambda p, h: (h.T @ p["w"]).T + p["w"][:, :1]),
        ({"w": (t * d, t * d)}, lambda p, h: jnp.tanh(h.reshape(-1) @ p["w"]).reshape(t, d)),
        ({"w": (3 * d * d,)}, lambda p, h: sum(jnp.tanh(h @ w) for w in p["w"].reshape(3, d, d))),
        ({"w": (d, 2 * d)}, lambda p, h: jnp.tanh(h @ p["w"][:, :d]) + h @ p["w"][:, d:]),
        ({"w": (d, 2 * d)}, lambda p, h: jnp.tanh(h @ p["w"][:, :d]) + h @ p["w"][:, half : half + d]),
        (
            {"w": (2, d, d), "b": (2, d)},
            lambda p, h: lax.scan(lambda h, q: (jnp.tanh(h @ q["w"] + q["b"]), None), h, p)[0],
        ),
        (
            {"w": (d, d), "v": (d, d), "b": (d,)},
            lambda p, h: lax.scan(
                lambda c, x: (jnp.tanh(c @ p["w"] + x @ p["v"] + p["b"]),) * 2, jnp.zeros(d, h.dtype), h, reverse=True
            )[1],
        ),
        (
            {"w": (2, d, d)},
            lambda p, h: lax.scan(
                lambda h, w: (lax.scan(lambda c, x: (jnp.tanh(c @ w + x),) * 2, jnp.zeros(d, h.dtype), h)[1], None),
                h,
                p["w"],
            )[0],
        ),
        ({"w": (t, d)}, lambda p, h: h + p["w"]),
        ({"w": (t + 2, d)}, lambda p, h: h * 0.5 - p["w"][jnp.arange(t)]),
        ({"w": (d,), "b": (1, d)}, lambda p, h: h * p["w"] + 2.0 * p["b"]),
        ({"w": (d, d), "g": (d,)}, lambda p, h: h @ (p["w"] / jnp.linalg.norm(p["w"], axis=0) * p["g"])),
        ({"w": (d, d)}, lambda p, h: (h[:, :, None] * p["w"]).sum(1)),
        ({"w": (d, d)}, lambda p, h: h @ (-0.5 * p["w"]) + jnp.flip(h, 1) @ jnp.flip(p["w"], 0)),
        ({"a": (d, 2), "b": (2, d)}, lambda p, h: h + 2.0 * (h @ p["a"]) @ p["b"]),
        (
            {"a": (d, 2), "b": (2, d)},
            lambda p, h: jnp.tanh(h @ jnp.concatenate([p["a"], p["b"].T], 1)) @ jnp.ones((4, d), h.dtype),
        ),
        (
            {"w": (2, d, d)},
            lambda p, h: (
                jnp.einsum("td,kde->te", h, p["w"]) + jnp.einsum("td,kde,kt->te", h, p["w"], jnp.ones((2, t), h.dtype))
            ),
        ),
        ({"w": (3, d, d)}, lambda p, h: jnp.einsum("td,tde->te", h, p["w"][jnp.argmax(h, 1) % 3])),
        ({"w": (3, d, d)}, lambda p, h: jax.checkpoint(lambda h: jnp.tanh(h @ p["w"][1]) @ p["w"][2])(h)),
        (
            {"k": (3, d, d), "b": (d,)},
            lambda p, h: (
                lax.conv_general_dilated(h[None], p["k"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"))[0]
                + p["b"]
            ),
        ),
        (
            {"k": (d, 1, 3)},
            lambda p, h: lax.conv_general_dilated(h.T[None], p["k"], (1,), "SAME", feature_group_count=d)[0].T,
        ),
        ({"w": (d, d)}, lambda p, h: lax.cond(h.sum() > 0, lambda: h @ p["w"], lambda: -h)),
        (
            {"w": (d, d), "c": (1, d)},
            lambda p, h: (jax.nn.softmax(jnp.concatenate([p["c"], h]) @ p["w"] @ h.T) @ h)[1:],
        ),
        ({"w": (d, d)}, lambda p, h: own_product(jnp.tanh(h), p["w"])),
        ({"w": (d, d)}, lambda p, h: twice_the_gradient(h @ p["w"]) @ lax.stop_gradient(p["w"])),
        ({"w": (d, d)}, lambda p, h: lax.map(lambda x: jnp.tanh(x @ p["w"]), h)),
        ({"w": (d, d)}, lambda p, h: lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p["w"]), h)),
        ({"w": (t, d, d)}, lambda p, h: jnp.einsum("td,tde->te", h, p["w"])),
        ({"w": (d, d), "z": (3,)}, lambda p, h: h @ p["w"].astype(jnp.float32).astype(h.dtype)),
    ]


@jax.custom_vjp
def own_product(h, w):
    return h @ w


own_product.defvjp(lambda h, w: (h @ w, (h, w)), lambda kept, e: (e @ kept[1].T, kept[0].T @ e))


@jax.custom_vjp
def twice_the_gradient(h):
    return h


twice_the_gradient.defvjp(lambda h: (h, None), lambda kept, e: (2 * e,))


def functions_network(case):
    d, t = case.width, case.length
    chosen = [functions_blocks(d, t)[b % len(functions_blocks(d, t))] for b in case.blocks]
    tied = case.tokens and case.rng.random() < 0.5

    def start(key):
        shapes = {f"block{i}": shapes for i, (shapes, _) in enumerate(chosen)} | {"head": {"w": (d, CLASSES)}}
        if case.tokens:
            shapes["table"] = {"e": (5, d)}
        flat, structure = jax.tree.flatten(shapes, is_leaf=lambda s: isinstance(s, tuple))
        keys = jax.random.split(key, len(flat))
        return jax.tree.unflatten(structure, [0.6 * jax.random.normal(k, s) for k, s in zip(keys, flat)])

    def forward(p, x):
        h = p["table"]["e"][x] if case.tokens else x
        for i, (_, block) in enumerate(chosen):
            h = block(p[f"block{i}"], h)
        h = h if case.many else h.mean(0)
        return (h @ p["table"]["e"].T)[..., :CLASSES] + h @ p["head"]["w"] if tied else h @ p["head"]["w"]

    return start, forward


class TimeMajor(nn.Module):
    """A dense layer over activations whose first axis is no axis of records."""

    @nn.compact
    def __call__(self, h):
        return nn.tanh(nn.Dense(h.shape[-1])(h.swapaxes(0, 1))).swapaxes(0, 1)


class Positions(nn.Module):
    @nn.compact
    def __call__(self, h):
        return h + nn.Embed(h.shape[1], h.shape[2])(jnp.arange(h.shape[1]))[None]


class Folded(nn.Module):
    @nn.compact
    def __call__(self, h):
        n, t, d = h.shape
        return nn.tanh(nn.Dense(d)(h.reshape(n * t, d))).reshape(n, t, d)


class Attend(nn.Module):
    @nn.compact
    def __call__(self, h):
        return h + nn.MultiHeadDotProductAttention(2, qkv_features=4)(nn.LayerNorm()(h))


class Gate(nn.Module):
    @nn.compact
    def __call__(self, h):
        return h * self.param("gate", nn.initializers.ones, (h.shape[-1],))


class Over(nn.Module):
    """Layers that a compiled loop runs over, or through."""

    shared: bool

    @nn.compact
    def __call__(self, h):
        class Body(nn.Module):
            @nn.compact
            def __call__(self, h, _):
                return nn.tanh(nn.Dense(h.shape[-1])(h)), None

        how = (
            {"variable_broadcast": "params", "split_rngs": {"params": False}}
            if self.shared
            else {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        )
        return nn.scan(Body, **how, length=2)()(h, None)[0]


class General(nn.Module):
    @nn.compact
    def __call__(self, h):
        d = h.shape[-1]
        return nn.Einsum((2, 3, d), "...hk,hko->...o")(nn.DenseGeneral((2, 3))(h))


def wide():
    """The widest type at hand: where a loop starts must be of the type that its steps make."""
    return jnp.result_type(float)


def linen_blocks(d):
    return [
        lambda: lambda h: nn.tanh(nn.Dense(d)(h)),
        lambda: TimeMajor(),
        lambda: Positions(),
        lambda: Folded(),
        lambda: Attend(),
        lambda: Gate(),
        lambda: Over(True),
        lambda: Over(False),
        lambda: nn.WeightNorm(nn.Dense(d)),
        lambda: nn.LayerNorm(),
        lambda: nn.RMSNorm(),
        lambda: nn.GroupNorm(1),
        lambda: nn.Conv(d, (2,), padding="CAUSAL"),
        lambda: nn.Conv(d, (3,), feature_group_count=d),
        lambda: nn.RNN(nn.GRUCell(d, param_dtype=wide())),
        lambda: nn.RNN(nn.OptimizedLSTMCell(d, param_dtype=wide()), reverse=True, keep_order=True),
        lambda: nn.RNN(nn.SimpleCell(d, param_dtype=wide())),
        lambda: nn.remat(Attend)(),
        lambda: nn.ConvTranspose(d, (2,)),
        lambda: nn.ConvLocal(d, (1,)),
        lambda: nn.PReLU(),
        lambda: nn.Bidirectional(
            nn.RNN(nn.GRUCell(d, param_dtype=wide())), nn.RNN(nn.GRUCell(d, param_dtype=wide())), merge_fn=jnp.add
        ),
        lambda: nn.DenseGeneral(d, axis=-1),
        lambda: nn.Einsum((d, d), "...d,de->...e"),
        lambda: General(),
    ]


class LinenNet(nn.Module):
    case: Case

    @nn.compact
    def __call__(self, x):
        case, h = self.case, x
        if case.tokens:
            table = nn.Embed(5, case.width)
            h = table(x)
        blocks = linen_blocks(case.width)
        for block in case.blocks:
            h = blocks[block % len(blocks)]()(h)
        if case.tokens and case.blocks[0] % 2:
            h = table.attend(h)
        return nn.Dense(CLASSES)(h if case.many else h.mean(1))


class NnxNet(nnx.Module):
    def __init__(self, case, rngs):
        d = case.width
        self.tokens, self.many, self.tied = case.tokens, case.many, bool(case.tokens and case.blocks[0] % 2)
        kinds = [
            lambda: nnx.Linear(d, d, rngs=rngs),
            lambda: nnx.LayerNorm(d, rngs=rngs),
            lambda: nnx.RMSNorm(d, rngs=rngs),
            lambda: nnx.MultiHeadAttention(1, d, decode=False, rngs=rngs),
            lambda: nnx.Conv(d, d, (2,), padding="CAUSAL", rngs=rngs),
            lambda: nnx.RNN(nnx.GRUCell(d, d, param_dtype=wide(), rngs=rngs)),
            lambda: nnx.LoRA(d, 2, d, base_module=nnx.Linear(d, d, rngs=rngs), rngs=rngs),
            lambda: nnx.LinearGeneral(d, d, rngs=rngs),
            lambda: nnx.Einsum("...d,de->...e", (d, d), (d,), rngs=rngs),
            lambda: nnx.GroupNorm(d, num_groups=1, rngs=rngs),
            lambda: nnx.Conv(d, d, (3,), feature_group_count=d, rngs=rngs),
        ]
        made = [kinds[block % len(kinds)]() for block in case.blocks]
        self.layers = nnx.List([made[0], *made] if case.blocks[-1] % 3 == 0 else made)  # one of them twice
        self.table = nnx.Embed(5, d, rngs=rngs) if self.tokens else None
        self.head = nnx.Linear(5 if self.tied else d, CLASSES, rngs=rngs)

    def __call__(self, x):
        h = self.table(x) if self.tokens else x
        for layer in self.layers:
            h = nnx.tanh(layer(h))
        h = self.table.attend(h) if self.tied else h
        return self.head(h if self.many else h.mean(1))


class EquinoxNet(eqx.Module):
    layers: list
    table: eqx.nn.Embedding | None
    head: eqx.nn.Linear
    kinds: tuple = eqx.field(static=True)
    many: bool = eqx.field(static=True)

    def __init__(self, case, key):
        d, keys = case.width, iter(jax.random.split(key, 20))
        make = [
            lambda: eqx.nn.Linear(d, d, key=next(keys)),
            lambda: eqx.nn.LayerNorm(d),
            lambda: eqx.nn.RMSNorm(d),
            lambda: eqx.nn.MultiheadAttention(1, d, use_query_bias=True, key=next(keys)),
            lambda: eqx.nn.Conv1d(d, d, 3, padding=1, key=next(keys)),
            lambda: eqx.nn.GRUCell(d, d, key=next(keys)),
            lambda: eqx.filter_vmap(lambda k: eqx.nn.Linear(d, d, key=k))(jax.random.split(next(keys), 3)),
            lambda: eqx.filter_vmap(lambda k: eqx.nn.Linear(d, d, key=k))(jax.random.split(next(keys), 2)),
            lambda: eqx.nn.MLP(d, d, 4, 1, key=next(keys)),
            lambda: eqx.nn.LSTMCell(d, d, key=next(keys)),
        ]
        self.kinds = tuple(block % len(make) for block in case.blocks)
        self.layers = [make[kind]() for kind in self.kinds]
        self.table = eqx.nn.Embedding(5, d, key=next(keys)) if case.tokens else None
        self.head, self.many = eqx.nn.Linear(d, CLASSES, key=next(keys)), case.many

    def __call__(self, x):
        h = x if self.table is None else jax.vmap(self.table)(x)
        for kind, layer in zip(self.kinds, self.layers):
            if kind == 3:
                h = h + layer(h, h, h)
            elif kind == 4:
                h = layer(h.T).T
            elif kind == 5:
                h = lax.scan(lambda c, v: (layer(v, c),) * 2, jnp.zeros(h.shape[1], h.dtype), h)[1]
            elif kind == 6:  # an ensemble
                h = eqx.filter_vmap(lambda m, h: jax.vmap(m)(h), in_axes=(eqx.if_array(0), None))(layer, h).mean(0)
            elif kind == 7:  # layers that a loop runs over
                numbers, rest = eqx.partition(layer, eqx.is_array)
                h = lax.scan(lambda h, m: (jnp.tanh(jax.vmap(eqx.combine(m, rest))(h)), None), h, numbers)[0]
            elif kind == 9:
                zero = jnp.zeros(h.shape[1], h.dtype)
                h = lax.scan(lambda c, v: ((c := layer(v, c)), c[0]), (zero, zero), h)[1]
            else:
                h = jnp.tanh(jax.vmap(layer)(h))
        return jax.vmap(self.head)(h) if self.many else self.head(h.mean(0))


def haiku_network(case):
    def forward(x):
        d = case.width
        table = hk.Embed(5, d) if case.tokens else None
        h = table(x) if case.tokens else x
        kinds = [
            lambda h: jnp.tanh(hk.Linear(d)(h)),
            lambda h: hk.LayerNorm(-1, True, True)(h),
            lambda h: h + hk.MultiHeadAttention(2, 2, w_init=hk.initializers.RandomNormal(), model_size=d)(h, h, h),
            lambda h: hk.Conv1D(d, 3)(h),
            lambda h: hk.dynamic_unroll(hk.GRU(d), h, hk.GRU(d).initial_state(h.shape[0]), time_major=False)[0],
            lambda h: h + hk.get_parameter("positions", h.shape[1:], init=hk.initializers.RandomNormal()),
        ]
        for block in case.blocks:
            h = kinds[block % len(kinds)](h)
        return hk.Linear(CLASSES)(h if case.many else h.mean(1))

    return hk.transform(forward)


def network(framework, case):
    if framework == "functions":
        return functions_network(case)
    if framework == "linen":
        return LinenNet(case)
    if framework == "nnx":
        return lambda key: NnxNet(case, nnx.Rngs(key))
    if framework == "equinox":
        return lambda key: EquinoxNet(case, key)
    return haiku_network(case)


@jax.numpy_rank_promotion("allow")  # as users have it
def against_float64(framework, seed):
    """How far the clipped sum and the norms are from those of float64 gradients, over the largest of each.

    And how far `vmap(grad)` in float32 is: an ill-conditioned network, or a sum that cancels, loses digits in both.
    The latter as a function, as only what is further away than 1e-5 needs it.
    """
    case = Case(framework, seed)
    example = jnp.asarray(case.x[0], jnp.int32 if case.tokens else jnp.float32)
    model = fdp.model(network(framework, case), example, loss=case.loss)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda p: np.float32(case.rng.normal(scale=0.6, size=p.shape)), shapes)
    x, y = np.asarray(case.x, example.dtype), np.asarray(case.y, np.int32)

    def single(model, params, x):
        one = jax.vmap(jax.grad(lambda p, x, y: model.loss(p, x, y)), (None, 0, 0))
        found = jax.jit(one, compiler_options=QUICK)(params, x, y)
        return np.concatenate([np.float64(g).reshape(case.records, -1) for g in jax.tree.leaves(found)], 1)

    with jax.enable_x64(True):
        wide = NetworkModel(network_of(network(framework, Case(framework, seed))), example.shape, case.loss)
        exact = single(wide, jax.tree.map(np.float64, params), x if case.tokens else np.float64(x))
    clip = float(np.median(np.linalg.norm(exact, axis=1)))

    def clipped_and_norms(rows):
        norms = np.linalg.norm(rows, axis=1)
        return (np.minimum(1.0, clip / np.maximum(norms, 1e-12))[:, None] * rows).sum(0), norms

    def apart(total, norms):
        wanted, exact_norms = clipped_and_norms(exact)
        return (
            np.linalg.norm(total - wanted) / max(np.linalg.norm(wanted), 1e-30),
            np.max(np.abs(norms - exact_norms)) / max(exact_norms.max(), 1e-30),
        )

    ours = jax.jit(functools.partial(gradients.clipped_sum, model), compiler_options=QUICK)
    got = ours(params, x, y, np.ones(case.records, bool), clip)
    total = np.concatenate([np.float64(g).reshape(-1) for g in jax.tree.leaves(got.total)])
    return apart(total, np.float64(got.norms)), lambda: apart(*clipped_and_norms(single(model, params, x)))


@jax.numpy_rank_promotion("allow")  # as users have it
@jax.default_matmul_precision("float32")
def check(framework, seeds):
    """No network of these seeds is wrong, and at most one in twenty is refused.

    Wrong: 1e-5 from float64, and further than twice what float32 gradients of single records are.
    """
    refused = []
    for seed in seeds:
        try:
            ours, float32 = against_float64(framework, seed)
        except errors.ConfigurationError as error:
            refused.append(f"{seed}: {error}")
            continue
        if max(ours) > 1e-5:
            theirs = float32()
            assert all(a <= max(1e-5, 2 * b) for a, b in zip(ours, theirs)), f"{framework} {seed}: {ours}, {theirs}"
    assert len(refused) <= 1 + len(seeds) // 20, refused


@pytest.mark.slow
@pytest.mark.parametrize("framework", usual(FRAMEWORKS, ("functions", "linen")))
def test_clipped_sums_equal_float64(framework):
    check(framework, range(2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_clipped_sums_of_many_networks_equal_float64(framework, part):
    many = {"functions": 10, "linen": 7, "nnx": 5, "equinox": 5, "haiku": 3}[framework]  # 300 in all
    check(framework, range(100 + part * many, 100 + (part + 1) * many))


@pytest.mark.slow
def test_a_wrong_norm_would_be_found():
    """The comparison can fail: norms of units whose uses are added up as if they were apart."""
    from fedjax_dp.gradients import norms

    right, found = norms.squares, []

    def wrong(unit, uses):
        squared, built = right(unit, uses)
        return (squared * 1.001, built) if unit.positions > 1 else (squared, built)

    with mock.patch.object(norms, "squares", wrong):
        found = [max(against_float64("functions", seed)[0]) for seed in range(2)]
    assert max(found) > 1e-4


class LinenDrop(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


class NnxDrop(nnx.Module):
    def __init__(self, rngs):
        self.drop, self.dense = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(40, 3, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.drop(x))


class EquinoxDrop(eqx.Module):
    drop: eqx.nn.Dropout
    dense: eqx.nn.Linear

    def __init__(self, key):
        self.drop, self.dense = eqx.nn.Dropout(0.5), eqx.nn.Linear(40, 3, key=key)

    def __call__(self, x, *, key=None):
        return self.dense(self.drop(x, key=key))


def functions_drop(params, x, key):
    kept = 1.0 if key is None else 2.0 * jax.random.bernoulli(key, 0.5, x.shape)
    return (x * kept) @ params


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(LinenDrop(), marks=pytest.mark.slow),
        pytest.param(lambda key: NnxDrop(nnx.Rngs(key)), marks=pytest.mark.slow),
        pytest.param(lambda key: EquinoxDrop(key), marks=pytest.mark.exhaustive),
        pytest.param((lambda key: jax.random.normal(key, (40, 3)), functions_drop), marks=pytest.mark.slow),
    ],
    ids=["linen", "nnx", "equinox", "functions"],
)
def test_dropout_has_a_key_of_each_record_in_every_framework(given):
    model = fdp.model(given, (40,))
    params, x, y = model.init(jax.random.key(0)), jnp.ones((4, 40)), jnp.zeros(4, int)
    keys = jax.random.split(jax.random.key(2), 4)
    losses = jax.jit(gradients.losses, static_argnums=0)
    trained, looked = losses(model, params, x, y, keys), losses(model, params, x, y)
    assert np.ptp(looked) == 0
    assert np.ptp(trained) > 0
    assert np.ptp(check_clipped_sum(model, params, x, y, 0.5, keys)) > 0


def test_a_module_that_stands_starts_with_its_own_numbers_and_another_with_those_of_the_key():
    stands = NnxDrop(nnx.Rngs(3))
    model = fdp.model(stands, (40,))
    for seed in (0, 1):
        np.testing.assert_array_equal(model.init(jax.random.key(seed))["dense/kernel/value"], stands.dense.kernel[...])
    made = fdp.model(lambda key: NnxDrop(nnx.Rngs(key)), (40,))
    one, other = (made.init(jax.random.key(seed))["dense/kernel/value"] for seed in (0, 1))
    assert not np.allclose(one, other)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (
            lambda: lambda key: BatchNormed(nnx.Rngs(key)),
            "BatchNormed with norm/mean/value, norm/var/value, which it up",
        ),
        (lambda: RunningStatistics(fixed=False), "RunningStatistics with batch_stats, which it updates"),
        (lambda: RunningStatistics(fixed=False, turned=True), "RunningStatistics with batch_stats, which it updates"),
        (lambda: MeanInTraining(), "runs over the records of a batch"),
        (
            lambda: hk.transform_with_state(lambda x: hk.BatchNorm(True, True, 0.9)(x, True)),
            "Haiku function with a state",
        ),
        (lambda: lambda key: 3, "use|pair of functions"),
        (
            lambda: lambda params, x: x,
            r"a function of a key alone, .* got one of \(params, x\); give \(start, forward\)",
        ),
        (lambda: Mean(), "runs over the records of a batch"),
        (lambda: hk.transform(lambda x: hk.Linear(3)(x - x.mean(0))), "runs over the records of a batch"),
        (lambda: eqx.nn.Linear(7, 3, key=jax.random.key(0)), "Linear that fails on one record"),
    ],
)
def test_what_is_no_network_of_one_record_is_refused_in_one_line(network, words):
    with jax.numpy_rank_promotion("allow"):
        assert re.search(words, refusal(fdp.model, network(), (5,)))


class BatchNormed(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(5, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


class RunningStatistics(nn.Module):
    """Batch normalisation by running statistics: always, or where it is not trained (turned: where it is)."""

    fixed: bool = True
    turned: bool = False

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=self.fixed or train == self.turned)(nn.Dense(4)(x))
        return nn.Dense(3)(x)


class MeanInTraining(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(3)(x - x.mean(0) if train else x)


class Pretrained(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(5, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, use_running_average=True, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.dense(x))


STATISTICS = {"mean": np.float32([0.5, -1.0, 2.0, 0.0]), "var": np.float32([4.0, 0.25, 1.0, 9.0])}


@pytest.mark.slow
@pytest.mark.parametrize("entry", usual(["dpnfl", "fedavg"], ["dpnfl"]))
def test_running_statistics_alone_are_constants_of_a_model(entry):
    """Those of a start are used, and neither trained nor written; a start without them is refused."""
    data, network = ragged_data([20, 30], shape=(5,)), RunningStatistics()
    model = fdp.model(network, data)
    assert set(model.init(jax.random.key(0))) == {
        f"{at}/{name}" for at in ("BatchNorm_0", "Dense_0", "Dense_1") for name in ("bias", "kernel", "scale")
    } - {"BatchNorm_0/kernel", "Dense_0/scale", "Dense_1/scale"}
    begun = model.init(jax.random.key(1))
    assert "no batch_stats/BatchNorm_0/mean" in refusal(fdp.models.freeze, model, start=begun, start_private=False)
    pretrained = {f"batch_stats/BatchNorm_0/{name}": value for name, value in STATISTICS.items()}
    model = fdp.models.freeze(model, start=begun | pretrained, start_private=False)
    result = fdp.run(
        getattr(fdp, entry)(
            **{"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1},
            **({"clip_norm": 1.0, "noise_multiplier": 1.0} if entry == "dpnfl" else {}),
        ),
        data,
        rounds=1,
        delta=1e-2,
        model=model,
    )
    variables = {"params": unnamed_flax(result.params), "batch_stats": {"BatchNorm_0": STATISTICS}}
    wanted = network.apply(variables, np.asarray(data.x[:3]))
    got = jax.jit(jax.vmap(model.scores, (None, 0)))(result.params, data.x[:3])
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    whole = model.whole(result.params)
    np.testing.assert_array_equal(whole["batch_stats"]["BatchNorm_0"]["mean"], STATISTICS["mean"])
    check_clipped_sum(model, result.params, data.x[:6], data.y[:6], 0.3)


def unnamed_flax(params):
    tree = {}
    for path, value in params.items():
        at, name = path.split("/")
        tree.setdefault(at, {})[name] = value
    return tree


def test_running_statistics_of_an_nnx_module_count_as_values_that_it_came_with():
    made = Pretrained(nnx.Rngs(0))
    made.norm.mean[...] = jnp.array([1.0, 2.0, 3.0])
    model = fdp.model(made, (5,))
    x = np.arange(5.0, dtype=np.float32)
    np.testing.assert_allclose(model.scores(model.init(jax.random.key(0)), x), made(x[None])[0], rtol=1e-6)

    def built(key):
        module = Pretrained(nnx.Rngs(key))
        module.norm.mean[...] = jnp.array([1.0, 2.0, 3.0])
        return module

    assert len(fdp.model(built, (5,)).origins) == 1
    assert fdp.model(lambda key: Pretrained(nnx.Rngs(key)), (5,)).origins == ()
    other = Pretrained(nnx.Rngs(0))
    assert fdp.model(other, (5,)).origins != model.origins


class Mean(nnx.Module):
    def __call__(self, x):
        return x - x.mean(0, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("framework", usual(FRAMEWORKS, ("linen",)))
def test_every_framework_runs_privately_with_a_guarantee(framework):
    data = ragged_data([20, 30, 25], shape=(40,))
    network = {
        "functions": (lambda key: 0.1 * jax.random.normal(key, (40, 3)), functions_drop),
        "linen": nn.Dense(3),
        "nnx": lambda key: NnxDrop(nnx.Rngs(key)),
        "equinox": EquinoxDrop(jax.random.key(1)),
        "haiku": hk.transform(lambda x: hk.Linear(3)(x)),
    }[framework]
    value = fdp.dpnfl(cohort_size=2, batch_size=4, local_steps=2, learning_rate=0.1, clip_norm=1.0)
    result = fdp.run(value, data, rounds=2, epsilon=5.0, delta=1e-2, model=fdp.model(network, data))
    assert 0 < result.guarantee.epsilon <= 5.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
