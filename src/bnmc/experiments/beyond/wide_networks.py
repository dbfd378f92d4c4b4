"""Ensembles of wide networks with a norm over the features, or none, and biases, in NumPy.

Given its inputs a, (width, n), the rows of the next pre-activations are i.i.d. normal with
covariance σ_w² aᵀa/width + σ_b², so no weights are drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.linalg import semidefinite_root
from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation

_Array = NDArray[np.float64]


class Network(NamedTuple):
    """A network without skip connection.

    Attributes
    ----------
    activation : Activation
    width : int
    weight_variance, bias_variance : float
    normalizes : bool
        Whether layer normalization is used.
    norm_is_last : bool
        Whether it acts after the activation.
    """

    activation: Activation
    width: int
    weight_variance: float = 1.0
    bias_variance: float = 0.0
    normalizes: bool = False
    norm_is_last: bool = False

    def branch(self, h: _Array) -> _Array:
        """Return what the weights multiply."""
        if not self.normalizes:
            return np.asarray(self.activation(h))
        if self.norm_is_last:
            return _normalized(np.asarray(self.activation(h)))
        return np.asarray(self.activation(_normalized(h)))


class _Runs(NamedTuple):
    """Gram matrices divided by the width, (networks, depth + 1, n, n).

    `preactivations` are those of h_l, `representations` those of the inputs of the weights.
    """

    preactivations: _Array
    representations: _Array


def ensemble(
    network: Network,
    start: _Array,
    depth: int,
    count: int,
    generator: np.random.Generator,
    *,
    progress: Progress | None = None,
) -> _Runs:
    """Return the Gram matrices of `count` networks.

    Parameters
    ----------
    network : Network
    start : (n, n) ndarray
        Gram matrix of h_0, positive definite.  Each network draws other rows with exactly this
        Gram matrix.
    depth, count : int
    generator : numpy.random.Generator
    progress : callable, optional
        Called with (done, total).
    """
    n, width = len(start), network.width
    shape = (count, depth + 1, n, n)
    grams = _Runs(np.empty(shape), np.empty(shape))
    root = np.linalg.cholesky(start).T
    for k in range(count):
        if progress is not None:
            progress(k, count)
        basis, _ = np.linalg.qr(generator.standard_normal((width, n)))
        h = np.sqrt(width) * basis @ root
        for layer in range(depth + 1):
            a = network.branch(h)
            gram = a.T @ a / width
            grams.preactivations[k, layer] = h.T @ h / width
            grams.representations[k, layer] = gram
            if layer < depth:
                covariance = network.weight_variance * gram + network.bias_variance
                h = generator.standard_normal((width, n)) @ semidefinite_root(covariance)
    return grams


def _normalized(h: _Array) -> _Array:
    """Normalize each column."""
    centred = h - h.mean(axis=0)
    return np.asarray(centred / np.sqrt(np.mean(centred**2, axis=0)))
