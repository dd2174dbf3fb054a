"""What shows who takes part, or leaves a client without noise: no amplification is counted, or it is refused."""

import dataclasses

import jax.numpy as jnp
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp.parts.contexts import LocalState
from fedjax_dp.parts.facts import own_methods
from fedjax_dp.pytrees import Wrapper, value

DATA = ragged_data([20] * 20)
STEPS = {"batch_size": 5, "local_steps": 1, "learning_rate": 0.1}
CLIENTS = {"clip_norm": 1.0, "noise_multiplier": 4.0, "cohort_size": 10, **STEPS}


def epsilon(algorithm, data=DATA, **terms):
    return fdp.guarantee(algorithm, data, rounds=3, delta=1e-3, **terms).epsilon


@pytest.mark.parametrize("cohort", ["poisson", "uniform"])
def test_masks_that_are_agreed_on_with_named_members_hide_no_cohort_from_them(cohort):
    plain, secure = (fdp.dp_fedavg(cohort=cohort, secure=how, **CLIENTS) for how in (False, True))
    assert epsilon(secure) > 1.2 * epsilon(plain)
    assert epsilon(secure, view="final_model") == epsilon(plain, view="final_model")  # whose adversary is no member
    assert epsilon(secure, view="final_model", colluders=1) == epsilon(secure)


def test_everybody_who_is_given_the_models_may_be_a_member():
    cohort = fdp.parts.TruncatedPoissonCohort(size=10, most=12)
    algorithm = fdp.dp_fedavg(cohort=cohort, **CLIENTS | {"cohort_size": None})
    assert epsilon(algorithm, view="deployed") == epsilon(algorithm, view="broadcast")


def test_a_client_of_zeros_sends_a_bit_too():
    adaptive = fdp.dp_fedavg(cohort="cyclic", adaptive_clip=True, **CLIENTS | {"noise_multiplier": 1.0})
    assert "a client of zeros sends one too" in refusal(epsilon, adaptive, adjacency="zero-out")
    cohort = fdp.parts.TruncatedPoissonCohort(size=10, most=12)  # whose neighbours are zero-out
    hidden = dataclasses.replace(adaptive, cohort=cohort)
    assert "a client of zeros sends one too" in refusal(epsilon, hidden, view="final_model")


@value
class Keeps(fdp.parts.Correction):
    """Rows of clients, which it does not state."""

    pull = 0.0
    has_client_state = False

    def init(self, run):
        return LocalState(clients=jnp.zeros((DATA.num_clients, 1)))

    def gradient(self, gradient, params, step, client, records):
        return gradient

    def finish(self, update, client, total_rate, extra_gradient):
        return (), jnp.zeros(1)


@value
class Tells(Keeps):
    """How many take part goes to every member."""

    def init(self, run):
        return LocalState()

    def send(self, state, members):
        return jnp.broadcast_to(members.present.sum(), members.ids.shape)


@value
class Counts(Keeps):
    """The server counts the messages, and broadcasts their number."""

    def init(self, run):
        return LocalState(server=jnp.zeros(()))

    def finish(self, update, client, total_rate, extra_gradient):
        return jnp.ones(()), ()

    def absorb(self, server_state, total, num_clients):
        return total


def corrected(correction, cohort):
    plain = fdp.dp_fedavg(cohort=cohort, **CLIENTS)
    return dataclasses.replace(plain, local=dataclasses.replace(plain.local, corrections=(correction,)))


class Around(Wrapper):
    """Its members arrive from inside."""

    base: fdp.parts.Correction


@pytest.mark.parametrize("part", [Tells(), Counts(), value(Around)(base=Tells())], ids=["send", "absorb", "wrapped"])
def test_a_part_of_ones_own_that_hears_who_takes_part_is_refused_under_noise_on_clients(part):
    assert "none under noise on whole clients" in refusal(epsilon, corrected(part, "poisson"))


def test_methods_that_parts_inherit_are_the_projects():
    for entry in (fdp.dp_fedavg, fdp.dp_scaffold, fdp.mr_mtl, fdp.finetune, fdp.ditto, fdp.ppsgd, fdp.dp_ftrl):
        local = entry(cohort_size=10, clip_norm=1.0, **STEPS).local
        assert own_methods((local, *(part for _, part in local.parts)), "init", "send", "exchange", "absorb") == []


def test_rows_that_a_part_of_ones_own_does_not_state_are_rows():
    """They act on later messages, by which a draw that others depend on is seen."""
    plain, secure = (fdp.dp_fedavg(cohort="uniform", secure=how, **CLIENTS) for how in (False, True))
    kept = epsilon(corrected(Keeps(), "uniform"), model=fdp.models.usual_model(DATA))
    assert kept == epsilon(secure) > epsilon(plain)


@value
class Forgets(fdp.parts.OwnModel):
    """A row for each client, which it does not state."""

    has_client_state, state_affects_messages = False, False


def test_own_models_of_clients_are_kept_whatever_they_state():
    plain = fdp.mr_mtl(cohort="uniform", noise_on="clients", **CLIENTS)
    forgets = dataclasses.replace(plain, local=dataclasses.replace(plain.local, models=Forgets()))
    assert epsilon(forgets) == epsilon(plain) > epsilon(fdp.dp_fedavg(cohort="uniform", **CLIENTS))


def own_models(noise, *corrections):
    options = {"clip_norm": 1.0, "noise_multiplier": 4.0, "personal_noise": noise, "cohort_size": 10}
    plain = fdp.local(**options, **STEPS)
    return dataclasses.replace(plain, local=dataclasses.replace(plain.local, corrections=corrections))


def test_own_models_whose_corrections_send_what_they_computed_pay_for_it():
    paid = epsilon(own_models(1), view="deployed")
    assert epsilon(own_models(1), view="uploads") == 0
    assert epsilon(own_models(1, fdp.parts.ControlVariates()), view="uploads") >= paid > 0
    clean = own_models(0, fdp.parts.ControlVariates())
    assert "gradients that corrections send" in refusal(epsilon, clean, view="uploads")


@value
class Sends(Keeps):
    """The update of a model that should stay with its client."""

    def init(self, run):
        return LocalState(server=jnp.zeros(run.size))

    def finish(self, update, client, total_rate, extra_gradient):
        return update, ()

    def absorb(self, server_state, total, num_clients):
        return total


def test_what_should_stay_with_its_client_is_traced_where_no_steps_are_sent():
    line = refusal(epsilon, own_models(1, Sends()), view="uploads", model=fdp.models.usual_model(DATA))
    assert "from what should stay with its client" in line
