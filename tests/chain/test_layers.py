"""One layer of NumPy networks: its gradients against finite differences."""

import numpy as np
import pytest

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST, NORM_IN_BRANCH
from bnmc.chain.activations import Activation
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm

TANH = Activation.named("tanh")


@pytest.mark.parametrize("order", [NORM_FIRST, ACTIVATION_FIRST, NORM_IN_BRANCH])
@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "layer", "rms", "group(2)", "none"])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_gradients_are_those_of_finite_differences(norm, order, eps):
    """Two networks of width 6, with two batches of 4 samples, and 3 functions of a and x."""
    rng = np.random.default_rng(2)
    row_map = RowMap(TANH, as_norm(norm), order, 4, eps)
    h = rng.standard_normal((2, 6, 8))
    of_a, of_x = rng.standard_normal((2, 2, 6, 3, 8))

    def made(h):
        return row_map.rows(h)

    def functions(h):
        layer = made(h)
        a, x = layer.outputs()[:, :, None], layer.x[:, :, None]
        return (of_a * a + of_x * x).sum(axis=(1, 3))

    # A sample depends on its batch, so each gradient is compared along a direction.
    direction = rng.standard_normal(h.shape)
    step = 1e-5
    expected = (functions(h + step * direction) - functions(h - step * direction)) / (2 * step)
    result = (made(h).down(of_a, of_x) * direction[:, :, None]).sum(axis=(1, 3))
    np.testing.assert_allclose(result, expected, rtol=1e-7, atol=1e-7)


def test_two_samples_of_a_centred_norm_have_no_gradient():
    """N(y) is 1 and -1, whatever y: rounding errors of 1/spread leave no gradient."""
    row_map = RowMap(TANH, as_norm("batch"), NORM_FIRST, 2)
    h = np.random.default_rng(0).standard_normal((5, 2)) * 1e-12
    made = row_map.rows(h)
    assert not made.down(np.ones((5, 1, 2)), 1.0).any()
