"""What a planned sweep takes on one accelerator that is not here: memory, hours and money, by its compiled programs."""

import warnings
from typing import NamedTuple

from fedjax_dp.display import count, duration
from fedjax_dp.sweeps.runner import SweepPlan
from forecast.compiled import Compiled, compiled_sweep
from forecast.targets import target_of

LEFT_OUT = "start, compilation and evaluations are not in it"


class SweepForecast(NamedTuple):
    """The programs of a plan, compiled for one device; hours and money are None where no time is predicted."""

    target: str
    programs: tuple[Compiled, ...]
    rounds: tuple[int, ...]  # of the points of each that have most: as long its batches run
    price: float | None  # of a device for an hour, in whatever money

    @property
    def hours(self) -> float | None:
        """All rounds of all points."""
        times = [one.predicted_ms for one in self.programs]
        known = [each for each in times if each is not None]
        if len(known) < len(times):
            return None
        return sum(ms * rounds for ms, rounds in zip(known, self.rounds, strict=True)) / 3.6e6

    @property
    def cost(self) -> float | None:
        return None if self.hours is None or self.price is None else self.hours * self.price

    def lines(self) -> list[str]:
        """In words."""
        if not self.programs:
            return []
        most = max(self.programs, key=lambda one: one.needed_bytes)
        at_once = max(one.runs_at_once for one in self.programs)
        of = f"{most.needed_bytes / 1e9:.3g} GB of {most.target.memory / 1e9:.3g}"
        memory = f"{of}, up to {count(at_once, 'point')} at once"
        if self.hours is None:
            money = "" if self.price is None else ", and no money"
            return [f"one {self.target}: {memory}; {most.about_time}{money}"]
        money = "" if self.cost is None else f", {self.cost:,.2f} at {self.price:g} an hour"
        time = f"about {duration(3600 * self.hours)} ({self.hours:.3g} device hours){money}"
        return [f"one {self.target}: {time}; {memory}", f"{most.about_time}; {LEFT_OUT}"]


def forecast_sweep(plan: SweepPlan, target: str, price: float | None = None) -> SweepForecast:
    """Compile a round of every program of a plan for one accelerator; nothing is measured.

    Raises: ConfigurationError as `compiled_sweep` does.
    """
    name = target_of(target).name
    runs = [[entry.job for entry in entries] for entries in plan.entries]
    with warnings.catch_warnings():  # a cache of programs cannot read back those of what is not here
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
        programs = [
            compiled_sweep(
                jobs[0].run.algorithm,
                jobs[0].run.data,
                jobs[0].run.model,
                points=len(jobs),
                target=name,
                chunk_size=jobs[0].chunk_size,
            )
            for jobs in runs
        ]
    return SweepForecast(name, tuple(programs), tuple(max(job.run.rounds for job in jobs) for jobs in runs), price)
