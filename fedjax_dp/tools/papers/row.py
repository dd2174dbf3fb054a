"""A claim of a paper on one of its settings, as a row of a table."""

import dataclasses
import math
from typing import Any

from fedjax_dp.accounting.guarantee import Claim
from fedjax_dp.display import finite


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """One claim on one configuration. Noise is in the paper's own unit (see `noise_unit`)."""

    paper: str
    setting: str
    claim: Claim
    provable: float | None  # epsilon that the rigorous accountant proves for the paper's noise, at the claim's delta
    noise: float | None = None  # of the paper's calibration
    tight: float | None = None  # of the rigorous accountant's calibration, at the same budget
    noise_unit: str = ""
    details: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def noise_ratio(self) -> float | None:
        """The paper's noise over the noise that suffices: above 1 wasteful, below 1 not private enough."""
        return self.noise / self.tight if self.noise and self.tight else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: an infinite epsilon is null, and `provable_is_infinite` says so."""
        infinite = self.provable is not None and math.isinf(self.provable)
        return {
            "paper": self.paper,
            "setting": self.setting,
            "claim": self.claim.source,
            "verdict": self.claim.verdict.value,
            "reason": self.claim.reason,
            "delta": self.claim.delta,
            "claimed_epsilon": self.claim.epsilon,
            "provable_epsilon": finite(self.provable),
            "provable_is_infinite": infinite,
            "noise": self.noise,
            "tight_noise": self.tight,
            "noise_unit": self.noise_unit,
            "noise_ratio": self.noise_ratio,
            "details": self.details,
        }
