"""The counter-based generator Philox4x32-10.

Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (SC 2011).  A block of
four 32-bit words is a pure function of a 128-bit counter and a 64-bit key, so a draw can be
addressed instead of awaited: no result depends on how the work was divided.
"""

from __future__ import annotations

import numpy as np

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIER_0 = np.uint32(0xD2511F53)
MULTIPLIER_1 = np.uint32(0xCD9E8D57)
WEYL_0 = np.uint64(0x9E3779B9)
WEYL_1 = np.uint64(0xBB67AE85)
#: Number of values of a word.
_WORDS = 1 << 32


def product(factor, multiplier):
    """Return the product of two words, of 64 bits."""
    return np.uint64(np.uint64(factor) * np.uint64(multiplier))


def philox4x32(c0, c1, c2, c3, k0, k1):
    """Return the four words of the block with counter (c0, c1, c2, c3) under the key (k0, k1)."""
    c0, c1, c2, c3 = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)
    k0, k1 = np.uint32(k0), np.uint32(k1)
    for _ in range(10):
        p0 = product(c0, MULTIPLIER_0)
        p1 = product(c2, MULTIPLIER_1)
        c0 = np.uint32(np.uint32(p1 >> HALF) ^ c1 ^ k0)
        c1 = np.uint32(p1 & LOW)
        c2 = np.uint32(np.uint32(p0 >> HALF) ^ c3 ^ k1)
        c3 = np.uint32(p0 & LOW)
        k0 = np.uint32((np.uint64(k0) + WEYL_0) & LOW)
        k1 = np.uint32((np.uint64(k1) + WEYL_1) & LOW)
    return c0, c1, c2, c3


def element_of_attempt(attempt, columns):
    """Return the first of the elements of an attempt, each of which takes as many as columns.

    The word of elements holds those of the first attempts.  `key_of_attempt` carries further ones
    into the key, so no attempt repeats the numbers of another one.
    """
    return attempt % (_WORDS // columns) * columns


def key_of_attempt(k1, attempt, columns):
    """Return the second word of the key for an attempt; see `element_of_attempt`."""
    return np.uint32((np.uint64(k1) + np.uint64(attempt // (_WORDS // columns))) & LOW)
