"""What is promised, to whom, under which assumptions. Never a bare epsilon."""

import dataclasses
import enum
import math
from typing import Any


class View(enum.Enum):
    """Who sees what."""

    UPLOADS = "uploads"  # the server sees every client's message: client sampling hides nothing

    def __str__(self) -> str:
        return "a server that sees every upload"


RECORD = "record of one client"  # a unit of privacy
FLOAT_NOISE = "noise comes from a seeded float32 generator: it measures utility and protects nobody's data"


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper's own theorem says, and whether it may be believed here. Not a guarantee."""

    source: str
    epsilon: float | None  # None where the theorem does not apply
    delta: float
    verdict: str  # holds | heuristic | understates | does not apply
    reason: str

    def __str__(self) -> str:
        said = "no epsilon" if self.epsilon is None else f"epsilon {self.epsilon:.4g} at delta {self.delta:g}"
        return f"{self.source}: {said} ({self.verdict}: {self.reason})"


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) differential privacy of each client's records, with everything the two numbers depend on.

    Each client has its own epsilon (sizes, noise and participation differ); `epsilon` is the largest.
    """

    epsilons: tuple[float, ...]  # per client, in nats
    delta: float | None
    unit: str
    adjacency: str | None
    view: str
    accountant: str | None
    assumptions: tuple[str, ...]
    claims: tuple[Claim, ...] = ()

    @property
    def epsilon(self) -> float:
        """The worst client's epsilon."""
        return max(self.epsilons)

    @property
    def epsilon_min(self) -> float:
        """The best protected client's epsilon."""
        return min(self.epsilons)

    @property
    def epsilon_median(self) -> float:
        """The median client's epsilon (the upper one of an even number)."""
        return sorted(self.epsilons)[len(self.epsilons) // 2]

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return f"no privacy: epsilon is infinite, because {self.assumptions[0]}."
        spread = f"min {self.epsilon_min:.4g}, median {self.epsilon_median:.4g}, max {self.epsilon:.4g}"
        return (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} for one {self.unit} ({self.adjacency} neighbours) "
            f"against {View(self.view)}; over {len(self.epsilons)} clients epsilon is {spread}; "
            f"accountant: {self.accountant}."
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: infinite epsilon is null."""
        return {
            "epsilon": finite(self.epsilon), "delta": self.delta, "unit": self.unit, "adjacency": self.adjacency,
            "view": self.view, "accountant": self.accountant, "epsilon_min": finite(self.epsilon_min),
            "epsilon_median": finite(self.epsilon_median), "epsilon_max": finite(self.epsilon),
            "statement": str(self), "assumptions": list(self.assumptions),
            "claims": [dataclasses.asdict(claim) | {"statement": str(claim)} for claim in self.claims],
        }  # fmt: skip


def finite(number: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return number if math.isfinite(number) else None


def no_privacy(num_clients: int, reason: str) -> Guarantee:
    """The guarantee of an algorithm that gives none."""
    infinite = (math.inf,) * num_clients
    return Guarantee(infinite, None, RECORD, None, View.UPLOADS.value, None, (reason,))
