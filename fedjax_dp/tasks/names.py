"""Names that options of tasks may have. No JAX here: help and files are read with them."""

APS = ("exact", "buckets200")  # how mean average precision is taken
LOSSES_BY_TASK = {  # by task, where there are several, the usual one first
    "sequence": ("mean", "length"),
    "multi_label": ("mean", "sum"),
    "regression": ("squared", "huber"),
}
LOSSES = tuple(dict.fromkeys(loss for losses in LOSSES_BY_TASK.values() for loss in losses))
