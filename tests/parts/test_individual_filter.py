"""Each client counts while its own clipped updates have cost less than the budget, then never again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FlatModel, quick, ragged_data, states_of
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, IndividualFilter, Unit, epsilon_of
from fedjax_dp.accounting.gaussian import gaussian_noise
from fedjax_dp.parts import BoundedMean, Dropout, Estimator, IndividualGaussian, NonPrivate
from fedjax_dp.parts.aggregation import equally
from fedjax_dp.parts.batches import FullBatches
from fedjax_dp.parts.client_privacy import Participation
from fedjax_dp.parts.clipping import StepReport
from fedjax_dp.parts.cohorts import AllClients, PoissonCohort, UniformCohort
from fedjax_dp.parts.contexts import LocalResult
from fedjax_dp.parts.individual_filter import UsedBudget
from fedjax_dp.parts.local_training import LocalTraining
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import run_key

# Cases `individual_filter`: z, clip norm, epsilon, norms by client and round; in which rounds each counts.
CASES = [
    (4.0, 1.0, 2.0, [[1.0] * 8, [0.5] * 8, [0.2, 1.0] * 4], [[0, 1, 2, 3], range(8), range(7)]),
    (3.0, 0.5, 1.0, [[0.5] * 3 + [0.1] * 2, [0.0] * 3 + [0.5] * 2, [0.4, 0.3, 0.2, 0.1, 0.1]], [[], [0, 1, 2], [0]]),
]  # fmt: skip


@fdp.value
class Prescribed(LocalTraining):
    """Updates of the norms that it is told, `(num_clients, rounds)`, each along an axis of its client's own."""

    norms: jax.Array
    privatizer: NonPrivate = NonPrivate()
    batches: FullBatches = FullBatches()
    steps: int = fdp.structure(default=1)

    no_epsilon_reason = None

    def rates(self, round_index, largest):
        return jnp.ones(1)

    def run(self, client):
        length = self.norms[client.client.id, client.round]
        update = length * (jnp.arange(client.received.params.size) == client.client.id)
        return LocalResult(update, (), (), StepReport(*[jnp.float32(0)] * 4))


EVERYBODY, BOUNDED = AllClients(), BoundedMean()


def upload_of(z, clip_norm, epsilon):
    return IndividualGaussian(clip_norm=clip_norm, noise_multiplier=z, budget_mu=1 / gaussian_noise(epsilon, 1e-5))


def prescribed(upload, norms, cohort=EVERYBODY, aggregate=BOUNDED):
    """The states of a run on updates of these norms."""
    plain = fdp.dp_fedavg(cohort_size=2, batch_size=1, local_steps=1, learning_rate=1.0, clip_norm=1.0)
    local = Prescribed(norms=np.asarray(norms, np.float32))
    algorithm = changed(plain, upload=upload, local=local, cohort=cohort, aggregate=aggregate)
    return states_of(algorithm, FlatModel(5), ragged_data([2] * len(norms)), len(norms[0]))


def counting(states):
    """Whether each client counts, round by round `(rounds, num_clients)`."""
    return np.isfinite([state.uploads.squared_mu for state in states[1:]])


@pytest.mark.parametrize("case", CASES, ids=["one of them stops at once", "none lasts"])
def test_clients_count_in_the_rounds_of_the_vectors(case):
    z, clip_norm, epsilon, norms, wanted = case
    filled = np.zeros((5, 12))  # one shape, which compiles once
    filled[:3, : len(norms[0])] = norms
    active = counting(prescribed(upload_of(z, clip_norm, epsilon), filled))[: len(norms[0]), :3]
    assert [np.flatnonzero(mine).tolist() for mine in active.T] == [list(rounds) for rounds in wanted]


NORMS = np.random.default_rng(5).uniform(0.0, 1.0, (5, 12)) * [[1.7], [1.3], [0.9], [0.4], [0.2]]  # clip norm 1
UPLOAD = upload_of(3.0, 1.0, 2.0)
LAWS = {
    "poisson": (PoissonCohort(size=3), BoundedMean()),
    "lost": (Dropout(cohort=UniformCohort(size=4), rate=0.3), BoundedMean()),
    "mean": (UniformCohort(size=4), Estimator(weigh=equally, normalised=True)),
}


@functools.cache
def drawn(law):
    rounds, shares = jnp.arange(NORMS.shape[1]), jnp.full(5, 0.2)
    return jax.vmap(lambda at: draw_cohort(LAWS[law][0], run_key(0), at, shares))(rounds)


def followed(law, charged=lambda members: members.present):
    """By the filter of the accountants: who counts in each round, and the norms of what does; both by round."""
    one = IndividualFilter.start(
        5, epsilon=2.0, delta=1e-5, noise_multiplier=3.0, clip_norm=1.0, adjacency=Adjacency.ZERO_OUT
    )
    active, sent = [], NORMS.copy()
    for at, (ids, here) in enumerate(zip(*map(np.asarray, (drawn(law).ids, charged(drawn(law)))))):
        there = np.isin(np.arange(5), ids[here])
        norms = np.where(there, NORMS[:, at], 0.0)
        sent[:, at] *= one.active(norms)
        one = one.after(norms)
        active.append(~one.left)
    return np.array(active), sent, one


@pytest.fixture(scope="module", params=quick(LAWS, ("mean",)))
def law(request):
    """A law of cohorts, and a run by it."""
    cohort, aggregate = LAWS[request.param]
    return request.param, prescribed(UPLOAD, NORMS, cohort, aggregate)


@pytest.mark.slow
def test_a_run_is_the_one_in_which_those_who_left_send_zeros(law):
    """Bit for bit, with a budget that ends nothing: so divisors are of all who take part, and the noise is as large."""
    name, states = law
    active, sent, _ = followed(name)
    assert 0 < active[-1].sum() < 5
    np.testing.assert_array_equal(counting(states), active)
    cohort, aggregate = LAWS[name]
    zeros = prescribed(changed(UPLOAD, budget_mu=1e6), sent, cohort, aggregate)
    np.testing.assert_array_equal(states[-1].params, zeros[-1].params)
    assert not np.array_equal(states[-1].params, prescribed(changed(UPLOAD, budget_mu=1e6), NORMS, cohort, aggregate))


def test_what_was_used_is_what_the_accountants_say_rounded_up(law):
    name, states = law
    _, _, one = followed(name)
    used = np.asarray(states[-1].uploads.squared_mu, float)[~one.left]
    assert np.all(used >= one.used[~one.left])
    np.testing.assert_allclose(used, one.used[~one.left], rtol=1e-5)


@pytest.mark.parametrize("name", ["poisson", pytest.param("lost", marks=pytest.mark.slow)])
def test_the_wrong_program_that_charges_who_is_absent_is_another(name):
    """Those whose message is lost, and the padding of a cohort, which names client 0."""
    active, _, _ = followed(name, lambda members: jnp.ones_like(members.present))
    assert not np.array_equal(active, followed(name)[0])


@fdp.value
class MeanOfThoseWhoCount(BoundedMean):
    """The wrong program that divides by who still counts: others see how many do."""

    def contribution(self, weight, update, loss, rate):
        return weight * update, weight * (jnp.vdot(update, update) > 0)

    def combine(self, total, members, shares, rates, params):
        return total[0] / jnp.maximum(total[1], 1.0)


def a_round_late(self, update, row):
    """The wrong program that looks at the budget after the round."""
    counts = row.squared_mu <= self.budget_mu**2
    used = row.squared_mu + self._cost(update)
    return jnp.where(counts, update, 0.0), UsedBudget(jnp.where(counts, used, jnp.inf))


def coming_back(self, update, row):
    """Another booking: only what does not fit is left out."""
    used = row.squared_mu + self._cost(update)
    counts = used <= self.budget_mu**2
    return jnp.where(counts, update, 0.0), UsedBudget(jnp.where(counts, used, row.squared_mu))


def to_nearest(self, update, row):
    """The wrong program whose sums are rounded to the nearest float32."""
    share = jnp.minimum(jnp.sum(update * update) / self.clip_norm**2, 1.0)
    used = row.squared_mu + share / self.noise_multiplier**2
    counts = used <= jnp.asarray(self.budget_mu, jnp.float32) ** 2
    return jnp.where(counts, update, 0.0), UsedBudget(jnp.where(counts, used, jnp.inf))


@jax.jit
def sent_of(upload, updates):
    """Of updates `(rounds, size)` of one client those that count."""

    def one(row, update):
        sent, row = upload.counted(update, row)
        return row, sent

    return jax.lax.scan(one, UsedBudget(jnp.float32(0)), updates)[1]


@pytest.mark.parametrize("wrong", [a_round_late, coming_back], ids=lambda wrong: wrong.__name__)
def test_other_bookings_do_not_give_the_rounds_of_the_vectors(wrong):
    def rounds(upload, norms):
        sent = sent_of(upload, jnp.asarray(norms, jnp.float32)[:, None])
        return np.flatnonzero(np.ravel(sent)).tolist()

    z, clip_norm, epsilon, norms, wanted = CASES[0]
    norms = [*norms, [1.0] * 5 + [0.1] * 3]  # of which a later one would fit
    upload = upload_of(z, clip_norm, epsilon)
    right, other = ([rounds(one, mine) for mine in norms] for one in (upload, lying(upload, counted=wrong)))
    assert right == [*map(list, wanted), [0, 1, 2, 3]]
    assert right != other


@pytest.mark.parametrize("wrong", [None, a_round_late, to_nearest])
def test_no_sum_of_squares_is_above_the_budget_whatever_clients_send(wrong):
    """Exactly, in float64: of budgets that so many whole updates use up, too, where a float32 is a hair above."""
    rng, clients, rounds, size = np.random.default_rng(3), 2000, 40, 30
    z, clip = rng.uniform(0.5, 9.0, clients).astype(np.float32), rng.uniform(0.01, 3.0, clients).astype(np.float32)
    lengths = clip[:, None] * np.where(rng.random((clients, 1)) < 0.5, 1.0, rng.random((clients, rounds)))
    updates = rng.normal(size=(clients, rounds, size))
    updates = (updates * (lengths / np.linalg.norm(updates, axis=-1))[..., None]).astype(np.float32)
    costs = (np.minimum(np.linalg.norm(updates.astype(float), axis=-1) / clip[:, None], 1) / z[:, None]) ** 2
    budget = costs[:, : rounds // 2].sum(1) * rng.choice([1.0, 0.37], clients)  # half of them are used up exactly
    upload = IndividualGaussian(clip_norm=1.0, noise_multiplier=1.0, budget_mu=1.0)
    made = upload if wrong is None else lying(upload, counted=wrong)
    made = changed(made, clip_norm=clip, noise_multiplier=z, budget_mu=np.sqrt(budget).astype(np.float32))
    exact = np.minimum(np.sqrt(budget).astype(np.float32).astype(float) ** 2, np.inf)
    counts = np.any(np.asarray(jax.vmap(sent_of)(made, updates)) != 0, axis=-1)
    used = (costs * counts).sum(1)
    assert np.all(used <= exact) == (wrong is None)
    if wrong is None:  # and little is left of it
        first = np.argmin(counts, axis=1)
        after = used + costs[np.arange(clients), first]
        assert np.all((after > exact * (1 - 1e-4)) | counts.all(1))


@pytest.mark.parametrize(
    ("norm", "clip_norm", "size"), [(1e19, 1e19, 10), (1.5e19, 2e19, 10), (5e-19, 1e-12, 10**6), (1e-24, 1.0, 10)]
)
def test_updates_whose_squares_are_no_float32_numbers_cost_what_they_are(norm, clip_norm, size):
    """The sum of squares over S^2 is 0 where either of these leaves float32: a client then never left."""
    update, none = jnp.full(size, norm / size**0.5, jnp.float32), UsedBudget(jnp.float32(0.0))
    upload = IndividualGaussian(clip_norm=clip_norm, noise_multiplier=1e-6, budget_mu=1e9)
    exact = np.sum(np.asarray(update, float) ** 2) / (clip_norm * 1e-6) ** 2
    for counted in (upload.counted, jax.jit(upload.counted), functools.partial(jax.jit(type(upload).counted), upload)):
        used = float(counted(update, none)[1].squared_mu)
        assert exact <= used <= 1.1 * exact + size * 1e-25


def test_updates_that_are_not_finite_are_nothing_and_cost_nothing():
    broken = np.where(np.arange(12) % 2, NORMS, np.inf)
    states = prescribed(UPLOAD, broken)
    first = np.asarray(states[1].uploads.squared_mu)
    np.testing.assert_array_equal(first, 0.0)
    assert np.all(np.isfinite(states[-1].params))


def test_the_event_is_the_budget_or_the_rounds_whichever_is_less():
    def attending(times):
        return Participation(FullBatch(), Adjacency.REPLACE_ONE, 40, times, 1, 5, 5, 0.0, 10)

    mu = 1 / gaussian_noise(2.0, 1e-5)
    upload = upload_of(4.0, 1.0, 2.0)
    least = int((mu * 4.0) ** 2)
    few, many = upload.event(4.0, attending(least)), upload.event(4.0, attending(least + 1))
    assert few == GaussianSteps(4.0, FullBatch(), Adjacency.ZERO_OUT, least, Unit.CLIENT)
    assert many == upload.event(4.0, attending(1000))
    assert epsilon_of(few, 1e-5) < epsilon_of(many, 1e-5) == pytest.approx(2.0, rel=1e-8)


def test_what_clients_have_used_stands_in_no_print():
    state = prescribed(UPLOAD, NORMS[:, :1])[-1]
    assert "UsedBudget(...)" in repr(state)
    assert f"{float(state.uploads.squared_mu[0]):.5g}" not in repr(state)


def test_a_divisor_by_who_counts_gives_another_run():
    right = prescribed(UPLOAD, NORMS)[-1]
    assert not np.isfinite(right.uploads.squared_mu).all()
    wrong = prescribed(UPLOAD, NORMS, aggregate=MeanOfThoseWhoCount())[-1]
    assert not np.allclose(right.params, wrong.params)
