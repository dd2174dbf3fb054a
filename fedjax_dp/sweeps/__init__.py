"""Sweeps: many runs that differ in some fields, described in one file and run together."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
