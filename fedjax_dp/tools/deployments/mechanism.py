"""The noisy releases of a deployment as events: noise multiplier, sampling, adjacency and view from its facts."""

import dataclasses
import math
from typing import ClassVar, NamedTuple

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
from fedjax_dp.accounting.accountants import about_at
from fedjax_dp.accounting.guarantee import NoiseMultipliers
from fedjax_dp.accounting.views import helpers_of
from fedjax_dp.tools.deployments.description import (
    UNKNOWN,
    Deployment,
    MemberDraws,
    RecordDraws,
    missing_facts_error,
    pairs_by_client,
)
from fedjax_dp.tools.deployments.witness import unwrap, witness_of

VIEWS = {"server": View.UPLOADS, "clients": View.BROADCAST}
BOUNDING = ("record", "update", "weights")  # clippings that bound the contribution of a unit
SUMMED = "sum of all epsilons (pure differential privacy)"


@dataclasses.dataclass(frozen=True)
class GaussianCost:
    """Gaussian releases; several events if a law is unknown, of which the worst counts."""

    events: tuple[Event, ...]
    real: Event | None  # the event of two neighbours that surely exist

    @property
    def sampled(self) -> bool:
        """Whether sampling amplifies it."""
        return any(step.sampling != FullBatch() for event in self.events for step, _ in event.leaves())

    def epsilon(self, delta: float) -> float:
        return max(epsilon_of(event, delta) for event in self.events) if delta else math.inf

    def attained_epsilon(self, delta: float) -> float:
        """The epsilon that two real neighbours attain; 0 if none are known."""
        if not delta:
            return math.inf
        return 0.0 if self.real is None else compare.lower_bound(self.real, delta).number or 0.0

    def factor_for(self, epsilon: float, delta: float) -> float:
        """Smallest factor on the noise that meets a budget."""
        return max(noise_factor_for(event, epsilon, delta) for event in self.events)


@dataclasses.dataclass(frozen=True)
class LaplaceCost:
    """`count` releases with Laplace noise of epsilon `each`, and `more` that perhaps nothing attains."""

    each: float
    count: int
    more: float = 0.0
    sampled: ClassVar[bool] = False

    def epsilon(self, delta: float) -> float:
        return self.each * self.count + self.more

    def attained_epsilon(self, delta: float) -> float:
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


Cost = GaussianCost | LaplaceCost  # of all noisy releases of one client


class Draw(NamedTuple):
    """The sampling of a noisy sum's members, or several possible ones."""

    samplings: tuple[Sampling, ...]
    adjacency: Adjacency
    words: str


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """The noisy releases of a deployment against one view."""

    costs: tuple[Cost, ...]  # of each client, or one for all
    multipliers: tuple[float, ...]  # noise over the sensitivity; empty for Laplace noise
    clients: int
    unit: Unit
    adjacency: Adjacency
    view: View
    accountant: str
    assumptions: tuple[str, ...]

    def epsilons(self, delta: float) -> tuple[float, ...]:
        """The epsilon of each client, or one if all are equal."""
        return tuple(cost.epsilon(delta) for cost in self.costs)

    def epsilon(self, delta: float) -> float:
        return max(self.epsilons(delta))

    def attained_epsilon(self, delta: float) -> float:
        """A lower bound on the worst client's epsilon; 0 if none is known."""
        return max(cost.attained_epsilon(delta) for cost in self.costs)

    def factors_for(self, epsilon: float, delta: float) -> tuple[float, ...]:
        """Factors on the noise of each client that meet a budget."""
        return tuple(cost.factor_for(epsilon, delta) for cost in self.costs)

    def guarantee(self, delta: float) -> Guarantee:
        """The guarantee of the noisy releases alone."""
        epsilons = self.epsilons(delta)
        pure = self.accountant == SUMMED
        return Guarantee(
            epsilons * self.clients if len(epsilons) == 1 else epsilons,
            0.0 if pure else delta,
            self.unit,
            self.adjacency,
            self.view,
            self.accountant if pure else about_at("pld", delta),
            self.assumptions,
            noise=NoiseMultipliers.of(self.multipliers) if self.multipliers else None,
        )


def view_of(deployment: Deployment, view: str | None = None) -> str:
    """The name of the view: by default the strongest adversary that the noise can protect against."""
    if view is not None:
        errors.require_choice("view", view, VIEWS)
        return view
    return "clients" if deployment.noise.by == "server" else "server"


def mechanism_of(deployment: Deployment, view: str | None = None, facts_read: set[str] | None = None) -> Mechanism:
    """The mechanism of the noisy releases, without other releases.

    The deployment must clip its unit and add noise: see `rules`. Facts that the cost uses are added to `facts_read`.
    Raises: ConfigurationError for missing facts, all at once.
    """
    if missing := list(dict.fromkeys(name for one in deployment.kinds for name in missing_facts(one))):
        raise missing_facts_error(missing)
    facts_read = set() if facts_read is None else facts_read
    kinds = [witness_of(one, facts_read) for one in deployment.kinds]
    deployment = witness_of(deployment, facts_read)
    drawn = draw_of(kinds[0])
    words = list(dict.fromkeys(draw_of(one).words for one in kinds))
    if len(words) > 1:
        drawn = drawn._replace(words=f"{words[0]} and {len(words) - 1} more")
    laplace = deployment.noise.law == "laplace"
    return Mechanism(
        tuple(cost_of(one, releases(one)) for one in kinds),
        () if laplace else tuple(map(multiplier, kinds)),
        deployment.clients.of or 1,
        deployment.protected_unit,
        drawn.adjacency,
        VIEWS[view_of(deployment, view)],
        SUMMED if laplace else ACCOUNTANTS["pld"].about,
        (*assumptions_of(deployment, drawn), *deployment.assumes),
    )


def missing_facts(deployment: Deployment) -> list[str]:
    """The missing facts that the account needs."""
    clip, noise, clients, records = deployment.clip, deployment.noise, deployment.clients, deployment.records
    by_record, by_server = clip.of == "record", noise.by == "server"
    counted = _of_clients(deployment)
    selected = deployment.selection is not None and noise.law == "laplace" and noise.on == "message"
    each = noise.on == "mean" and by_record
    coordinates = (noise.law == "laplace" and clip.norm != "l1") or clip.norm == "coordinate"
    sized = ("fixed", "with-replacement")
    needed = {
        "clip.norm": clip.norm is None,
        "clip.bound": clip.bound is None and not selected,
        "clip.coordinates": clip.coordinates is None and coordinates and not selected,
        "noise.std": noise.std is None and noise.calibration is None and not selected,
        "noise.on": noise.on is None,
        "noise.by": noise.by is None,
        "weights.largest": deployment.weights.largest is None and by_server and noise.on == "mean",
        "clip.count_bits": clip.count_bits is None and clip.count_noise is not None and _by_poisson(deployment),
        "records": records is None and by_record,
    }
    drawn: dict[str, tuple[MemberDraws, bool, tuple[str, ...]]]
    # perhaps several times in one sum, or in one count
    often = (UNKNOWN,) if noise.on == "sum" or clip.count_noise is not None else ()
    drawn = {"clients": (clients, counted or clients.law == "round-robin", (*sized, "round-robin", *often))}
    divided = counted and clients.law == "poisson"
    if records is not None and by_record:
        needed["records.steps"] = records.steps is None
        drawn["records"] = (records, True, (*sized, "shuffled", UNKNOWN))
        known = records.of is not None and (records.rate is not None or records.law == "full")
        lacking = "records.of" if records.rate is not None else "records.size"
        needed[lacking] = each and records.size is None and not known
        needed["records.last"] = each and records.last is None and rest_of(records) > 0
        divided = each and varies(records) and not needed["records.last"]
    needed["weights.denominator"] = divided and deployment.weights.denominator is None
    for where, (members, matters, laws) in drawn.items():
        if matters and members.law in laws:
            needed |= {f"{where}.{name}": getattr(members, name) is None for name in ("size", "of")}
        chance = members.rate is not None or (members.size is not None and members.of is not None)
        if matters and members.law in ("poisson", "once"):
            needed[f"{where}.rate"] = not chance
    return [name for name, lacks in needed.items() if lacks]


def _chance(members: MemberDraws) -> float:
    """The sampling rate of one member."""
    chance: float = members.rate if members.rate is not None else members.size / members.of
    return chance


def hides_clients(deployment: Deployment) -> bool:
    """Whether the sampling of clients matters: they are the unit, or may be in one sum several times."""
    return deployment.unit == "client" or deployment.clients.law in ("with-replacement", UNKNOWN)


def rest_of(records: RecordDraws) -> int:
    """The number of records in the last, smaller batch of a pass; the largest of all clients."""
    passes = pairs_by_client(records.of, records.size) if records.law == "shuffled" else ()
    return max((of % size for of, size in passes), default=0)


def varies(records: RecordDraws) -> bool:
    """Whether batches may have different numbers of records."""
    drawn = records.law in ("poisson", UNKNOWN) or (records.law == "once" and records.rate is not None)
    return drawn or (rest_of(records) > 0 and records.last != "drop")


def _by_poisson(deployment: Deployment) -> bool:
    """Whether members of the noisy sums are Poisson samples, and the denominator does not reveal their number."""
    records, clients = deployment.records, deployment.clients
    if deployment.clip.of == "record":
        return records is not None and records.law == "poisson" and not counts(deployment)
    return clients.law == "poisson" and _of_clients(deployment) and not counts(deployment)


def _of_clients(deployment: Deployment) -> bool:
    """Whether the noisy sums are over clients whose draw is hidden."""
    return deployment.noise.by == "server" and hides_clients(deployment) and deployment.clients.members == "hidden"


def counts(deployment: Deployment) -> bool:
    """Whether the denominator reveals the number of members, which is not constant.

    For noise on a sum of records, denominators are public constants unless stated otherwise.
    """
    records = deployment.records
    if deployment.clip.of == "record":
        moves = records is not None and records.law == "poisson"
        if records is not None and deployment.noise.on == "mean":
            moves = varies(records)
        return moves and deployment.weights.denominator in ("count", UNKNOWN)
    moves = deployment.clients.law == "poisson" and deployment.unit == "client" and _of_clients(deployment)
    return moves and deployment.weights.denominator != "fixed"


def draw_of(deployment: Deployment) -> Draw:
    """The sampling of the noisy sums' members against the view, and the adjacency.

    Sampling of clients amplifies only against other clients who do not know whom, and never the privacy of records.
    """
    records, clients = deployment.records, deployment.clients
    if deployment.clip.of == "record" and records is not None:
        if records.law == "poisson" and counts(deployment):
            return _visible_draw("records, whose number in each batch is public")
        return _draw_by_law(records, "records")
    if _of_clients(deployment):
        if counts(deployment):
            return _visible_draw("clients, whose number in each round is public")
        return _draw_by_law(clients, "clients", helpers_of(1, View.BROADCAST, 0))
    return _visible_draw("clients, who are seen")


def _visible_draw(whose: str) -> Draw:
    return Draw((FullBatch(),), Adjacency.REPLACE_ONE, f"{whose}: no amplification by their draw")


def _draw_by_law(members: MemberDraws, whose: str, known: int = 0) -> Draw:
    """The sampling to somebody who knows of `known` other members whether they are drawn; the worst is that none is."""
    law, fixed = members.law, Adjacency.REPLACE_ONE
    but = ", all of them clients other than the adversary" if known else ""
    if law == "poisson":
        sampling: Sampling = Poisson(_chance(members))
        return Draw((sampling,), Adjacency.ADD_REMOVE, f"{whose} by {sampling}")
    if law == "fixed":
        others = max(members.of - known, 1)
        sampling = WithoutReplacement(min(members.size, others), others)
        return Draw((sampling,), fixed, f"{whose} by {sampling}{but}")
    if law == "with-replacement":
        sampling = WithReplacement(members.size, max(members.of - known, 1))
        return Draw((sampling,), fixed, f"{whose} by {sampling}{but}")
    if law == UNKNOWN:
        worst: tuple[Sampling, ...] = (FullBatch(),)
        if members.size is not None and members.of is not None:
            worst = (*worst, WithReplacement(members.size, max(members.of - known, 1)))
        words = f"the draw of {whose} is unknown: the worse of all in every sum and independent draws with replacement"
        return Draw(worst, fixed, words)
    return Draw((FullBatch(),), fixed, f"{whose} by law {law}: no amplification by their draw")


def participations(deployment: Deployment) -> int:
    """The largest number of rounds of a client."""
    clients = deployment.clients
    if clients.law == "round-robin" and clients.size is not None and clients.of is not None:
        return -(-deployment.rounds // (clients.of // clients.size))  # also if the remainder of clients is left out
    return deployment.rounds


def releases(deployment: Deployment) -> int:
    """The largest number of noisy sums with one member."""
    records, rounds = deployment.records, participations(deployment)
    if deployment.clip.of != "record" or records is None:
        return rounds
    steps = int(records.steps)  # type: ignore[arg-type]
    if records.law == "shuffled":
        more = 1 if rest_of(records) and records.last == "keep" else 0
        steps = -(-steps // (records.of // records.size + more))  # type: ignore[operator]
    return steps * rounds


def bound_of(deployment: Deployment, norm: int = 2) -> float:
    """The bound on one member's contribution to a sum, in the norm of the noise."""
    clip = deployment.clip
    bound, tensors = float(clip.bound), clip.tensors if clip.scope == "tensor" and clip.tensors else 1  # type: ignore[arg-type]
    if clip.norm == "coordinate":
        return float(bound * (clip.coordinates or 1) ** (1 / norm))
    if clip.norm == "l2":
        return bound * math.sqrt(tensors) * (math.sqrt(clip.coordinates or 1) if norm == 1 else 1.0)
    return bound * (tensors if norm == 1 else math.sqrt(tensors))


def noise_std(deployment: Deployment) -> float:
    """The standard deviation as stated, or as a system computes it from its settings."""
    noise = deployment.noise
    if noise.calibration is None:
        return float(noise.std)  # type: ignore[arg-type]
    keys = noise.calibration
    sensitivity = keys.sensitivity if keys.sensitivity is not None else float(deployment.clip.bound)  # type: ignore[arg-type]
    if noise.law == "laplace":
        return math.sqrt(2) * sensitivity / keys.epsilon
    return sensitivity * classical_factor(keys.delta or 0.0) / keys.epsilon


def classical_factor(delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)), the factor of the classical Gaussian mechanism, which holds for epsilon below 1."""
    return math.sqrt(2 * math.log(1.25 / delta))


def weight(deployment: Deployment) -> float:
    """The weight of one clipped member in the noised quantity."""
    if deployment.noise.on != "mean":
        return 1.0
    records = deployment.records
    if deployment.clip.of == "record" and records is not None:
        # batches divided by their own size: the smallest is the last of a pass, or one record
        return 1 / (batch_of(records) if not counts(deployment) else rest_of(records) or 1)
    largest = deployment.weights.largest
    return 1.0 if largest == UNKNOWN or largest is None else max(float(largest), unwrap(deployment).equal_share)


def batch_of(records: RecordDraws) -> float:
    """The records of a batch; the expected number if it has no size."""
    if records.size is not None:
        return float(records.size)  # type: ignore[arg-type]
    return float(records.of) * (1.0 if records.law == "full" else float(records.rate))  # type: ignore[arg-type]


def multiplier(deployment: Deployment) -> float:
    """Gaussian noise over the sensitivity, including the noised counts of an adaptive bound.

    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871, Theorem 1.
    """
    own = noise_std(deployment) / (bound_of(deployment) * weight(deployment))
    count = count_multiplier(deployment)
    return own if count is None or own == 0 else 1 / math.hypot(1 / own, 1 / count)


def count_multiplier(deployment: Deployment) -> float | None:
    """The noise multiplier of the counts of an adaptive bound; None without such counts.

    Replacing a member changes a count by 1, twice a half. Adding one changes it by a half if bits are -1/2 or 1/2,
    else by 1. Tensors that are clipped separately have separate counts.
    """
    clip = deployment.clip
    if clip.threshold != "adaptive" or clip.count_noise is None:
        return None
    exchanged = draw_of(deployment).adjacency is Adjacency.REPLACE_ONE
    most = 0.5 if exchanged or clip.count_bits == "half" else 1.0
    return clip.count_noise / (most * math.sqrt(clip.tensors if clip.scope == "tensor" and clip.tensors else 1))


def cost_of(deployment: Deployment, count: int) -> Cost:
    """The cost of `count` noisy sums for one client."""
    return _laplace_cost(deployment, count) if deployment.noise.law == "laplace" else gaussian_cost(deployment, count)


def gaussian_cost(deployment: Deployment, count: int) -> GaussianCost:
    """The cost of `count` sums with Gaussian noise for one client."""
    drawn, unit, records = draw_of(deployment), deployment.protected_unit, deployment.records
    steps = [
        GaussianSteps(multiplier(deployment), sampling, drawn.adjacency, count, unit) for sampling in drawn.samplings
    ]
    events: list[Event] = [*steps]
    if deployment.clip.of == "record" and records is not None and records.law == "once":
        events = [RandomParticipation(one, _chance(records), 1) for one in steps]
    real = _real_event(unwrap(deployment), steps[0]) if len(steps) == 1 else None
    return GaussianCost(tuple(events), real)


def _real_event(deployment: Deployment, steps: GaussianSteps) -> Event | None:
    """The event of two neighbours that surely exist; None if it is unknown which rounds or batches they are in."""
    records, clients, chance = deployment.records, deployment.clients, _presence(deployment)
    if chance is None:
        return None
    if deployment.clip.of == "record" and records is not None:
        if counts(deployment) and records.law != "poisson":
            return None
        if records.law == "once":
            return RandomParticipation(steps, _chance(records), 1) if chance == 1 else None
        if records.law == "shuffled" and (rest_of(records) or records.steps * records.size % records.of):  # type: ignore[operator]
            return None  # of a pass that ends early
        if counts(deployment):
            drawn = _chance(records)
            if deployment.noise.on == "mean":  # the worst case is a batch of one record
                drawn *= 0.0 if records.of is None else (1 - drawn) ** (records.of - 1)  # type: ignore[operator]
            if not drawn:
                return None
            steps = dataclasses.replace(steps, sampling=Poisson(drawn))
    elif steps.sampling != FullBatch() and clients.law != "poisson":  # who is no client knows of nobody
        steps = dataclasses.replace(steps, sampling=_draw_by_law(clients, "clients").samplings[0])
    if chance == 1:
        return steps
    rounds = participations(deployment)
    return RandomParticipation(dataclasses.replace(steps, count=max(steps.count // rounds, 1)), chance, rounds)


def _presence(deployment: Deployment) -> float | None:
    """The chance of a client to be in a round that is counted for it; 1 where the account has that chance."""
    clients, law = deployment.clients, deployment.clients.law
    if UNKNOWN in (deployment.weights.largest, deployment.clip.count_bits):
        return None  # counted at their worst, which perhaps nobody has
    drawn = law in ("poisson", "fixed")
    if law == "all" or (_of_clients(deployment) and not counts(deployment) and (drawn or law == "with-replacement")):
        return 1.0
    sized = clients.size is not None and clients.of is not None
    if law == "round-robin":
        return 1.0 if sized and clients.of % clients.size == 0 else None  # type: ignore[operator]
    return _chance(clients) if drawn and (sized or clients.rate is not None) else None


def _laplace_cost(deployment: Deployment, count: int) -> Cost:
    chosen, law = deployment.selection, deployment.clients.law
    everybody = law in ("all", "round-robin") and _presence(unwrap(deployment)) == 1
    if chosen is not None and deployment.noise.on == "message":
        # Lyu, Su, Li 2017, arXiv:1603.01699: a part for the threshold, and one for each answer, at most as many as
        # queried numbers
        threshold = chosen.epsilon / (1 + (2 * chosen.answers) ** (2 / 3))
        choice = threshold + (chosen.epsilon - threshold) * chosen.of / chosen.answers
        each = chosen.release if everybody else 0.0  # of which somebody surely has all
        more = choice + (chosen.release - each) * chosen.answers
        return LaplaceCost(each, chosen.answers * count, more * count)
    drawn = draw_of(deployment)
    if _of_clients(deployment) and law in ("with-replacement", UNKNOWN):
        remedy = "one client may be in a sum several times, which is implemented for Gaussian noise only"
        raise errors.refuse("noise.law", "laplace", f"gaussian for clients by law {law}", remedy)
    scale = noise_std(deployment) / math.sqrt(2)
    change = drawn.adjacency.sensitivity * bound_of(deployment, norm=1) * weight(deployment)
    clip, each = deployment.clip, change / scale
    if clip.norm == "l2" or not everybody:
        return LaplaceCost(0.0, count, each * count)
    # neighbours differ in every coordinate, or in one of every tensor, each with noise of its own
    parts = clip.coordinates if clip.norm == "coordinate" else clip.tensors if clip.scope == "tensor" else 1
    return LaplaceCost(each / (parts or 1), count * (parts or 1))


def assumptions_of(deployment: Deployment, drawn: Draw) -> list[str]:
    lines = ["the description is complete and correct", drawn.words]
    if deployment.unit == "client":
        lines.append("all clipping is as described: a client that does not clip is not bounded")
    if deployment.noise.by == "client":
        lines.append("only a client's own noise is counted")
    else:
        lines.append("the server is trusted: it adds the noise honestly, and sees the sum without noise")
    by_record = deployment.clip.of == "record"
    if deployment.noise.law == "gaussian" and deployment.clip.norm == "l1":
        lines.append("a bound on the L1 norm is one on the L2 norm, which Gaussian noise needs")
    if deployment.noise.on == "mean" and not by_record and isinstance(largest := deployment.weights.largest, float):
        few = f", so every round has at least {math.ceil(1 / largest - 1e-9)} clients" if counts(deployment) else ""
        lines.append(f"no client has more than {largest:.4g} of the mean{few}")
    if deployment.noise.on == "mean" and by_record and not counts(deployment):
        sizes = {f"{batch_of(one.records):.4g}" for one in unwrap(deployment).kinds if one.records is not None}
        if sizes:  # a log's are in its rows
            by = sizes.pop() if len(sizes) == 1 else "a constant of each client"
            lines.append(f"the sum of a batch is divided by {by}, for any number of records")
    often = deployment.clients.law in ("with-replacement", UNKNOWN)
    if often and deployment.noise.by == "client":
        lines.append("a client sends one message a round, even if it is drawn several times")
    if deployment.noise.on == "sum" and deployment.noise.by == "server":
        lines.append("a clipped update enters the sum with weight at most 1")
    lines.append("sizes, shares, denominators and numbers of steps are public constants")
    if deployment.clip.of == "weights":
        lines.append("the model's weights are clipped, not its update")
    return lines
