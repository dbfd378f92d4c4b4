"""Norms over the features after the activation, at infinite width.

The rows of h = gain W a + b are i.i.d. N(0, K).  So over infinitely many features, σ(h_i) of sample
i has the mean μ_i = E σ(√K_ii z), z ~ N(0, 1).  Let m be μ if the norm subtracts means, else 0.
With V = E[σσᵀ] for σ = σ(w), w ~ N(0, K), the Gram matrix of N(σ(h)) is

    F(G)_ij = (V_ij − m_i m_j) / √((V_ii − m_i² + eps) (V_jj − m_j² + eps)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.mean_field.correlation.gaussian_moments import gaussian_function, moments
from bnmc.mean_field.float64 import FloatArray

# A part of E σ² below this is rounding: the norm would divide by it.
_NO_VARIANCE = 1e-13


class SampleMoments(NamedTuple):
    """Moments of the features of the samples of σ(h).

    Attributes
    ----------
    means : ndarray of shape (batch,)
        m: what the norm subtracts.
    variances : ndarray of shape (batch,)
        E σ² − m².
    error : float
        Largest relative error of the expectations.
    """

    means: FloatArray
    variances: FloatArray
    error: float


def sample_moments(chain: Chain, gram: FloatArray) -> SampleMoments:
    """Return the moments, given the Gram matrix G of the layer before."""
    function, worst = gaussian_function(chain.activation), 0.0
    zero = float(np.asarray(chain.activation(np.zeros(1)))[0])
    # Samples of equal variance have equal moments.
    known = {0.0: (zero, zero**2)}
    found = np.zeros((2, len(gram)))
    covariance = np.diagonal(chain.covariance(gram))
    for i, variance in enumerate((chain.gain**2 * covariance).tolist()):
        if variance not in known:
            at = moments(function, variance)
            known[variance] = at.mean, at.square
            worst = max(worst, at.error)
        found[:, i] = known[variance]
    means = found[0] if chain.normalization.centred else np.zeros(len(gram))
    return SampleMoments(means, found[1] - means**2, worst)


def normalized_gram(
    chain: Chain, products: FloatArray, means: FloatArray, layer: int
) -> FloatArray:
    """Return F(G) of a layer from V and m.

    Raises
    ------
    ArgumentError
        If σ is constant on the samples, so that they have no variance: at the first layer.
    ZeroVarianceError
        The same at a later layer.
    """
    second = products - np.outer(means, means)
    lengths = np.diagonal(second).copy()
    flat = ~(lengths > _NO_VARIANCE * np.diagonal(products))
    if chain.eps == 0.0 and flat.any():
        if layer > 1:
            raise ZeroVarianceError(None, layer, None, int(flat.argmax()))
        allowed = f'a function that is not constant, since norm="{chain.norm}" follows it'
        raise ArgumentError("activation", chain.activation.name, allowed)
    spread = np.sqrt(np.maximum(lengths, 0.0) + chain.eps)
    found: FloatArray = second / (spread[:, None] * spread)
    np.fill_diagonal(found, lengths / (lengths + chain.eps))
    return found
