"""No epsilon is below what two neighbours of a few members prove, whose outputs are written down as mixtures.

Members hold one number in [-1, 1] each. A sum is drawn, divided and noised as a description says, once; the chance of
each draw is counted out, and the gap between the two laws integrated. None of the accounting is used.
"""

import collections
import itertools
import math

import numpy as np
import pytest
import scipy
from test_judgement import CENTRAL, RECORD, replace

from fedjax_dp.accounting import Adjacency
from fedjax_dp.tools.deployments import check

DELTA, SIZE = 0.01, 2
GRID = np.linspace(-15, 15, 6_001)
DRAWS = ("all", "poisson", "fixed", "with-replacement", "shuffled")


def draws(law, count, rate):
    """(chance, members of the sum) for `count` members, in draws that are kept apart if their order is public."""
    members = range(count)
    if law == "all":
        return [(1.0, tuple(members))]
    if law == "poisson":
        chosen = [subset for size in range(count + 1) for subset in itertools.combinations(members, size)]
        return [(rate ** len(one) * (1 - rate) ** (count - len(one)), one) for one in chosen]
    if law == "fixed":
        chosen = list(itertools.combinations(members, SIZE))
        return [(1 / len(chosen), one) for one in chosen]
    return [(count**-SIZE, one) for one in itertools.product(members, repeat=SIZE)]


def law_of(values, options):
    """{what is public of the draw: [(chance, mean, standard deviation)]} of one release."""
    law, on, divisor, last, std, rate, constant = options
    apart = collections.defaultdict(list)
    if law == "shuffled":  # in an order that is public: member 0 stands last, in the rest if that is kept
        count = len(values)
        batch = (0,) if count % SIZE and last == "keep" else (0, 1)
        chosen = [(1.0, batch)]
    else:
        chosen = draws(law, len(values), rate)
    for chance, members in chosen:
        by = constant if divisor == "fixed" else len(members)
        total = sum(values[member] for member in members)
        public = len(members) if divisor == "count" else 0
        if by:
            apart[public].append((chance, total / by, std / by if on == "sum" else std))
    return apart


def gap(first, second, epsilon):
    """The delta at which the laws differ, what is public of the draw seen as well."""
    total = 0.0
    for public in first.keys() | second.keys():
        one, two = (
            sum((p * scipy.stats.norm.pdf(GRID, mean, std) for p, mean, std in mixture), 0 * GRID)
            for mixture in (first[public], second[public])
        )
        total += np.trapezoid(np.maximum(one - math.exp(epsilon) * two, 0), GRID)
    return total


def neighbours(adjacency, count):
    """Pairs of values, of which the first member is exchanged or is not there."""
    for others in itertools.product((-1.0, 0.0, 1.0), repeat=count - 1):
        if adjacency is Adjacency.REPLACE_ONE:
            yield (1.0, *others), (-1.0, *others)
        else:
            yield (1.0, *others), others
            yield others, (1.0, *others)


def described(unit, options, count):
    law, on, divisor, last, std, rate, _ = options
    sizes = {"rate": rate, "of": count} if law == "poisson" else {"size": SIZE, "of": count}
    usual = {"delta": DELTA, "rounds": 1, "clip__bound": 1.0, "noise__std": std, "noise__on": on}
    if unit == "record":
        members = {"law": "full" if law == "all" else law, **sizes, "steps": 1}
        members |= {"last": last} if law == "shuffled" else {}
        return replace(RECORD, **usual, records=members, weights={"denominator": divisor})
    members = {"law": law, **({"of": count} if law == "all" else sizes)}
    smallest = {"poisson": 1, "all": count}.get(law, SIZE)
    largest = 1 / (rate * count) if law == "poisson" and divisor == "fixed" else 1 / smallest
    weights = {"denominator": divisor} | ({"largest": min(largest, 1.0)} if on == "mean" else {})
    return replace(CENTRAL, **usual, clients=members, weights=weights)


KINDS = [
    (unit, law, on, divisor, last)
    for unit, law, on, divisor, last in itertools.product(
        ("record", "client"), DRAWS, ("sum", "mean"), ("fixed", "count"), ("drop", "keep")
    )
    if (law == "shuffled" or last == "drop") and not (unit == "client" and law == "shuffled")
]


@pytest.mark.parametrize(("unit", "law", "on", "divisor", "last"), KINDS)
def test_no_pair_of_neighbours_shows_more_than_is_printed(unit, law, on, divisor, last):
    count, rate = 3, 2 / 3
    for std in (0.5, 1.5):
        constant = count if law == "all" else SIZE
        options = (law, on, divisor, last, std, rate, constant)
        checked = check(described(unit, options, count)).mechanism
        pairs = [(law_of(one, options), law_of(two, options)) for one, two in neighbours(checked.adjacency, count)]
        worst = max(gap(one, two, checked.epsilon) for one, two in pairs)
        assert worst <= DELTA * (1 + 2e-3)
