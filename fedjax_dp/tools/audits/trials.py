"""Thousands of runs of a game in one compiled program, with an axis of trials on every device."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.execution.memory import free_memory
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.simulation import run_key


class PlayableGame(Protocol):
    """Two worlds; each run plays one of them."""

    def play(self, key: jax.Array, there: jax.Array) -> jax.Array: ...  # `(times, roles, numbers)`


AXIS = "trials"
MOST_LANES = 1024
CACHE = 2**21  # bytes of memory for the lanes of a CPU core
SHARE_OF_ROOM = 0.5  # of the free memory of other devices, for concurrent trials
AHEAD = 3  # pending dispatches


def compile_game(
    game: PlayableGame,
    key: jax.Array,
    mesh: Mesh,
    lanes: int,
    bits: tuple[int, ...] = (),
    options: dict[str, Any] = COMPILER_OPTIONS,
) -> Any:
    """The executable for games of these shapes and shardings, with this many concurrent trials on each device."""

    def play(game: PlayableGame, key: jax.Array, numbers: jax.Array, worlds: jax.Array) -> jax.Array:
        return jax.vmap(lambda number, there: game.play(jax.random.fold_in(key, number), there))(numbers, worlds)

    each, all_ = P(AXIS), P()
    program = jax.jit(
        jax.shard_map(play, mesh=mesh, in_specs=(all_, all_, each, each), out_specs=each, check_vma=False),
        compiler_options=options,
    )
    count, spread = lanes * mesh.size, NamedSharding(mesh, each)
    numbers = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=spread)
    worlds = jax.ShapeDtypeStruct((count, *bits), jnp.bool_, sharding=spread)
    return program.lower(game, key, numbers, worlds).compile()


def fit_lanes(play: Callable[[int], Any], room: float) -> tuple[int, Any]:
    """The number of concurrent trials on a device, a power of 2 that fits its memory, and their program."""
    alone = play(1)
    used = alone.memory_analysis()
    each = max(used.temp_size_in_bytes + used.output_size_in_bytes, 1) if used else 1
    lanes = 2 ** int(math.log2(min(max(room / each, 1), MOST_LANES)))
    return lanes, alone if lanes == 1 else play(lanes)


class TrialRunner:
    """A compiled game. Trial numbers determine keys, so a trial does not depend on concurrent ones.

    lanes  concurrent trials on a device; None: as many as fit its memory, or a CPU core's cache;
    bits   shape of the bits that decide whether a canary is present.
    """

    def __init__(self, game: PlayableGame, seed: int, lanes: int | None = None, bits: tuple[int, ...] = ()):
        devices = jax.local_devices()
        self.mesh = Mesh(devices, (AXIS,))
        spread, whole = NamedSharding(self.mesh, P(AXIS)), NamedSharding(self.mesh, P())
        self.whole, self.bits = whole, bits
        game = self._place_game(game)
        self.key = jax.device_put(role_key(run_key(seed), "audit"), whole)

        def play(at_once: int) -> Any:
            return compile_game(game, self.key, self.mesh, at_once, bits)

        if lanes is not None:
            self.lanes, self.program = lanes, play(lanes)
        else:
            room = CACHE if devices[0].platform == "cpu" else SHARE_OF_ROOM * free_memory(devices)
            self.lanes, self.program = fit_lanes(play, room)
        self.spread = spread
        _, self.times, *_, self.numbers = self.program.out_info.shape  # numbers of a message

    def _place_game(self, game: PlayableGame) -> Any:
        return jax.device_put(jax.tree.map(jnp.asarray, game), self.whole)

    def run(
        self, game: PlayableGame, first: int, worlds: np.ndarray, progress: Callable[[int], Any] = lambda done: None
    ) -> np.ndarray:
        """Run trials `first`, `first` + 1, ... with the canary where `worlds` is true; `(trials, times, ...)`.

        game  the compiled one, or one that differs from it only in numbers.
        """
        placed = self._place_game(game)
        width = self.lanes * self.mesh.size
        waiting: list[Any] = []
        results: list[np.ndarray] = []

        def collect() -> None:
            results.append(np.asarray(waiting.pop(0)))
            progress(min(len(results) * width, len(worlds)))

        for at in range(0, len(worlds), width):
            numbers = np.arange(first + at, first + at + width, dtype=np.int32)
            there = np.resize(worlds[at : at + width], (width, *worlds.shape[1:])).astype(bool)
            waiting.append(self.program(placed, self.key, *jax.device_put((numbers, there), self.spread)))
            if len(waiting) > AHEAD:
                collect()
        while waiting:
            collect()
        return np.concatenate(results)[: len(worlds)]
