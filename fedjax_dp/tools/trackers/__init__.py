"""Callbacks that write a run to experiment trackers; each imports its package when a run starts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
