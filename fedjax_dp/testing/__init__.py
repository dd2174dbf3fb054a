"""Checks of a user's own algorithm, each with the wrong programs that it must reject.

In a test of pytest, with an algorithm made of one's own parts and a small federation:

    from fedjax_dp.testing import WRONG, check_algorithm, check_noise

    def test_my_algorithm_keeps_its_promises():
        for report in check_algorithm(my_algorithm, my_data, model=my_model, delta=1e-5):
            print(report)

    def test_the_noise_check_would_notice():
        check_noise(my_algorithm, my_data, model=my_model, wrong=WRONG["half_noise"])

A check raises AssertionError with one line: what, measured, wanted, how certain; else it returns its reports. After the
algorithm it runs wrong programs made of it, and fails if it cannot tell them from the right one, so that a check that
is too weak for a configuration does not pass in silence. What a part must have to be checked: a privatizer
`noise_multiplier` and `clip_norm`, as `RecordGaussian`; an upload `clip_norm` and `noise_multiplier`, as
`ClientGaussian`. Shapes and numbers of the algorithm are kept, so small models and few clients make quick checks.

A noise source, a bounded sum or a sampler that is a plain function is checked alone:

>>> import jax
>>> from fedjax_dp.testing import check_noise
>>> print(check_noise(lambda key: 3 * jax.random.normal(key, (40,)), std=3.0)[-1])
wrong program faint_noise: rejected, wanted rejected (standard deviation of the noise)
"""

from fedjax_dp.inspection.verdict import CheckReport
from fedjax_dp.testing.audit import check_audit
from fedjax_dp.testing.invariance import check_order, check_padding
from fedjax_dp.testing.keys import check_keys
from fedjax_dp.testing.masks import check_masks
from fedjax_dp.testing.noise import check_noise
from fedjax_dp.testing.sampling import check_sampling
from fedjax_dp.testing.sensitivity import check_sensitivity
from fedjax_dp.testing.statements import check_statements
from fedjax_dp.testing.suite import check_algorithm
from fedjax_dp.testing.wrong_programs import WRONG

__all__ = [
    "WRONG",
    "CheckReport",
    "check_algorithm",
    "check_audit",
    "check_keys",
    "check_masks",
    "check_noise",
    "check_order",
    "check_padding",
    "check_sampling",
    "check_sensitivity",
    "check_statements",
]
