"""What a round on an accelerator is made of, each alone: normals, products, windows, row sums, copies.

    python benchmarks/primitives.py            # writes results/primitives.json after every row, prints a table
    python benchmarks/primitives.py --quick    # small sizes, a few turns: whether all of it runs and is right

Each is the body of a compiled loop whose next turn needs what the last one made, so that nothing is left out or done
once for all turns. Before it is timed it is checked: normals by their moments, products and sums against float64,
windows element for element. Numbers are the median of several loops, microseconds a turn; a turn of the loop alone is
the row `loop`. Beside `prng.normals`, which takes a Threefry block for each normal, stand pairs: two of each block.
"""

import argparse
import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from provenance import made_with
from round_latency import RESULTS, quiet

from fedjax_dp import devices, prng

Z = 5.0  # standard errors that a moment may be off by
COPIES = 8  # of an array in a turn: one alone takes no longer than the turn itself
RATE = 1e-3  # of the updates: parameters stay bounded, as gradients are drawn once


class Size(NamedTuple):
    """How much of each is done in a turn, and how often."""

    clients: int
    records: int  # of all clients together, in products and windows
    megabytes: tuple[int, ...]  # of copies
    turns: int
    repeats: int


FULL = Size(1000, 320, (30, 100, 1000), 200, 7)
QUICK = Size(8, 4, (1, 2), 3, 2)


class Case(NamedTuple):
    """One row: the body of a loop, and how it is checked."""

    group: str
    name: str
    start: Callable[[], Any]  # what the loop begins with
    turn: Callable[[Any, jax.Array], Any]  # from that, and the number of the turn, to what the next one begins with
    work: float  # of a turn
    unit: str  # of it
    error: Callable[[], float] | None = None
    bound: float = 0.0  # of the error


def normals_in_pairs(key: jax.Array, stream: jax.Array | int, size: int) -> jax.Array:
    """`size` independent standard normals of one stream, two of each block, next to each other; flat.

    Box and Muller 1958: sqrt(-2 ln u) times cos(pi t) and sin(pi t), u in (0, 1), t in [-1, 1). Both are the sine of
    `prng.normals`, cos(pi t) = sin(pi/2 (1 - 2|t|)), and sin(pi t) = sin(pi/2 s), s = 2t folded back into [-1, 1].
    """
    blocks = (-(-size // 2), 2)
    low, column = (lax.broadcasted_iota(jnp.uint32, blocks, axis) for axis in (0, 1))
    first, second = jax.random.key_data(key)
    # As in `prng`: zeros of which the compiler does not know, or the key's schedule is a launch of its own.
    nothing = (first & low) >> np.uint32(31)
    x, y = prng._threefry((first + nothing, second + nothing), jnp.asarray(stream, jnp.uint32) + nothing, low)
    u = ((x >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5) * np.float32(2.0**-31)
    t = lax.bitcast_convert_type(y, jnp.int32).astype(jnp.float32) * np.float32(2.0**-31)
    folded = jnp.where(jnp.abs(t) > 0.5, jnp.copysign(np.float32(2.0), t) - 2 * t, 2 * t)
    s = jnp.where(column == 0, 1 - 2 * jnp.abs(t), folded)
    sine = jnp.full_like(s, prng._SINE[-1])
    for coefficient in prng._SINE[-2::-1]:
        sine = sine * (s * s) + np.float32(coefficient)
    return (jnp.sqrt(-2 * jnp.log(u)) * (sine * s)).reshape(-1)[:size]


DRAWS = {"one by one": prng.normals, "pairs": normals_in_pairs}


def all_cases(size: Size) -> Iterator[Case]:
    """Every row, in the order of the table."""
    yield Case("loop", "an empty turn", lambda: jnp.zeros(()), lambda a, i: a + i.astype(jnp.float32), 0.0, "")
    yield from copies(size)
    yield from draws(size)
    yield from products(size)
    yield from windows(size)
    yield from row_sums(size)


def copies(size: Size) -> Iterator[Case]:
    """An array read and written in place, eight times a turn: one that the L2 cache holds, a larger, a far larger."""

    def turn(a: jax.Array, i: jax.Array) -> jax.Array:
        for k in range(COPIES):
            a = lax.optimization_barrier(a * 0.999 + (i + k).astype(jnp.float32))
        return a

    for megabytes in size.megabytes:
        count = megabytes * 250_000
        start = functools.partial(random, count)
        yield Case("copy", f"{COPIES} of {megabytes:,} MB", start, turn, 8.0 * COPIES * count, "bytes")


def draws(size: Size) -> Iterator[Case]:
    """A step's update of every client's parameters, with noise of one stream, of four, and without."""
    for shape in ((7850,), (10, 784)):
        whole = (size.clients, *shape)
        shown, count = "x".join(map(str, whole)), float(np.prod(whole))
        start = functools.partial(random_pair, whole)
        yield Case("normals", f"update of {shown} alone", start, updated(shape, prng.normals, 0), 12 * count, "bytes")
        for streams in (1, 4):
            for name, draw in DRAWS.items():
                yield Case(
                    "normals",
                    f"{name}, {shown}" + (f", {streams} streams" if streams > 1 else ""),
                    start,
                    updated(shape, draw, streams),
                    count * streams,
                    "normals",
                    functools.partial(moments_off, draw, size.clients, shape) if streams == 1 else None,
                    Z,
                )


def updated(
    shape: tuple[int, ...], draw: Callable[[jax.Array, jax.Array, int], jax.Array], streams: int
) -> Callable[[Any, jax.Array], Any]:
    """A turn that moves parameters against a gradient, to which it adds normals of so many streams."""
    size = int(np.prod(shape))

    def turn(carry: Any, i: jax.Array) -> Any:
        way, gradient, keys = carry
        noise: Any = i.astype(jnp.float32)
        for k in range(streams):
            stream = i.astype(jnp.uint32) * np.uint32(streams) + np.uint32(k)
            noise = noise + jax.vmap(lambda key, stream=stream: draw(key, stream, size).reshape(shape))(keys)
        return way - RATE * (gradient + 0.1 * noise), gradient, keys

    return turn


def moments_off(draw: Callable[..., jax.Array], clients: int, shape: tuple[int, ...]) -> float:
    """Standard errors by which moments of as many draws are off, the worst: of one number, and of neighbours."""
    size = int(np.prod(shape))
    drawn = jax.jit(jax.vmap(lambda key: draw(key, 3, size)))(keys_of(clients))
    z = np.asarray(drawn, np.float64)
    count, even = z.size, size // 2 * 2
    first, second = z[:, 0:even:2].ravel(), z[:, 1:even:2].ravel()
    found = [
        z.mean() * np.sqrt(count),
        (np.mean(z**2) - 1) / np.sqrt(2 / count),
        np.mean(z**3) / np.sqrt(15 / count),
        (np.mean(z**4) - 3) / np.sqrt(96 / count),
        np.mean(first * second) * np.sqrt(first.size),
        np.mean((first**2 - 1) * (second**2 - 1)) / 2 * np.sqrt(first.size),
        np.mean(first**2 * second) / np.sqrt(3 / first.size),
        np.mean(first * second**2) / np.sqrt(3 / first.size),
    ]
    return float(np.abs(found).max())


PRESET = lax.DotAlgorithmPreset
PRECISIONS: dict[str, tuple[Any, float]] = {  # and what a number may be off by, over the sum of |products|
    "highest": (lax.Precision.HIGHEST, 2e-6),
    "tf32 x3": (PRESET.TF32_TF32_F32_X3, 1e-5),
    "bf16 x6": (PRESET.BF16_BF16_F32_X6, 4e-6),
    "bf16 x9": (PRESET.BF16_BF16_F32_X9, 2e-6),
    "bf16 x3": (PRESET.BF16_BF16_F32_X3, 1e-4),
    "default": (None, 2e-3),
}


def products(size: Size) -> Iterator[Case]:
    """Outer products summed over positions, as gradients are: of single records of a convolution, of softmax clients.

    A precision that the device does not keep, at whatever speed, is said to be wrong.
    """
    for problems, positions, outputs, inputs in ((size.records, 196, 64, 800), (size.clients, 10, 10, 784)):
        shown = f"{problems}x{positions}x{outputs} by {problems}x{positions}x{inputs}"

        def start(left: Any = (problems, positions, outputs), right: Any = (problems, positions, inputs)) -> Any:
            return random(*left), random(*right, seed=1), jnp.zeros((left[0], left[2], right[2]))

        for name, (precision, bound) in PRECISIONS.items():
            product = functools.partial(jnp.einsum, "nto,ntk->nok", precision=precision)
            off = functools.partial(product_off, product, start)
            work = 2.0 * problems * positions * outputs * inputs
            yield Case("product", f"{name}, {shown}", start, tied(product), work, "operations", off, bound)


def tied(made: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[Any, jax.Array], Any]:
    """A turn that computes all of `made`, then changes an element of what it reads by an element of what it made."""

    def turn(carry: Any, i: jax.Array) -> Any:
        v, u, _ = carry
        out = lax.optimization_barrier(made(v, u))
        corner = (0,) * v.ndim
        return v.at[corner].set(jnp.cos(out[(0,) * out.ndim])), u, out

    return turn


def product_off(product: Callable[..., jax.Array], start: Callable[[], Any]) -> float:
    """Largest error of a product's numbers over the sum of absolute values that each adds up."""
    v, u, _ = start()
    few = slice(0, 8)
    got = np.asarray(jax.jit(product)(v, u)[few], np.float64)
    a, b = (np.asarray(part[few], np.float64) for part in (v, u))
    wanted, whole = (np.einsum("nto,ntk->nok", p, q) for p, q in ((a, b), (np.abs(a), np.abs(b))))
    return float((np.abs(got - wanted) / whole).max())


def norms_off(product: Callable[..., jax.Array], start: Callable[[], Any]) -> tuple[float, float]:
    """Least and largest relative error of the norms of single records."""
    v, u, _ = start()
    few = slice(0, 8)
    got = np.asarray(jax.jit(product)(v, u)[few], np.float64)
    wanted = np.einsum("nto,ntk->nok", *(np.asarray(part[few], np.float64) for part in (v, u)))
    off = np.sqrt((got**2).sum((1, 2)) / (wanted**2).sum((1, 2))) - 1
    return float(off.min()), float(off.max())


def windows(size: Size) -> Iterator[Case]:
    """What a 5x5 convolution of 14x14 positions and 32 channels sees, of all records of the clients."""
    clients = min(10, size.records)
    shape = (clients, size.records // clients, 14, 14, 32)
    count = float(np.prod(shape))
    shown = "x".join(map(str, shape))
    kinds: dict[str, Callable[[jax.Array], jax.Array]] = {
        "at once": at_once,
        "two steps": functools.partial(in_two_steps, apart=True),
        "two steps as one kernel": in_two_steps,
    }
    for name, seen in kinds.items():

        def made(x: jax.Array, _: jax.Array, seen: Callable[[jax.Array], jax.Array] = seen) -> jax.Array:
            return jax.vmap(seen)(x)

        def start() -> Any:
            return random(*shape), jnp.zeros(()), jnp.zeros((*shape[:-1], 25 * shape[-1]))

        yield Case(
            "windows",
            f"{name}, {shown}",
            start,
            tied(made),
            4.0 * 26 * count,
            "bytes",
            functools.partial(windows_off, seen, shape),
        )


def at_once(x: jax.Array) -> jax.Array:
    """All 25 places of the window next to each other, as `Convolution.windows` makes them."""
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    return jnp.concatenate([x[:, h : h + height, w : w + width] for h in range(5) for w in range(5)], -1)


def in_two_steps(x: jax.Array, apart: bool = False) -> jax.Array:
    """The same, first along the width, then along the height; `apart`: the first step is written out."""
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    x = jnp.concatenate([x[:, :, w : w + width] for w in range(5)], -1)
    x = lax.optimization_barrier(x) if apart else x
    return jnp.concatenate([x[:, h : h + height] for h in range(5)], -1)


def windows_off(seen: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> float:
    """Largest difference from windows that NumPy cuts out."""
    x = random(*shape)
    got = np.asarray(jax.jit(jax.vmap(seen))(x)[:, :1])
    padded = np.pad(np.asarray(x[:, 0]), ((0, 0), (2, 2), (2, 2), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (1, 2))
    return float(np.abs(got[:, 0] - views.transpose(0, 1, 2, 4, 5, 3).reshape(got[:, 0].shape)).max())


def row_sums(size: Size) -> Iterator[Case]:
    """Logits of ten records of every client by its own softmax model: as a product, and as ten sums along rows.

    Alone, and of parameters that the same turn has moved, where sums may join the update's kernel.
    """
    shape = (size.clients, 10, 784)
    shown, count = "x".join(map(str, shape)), float(np.prod(shape))

    def summed(params: jax.Array, x: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
        """Records as arrays of their own where they are: a slice of them is a launch of its own."""
        each = x if isinstance(x, tuple) else [x[:, b] for b in range(x.shape[1])]
        return jnp.stack([(params * one[:, None]).sum(-1) for one in each], 1)

    def product(precision: Any) -> Callable[..., jax.Array]:
        return lambda params, x: jnp.einsum("cok,cbk->cbo", params, x, precision=precision)

    kinds = {"product": (product(None), 2e-3), "exact product": (product(lax.Precision.HIGHEST), 2e-6)}
    for name, (logits, bound) in (kinds | {"row sums": (summed, 2e-6)}).items():

        def start(name: str = name) -> Any:
            params, x = random(*shape), random(*shape, seed=1)
            records = tuple(x[:, b] for b in range(shape[1])) if name == "row sums" else x
            return params, records, jnp.zeros((size.clients, 10, 10)), random(*shape, seed=2)

        def alone(carry: Any, i: jax.Array, logits: Callable[..., jax.Array] = logits) -> Any:
            return *tied(logits)(carry[:3], i), carry[3]

        def moved(carry: Any, i: jax.Array, logits: Callable[..., jax.Array] = logits, apart: bool = False) -> Any:
            params, x, last, gradient = carry
            params = params - RATE * (gradient + jnp.tanh(last[:, :1, :1]))
            params = lax.optimization_barrier(params) if apart else params
            return params, x, logits(params, x), gradient

        off = functools.partial(logits_off, logits, start)
        yield Case("logits", f"{name}, {shown}", start, alone, 8 * count, "bytes", off, bound)
        yield Case("logits", f"update, then {name}, {shown}", start, moved, 16 * count, "bytes", off, bound)
        if name == "row sums":  # else some sums compute the update again, and it cannot be made in place
            after = functools.partial(moved, apart=True)
            yield Case("logits", f"update apart, then {name}, {shown}", start, after, 16 * count, "bytes", off, bound)


def logits_off(logits: Callable[..., jax.Array], start: Callable[[], Any]) -> float:
    """Largest error of a logit over the sum of absolute values that it adds up."""
    params, x, *_ = start()
    few = slice(0, 8)
    got = np.asarray(jax.jit(logits)(params, x)[few], np.float64)
    x = jnp.stack(x, 1) if isinstance(x, tuple) else x
    a, b = (np.asarray(part[few], np.float64) for part in (params, x))
    wanted, whole = (np.einsum("cok,cbk->cbo", p, q) for p, q in ((a, b), (np.abs(a), np.abs(b))))
    return float((np.abs(got - wanted) / whole).max())


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def random_pair(shape: tuple[int, ...]) -> Any:
    return random(*shape), random(*shape, seed=1), keys_of(shape[0])


def keys_of(clients: int) -> jax.Array:
    return jax.random.split(jax.random.key(2, impl="threefry2x32"), clients)


def measure(case: Case, size: Size) -> dict[str, Any]:
    """The row of a case: checked, then timed."""
    error = case.error() if case.error else 0.0
    row: dict[str, Any] = {"group": case.group, "name": case.name}
    if case.error:
        row |= {"error": error, "bound": case.bound, "right": bool(error <= case.bound)}
    if case.group == "product":
        row["norms_off"] = norms_off(*case.error.args)  # type: ignore[union-attr]

    @functools.partial(jax.jit, donate_argnums=0, compiler_options=devices.COMPILER_OPTIONS)
    def loop(carry: Any, first: jax.Array) -> Any:
        return lax.fori_loop(0, size.turns, lambda i, carry: case.turn(carry, first + i), carry)

    carry = jax.block_until_ready(loop(case.start(), np.int32(0)))
    times = []
    for k in range(1, size.repeats + 1):
        began = time.perf_counter()
        carry = jax.block_until_ready(loop(carry, np.int32(k * size.turns)))
        times.append(1e6 * (time.perf_counter() - began) / size.turns)
    made = jax.tree.leaves(carry)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in made if jnp.issubdtype(leaf.dtype, jnp.floating)):
        row["right"] = False
    us = float(np.median(times))
    row |= {"us": us, "spread": quiet.spread(times)}
    return row | ({f"{case.unit}_per_s": 1e6 * case.work / us} if case.unit else {})


def table(found: dict[str, Any]) -> str:
    """Markdown of all rows."""
    lines = ["| what | us a turn | a second | error |", "| --- | --- | --- | --- |"]
    for row in found["rows"]:
        if "refused" in row:
            lines.append(f"| {row['group']}: {row['name']} | - | not here | - |")
            continue
        rate = next((f"{v / 1e9:,.4g}e9 {k[:-6]}" for k, v in row.items() if k.endswith("_per_s")), "-")
        error = f"{row['error']:.2g}{'' if row['right'] else ' (wrong)'}" if "error" in row else "-"
        lines.append(f"| {row['group']}: {row['name']} | {row['us']:.4g} | {rate} | {error} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, and written nowhere unless told where")
    parser.add_argument("--groups", nargs="+", help="only these: loop copy normals product windows logits")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON file; default results/primitives.json")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    out = options.out or (None if options.quick else RESULTS / "primitives.json")
    found: dict[str, Any] = {
        "rows": [],
        "turns": size.turns,
        "repeats": size.repeats,
        **made_with(),
    }
    for case in all_cases(size):
        if options.groups and case.group not in options.groups:
            continue
        try:
            row = measure(case, size)
        except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:  # what a device cannot do
            row = {"group": case.group, "name": case.name, "refused": str(error).splitlines()[0]}
        found["rows"].append(row)
        print(f"{case.group}: {case.name}: {row.get('us', row.get('refused'))}", file=sys.stderr)
        if out:  # after every row, so that a machine that is taken away leaves what it did
            out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    if wrong := [row["name"] for row in found["rows"] if not row.get("right", True)]:
        sys.exit(f"not right: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
