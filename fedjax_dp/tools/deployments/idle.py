"""Facts that no rule and no account has read: each has a reason to change nothing, or is refused."""

from collections.abc import Collection, Iterator
from typing import Any

from fedjax_dp import errors
from fedjax_dp.tools.deployments.description import Deployment, Facts
from fedjax_dp.tools.deployments.mechanism import counts, rest_of

PRINTED = ("also", "assumes", "ignored", "source")  # are shown as they stand


def stated_facts(facts: Facts) -> Iterator[tuple[str, Any]]:
    """What a description says beyond defaults, by the names of its facts."""
    for name, option in facts.facts().items():
        value = getattr(facts, name)
        if facts.where + name in PRINTED or value is None or value == option.default:
            continue
        if isinstance(value, Facts):
            yield from stated_facts(value)
        else:
            yield facts.where + name, value


def require_use(deployment: Deployment, seen: Collection[str], replaced: Collection[str] = ()) -> tuple[str, ...]:
    """A line for each fact that changes nothing, with its reason.

    seen      facts that a rule has read, or the account;
    replaced  facts, or groups of them, in the place of which a log stands.
    Raises: ConfigurationError for facts that neither were read nor have a reason to change nothing, all at once.
    """
    unread = [(name, value) for name, value in stated_facts(deployment) if name not in seen]
    reasons = {name: _reason(deployment, name, replaced) for name, _ in unread}
    if useless := [(name, value) for name, value in unread if reasons[name] is None]:
        names, values = ", ".join(name for name, _ in useless), ", ".join(repr(value) for _, value in useless)
        wanted = "left out, as nothing that is proved of this description depends on it"
        raise errors.refuse(names, values, wanted, "or state the other facts so that it has a meaning")
    return tuple(f"{name}: {reasons[name]}" for name, _ in unread)


def _reason(deployment: Deployment, name: str, replaced: Collection[str]) -> str | None:
    """Why a fact that nothing reads may stand there all the same; None where it may not."""
    group = name.partition(".")[0]
    if name in replaced or group in replaced:
        return "the log says what really happened"
    return next((words for names, holds, words in _reasons(deployment) if name in names and holds), None)


def _reasons(deployment: Deployment) -> Iterator[tuple[Collection[str], bool, str]]:
    """Names, when they may change nothing, and why."""
    clip, noise, records, law = deployment.clip, deployment.noise, deployment.records, deployment.clients.law
    drawn, by_record = ("clients.size", "clients.rate"), clip.of == "record"
    yield ("delta",), noise.law == "laplace", "Laplace noise has delta 0"
    seen = deployment.unit == "record" or noise.by == "client"
    yield drawn, seen, "who is drawn is seen, or hides none of its records, so every round is counted"
    yield drawn, law in ("all", "schedule"), "every client is counted in every round"
    yield drawn, counts(deployment), "what is divided by says how many came, and every round is counted"
    if records is not None:
        words = f"the {clip.of} is clipped as a whole, whatever its records are"
        yield [f"records.{name}" for name in records.facts()], not by_record, words
        drawn = ("records.size", "records.rate")
        yield drawn, records.law == "full", "every record is in every sum"
        yield drawn, counts(deployment), "what is divided by says how many came, and every batch is counted"
        yield ("records.last",), not rest_of(records), "whole batches fill a pass, which has no rest"
    words = "the noise is before the mean of clients" if noise.by == "client" else "a clipped update weighs at most 1"
    yield ("weights.largest",), noise.by == "client" or noise.on == "sum", words
    words = "neighbours have as many members in every sum, and divisors are after the noise or constant"
    yield ("weights.denominator",), True, words
    yield ("clip.count_bits",), True, "a member that is exchanged moves a count by 1 in either way"
    yield ("clip.coordinates",), True, "the bound holds for any number of coordinates"
    words = "what is released has an epsilon of its own, into which the bound has gone"
    yield ("clip.bound",), deployment.selection is not None, words
