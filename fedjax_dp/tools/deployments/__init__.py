"""Federations of other systems, described by public facts: checked and calibrated, with NumPy and SciPy but no JAX.

>>> from fedjax_dp.tools.deployments import Deployment, check
>>> checked = check(Deployment(
...     unit="record", delta=1e-5, rounds=3, clients={"law": "all"},
...     records={"law": "poisson", "rate": 0.008, "steps": 125}, clip={"of": "record", "norm": "l2", "bound": 1.0},
...     noise={"law": "gaussian", "std": 1.0, "on": "sum", "by": "client"},
...     claim={"epsilon": 0.613902, "per": "round"},
... ))
>>> checked.verdict, checked.reasons, round(checked.mechanism.epsilon, 3)
('wrong', ('accountant_reset',), 0.926)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
