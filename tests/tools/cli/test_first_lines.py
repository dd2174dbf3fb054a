"""What a run says before its first round of what nobody chose."""

import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp.experiments import configured
from fedjax_dp.privacy import PrivacyTerms
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import run


@pytest.mark.slow
def test_defaults_of_a_paper_and_clients_that_no_sampling_hides_are_named(capsys):
    assert cli.main(["run", "--rounds", "1", "--batch-size", "150", "--noise-multiplier", "2"]) == 0
    lines = capsys.readouterr().err
    assert "computed the epsilon" in lines
    assert "found the least noise" not in lines
    assert "dpnfl uses --schedule inverse_sqrt, --l2 0.001 by default" in lines
    assert "10 of 10 clients with at most 150 records use all of them in every step" in lines
    for remedy in ("--batches epochs", "--batch-size", "--epsilon", "--min-records 151"):
        assert remedy in lines


def test_a_remedy_for_small_clients_is_none_that_the_run_has_already():
    """A budget has found noise for each client: no epsilon can fall, and `--epsilon` is no advice."""
    x, y = np.ones((12, 2), np.float32), np.arange(12) % 2
    data = fdp.federate(fdp.dataset(x, y, x, y), [range(9), range(9, 12)])
    algorithm = fdp.dpnfl(
        cohort_size=2, batch_size=4, local_steps=1, learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0
    )
    said = {}
    for epsilon in (None, 2.0):
        terms = PrivacyTerms(epsilon=epsilon, delta=1e-3)
        planned = plan_run(algorithm, data, rounds=2, seed=0, model=None, terms=terms)
        (said[epsilon],) = configured._small_clients(planned)
        assert "--min-records 5" in said[epsilon]
    assert "by --epsilon" in said[None]
    assert said[None].endswith("would lower the largest epsilon")
    assert "--epsilon" not in said[2.0]
    assert said[2.0].endswith("would lower the noise that the budget needs")


@pytest.mark.parametrize(
    ("algorithm", "size", "words"),
    [
        (fdp.dp_fedavg_record, 10, []),
        (fdp.fedavg, 150, ["10 clients with fewer than 150 records use all in every batch"]),
    ],
)
def test_plain_steps_of_large_clients_need_no_word(algorithm, size, words, data):
    noise = {} if algorithm is fdp.fedavg else {"clip_norm": 1.0, "noise_multiplier": 2.0}
    plain = algorithm(cohort_size=2, batch_size=size, local_steps=1, learning_rate=0.1, **noise)
    planned = plan_run(plain, data, rounds=1, seed=0, model=None, terms=PrivacyTerms(delta=1e-3))
    assert configured._small_clients(planned) == words


def test_noise_and_clip_norm_that_change_are_said_with_where_they_end():
    multiplier = {"least": 2.0, "median": 2.0, "largest": 2.0}
    result = {"guarantee": {"noise_multiplier": multiplier}, "history": [{"learnt_clip_norm": None}]}
    noise = {"noise_schedule": "linear", "noise_end": 0.5}
    assert run._noise(result | {"config": {"clip_norm": 1.0}}) == [("noise", "multiplier 2, clip norm 1")]
    ((_, words),) = run._noise(result | {"config": {"clip_norm": 1.0, **noise}})
    assert words == "multiplier 2 at first, linear to 0.5 times that, clip norm 1"
    ((_, words),) = run._noise(result | {"config": {"clip_norm": 1.0, "clip_schedule": "list", "clip_factors": "1,2"}})
    assert words == "multiplier 2, clip norm 1 at first, times 1,2 by round"
