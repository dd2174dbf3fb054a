"""Reports: one self-contained HTML file about a run, a sweep, an audit or a reproduction."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
