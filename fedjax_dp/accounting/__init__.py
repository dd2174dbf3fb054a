"""Privacy accounting in float64 on NumPy and SciPy; nothing here imports JAX.

Describe a release as an event, then compute its epsilon:

>>> from fedjax_dp.accounting import Adjacency, GaussianSteps, WithoutReplacement, epsilon_of
>>> steps = GaussianSteps(2.0, WithoutReplacement(10, 600), Adjacency.REPLACE_ONE, 600)
>>> round(epsilon_of(steps, 1e-5), 3), round(epsilon_of(steps, 1e-5, "rdp"), 3)
(2.934, 3.267)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
