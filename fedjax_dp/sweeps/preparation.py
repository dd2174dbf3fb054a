"""From points to jobs: data built once, every point checked before anything runs, noise found for every budget."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data import FederatedData
from fedjax_dp.experiments.build import planned_of, terms_of
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.population import build_data
from fedjax_dp.privacy.guarantees import prepared
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.sweeps.axes import Values
from fedjax_dp.sweeps.engine import Job
from fedjax_dp.sweeps.plan import Point, refuse_points


class Built(NamedTuple):
    """A point that can run, without its noise yet."""

    point: Point
    run: PlannedRun


@dataclasses.dataclass(frozen=True)
class PreparedPoint:
    """A point as it is run and recorded: with its noise and what it promises."""

    index: int
    id: str
    values: Values  # axes, then the seed
    config: Mapping[str, Any]  # everything else that is known of it
    terms: PrivacyTerms
    job: Job
    guarantee: Guarantee
    point: Any = None  # the `Point` that it is of, in a sweep of configurations


class Sources:
    """Data of configurations: each built once, and the records of equal data sets held once."""

    def __init__(self) -> None:
        self._built: dict[Any, FederatedData] = {}
        self._records: dict[Any, FederatedData] = {}

    def of(self, config: PopulationConfig) -> FederatedData:
        """The clients of a resolved configuration."""
        key = dataclasses.astuple(config)
        if key not in self._built:
            self._built[key] = self.share(build_data(config))
        return self._built[key]

    def share(self, data: FederatedData) -> FederatedData:
        """The same data, with the very arrays of records of an equal data set that was met before."""
        leaves, shape = jax.tree.flatten((data.x, data.y, data.x_test, data.y_test))
        arrays = [np.ascontiguousarray(a) for a in leaves]
        key = (shape, *((a.shape, a.dtype.str, zlib.crc32(a.view(np.uint8).reshape(-1).data)) for a in arrays))
        first = self._records.setdefault(key, data)
        held = jax.tree.leaves((first.x, first.y, first.x_test, first.y_test))
        if not all(map(np.array_equal, held, arrays)):
            return data
        return changed(data, x=first.x, y=first.y, x_test=first.x_test, y_test=first.y_test)

    def planned(self, config: RunSpec) -> PlannedRun:
        """The run of a configuration on its clients."""
        return planned_of(config, self.of(config.data))


def build(points: Sequence[Point], sources: Sources) -> list[Built]:
    """Every point, checked. Raises one ConfigurationError for all the points that cannot run."""
    built, refused = [], []
    for point in points:
        try:
            with point.config.naming_defaults():
                built.append(Built(point, sources.planned(point.config)))
        except errors.ConfigurationError as error:
            refused.append((point.values, str(error)))
    if refused:
        raise refuse_points(len(points), refused)
    return built


def find_noise(built: Sequence[Built], screen: Screen) -> list[PreparedPoint]:
    """Every point with the noise that meets its budget. Raises one ConfigurationError for all that cannot meet it."""
    found, refused = [], []
    with screen.bar("noise of points", total=len(built)) as show:
        for done, (point, run) in enumerate(built):
            try:
                with point.config.naming_defaults():
                    found.append(with_noise(point, run, *prepared(run)))
            except errors.ConfigurationError as error:
                refused.append((point.values, str(error)))
            show(done + 1, "")
    if refused:
        raise refuse_points(len(built), refused)
    return found


def with_noise(point: Point, run: PlannedRun, algorithm: Algorithm, guarantee: Guarantee) -> PreparedPoint:
    """A point whose algorithm has its noise, ready to run."""
    config, job = point.config, job_of(point.config, run, algorithm)
    terms = dataclasses.replace(terms_of(config, run.data), epsilon=None)
    return PreparedPoint(point.index, point.id, point.values, config.flat(), terms, job, guarantee, point)


def job_of(config: RunSpec, run: PlannedRun, algorithm: Algorithm) -> Job:
    """What the sweep engine runs of a configuration."""
    output, execution = config.output, config.execution
    return Job(
        algorithm,
        run.data,
        run.model,
        run.rounds,
        run.seed,
        output.evaluate_every,
        bool(output.train_metrics),
        execution.chunk_size,
        execution.deterministic,
    )
