"""Papers: cited in full, their theorems, what these claim and what is proved, their tables and figures done again."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
