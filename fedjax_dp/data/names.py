"""Names that options of partitions may have. No JAX here: help and files are read with them."""

ASSIGNMENTS = ("random", "cyclic", "first")
REMAINDERS = ("smaller", "spread", "drop", "refuse")
CONCENTRATION_SCALES = ("per_class", "hsu")
