"""Activations, inputs and the bulk of Gram matrices: shared by several figures of the paper."""

from __future__ import annotations

import numpy as np

from bnmc._support.linalg import semidefinite_root
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
