"""Names of shipped data sets, and those that options of partitions may have. No JAX here: help is read with them."""

import re

ASSIGNMENTS = ("random", "cyclic", "first")
REMAINDERS = ("smaller", "spread", "drop", "refuse")
CONCENTRATION_SCALES = ("per_class", "hsu")

NIST = "NIST, EMNIST, FEMNIST"
SOURCES = {  # of shipped data sets: what the records of each were collected as, by all names of that
    "digits": "UCI digits",
    **dict.fromkeys(("mnist", "emnist_letters", "emnist_byclass", "emnist_balanced", "emnist_digits"), NIST),
    "femnist_digits": NIST,
    "fashion_mnist": "Fashion-MNIST",
    **dict.fromkeys(("adult", "adult_full"), "UCI Adult"),
    **dict.fromkeys(("cifar10", "cifar10_pca60"), "CIFAR-10"),
    "svhn": "SVHN",
    "school": "School",
    "sent140": "Sentiment140",
}


def share_no_records(one: str, other: str) -> bool:
    """Whether two data sets are known by their names to have no record in common: shipped ones of different sources."""
    return one in SOURCES and other in SOURCES and SOURCES[one] != SOURCES[other]


def names_of(name: str) -> set[str]:
    """What the records of a data set are called: by its name, its file's, and those of what shares their source."""
    alike = [one for one in SOURCES if name in SOURCES and SOURCES[one] == SOURCES[name]]
    return {name, re.split("[:/]", name)[-1], *alike, *SOURCES.get(name, "").split(", ")} - {""}
