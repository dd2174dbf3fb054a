"""Rounds of an algorithm: what one does, their loop, and what is measured."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
