"""Privacy properties that parts declare. They are read from the exact class: a subclass does not inherit a proof.

The Guarantee relies on the members of FACTS. A part must declare what no program can check, such as that a cohort uses
no records; `inspection` checks all others. A property that follows from others has a conservative default in the
Protocol, which holds for classes that do not override it.
"""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_dp import errors, validation
from fedjax_dp.parts.aggregation import Aggregate
from fedjax_dp.parts.batches import Batches
from fedjax_dp.parts.client_models import ClientModels
from fedjax_dp.parts.client_privacy import SharedNoise, UpdatePrivatizer
from fedjax_dp.parts.clipping import Bound
from fedjax_dp.parts.cohorts import Cohort
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.parts.local_training import LocalTraining, Rule
from fedjax_dp.parts.noise import NoiseSource
from fedjax_dp.parts.record_privacy import Privatizer
from fedjax_dp.parts.transport import Transport

T = TypeVar("T", bound=type)
SHORT = 16  # numbers of a list too short to hold records

SLOTS: dict[str, type] = {
    "cohort": Cohort,
    "batches": Batches,
    "privatizer": Privatizer,
    "bound": Bound,
    "noise source": NoiseSource,
    "correction": Correction,  # `inspection.flow` checks its other members
    "upload": UpdatePrivatizer,
    "estimator": Aggregate,
    "transport": Transport,
    "local": LocalTraining,
    "local rule": Rule,
    "client models": ClientModels,  # `inspection.flow` checks its members
}


HOLDS_NONE = "it holds none of the clients' records, nor anything made of them, and treats each record alone"
TRUST = {  # what is trusted of user-defined parts, by slot
    "cohort": "who takes part depends on no records",
    "batches": "who is in a batch depends on no more than a client's number of records",
    "privatizer": "it releases what its event states, and holds no records itself",
    "bound": "no neighbours that were not tried move it by more than its noise_unit",
    "noise source": "its noise is fresh and normal",
    "correction": "it holds no records itself",
    "local": "it runs the privatized steps on the drawn batches with independent noise in each, neither removes noise "
    "nor reveals its keys, and holds no records itself",
    "local rule": "it holds no records itself",
    "client models": "it holds no records itself",
    "upload": "it bounds and noises everything that a client sends",
    "estimator": "no client moves it by more than its reach",
    "transport": "nobody sees more than it states",
}


def _members_with(
    protocol: type, begin: tuple[str, ...] = ("Required privacy property.", "Derived property, conservative default.")
) -> tuple[str, ...]:
    """The members of a Protocol whose docstrings begin with `begin`."""
    return tuple(
        name
        for name, member in validation.members(protocol).items()
        if (getattr(member, "__doc__", None) or "").startswith(begin)
    )


FACTS = {slot: _members_with(protocol) for slot, protocol in SLOTS.items()}
FOLLOWING = {
    slot: _members_with(protocol, ("Derived property, conservative default.",)) for slot, protocol in SLOTS.items()
}


def restates(*bases: type) -> Callable[[T], T]:
    """Class decorator: the class declares the same privacy properties as these bases.

    For a subclass whose changes do not affect these properties; the Guarantee names the class as trusted.
    """
    names = {name for facts in FACTS.values() for name in facts}

    def restate(cls: T) -> T:
        for base in bases:
            for name in sorted(names - own_names(cls)):
                member = inspect.getattr_static(base, name, None)
                if member is not None or name in dir(base):
                    setattr(cls, name, member)
        return cls

    return restate


def own_names(cls: type) -> set[str]:
    """Members and fields that the class itself defines."""
    return {*vars(cls), *inspect.get_annotations(cls)}


FORMER_NAMES = {  # of members, refused because nothing reads them: the cost of a cohort's draws would not be counted
    "cohort": {
        "paid": "setup_event",
        "prior_event": "setup_event",
        "drawn": "is_random",
        "amplified": "amplification",
        "resized": "with_size",
    },
    "upload": {"amplified": "is_amplified"},
    "estimator": {"separate": "needs_individual_updates"},
    "client models": {"trained": "local_params"},
}

_COMPLETE: set[tuple[str, type]] = set()  # slots, and classes that declare all their required properties


def require_stated(slot: str, part: Any) -> None:
    """Refuse a part whose exact class does not declare all required privacy properties of its slot."""
    cls = type(part)
    if (slot, cls) in _COMPLETE:
        return
    missing = [name for name in FACTS[slot] if name not in own_names(cls) and not _follows(slot, cls, name)]
    if missing:
        inherited = [name for name in missing if hasattr(part, name)]
        why = " (what a base class states is not believed of its subclasses)" if inherited else ""
        raise errors.refuse(
            slot,
            cls.__name__,
            f"a class that itself states {', '.join(missing)}{why}",
            f"implement {missing[0]} in {cls.__name__}; what each fact means stands at the Protocol of the slot",
        )
    _COMPLETE.add((slot, cls))


def _follows(slot: str, cls: type, name: str) -> bool:
    """Whether a class keeps the Protocol's default of a derived property."""
    return name in FOLLOWING[slot] and inspect.getattr_static(cls, name, None) is validation.members(SLOTS[slot])[name]


def require_present(algorithm: Any) -> None:
    """Refuse parts that lack a member which the rounds or the accountants read, or use a former name for it."""
    for slot, part in parts_of(algorithm):
        for former, name in FORMER_NAMES.get(slot, {}).items():
            if hasattr(part, former):
                got, wanted = f"{type(part).__name__} with {former}", f"one that states it as {name}"
                raise errors.refuse(slot, got, wanted, f"rename {former} in {type(part).__name__}")
        errors.require_choice("slot of a part of the local steps", slot, SLOTS)
        validation.require_part(slot, part, SLOTS[slot])
    if algorithm.upload.unit is not None and algorithm.upload.shared_noise:
        validation.require_part("upload", algorithm.upload, SharedNoise)


def require_facts(algorithm: Any) -> None:
    """Refuse an algorithm with a part whose exact class does not declare a required privacy property."""
    for slot, part in parts_of(algorithm):
        if slot != "correction" or algorithm.local.privatizer.on_upload:  # elsewhere nothing has to be a contraction
            require_stated(slot, part)


def of_the_project(part: Any) -> bool:
    """Whether this is a class or function (or an instance of a class) that this project really defines."""
    kind = part if inspect.isclass(part) or inspect.isfunction(part) else type(part)
    if not kind.__module__.startswith("fedjax_dp."):
        return False
    known: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        known = getattr(known, name, None)
    return known is kind


def own_methods(parts: Iterable[Any], *names: str) -> list[str]:
    """The methods of these names that are not the project's, such as `Drift.absorb`, however a part came by them."""
    found = []
    for part in parts:
        for name in names:
            method = getattr(part, name, None)
            if method is not None and not of_the_project(getattr(method, "__func__", method)):
                found.append(f"{type(part).__name__}.{name}")
    return found


def parts_of(algorithm: Any) -> Iterator[tuple[str, Any]]:
    """The (slot, part) pairs of an algorithm on which its epsilon relies, including parts inside of parts."""
    local = algorithm.local
    yield from _with_inner("cohort", algorithm.cohort)
    yield "local", local
    for slot, part in local.parts:
        yield from _with_inner(slot, part)
    yield from _with_inner("privatizer", local.privatizer)
    yield "batches", local.batches
    yield from _with_inner("upload", algorithm.upload)
    yield from _with_inner("estimator", algorithm.aggregate)
    yield "transport", algorithm.transport


def things_of(name: str, thing: Any, inside: bool = False, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """All values, classes and functions inside of `thing`, each once, with the names of the fields that hold them.

    Functions contain what they close over, their defaults and what they are bound to. Arrays and long lists are listed
    if they are inside of functions or of classes outside of the project (`inside`).
    """
    seen = set() if seen is None else seen
    if inside and _is_data(thing):
        yield name, thing
    elif isinstance(thing, dict | tuple | list):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from things_of(name, each, inside, seen)
    elif isinstance(thing, functools.partial):
        yield from things_of(name, (thing.func, thing.args, thing.keywords), True, seen)
    elif (dataclasses.is_dataclass(thing) or callable(thing)) and id(thing) not in seen:
        seen.add(id(thing))
        yield name, thing
        if isinstance(thing, type):
            return
        if dataclasses.is_dataclass(thing):
            for field in dataclasses.fields(thing):
                yield from things_of(
                    field.name, getattr(thing, field.name, None), inside or not of_the_project(thing), seen
                )
        else:
            yield from things_of(name, _contents_of(thing), True, seen)


def _contents_of(function: Any) -> list[Any]:
    """What a function closes over, wraps, has as defaults and is bound to."""
    names = ("__wrapped__", "__defaults__", "__kwdefaults__", "__self__")
    held = [getattr(function, name, None) for name in names]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty one
            held.append(cell.cell_contents)
    return held


def _is_data(thing: Any) -> bool:
    """Whether this may hold records: an array, or a long list of numbers."""
    if isinstance(thing, list | tuple):
        return _count(thing) > SHORT
    return isinstance(thing, np.ndarray | jax.Array) and thing.size > 1


def _count(thing: Any) -> int:
    return sum(map(_count, thing)) if isinstance(thing, list | tuple) else isinstance(thing, float | int)


def of_known_origin(thing: Any, *libraries: str) -> bool:
    """Whether this comes from the project or from a library without records: optax, JAX or one of `libraries`.

    A function belongs to the module in which it was written, even if a wrapper names another.
    """
    if _is_data(thing):
        return False
    written = getattr(thing, "__globals__", None)
    home = written.get("__name__", "") if isinstance(written, dict) else getattr(thing, "__module__", "")
    return of_the_project(thing) or str(home).startswith(tuple(f"{name}." for name in ("optax", "jax", *libraries)))


_INNER = {"cohort": "cohort", "bound": "bound", "source": "noise source"}


def _with_inner(slot: str, part: Any) -> Iterator[tuple[str, Any]]:
    yield slot, part
    fields = {field.name for field in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else set()
    for name in sorted(fields & set(_INNER)):
        yield from _with_inner(_INNER[name], getattr(part, name))


def _name_of(thing: Any) -> str:
    """The name of a class, a function or a value's class; for arrays, whoever set them."""
    if isinstance(thing, dict | tuple | list) or hasattr(thing, "__array__"):
        return "whoever set its numbers"
    return str(getattr(thing, "__name__", type(thing).__name__))


def _trust_in(slot: str, part: Any) -> str:
    """What is trusted of a part; an estimator without a sensitivity claims no reach."""
    if slot != "estimator":
        return TRUST[slot]
    try:
        bounded = part.sensitivity(np.ones(2), np.ones(2), 1) is not None
    except Exception:  # the examination refuses it, where sensitivity counts
        bounded = True
    return TRUST[slot] if bounded else TRUST["correction"]


def trusted_parts(algorithm: Any) -> list[str]:
    """The parts that the Guarantee trusts: one line for each user-defined part."""
    words = [
        f"{type(part).__name__} ({slot}) is trusted: {_trust_in(slot, part)}"
        for slot, part in parts_of(algorithm)
        if not of_the_project(part)
    ]
    known = {id(part) for _, part in parts_of(algorithm)}
    words += [
        f"{_name_of(thing)} ({name}) is trusted: it holds no records itself"
        for name, thing in things_of("algorithm", algorithm)
        if id(thing) not in known and name != "weigh" and not of_known_origin(thing)
    ]
    weigh = getattr(algorithm.aggregate, "weigh", None)
    if weigh is not None and not of_the_project(weigh):
        words.append(f"{getattr(weigh, '__name__', 'the weights')} is trusted: {TRUST['estimator']}")
    if getattr(algorithm.cohort.base, "public", False):
        words.append("the probabilities of clients are trusted to depend on public numbers alone")
    return list(dict.fromkeys(words))


def trusted_model(model: Any) -> list[str]:
    """The line of the Guarantee that trusts a model, if it or a part of it is not from the project or Flax."""
    things = [thing for _, thing in things_of("model", model)]
    if all(of_known_origin(thing, "flax") for thing in things):
        return []
    network = getattr(model, "network", None) if of_the_project(model) else None
    name = type(model).__name__ if network is None else network.name
    return [f"{name} (model) is trusted: {HOLDS_NONE}"]
