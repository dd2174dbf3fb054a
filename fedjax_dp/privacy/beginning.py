"""What the values that training begins with hold of the clients' records, as far as it is known.

An epsilon is of the training alone. Where its beginning was made of the same records there is none: both releases add
up. What cannot be known to be of other records is closed: it is taken for these, or the Guarantee begins by saying so.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedjax_dp.data.record_hashes import hashes_of, shared
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Origin
from fedjax_dp.models.origins import RUN, Phase, hashes_in

COINCIDENCE = 0.01  # of a start's records that a word may explain away if they are among the clients' too
OF = "of the training alone, which begins with"
SAY_SO = "say that it holds none of these clients' records (start_private false) if that is so"


class Beginning(NamedTuple):
    """What a Guarantee says of the values that training begins with."""

    reason: str | None = None  # why there is no epsilon
    caveat: str | None = None  # what has to be read before the number
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _Sign(NamedTuple):
    """What speaks for a start being made of these clients' records, and whether a word to the contrary outweighs it."""

    reason: str
    deniable: bool = True


class _Records:
    """The clients' records, hashed once if anybody asks."""

    def __init__(self, data: FederatedData) -> None:
        self.data, self.name = data, data.name
        self._hashes: np.ndarray | None = None

    def shared(self, kept: np.ndarray) -> int:
        if self._hashes is None:
            self._hashes = hashes_of(self.data)
        return shared(kept, self._hashes)


def beginning_of(origins: Iterable[Origin], data: FederatedData) -> Beginning:
    """What is known of all of these values: the first reason against an epsilon, or all that has to be said."""
    records = _Records(data)
    parts = [_one(origin, records) for origin in origins]
    caveats = [part.caveat for part in parts if part.caveat]
    return Beginning(
        next((part.reason for part in parts if part.reason), None),
        "; ".join(caveats) or None,
        tuple(line for part in parts for line in part.assumptions),
        tuple(line for part in parts for line in part.warnings),
    )


def _one(origin: Origin, records: _Records) -> Beginning:
    if origin.public is False:
        return Beginning(f"training begins with {origin.name}, which was trained on records of these clients")
    signs = [sign for phase in origin.phases if (sign := _sign(phase, origin, records))]
    if origin.ledger and origin.trained_on is not None and _names(origin.trained_on, records.name):
        signs.append(_Sign(f"said to be trained on {origin.trained_on}, as these clients' data are called"))
    signs.sort(key=lambda sign: sign.deniable)
    if signs and not (origin.public and signs[0].deniable):
        remedy = f": {SAY_SO}" if signs[0].deniable else ""
        return Beginning(f"training begins with {origin.name}, {signs[0].reason}{remedy}")
    compared = bool(origin.ledger) and origin.public is None
    word = "treated as public" if compared else "public on the word of whoever runs it"
    if signs:
        return Beginning(caveat=f"{OF} {origin}, {word} although {signs[0].reason}")
    unnamed = next((phase["name"] for phase in origin.phases if _unnamed(phase)), None)
    if unnamed is not None and origin.trained_on is None and origin.public is None:
        through = "" if unnamed == origin.name else f", through {unnamed}"
        return Beginning(
            caveat=f"{OF} parameters of unknown origin, {origin}{through}, that may hold records of these clients",
            warnings=(
                f"nobody says what {unnamed} was trained on: start_data names it, start_private says whether these "
                "clients' records are in it; a network that is to begin at random is given as a function of a key",
            ),
        )
    made_of = "" if origin.trained_on else ", ".join(filter(None, map(_made_of, origin.phases)))
    made_of = f", made by {made_of}," if made_of else ","
    apart = ", as none of its records that can be compared is one of these clients'" if compared else ""
    return Beginning(assumptions=(f"training begins with {origin}{made_of} which is {word}{apart}",))


def _sign(phase: Phase, origin: Origin, records: _Records) -> _Sign | None:
    """What speaks for a phase of training having seen these clients' records."""
    if phase["kind"] != RUN:
        words = phase["trained_on"]
        named = words is not None and _names(words, records.name)
        through = f"made of {phase['name']}, " if origin.ledger else ""
        return _Sign(f"{through}said to be trained on {words}, as these clients' data are called") if named else None
    kept, run = hashes_in(phase), f"made by {_made_of(phase)}"
    if kept is None or not len(kept):
        return _Sign(f"{run}, of whose records no hashes are at hand")
    if phase["records"].get("features") != math.prod(records.data.record_shape):
        return _Sign(f"{run}, whose records have another shape and cannot be compared with these clients'")
    both = records.shared(kept)
    if both:
        shared = f"{run}, and {both:,} of {len(kept):,} hashes of its records are of these clients' too"
        return _Sign(f"{shared}: {_adds_up(phase)}", both <= COINCIDENCE * len(kept))
    if records.name and phase["dataset"] == records.name:
        return _Sign(f"{run}, as these clients' data are called: {_adds_up(phase)}")
    return None


def _adds_up(phase: Phase) -> str:
    if phase["epsilon"] is None:
        return "that run had no privacy"
    return f"its epsilon {phase['epsilon']:.4g} and this run's add up, and composing them is not built yet"


def _unnamed(phase: Phase) -> bool:
    return phase["kind"] != RUN and phase["trained_on"] is None


def _made_of(phase: Phase) -> str:
    if phase["kind"] == RUN:
        return f"a run on {phase['dataset'] or 'data without a name'}"
    return f"{phase['name']}, trained on {phase['trained_on']}" if phase["trained_on"] else ""


def _names(words: str, name: str) -> bool:
    """Whether words speak of a data set by its name, or by the last part of it."""
    parts = {name, name.rpartition(":")[2], name.rpartition("/")[2]} - {""}
    return any(re.search(rf"(?<![\w:]){re.escape(part)}(?![\w:])", words, re.IGNORECASE) for part in parts)
