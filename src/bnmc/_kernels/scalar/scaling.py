"""The unit of each sample of a chain whose scale is split off.

A chain without normalization whose activation is positively homogeneous is a chain for each scale
of each sample: with column i of the activations times 2**e_i, entry (i, j) of the Gram matrix is
multiplied by 2**(e_i + e_j), and nothing else changes.  So a state holds columns in units of
2**e_i, and no number of it under- or overflows.

After every layer each sample gets a new unit if its size is far from 1.  The decision depends on
the state of that layer alone, never on how the layers were divided into blocks.  Units are powers
of two, so they change no bit.
"""

from __future__ import annotations

from math import frexp

#: The unit of a sample changes if the exponent (base 2) of the sample's size is larger.  One layer
#: divides a size by less than 2**50, so even the squares of float32 numbers stay in range.
LEEWAY = 8


def shift_of(size: float) -> int:
    """Return the exponent by which the unit of a sample of this size changes."""
    if not size > 0.0:
        return 0
    exponent = frexp(size)[1]
    return exponent if abs(exponent) > LEEWAY else 0


def shift_of_square(square: float) -> int:
    """Return `shift_of` of the root of a diagonal entry of a Gram matrix."""
    if not square > 0.0:
        return 0
    exponent = frexp(square)[1] // 2
    return exponent if abs(exponent) > LEEWAY else 0
