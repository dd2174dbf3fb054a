"""Who took part when, as a log says it."""

import re

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp.accounting import (
    ParticipationLog,
    gaussian_epsilon,
    inverse,
    inverse_root_bands,
    pattern_sensitivity,
    sensitivity,
)

# Cases `participation_log` of the specification's participation_vectors.json: clients, rounds, pairs, z, first column
# of C; rounds, least gap, sensitivity and epsilon of each client (unit client, replace-one, delta 1e-5; 40 digits).
CASES = [
    (4, 8, [[0, 0], [0, 1], [1, 2], [2, 0], [3, 1], [4, 0], [5, 2], [7, 0]], 5.0, [1.0],
     [4, 2, 2, 0], [2, 3, 4, None], [2.0, 2**0.5, 2**0.5, 0.0],
     [3.3869331861562646, 2.288386564649433, 2.288386564649433, 0.0]),
    (3, 9, [[0, 0], [3, 0], [6, 0], [1, 1], [2, 1], [8, 2]], 4.0, [1.0, 0.5, 0.375],
     [3, 2, 1], [3, 1, None], [2.042516829796024, 2.038688303787511, 1.0],
     [4.4851706266299685, 4.475424948154754, 1.9930914044151178]),
    (2, 6, [[0, 0], [1, 0], [2, 0], [5, 0]], 6.0, [1.0, -0.4],
     [4, 0], [1, None], [2.4657656011875906, 0.0], [3.4931682245856965, 0.0]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=["white", "correlated", "negative"])
def test_a_log_says_what_each_client_moves(case):
    clients, rounds, pairs, z, column, counts, gaps, sensitivities, epsilons = case
    log = ParticipationLog.of(np.array(pairs), rounds, clients)
    assert log.counts.tolist() == counts
    assert log.least_gaps == gaps
    whole = np.append(column, np.zeros(rounds - len(column)))
    found = [pattern_sensitivity(whole, pattern) for pattern in log.patterns]
    assert found == pytest.approx(sensitivities, rel=1e-8)
    assert [gaussian_epsilon(1e-5, z / (2 * s)) if s else 0.0 for s in found] == pytest.approx(epsilons, rel=1e-7)


def test_the_very_pattern_moves_no_more_than_the_worst_of_its_kind():
    """And the worst of them, at equal distances from round 0, exactly as much."""
    column, rng = inverse(inverse_root_bands(6), 40), np.random.default_rng(0)
    worst = sensitivity(column, 4, 5)
    assert pattern_sensitivity(column, (0, 5, 10, 15)) == pytest.approx(worst, rel=1e-12)
    for _ in range(50):
        pattern = np.cumsum([rng.integers(0, 10), *rng.integers(5, 10, 3)])
        assert pattern_sensitivity(column, pattern) <= worst * (1 + 1e-12)


def test_a_log_is_read_from_a_file(tmp_path):
    text = "round,client\n2,0\n0,0\n0, 3\n"
    (tmp_path / "log.csv").write_text(text, encoding="utf-8-sig")  # as spreadsheets write it, with a mark in front
    log = ParticipationLog.read(tmp_path / "log.csv")
    assert (log.num_rounds, log.num_clients, log.counts.tolist()) == (3, 4, [2, 0, 0, 1])
    assert log.patterns == [(0, 2), (), (), (0,)]
    assert ParticipationLog.read(tmp_path / "log.csv", 10, 5).counts.tolist() == [2, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("round,client\n0,5\n", "client must be from 0 to 3, got 5"),
        ("round,client\n8,0\n", "round must be from 0 to 7, got 8"),
        ("round,client\n1,2\n1,2\n", "client 2 twice in round 1"),
        ("round,client\n", "no pairs"),
        ("", "header"),
        ("client,round\n0,0\n", "header round,client"),
        ("round,client\n0,a\n", "line 2.*a round and a client, whole numbers"),
        ("round,client\n-1,0\n", "line 2.*whole numbers"),
        ("round,client\n0,0,1\n", "line 2"),
        ("round,client\n0," + "9" * 30 + "\n", "line 2"),
    ],
)
def test_a_log_that_cannot_be_is_refused_in_one_line(tmp_path, text, words):
    (tmp_path / "log.csv").write_text(text)
    assert re.search(words, refusal(ParticipationLog.read, tmp_path / "log.csv", 8, 4))
    assert "an existing CSV file" in refusal(ParticipationLog.read, tmp_path / "none.csv")
