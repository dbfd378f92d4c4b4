"""Random numbers of the four rows of a quad on a GPU, in Numba's simulator: those of the CPU."""

import numpy as np
import pytest
from oracle import weights

from bnmc._kernels.gpu.device import cuda, device_function
from bnmc._kernels.scalar import codes, normal


@pytest.mark.filterwarnings("ignore:Grid size")
@pytest.mark.parametrize(
    ("law", "four", "dtype"),
    [
        (codes.UNIFORM, normal.centred_uniforms.single, np.float32),
        (codes.UNIFORM, normal.centred_uniforms.double, np.float64),
        (codes.RADEMACHER, normal.signs.single, np.float32),
    ],
)
def test_all_four_rows_of_a_quad_have_their_weights(law, four, dtype):
    """Rows 16 apart; narrow layers have no row for the last numbers of a quad."""
    four = device_function(four)
    draw = codes.Draw(
        9, np.uint32(codes.STREAM_WEIGHTS | np.uint32(5)), np.uint32(7), np.uint32(2**32 - 1)
    )

    @cuda.jit
    def fill(out, stream, k0, k1):
        for quad in range(32):
            found = four(np.uint32(7), np.uint32(quad), 9, stream, k0, k1)
            for j in range(4):
                out[64 * (quad // 16) + quad % 16 + 16 * j] = found[j]

    out = cuda.to_device(np.zeros(128, dtype))
    fill[1, 1](out, *draw[1:])
    exact = weights(law, np.array([7]), np.arange(128), draw, dtype)[0]
    assert np.abs(out.copy_to_host() - exact).max() <= 2 * np.finfo(dtype).eps
