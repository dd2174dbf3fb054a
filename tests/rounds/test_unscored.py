"""Records without finite scores are counted, and told from a training that made them so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick, refusal

import fedjax_dp as fdp
from fedjax_dp import errors

RNG = np.random.default_rng(5)
TOKENS, LABELS = RNG.integers(0, 8, (40, 6)), RNG.integers(0, 2, 40)
STEPS = {"cohort_size": 4, "batch_size": 10, "local_steps": 1, "learning_rate": 0.1}
PRIVATE = {
    "records": fdp.dpnfl(**STEPS, clip_norm=0.5, noise_multiplier=2.0),
    "clients": fdp.dp_fedavg(**STEPS, clip_norm=0.5, noise_multiplier=2.0),
}
PLAIN = fdp.fedavg(**STEPS)


def init(key):
    return {"table": jax.random.normal(key, (9, 4)), "w": jnp.zeros((4, 2))}


def network(params, tokens):
    """A table smaller than the vocabulary: other tokens have no row."""
    return jnp.take(params["table"], tokens, axis=0, mode="fill", fill_value=jnp.nan).mean(0) @ params["w"]


def spoilt(records):
    tokens = TOKENS.copy()
    tokens[:records, 2] = 10
    return tokens


def trained(algorithm, train, test, **options):
    vocabulary = fdp.data.Vocabulary(size=12)
    dataset = fdp.dataset(spoilt(train), LABELS, spoilt(test), LABELS, vocabulary=vocabulary)
    data = fdp.federate(dataset, np.array_split(np.arange(40), 4))
    return fdp.run(algorithm, data, rounds=2, delta=1e-3, model=fdp.model((init, network), data), **options)


@pytest.mark.parametrize(
    ("unit", "where"),
    [
        pytest.param("records", {}, marks=pytest.mark.slow),
        pytest.param("clients", {}, marks=pytest.mark.exhaustive),
        pytest.param("records", {"on_host": True}, marks=pytest.mark.slow),
    ],
)
def test_a_private_run_counts_records_without_a_finite_loss(unit, where):
    with pytest.warns(RuntimeWarning, match="3 of 40 training records have no finite loss before the first") as caught:
        found = trained(PRIVATE[unit], 3, 0, **where)
    assert len(caught) == 1
    assert "token ids outside the model's table" in str(caught[0].message)
    assert "not private, not covered by epsilon" in str(caught[0].message)
    assert np.isfinite(found.guarantee.epsilon)
    last = found.history[-1]
    assert (last.clipped if unit == "records" else last.train_loss) is None


@pytest.mark.parametrize("algorithm", quick([*PRIVATE, "plain"], ["clients"]))
@pytest.mark.parametrize(
    ("train", "test", "what"),
    [pytest.param(40, 0, "40 of 40 training", marks=pytest.mark.slow), (0, 1, "1 of 40 test")],
)
def test_where_all_are_lost_or_a_test_record_the_run_stops_in_one_line(algorithm, train, test, what):
    told = refusal(trained, PRIVATE.get(algorithm, PLAIN), train, test)
    assert f"{what} records without one before the first" in told
    assert "learning rate" not in told


def test_without_privacy_one_lost_record_stops_the_run():
    assert "1 of 40 training records without one" in refusal(
        trained, fdp.fedavg(**STEPS | {"batch_size": None, "batches": "full"}), 1, 0
    )


def test_a_private_run_counts_records_without_a_finite_gradient():
    """The norm of zeros has a score, and no derivative."""

    def bent(params, x):
        return jnp.sqrt(jnp.sum((x * params["w"]) ** 2)) * params["v"]

    def begin(key):
        return {"w": jnp.ones(3), "v": jnp.ones(2)}

    features = np.where(np.arange(40)[:, None] < 5, 0.0, RNG.normal(size=(40, 3)))
    data = fdp.federate(fdp.dataset(features, LABELS, features, LABELS), np.array_split(np.arange(40), 4))
    with pytest.warns(RuntimeWarning, match="5 of 40 training records have a finite loss but no finite gradient"):
        fdp.run(PRIVATE["records"], data, rounds=2, delta=1e-3, model=fdp.model((begin, bent), data))


def test_scores_that_training_lost_are_told_from_those(recwarn):
    """With a rate of 1e30 the noised model overflows: before the first round all was finite."""
    steep = fdp.dpnfl(**STEPS | {"learning_rate": 1e30}, clip_norm=0.5, noise_multiplier=2.0)
    with pytest.raises(errors.DivergedError, match=r"round 0: .*lower the learning rate"):
        trained(steep, 0, 0)


def test_a_run_with_finite_losses_never_looks(monkeypatch, recwarn):
    monkeypatch.setattr("fedjax_dp.rounds.unscored.require_scores", None)
    trained(PRIVATE["records"], 0, 0)
    assert not [one for one in recwarn if "finite" in str(one.message)]
