"""From points to jobs: data built once, every point checked before anything runs, noise found for every budget."""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.data import FederatedData
from fedjax_dp.experiments.build import build_algorithm, build_model, terms_of
from fedjax_dp.experiments.config import RunConfig
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.population import PopulationConfig, build_data
from fedjax_dp.experiments.run import prepare
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.simulation import check
from fedjax_dp.sweeps.engine import Job
from fedjax_dp.sweeps.plan import Point, refuse_points


class Built(NamedTuple):
    """A point that can run, without its noise yet."""

    point: Point
    job: Job


class Ready(NamedTuple):
    """A point with its noise and what it promises."""

    point: Point
    job: Job
    guarantee: Guarantee


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
        arrays = [np.ascontiguousarray(a) for a in (data.x, data.y, data.x_test, data.y_test)]
        key = tuple((a.shape, a.dtype.str, zlib.crc32(a.view(np.uint8).reshape(-1).data)) for a in arrays)
        first = self._records.setdefault(key, data)
        if not all(map(np.array_equal, (first.x, first.y, first.x_test, first.y_test), arrays)):
            return data
        return changed(data, x=first.x, y=first.y, x_test=first.x_test, y_test=first.y_test)


def build(points: Sequence[Point], sources: Sources) -> list[Built]:
    """Data, model and algorithm of every point. Raises one ConfigurationError for all the points that cannot run."""
    built, refused = [], []
    for point in points:
        try:
            built.append(Built(point, job_of(point.config, sources)))
        except errors.ConfigurationError as error:
            refused.append((point.values, str(error)))
    if refused:
        raise refuse_points(len(points), refused)
    return built


def find_noise(built: Sequence[Built], screen: Screen) -> list[Ready]:
    """Every point with the noise that meets its budget. Raises one ConfigurationError for all that cannot meet it."""
    ready, refused = [], []
    with screen.bar("noise of points", total=len(built)) as show:
        for done, (point, job) in enumerate(built):
            config = point.config
            try:
                algorithm, promise = prepare(
                    job.algorithm,
                    job.data,
                    rounds=config.training.rounds,
                    seed=config.data.seed,
                    terms=terms_of(config, job.data),
                    model=job.model,
                )
                ready.append(Ready(point, job._replace(algorithm=algorithm), promise))
            except errors.ConfigurationError as error:
                refused.append((point.values, str(error)))
            show(done + 1, "")
    if refused:
        raise refuse_points(len(built), refused)
    return ready


def job_of(config: RunConfig, sources: Sources) -> Job:
    """A resolved configuration, checked, without its noise yet."""
    data = sources.of(config.data)
    model, algorithm = build_model(config, data), build_algorithm(config, data)
    rounds, output, execution = config.training.rounds, config.output, config.execution
    check(algorithm, data, rounds, model)
    return Job(
        algorithm,
        data,
        model,
        rounds,
        config.data.seed,
        output.evaluate_every,
        bool(output.train_metrics),
        execution.chunk_size,
        execution.deterministic,
    )
