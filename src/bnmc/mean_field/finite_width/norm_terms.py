"""What a normalization adds to the fluctuations of one layer.

Given the Gram matrix G of a layer, the rows of the next layer are i.i.d. before the normalization.
Without a norm over the features, its Gram matrix is the mean over rows of σσᵀ.

**A norm over the features before the activation** divides sample i of a row by its root mean square
over the rows.  Let u = A z, z ~ N(0, I), be a row divided by the limits of these, with the
covariance R = AAᵀ and ρ_i = R_ii.  The deviation of the mean square from ρ_i is the mean over rows
of 2y_i, y_i = (u_i² − ρ_i)/2.  To first order the Gram matrix is the mean over rows of

    g_ij = σ_i σ_j − L_ij,i y_i − L_ij,j y_j − M_ij z,    L_ij,i = E u_i σ′(u_i) σ(u_j),
    M_ij = E σ_i σ_j z,

for i ≠ j, and g_ii = σ_i² − 2 L_ii,i y_i − M_ii z.  The term with M is the mean over the features,
for norms that subtract it.  With Π_i = Aᵀe_i e_iᵀA, packed as all matrices here, P the matrix of
rows Π_i, and J₀ = ½ Cov(σσᵀ, zzᵀ), integration by parts gives

    J = J₀ − ½LP,    C = Cov(σσᵀ) − LPJ₀ᵀ − J₀PᵀLᵀ + ½LPPᵀLᵀ − MMᵀ,
    L_ij,i + L_ij,j = 2 J₀[I]_ij,    L_ij,i − L_ij,j = 2 (ρ_j J₀[Π_i]_ij − ρ_i J₀[Π_j]_ij) / δ,

with δ = ρ_iρ_j − R_ij².  No derivative of σ is needed.  Products of two unknown expectations take
one factor from each of two independent estimates, so C has no bias.

**A norm over the features after the activation**: with x_i = (σ_i − m_i)/√(v_i + eps), m_i and v_i
the limits of mean and variance over the features, and F the next Gram matrix, it is the mean of

    g_ij = x_i x_j − ½ F_ij (x_i² + x_j²).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.mean_field.finite_width.packing import packed, products
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.norm_after import sample_moments
from bnmc.mean_field.map.rows import Rows, follows_activation

__all__ = ["Estimates", "NormTerms", "norm_terms"]

# Variances of samples that differ by less are equal; pairs with δ below this part of ρ_iρ_j are
# parallel.
_EQUAL, _PARALLEL = 1e-12, 1e-10


class Estimates(NamedTuple):
    """Means over points, of entries f of one row in packed coordinates.

    Attributes
    ----------
    squares : ndarray of shape (p, p)
        E f fᵀ.
    slopes : ndarray of shape (p, r(r+1)/2)
        ½ E f (zzᵀ − I).
    linear : ndarray of shape (p, r)
        E f zᵀ.
    """

    squares: FloatArray
    slopes: FloatArray
    linear: FloatArray


class NormTerms:
    """One layer without a norm over the features: its Gram matrix is the mean of σσᵀ.

    Parameters
    ----------
    following : ndarray of shape (batch, batch)
        The Gram matrix of the layer, at infinite width.
    """

    def __init__(self, following: FloatArray) -> None:
        self._mean = packed(following)

    def entries(self, sigma: FloatArray) -> FloatArray:
        """Return entries f of mean 0 for activated rows, (rows, p)."""
        return products(sigma) - self._mean

    def noise(self, first: Estimates, second: Estimates) -> FloatArray:
        """Return C from two independent estimates."""
        return np.asarray(0.5 * (first.squares + second.squares))

    def slopes(self, estimates: Estimates) -> FloatArray:
        """Return J, from packed coordinates of A."""
        return estimates.slopes

    def visible(self, seen: FloatArray) -> FloatArray:
        """Return the covariance of the part of A that the normalization sees, of that of A."""
        return seen


class _NormBefore(NormTerms):
    """A layer with a norm over the features before the activation.

    Parameters
    ----------
    chain : Chain
    rows : Rows
    following : ndarray of shape (batch, batch)
    """

    def __init__(self, chain: Chain, rows: Rows, following: FloatArray) -> None:
        super().__init__(following)
        self._centred = chain.normalization.centred
        self._root = rows.vectors * np.sqrt(rows.values)
        outer = self._root[:, :, None] * self._root[:, None, :]
        self._pi = packed(outer)
        self._trace = packed(np.eye(self._root.shape[1]))
        covariance = self._root @ self._root.T
        rho = np.diagonal(covariance)
        i, j = self._pairs = np.triu_indices(len(rho))
        determinant = rho[i] * rho[j] - covariance[i, j] ** 2
        differ = np.abs(rho[i] - rho[j]) > _EQUAL
        if np.any(differ & ~(determinant > _PARALLEL * rho[i] * rho[j])):
            allowed = "no parallel samples of different lengths, as eps is not 0"
            raise ArgumentError("G0", "a matrix with parallel samples", allowed)
        # Weights of J₀[Π_i] and J₀[Π_j] in half of the difference of the coefficients of a pair.
        weight = np.divide(1.0, determinant, out=np.zeros_like(determinant), where=differ)
        self._of_first, self._of_second = rho[j] * weight, rho[i] * weight

    def _coefficients(self, slopes: FloatArray) -> FloatArray:
        """Return L, shape (p, batch)."""
        i, j = self._pairs
        half = slopes @ self._trace
        images, pairs = slopes @ self._pi.T, np.arange(len(i))
        apart = self._of_first * images[pairs, i] - self._of_second * images[pairs, j]
        found = np.zeros_like(images)
        found[pairs, i] += half + apart
        found[pairs, j] += half - apart
        return found

    def slopes(self, estimates: Estimates) -> FloatArray:
        """Return J, from packed coordinates of A."""
        found = self._coefficients(estimates.slopes) @ self._pi
        return np.asarray(estimates.slopes - 0.5 * found)

    def noise(self, first: Estimates, second: Estimates) -> FloatArray:
        """Return C from two independent estimates."""
        along = [self._coefficients(one.slopes) @ self._pi for one in (first, second)]
        mixed = along[0] @ second.slopes.T + along[1] @ first.slopes.T
        terms = 0.5 * along[0] @ along[1].T - mixed
        if self._centred:
            terms = terms - first.linear @ second.linear.T
        return np.asarray(super().noise(first, second) + 0.5 * (terms + terms.T))

    def visible(self, seen: FloatArray) -> FloatArray:
        """Return the covariance of A without changes of the lengths of samples."""
        values = np.sqrt((self._root**2).sum(axis=0))
        # A⁺ e_i, from the orthogonal columns of the root.
        inverse = self._root / values**2
        outer = inverse[:, :, None] * self._root[:, None, :]
        lengths = packed(outer + outer.swapaxes(1, 2))
        kept = np.eye(len(seen)) - 0.5 * lengths.T @ self._pi
        return np.asarray(kept @ seen @ kept.T)


class _NormAfter(NormTerms):
    """A layer with a norm over the features after the activation.

    Parameters
    ----------
    chain : Chain
    gram : ndarray of shape (batch, batch)
        The Gram matrix of the layer before.
    following : ndarray of shape (batch, batch)
    """

    def __init__(self, chain: Chain, gram: FloatArray, following: FloatArray) -> None:
        super().__init__(following)
        at = sample_moments(chain, gram)
        self._means, self._spread = at.means, np.sqrt(at.variances + chain.eps)
        self._squares = np.diagonal(following)
        i, j = np.triu_indices(len(following))
        self._pairs = i, j
        factor = np.where(i == j, 0.5, math.sqrt(0.5))
        self._weights = factor * following[i, j]

    def entries(self, sigma: FloatArray) -> FloatArray:
        """Return entries f of mean 0 for activated rows, (rows, p)."""
        i, j = self._pairs
        x = (sigma - self._means) / self._spread
        squares = x * x - self._squares
        lengths = self._weights * (squares[:, i] + squares[:, j])
        return np.asarray(super().entries(x) - lengths)


def norm_terms(chain: Chain, rows: Rows, gram: FloatArray, following: FloatArray) -> NormTerms:
    """Return the terms of a layer of the path.

    Parameters
    ----------
    chain : Chain
    rows : Rows
        The law of a row, from `gram`.
    gram, following : ndarray of shape (batch, batch)
        The Gram matrices of the layer before and of the layer.
    """
    if follows_activation(chain):
        return _NormAfter(chain, gram, following)
    if chain.normalization.axis == "features":
        return _NormBefore(chain, rows, following)
    return NormTerms(following)
