"""How privacy is counted: the budget, against whom, by which accountant, for which rounds."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, TypedDict

import numpy as np

from fedjax_dp import errors, hooks, validation
from fedjax_dp.data.client_names import ClientNames, client_label, number_of
from fedjax_dp.options import Options, about, of_class

# Names of tables which load SciPy.
ACCOUNTANTS = ("pld", "rdp", "gaussian", "zcdp", "tcdp")
VIEWS = ("uploads", "secure_sum", "broadcast", "final_model", "owner", "deployed")
UNITS = ("record", "client", "user", "text", "token")
ADJACENCIES = ("zero-out",)  # others follow from the sampling
PARTICIPATION = ("schedule", "expected", "worst", "once", "law")
BY_NAME_ALONE = {  # what a Guarantee of such terms is about, said first in it
    "expected": "for the mean number of rounds, which is no guarantee for clients that are drawn more often",
    "once": "for a single round, which is no guarantee for the run",
}
SIGMA_MODES = ("per_client", "common_worst", *hooks.NOISE_RULES)
WITHOUT = "for no privacy take an algorithm without noise, such as fedavg"
OTHERS = "*"  # the name of all clients that have no budget by their own
Budget = float | str | Mapping[str, float] | Sequence[float] | np.ndarray  # of all clients, or of each; a text, too


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyTerms:
    """How privacy is counted.

    Args:
        epsilon: privacy budget; one for all, one per client, or by names of clients; the noise is found that meets it
        delta: delta of the budget and of the Guarantee
        accountant: how privacy losses are composed; pld is rigorous; integer noise needs rdp
        participation: which rounds of a client are counted; schedule: those drawn by the seed, which the run must use;
            law: any seed, delta averaged over the draw of cohorts; worst: every round; expected: the mean number, as
            papers count, no guarantee for clients drawn more often; once: a single round, no guarantee for the run. The
            Guarantee of the last two says so first; `guarantee(..., participation="schedule")` is what such a run has
        sigma_mode: noise of each client; per_client: its own; common_worst: that of the client that needs most; or by a
            paper's theorem, which may miss the budget: the Guarantee shows what it gives
        unit: whose presence is hidden; record or client, as the noise hides records or whole clients, unless the data
            bound how many records a user or a text has; token: all windows that contain it
        view: adversary; uploads: the server sees every message, so sampling clients amplifies nothing; in the other
            views the noise of other clients helps where it is known to add up. Default: the strongest adversary that
            the algorithm protects against
        adjacency: which data are neighbours; zero-out: a client sends zeros instead, drawn and counted as before, for
            noise on clients whose rounds are seen; it takes half the noise of replacing the client. Default: add-remove
            or replace-one, as the sampling has it
        colluders: clients of each cohort that help the adversary; for views other than uploads
        stop_at_epsilon: epsilon that no client may exceed, with noise_multiplier; the run has as many rounds as fit,
            which is known before the first
        stop: metric=value on the test set, such as accuracy=0.9, that ends the run; the Guarantee is of all rounds
        deployment_cohort: cohort size of the deployment that the run stands for; its noise is found and counted, and
            the run adds its noise to the mean
        deployment_population: number of clients of that deployment
    """

    epsilon: Budget | None = None
    delta: float | None = None
    accountant: Annotated[str, about("", choices=ACCOUNTANTS)] = "pld"
    participation: Annotated[str, about("", choices=PARTICIPATION)] = "schedule"
    sigma_mode: Annotated[str, about("", choices=SIGMA_MODES)] = "per_client"
    unit: Annotated[str | None, about("", choices=UNITS, default="the noise's, or what the data bound")] = None
    view: Annotated[str | None, about("", choices=VIEWS, default="the algorithm's")] = None
    adjacency: Annotated[str | None, about("", choices=ADJACENCIES, default="the sampling's")] = None
    colluders: int = 0
    stop_at_epsilon: float | None = None
    stop: Annotated[str | None, about("", metavar="METRIC=VALUE")] = None
    deployment_cohort: Annotated[int | None, about("", default="the run itself")] = None
    deployment_population: Annotated[int | None, about("", default="the run itself")] = None

    def check(self) -> None:
        """Refuse names that are none of their choices, and half of a deployment."""
        for name, option in options_of_terms().items():
            if (value := getattr(self, name)) is not option.default:
                option.check(value)
        pair = ("deployment_cohort", "deployment_population")
        for name, other in (pair, pair[::-1]):
            if getattr(self, other) is not None:
                errors.require_count(name, errors.require_given(name, getattr(self, name), f"it belongs to {other}"))

    def by_number(self, num_clients: int, names: ClientNames | None) -> Self:
        """The same terms, where budgets that a text or names state are a number or a list in the order of the clients.

        Raises: ConfigurationError for a name that no client has, and unless every client has one positive budget.
        """
        if not isinstance(self.epsilon, str | Mapping):
            return self
        result = dataclasses.replace(self, epsilon=_budgets_in_order(self.epsilon, num_clients, names))
        result.budgets(num_clients)  # refuses what they cannot be
        return result

    @property
    def deployment(self) -> tuple[int, int] | None:
        """Clients of a cohort, and in all, of the deployment that the run stands for."""
        if self.deployment_cohort is None or self.deployment_population is None:
            return None
        return self.deployment_cohort, self.deployment_population

    @property
    def any_budget(self) -> Budget | None:
        """Epsilon that clients may have, be it that noise is found for it or that it ends the run."""
        return self.epsilon if self.stop_at_epsilon is None else self.stop_at_epsilon

    @property
    def common_budget(self) -> float | None:
        """The same, where it is one number for all."""
        return float(self.any_budget) if isinstance(self.any_budget, int | float) else None

    def budgets(self, num_clients: int) -> list[float]:
        """Epsilon of every client.

        Raises: ConfigurationError unless there is one positive number, or one for each.
        """
        from fedjax_dp.accounting.calibrate import require_budget  # loads SciPy

        name = "epsilon" if self.stop_at_epsilon is None else "stop_at_epsilon"
        try:
            budgets = np.asarray(self.any_budget, float)
        except (TypeError, ValueError):
            raise errors.refuse(name, validation.describe(self.any_budget), "one number, or one per client") from None
        if np.asarray(self.any_budget).dtype == bool:
            raise errors.refuse(name, validation.describe(self.any_budget), "one number, or one per client")
        if budgets.ndim > 1 or (budgets.ndim == 1 and budgets.shape[0] != num_clients):
            raise errors.refuse(
                name, f"{' x '.join(map(str, budgets.shape))} budgets", f"one budget or {num_clients}, one per client"
            )
        for budget in budgets.ravel():
            require_budget(name, budget, WITHOUT)
        return np.broadcast_to(budgets, (num_clients,)).tolist()


def budgets_as_text(what: str, written: Any) -> str:
    """Budgets of clients, as a text, a list or a table has them, in one spelling: `1,2,4` or `north=1,south=2,*=4`.

    Raises: ConfigurationError for anything else.
    """
    texts = [(name, repr(budget).removesuffix(".0")) for name, budget in _parse_budgets(what, written)]
    return ",".join(f"{name}={budget}" if name else budget for name, budget in texts)


def _parse_budgets(what: str, written: Any) -> list[tuple[str, float]]:
    """Names of clients and their budgets; names are empty where budgets are in the order of the clients."""
    entries = [f"{name}={budget}" for name, budget in written.items()] if isinstance(written, Mapping) else written
    text, rest = entries if isinstance(entries, str) else ",".join(map(str, entries)), ""
    if "=" in text:
        *words, rest = re.split(r"=([^=,]*)(?:,|$)", text)  # a name may hold a comma
    else:
        words = [word for budget in text.split(",") for word in ("", budget)]
    try:
        pairs = [(name.strip(), float(budget)) for name, budget in zip(words[::2], words[1::2], strict=True)]
    except ValueError:
        pairs = []
    if rest or not pairs:
        wanted = "a number, one for each client, or one for each by name"
        raise errors.refuse(what, repr(written)[:60], wanted, "such as 4, or 1,2,4, or north=1,south=2,*=4")
    return pairs


def _budgets_in_order(
    written: str | Mapping[str, float], num_clients: int, names: ClientNames | None
) -> float | list[float]:
    pairs = _parse_budgets("epsilon", written)
    if not pairs[0][0]:
        return [budget for _, budget in pairs] if len(pairs) > 1 else pairs[0][1]
    budgets: dict[int | str, float] = {}
    for name, budget in pairs:
        client = name if name == OTHERS else number_of("a client of epsilon", names, num_clients, name)
        if client in budgets:
            raise errors.refuse(f"epsilon of {name}", "two budgets", "one", "drop one of them")
        budgets[client] = budget
    lacking = next((client for client in range(num_clients) if client not in budgets), None)
    if lacking is not None and OTHERS not in budgets:
        got = f"none for {client_label(names, lacking)}"
        raise errors.refuse("epsilon", got, "one for every client", f"{OTHERS}=4 is for all others")
    return [budgets[client if client in budgets else OTHERS] for client in range(num_clients)]


@functools.cache
def options_of_terms() -> Options:
    return of_class(PrivacyTerms)


class PrivacyOptions(TypedDict, total=False):
    """The fields of `PrivacyTerms` as keyword arguments, for type checkers: `**privacy: Unpack[PrivacyOptions]`, which
    takes no dataclass. Meanings and defaults stand there."""

    epsilon: Budget | None
    delta: float | None
    accountant: str
    participation: str
    sigma_mode: str
    unit: str | None
    view: str | None
    adjacency: str | None
    colluders: int
    stop_at_epsilon: float | None
    stop: str | None
    deployment_cohort: int | None
    deployment_population: int | None
