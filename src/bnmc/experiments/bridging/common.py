"""Activations, inputs, bulks of Gram matrices and a law: shared by several figures of the paper."""

from __future__ import annotations

import numpy as np

from bnmc._support.arguments import integer
from bnmc._support.linalg import semidefinite_root
from bnmc.bounds.orthogonalizes import stationary_squared_distance
from bnmc.chain.start import FirstLayer
from bnmc.experiments.kit import Float64Array

#: The activations of the paper's set F.
ACTIVATIONS = ("relu", "tanh", "sigmoid", "sin", "selu", "celu")


def bulk(matrices: Float64Array) -> Float64Array:
    """Return the part of Gram matrices orthogonal to the ones, shape (..., n - 1, n - 1).

    It is in an orthonormal basis of the complement of the ones.
    """
    from scipy.linalg import helmert

    basis = helmert(matrices.shape[-1])
    part: Float64Array = basis @ matrices @ basis.T
    return part


def paired_samples(batch: int) -> Float64Array:
    """Return the covariance of pairs of samples with correlation 0.99, shape (batch, batch)."""
    covariance = np.eye(batch)
    for first in range(0, batch - 1, 2):
        covariance[first, first + 1] = covariance[first + 1, first] = 0.99
    return covariance


def first_layer_of_covariance(covariance: Float64Array) -> FirstLayer:
    """Return inputs for which the rows of W x, x the inputs, are N(0, covariance).

    Each network draws its own rows.
    """
    return FirstLayer(semidefinite_root(covariance) * np.sqrt(len(covariance)))


def stationary_linear(width: int, batch: int) -> float:
    r"""Mean square of :math:`\|G - G_*\|_F` in deep linear layers with batch normalization.

    :math:`n^2 (m-1)(m+2)^2 / (4 m (m+1) d)` with d the width, n the batch size and m = n − 1, to
    leading order in 1/d (`bnmc.bounds.orthogonalizes.stationary_squared_distance`).  One layer
    adds the mean square :math:`n^2 (m-1)/(m d)`; the sum over all former layers divides it by
    1 − λ², with λ = m/(m+2).

    Parameters
    ----------
    width, batch : int
        d >= 1 and n >= 2.

    Returns
    -------
    float

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an integer.

    Examples
    --------
    >>> from bnmc.experiments.bridging import stationary_linear
    >>> round(stationary_linear(1000, 10), 4)
    0.2689
    """
    width, batch = integer("width", width, low=1), integer("batch", batch, low=2)
    return float(stationary_squared_distance(width, batch))
