"""A run before its first round, checked once, and the facts that accounting needs, computed once."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Unit, View
from fedjax_dp.accounting.views import helpers_of
from fedjax_dp.data.store import FederatedData, UnitBound
from fedjax_dp.models import Model, task_of, usual_model
from fedjax_dp.models.origins import draw_seed
from fedjax_dp.parts.aggregation import needs_individual_updates
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.parts.record_privacy import require_clip_norms
from fedjax_dp.privacy.deployment import ClientPopulation, clients_of, of_deployment, standing_for
from fedjax_dp.privacy.early_stops import of_stop
from fedjax_dp.privacy.groups import of_groups, of_kept, require_bound
from fedjax_dp.privacy.initialization import EARLIER, RANDOM, Initialization, initialization_of, of_records
from fedjax_dp.privacy.protection import no_epsilon_reason_of, noise_of, unit_of, view_of
from fedjax_dp.privacy.qualifiers import Qualifier
from fedjax_dp.privacy.setup_release import SetupRelease
from fedjax_dp.privacy.terms import PrivacyOptions, PrivacyTerms
from fedjax_dp.pytrees import field_of
from fedjax_dp.rounds.algorithm import Algorithm, mechanism_of, with_noise
from fedjax_dp.rounds.clients import draw_cohorts
from fedjax_dp.rounds.simulation import check, run_key
from fedjax_dp.tasks import measures_of_task
from fedjax_dp.tasks.measures import private_records, target_of

T = TypeVar("T")
INITIALIZATION, COHORTS = "initialization", "cohorts"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """An algorithm, its data, rounds and privacy terms; `plan_run` makes a checked one."""

    algorithm: Algorithm
    data: FederatedData
    rounds: int
    terms: PrivacyTerms
    chosen_model: Model | None  # None: the one that will be trained is unknown
    seed: int = 0
    _cache: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def model(self) -> Model:
        """The model; the usual one if none was chosen."""
        return usual_model(self.data) if self.chosen_model is None else self.chosen_model

    def _compute_once(self, name: Any, make: Callable[[], T]) -> T:
        """What no noise changes, worked out once for this run and all that are made of it by other noise or terms."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    @functools.cached_property
    def view(self) -> View:
        """The adversary; by default not weaker than those of the prior runs."""
        view = view_of(self.algorithm, self.terms.view)
        if (
            self.terms.view is not None
            or not self.initialization.prior_runs
            or no_epsilon_reason_of(self.algorithm, view)
        ):
            return view
        for prior in self.initialization.views:
            if prior.sees_more_than(view) and no_epsilon_reason_of(self.algorithm, prior) is None:
                view = prior
        return view

    @property
    def unit(self) -> Unit:
        """The protected unit; by default that of the noise, or the user or text whose records the data bound.

        Tokens must be requested: their bound follows from the windows of texts, not from a setting.
        """
        if self.terms.unit is not None:
            return Unit(self.terms.unit)
        natural = unit_of(self.algorithm)
        set_by_user = (bound.unit for bound in self.data.bounds if bound.unit is not Unit.TOKEN)
        return natural if natural is Unit.CLIENT else next(set_by_user, natural)

    @property
    def bound(self) -> UnitBound:
        """The bound on the records of the unit."""
        return self.data.bound_of(self.unit) or UnitBound(self.unit, 1)

    @functools.cached_property
    def population(self) -> ClientPopulation:
        """The clients of the Guarantee: those of the data, or of the deployment that they simulate."""
        if self.terms.deployment is not None:
            return clients_of(self.algorithm, self.terms)
        return ClientPopulation(self.algorithm.cohort, self.data.num_clients)

    @functools.cached_property
    def qualifiers(self) -> tuple[Qualifier, ...]:
        """The qualifiers of features other than plain rounds, in the order in which they are counted."""
        setup, result = self.algorithm.cohort.setup_event, list[Qualifier]()
        if (bound := self.data.bound_of(self.unit)) is not None:
            result.append(of_groups(bound, self.data))
        others = (bound for bound in self.data.bounds if bound.unit not in (Unit.TOKEN, self.unit))
        result += [of_kept(bound, self.unit) for bound in others]
        if setup is not None:
            result.append(SetupRelease(event=setup))
        if self.terms.deployment is not None:
            clients, rounds = self.data.num_clients, self.rounds
            run_itself = functools.partial(getattr, self, "without_deployment")
            result.append(of_deployment(self.algorithm, self.population, clients, rounds, run_itself))
        if self.terms.stop is not None:
            result.append(of_stop(self.terms.stop, self.private_tests))
        if self.initialization is not RANDOM:
            result.append(self.initialization.on(self.terms))
        return tuple(result)

    @property
    def helpers(self) -> int:
        """Cohort members that help the adversary, see `helpers_of`."""
        return helpers_of(self.population.cohort.capacity(self.population.num_clients), self.view, self.terms.colluders)

    @functools.cached_property
    def no_epsilon_reason(self) -> str | None:
        """The reason why no epsilon exists, if any."""
        reasons = (one.reason for one in self.qualifiers if one.reason is not None)
        return no_epsilon_reason_of(self.algorithm, self.view) or next(reasons, None)

    @property
    def private_tests(self) -> str | None:
        """Description of the private records behind metrics of the test set, if they are private."""
        if (prior_runs := self.initialization.prior_runs) and not of_records(prior_runs, self.data):
            return EARLIER
        return private_records(self.data.holds_tests)

    @property
    def initialization(self) -> Initialization:
        """The qualifier of the initial parameters; computed once, as it may read all records."""
        origins = getattr(self.chosen_model, "origins", ())
        if not origins and INITIALIZATION not in self._cache:
            return RANDOM
        return self._compute_once(INITIALIZATION, lambda: initialization_of(origins, self.data, self.unit))

    @functools.cached_property
    def noise_levels(self) -> "NoiseLevels":
        """The factors on the noise multiplier by round, which are fixed beforehand.

        Raises: ConfigurationError if user-defined parts pass the round to the noise.
        """
        part, local = mechanism_of(self.algorithm), self.algorithm.local
        changes = field_of(part, "noise_by_round")
        if field_of(part, "clip_by_round") is not None:
            require_clip_norms(part, self.rounds)
        if changes is None:
            return NoiseLevels(np.ones(1, np.float32), np.zeros(self.rounds, int))
        models = (inner for slot, inner in local.parts if slot == "client models")
        for one in (part,) if part is self.algorithm.upload else (part, local, *models):
            if not of_the_project(one):
                got = f"noise_by_round beside {type(one).__name__}"
                wanted = "left out with parts of your own that tell it its round"
                raise errors.refuse("noise", got, wanted, "use the same noise in all rounds")
        levels, of_round = np.unique(changes.factors(self.rounds)[:-1], return_inverse=True)
        return NoiseLevels(levels, of_round)

    @functools.cached_property
    def attendance(self) -> np.ndarray:
        """Number of rounds of each noise level for which each client is drawn `(num_clients, levels)`."""
        levels, (ids, drawn) = self.noise_levels, self.cohorts
        kinds = len(levels.factors)
        places = ids.astype(np.int64) * kinds + levels.of_round.reshape(-1, *[1] * (ids.ndim - 1))
        return np.bincount(places[drawn], minlength=self.data.num_clients * kinds).reshape(-1, kinds)

    @property
    def draw_seed(self) -> int:
        """The seed of cohorts, batches and noise."""
        begins_anew = not getattr(self.chosen_model, "origins", ())
        return self.seed if begins_anew else draw_seed(self.seed, self.chosen_model)

    @property
    def cohorts(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and selection of the cohorts of all rounds `(rounds, members)`; drawn once, as no noise changes them."""
        return self._compute_once(COHORTS, lambda: cohorts_of(self.algorithm, self.data, self.rounds, self.draw_seed))

    def participation_counts(self, rounds: slice | int = slice(None)) -> np.ndarray:
        """Number of draws of each client in these rounds, under the seed `(num_clients,)`."""
        ids, drawn = (of_rounds[rounds] for of_rounds in self.cohorts)
        return np.bincount(ids[drawn], minlength=self.data.num_clients)

    @functools.cached_property
    def last_rates(self) -> np.ndarray:
        """Learning rate of the last step of every round `(rounds,)`."""
        return last_rates(self.algorithm, self.data.largest, self.rounds)

    @functools.cached_property
    def noise_amplification(self) -> np.ndarray:
        """See the function of that name."""
        # The changes of several clients add up in a sum, while the releases of clients compose in squares.
        if self.bound.clients > 1 or self.view is View.UPLOADS:
            return np.ones(self.data.num_clients)
        return noise_amplification(self.algorithm, self.data, self.view, self.terms.colluders, self.rounds)

    @property
    def without_deployment(self) -> "PlannedRun":
        """The run without its deployment: the Guarantee describes its own releases."""
        return self.with_terms(deployment_cohort=None, deployment_population=None)

    def with_terms(self, **terms: Unpack[PrivacyOptions]) -> "PlannedRun":
        """The run with other privacy terms."""
        return dataclasses.replace(self, terms=dataclasses.replace(self.terms, **terms))

    def prefix(self, rounds: int) -> "PlannedRun":
        """The run planned for its first `rounds` rounds."""
        known = self._cache | {INITIALIZATION: self.initialization}
        if COHORTS in known:
            known[COHORTS] = tuple(drawn[:rounds] for drawn in self.cohorts)
        return dataclasses.replace(self, rounds=rounds, _cache=known)

    def with_noise(self, noise_multiplier: float | np.ndarray) -> "PlannedRun":
        """The run with another noise multiplier."""
        return dataclasses.replace(self, algorithm=with_noise(self.algorithm, noise_multiplier))


def plan_run(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    terms: PrivacyTerms,
    seed: int = 0,
    model: Model | None = None,
) -> PlannedRun:
    """The run, after all checks that need no accounting.

    Raises: ConfigurationError for parts that do not fit, and for invalid terms.
    """
    run_key(seed)  # refuses what is none
    check(algorithm, data, rounds, model)
    terms.check()
    if terms.epsilon is not None:
        terms = terms.by_number(data.num_clients, data.names)
    planned = PlannedRun(
        algorithm=algorithm if terms.deployment is None else standing_for(algorithm, data, terms),
        data=data,
        rounds=rounds,
        terms=terms,
        chosen_model=model,
        seed=seed,
    )
    _check_unit(planned)
    log = algorithm.cohort.log(data.num_clients)
    if log is not None and log.num_rounds > rounds and terms.stop_at_epsilon is None:
        got = f"round {log.num_rounds - 1:,}"
        raise errors.refuse("participation log", got, f"of rounds 0 to {rounds - 1:,}, those of the run")
    if terms.stop is not None:
        target_of(terms.stop, measures_of_task(task_of(planned.model, data)), "stop")  # refuses what is none
    return planned


def _check_unit(run: PlannedRun) -> None:
    """Refuse a unit that noise does not hide, that nobody bounds, or whose records features were made with."""
    unit, natural, data = run.unit, unit_of(run.algorithm), run.data
    if run.terms.adjacency is not None and (natural is not Unit.CLIENT or run.algorithm.upload.shared_noise):
        wanted = "left out unless the server adds noise to clients' updates"
        raise errors.refuse(
            "adjacency", run.terms.adjacency, wanted, "drop it: the noise here has neighbours of its own"
        )
    if noise_of(run.algorithm) is None or (unit is Unit.RECORD and natural is Unit.RECORD):
        return
    if (unit is Unit.CLIENT) != (natural is Unit.CLIENT):
        wanted = "client, or left out, for noise on whole clients" if natural is Unit.CLIENT else "of records here"
        remedy = "use dp_fedavg, or noise_on clients where an algorithm has it" if unit is Unit.CLIENT else ""
        raise errors.refuse("unit", unit.value, wanted, remedy)
    if unit.of_records:
        require_bound(unit, data)


class NoiseLevels(NamedTuple):
    """Noise of rounds relative to the noise multiplier; a single level of 1 if it is constant."""

    factors: np.ndarray  # float32, each once `(levels,)`
    of_round: np.ndarray  # which of them is each round's `(rounds,)`

    @property
    def least(self) -> float:
        return float(self.factors.min())

    @property
    def rounds(self) -> list[int]:
        return np.bincount(self.of_round, minlength=len(self.factors)).tolist()


def cohorts_of(algorithm: Algorithm, data: FederatedData, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and selection of the cohorts of `rounds` rounds for a seed; both `(rounds, members)`.

    Cohorts depend on the seed and on public numbers, never on data, so the whole schedule can be published in advance.
    Every drawn client is counted, even if its message is lost or late: the adversary may have seen it.
    """
    ids, drawn = draw_cohorts(algorithm.cohort, run_key(seed), jnp.arange(rounds), jnp.asarray(data.shares))
    return np.asarray(ids), np.asarray(drawn)


def participations(algorithm: Algorithm, data: FederatedData, rounds: int, seed: int) -> np.ndarray:
    """Number of rounds in which each client trains, out of `rounds`, for a seed; shape `(num_clients,)`."""
    ids, drawn = cohorts_of(algorithm, data, rounds, seed)
    return np.bincount(ids[drawn], minlength=data.num_clients)


def honest_of(algorithm: Algorithm, data: FederatedData, view: View, helpers: int) -> int:
    """Number of cohort members of which the adversary sees only the sum.

    If the adversary is the server, the masks that its helpers know may split the honest members into groups.
    Raises: ConfigurationError if an honest member may be in a group alone though there are others.
    """
    members = algorithm.cohort.capacity(data.num_clients)
    others = max(members - helpers, 1)
    if view is not View.SECURE_SUM:
        return others
    hidden = algorithm.transport.hidden_among(members, helpers)
    if hidden < min(others, 2):
        raise errors.refuse(
            "colluders",
            helpers,
            f"so few that no honest client of {members} is left alone between them in a round",
            "give every client more neighbours (None masks every pair), or use view uploads",
        )
    return min(hidden, others)


def last_rates(algorithm: Algorithm, largest: int, rounds: int) -> np.ndarray:
    return np.asarray(jax.vmap(lambda t: algorithm.local.rates(t, largest)[-1])(jnp.arange(rounds)), float)


def noise_amplification(
    algorithm: Algorithm, data: FederatedData, view: View, colluders: int, rounds: int = 1
) -> np.ndarray:
    """Noise variance in `view` relative to the variance of each client's own noise; `(num_clients,)`.

    After one plain local step, the noises of a cohort add up in the sum. Client i's message has weight a_i, so relative
    to the sensitivity of its record the others add (a_j z_j u_j)^2 to its own (a_i z_i u_i)^2, with u the unit of the
    bound (C / B if records are clipped). The worst case is the least noisy cohort that contains i. In view broadcast
    the adversary is a client that knows its own noise. Noise must span some steps of the ring, or rounding removes it.
    Nothing is gained
    * with more than one local step (see `accounting.steps_in_view`);
    * if cohorts vary in size or multiplicity;
    * if client state acts on later updates: a control variate carries a client's own noise into the next sum alone;
    * if updates are combined otherwise than by a sum with public weights;
    * if a user-defined part stands between the noise and the sum.
    """
    ones, local = np.ones(data.num_clients), algorithm.local
    cohort = algorithm.cohort
    helpers = helpers_of(cohort.capacity(data.num_clients), view, colluders)
    aggregate, privatizer = algorithm.aggregate, local.privatizer
    between = (
        local,
        local.batches,
        privatizer,
        *(part for _, part in local.parts),
        algorithm.upload,
        aggregate,
        getattr(aggregate, "weigh", aggregate),
        algorithm.transport,
    )
    one_step = local.batches.even and local.batches.count(local.steps, data.largest) == 1 and local.is_sgd
    if getattr(privatizer, "literal", False):  # its noise shrinks by another rate, which the ring may swallow
        return ones
    if not (cohort.fixed and cohort.at_most_once and one_step) or local.state_affects_messages:
        return ones
    if view is View.DEPLOYED and local.personal:  # a client's own model carries its own noise alone
        return ones
    if needs_individual_updates(aggregate) or not all(map(of_the_project, between)):
        return ones
    others = honest_of(algorithm, data, view, helpers) - 1
    everyone = Members(jnp.arange(data.num_clients), jnp.ones(data.num_clients), *(jnp.zeros(data.num_clients),) * 2)
    shares = jnp.asarray(data.shares)
    weight = np.asarray(algorithm.aggregate.weights(everyone, shares, cohort.rates(shares)), float)
    unit = np.array([local.privatizer.noise_unit(local.batches.divisor(n)) for n in np.asarray(data.sizes).tolist()])
    own = (weight * np.asarray(local.privatizer.client_noise(data.num_clients), float) * unit) ** 2
    rate = last_rates(algorithm, data.largest, rounds).min()
    clip = float(getattr(privatizer, "clip_norm", 0.0))
    for what in ("noise_by_round", "clip_by_round"):
        changes = field_of(privatizer, what)
        clip *= 1.0 if changes is None else float(changes.factors(rounds).min())
    coarse = np.sqrt(own.min()) * clip * rate < 4 * algorithm.transport.resolution
    if not np.all(own > 0) or coarse:  # noise that rounding to the ring swallows adds up to nothing
        return ones
    ranked = np.sort(own)
    least = np.concatenate([[0.0], np.cumsum(ranked)])
    among = own <= ranked[others - 1] if others else np.zeros(len(own), bool)  # a client that is one of the least noisy
    brought = np.where(among, least[min(others + 1, len(own))] - own, least[others])
    return 1 + brought / own
