"""Where rounds run: devices that share a cohort, processes that share a run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
