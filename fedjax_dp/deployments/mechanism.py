"""The noisy releases of a deployment as events: noise multiplier, sampling, adjacency and view, read off the facts."""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import NamedTuple

import scipy

from fedjax_dp import errors
from fedjax_dp.accounting import (
    ACCOUNTANTS,
    Adjacency,
    Event,
    FullBatch,
    GaussianSteps,
    Guarantee,
    Poisson,
    RandomParticipation,
    Sampling,
    Unit,
    View,
    WithoutReplacement,
    WithReplacement,
    compare,
    epsilon_of,
    noise_factor_for,
)
from fedjax_dp.accounting.guarantee import NoiseMultipliers
from fedjax_dp.deployments.description import UNKNOWN, Deployment, Members, Records, lacking, pairs_of, reading

VIEWS = {"server": View.UPLOADS, "clients": View.BROADCAST}
BOUNDING = ("record", "update", "weights")  # clips that bound what their unit can change
RANDOM_SIZE = ("poisson", "once", UNKNOWN)  # laws by which nobody knows how many are drawn
JUDGED_BY_RULES = ("clip.of", "clip.threshold", "noise.law", "noise.scale", "noise.misses", "noise.by")
SUMMED = "every epsilon counted whole, added up (pure differential privacy)"


@dataclasses.dataclass(frozen=True)
class Noisy:
    """Gaussian releases; where a law is unknown there are several events, and the worst counts."""

    events: tuple[Event, ...]

    def epsilon(self, delta: float) -> float:
        return max(epsilon_of(event, delta) for event in self.events) if delta else math.inf

    def attained(self, delta: float) -> float:
        """What two real neighbours attain; 0 where none are known."""
        if not delta or len(self.events) > 1:
            return 0.0 if delta else math.inf
        return compare.lower_bound(self.events[0], delta).number or 0.0

    def factor_for(self, epsilon: float, delta: float) -> float:
        """Smallest factor on the noise that meets a budget."""
        return max(noise_factor_for(event, epsilon, delta) for event in self.events)


@dataclasses.dataclass(frozen=True)
class Pure:
    """`count` releases of numbers with Laplace noise, each of epsilon `each`, and `more` that nothing may attain."""

    each: float
    count: int
    more: float = 0.0

    def epsilon(self, delta: float) -> float:
        return self.each * self.count + self.more

    def attained(self, delta: float) -> float:
        """By neighbours that differ in every release by its sensitivity, and a test that counts in how many the noise
        went beyond the first of them: that has probability 1/2, and e^-each / 2 under the other."""
        if not delta:
            return self.each * self.count
        law = scipy.stats.binom(self.count, 0.5)
        most = int(law.isf(0.01))
        power, level = law.sf(most - 1), scipy.stats.binom.logsf(most - 1, self.count, math.exp(-self.each) / 2)
        return max(math.log(power - delta) - level, 0.0) if power > delta and math.isfinite(level) else 0.0

    def factor_for(self, epsilon: float, delta: float) -> float:
        return self.epsilon(delta) / epsilon


Cost = Noisy | Pure  # what one client pays for all noisy releases


class Drawn(NamedTuple):
    """How members of a noisy sum are drawn: one sampling, or several of which any may be true."""

    samplings: tuple[Sampling, ...]
    adjacency: Adjacency
    words: str


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """The noisy releases of a deployment, in the eyes of a view."""

    costs: tuple[Cost, ...]  # of each client, or one for all
    multipliers: tuple[float, ...]  # noise over what one unit can weigh; empty for Laplace noise
    clients: int
    unit: Unit
    adjacency: Adjacency
    view: View
    accountant: str
    assumptions: tuple[str, ...]

    def epsilons(self, delta: float) -> tuple[float, ...]:
        """Of each client, or of all alike."""
        return tuple(cost.epsilon(delta) for cost in self.costs)

    def epsilon(self, delta: float) -> float:
        return max(self.epsilons(delta))

    def attained(self, delta: float) -> float:
        """A lower bound on the worst client's epsilon; 0 where none is known."""
        return max(cost.attained(delta) for cost in self.costs)

    def factors_for(self, epsilon: float, delta: float) -> tuple[float, ...]:
        """Factors on the noise of each client that meet a budget."""
        return tuple(cost.factor_for(epsilon, delta) for cost in self.costs)

    def guarantee(self, delta: float) -> Guarantee:
        """Of the noisy releases alone."""
        epsilons = self.epsilons(delta)
        pure = self.accountant == SUMMED
        return Guarantee(
            epsilons * self.clients if len(epsilons) == 1 else epsilons,
            0.0 if pure else delta,
            self.unit,
            self.adjacency,
            self.view,
            self.accountant,
            self.assumptions,
            noise=NoiseMultipliers.of(self.multipliers) if self.multipliers else None,
        )


def view_of(deployment: Deployment, view: str | None = None) -> str:
    """Who looks: by default the strongest that noise is added against."""
    if view is not None:
        errors.require_choice("view", view, VIEWS)
        return view
    return "clients" if deployment.noise.by == "server" else "server"


def mechanism_of(deployment: Deployment, view: str | None = None) -> Mechanism:
    """What the noisy releases cost, however far what else leaves goes.

    The deployment's clip bounds its unit, and its noise is noise: see `rules`.
    Raises: ConfigurationError for facts that are missing, all of them at once.
    """
    if missing := list(dict.fromkeys(name for one in deployment.kinds for name in missing_facts(one))):
        raise lacking(missing)
    kinds = deployment.kinds
    laplace = deployment.noise.law == "laplace"
    with reading() as read:
        drawn = drawn_of(kinds[0])
        words = list(dict.fromkeys(drawn_of(one).words for one in kinds))
        costs = tuple(cost_of(one, releases(one)) for one in kinds)
        multipliers = () if laplace else tuple(map(multiplier, kinds))
    if len(words) > 1:
        drawn = drawn._replace(words=f"{words[0]} and {len(words) - 1} more")
    idle = idle_facts(deployment, read)
    return Mechanism(
        costs,
        multipliers,
        deployment.clients.of or 1,
        deployment.hidden,
        drawn.adjacency,
        VIEWS[view_of(deployment, view)],
        SUMMED if laplace else ACCOUNTANTS["pld"].about,
        (*assumptions_of(deployment, drawn), *idle, *deployment.assumes),
    )


def idle_facts(deployment: Deployment, read: Collection[str]) -> list[str]:
    """A line for each fact that is stated and that no price has read, with the reason why it changes nothing.

    Raises: ConfigurationError for one without such a reason: whoever states it expects that it is counted.
    """
    lines = []
    for name in deployment.stated:
        if name in read or name in JUDGED_BY_RULES:
            continue
        reason = _without_effect(deployment, name)
        if reason is None:
            group, _, fact = name.rpartition(".")
            value = getattr(functools.reduce(getattr, group.split("."), deployment), fact)
            raise errors.refuse(
                name, value, "left out here, where no rule reads it", "state what it stands for otherwise"
            )
        lines.append(f"{name} changes nothing: {reason}")
    return lines


def _without_effect(deployment: Deployment, name: str) -> str | None:
    """Why a fact changes nothing where no price reads it; None: nothing says so."""
    group, _, fact = name.partition(".")
    by_server = deployment.noise.by == "server" and deployment.unit == "client"
    if fact == "of" and group in ("clients", "records"):
        return "how many there are matters to warnings alone"
    if group == "clients" and not by_server:
        return "clients who come are seen"
    if group == "clients" and deployment.clients.law in ("all", "schedule", "poisson"):
        return f"the draw of clients by law {deployment.clients.law} is not counted here"
    if group == "records" and deployment.clip.of != "record":
        return f"a client's whole {deployment.clip.of} is bounded, whatever records it is made of"
    if group == "records" and deployment.records is not None and deployment.records.law == "full":
        return "every step has all records"
    if group == "records" and drawn_of(deployment).samplings == (FullBatch(),) and deployment.noise.on == "sum":
        return "their draw hides nothing here"
    if name == "records.rest":
        return "no batch is divided by how many it has"
    if name == "weights.largest" and (deployment.noise.on != "mean" or not by_server):
        return "noise is not on a mean of clients"
    if name == "weights.denominator" and by_server and deployment.clients.law != "poisson":
        return f"clients by law {deployment.clients.law} are exchanged, and as many come"
    if name == "weights.denominator" and deployment.clip.of == "record" and not of_random_size(deployment):
        return "a batch has a fixed size"
    if name == "weights.denominator" and deployment.noise.by == "client" and deployment.clip.of != "record":
        return "noise is on each message, and means are made of these"
    if name == "clip.coordinates":
        return "the noise belongs to the norm that is clipped"
    if name == "clip.count_bits":
        return "where a client is exchanged, either kind of bit moves the count alike"
    if deployment.selection is not None and group in ("clip", "noise"):
        return "numbers are chosen and released by the selection's own epsilons"
    return None


def missing_facts(deployment: Deployment) -> list[str]:
    """Facts without which nothing can be counted."""
    clip, noise, clients, records = deployment.clip, deployment.noise, deployment.clients, deployment.records
    by_record, by_server = clip.of == "record", noise.by == "server"
    counted = by_server and deployment.unit == "client"
    selected = deployment.selection is not None
    each = noise.on == "mean" and by_record
    coordinates = (noise.law == "laplace" and clip.norm != "l1") or clip.norm == "coordinate"
    sized = ("fixed", "with-replacement", "shuffled")
    divided = counted and clients.law == "poisson"
    divided = divided or (each and of_random_size(deployment))
    needed = {
        "clip.norm": clip.norm is None,
        "clip.bound": clip.bound is None and not selected,
        "clip.coordinates": clip.coordinates is None and coordinates and not selected,
        "noise.std": noise.std is None and noise.calibration is None and not selected,
        "noise.on": noise.on is None,
        "noise.by": noise.by is None,
        "weights.largest": deployment.weights.largest is None and by_server and noise.on == "mean",
        "weights.denominator": deployment.weights.denominator is None and divided,
        "clip.count_bits": clip.count_noise is not None and clip.count_bits is None and _adds_or_removes(deployment),
        "records": records is None and by_record,
    }
    drawn: dict[str, tuple[Members, bool, tuple[str, ...]]]
    drawn = {
        "clients": (clients, counted or clients.law == "round-robin", ("fixed", "with-replacement", "round-robin"))
    }
    if records is not None and by_record:
        needed["records.steps"] = records.steps is None
        drawn["records"] = (records, True, sized)
        needed["records.size"] = each and records.size is None and (records.rate is None or records.of is None)
        rest = each and records.law == "shuffled" and of_random_size(deployment) and counts_who_came(deployment)
        needed["records.rest"] = rest and records.rest is None
    for where, (members, matters, laws) in drawn.items():
        if matters and members.law in laws:
            needed |= {f"{where}.{name}": getattr(members, name) is None for name in ("size", "of")}
        chance = members.rate is not None or (members.size is not None and members.of is not None)
        if matters and members.law in ("poisson", "once"):
            needed[f"{where}.rate"] = not chance
    return [name for name, lacks in needed.items() if lacks]


def of_random_size(deployment: Deployment) -> bool:
    """Whether a step may have another number of records than is said."""
    records = deployment.records
    if records is None or deployment.clip.of != "record":
        return False
    if records.law == "shuffled" and records.of is not None and records.size is not None:
        return any(of % size for size, of in pairs_of(records.size, records.of))
    return records.law in RANDOM_SIZE


def counts_who_came(deployment: Deployment) -> bool:
    """Whether a mean may be divided by the number of those who came."""
    return deployment.weights.denominator in ("count", UNKNOWN)


def _adds_or_removes(deployment: Deployment) -> bool:
    """Whether neighbours of what the server sums differ in a client that is there or not."""
    fixed = deployment.weights.denominator == "fixed"
    return (
        deployment.unit == "client"
        and deployment.noise.by == "server"
        and deployment.clients.law == "poisson"
        and fixed
    )


def _chance(members: Members) -> float:
    """Of one member to be drawn."""
    chance: float = members.rate if members.rate is not None else members.size / members.of
    return chance


def drawn_of(deployment: Deployment) -> Drawn:
    """How members of the noisy sums are drawn in the eyes of the view, and who is a neighbour.

    Clients that are drawn hide nothing but from other clients, and nothing of their records.
    """
    records, clients = deployment.records, deployment.clients
    if deployment.clip.of == "record" and records is not None:
        if deployment.noise.on == "sum" and records.law in RANDOM_SIZE and counts_who_came(deployment):
            return _seen("records, whose number in each step is public")
        return _drawn(records, "records")
    if deployment.unit == "client" and deployment.noise.by == "server":
        counts = clients.law == "poisson" and deployment.weights.denominator != "fixed"
        if counts:
            return _seen("clients, whose number in each round is public")
        return _drawn(clients, "clients")
    return _seen("clients, who are seen")


def _seen(whose: str) -> Drawn:
    return Drawn((FullBatch(),), Adjacency.REPLACE_ONE, f"{whose}: no amplification by their draw")


def _drawn(members: Members, whose: str) -> Drawn:
    law = members.law
    fixed = Adjacency.REPLACE_ONE
    if law == "poisson":
        sampling: Sampling = Poisson(_chance(members))
        return Drawn((sampling,), Adjacency.ADD_REMOVE, f"{whose} by {sampling}")
    if law == "fixed":
        sampling = WithoutReplacement(members.size, members.of)
        return Drawn((sampling,), fixed, f"{whose} by {sampling}")
    if law == "with-replacement":
        sampling = WithReplacement(members.size, members.of)
        return Drawn((sampling,), fixed, f"{whose} by {sampling}")
    if law == UNKNOWN:
        worst: tuple[Sampling, ...] = (FullBatch(),)
        if members.size is not None and members.of is not None:
            worst = (*worst, WithReplacement(members.size, members.of))
        words = f"the draw of {whose} is unknown: the worse of all in every sum and independent draws with replacement"
        return Drawn(worst, fixed, words)
    return Drawn((FullBatch(),), fixed, f"{whose} by law {law}: no amplification by their draw")


def participations(deployment: Deployment) -> int:
    """Rounds of a client, at most."""
    clients = deployment.clients
    if clients.law == "round-robin" and clients.size is not None and clients.of is not None:
        return -(-deployment.rounds * clients.size // clients.of)
    return deployment.rounds


def releases(deployment: Deployment) -> int:
    """Noisy sums of which a member may be a part, at most."""
    records, rounds = deployment.records, participations(deployment)
    if deployment.clip.of != "record" or records is None:
        return rounds
    steps = int(records.steps)  # type: ignore[arg-type]
    if records.law == "shuffled":
        steps = -(-steps // max(records.of // records.size, 1))  # type: ignore[operator]
    return steps * rounds


def bound_of(deployment: Deployment, norm: int = 2) -> float:
    """Of what one member adds to a sum, in the norm that the noise needs."""
    clip = deployment.clip
    bound, tensors = float(clip.bound), clip.tensors if clip.scope == "tensor" and clip.tensors else 1  # type: ignore[arg-type]
    if clip.norm == "coordinate":
        return float(bound * (clip.coordinates or 1) ** (1 / norm))
    if clip.norm == "l2":
        return bound * math.sqrt(tensors) * (math.sqrt(clip.coordinates or 1) if norm == 1 else 1.0)
    return bound * (tensors if norm == 1 else math.sqrt(tensors))


def noise_std(deployment: Deployment) -> float:
    """As it is stated, or as a system makes it of its keys."""
    noise = deployment.noise
    if noise.calibration is None:
        return float(noise.std)  # type: ignore[arg-type]
    keys = noise.calibration
    sensitivity = keys.sensitivity if keys.sensitivity is not None else float(deployment.clip.bound)  # type: ignore[arg-type]
    if noise.law == "laplace":
        return math.sqrt(2) * sensitivity / keys.epsilon
    return sensitivity * classical(keys.delta or 0.0) / keys.epsilon


def classical(delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)): of the formula for Gaussian noise that holds for epsilon below 1."""
    return math.sqrt(2 * math.log(1.25 / delta))


def weight(deployment: Deployment) -> float:
    """What one clipped member weighs in what the noise is added to."""
    if deployment.noise.on != "mean":
        return 1.0
    records = deployment.records
    if deployment.clip.of == "record" and records is not None:
        return 1 / _least_divisor(deployment, records)
    largest = deployment.weights.largest
    return 1.0 if largest == UNKNOWN or largest is None else float(largest)


def _least_divisor(deployment: Deployment, records: Records) -> float:
    """By what a step's mean may be divided: a batch of random size may hold one record alone, a rest of a pass few."""
    if not of_random_size(deployment) or not counts_who_came(deployment):
        return expected_size(records)
    if records.law != "shuffled":
        return 1.0
    kept = records.rest in ("kept", UNKNOWN)
    return float(records.of % records.size) if kept else expected_size(records)  # type: ignore[operator]


def expected_size(records: Records) -> float:
    """Records of a step, on average."""
    size = records.size if records.size is not None else records.rate * records.of  # type: ignore[operator]
    return float(size)  # type: ignore[arg-type]


def multiplier(deployment: Deployment) -> float:
    """Gaussian noise over what one member can add. Counts with noise beside an adaptive bound take their part of it.

    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871, Theorem 1.
    """
    own = noise_std(deployment) / (bound_of(deployment) * weight(deployment))
    counts = count_multiplier(deployment)
    return own if counts is None else 1 / math.hypot(1 / own, 1 / counts)


def count_multiplier(deployment: Deployment) -> float | None:
    """Noise on the count beside an adaptive bound, over what one client adds; None without a count.

    A bit of 0 or 1 moves it by 1 where a client comes or goes, and by 1/2 if a half is taken off. Where a client is
    exchanged, either moves by 1 while an update moves by twice its bound, which is 1/2 over the same unit.
    """
    counts = deployment.clip.count_noise
    if counts is None:
        return None
    exchanged = drawn_of(deployment).adjacency is Adjacency.REPLACE_ONE
    return float(counts * (2 if exchanged or deployment.clip.count_bits == "plus-minus-half" else 1))


def cost_of(deployment: Deployment, count: int) -> Cost:
    """What one client pays for `count` of its noisy sums."""
    return _pure(deployment, count) if deployment.noise.law == "laplace" else noisy(deployment, count)


def noisy(deployment: Deployment, count: int) -> Noisy:
    """The same of Gaussian noise."""
    drawn, unit = drawn_of(deployment), deployment.hidden
    noise = multiplier(deployment)
    steps = (GaussianSteps(noise, sampling, drawn.adjacency, count, unit) for sampling in drawn.samplings)
    records = deployment.records
    if deployment.clip.of == "record" and records is not None and records.law == "once":
        return Noisy(tuple(RandomParticipation(one, _chance(records), 1) for one in steps))
    return Noisy(tuple(steps))


def _pure(deployment: Deployment, count: int) -> Cost:
    chosen = deployment.selection
    if chosen is not None:
        # Lyu, Su, Li 2017, arXiv:1603.01699: the threshold's part, and a part for each answer, of which there may be
        # as many as numbers are queried
        threshold = chosen.epsilon / (1 + (2 * chosen.answers) ** (2 / 3))
        choice = threshold + (chosen.epsilon - threshold) * chosen.of / chosen.answers
        return Pure(chosen.release, chosen.answers * count, choice * count)
    scale = noise_std(deployment) / math.sqrt(2)
    change = drawn_of(deployment).adjacency.sensitivity * bound_of(deployment, norm=1) * weight(deployment)
    exact = deployment.clip.norm != "l2"
    each = change / scale
    return Pure(each, count) if exact else Pure(0.0, count, each * count)


def assumptions_of(deployment: Deployment, drawn: Drawn) -> list[str]:
    """What has to be true for the numbers to hold."""
    lines = ["of what was described, and of nothing that the description leaves out", drawn.words]
    if deployment.unit == "client":
        lines.append("whoever clips does so as described: one client that does not is not bounded")
    if deployment.noise.by == "client":
        lines.append("a client's own noise alone is counted, not that of others")
    else:
        lines.append("the server adds the noise honestly, and sees what it is added to")
    largest = deployment.weights.largest
    if deployment.noise.on == "mean" and isinstance(largest, float):
        lines.append(f"no client has more than {largest:.4g} of the mean")
    if deployment.noise.on == "sum" and deployment.noise.by == "server":
        lines.append("a clipped update enters the sum with weight at most 1")
    lines.append("sizes, shares, divisors and numbers of steps are public constants")
    if deployment.clip.of == "weights":
        lines.append("the model's weights are clipped, not its update")
    return lines
