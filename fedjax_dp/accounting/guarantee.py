"""Privacy guarantees: the protected unit, the adversary, the assumptions; never a bare epsilon."""

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.plain_words import AttackBounds
from fedjax_dp.accounting.views import View
from fedjax_dp.display import Card, displayed, finite, upward

FLOAT_NOISE = "noise comes from a seeded float32 generator: it measures utility and protects nobody's data"


class Verdict(enum.StrEnum):
    """Whether a theorem holds for a configuration."""

    HOLDS = "holds"
    CONDITIONAL = "conditional"
    HEURISTIC = "heuristic"
    WRONG = "wrong"

    @property
    def about(self) -> str:
        return {
            Verdict.HOLDS: "proved for the setting",
            Verdict.CONDITIONAL: "true under a condition, which the reason names, with whether the setting meets it",
            Verdict.HEURISTIC: "not proved, though the number claimed is not below what can be proved here",
            Verdict.WRONG: "false for the setting: the reason gives what contradicts it",
        }[self]


@dataclasses.dataclass(frozen=True)
class Claim:
    """The statement of a paper's theorem, and whether it holds here. Not a guarantee."""

    source: str
    epsilon: float | None  # None where the theorem says nothing
    delta: float
    verdict: Verdict
    reason: str
    client: int | None = None  # whom it is about, where not about all
    rounds: int | None = None  # how many of a client's rounds it is about, where not about all

    def __str__(self) -> str:
        text = "says nothing here" if self.epsilon is None else f"{epsilon_text(self.epsilon)} at delta {self.delta:g}"
        return f"{self.source}: {text} ({self.verdict}: {self.reason})"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"statement": str(self)}


class NoiseMultipliers(NamedTuple):
    """Range of the clients' noise multipliers: noise on a sum divided by the clip norm, for a source of deviation 1."""

    least: float
    median: float  # the upper one of an even number
    largest: float

    @classmethod
    def of(cls, each: Sequence[float]) -> Self:
        ordered = sorted(each)
        return cls(ordered[0], ordered[len(ordered) // 2], ordered[-1])

    def __str__(self) -> str:
        if self.least == self.largest:
            return f"{self.least:.4g}"
        return f"{self.least:.4g} to {self.largest:.4g} by client, median {self.median:.4g}"


class EarlierPhase(NamedTuple):
    """An earlier phase that a Guarantee covers in addition to the run itself."""

    about: str  # what it was
    epsilon: float  # of it alone, of the worst of the run's clients, at the delta of the Guarantee
    view: str | None  # in which its releases are counted; None: nobody says
    members: str = ""  # how its clients are the run's

    def in_words(self, view: View | None = None) -> str:
        """Description for a sentence; names the adversary if it is not `view`."""
        known = None if self.view is None else View(self.view)
        against = "" if known is None or known is view else f", against {known}"
        return f"{self.about} ({epsilon_text(self.epsilon)} alone{against})"


def epsilon_text(epsilon: float) -> str:
    return "infinite epsilon" if math.isinf(epsilon) else f"epsilon {upward(epsilon)}"


class DeploymentSummary(NamedTuple):
    """The deployment that a Guarantee describes, if the run simulates a larger one."""

    cohort_size: int  # R, expected
    population: int  # N
    rounds: int
    sampler: str
    noise_ratio: float  # r / R: the part of the deployment's noise that the run itself releases sums with
    simulated_cohort: int  # r
    simulated_population: int  # n

    @property
    def mark(self) -> str:
        """The label that accompanies every number of such a run."""
        return f"deployment {self.cohort_size:,} of {self.population:,}"


def mark_of(guarantee: Mapping[str, Any]) -> str:
    """The mark of a Guarantee in JSON; empty if it describes the run itself."""
    deployment = guarantee.get("deployment")
    return DeploymentSummary(**deployment).mark if deployment else ""


def with_mark(text: str, mark: str) -> str:
    """The label of a run, with the mark of its deployment if it has one."""
    return f"{text} ({mark})" if text and mark else text or mark


LARGE = 100.0  # nats; no epsilon above it says anything, so that the number is left out of a sentence
OF_MODELS = (View.OWNER, View.DEPLOYED)  # of clients' own models, beside which other views may be named


class Deferred(Sequence[Any]):
    """A tuple that is computed when it is first read, as most never are."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._call = functools.partial(call, *args)

    @functools.cached_property
    def items(self) -> tuple[Any, ...]:
        return tuple(self._call())

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return self.items == (other.items if isinstance(other, Deferred) else other)

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return repr(self.items)

    def __reduce__(self) -> tuple[Any, ...]:  # its arguments may be large, or bound to this process
        return (tuple, (self.items,))


@displayed
@dataclasses.dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) differential privacy of each client, with everything the two numbers depend on.

    Each client has its own epsilon (sizes, noise and participation differ); `epsilon` is the largest.
    """

    epsilons: tuple[float, ...]  # per client, in nats
    delta: float | None
    unit: Unit
    adjacency: Adjacency | None
    view: View
    accountant: str | None
    assumptions: Sequence[str]
    claims: Sequence[Claim] = ()
    warnings: Sequence[str] = ()
    reason: str | None = None  # why epsilon is infinite, where it is
    elsewhere: "tuple[Guarantee, ...]" = ()  # of the same run, against others than its own view's adversary
    caveat: str | None = None  # what has to be read before the number: what epsilon is not of
    noise: NoiseMultipliers | None = None  # that epsilon is of; of a budget, what was found for it
    names: tuple[str, ...] = ()  # of the clients, where they have some, are few, and are not themselves to be hidden
    attacks: Sequence[AttackBounds] = ()  # what any attack on any client is held to; none where there is no privacy
    deployment: DeploymentSummary | None = None  # that it is of; None: of the run itself
    own: float | None = None  # epsilon of the run itself, at the same delta, where it stands for a deployment
    phases: tuple[EarlierPhase, ...] = ()  # that it is of beside the run itself
    alone: float | None = None  # epsilon of the run without these, at the same delta

    def _card(self) -> Card:
        lists = {
            "also": tuple(map(str, self.elsewhere)),
            "assumes": self.assumptions,
            "claim": tuple(map(str, self.claims)),
            "warning": self.warnings,
        }
        facts = {
            f"{name} {number}" if len(texts) > 1 else name: text
            for name, texts in lists.items()
            for number, text in enumerate(texts, 1)
        }
        return Card(str(self), self.noise_facts | dict(zip(("means", "and", "basis"), self.in_plain_words)) | facts)

    @property
    def attack(self) -> AttackBounds | None:
        """Bounds on every attack on any client, computed when first read."""
        return next(iter(self.attacks), None)

    def without_attack(self) -> "Guarantee":
        """A copy without attack bounds, also in the other views; they take milliseconds for each kind of client."""
        elsewhere = tuple(other.without_attack() for other in self.elsewhere)
        return dataclasses.replace(self, attacks=(), elsewhere=elsewhere)

    @property
    def noise_facts(self) -> dict[str, str]:
        """The noise multiplier for display; empty without noise."""
        return {} if self.noise is None else {"noise multiplier": with_mark(str(self.noise), self.mark)}

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

    @property
    def mark(self) -> str:
        """`deployment R of N`; empty if the Guarantee describes the run itself."""
        return "" if self.deployment is None else self.deployment.mark

    @property
    def in_plain_words(self) -> tuple[str, ...]:
        """What epsilon and delta mean for an attacker, in plain words."""
        return () if self.attack is None else self.attack.in_words(self.unit, self.adjacency)

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            reason = self.reason or "the noise is too small for the accountant to tell the losses from infinite ones"
            against = f" against {self.view}" if self.view in OF_MODELS else ""
            return f"no privacy{against}: epsilon is infinite, because {reason}."
        adjacency = self.adjacency.value if self.adjacency else "no"
        before = "" if self.caveat is None else f"{self.caveat}: "
        if self.deployment is not None:
            return f"{before}{self._of_deployment(self.deployment, adjacency)}"
        return (
            f"{before}{epsilon_text(self.epsilon)} at delta {self.delta:g} for one {self.unit} "
            f"({adjacency} neighbours) against {self.view}; {self._phases}{self._spread}accountant: {self.accountant}."
        )

    @property
    def _phases(self) -> str:
        """What it is of, where that is more than one run."""
        if not self.phases:
            return ""
        each = [phase.in_words(self.view) for phase in self.phases]
        each += [] if self.alone is None else [f"this run ({epsilon_text(self.alone)} alone)"]
        together = "" if len(each) == 1 else f"{len(each)} phases together: "
        return f"of {together}{', '.join(each)}; "

    @property
    def _spread(self) -> str:
        """How the epsilons of clients differ, as far as the shown digits do."""
        clients, low, high = len(self.epsilons), upward(self.epsilon_min), upward(self.epsilon)
        if clients == 1:
            return ""
        if low == high:
            return f"the same for each of {clients} clients; "
        never = "" if self.epsilon_min else " (clients that are never drawn)"
        low_of, high_of = ("", "")
        if self.names:
            low_of, high_of = (f" ({self._whose(epsilon)})" for epsilon in (self.epsilon_min, self.epsilon))
        return (
            f"over {clients} clients epsilon is min {low}{never}{low_of}, median {upward(self.epsilon_median)}, "
            f"max {high}{high_of}; "
        )

    def _of_deployment(self, of: DeploymentSummary, adjacency: str) -> str:
        own = math.inf if self.own is None else self.own
        shown = "an infinite epsilon" if math.isinf(own) else f"epsilon {upward(own)}"
        return (
            f"epsilon {upward(self.epsilon)} at delta {self.delta:g} for one {self.unit} ({adjacency} neighbours) of a "
            f"deployment with cohorts of {of.cohort_size:,} out of {of.population:,}, {of.rounds:,} rounds, "
            f"{of.sampler}; not of this run, which has {of.noise_ratio:.3g} of that noise, cohorts of "
            f"{of.simulated_cohort:,} out of {of.simulated_population:,}, and "
            f"{'epsilon above 100' if LARGE < own < math.inf else shown} of its own; against {self.view}; accountant: "
            f"{self.accountant}."
        )

    def _whose(self, epsilon: float) -> str:
        """The client with this epsilon, or how many there are beside it."""
        whose = [name for name, own in zip(self.names, self.epsilons) if own == epsilon]
        return whose[0] if len(whose) == 1 else f"{whose[0]} and {len(whose) - 1} more"

    def to_dict(self) -> dict[str, Any]:
        """The Guarantee for JSON: an infinite epsilon is null."""
        return {
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "unit": self.unit.value,
            "adjacency": self.adjacency.value if self.adjacency else None,
            "view": self.view.value,
            "accountant": self.accountant,
            "epsilon_min": finite(self.epsilon_min),
            "epsilon_median": finite(self.epsilon_median),
            "epsilon_max": finite(self.epsilon),
            "noise_multiplier": None if self.noise is None else self.noise._asdict(),
            "caveat": self.caveat,
            "deployment": None if self.deployment is None else self.deployment._asdict(),
            "own": None if self.own is None else finite(self.own),
            "phases": [phase._asdict() | {"epsilon": finite(phase.epsilon)} for phase in self.phases],
            "alone": None if self.alone is None else finite(self.alone),
            "statement": str(self),
            "attack": None if self.attack is None else self.attack.to_dict(self.unit, self.adjacency),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "claims": [claim.to_dict() for claim in self.claims],
            "elsewhere": [other.to_dict() for other in self.elsewhere],
        }

    def to_full_dict(self) -> dict[str, Any]:
        """All fields, for a file: epsilons of clients as (epsilon, number of clients); `from_full_dict` reads it."""
        alike = [(epsilon, len(list(same))) for epsilon, same in itertools.groupby(self.epsilons)]
        return self.to_dict() | {
            "reason": self.reason,
            "epsilons": [[finite(epsilon), count] for epsilon, count in alike],
            "names": list(self.names),
            "elsewhere": [other.to_full_dict() for other in self.elsewhere],
        }

    @classmethod
    def from_full_dict(cls, saved: dict[str, Any]) -> "Guarantee":
        """The Guarantee that `to_full_dict` wrote.

        Raises: ConfigurationError for invalid content.
        """
        try:
            claims = ({key: value for key, value in claim.items() if key != "statement"} for claim in saved["claims"])
            before, deployed = saved.get("phases", ()), saved.get("deployment")
            noise, attack = saved.get("noise_multiplier"), saved.get("attack")
            plain: dict[str, Any] = {name: saved[name] for name in ("delta", "accountant", "reason")}
            return cls(
                tuple(infinity_of_null(value) for value, count in saved["epsilons"] for _ in range(count)),
                unit=Unit(saved["unit"]),
                adjacency=None if saved["adjacency"] is None else Adjacency(saved["adjacency"]),
                view=View(saved["view"]),
                assumptions=tuple(saved["assumptions"]),
                claims=tuple(Claim(**claim | {"verdict": Verdict(claim["verdict"])}) for claim in claims),
                warnings=tuple(saved["warnings"]),
                elsewhere=tuple(map(cls.from_full_dict, saved.get("elsewhere", ()))),
                caveat=saved.get("caveat"),
                deployment=None if deployed is None else DeploymentSummary(**deployed),
                own=None if deployed is None else infinity_of_null(saved["own"]),
                noise=None if noise is None else NoiseMultipliers(**noise),
                phases=tuple(EarlierPhase(**one | {"epsilon": infinity_of_null(one["epsilon"])}) for one in before),
                alone=infinity_of_null(saved["alone"]) if before else None,
                names=tuple(map(str, saved.get("names", ()))),
                attacks=() if attack is None else (AttackBounds(*(attack[name] for name in AttackBounds._fields)),),
                **plain,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise errors.refuse("a saved Guarantee", repr(error), "as `Guarantee.to_full_dict` wrote it") from None


def infinity_of_null(epsilon: float | None) -> float:
    """The inverse of `display.finite`: JSON has no infinite number."""
    return math.inf if epsilon is None else epsilon


NEAR = 1e-3  # relative: as near to a budget as noise is found


def spends(epsilon: float | None, budget: Any) -> bool:
    """Whether the worst epsilon meets the common budget up to the precision of calibration, and not above it."""
    return isinstance(budget, int | float) and epsilon is not None and (1 - NEAR) * budget <= epsilon <= budget


def delta_warnings(delta: float, members: Sequence[int], unit: Unit = Unit.RECORD) -> tuple[str, ...]:
    """A warning if delta is above 1/n, which allows publishing a member. `members`: records of clients, or clients."""
    smallest = min(members)
    if delta <= 1 / smallest:
        return ()
    return (
        f"delta {delta:g} is above 1/{smallest}: a mechanism that publishes one {unit.value} of {smallest} at random "
        "would meet it; use a smaller delta",
    )


def no_privacy(num_clients: int, reason: str, view: View = View.UPLOADS) -> Guarantee:
    """The Guarantee of an algorithm without privacy."""
    infinite = (math.inf,) * num_clients
    return Guarantee(infinite, None, Unit.RECORD, None, view, None, (), reason=reason)
