"""Privacy of a run: its Guarantee, the events of its clients, and the calibration of noise for a budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
