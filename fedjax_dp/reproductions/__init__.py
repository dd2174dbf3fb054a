"""The papers' tables and figures: as published, by the literal recipe, by the correct reading, and what each proves."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
