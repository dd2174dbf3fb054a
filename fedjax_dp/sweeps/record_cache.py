"""The records of a sweep on the devices. Each data set is placed once."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp.data.store import FederatedData
from fedjax_dp.pytrees import replace
from fedjax_dp.sweeps.program import AXIS


class RecordCache:
    """The records on each device, which are those of the data set that it used last."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[Any, list[jax.Array]]] = {}

    def records(self, datas: Sequence[FederatedData], largest: int, smallest: int, mesh: Mesh) -> FederatedData:
        """The records of each device's data set `(devices, ...)`. Records that a device already holds are not moved."""
        for at, (data, device) in enumerate(zip(datas, mesh.devices.flat, strict=True)):
            if at not in self._cached or self._cached[at][0] != base_of(data):
                self._cached.pop(at, None)
                leaves = [np.asarray(a)[None] for a in jax.tree.leaves(records_of(data, largest, smallest))]
                self._cached[at] = (base_of(data), jax.device_put(leaves, device))
        spread = NamedSharding(mesh, P(AXIS))
        columns = zip(*(self._cached[at][1] for at in range(len(datas))), strict=True)
        whole = [
            jax.make_array_from_single_device_arrays((len(parts), *parts[0].shape[1:]), spread, list(parts))
            for parts in columns
        ]
        structure = jax.tree.structure(records_of(datas[0], largest, smallest))
        records_of_devices: FederatedData = jax.tree.unflatten(structure, whole)
        return records_of_devices


def records_of(data: FederatedData, largest: int, smallest: int) -> FederatedData:
    """The part of a data set that its partitions share. Clients have from `smallest` to `largest` records."""
    shared = replace(data, **dict.fromkeys(data.partition), name="", learnt=(), overlap="", mixed_tests=False)
    return replace(shared, largest=largest, smallest=smallest)


def base_of(data: FederatedData) -> tuple[float, ...]:
    """A key that is equal for data sets with the same records."""
    arrays = tuple(id(array) for array in jax.tree.leaves((data.x, data.y, data.x_test, data.y_test)))
    return (*arrays, float(data.scale), float(data.shift))
