"""The modes of a convolution at the symmetric fixed point, by the Fourier transform over shifts.

A convolution with circular padding averages the Gram matrix over simultaneous shifts of all
images, and the map F after it has the symmetry of all permutations of columns.  Shifts are
permutations.  So both map the matrices of one spatial frequency, and of one sector of the
permutation group, to themselves, and the eigenvalue is the product of both factors.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from bnmc.chain.convolution import Convolution
from bnmc.mean_field.fixed_point.results import FourierMode

__all__ = ["fourier_modes"]


def fourier_modes(
    convolution: Convolution,
    columns: int,
    eigenvalues: tuple[complex, ...],
    sectors: tuple[str, ...],
) -> tuple[FourierMode, ...]:
    """Return the modes of a layer, one for each frequency up to its sign.

    Parameters
    ----------
    convolution : Convolution
    columns : int
        n, samples times pixels.
    eigenvalues : tuple of complex
        Those of the fully connected layer of n columns; see `FixedPoint`.
    sectors : tuple of str
        Their sectors: "constants", of dimension 1; "differences" of columns, n − 1; "pairs", the
        functions of unordered pairs of columns, n(n−1)/2; "rest", these without the two others.
    """
    shape = convolution.shape
    found = []
    for frequency in itertools.product(*map(range, shape)):
        opposite = tuple(-k % size for k, size in zip(frequency, shape, strict=True))
        if opposite < frequency:
            continue
        copies = 1 if opposite == frequency else 2
        factor = _factor(convolution, frequency)
        numbers = [copies * _multiplicity(shape, columns, sector, frequency) for sector in sectors]
        kept = [index for index, number in enumerate(numbers) if number]
        found.append(
            FourierMode(
                frequency=frequency,
                factor=factor,
                eigenvalues=tuple(factor * eigenvalues[index] for index in kept),
                multiplicities=tuple(numbers[index] for index in kept),
            )
        )
    return tuple(found)


def _factor(convolution: Convolution, frequency: tuple[int, ...]) -> complex:
    """Return the mean of exp(2πi k·δ) over the taps δ; a real number if it is one."""
    factor = 1.0 + 0.0j
    for k, size, taps in zip(frequency, convolution.shape, convolution.kernel, strict=True):
        places = np.arange(taps) - (taps - 1) // 2
        # Whole turns are taken out, so that frequency 0 has the factor 1 exactly.
        turns = k * places % size / size
        factor *= complex(np.mean(np.exp(2j * np.pi * turns)))
    if all(taps % 2 for taps in convolution.kernel) or not any(frequency):
        return factor.real
    return factor


def _multiplicity(
    shape: tuple[int, int], columns: int, sector: str, frequency: tuple[int, ...]
) -> int:
    """Return how often a frequency occurs in a sector."""
    is_zero = int(not any(frequency))
    differences = columns // math.prod(shape) - is_zero
    pairs = _pairs(shape, columns, frequency)
    return {
        "constants": is_zero,
        "differences": differences,
        "pairs": pairs,
        "rest": pairs - differences - is_zero,
    }[sector]


def _pairs(shape: tuple[int, int], columns: int, frequency: tuple[int, ...]) -> int:
    """Return how often a frequency occurs in the functions of unordered pairs of columns.

    By Burnside's lemma: no shift but 0 keeps a pair, except that by half of an image, which swaps
    the two columns of n/2 pairs.
    """
    halves = [(0, size // 2) if size % 2 == 0 else (0,) for size in shape]
    kept = 0.0
    for shift in itertools.product(*halves):
        if any(shift):
            turns = sum(k * r / size for k, r, size in zip(frequency, shift, shape, strict=True))
            kept += columns / 2 * math.cos(2 * math.pi * turns)
        else:
            kept += columns * (columns - 1) / 2
    return round(kept / math.prod(shape))
