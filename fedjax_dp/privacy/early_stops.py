"""Runs that end when a metric on the test set reaches a value; all planned rounds are counted."""

from fedjax_dp.privacy.qualifiers import Qualifier


def of_stop(stop: str, private_tests: str | None) -> Qualifier:
    """The qualifier of a run with the rule `stop`, METRIC=VALUE.

    private_tests  description of the metric's records if they are private: the end of the run then depends on them.
    """
    if private_tests is not None:
        reason = f"the run stops by {private_tests}, without noise: use a public test set, or fix the rounds"
        return Qualifier(reason=reason)
    words = f"the run ends where {stop} is reached on a test set of no client's records, which nothing protects, "
    return Qualifier(assumptions=(f"{words}and is counted with all its rounds",), keeps_claims=True)
