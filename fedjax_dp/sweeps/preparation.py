"""From points to jobs: data is built once, all points are checked first, and noise is calibrated."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data import FederatedData
from fedjax_dp.display import without_addresses
from fedjax_dp.experiments.build import planned_of
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.population import build_data
from fedjax_dp.privacy.guarantees import prepare
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import checksum, replace
from fedjax_dp.sweeps.axes import Values
from fedjax_dp.sweeps.engine import Job
from fedjax_dp.sweeps.plan import Point, collect, identity


@dataclasses.dataclass(frozen=True)
class PreparedPoint:
    """A point ready to run, with its noise and its Guarantee."""

    index: int
    id: str
    values: Values  # axes, then the seed
    config: Mapping[str, Any]  # of the run; in a sweep from Python only rounds, epsilon and delta
    job: Job
    guarantee: Guarantee
    point: Point | None = None  # its description in a sweep of configurations


def checksum_of_data(data: FederatedData) -> str:
    """The checksum of all that a run depends on: records, test records, shares, names and what else is known."""
    facts = str(jax.tree.structure(replace(data, notes=()))), None if data.names is None else data.names.listed
    return checksum(data, np.frombuffer(without_addresses(repr(facts)).encode(), np.uint8))


class Sources:
    """The data of configurations. Each is built once, and equal data sets share their records in memory."""

    def __init__(self) -> None:
        self._built: dict[Any, FederatedData] = {}
        self._checksums: dict[Any, str] = {}
        self._records: dict[Any, FederatedData] = {}

    def of(self, config: PopulationConfig) -> FederatedData:
        """The data of a resolved configuration."""
        key = dataclasses.astuple(config)
        if key not in self._built:
            self._built[key] = self.share(build_data(config))
        return self._built[key]

    def checksum(self, config: PopulationConfig) -> str:
        """The checksum of these data, read once."""
        key = dataclasses.astuple(config)
        if key not in self._checksums:
            self._checksums[key] = checksum_of_data(self.of(config))
        return self._checksums[key]

    def share(self, data: FederatedData) -> FederatedData:
        """The same data, with the record arrays of an equal data set if one is known."""
        leaves, shape = jax.tree.flatten((data.x, data.y, data.x_test, data.y_test))
        arrays = [np.ascontiguousarray(a) for a in leaves]
        key = (shape, *((a.shape, a.dtype.str, zlib.crc32(a.view(np.uint8).reshape(-1).data)) for a in arrays))
        first = self._records.setdefault(key, data)
        held = jax.tree.leaves((first.x, first.y, first.x_test, first.y_test))
        if not all(map(np.array_equal, held, arrays)):
            return data
        return replace(data, x=first.x, y=first.y, x_test=first.x_test, y_test=first.y_test)

    def plan_run(self, config: RunSpec) -> PlannedRun:
        """The run of a configuration on its data."""
        return planned_of(config, self.of(config.data))


def with_data(points: Sequence[Point], sources: Sources) -> list[Point]:
    """The points, with ids that also name their data. Raises: as `build`, for points whose data cannot be built."""

    def identify(at: int) -> Point:
        config = points[at].config
        with config.naming_defaults():
            return dataclasses.replace(points[at], id=identity(config, sources.checksum(config.data)))

    return collect([point.values for point in points], identify)


def build(points: Sequence[Point], sources: Sources) -> list[PlannedRun]:
    """The run of every point, checked. Raises one ConfigurationError for all the points that cannot run."""

    def plan_point(at: int) -> PlannedRun:
        with points[at].config.naming_defaults():
            return sources.plan_run(points[at].config)

    return collect([point.values for point in points], plan_point)


def refuse_halting(terms: PrivacyTerms) -> None:
    """Refuse options that end a run early: points of a sweep run all their rounds."""
    where, remedy = "in a sweep, whose points take all their rounds", "give rounds, as an axis if need be, or epsilon"
    errors.require_left_out(terms, ("stop_at_epsilon", "stop"), where, remedy)


def find_noise(points: Sequence[Point], runs: Sequence[PlannedRun], screen: Screen) -> list[PreparedPoint]:
    """Calibrate the noise of every point. Raises one ConfigurationError for all that cannot meet their budget."""
    with screen.bar("noise of points", total=len(points)) as show:

        def prepare_point(at: int) -> PreparedPoint:
            show(at, "")
            refuse_halting(runs[at].terms)
            with points[at].config.naming_defaults():
                return with_noise(points[at], *prepare(runs[at]))

        prepared = collect([point.values for point in points], prepare_point)
        show(len(points), "")
    return prepared


def with_noise(point: Point, run: PlannedRun, guarantee: Guarantee) -> PreparedPoint:
    """The prepared point of a run that has its noise."""
    output, execution = point.config.output, point.config.execution
    job = Job(
        run, output.evaluate_every, bool(output.train_metrics), execution.chunk_size, parts=execution.deterministic
    )
    return PreparedPoint(
        point.index, point.id, point.values, point.config.flat(), job, guarantee.without_attack(), point
    )
