"""The noisy releases of a deployment as events: noise multiplier, sampling, adjacency and view, read off the facts."""

import dataclasses
import math
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
from fedjax_dp.accounting.accountants import about_at
from fedjax_dp.accounting.guarantee import NoiseMultipliers
from fedjax_dp.tools.deployments.description import UNKNOWN, Deployment, MemberDraws, RecordDraws, missing_facts_error
from fedjax_dp.tools.deployments.witness import unwrap, witness_of

VIEWS = {"server": View.UPLOADS, "clients": View.BROADCAST}
BOUNDING = ("record", "update", "weights")  # clips that bound what their unit can change
SUMMED = "every epsilon counted whole, added up (pure differential privacy)"


@dataclasses.dataclass(frozen=True)
class GaussianCost:
    """Gaussian releases; where a law is unknown there are several events, and the worst counts."""

    events: tuple[Event, ...]
    real: Event | None  # what two neighbours, as described, certainly show

    def epsilon(self, delta: float) -> float:
        return max(epsilon_of(event, delta) for event in self.events) if delta else math.inf

    def attained(self, delta: float) -> float:
        """What two real neighbours attain; 0 where none are known."""
        if not delta:
            return math.inf
        return 0.0 if self.real is None else compare.lower_bound(self.real, delta).number or 0.0

    def factor_for(self, epsilon: float, delta: float) -> float:
        """Smallest factor on the noise that meets a budget."""
        return max(noise_factor_for(event, epsilon, delta) for event in self.events)


@dataclasses.dataclass(frozen=True)
class LaplaceCost:
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


Cost = GaussianCost | LaplaceCost  # what one client pays for all noisy releases


class Draw(NamedTuple):
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
            self.accountant if pure else about_at("pld", delta),
            self.assumptions,
            noise=NoiseMultipliers.of(self.multipliers) if self.multipliers else None,
        )


def view_of(deployment: Deployment, view: str | None = None) -> str:
    """Who looks: by default the strongest that noise is added against."""
    if view is not None:
        errors.require_choice("view", view, VIEWS)
        return view
    return "clients" if deployment.noise.by == "server" else "server"


def mechanism_of(deployment: Deployment, view: str | None = None, seen: set[str] | None = None) -> Mechanism:
    """What the noisy releases cost, however far what else leaves goes.

    The deployment's clip bounds its unit, and its noise is noise: see `rules`. Facts that the cost is made of are added
    to `seen`.
    Raises: ConfigurationError for facts that are missing, all of them at once.
    """
    if missing := list(dict.fromkeys(name for one in deployment.kinds for name in missing_facts(one))):
        raise missing_facts_error(missing)
    seen = set() if seen is None else seen
    kinds = [witness_of(one, seen) for one in deployment.kinds]
    deployment = witness_of(deployment, seen)
    drawn = draw_of(kinds[0])
    words = list(dict.fromkeys(draw_of(one).words for one in kinds))
    if len(words) > 1:
        drawn = drawn._replace(words=f"{words[0]} and {len(words) - 1} more")
    laplace = deployment.noise.law == "laplace"
    return Mechanism(
        tuple(cost_of(one, releases(one)) for one in kinds),
        () if laplace else tuple(map(multiplier, kinds)),
        deployment.clients.of or 1,
        deployment.hidden,
        drawn.adjacency,
        VIEWS[view_of(deployment, view)],
        SUMMED if laplace else ACCOUNTANTS["pld"].about,
        (*assumptions_of(deployment, drawn), *deployment.assumes),
    )


def missing_facts(deployment: Deployment) -> list[str]:
    """Facts without which nothing can be counted."""
    clip, noise, clients, records = deployment.clip, deployment.noise, deployment.clients, deployment.records
    by_record, by_server = clip.of == "record", noise.by == "server"
    counted = by_server and hides_clients(deployment)
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
    often = (UNKNOWN,) if noise.on == "sum" else ()  # may be drawn several times into one sum
    drawn = {"clients": (clients, counted or clients.law == "round-robin", (*sized, "round-robin", *often))}
    divided = counted and clients.law == "poisson"
    if records is not None and by_record:
        needed["records.steps"] = records.steps is None
        drawn["records"] = (records, True, (*sized, "shuffled", UNKNOWN))
        known = records.of is not None and (records.rate is not None or records.law == "full")
        needed["records.size"] = each and records.size is None and not known
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
    """Of one member to be drawn."""
    chance: float = members.rate if members.rate is not None else members.size / members.of
    return chance


def hides_clients(deployment: Deployment) -> bool:
    """Whether the draw of clients counts: where they are the unit, or may stand in one sum several times."""
    return deployment.unit == "client" or deployment.clients.law in ("with-replacement", UNKNOWN)


def rest_of(records: RecordDraws) -> int:
    """The records of a pass that fill no batch."""
    passes = records.law == "shuffled" and records.size is not None and records.of is not None
    return records.of % records.size if passes else 0  # type: ignore[operator]


def varies(records: RecordDraws) -> bool:
    """Whether batches may have different numbers of records."""
    drawn = records.law in ("poisson", UNKNOWN) or (records.law == "once" and records.rate is not None)
    return drawn or (rest_of(records) > 0 and records.last != "drop")


def _by_poisson(deployment: Deployment) -> bool:
    """Whether members of the noisy sums come by Poisson sampling, and what is divided by does not say how many came."""
    records, clients = deployment.records, deployment.clients
    if deployment.clip.of == "record":
        return records is not None and records.law == "poisson" and not counts(deployment)
    return clients.law == "poisson" and _of_clients(deployment) and not counts(deployment)


def _of_clients(deployment: Deployment) -> bool:
    """Whether the noisy sums are of clients whose draw hides them."""
    return deployment.noise.by == "server" and hides_clients(deployment)


def counts(deployment: Deployment) -> bool:
    """Whether what is divided by says how many came, and that is no constant.

    Where the noise is on a sum of records, divisors are public constants unless something else is stated.
    """
    records = deployment.records
    if deployment.clip.of == "record":
        moves = records is not None and records.law == "poisson"
        if records is not None and deployment.noise.on == "mean":
            moves = varies(records)
        return moves and deployment.weights.denominator in ("count", UNKNOWN)
    moves = deployment.clients.law == "poisson" and deployment.unit == "client" and deployment.noise.by == "server"
    return moves and deployment.weights.denominator != "fixed"


def draw_of(deployment: Deployment) -> Draw:
    """How members of the noisy sums are drawn in the eyes of the view, and who is a neighbour.

    Clients that are drawn hide nothing but from other clients, and nothing of their records.
    """
    records, clients = deployment.records, deployment.clients
    if deployment.clip.of == "record" and records is not None:
        if records.law == "poisson" and counts(deployment):
            return _visible_draw("records, whose number in each batch is public")
        return _draw_by_law(records, "records")
    if _of_clients(deployment):
        if counts(deployment):
            return _visible_draw("clients, whose number in each round is public")
        return _draw_by_law(clients, "clients")
    return _visible_draw("clients, who are seen")


def _visible_draw(whose: str) -> Draw:
    return Draw((FullBatch(),), Adjacency.REPLACE_ONE, f"{whose}: no amplification by their draw")


def _draw_by_law(members: MemberDraws, whose: str) -> Draw:
    law, fixed = members.law, Adjacency.REPLACE_ONE
    if law == "poisson":
        sampling: Sampling = Poisson(_chance(members))
        return Draw((sampling,), Adjacency.ADD_REMOVE, f"{whose} by {sampling}")
    if law == "fixed":
        sampling = WithoutReplacement(members.size, members.of)
        return Draw((sampling,), fixed, f"{whose} by {sampling}")
    if law == "with-replacement":
        sampling = WithReplacement(members.size, members.of)
        return Draw((sampling,), fixed, f"{whose} by {sampling}")
    if law == UNKNOWN:
        worst: tuple[Sampling, ...] = (FullBatch(),)
        if members.size is not None and members.of is not None:
            worst = (*worst, WithReplacement(members.size, members.of))
        words = f"the draw of {whose} is unknown: the worse of all in every sum and independent draws with replacement"
        return Draw(worst, fixed, words)
    return Draw((FullBatch(),), fixed, f"{whose} by law {law}: no amplification by their draw")


def participations(deployment: Deployment) -> int:
    """Rounds of a client, at most."""
    clients = deployment.clients
    if clients.law == "round-robin" and clients.size is not None and clients.of is not None:
        return -(-deployment.rounds // (clients.of // clients.size))  # of a rest that is left out, too
    return deployment.rounds


def releases(deployment: Deployment) -> int:
    """Noisy sums of which a member may be a part, at most."""
    records, rounds = deployment.records, participations(deployment)
    if deployment.clip.of != "record" or records is None:
        return rounds
    steps = int(records.steps)  # type: ignore[arg-type]
    if records.law == "shuffled":
        more = 1 if rest_of(records) and records.last == "keep" else 0
        steps = -(-steps // (records.of // records.size + more))  # type: ignore[operator]
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
    return sensitivity * classical_factor(keys.delta or 0.0) / keys.epsilon


def classical_factor(delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)): of the formula for Gaussian noise that holds for epsilon below 1."""
    return math.sqrt(2 * math.log(1.25 / delta))


def weight(deployment: Deployment) -> float:
    """What one clipped member weighs in what the noise is added to."""
    if deployment.noise.on != "mean":
        return 1.0
    records = deployment.records
    if deployment.clip.of == "record" and records is not None:
        # of batches that are divided by their own numbers the smallest: a rest, or one record alone
        return 1 / (batch_of(records) if not counts(deployment) else rest_of(records) or 1)
    largest = deployment.weights.largest
    return 1.0 if largest == UNKNOWN or largest is None else float(largest)


def batch_of(records: RecordDraws) -> float:
    """Records of a batch, by expectation where it has no size."""
    if records.size is not None:
        return float(records.size)  # type: ignore[arg-type]
    return float(records.of) * (1.0 if records.law == "full" else float(records.rate))  # type: ignore[arg-type]


def multiplier(deployment: Deployment) -> float:
    """Gaussian noise over what one member can add. Counts with noise beside an adaptive bound take their part of it.

    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871, Theorem 1.
    """
    own = noise_std(deployment) / (bound_of(deployment) * weight(deployment))
    count = count_multiplier(deployment)
    return own if count is None or own == 0 else 1 / math.hypot(1 / own, 1 / count)


def count_multiplier(deployment: Deployment) -> float | None:
    """Noise on counts beside an adaptive bound over what one member can add to them; None without such counts.

    A member that is exchanged moves a count by 1, twice a half, whatever its bits are. One that is added moves it by a
    half if bits are shifted to minus and plus a half, else by 1. Tensors that are clipped one by one have counts of
    their own.
    """
    clip = deployment.clip
    if clip.threshold != "adaptive" or clip.count_noise is None:
        return None
    exchanged = draw_of(deployment).adjacency is Adjacency.REPLACE_ONE
    most = 0.5 if exchanged or clip.count_bits == "half" else 1.0
    return clip.count_noise / (most * math.sqrt(clip.tensors if clip.scope == "tensor" and clip.tensors else 1))


def cost_of(deployment: Deployment, count: int) -> Cost:
    """What one client pays for `count` of its noisy sums."""
    return _laplace_cost(deployment, count) if deployment.noise.law == "laplace" else gaussian_cost(deployment, count)


def gaussian_cost(deployment: Deployment, count: int) -> GaussianCost:
    """The same of Gaussian noise."""
    drawn, unit, records = draw_of(deployment), deployment.hidden, deployment.records
    steps = [
        GaussianSteps(multiplier(deployment), sampling, drawn.adjacency, count, unit) for sampling in drawn.samplings
    ]
    events: list[Event] = [*steps]
    by_record = deployment.clip.of == "record" and records is not None
    if by_record and records is not None and records.law == "once":
        events = [RandomParticipation(one, _chance(records), 1) for one in steps]
    real = events[0] if len(events) == 1 else None
    if counts(deployment):  # in which the worst of what is divided by is counted, and no draw
        if not by_record or records is None:  # the others know whether they came, and so together who else did
            once = dataclasses.replace(steps[0], count=1)
            real = RandomParticipation(once, _chance(unwrap(deployment.clients)), count)
        elif records.law == "poisson":
            chance, among = _chance(unwrap(records)), unwrap(records).of
            if deployment.noise.on == "mean":  # what is counted happens in batches that a record has for itself
                chance *= 0.0 if among is None else (1 - chance) ** (among - 1)  # type: ignore[operator]
            real = dataclasses.replace(steps[0], sampling=Poisson(chance)) if chance else None
        else:
            real = None
    return GaussianCost(tuple(events), real)


def _laplace_cost(deployment: Deployment, count: int) -> Cost:
    chosen = deployment.selection
    if chosen is not None and deployment.noise.on == "message":
        # Lyu, Su, Li 2017, arXiv:1603.01699: the threshold's part, and a part for each answer, of which there may be
        # as many as numbers are queried
        threshold = chosen.epsilon / (1 + (2 * chosen.answers) ** (2 / 3))
        choice = threshold + (chosen.epsilon - threshold) * chosen.of / chosen.answers
        return LaplaceCost(chosen.release, chosen.answers * count, choice * count)
    drawn, law = draw_of(deployment), deployment.clients.law
    if _of_clients(deployment) and law in ("with-replacement", UNKNOWN):
        remedy = "one client may stand in a sum several times, which is written for Gaussian noise alone"
        raise errors.refuse("noise.law", "laplace", f"gaussian for clients by law {law}", remedy)
    scale = noise_std(deployment) / math.sqrt(2)
    change = drawn.adjacency.sensitivity * bound_of(deployment, norm=1) * weight(deployment)
    everybody = law not in ("poisson", "fixed") or not _of_clients(deployment)
    exact = deployment.clip.norm != "l2" and everybody
    each = change / scale
    return LaplaceCost(each, count) if exact else LaplaceCost(0.0, count, each * count)


def assumptions_of(deployment: Deployment, drawn: Draw) -> list[str]:
    """What has to be true for the numbers to hold."""
    lines = ["of what was described, and of nothing that the description leaves out", drawn.words]
    if deployment.unit == "client":
        lines.append("whoever clips does so as described: one client that does not is not bounded")
    if deployment.noise.by == "client":
        lines.append("a client's own noise alone is counted, not that of others")
    else:
        lines.append("the server adds the noise honestly, and sees what it is added to")
    by_record = deployment.clip.of == "record"
    if deployment.noise.law == "gaussian" and deployment.clip.norm == "l1":
        lines.append("a bound on the L1 norm is one on the L2 norm, which Gaussian noise needs")
    if deployment.noise.on == "mean" and not by_record and isinstance(largest := deployment.weights.largest, float):
        few = f", so no round is of fewer than {math.ceil(1 / largest - 1e-9)}" if counts(deployment) else ""
        lines.append(f"no client has more than {largest:.4g} of the mean{few}")
    if deployment.noise.on == "mean" and by_record and not counts(deployment) and deployment.records is not None:
        lines.append(
            f"the sum of a batch is divided by {batch_of(deployment.records):.4g}, however many records it has"
        )
    often = deployment.clients.law in ("with-replacement", UNKNOWN)
    if often and deployment.noise.by == "client":
        lines.append("a client sends one message a round, however often it is drawn")
    if deployment.noise.on == "sum" and deployment.noise.by == "server":
        lines.append("a clipped update enters the sum with weight at most 1")
    lines.append("sizes, shares, divisors and numbers of steps are public constants")
    if deployment.clip.of == "weights":
        lines.append("the model's weights are clipped, not its update")
    return lines
