"""Random numbers of `bnmc.kernels`: those of the address, from Python and compiled code."""

from types import SimpleNamespace

import numba
import numpy as np
import oracle
import pytest

from bnmc import kernels

RELU = kernels.activation("relu")


KEY = np.uint64(0xFEDCBA9876543210)


def draw_of(layer, chain, stream):
    return SimpleNamespace(
        layer=layer, stream=stream | chain, key0=int(KEY) & 0xFFFFFFFF, key1=int(KEY) >> 32
    )


def test_words():
    words = oracle.philox((1, 2, 3, 4), (5, 6))
    assert kernels.philox(1, 2, 3, 4, 5, 6) == tuple(int(word) for word in words)


@pytest.mark.parametrize(("dtype", "units"), [(np.float64, 2**-50), (np.float32, 2**-20)])
@pytest.mark.parametrize("stream", [kernels.ROWS, kernels.WEIGHTS])
def test_numbers_are_those_of_the_address(dtype, units, stream):
    out, address = np.zeros(128, dtype), (7, 64, 9, 5, KEY, stream)
    rows, draw = np.arange(64, 192), draw_of(9, 5, stream)
    assert kernels.normals(out, *address) == kernels.OK
    expected = oracle.normals(np.array([7]), rows, draw, dtype)[0]
    np.testing.assert_allclose(out, expected.astype(float), rtol=0, atol=8 * units)
    assert kernels.uniforms(out, *address) == kernels.OK
    high, low = (words[0] for words in oracle.words_in_place(np.array([7]), rows, draw))
    np.testing.assert_array_equal(out, oracle.uniform(high, low, dtype))


def test_numbers_in_compiled_code():
    @numba.njit
    def last(key):
        words = kernels.philox(1, 2, 3, 4, 5, key)
        return words[3], kernels.activate(RELU, -1.0) + kernels.activate(RELU, 2.0)

    assert last(6) == (kernels.philox(1, 2, 3, 4, 5, 6)[3], 2.0)
