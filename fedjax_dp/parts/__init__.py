"""The parts that an algorithm is made of, a slot each, and the Protocols that parts of one's own follow."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
