"""One layer of batch normalization and any activation, by randomized quasi-Monte Carlo.

**Normalization before the activation**

Let u = L z and v = L′ z be rows of two batches of n and n′ samples, as in `batch_integrals`, with
z a vector of k independent standard normal variables, and û = u/|u|, v̂ = v/|v|.  With the
activations σ_i = σ(√n û_i) and σ_j = σ(√n′ v̂_j), the next layer has the covariances E σ_i σ_j, and
the sum over the parameters of earlier layers is, with M, t and t′ as in `batch_integrals`,

    √(n n′/(t t′)) E σ′_i σ′_j (M − û ûᵀM − M v̂ v̂ᵀ + û ûᵀM v̂ v̂ᵀ)_ij / (|u||v|).

Activations depend on the direction of z only, and |z|² is an independent chi-squared variable with
k degrees of freedom, E |z|⁻² = 1/(k − 2).  So 1/(|u||v|) is replaced by its mean given the
direction, |z|²/((k − 2)|u||v|).  For one batch this is bounded.

For one batch there is a control variate: the piecewise linear function χ whose slopes left and
right of 0 are the mean slopes of σ.  Its layer is known from `batch_integrals`, so the points
estimate the difference of the two layers only.  Between batches that would save less time than the
integrals of χ take.

**Normalization after the activation**

Let u be a row of a batch of n samples: normal with covariance K.  With its mean ū and its
deviations d = u − ū, the normalized outputs are √n ŷ, ŷ = y/r, r = |y|, y = P σ(ū + d), where P is
the projector orthogonal to (1, …, 1).  Their derivative with respect to u is, with s = σ′(ū + d),

    J = (√n/r) (P − ŷ ŷᵀ) diag(s).

Let v be a row of another batch with d′, y′, s′, and Θ the tangent kernel between the batches.  The
next layer has the covariances √(n n′) E ŷ ŷ′ᵀ, and E J Θ J′ᵀ is the sum over the parameters of
earlier layers.

**Nearly equal samples** have small deviations, which would be lost beside the means.  So K and Θ
are given in split coordinates: deviations and mean, of shape (n + 1, n′ + 1).  With D the block of
deviations of Θ, c and c′ its last column and row without their end e, and q(w) = P w − ŷ ŷᵀP w,

    (r r′/√(n n′)) J Θ J′ᵀ = (P − ŷŷᵀ) (s s′ᵀ ⊙ D) (P − ŷ′ŷ′ᵀ)
        + q(s ⊙ c) q(s′)ᵀ + q(s) (q(s′ ⊙ c′) + e q(s′))ᵀ.

If all deviations of a row are so small that σ is linear to half of the digits, y is ±d and s is ±1.

**Small deviations of a row** make J large, of order 1/|d|.  Let d and d′ be L z, with k
coordinates z.  To integrate tangents |z|² is drawn from the chi-squared law with k − 2 degrees of
freedom instead of k, and each point has the weight |z|²/(k − 2).  For one batch the integrand is
then bounded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtr, ndtri
from scipy.stats import qmc

from bnmc.chain.activations import Activation, slope_at
from bnmc.chain.norms import as_norm
from bnmc.errors import NonFiniteError
from bnmc.infinite_width.batch_integrals import (
    BatchLaw,
    Homogeneous,
    Pair,
    joint_factor,
    seen_tangents,
)
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.map.points import constant_rows

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


# --- normalization before the activation


def mean_slopes(activation: Activation) -> Homogeneous:
    """Return the layer of the mean slopes of σ at standard normal numbers of each sign.

    ``E σ'(x) = E x (σ(x) − σ(0))`` on each side, by partial integration.
    """
    x = ndtri((np.arange(_SLOPE_POINTS) + 0.5) / _SLOPE_POINTS)
    rise = x * (activation(x) - activation(np.zeros_like(x)))
    half = _SLOPE_POINTS // 2
    return Homogeneous(float(rise[:half].mean()), float(rise[half:].mean()))


class Sampled:
    """Layers with batch normalization before an activation, at given points.

    Parameters
    ----------
    activation : Activation
    normals : ndarray of shape (points, dimensions)
        At least as many dimensions as the rows of a pair of batches have.
    control : Homogeneous, optional
        Its layer is subtracted at the points and added exactly, for one batch.
    """

    error = 0.0  # the spread of replicates shows it

    def __init__(
        self, activation: Activation, normals: FloatArray, control: Homogeneous | None = None
    ) -> None:
        self.activation, self.normals, self.control = activation, normals, control

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ of one batch, and the tangents of earlier layers (zeros for None)."""
        base = law.vectors * np.sqrt(law.values)
        base = np.ascontiguousarray(base[:, ::-1])
        pair = Pair(law, law, law.covariance, tangent)
        value, slopes = self._means(pair, (base, base), self.control)
        if self.control is None:
            return value, slopes
        exact = self.control.own(law, tangent)
        return value + exact[0], slopes + exact[1]

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ between two batches, and the tangents of earlier layers."""
        factor, rank = joint_factor(pair), pair.left.rank
        bases = pair.left.vectors @ factor[:rank], pair.right.vectors @ factor[rank:]
        return self._means(pair, bases, None)

    def _means(
        self, pair: Pair, bases: tuple[FloatArray, FloatArray], control: Homogeneous | None
    ) -> tuple[FloatArray, FloatArray]:
        """Return the means over the points; with a control, of the difference from its layer."""
        laws, M = (pair.left, pair.right), seen_tangents(pair)
        shape, rank = (laws[0].size, laws[1].size), bases[0].shape[1]
        value, slopes = np.zeros((2, *shape))
        points = len(self.normals)
        for first in range(0, points, _BLOCK):
            z = self.normals[first : first + _BLOCK, :rank]
            rows = [z @ base.T for base in bases]
            lengths = [np.linalg.norm(row, axis=1) for row in rows]
            units = [row / size[:, None] for row, size in zip(rows, lengths, strict=True)]
            inputs = [np.sqrt(law.size) * unit for law, unit in zip(laws, units, strict=True)]
            outputs = [self.activation(x) for x in inputs]
            if not all(np.isfinite(x).all() for x in outputs):
                raise NonFiniteError(None, None, "activation of a normalized row")
            value += outputs[0].T @ outputs[1]
            expected = [] if control is None else [control.slope(x) for x in inputs]
            if expected:
                value -= (expected[0] * inputs[0]).T @ (expected[1] * inputs[1])
            if M is None:
                continue
            weight = (np.sum(z**2, axis=1) / ((rank - 2.0) * lengths[0] * lengths[1]))[:, None]
            at = _Directions(units[0], units[1], units[1] @ M.T, units[0] @ M)
            derivatives = [slope_at(self.activation, x) for x in inputs]
            slopes += at.tangents(derivatives[0] * weight, derivatives[1], M)
            if expected:
                slopes -= at.tangents(expected[0] * weight, expected[1], M)
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


# Deviations up to this part of the mean, or of 1, take the linear approximation.
_LINEAR = EPSILON**0.5

# Outputs of a row whose deviations have at most this part of their size are rounding only.
_ROUNDING = 8 * EPSILON


# --- normalization after the activation


class Linear(Homogeneous):
    """Layers of a linear activation, which commutes with the norm up to a factor."""

    def __init__(self) -> None:
        super().__init__(1.0, 1.0)

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of normalized outputs, and the tangents of earlier layers."""
        return _split(*super().own(law, None if tangent is None else tangent[:-1, :-1]))

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of normalized outputs, and the tangents of earlier layers."""
        tangent = None if pair.tangent is None else pair.tangent[:-1, :-1]
        return _split(*super().across(pair._replace(across=pair.across[:-1, :-1], tangent=tangent)))


class Stream:
    """Layers that change nothing: the skip connection beside an activation before its norm."""

    error = 0.0

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the covariances and the tangents of the layer before."""
        return self.across(Pair(law, law, law.covariance, tangent))

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return the covariances and the tangents of the layer before."""
        return pair.across, np.zeros_like(pair.across) if pair.tangent is None else pair.tangent


class ActivatedPoints:
    """Layers of any activation before batch normalization, at given points.

    Parameters
    ----------
    activation : Activation
    normals : ndarray of shape (points, coordinates)
        One coordinate for each sample of a pair of batches, and one more.
    """

    error = 0.0

    def __init__(self, activation: Activation, normals: FloatArray) -> None:
        self.activation, self.normals = activation, normals

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of normalized outputs, and the tangents of earlier layers."""
        rows = _Rows.of([law], [[law.covariance]], np.diag(np.sqrt(law.values)))
        return self._means(Pair(law, law, law.covariance, tangent), rows)

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return the covariances of normalized outputs, and the tangents of earlier layers."""
        left, right, across, _ = pair
        blocks = [[left.covariance, across], [across.T, right.covariance]]
        factor = joint_factor(pair._replace(across=across[:-1, :-1]))
        return self._means(pair, _Rows.of([left, right], blocks, factor))

    def _means(self, pair: Pair, rows: _Rows) -> tuple[FloatArray, FloatArray]:
        """Return the means over the points."""
        sizes, tangent = (pair.left.size, pair.right.size), pair.tangent
        value, slopes = np.zeros((2, *sizes))
        for first in range(0, len(self.normals), _BLOCK):
            normals = self.normals[first : first + _BLOCK]
            deviations, means, weight = rows.at(normals, tangent is not None)
            ends = [
                _Outputs.of(self.activation, d, mean, tangent is not None)
                for d, mean in zip(deviations, means, strict=True)
            ]
            left, right = ends[0], ends[-1]
            value += (weight[:, None] * left.unit).T @ right.unit
            if tangent is not None:
                slopes += left.tangents(right, weight, tangent)
        scale = np.sqrt(sizes[0] * sizes[1]) / len(self.normals)
        return _split(scale * value, scale * slopes)


class _Rows(NamedTuple):
    """Linear maps from independent standard normal variables to the rows of one or two batches.

    Attributes
    ----------
    deviations : list of ndarray of shape (n, k)
    means : ndarray of shape (batches, k)
    rest : ndarray of shape (batches, coordinates)
        From variables that are independent of the deviations to the means.
    """

    deviations: list[FloatArray]
    means: FloatArray
    rest: FloatArray

    @classmethod
    def of(cls, laws: list[BatchLaw], blocks: list[list[FloatArray]], factor: FloatArray) -> _Rows:
        """Return the maps.

        Parameters
        ----------
        laws : list of BatchLaw
        blocks : list of list of ndarray
            The covariances of each batch with each batch, in split coordinates.
        factor : ndarray of shape (ranks, k)
            L with orthogonal columns, and L Lᵀ the covariance of the deviations in their units.
        """
        # Covariances of the means with the deviations in their units, and of the means.
        columns = [
            np.concatenate([_in_units(*pair) for pair in zip(laws, row, strict=True)])
            for row in blocks
        ]
        means = np.array([[block[-1, -1] for block in row] for row in blocks])
        regression = np.array(columns) @ factor / np.sum(factor**2, axis=0)
        values, vectors = np.linalg.eigh(means - regression @ regression.T)
        positive = values > len(values) * EPSILON * np.trace(means)
        parts = np.split(factor, np.cumsum([law.rank for law in laws])[:-1])
        pairs = zip(laws, parts, strict=True)
        deviations = [np.sqrt(law.trace) * (law.vectors @ part) for law, part in pairs]
        return cls(deviations, regression, vectors[:, positive] * np.sqrt(values[positive]))

    def at(
        self, normals: FloatArray, small: bool
    ) -> tuple[list[FloatArray], list[FloatArray], FloatArray]:
        """Return the deviations and the means at points, and the weights of the points.

        Parameters
        ----------
        normals : ndarray of shape (points, coordinates)
        small : bool
            Whether more points have small deviations, and a smaller weight.
        """
        k, rest = self.means.shape[1], self.rest.shape[1]
        z, weight = normals[:, :k], np.ones(len(normals))
        if small and k >= 3:
            # At most 1 − 2⁻³¹, as the points are no further from 0.
            squares = 2.0 * gammaincinv(0.5 * (k - 2), ndtr(normals[:, -1]))
            z = z * np.sqrt(squares / np.sum(z**2, axis=1))[:, None]
            weight = squares / (k - 2)
        means = z @ self.means.T + normals[:, k : k + rest] @ self.rest.T
        return [z @ factor.T for factor in self.deviations], list(means.T), weight


class _Outputs(NamedTuple):
    """Normalized outputs of rows of one batch, and what their derivative needs.

    Attributes
    ----------
    unit : ndarray of shape (points, n)
        ŷ.
    length : ndarray of shape (points,)
        r.
    slopes : ndarray of shape (points, n)
        s.
    """

    unit: FloatArray
    length: FloatArray
    slopes: FloatArray

    @classmethod
    def of(cls, activation: Activation, d: FloatArray, mean: FloatArray, tangent: bool) -> _Outputs:
        """Return the outputs of rows with some deviations and means, or raise."""
        u = mean[:, None] + d
        values = activation(u)
        if not np.isfinite(values).all():
            raise NonFiniteError(None, None, "activation of a row")
        y = _projected(values)
        slopes = slope_at(activation, u) if tangent else np.zeros_like(y)
        length = np.linalg.norm(y, axis=1)
        size = np.maximum(1.0, np.abs(mean))
        linear = np.abs(d).max(axis=1) <= _LINEAR * size
        if linear.any():
            step = 1e-6 * size[linear]
            rise = activation(mean[linear] + step) - activation(mean[linear] - step)
            sign = np.where(rise < 0.0, -1.0, 1.0)[:, None]
            y[linear], slopes[linear] = sign * d[linear], sign
            length[linear] = np.linalg.norm(d[linear], axis=1)
        if (length <= np.where(linear, 0.0, _ROUNDING * np.abs(values).max(axis=1))).any():
            raise constant_rows(activation, as_norm("batch"))
        return cls(y / length[:, None], length, slopes)

    def tangents(self, other: _Outputs, weight: FloatArray, tangent: FloatArray) -> FloatArray:
        """Return the sum over points of weight J Θ J′ᵀ/√(n n′)."""
        f = (weight / (self.length * other.length))[:, None]
        inner = tangent[:-1, :-1]
        total = _projected(_projected(((f * self.slopes).T @ other.slopes) * inner).T).T
        forward = _projected(self.slopes * ((other.unit * other.slopes) @ inner.T))
        back = _projected(other.slopes * ((self.unit * self.slopes) @ inner))
        forward -= self.unit * np.sum(self.unit * forward, axis=1)[:, None]
        total -= (f * forward).T @ other.unit
        total -= (f * self.unit).T @ back
        with_mean, q = self._seen(self.slopes * tangent[:-1, -1]), self._seen(self.slopes)
        q2 = other._seen(other.slopes)
        with_mean2 = other._seen(other.slopes * tangent[-1, :-1]) + tangent[-1, -1] * q2
        return np.asarray(total + (f * with_mean).T @ q2 + (f * q).T @ with_mean2)

    def _seen(self, vectors: FloatArray) -> FloatArray:
        """Return q(w) of vectors."""
        rows = _projected(vectors)
        return np.asarray(rows - self.unit * np.sum(self.unit * rows, axis=1)[:, None])


def _in_units(law: BatchLaw, block: FloatArray) -> FloatArray:
    """Return covariances of a mean with deviations in units of their eigenvectors and trace."""
    return block[-1, :-1] @ law.vectors / np.sqrt(law.trace)


def _split(value: FloatArray, slopes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return covariances and tangents of deviations in split coordinates: the means are 0."""
    return np.pad(value, (0, 1)), np.pad(slopes, (0, 1))


def _projected(rows: FloatArray) -> FloatArray:
    """Return rows minus their means."""
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))
