"""The law of the rows of two batches, each as batch normalization sees it.

Let K be the covariance of the pre-activations of a batch of n samples.  Batch normalization sees
P h only, with P the projector orthogonal to (1, …, 1).  So rows are described in the eigenvectors
of P K P with positive eigenvalues, and in units in which the trace t of P K P is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.rows import Rows, gaussian_rows

__all__ = ["BatchLaw", "batch_law", "joint_factor", "require_finite_tangents"]


@dataclass(frozen=True)
class BatchLaw:
    """The law of a row of one batch.

    Attributes
    ----------
    rows : Rows
        Eigenvectors and eigenvalues of P K P / t.
    trace : float
        t.
    """

    rows: Rows
    trace: float

    @property
    def size(self) -> int:
        """Number of samples n."""
        return len(self.rows.vectors)

    @property
    def rank(self) -> int:
        """Number of dimensions of the rows as the normalization sees them."""
        return self.rows.rank


def batch_law(chain: Chain, covariance: FloatArray, layer: int, name: str) -> BatchLaw:
    """Return the law of a row of a batch.

    Raises
    ------
    ArgumentError, ZeroVarianceError
        If no row can be normalized, in layer 0 (`name` is the argument) or in a later one.
    """
    rows = gaussian_rows(chain, covariance)
    if not rows.has_variance:
        if layer == 0:
            allowed = 'batches of samples that are not all equal, with norm="batch"'
            raise ArgumentError(name, f"{chain.batch} equal samples", allowed)
        raise ZeroVarianceError(None, layer, 0)
    vectors = rows.vectors
    return BatchLaw(rows, float(np.einsum("ik,ij,jk->", vectors, covariance, vectors)))


def require_finite_tangents(law: BatchLaw, name: str) -> None:
    """Raise if the expectation of 1/variance of a row is infinite.

    With one dimension a normalized row is constant but for its sign, so its derivative is 0.
    """
    if law.rank == 2:
        raise ArgumentError(
            name, "a batch whose differences have 2 dimensions",
            "batches of at least 4 samples whose differences have at least 3 dimensions",
            "the tangent kernel is infinite, since the mean of 1/variance of rows is",
        )  # fmt: skip


def joint_factor(left: BatchLaw, right: BatchLaw, across: FloatArray) -> FloatArray:
    """Return L with L Lᵀ the covariance of the rows of two batches, in their eigenvectors.

    Parameters
    ----------
    left, right : BatchLaw
    across : ndarray of shape (left.size, right.size)
        The covariances between the two batches.

    Returns
    -------
    ndarray of shape (left.rank + right.rank, rank)
        The columns are orthogonal, those of the largest eigenvalue first.  Negative eigenvalues,
        which are errors of the covariances, count as 0.
    """
    one, two = left.rows, right.rows
    block = one.vectors.T @ across @ two.vectors / np.sqrt(left.trace * right.trace)
    joint = np.block([[np.diag(one.values), block], [block.T, np.diag(two.values)]])
    values, vectors = np.linalg.eigh(joint)
    positive = values > len(joint) * np.finfo(np.float64).eps * values[-1]
    factor = vectors[:, positive] * np.sqrt(values[positive])
    return np.ascontiguousarray(factor[:, ::-1])
