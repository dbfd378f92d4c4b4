"""Philox in two parts, in Numba's simulator: the words of the whole, to the bit."""

import numpy as np
from oracle import philox

from bnmc._kernels.gpu import words
from bnmc._kernels.gpu.device import cuda, device_function


def test_parts_are_the_whole():
    draws = np.random.default_rng(3).integers(0, 2**32, (60, 6), dtype=np.uint32)
    draws[0], draws[1], draws[2, 3:] = 0, 2**32 - 1, 2**32 - 1
    found = np.zeros((60, 4), np.uint32)
    words_of_element, words_of_quad, finish_words = (
        device_function(function)
        for function in (words.words_of_element, words.words_of_quad, words.finish_words)
    )

    @cuda.jit
    def fill(draws, out):
        for i in range(draws.shape[0]):
            element, quad, layer, stream, k0, k1 = draws[i]
            e0, e1, e2, e3 = words_of_element(element, layer, stream, k0, k1)
            q0, q1 = words_of_quad(quad, layer, k0)
            out[i] = finish_words(e0, e1, e2, e3, q0, q1, k0, k1)

    fill[1, 1](draws, found)
    *counter, k0, k1 = draws.T
    for row, own in enumerate(found):
        expected = philox([word[row : row + 1] for word in counter], (k0[row], k1[row]))
        assert np.array_equal(own, np.concatenate(expected))
