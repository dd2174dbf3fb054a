"""A run that ends where a metric of the test set is reached; it is counted with all its rounds."""

from fedjax_dp.privacy.qualifiers import Qualifier


def of_stop(stop: str, private_tests: str | None) -> Qualifier:
    """The qualifier of a run that ends by `stop`, METRIC=VALUE.

    private_tests  whose records the metric looks at, where these are private: its end then tells of them.
    """
    if private_tests is not None:
        reason = f"the run stops by {private_tests}, without noise: use a public test set, or fix the rounds"
        return Qualifier(reason=reason)
    words = f"the run ends where {stop} is reached on a test set of no client's records, which nothing protects, "
    return Qualifier(assumptions=(f"{words}and is counted with all its rounds",), keeps_claims=True)
