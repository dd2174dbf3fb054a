"""Pictures of runs, sweeps, audits and accounts: figures of matplotlib, drawn from tables that reports draw too."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
