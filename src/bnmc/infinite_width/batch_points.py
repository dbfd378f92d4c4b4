"""One layer of batch normalization and any activation, by randomized quasi-Monte Carlo.

Let u = L z and v = L′ z be rows of two batches of n and n′ samples, as in `batch_law`, with z a
vector of k independent standard normal variables, and û = u/|u|, v̂ = v/|v|.  With the activations
σ_i = σ(√n û_i) and σ_j = σ(√n′ v̂_j), the next layer has the covariances E σ_i σ_j, and the sum
over the parameters of earlier layers is, with M, t and t′ as in `batch_integrals`,

    √(n n′/(t t′)) E σ′_i σ′_j (M − û ûᵀM − M v̂ v̂ᵀ + û ûᵀM v̂ v̂ᵀ)_ij / (|u||v|).

Activations depend on the direction of z only, and |z|² is an independent chi-squared variable with
k degrees of freedom, E |z|⁻² = 1/(k − 2).  So 1/(|u||v|) is replaced by its mean given the
direction, |z|²/((k − 2)|u||v|).  For one batch this is bounded.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from bnmc.chain.activations import Activation
from bnmc.chain.slopes import slope_at
from bnmc.errors import NonFiniteError
from bnmc.infinite_width.batch_law import BatchLaw, joint_factor
from bnmc.mean_field.float64 import FloatArray

__all__ = ["Sampled", "normal_points"]

# Points whose rows are computed at once.
_BLOCK = 1 << 13


def normal_points(dimensions: int, points: int, rng: np.random.Generator) -> FloatArray:
    """Return scrambled Sobol points as standard normal vectors, (points, dimensions).

    Each vector has its negative among the points, since the law of rows is symmetric.
    """
    half = qmc.Sobol(dimensions, scramble=True, rng=rng).random(points // 2)
    # Points are multiples of 2^−30, and 0 is one of them.
    normals = ndtri(half + 2.0**-31)
    return np.concatenate([normals, -normals])


class Sampled:
    """Layers with batch normalization before an activation, at given points.

    Parameters
    ----------
    activation : Activation
    normals : ndarray of shape (points, dimensions)
        At least as many dimensions as the rows of a pair of batches have.
    """

    def __init__(self, activation: Activation, normals: FloatArray) -> None:
        self.activation, self.normals = activation, normals

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ of one batch, and the tangents of earlier layers (zeros for None)."""
        base = law.rows.vectors * np.sqrt(law.rows.values)
        base = np.ascontiguousarray(base[:, ::-1])
        return self._means((law, law), (base, base), tangent)

    def across(
        self, left: BatchLaw, right: BatchLaw, across: FloatArray, tangent: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ between two batches, and the tangents of earlier layers."""
        factor = joint_factor(left, right, across)
        parts = factor[: left.rank], factor[left.rank :]
        bases = left.rows.vectors @ parts[0], right.rows.vectors @ parts[1]
        return self._means((left, right), bases, tangent)

    def _means(
        self,
        laws: tuple[BatchLaw, BatchLaw],
        bases: tuple[FloatArray, FloatArray],
        tangent: FloatArray | None,
    ) -> tuple[FloatArray, FloatArray]:
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
            if not needs_tangent:
                continue
            derivatives = [slope_at(self.activation, one) for one in inputs]
            weight = np.sum(z**2, axis=1) / ((rank - 2.0) * lengths[0] * lengths[1])
            left, right = derivatives[0] * weight[:, None], derivatives[1]
            u, v = units
            forward, back = v @ M.T, u @ M
            slopes += (left.T @ right) * M
            slopes -= (left * u).T @ (right * back)
            slopes -= (left * forward).T @ (right * v)
            slopes += (left * u * np.sum(forward * u, axis=1)[:, None]).T @ (right * v)
        scale = np.sqrt(shape[0] * shape[1] / (laws[0].trace * laws[1].trace))
        return value / points, scale * slopes / points
