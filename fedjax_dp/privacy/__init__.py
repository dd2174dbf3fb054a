"""What a run promises: what is released of each client, and the noise for a budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
