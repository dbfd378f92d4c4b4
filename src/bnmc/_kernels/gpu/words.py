"""Philox4x32-10 in two parts, so that the quads of a layer share what they have in common.

The counter of a block is (element, quad, layer, stream).  For the first three of ten rounds, half
of the products depend on the element alone or on the quad alone.  Those of the elements are made
once for a layer (`words_of_element`), that of a quad once for all elements (`words_of_quad`).
`finish_words` then returns the words of `scalar.philox.philox4x32`, to the bit.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.scalar.philox import (
    HALF,
    LOW,
    MULTIPLIER_0,
    MULTIPLIER_1,
    WEYL_0,
    WEYL_1,
    product,
)

_ROUNDS, _SHARED = 10, 3


def _high_of(value):
    """Return the upper word of 64 bits."""
    return np.uint32(value >> HALF)


def _low_of(value):
    """Return the lower word of 64 bits."""
    return np.uint32(value & LOW)


def _first_key(k0, rounds):
    """Return the first word of the key after so many rounds."""
    return _low_of(np.uint64(np.uint64(k0) + np.uint64(rounds) * WEYL_0))


def _second_key(k1, rounds):
    """Return the second word of the key after so many rounds."""
    return _low_of(np.uint64(np.uint64(k1) + np.uint64(rounds) * WEYL_1))


def words_of_element(element, layer, stream, k0, k1):
    """Return the four words by which an element enters the first three rounds."""
    p0 = product(np.uint32(element), MULTIPLIER_0)
    p1 = product(np.uint32(layer), MULTIPLIER_1)
    c1 = _low_of(p1)
    c2 = np.uint32(_high_of(p0) ^ np.uint32(stream) ^ np.uint32(k1))
    c3 = _low_of(p0)
    p1 = product(c2, MULTIPLIER_1)
    c0 = np.uint32(_high_of(p1) ^ c1 ^ _first_key(k0, 1))
    p0 = product(c0, MULTIPLIER_0)
    return (
        np.uint32(c3 ^ _second_key(k1, 1)),
        np.uint32(_low_of(p1) ^ _first_key(k0, 2)),
        np.uint32(_high_of(p0) ^ _second_key(k1, 2)),
        _low_of(p0),
    )


def words_of_quad(quad, layer, k0):
    """Return the two words by which a quad enters the second and the third round."""
    p1 = product(np.uint32(layer), MULTIPLIER_1)
    c0 = np.uint32(_high_of(p1) ^ np.uint32(quad) ^ np.uint32(k0))
    p0 = product(c0, MULTIPLIER_0)
    return _high_of(p0), _low_of(p0)


def finish_words(e0, e1, e2, e3, q0, q1, k0, k1):
    """Return the four words of the block of an element and a quad."""
    p1 = product(np.uint32(q0 ^ e0), MULTIPLIER_1)
    c0 = np.uint32(_high_of(p1) ^ e1)
    c1 = _low_of(p1)
    c2 = np.uint32(e2 ^ q1)
    c3 = np.uint32(e3)
    for rounds in range(_SHARED, _ROUNDS):
        p0 = product(c0, MULTIPLIER_0)
        p1 = product(c2, MULTIPLIER_1)
        c0 = np.uint32(_high_of(p1) ^ c1 ^ _first_key(k0, rounds))
        c1 = _low_of(p1)
        c2 = np.uint32(_high_of(p0) ^ c3 ^ _second_key(k1, rounds))
        c3 = _low_of(p0)
    return c0, c1, c2, c3
