"""Names of shipped data sets, and those that options of partitions may have. No JAX here: help is read with them."""

ASSIGNMENTS = ("random", "cyclic", "first")
REMAINDERS = ("smaller", "spread", "drop", "refuse")
CONCENTRATION_SCALES = ("per_class", "hsu")

SOURCES = {  # of shipped data sets: what the records of each were collected as
    "digits": "UCI digits",
    **dict.fromkeys(("mnist", "emnist_letters", "emnist_byclass", "emnist_balanced", "emnist_digits"), "NIST"),
    "femnist_digits": "NIST",
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
