"""The rules for moments under a norm that does not centre, one finer than the other."""

from unittest import mock

import numpy as np

from bnmc.chain import Chain
from bnmc.mean_field.finite_width.joint_moments import uncentred_moments
from bnmc.mean_field.fixed_point import uncentred
from bnmc.mean_field.fixed_point.symmetric import fixed_point_of_batch


def test_the_first_result_is_that_of_the_finer_rule():
    """Nothing agrees to 0, so all rules are tried then, and the last two differ by rounding.

    The first two rules agree to 1.  The finer one of them is nearer to the last rule of all.
    """
    chain = Chain(width=100, batch=2, activation="sigmoid", norm="batch-uncentred")
    # The block between two batches takes a second, and the moments of one do not depend on it.
    with mock.patch.object(uncentred, "cross_batch", return_value=(0.0, 0.0)):
        point, _ = fixed_point_of_batch(chain.activation, 2, chain.normalization)

    def found(rtol):
        return np.array(uncentred_moments(chain.activation, 2, point, rtol))

    exact, confirmed = found(0.0)
    rounding = np.abs(exact - confirmed).max()
    fine, coarse = (np.abs(one - exact).max() for one in found(1.0))
    assert rounding < 1e-13
    assert 10.0 * rounding < fine < 0.1 * coarse
