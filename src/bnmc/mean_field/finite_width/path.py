"""Fluctuations along the path of one input: noise and Jacobian at each Gram matrix, by lattices.

Let G_l be the Gram matrices of the mean field, R z with z ~ N(0, I) the row that the normalization
sees given G_l, σ the vector of activations of the normalized row, and d the width.  To leading
order the Gram matrix of layer l at width d has the covariance S_l/d around G_l, with S_0 = 0 and

    S_{l+1} = J_l S_l J_lᵀ + C_l,    C_l = Cov(σσᵀ),
    J_l[Δ] = ½ Cov(σσᵀ, zᵀAz),       A = R⁺ Δ R⁺ᵀ.

If the length of the row does not matter, zzᵀ is replaced by r zzᵀ/|z|², which has the same
covariance with σσᵀ and less variance; r is the rank of R.

A norm over the features adds terms to σσᵀ: see `bnmc.mean_field.finite_width.norm_terms`.  With
biases or a convolution, Δ is first mapped to the change of the covariance of a row.

The expectations are means over scrambled Sobol points, new ones in each layer.  J_l S_l J_lᵀ uses
two independent estimates of J_l, one on either side, so S_l has no bias.  Independent replicates of
the whole path give standard errors.

The linear theory neglects the change of J_l over a fluctuation.  Let r_l = E‖A‖²/m² be the squared
relative fluctuation at width 1, with A of size m × m (without the part that the normalization does
not see: its trace, if the length of the row does not matter), and ρ_l² the part of the trace of S_l
that J_{l−1} S_{l−1} J_{l−1}ᵀ has.  The errors of all earlier layers are about

    x_{l+1} = ρ_{l+1} (x_l + r_l),    x_0 = 0,

relative to S_l and at width 1.  At stationarity x = ρ r/(1 − ρ).
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.mean_field.finite_width.norm_terms import Estimates, NormTerms, norm_terms
from bnmc.mean_field.finite_width.packing import packed, products
from bnmc.mean_field.finite_width.path_results import PathFluctuations
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.rows import Rows, follows_activation, gaussian_rows

__all__ = ["REPLICATES", "path_fluctuations"]

#: Independent replicates of the path; the standard errors come from their spread.
REPLICATES = 8

# The numbers of points of an estimate of J are powers of 2 with these exponents; the next one is
# tried until the standard error is small enough.
_FIRST, _MORE = 9, 2

# Numbers in an array of products of activations, at most.
_CHUNK = 1 << 20

# Uniform numbers are at least this far from 0 and 1, where normal ones are infinite.
_LEAST = 1e-16


def path_fluctuations(
    chain: Chain, grams: FloatArray, rtol: float, key: int, most: int
) -> PathFluctuations:
    """Return the covariances along a path, refined to `rtol` or up to `most` points.

    Parameters
    ----------
    chain : Chain
        The chain; skip is 0.
    grams : ndarray of shape (depth + 1, batch, batch)
        The path of the mean field.
    rtol : float
        Largest acceptable standard error of the trace of S_l, relative to its value.
    key : int
        Seed of the scrambling.
    most : int
        Points of one estimate of J, at most, unless the first lattice has more.
    """
    exponent = _FIRST
    while True:
        replicates, squares, carried = zip(
            *[
                _replicate(chain, grams, np.random.SeedSequence((key, exponent, r)), exponent)
                for r in range(REPLICATES)
            ],
            strict=True,
        )
        traces = np.trace(replicates, axis1=2, axis2=3)
        found = PathFluctuations(
            layers=np.arange(len(grams)),
            gram=grams,
            covariances=np.mean(replicates, axis=0),
            stderr=_standard_error(traces),
            nonlinearity=_nonlinearity(*(np.mean(x, axis=0) for x in (squares, carried, traces))),
            points=2 * REPLICATES << exponent,
        )
        if found.error <= rtol or 1 << (exponent + _MORE) > most:
            return found
        exponent += _MORE


def _nonlinearity(squares: FloatArray, carried: FloatArray, traces: FloatArray) -> FloatArray:
    """Return x_l of each layer from r_l and the traces of J_{l−1} S_{l−1} J_{l−1}ᵀ and of S_l."""
    found = np.zeros(len(traces))
    for layer in np.flatnonzero(traces[1:] > 0.0):
        share = math.sqrt(max(carried[layer + 1] / traces[layer + 1], 0.0))
        found[layer + 1] = share * (found[layer] + max(squares[layer], 0.0))
    return found


def _standard_error(traces: FloatArray) -> FloatArray:
    return np.asarray(traces.std(axis=0, ddof=1) / math.sqrt(len(traces)))


def _replicate(
    chain: Chain, grams: FloatArray, seed: np.random.SeedSequence, exponent: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return S_l of one replicate, shape (depth + 1, p, p) with p = n(n+1)/2.

    Also r_l, and the traces of J_{l−1} S_{l−1} J_{l−1}ᵀ, each of shape (depth + 1,).
    """
    n = grams.shape[1]
    p = n * (n + 1) // 2
    found = np.zeros((len(grams), p, p))
    squares, traces = np.zeros((2, len(grams)))
    seeds = seed.spawn(2 * (len(grams) - 1))
    for layer in range(len(grams) - 1):
        rows = gaussian_rows(chain, grams[layer])
        terms = norm_terms(chain, rows, grams[layer], grams[layer + 1])
        first, second = (
            _estimates(chain, rows, terms, one, exponent)
            for one in seeds[2 * layer : 2 * layer + 2]
        )
        noise = terms.noise(first, second)
        whitened = _whitening(chain, rows, grams[layer])
        seen = whitened @ found[layer] @ whitened.T
        carried = terms.slopes(first) @ seen @ terms.slopes(second).T
        found[layer + 1] = 0.5 * (carried + carried.T) + noise
        squares[layer] = _relative_square(terms.visible(seen), rows)
        traces[layer + 1] = np.trace(carried)
    return found, squares, traces


def _relative_square(seen: FloatArray, rows: Rows) -> float:
    """Return E‖A‖²/m² from the covariance of A, without its trace if only the direction counts."""
    m = rows.vectors.shape[1]
    if m == 0:
        return 0.0
    trace = packed(np.eye(m)) / math.sqrt(m)
    kept = float(trace @ seen @ trace) if rows.damping == 0.0 else 0.0
    return float((np.trace(seen) - kept) / m**2)


def _estimates(
    chain: Chain, rows: Rows, terms: NormTerms, seed: np.random.SeedSequence, exponent: int
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
        entries = terms.entries(np.asarray(chain.activation(phi)))
        noise = noise + entries.T @ entries
        slopes = slopes + entries.T @ score
        linear = linear + entries.T @ z
    count = 1 << exponent
    return Estimates(noise / count, 0.5 * slopes / count, linear / count)


def _whitening(chain: Chain, rows: Rows, gram: FloatArray) -> FloatArray:
    """Return the matrix from packed coordinates of Δ to those of A."""
    n = len(gram)
    covariance = chain.covariance(gram)
    if chain.normalization.axis == "features" and not follows_activation(chain):
        # The row is D^(-½) w, with D the variances of the samples.
        spread = np.sqrt(np.diagonal(covariance) + chain.eps / chain.gain**2)
        inverse = rows.vectors / np.sqrt(rows.values) / spread[:, None]
    else:
        # The row is R z with RRᵀ the part of the covariance that the normalization sees, up to a
        # factor.
        seen = np.einsum("ia,ij,ja->a", rows.vectors, covariance, rows.vectors)
        inverse = rows.vectors / np.sqrt(seen)
    i, j = np.triu_indices(n)
    scale = np.where(i == j, 0.5, math.sqrt(0.5))
    if chain.convolution is not None:
        basis = np.zeros((i.size, n, n))
        basis[np.arange(i.size), i, j] += scale
        basis[np.arange(i.size), j, i] += scale
        images = inverse.T @ chain.convolution.covariance(basis) @ inverse
        return packed(images).T
    images = inverse[i][:, :, None] * inverse[j][:, None, :]
    images = (images + images.swapaxes(1, 2)) * scale[:, None, None]
    return packed(images).T
