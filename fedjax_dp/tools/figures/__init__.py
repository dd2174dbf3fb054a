"""Pictures of runs, sweeps, audits and accounts with matplotlib, drawn from the same tables as reports."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
