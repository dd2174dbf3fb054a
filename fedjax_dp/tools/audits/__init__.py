"""Auditing: attacks on thousands of simulated runs prove lower bounds on epsilon."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
