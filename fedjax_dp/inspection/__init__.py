"""Parts that are not the project's own are examined, on numbers, before an epsilon is printed.

A fact is believed only as far as nothing contradicts it: the draws of a cohort or of batches are compared with the law
that is stated, the noise with its standard deviation, neighbours with the sensitivity, weights with their reach. What
no number shows (that a part holds no records itself) stands in the Guarantee as somebody's word. The project's own
parts go through the same examiners in its tests instead.
"""

from collections.abc import Callable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.accounting import Unit
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import draws, local_steps, masks, steps, updates
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.transport import Transport
from fedjax_dp.rounds.algorithm import Algorithm

WORDS = {
    "cohort": "who takes part depends on no records",
    "batches": "who is in a batch depends on no more than a client's number of records",
    "privatizer": "it releases what its event says, and holds no records itself",
    "bound": "no neighbours that were not tried move it by more than its noise_unit",
    "noise source": "its noise is fresh and normal",
    "correction": "it holds no records itself",
    "local": "it runs the privatized steps on the batches that are drawn, with noise of their own everywhere, neither "
    "takes noise back nor tells its keys, and holds no records itself",
    "local rule": "it holds no records itself",
    "client models": "it holds no records itself",
    "upload": "it bounds and noises whatever a client sends",
    "estimator": "no client moves it by more than its reach",
    "transport": "nobody sees more than it says",
}

OF_RECORDS: dict[str, Callable[..., None]] = {
    "batches": draws.examine_batches,
    "bound": steps.examine_bound,
    "privatizer": steps.examine_privatizer,
    "correction": steps.examine_correction,
    "local": local_steps.examine_local,
}


def examine_transport(
    transport: Transport, algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, summed: bool
) -> None:
    """What arrives where the sum is `summed`, and what leaves each member where that is said to be secret."""
    if summed:
        updates.examine_transport(transport, algorithm, data, rounds, seed)
    if transport.secret:
        masks.examine_masks(transport, algorithm.cohort.capacity(data.num_clients))


def _name_of(thing: Any) -> str:
    """Of a class, a function or the class of a value; of an array, who set it."""
    if isinstance(thing, dict | tuple | list) or hasattr(thing, "__array__"):
        return "whoever set its numbers"
    return str(getattr(thing, "__name__", type(thing).__name__))


def words_of(algorithm: Algorithm) -> list[str]:
    """On whose word the Guarantee rests: one line for each part that is not the project's own."""
    words = [
        f"on the word of {type(part).__name__} ({slot}): {WORDS[slot]}"
        for slot, part in facts.parts_of(algorithm)
        if not facts.of_the_project(part)
    ]
    known = {id(part) for _, part in facts.parts_of(algorithm)}
    words += [
        f"on the word of {_name_of(thing)} ({name}): it holds no records itself"
        for name, thing in facts.things_of("algorithm", algorithm)
        if id(thing) not in known and name != "weigh" and not facts.of_known_origin(thing)
    ]
    weigh = getattr(algorithm.aggregate, "weigh", None)
    if weigh is not None and not facts.of_the_project(weigh):
        words.append(f"on the word of {getattr(weigh, '__name__', 'the weights')}: {WORDS['estimator']}")
    if getattr(algorithm.cohort.base, "public", False):
        words.append("on the word of whoever gave them, the probabilities of clients are made of public numbers alone")
    return list(dict.fromkeys(words))


def examine(
    slot: str, part: Any, algorithm: Algorithm, data: FederatedData, model: Model, rounds: int, seed: int
) -> None:
    """Raise AssertionError where some number contradicts what a part in this slot of the algorithm states of itself."""
    by_client = algorithm.upload.unit is Unit.CLIENT
    if slot == "cohort":
        draws.examine_cohort(part, algorithm, data, rounds, seed)
    elif slot == "noise source":
        steps.examine_source(part, algorithm, data, model, rounds)
    elif by_client and slot == "upload":
        updates.examine_upload(part, algorithm, data, model, rounds)
    elif slot == "transport":
        examine_transport(part, algorithm, data, rounds, seed, by_client)
    elif by_client and slot == "estimator":
        updates.examine_estimator(part, algorithm, data, rounds, seed)
    elif slot in OF_RECORDS:
        of_records = local_steps.examine_alone if by_client else OF_RECORDS[slot]
        of_records(part, algorithm, data, model, rounds)


def require_true(algorithm: Algorithm, data: FederatedData, model: Model, rounds: int, seed: int) -> None:
    """Refuse parts, other than the project's own, of which some number contradicts what they state.

    Statistical assertions fail for a true part with probability 1e-6 each.
    """
    if algorithm.upload.shared_noise and not facts.of_the_project(algorithm.transport):
        raise errors.refuse(
            "transport",
            type(algorithm.transport).__name__,
            "SecureSum for shares of noise",
            "what another one lets be seen is not known",
        )
    for slot, part in facts.parts_of(algorithm):
        weighed = slot == "estimator" and not facts.of_the_project(getattr(part, "weigh", part))
        if facts.of_the_project(part) and not weighed:
            continue
        name = f"{slot} {type(part).__name__}"
        with (
            errors.refusing(name, _failed, "one that can be examined", "see its Protocol for shapes and types"),
            errors.refusing(name, str, "what it states of itself", "correct the part or its facts", AssertionError),
        ):
            examine(slot, part, algorithm, data, model, rounds, seed)


def _failed(error: Exception) -> str:
    return f"one that fails under vmap and jit: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
