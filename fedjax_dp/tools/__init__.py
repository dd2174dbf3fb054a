"""What stands around the core and calls it: the command line, pictures, reports, audits, papers, formats.

The core imports none of it. Each wing is loaded when it is first used, and has its name in `fedjax_dp` too:
`fedjax_dp.figures` is `fedjax_dp.tools.figures`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
