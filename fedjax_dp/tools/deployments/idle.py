"""Facts that no rule and no account has used: each needs a reason to have no effect, or is refused."""

from collections.abc import Collection, Iterator
from typing import Any

from fedjax_dp import errors
from fedjax_dp.tools.deployments.description import Deployment, Facts
from fedjax_dp.tools.deployments.mechanism import counts, rest_of

PRINTED = ("also", "assumes", "ignored", "source")  # printed unchanged


def stated_facts(facts: Facts) -> Iterator[tuple[str, Any]]:
    """The facts that differ from defaults, with their names."""
    for name, option in facts.facts().items():
        value = getattr(facts, name)
        if facts.where + name in PRINTED or value is None or value == option.default:
            continue
        if isinstance(value, Facts):
            yield from stated_facts(value)
        else:
            yield facts.where + name, value


def require_use(deployment: Deployment, facts_read: Collection[str], replaced: Collection[str] = ()) -> tuple[str, ...]:
    """A line for each fact without effect, with the reason.

    facts_read  facts that a rule or the account has read;
    replaced    facts, or groups of facts, that a log replaces.
    Raises: ConfigurationError for facts that neither were read nor have a reason, all at once.
    """
    unread = [(name, value) for name, value in stated_facts(deployment) if name not in facts_read]
    reasons = {name: _reason(deployment, name, replaced) for name, _ in unread}
    if useless := [(name, value) for name, value in unread if reasons[name] is None]:
        names, values = ", ".join(name for name, _ in useless), ", ".join(repr(value) for _, value in useless)
        wanted = "left out, since no proved number depends on it here"
        raise errors.refuse(names, values, wanted, "or change the other facts so that it has an effect")
    return tuple(f"{name}: {reasons[name]}" for name, _ in unread)


def _reason(deployment: Deployment, name: str, replaced: Collection[str]) -> str | None:
    """The reason why a fact may have no effect; None if there is none."""
    group = name.partition(".")[0]
    if name in replaced or group in replaced:
        return "the log replaces it"
    return next((words for names, holds, words in _reasons(deployment) if name in names and holds), None)


def _reasons(deployment: Deployment) -> Iterator[tuple[Collection[str], bool, str]]:
    """Names of facts, a condition under which they have no effect, and the reason."""
    clip, noise, records, law = deployment.clip, deployment.noise, deployment.records, deployment.clients.law
    drawn, by_record = ("clients.size", "clients.rate"), clip.of == "record"
    yield ("delta", "records.of"), noise.law == "laplace", "Laplace noise has delta 0"
    visible = deployment.unit == "record" or noise.by == "client"
    words = "sampled clients are visible, or sampling hides no records, so every round is counted"
    yield (*drawn, "clients.members"), visible, words
    yield drawn, deployment.clients.members != "hidden", "who takes part is known, so every round is counted"
    yield drawn, law in ("all", "schedule"), "every client is counted in every round"
    yield drawn, counts(deployment), "the denominator reveals how many clients came, so every round is counted"
    if records is not None:
        words = f"the {clip.of} is clipped as a whole, for any records"
        yield [f"records.{name}" for name in records.facts()], not by_record, words
        drawn = ("records.size", "records.rate")
        yield drawn, records.law == "full", "every record is in every sum"
        yield drawn, counts(deployment), "the denominator reveals how many came, so every batch is counted"
        yield ("records.last",), not rest_of(records), "all batches of a pass are full"
    words = "noise precedes the mean over clients" if noise.by == "client" else "a clipped update weighs at most 1"
    yield ("weights.largest",), noise.by == "client" or noise.on == "sum", words
    words = "neighbours have equally many members in every sum; denominators are constant or after the noise"
    yield ("weights.denominator",), True, words
    yield ("clip.count_bits",), True, "replacing a member changes the count by 1 in both cases"
    yield ("clip.coordinates",), True, "the bound holds for any number of coordinates"
    words = "released numbers state their epsilon, which includes the bound"
    yield ("clip.bound",), deployment.selection is not None, words
