"""`FixedPoint`: the symmetric fixed point of the mean-field map, and what happens near it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.quadrature.sphere import FloatArray

__all__ = ["FixedPoint", "Star"]

# Slopes, and with them the backward rate, are known no better than this.
_KNOWN_RATE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Star:
    """What a fixed point and its limit for large batches share; `FixedPoint` has the meanings."""

    b: float
    c: float
    eigenvalues: tuple[complex, ...]
    rate: float
    backward_rate: float
    cross_batch: float
    cross_batch_rate: float
    error: float

    @property
    def stable(self) -> bool:
        """Whether ``rate < 1`` by more than its error: else the chain does not settle there."""
        return self.rate + self.error < 1.0

    @property
    def explosion_depth(self) -> float:
        """Layers in which the expected squared norm of a gradient grows e-fold on its way back.

        ``1/ln(backward_rate)``: ``inf`` where the rate is 1 as far as it is known, 0 where it is
        infinite. It is never negative: no normalized chain shrinks its gradients, because
        ``E|∇σ|²`` is no less than what Poincaré's inequality gives for the variance of σ.
        """
        growth = math.log(self.backward_rate)
        return 1.0 / growth if growth > max(self.error, _KNOWN_RATE) else math.inf


@dataclass(frozen=True, kw_only=True)
class FixedPoint(Star):
    """The permutation-symmetric fixed point ``G* = b ((1−c) I + c 11ᵀ)`` of the mean-field map.

    `MeanField.fixed_point` makes it and gives the formulas.

    Attributes
    ----------
    batch : int
        Batch size n ≥ 2.
    b : float
        Diagonal of ``G*``, > 0.
    c : float
        Correlation of two samples, the off-diagonal of ``G*`` divided by b, in [−1, 1).
    eigenvalues : tuple of float or complex
        The distinct eigenvalues of the Jacobian of the map at ``G*``, without the eigenvalue 0 of
        the scale of G, which the normalization does not see. Empty for the centred norm and n = 2.
        Real except perhaps for two that are conjugate, under the norm that does not centre.
    multiplicities : tuple of int
        Their multiplicities.
    rate : float
        Largest modulus of the eigenvalues: the factor by which a small deviation from ``G*``
        shrinks, asymptotically, with each layer. 0 where there are no eigenvalues.
    backward_rate : float
        Factor by which the expected squared norm of a gradient grows with each layer on its way
        back; ``inf`` where the expectation diverges (small n, or an activation that jumps).
    cross_batch : float
        Entry of the block of the Gram matrix between two batches that have forgotten one another.
    cross_batch_rate : float
        Factor by which, with each layer, a small deviation of that block shrinks.
    error : float
        Estimated error of the worst of the numbers above, absolute for those below 1 and relative
        for larger ones: the difference to a coarser quadrature, and rounding. The true error is
        usually far smaller.
    """

    batch: int
    multiplicities: tuple[int, ...]

    def __str__(self) -> str:
        """The matrix, whether it is stable, and the rates, in a line."""
        return (
            f"diagonal {self.b:.6g}, correlation {self.c:.6g} of {self.batch} samples; "
            f"{'stable' if self.stable else 'unstable'}: deviations times {self.rate:.4g}, squared "
            f"gradients times {self.backward_rate:.4g} a layer"
        )

    @property
    def gram(self) -> FloatArray:
        """``G*`` as an array of shape (batch, batch), built anew each time it is asked for."""
        gram = np.full((self.batch, self.batch), self.b * self.c)
        np.fill_diagonal(gram, self.b)
        return gram
