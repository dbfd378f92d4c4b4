"""The eigenvalues of a kernel, and its relation to labels: `alignment` and `complexity`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import finite_array
from bnmc._support.linalg import require_regular, rounding_unit
from bnmc.errors import ArgumentError
from bnmc.mean_field.float64 import FloatArray

__all__ = ["Alignment", "alignment", "complexity", "eigensystem", "labels_of"]


class Alignment(NamedTuple):
    """The eigenvalues of a kernel and the labels in its eigenbasis.

    Attributes
    ----------
    eigenvalues : (samples,) ndarray of float64
        λ_i, descending.
    squares : (samples,) or (samples, outputs) ndarray of float64
        ``(yᵀv_i)²``, with v_i the unit eigenvectors. They sum to ``|y|²``. If eigenvalues are
        equal, only the sum of their squares is determined.

    Examples
    --------
    >>> from bnmc.infinite_width import alignment
    >>> found = alignment([[2.0, 0.0], [0.0, 1.0]], [3.0, 4.0])
    >>> float(found.squares[0] / found.squares.sum())
    0.36
    """

    eigenvalues: FloatArray
    squares: FloatArray


def alignment(kernel: ArrayLike, y: ArrayLike) -> Alignment:
    """Squared projections of labels onto the eigenvectors of a kernel.

    Parameters
    ----------
    kernel : (samples, samples) array_like
        G, symmetric and positive semidefinite, as `ntk` returns it.
    y : (samples,) or (samples, outputs) array_like
        Labels, real numbers.

    Returns
    -------
    Alignment

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `kernel` is not such a matrix, or the shapes do not match.

    Notes
    -----
    Under gradient flow with squared loss and initial outputs 0, `descent` has
    ``|ŷ_t − y|² = Σ_i (yᵀv_i)² exp(−2 η λ_i t / n)``. The component of the labels along v_i is
    learned at a rate proportional to λ_i (Arora et al., arXiv 1901.08584, Theorem 4.1).

    Examples
    --------
    >>> from bnmc.infinite_width import alignment
    >>> found = alignment([[2.0, 0.0], [0.0, 1.0]], [3.0, 4.0])
    >>> found.eigenvalues, found.squares
    (array([2., 1.]), array([ 9., 16.]))
    """
    values, vectors = eigensystem("kernel", kernel)
    labels = labels_of("y", y, values.size)
    return Alignment(values[::-1].copy(), ((vectors.T @ labels) ** 2)[::-1].copy())


def complexity(kernel: ArrayLike, y: ArrayLike) -> float:
    """Complexity of labels with respect to a kernel, √(2 yᵀG⁻¹y / n).

    Parameters
    ----------
    kernel : (samples, samples) array_like
        G, symmetric and positive definite, as `ntk` returns it; n is the number of samples.
    y : (samples,) array_like
        Labels, real numbers.

    Returns
    -------
    float
        The leading term of the bound of the generalization error of a wide network with one hidden
        layer (Arora et al., arXiv 1901.08584, Theorem 5.1).

    Raises
    ------
    SingularGramError
        If `kernel` is singular to rounding.
    ArgumentError, ArgumentTypeError
        If `kernel` is not such a matrix, or the shapes do not match.

    Examples
    --------
    >>> from bnmc.infinite_width import complexity
    >>> complexity([[2.0, 0.0], [0.0, 1.0]], [2.0, 1.0])
    1.7320508075688772
    """
    values, vectors = eigensystem("kernel", kernel)
    given = finite_array("kernel", kernel, shape=("samples", "samples"))
    labels = finite_array("y", y, shape=(values.size,)).astype(np.float64)
    require_regular("kernel", values, rounding_unit(given))
    return float(np.sqrt(2.0 * np.mean((vectors.T @ labels) ** 2 / values)))


def eigensystem(name: str, kernel: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues, ascending, and eigenvectors, in columns, of a kernel.

    Eigenvalues that are negative by rounding are returned as 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the argument `name` is not one symmetric, positive semidefinite matrix. The tolerance for
        negative eigenvalues is the root of the rounding unit, since tangent kernels of nearly equal
        inputs are no more accurate (see `ntk`).
    """
    given = finite_array(name, kernel, shape=("samples", "samples"))
    matrix = given.astype(np.float64)
    difference = np.abs(matrix - matrix.T).max()
    tolerance = np.sqrt(rounding_unit(given))
    if difference > tolerance * np.abs(matrix).max():
        raise ArgumentError(name, f"an asymmetry of {difference:.3g}", "a symmetric matrix")
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    if values[0] < -tolerance * np.abs(values[-1]):
        raise ArgumentError(name, float(values[0]), "no negative eigenvalue")
    return np.maximum(values, 0.0), vectors


def labels_of(name: str, y: ArrayLike, samples: int) -> FloatArray:
    """Return labels as float64, of shape (samples,) or (samples, outputs)."""
    given = finite_array(name, y, shape=(...,))
    if given.ndim not in (1, 2) or given.shape[0] != samples or given.size == 0:
        allowed = f"an array of shape ({samples},) or ({samples}, outputs)"
        raise ArgumentError(name, given.shape, allowed)
    return given.astype(np.float64)
