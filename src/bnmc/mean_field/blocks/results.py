"""`BlockFixedPoint`: a fixed point of the mean-field map with two blocks of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.float64 import FloatArray

__all__ = ["BlockFixedPoint"]


@dataclass(frozen=True)
class BlockFixedPoint:
    """A fixed point of the mean-field map that permutations within two blocks preserve.

    `block_symmetric` and `partial_collapse` return it.

    Attributes
    ----------
    activation : str
        Name of the activation.
    sizes : tuple of int
        Number of samples of the first and of the second block.
    collapsed : bool
        Whether all samples of the second block coincide.
    diagonal : tuple of float
        Diagonal entries of the Gram matrix, for a sample of the first and of the second block.
    inside : tuple of float
        Entries for two samples of the first block, and of the second block. For a block of one
        sample, the diagonal entry.
    between : float
        Entries for a sample of the first and a sample of the second block.
    eigenvalues : tuple of float or complex
        Eigenvalues of the Jacobian of the map, by decreasing modulus, without the eigenvalue 0 of
        the scale.
    multiplicities : tuple of int
        Their multiplicities; the sum is ``n(n−1)/2 − 1``, with n the batch size.
    modes : tuple of str
        The kinds of their eigenvectors. "ratios" changes the eigenvalues of the Gram matrix and
        preserves the blocks. "one of block 0" separates one sample of the first block from its
        others. "pairs of block 0" separates pairs of its samples (the irreducible representation
        (s−2, 2) of the permutations of s samples). "across" separates pairs of one sample of each
        block. "split of block 1" separates samples that coincide.
    error : float
        Estimated error of the least accurate of these numbers: relative to the largest entry for
        entries, relative for eigenvalues above 1, absolute for others. It is the difference to a
        coarser quadrature, plus a bound of the tail of the series, plus rounding.

    Notes
    -----
    The Gram matrices of a wide finite network fluctuate about a stable fixed point, with a variance
    of order 1/width. Samples that coincide do so exactly, at every width.

    Examples
    --------
    >>> from bnmc.mean_field import block_symmetric
    >>> outlier, saddle = block_symmetric("relu", 64)
    >>> outlier.sizes, outlier.batch, outlier.gram.shape, outlier.stable, saddle.stable
    ((1, 63), 64, (64, 64), True, False)
    """

    activation: str
    sizes: tuple[int, int]
    collapsed: bool
    diagonal: tuple[float, float]
    inside: tuple[float, float]
    between: float
    eigenvalues: tuple[complex, ...]
    multiplicities: tuple[int, ...]
    modes: tuple[str, ...]
    error: float

    @property
    def batch(self) -> int:
        """Batch size n."""
        return sum(self.sizes)

    @property
    def rate(self) -> float:
        """Largest modulus of the eigenvalues; ``inf`` if nearly coinciding samples part at once."""
        return abs(self.eigenvalues[0])

    @property
    def stable(self) -> bool:
        """Whether ``rate < 1``: then Gram matrices near the fixed point converge to it."""
        return self.rate < 1.0

    @property
    def gram(self) -> FloatArray:
        """The Gram matrix as a new array of shape (batch, batch), first block first."""
        labels = np.repeat([0, 1], self.sizes)
        entries = np.array([[self.inside[0], self.between], [self.between, self.inside[1]]])
        gram: FloatArray = entries[labels[:, None], labels]
        np.fill_diagonal(gram, np.array(self.diagonal)[labels])
        return gram
