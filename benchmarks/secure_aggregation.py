"""Secure aggregation: masking, summing and unmasking a cohort against the plain sum, and against drawing masks alone.

    python benchmarks/secure_aggregation.py --json

100 members x 1,663,370 parameters in the ring of 32 bits: each member draws its own masks, the complete graph or 20
neighbours, on all cores. `words` draws as many mask words and throws them away: the floor of any program with this
generator. The programs take turns in this process, so a busy machine slows all of them; read the ratios. Before
timing, the sum is checked against that of integers.
"""

import argparse
import functools
import json
import pathlib
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from provenance import made_with

from fedjax_dp import prng
from fedjax_dp.execution.mesh import AXIS
from fedjax_dp.parts import SecureSum

TILE = 16_384
KEY = jax.random.key(0)


def over_devices(mesh, one_device):
    """One device's function, jitted over all of them, on rows; it returns one row per device."""
    by_row = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(one_device, mesh=mesh, in_specs=by_row, out_specs=by_row, check_vma=False))


def plain_sum(rows):
    """Row after row, which XLA does faster on a CPU than a reduction over rows."""
    return lax.scan(lambda total, row: (total + row, None), jnp.zeros(rows.shape[1]), rows)[0][None]


def words_of(neighbours, size):
    """Draws what each member's masks need, `neighbours` times half a block per coordinate, and keeps their sum."""
    tiles = -(-size // (2 * TILE))

    def one_member(total, seed):
        def one_tile(total, index):
            def one_neighbour(neighbour, sums):
                x, y = prng.words(jax.random.fold_in(seed, neighbour), 0, TILE, index * np.uint32(TILE))
                return sums + x + y

            return total + lax.fori_loop(0, neighbours, one_neighbour, jnp.zeros(TILE, jnp.uint32)), None

        return lax.scan(one_tile, total, jnp.arange(tiles, dtype=jnp.uint32))[0], None

    return lambda seeds: lax.scan(one_member, jnp.zeros(TILE, jnp.uint32), seeds)[0][None]


def secure_sum_over(mesh):
    """A program of (transport, round, ids, messages), rows over devices: the secure sum, and who did not fit."""

    @functools.partial(jax.jit, static_argnums=0)
    def run(transport, round_index, ids, messages):
        everyone = jnp.ones(len(ids), bool)
        whole, by_row = PartitionSpec(), PartitionSpec(AXIS)

        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(whole, whole, by_row, by_row),
            out_specs=(whole, by_row),
            check_vma=False,
        )
        def upload(round_index, ids, positions, messages):
            def member(summed, row):
                words, overflow = transport.message(KEY, round_index, row[0], ids, everyone, row[1])
                return summed + words, overflow

            summed, overflow = lax.scan(member, jnp.zeros((1, messages.shape[1]), jnp.uint32), (positions, messages))
            return lax.psum(summed, AXIS), overflow

        summed, overflow = upload(round_index, ids, jnp.arange(len(ids)), messages)
        return transport.total(KEY, round_index, ids, everyone, everyone, summed), overflow

    return run


def measure(members, size, neighbours, repeats):
    """Seconds of every program, `repeats` times, in turns."""
    mesh = Mesh(jax.local_devices(), (AXIS,))
    if members % mesh.size:
        sys.exit(f"members must be a multiple of the {mesh.size} devices, got {members}")
    rng = np.random.default_rng(0)
    messages = rng.normal(size=(members, size)).astype(np.float32)
    ids, rows = jnp.arange(members, dtype=jnp.int32), NamedSharding(mesh, PartitionSpec(AXIS))
    placed, seeds = jax.device_put((messages, jax.random.split(KEY, members)), rows)
    graphs = {"complete": None, f"{neighbours}_neighbours": neighbours}
    plain, secure_sum = over_devices(mesh, plain_sum), secure_sum_over(mesh)
    programs = {"plain_sum": lambda turn: plain(placed)}

    def secure(transport, turn):
        return secure_sum(transport, jnp.int32(turn), ids, placed)

    for name, k in graphs.items():
        run = over_devices(mesh, words_of(k or members - 1, size))
        programs[f"words_{name}"] = lambda turn, run=run: run(seeds)
        programs[f"secure_{name}"] = functools.partial(secure, SecureSum(neighbours=k))
    compile_s, seconds = {}, {name: [] for name in programs}
    for name, run in programs.items():
        print(f"compiling and checking {name}", file=sys.stderr)
        began = time.perf_counter()
        result = jax.block_until_ready(run(0))
        compile_s[name] = time.perf_counter() - began
        if name.startswith("secure"):
            check(*result, messages)
    for turn in range(repeats):
        for name, run in programs.items():
            print(f"{turn + 1} of {repeats}: {name}", file=sys.stderr)
            began = time.perf_counter()
            jax.block_until_ready(run(turn + 1))
            seconds[name].append(time.perf_counter() - began)
    return graphs, compile_s, seconds


def check(total, overflow, messages):
    """The secure sum is that of the integers round(2^16 x), to the bit."""
    exact = np.zeros(messages.shape[1], np.int64)
    for row in messages:
        exact += np.round(row * np.float32(2.0**16)).astype(np.int64)
    if overflow.any() or not np.array_equal(total, exact.astype(np.float32) * np.float32(2.0**-16)):
        sys.exit("the secure sum is not the sum of the integers")


def summarise(options, graphs, compile_s, seconds):
    def ratio(slow, fast):  # pair by pair, so that drift of the machine cancels
        return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))

    return {
        "members": options.members,
        "size": options.size,
        "bits": 32,
        "seconds": {name: statistics.median(all_) for name, all_ in seconds.items()},
        "seconds_all": seconds,
        "over_words_alone": {name: ratio(f"secure_{name}", f"words_{name}") for name in graphs},
        "over_plain_sum": {name: ratio(f"secure_{name}", "plain_sum") for name in graphs},
        "first_call_s": compile_s,
        **made_with(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--size", type=int, default=1_663_370)
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON here")
    options = parser.parse_args()
    results = summarise(options, *measure(options.members, options.size, options.neighbours, options.repeats))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.json:
        print(json.dumps(results))
        return
    for name, seconds in results["seconds"].items():
        print(f"{name:24s} {seconds:8.3f} s")


if __name__ == "__main__":
    main()
