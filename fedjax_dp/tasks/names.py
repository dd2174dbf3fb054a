"""Values of the options of tasks. No JAX here, as help and files need them."""

APS = ("exact", "buckets200")  # kinds of mean average precision
LOSSES_BY_TASK = {  # of tasks with several, the default first
    "sequence": ("mean", "length"),
    "multi_label": ("mean", "sum"),
    "regression": ("squared", "huber"),
}
LOSSES = tuple(dict.fromkeys(loss for losses in LOSSES_BY_TASK.values() for loss in losses))
