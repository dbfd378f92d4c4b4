"""One layer of batch normalization and any activation, by randomized quasi-Monte Carlo.

Let u = L z and v = L′ z be rows of two batches of n and n′ samples, as in `batch_law`, with z a
vector of k independent standard normal variables, and û = u/|u|, v̂ = v/|v|.  With the activations
σ_i = σ(√n û_i) and σ_j = σ(√n′ v̂_j), the next layer has the covariances E σ_i σ_j, and the sum
over the parameters of earlier layers is, with M, t and t′ as in `batch_integrals`,

    √(n n′/(t t′)) E σ′_i σ′_j (M − û ûᵀM − M v̂ v̂ᵀ + û ûᵀM v̂ v̂ᵀ)_ij / (|u||v|).

Activations depend on the direction of z only, and |z|² is an independent chi-squared variable with
k degrees of freedom, E |z|⁻² = 1/(k − 2).  So 1/(|u||v|) is replaced by its mean given the
direction, |z|²/((k − 2)|u||v|).  For one batch this is bounded.

For one batch there is a control variate: the piecewise linear function χ whose slopes left and
right of 0 are the mean slopes of σ.  Its layer is known from `batch_integrals`, so the points
estimate the difference of the two layers only.  Between batches that would save less time than the
integrals of χ take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from bnmc.chain.activations import Activation, slope_at
from bnmc.errors import NonFiniteError
from bnmc.infinite_width.batch_integrals import Homogeneous
from bnmc.infinite_width.batch_law import BatchLaw, joint_factor
from bnmc.mean_field.float64 import FloatArray

__all__ = ["Control", "Sampled", "normal_points"]

# Points whose rows are computed at once: arrays stay in the cache, and BLAS starts no threads.
_BLOCK = 1 << 10

# Points at which the mean slopes of an activation are computed.
_SLOPE_POINTS = 1 << 10


def normal_points(dimensions: int, points: int, rng: np.random.Generator) -> FloatArray:
    """Return scrambled Sobol points as standard normal vectors, (points, dimensions).

    Each vector has its negative among the points, since the law of rows is symmetric.
    """
    half = qmc.Sobol(dimensions, scramble=True, rng=rng).random(points // 2)
    # Points are multiples of 2^−30, and 0 is one of them.
    normals = ndtri(half + 2.0**-31)
    return np.concatenate([normals, -normals])


@dataclass(frozen=True)
class Control:
    """A function with two slopes, left and right of 0, whose layer is known.

    Attributes
    ----------
    left, right : float
    """

    left: float
    right: float

    @classmethod
    def of(cls, activation: Activation) -> Control:
        """Return the function with the mean slopes of σ at standard normal numbers of each sign.

        ``E σ'(x) = E x (σ(x) − σ(0))`` on each side, by partial integration.
        """
        x = ndtri((np.arange(_SLOPE_POINTS) + 0.5) / _SLOPE_POINTS)
        rise = x * (activation(x) - activation(np.zeros_like(x)))
        half = _SLOPE_POINTS // 2
        return cls(float(rise[:half].mean()), float(rise[half:].mean()))

    def slope(self, x: FloatArray) -> FloatArray:
        """Return the slope at each number."""
        return np.where(x < 0.0, self.left, self.right)


class Sampled:
    """Layers with batch normalization before an activation, at given points.

    Parameters
    ----------
    activation : Activation
    normals : ndarray of shape (points, dimensions)
        At least as many dimensions as the rows of a pair of batches have.
    control : Control, optional
        Its layer is subtracted at the points and added exactly, for one batch.
    """

    def __init__(
        self, activation: Activation, normals: FloatArray, control: Control | None = None
    ) -> None:
        self.activation, self.normals, self.control = activation, normals, control

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ of one batch, and the tangents of earlier layers (zeros for None)."""
        base = law.rows.vectors * np.sqrt(law.rows.values)
        base = np.ascontiguousarray(base[:, ::-1])
        value, slopes = self._means((law, law), (base, base), tangent, self.control)
        if self.control is None:
            return value, slopes
        known = Homogeneous(self.control.left, self.control.right).own(law, tangent)
        return value + known[0], slopes + known[1]

    def across(
        self, left: BatchLaw, right: BatchLaw, across: FloatArray, tangent: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ between two batches, and the tangents of earlier layers."""
        factor = joint_factor(left, right, across)
        parts = factor[: left.rank], factor[left.rank :]
        bases = left.rows.vectors @ parts[0], right.rows.vectors @ parts[1]
        return self._means((left, right), bases, tangent, None)

    def _means(
        self,
        laws: tuple[BatchLaw, BatchLaw],
        bases: tuple[FloatArray, FloatArray],
        tangent: FloatArray | None,
        control: Control | None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the means over the points; with a control, of the difference from its layer."""
        shape, rank = (laws[0].size, laws[1].size), bases[0].shape[1]
        value, slopes = np.zeros(shape), np.zeros(shape)
        needs_tangent = tangent is not None and min(law.rank for law in laws) >= 3
        M = np.zeros(shape)
        if needs_tangent:
            assert tangent is not None
            projectors = [law.rows.vectors @ law.rows.vectors.T for law in laws]
            M = projectors[0] @ tangent @ projectors[1]
        points = len(self.normals)
        for first in range(0, points, _BLOCK):
            z = self.normals[first : first + _BLOCK, :rank]
            rows = [z @ base.T for base in bases]
            lengths = [np.linalg.norm(one, axis=1) for one in rows]
            units = [one / size[:, None] for one, size in zip(rows, lengths, strict=True)]
            inputs = [np.sqrt(law.size) * unit for law, unit in zip(laws, units, strict=True)]
            outputs = [self.activation(one) for one in inputs]
            if not all(np.isfinite(one).all() for one in outputs):
                raise NonFiniteError(None, None, "activation of a normalized row")
            value += outputs[0].T @ outputs[1]
            if control is not None:
                known = [control.slope(one) * one for one in inputs]
                value -= known[0].T @ known[1]
            if not needs_tangent:
                continue
            weight = np.sum(z**2, axis=1) / ((rank - 2.0) * lengths[0] * lengths[1])
            at = _Directions(units[0], units[1], units[1] @ M.T, units[0] @ M)
            derivatives = [slope_at(self.activation, one) for one in inputs]
            slopes += at.tangents(derivatives[0] * weight[:, None], derivatives[1], M)
            if control is not None:
                derivatives = [control.slope(one) for one in inputs]
                slopes -= at.tangents(derivatives[0] * weight[:, None], derivatives[1], M)
        scale = np.sqrt(shape[0] * shape[1] / (laws[0].trace * laws[1].trace))
        return value / points, scale * slopes / points


class _Directions(NamedTuple):
    """The directions û and v̂ of rows of two batches, and their products v̂ Mᵀ and û M."""

    u: FloatArray
    v: FloatArray
    forward: FloatArray
    back: FloatArray

    def tangents(self, left: FloatArray, right: FloatArray, M: FloatArray) -> FloatArray:
        """Return the sum over points of l_i r_j (M − û ûᵀM − M v̂ v̂ᵀ + û ûᵀM v̂ v̂ᵀ)_ij."""
        u, v, forward, back = self
        total = (left.T @ right) * M
        total -= (left * u).T @ (right * back)
        inner = np.sum(forward * u, axis=1)[:, None]
        total -= (left * (forward - u * inner)).T @ (right * v)
        return np.asarray(total)
