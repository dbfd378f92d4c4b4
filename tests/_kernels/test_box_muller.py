"""Radius and angle of float32 normals on a GPU, in Numba's simulator: the formula in float64."""

import numpy as np

from bnmc._kernels.gpu.box_muller import radius32, sincos32
from bnmc._kernels.gpu.device import cuda, device_function

#: Ends of quadrants and of eighths of a turn, the largest uniforms, and words by chance.
WORDS = np.concatenate([
    [0, 1, 2**32 - 1, 2**32 - 128, 2**32 - 129, 2**32 - 256, 3037000500],
    (np.arange(1, 16) * 2**28)[:, None].repeat(3, 1).ravel() + np.tile([-1, 0, 1], 15),
    np.random.default_rng(4).integers(0, 2**32, 1000),
]).astype(np.uint32)  # fmt: skip


def test_the_formula():
    found = np.zeros((len(WORDS), 3), np.float32)
    radius, sincos = device_function(radius32), device_function(sincos32)

    @cuda.jit
    def fill(words, out):
        for i in range(words.size):
            out[i, 0] = radius(words[i])
            out[i, 1], out[i, 2] = sincos(words[i])

    fill[1, 1](WORDS, found)
    # The uniform is rounded to float32, and is less than 1.
    below_one = np.float32(2.0**32 - 256.0)
    uniform = np.minimum(WORDS.astype(np.float32) + np.float32(0.5), below_one).astype(float)
    angle = 2.0 * np.pi * (WORDS.astype(float) + 0.5) / 2.0**32
    expected = np.stack(
        [np.sqrt(-2.0 * np.log(uniform / 2.0**32)), np.sin(angle), np.cos(angle)], axis=1
    )
    # Sine and cosine in float64 have absolute errors of an ulp of the angle.
    error = np.abs(found - expected) - 2.0**-50
    assert (error <= 4 * 2.0**-23 * np.abs(expected)).all()
