"""Tasks: the loss of a target, the metrics of many records, and whether larger or smaller is better."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
