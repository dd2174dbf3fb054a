"""Privacy accounting in float64 on NumPy and SciPy; nothing here imports JAX.

Say what was released as an event, then ask for its price:

>>> steps = GaussianSteps(2.0, WithoutReplacement(10, 600), Adjacency.REPLACE_ONE, 600)
>>> round(epsilon_of(steps, 1e-5), 3), round(epsilon_of(steps, 1e-5, "rdp"), 3)
(2.934, 3.267)
"""

from fedjax_dp.accounting.accountants import (
    ACCOUNTANTS,
    ATTAINED,
    WANG_RDP,
    Accountant,
    cost_of,
    epsilon_of,
    epsilons_of,
)
from fedjax_dp.accounting.calibrate import noise_factor_for, noise_multiplier_for
from fedjax_dp.accounting.correlated import best_bands, inverse_root_bands, prefix_error
from fedjax_dp.accounting.correlated import sensitivity as correlated_sensitivity
from fedjax_dp.accounting.empirical import (
    ChosenTest,
    ErrorBounds,
    choose_test,
    clopper_pearson_epsilon,
    epsilon_of_any,
    error_bounds,
    mu_of,
)
from fedjax_dp.accounting.events import (
    Adjacency,
    AnyStep,
    BoundedRange,
    Composed,
    Event,
    FullBatch,
    GaussianSteps,
    NotCoveredError,
    Poisson,
    RandomParticipation,
    Release,
    Sampling,
    Shuffled,
    SkellamSums,
    Unit,
    WithoutReplacement,
    WithReplacement,
    repeated,
)
from fedjax_dp.accounting.gaussian import (
    Gdp,
    classical_gaussian_noise,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise,
    gaussian_trade_off,
)
from fedjax_dp.accounting.guarantee import Claim, Guarantee, Verdict
from fedjax_dp.accounting.laws import BoundedLosses, GaussianPair
from fedjax_dp.accounting.one_run import choose_guesses, one_run_contradicts, one_run_epsilon, one_run_mu
from fedjax_dp.accounting.pairs import Dominating
from fedjax_dp.accounting.participation import participation_quantile, participation_tail, within_quantile
from fedjax_dp.accounting.personal import budgeted_participations, noise_terms, sampling_probabilities
from fedjax_dp.accounting.selection import SelectionCost, composition_epsilons, repetition_epsilons, selection_cost
from fedjax_dp.accounting.tcdp import Tcdp, TcdpConditionError
from fedjax_dp.accounting.trade_off import (
    TradeOff,
    contradicts,
    epsilon_at_least,
    noise_at_most,
    trade_off,
    trials_needed,
)
from fedjax_dp.accounting.trials import NegativeBinomialTrials, PoissonTrials, Trials
from fedjax_dp.accounting.views import View, seen
from fedjax_dp.accounting.zcdp import Zcdp, zcdp_budget, zcdp_epsilon, zcdp_epsilon_standard

__all__ = [
    "ACCOUNTANTS",
    "ATTAINED",
    "WANG_RDP",
    "Accountant",
    "Adjacency",
    "AnyStep",
    "BoundedLosses",
    "BoundedRange",
    "ChosenTest",
    "Claim",
    "Composed",
    "Dominating",
    "ErrorBounds",
    "Event",
    "FullBatch",
    "GaussianPair",
    "GaussianSteps",
    "Gdp",
    "Guarantee",
    "NegativeBinomialTrials",
    "NotCoveredError",
    "Poisson",
    "PoissonTrials",
    "RandomParticipation",
    "Release",
    "Sampling",
    "SelectionCost",
    "Shuffled",
    "SkellamSums",
    "Tcdp",
    "TcdpConditionError",
    "TradeOff",
    "Trials",
    "Unit",
    "Verdict",
    "View",
    "WithReplacement",
    "WithoutReplacement",
    "Zcdp",
    "best_bands",
    "budgeted_participations",
    "choose_guesses",
    "choose_test",
    "classical_gaussian_noise",
    "clopper_pearson_epsilon",
    "composition_epsilons",
    "contradicts",
    "correlated_sensitivity",
    "cost_of",
    "epsilon_at_least",
    "epsilon_of",
    "epsilon_of_any",
    "epsilons_of",
    "error_bounds",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise",
    "gaussian_trade_off",
    "inverse_root_bands",
    "mu_of",
    "noise_at_most",
    "noise_factor_for",
    "noise_multiplier_for",
    "noise_terms",
    "one_run_contradicts",
    "one_run_epsilon",
    "one_run_mu",
    "participation_quantile",
    "participation_tail",
    "prefix_error",
    "repeated",
    "repetition_epsilons",
    "sampling_probabilities",
    "seen",
    "selection_cost",
    "trade_off",
    "trials_needed",
    "within_quantile",
    "zcdp_budget",
    "zcdp_epsilon",
    "zcdp_epsilon_standard",
]
