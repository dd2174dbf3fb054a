"""How long a round takes here, part by part, and what it takes at least."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
