"""Tasks: what a target is judged by, its loss and the metrics of many records; which way is better."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
