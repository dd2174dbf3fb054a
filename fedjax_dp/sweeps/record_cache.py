"""The records of a sweep on the devices, placed once for each data set."""

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
    """The records that each device holds: those of the data set that it ran on last."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[Any, list[jax.Array]]] = {}

    def records(self, datas: Sequence[FederatedData], largest: int, smallest: int, mesh: Mesh) -> FederatedData:
        """The records of each device's data set `(devices, ...)`; those that a device already holds stay there."""
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
    """What all partitions of a data set share, where no client has more or fewer records than these."""
    shared = replace(data, **dict.fromkeys(data.partition), name="", learnt=(), overlap="")
    return replace(shared, largest=largest, smallest=smallest)


def base_of(data: FederatedData) -> tuple[float, ...]:
    """A key that is equal for data sets of the same records."""
    arrays = tuple(id(array) for array in jax.tree.leaves((data.x, data.y, data.x_test, data.y_test)))
    return (*arrays, float(data.scale), float(data.shift))
