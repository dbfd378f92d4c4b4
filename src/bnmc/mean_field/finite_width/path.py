"""Fluctuations along the path of one input: noise and Jacobian at each Gram matrix, by lattices.

Let G_l be the Gram matrices of the mean field, R z with z ~ N(0, I) the row that the normalization
sees given G_l, σ the vector of activations of the normalized row, and d the width.  To leading
order the Gram matrix of layer l at width d has the covariance S_l/d around G_l, with S_0 = 0 and

    S_{l+1} = J_l S_l J_lᵀ + C_l,    C_l = Cov(σσᵀ),
    J_l[Δ] = ½ Cov(σσᵀ, zᵀAz),       A = R⁺ Δ R⁺ᵀ.

If layer l + 1 of a network has the width d_{l+1}, C_l/d_{l+1} replaces C_l, and S_l is the
covariance itself.

If the length of the row does not matter, zzᵀ is replaced by r zzᵀ/|z|², which has the same
covariance with σσᵀ and less variance; r is the rank of R.

A norm over the features adds terms to σσᵀ: see below.  With biases or a convolution, Δ is
first mapped to the change of the covariance of a row.

The expectations are means over scrambled Sobol points, new ones in each layer.  J_l S_l J_lᵀ uses
two independent estimates of J_l, one on either side, so S_l has no bias.  Independent replicates of
the whole path give standard errors.

The linear theory neglects the change of J_l over a fluctuation.  Let r_l = E‖A‖²/m² be the squared
relative fluctuation at width 1, with A of size m × m (without the part that the normalization does
not see: its trace, if the length of the row does not matter), and ρ_l² the part of the trace of S_l
that J_{l−1} S_{l−1} J_{l−1}ᵀ has.  The errors of all earlier layers are about

    x_{l+1} = ρ_{l+1} (x_l + r_l),    x_0 = 0,

relative to S_l and at width 1.  At stationarity x = ρ r/(1 − ρ).

**What a normalization adds.**  Given the Gram matrix G of a layer, the rows of the next layer are
i.i.d. before the normalization. Without a norm over the features, its Gram matrix is the mean over
rows of σσᵀ.

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
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Network, layer_at
from bnmc.chain.layers import Layer, over_square, start_of
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.mean_field.finite_width.gaussian import PathFluctuations, packed, products, unpacked
from bnmc.mean_field.float64 import FloatArray, standard_error
from bnmc.mean_field.map.points import row_outputs
from bnmc.mean_field.map.rows import Rows, follows_activation, gaussian_rows
from bnmc.mean_field.pairwise_layer import PairwiseLayer

# Independent replicates of the path; the standard errors come from their spread.
_REPLICATES = 8

# The numbers of points of an estimate of J are powers of 2 with these exponents; the next one is
# tried until the standard error is small enough.
_FIRST, _MORE = 9, 2

# Numbers in an array of products of activations, at most.
_CHUNK = 1 << 20

# Uniform numbers are at least this far from 0 and 1, where normal ones are infinite.
_LEAST = 1e-16


def path_fluctuations(
    network: Network,
    grams: FloatArray,
    covariances: FloatArray | None,
    rtol: float,
    key: int,
    most: int,
    *,
    has_widths: bool,
) -> PathFluctuations:
    """Return the covariances along a path, refined to `rtol` or up to `most` points.

    Parameters
    ----------
    network : Network
        Without skip connections.
    grams : ndarray of shape (depth + 1, batch, batch)
        The path of the mean field.
    covariances : ndarray of the same shape, or None
        The covariances of rows, if the rows of layer 0 are random.
    rtol : float
        Largest acceptable standard error of the trace of S_l, relative to its value.
    key : int
        Seed of the scrambling.
    most : int
        Points of one estimate of J, at most, unless the first lattice has more.
    has_widths : bool
        Whether the covariances are those at the widths of the network, or at width 1.
    """
    layers = [layer_at(network, number) for number in range(len(grams))]
    widths = np.array(network.widths) if has_widths else None
    divisors = np.ones(len(layers)) if widths is None else widths
    path, start = grams, 1
    if covariances is not None:
        layers[0] = start_of(layers[0])
        path, start = np.concatenate([covariances[:1], grams]), 0
    exponent = _FIRST
    while True:
        seeds = [np.random.SeedSequence((key, exponent, r)) for r in range(_REPLICATES)]
        runs = [
            _replicate(layers[start:], path, divisors[start:], seed, exponent) for seed in seeds
        ]
        replicates, squares, carried = (
            np.array(each)[:, 1 - start :] for each in zip(*runs, strict=True)
        )
        traces = np.trace(replicates, axis1=2, axis2=3)
        law = PathFluctuations(
            layers=np.arange(len(grams)),
            gram=grams,
            covariances=np.mean(replicates, axis=0),
            stderr=standard_error(traces),
            nonlinearity=_nonlinearity(*(np.mean(x, axis=0) for x in (squares, carried, traces))),
            points=2 * _REPLICATES << exponent,
            widths=widths,
        )
        if law.error <= rtol or 1 << (exponent + _MORE) > most:
            return law
        exponent += _MORE


def _nonlinearity(squares: FloatArray, carried: FloatArray, traces: FloatArray) -> FloatArray:
    """Return x_l of each layer from r_l and the traces of J_{l−1} S_{l−1} J_{l−1}ᵀ and of S_l."""
    errors = np.zeros(len(traces))
    for layer in np.flatnonzero(traces[1:] > 0.0):
        share = math.sqrt(max(carried[layer + 1] / traces[layer + 1], 0.0))
        errors[layer + 1] = share * (errors[layer] + max(squares[layer], 0.0))
    return errors


def _replicate(
    layers: Sequence[Layer],
    grams: FloatArray,
    widths: NDArray[Any],
    seed: np.random.SeedSequence,
    exponent: int,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return S_l of one replicate, shape (depth + 1, p, p) with p = n(n+1)/2.

    Also r_l, and the traces of J_{l−1} S_{l−1} J_{l−1}ᵀ, each of shape (depth + 1,).
    """
    n = grams.shape[1]
    p = n * (n + 1) // 2
    covariances = np.zeros((len(grams), p, p))
    squares, traces = np.zeros((2, len(grams)))
    seeds = seed.spawn(2 * (len(grams) - 1))
    for number, layer in enumerate(layers):
        rows = gaussian_rows(layer, grams[number])
        terms = norm_terms(layer, rows, grams[number], grams[number + 1])
        pair = seeds[2 * number : 2 * number + 2]
        first, second = (_estimates(layer, rows, terms, child, exponent) for child in pair)
        noise = terms.noise(first, second) / widths[number]
        with np.errstate(over="ignore"):
            whitened = _whitening(layer, rows, grams[number])
        if not np.isfinite(whitened).all():
            raise NonFiniteError(None, number, "inverse of the covariance")
        seen = whitened @ covariances[number] @ whitened.T
        carried = terms.slopes(first) @ seen @ terms.slopes(second).T
        covariances[number + 1] = 0.5 * (carried + carried.T) + noise
        squares[number] = _relative_square(terms.visible(seen), rows)
        traces[number + 1] = np.trace(carried)
    return covariances, squares, traces


def _relative_square(seen: FloatArray, rows: Rows) -> float:
    """Return E‖A‖²/m² from the covariance of A, without its trace if only the direction counts."""
    m = rows.vectors.shape[1]
    if m == 0:
        return 0.0
    trace = packed(np.eye(m)) / math.sqrt(m)
    share = float(trace @ seen @ trace) if rows.damping == 0.0 else 0.0
    return float((np.trace(seen) - share) / m**2)


def _estimates(
    layer: Layer, rows: Rows, terms: _NormTerms, seed: np.random.SeedSequence, exponent: int
) -> Estimates:
    """Return expectations over a row in packed coordinates, by 2^exponent points."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    n, r = rows.vectors.shape
    p = n * (n + 1) // 2
    if r == 0:  # eps makes every row 0
        return Estimates(np.zeros((p, p)), np.zeros((p, 0)), np.zeros((p, 0)))
    sampler = qmc.Sobol(r, scramble=True, rng=np.random.default_rng(seed))
    root = rows.vectors * np.sqrt(rows.values)
    size = max(1, min(exponent, int(math.log2(max(2.0, _CHUNK / (n * n))))))
    noise, slopes, linear = np.zeros((3, 1))
    for _ in range(1 << (exponent - size)):
        z = ndtri(np.clip(sampler.random(1 << size), _LEAST, 1.0 - _LEAST))
        length = (z * z) @ rows.norm_values + rows.damping
        phi = (z @ root.T) * np.sqrt(rows.scale / length)[:, None]
        if rows.damping == 0.0:  # the length of the row does not matter
            z *= np.sqrt(r / (z * z).sum(axis=1))[:, None]
        score = products(z) - packed(np.eye(r))
        entries = terms.entries(row_outputs(layer.rows, phi))
        noise = noise + entries.T @ entries
        slopes = slopes + entries.T @ score
        linear = linear + entries.T @ z
    count = 1 << exponent
    return Estimates(noise / count, 0.5 * slopes / count, linear / count)


def _whitening(layer: Layer, rows: Rows, gram: FloatArray) -> FloatArray:
    """Return the matrix from packed coordinates of Δ to those of A."""
    n = len(gram)
    covariance = layer.covariance(gram)
    if layer.rows.norm.axis == "features" and not follows_activation(layer):
        # The row is D^(-½) w, with D the variances of the samples.
        spread = np.sqrt(np.diagonal(covariance) + over_square(layer.rows.eps, layer.linear.gain))
        inverse = rows.vectors / np.sqrt(rows.values) / spread[:, None]
    else:
        # The row is R z with RRᵀ the part of the covariance that the normalization sees, up to a
        # factor.
        seen = np.einsum("ia,ij,ja->a", rows.vectors, covariance, rows.vectors)
        inverse = rows.vectors / np.sqrt(seen)
    basis = unpacked(np.eye(n * (n + 1) // 2))
    basis = layer.linear.patches.covariance(basis)
    return packed(inverse.T @ basis @ inverse).T


# --- what a normalization adds

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


class _NormTerms:
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


class _NormBefore(_NormTerms):
    """A layer with a norm over the features before the activation.

    Parameters
    ----------
    layer : Layer
    rows : Rows
    following : ndarray of shape (batch, batch)
    """

    def __init__(self, layer: Layer, rows: Rows, following: FloatArray) -> None:
        super().__init__(following)
        self._centred = layer.rows.norm.centred
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
        coefficients = np.zeros_like(images)
        coefficients[pairs, i] += half + apart
        coefficients[pairs, j] += half - apart
        return coefficients

    def slopes(self, estimates: Estimates) -> FloatArray:
        """Return J, from packed coordinates of A."""
        lengths = self._coefficients(estimates.slopes) @ self._pi
        return np.asarray(estimates.slopes - 0.5 * lengths)

    def noise(self, first: Estimates, second: Estimates) -> FloatArray:
        """Return C from two independent estimates."""
        along = [self._coefficients(estimates.slopes) @ self._pi for estimates in (first, second)]
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
        visible = np.eye(len(seen)) - 0.5 * lengths.T @ self._pi
        return np.asarray(visible @ seen @ visible.T)


class _NormAfter(_NormTerms):
    """A layer with a norm over the features after the activation.

    Parameters
    ----------
    layer : Layer
    gram : ndarray of shape (batch, batch)
        The Gram matrix of the layer before.
    following : ndarray of shape (batch, batch)
    """

    def __init__(self, layer: Layer, gram: FloatArray, following: FloatArray) -> None:
        super().__init__(following)
        gain = layer.linear.gain
        covariance = gain * gain * np.diagonal(layer.covariance(gram))
        level = PairwiseLayer.of(layer).levels(covariance)
        self._means, self._spread = level.mean, level.scale
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


def norm_terms(layer: Layer, rows: Rows, gram: FloatArray, following: FloatArray) -> _NormTerms:
    """Return the terms of a layer of the path.

    Parameters
    ----------
    layer : Layer
    rows : Rows
        The law of a row, from `gram`.
    gram, following : ndarray of shape (batch, batch)
        The Gram matrices of the layer before and of the layer.
    """
    if follows_activation(layer) and layer.rows.norm.axis == "features":
        return _NormAfter(layer, gram, following)
    if layer.rows.norm.axis == "features":
        return _NormBefore(layer, rows, following)
    return _NormTerms(following)
