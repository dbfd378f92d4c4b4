"""The mean-field map on Gram matrices with two blocks of samples, under a centring norm.

Blocks X = 0, 1 have s_X samples, and n = s_0 + s_1 is the batch size.  Let G be a Gram matrix that
permutations within the blocks preserve.  Orthogonal to (1, …, 1), G has three eigenvalues, its
*levels*: α_X on the vectors of block X that sum to 0 (dimension s_X − 1), and β on the *contrast*
e, the unit vector that is constant on either block.  Let z be uniform on the unit sphere, z_e its
part along e, z_X the length and v_X the direction of its part in block X.  The normalized row of
w ~ N(0, G) is

    φ_i = √n (√β z_e e_i + √α_X z_X v_i) / ρ,    ρ² = β z_e² + α_0 z_0² + α_1 z_1²,

for a sample i of block X, with v_i the entry of v_X.  Given the *lengths* z_0, z_1 and z_e, a
sample of block X is a function of one coordinate of a uniform point on the sphere in s_X − 1
dimensions, two samples are functions of two coordinates, of correlation −1/(s_X − 1).  So all
expectations are integrals over the lengths (`lengths`) of one-dimensional integrals
(`block_moments`), and of series for pairs of samples (`pair_series`).

If the level of a block is 0, the block has *collapsed*: its samples coincide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.blocks.given_lengths import GivenLengths, given_lengths
from bnmc.mean_field.blocks.modes import (
    Mode,
    across_mode,
    collapsed_modes,
    ratio_modes,
    within_modes,
)
from bnmc.mean_field.blocks.pieces import pieces
from bnmc.mean_field.blocks.sizes import BlockSizes
from bnmc.mean_field.float64 import TINY, FloatArray

__all__ = ["BlockMap", "Image"]

# The weight of nodes that are left out, per sample.
_LEFT_OUT = 1e-30


@dataclass(frozen=True)
class Image:
    """The image F(G) of a Gram matrix G with given levels.

    Attributes
    ----------
    diagonal, inside : tuple of float
        For either block, the diagonal entries of F(G) and the entries for two of its samples.  For
        a block of one sample, `inside` has the diagonal entry.
    between : float
        The entries for a sample of one block and a sample of the other.
    levels : ndarray of shape (3,)
        The levels α_0, α_1 and β of F(G), with small relative errors however small they are.
    jacobian : ndarray of shape (3, 3)
        Derivatives of the levels of F(G) by those of G; 0 for a level of G that is 0.
    error : float
        Bound of the error of the series for pairs, of the deviation of σ from polynomials and of
        the nodes that are left out, relative to the smallest level.
    """

    diagonal: tuple[float, float]
    inside: tuple[float, float]
    between: float
    levels: FloatArray
    jacobian: FloatArray
    error: float


class BlockMap:
    """The map for one activation and one pair of block sizes.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    sizes : tuple of int
        s_0 and s_1, each at least 1, with a sum of at least 3.
    order : int
        Nodes per panel of all quadratures.

    Raises
    ------
    UnresolvedError
        If the activation is not finite, or needs too many panels.
    """

    def __init__(self, activation: Activation, sizes: tuple[int, int], order: int) -> None:
        self.activation = activation
        self.sizes = sizes
        self.order = order
        self._blocks = BlockSizes(sizes)
        self._sigma = pieces(activation, math.sqrt(self._blocks.batch - 1))

    @property
    def is_constant(self) -> bool:
        """Whether the activation is constant, to rounding, on the sphere of this batch."""
        return self._sigma.is_constant

    @property
    def is_singular(self) -> bool:
        """Whether the derivative of the activation is infinite at a point, without a jump."""
        return self._sigma.singular

    def image(self, levels: FloatArray) -> Image:
        """Return the image of the Gram matrix with these levels, shape (3,), at any scale."""
        given = self._given_lengths(levels, powers=1)
        n, (first, second) = self._blocks.batch, self.sizes
        weight, shift = given.weight, self._sigma.shift
        # Given the lengths: for each block, E σ_i, E σ_i² and E σ_i σ_j for σ − σ(0).
        means = [block.centre + block.first[0] for block in given.blocks]
        own = [block.centre**2 + 2.0 * block.centre * block.first[0] for block in given.blocks]
        squares = [a + block.second[0] for a, block in zip(own, given.blocks, strict=True)]
        pairs = [a + block.pair[0, 0] for a, block in zip(own, given.blocks, strict=True)]
        mean_squares = sum(
            (square + (size - 1) * pair) / size
            for square, pair, size in zip(squares, pairs, self.sizes, strict=True)
        )
        outputs = [block.second[0] - block.pair[0, 0] for block in given.blocks]
        outputs.append(first * second / n * (mean_squares - 2.0 * means[0] * means[1]))
        lifts = [2.0 * shift * float(weight @ mean) + shift**2 for mean in means]
        image = np.array([weight @ output for output in outputs])
        missing = max(float(weight @ block.missing) for block in given.blocks)
        missing += 8.0 * self._sigma.largest * self._sigma.deviation
        missing += _LEFT_OUT * n**2 * self._sigma.largest**2
        return Image(
            diagonal=_both(float(weight @ x) + y for x, y in zip(squares, lifts, strict=True)),
            inside=_both(float(weight @ x) + y for x, y in zip(pairs, lifts, strict=True)),
            between=float(weight @ (means[0] * means[1])) + 0.5 * sum(lifts),
            levels=image,
            jacobian=np.array([[weight @ (x * s) for s in given.scores] for x in outputs]),
            error=missing / max(float(min(image[[*given.active, True]])), TINY),
        )

    def modes(self, levels: FloatArray) -> list[Mode]:
        """Return the eigenvalues of the Jacobian, without the eigenvalue 0 of the scale.

        The levels must be those of a fixed point at its own scale.
        """
        given = self._given_lengths(levels, powers=3)
        modes = ratio_modes(self.image(levels).jacobian, given.active)
        for block in (0, 1):
            if self.sizes[block] > 1:
                if given.active[block]:
                    modes += within_modes(self._blocks, given, levels, block)
                else:
                    modes += collapsed_modes(self._blocks, self._sigma, given, levels, block)
        if all(given.active):
            modes.append(across_mode(self._blocks, given, levels))
        return modes

    def _given_lengths(self, levels: FloatArray, powers: int) -> GivenLengths:
        return given_lengths(self._blocks, self._sigma, levels, powers, self.order)


def _both(values: Iterator[float]) -> tuple[float, float]:
    first, second = values
    return first, second
