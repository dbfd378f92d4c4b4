"""The covariance of the stationary Gram matrix, sector by sector of the permutation group.

Let n be the batch size, G* the symmetric fixed point, σ the vector of activations of a normalized
row of w ~ N(0, G*), d the width, J the Jacobian of the mean-field map at G*, and
C = Cov(σσᵀ).  A layer adds noise of covariance C/d, and J carries deviations on, so to leading
order in 1/d the stationary covariance of the Gram matrix is S/d with

    S = J S Jᵀ + C.

Permutations of the samples commute with J, C and S.  The symmetric matrices split into three
sectors.  With e a unit vector orthogonal to 1 = (1, …, 1), and offdiag(·) the matrix without its
diagonal, orthonormal matrices of these are

    trivial   (multiplicity 1):         I/√n,  (11ᵀ − I)/√(n(n−1));
    standard  (multiplicity n−1):       diag(e),  offdiag(e1ᵀ + 1eᵀ)/√(2(n−2));
    pairs     (multiplicity n(n−3)/2):  matrices with zero diagonal and zero row sums.

In each sector, J, C and S are matrices of 2 × 2 (in the last one, 1 × 1) numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from bnmc._support.arguments import integer, items
from bnmc._support.text import Result
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.results import of_batch
from bnmc.mean_field.float64 import FloatArray


@dataclass(frozen=True, kw_only=True)
class EntryCovariance(Result):
    """Covariances of the entries of the stationary Gram matrix G, which symmetry leaves.

    Different letters are different samples. Entries that a batch lacks, for example ``ij_kl`` for
    three samples, are 0.

    Attributes
    ----------
    ii_ii, ii_jj : float
        Variance of a diagonal entry, and covariance of two.
    ii_ij, ii_jk : float
        Covariance of ``G_ii`` with ``G_ij``, and with ``G_jk``.
    ij_ij, ij_ik, ij_kl : float
        Variance of an entry off the diagonal, and covariance of two in one row, and in none.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=1000, batch=5, activation="relu")
    >>> covariance = bnmc.MeanField(chain).fluctuations().covariance(1000)
    >>> covariance.between((0, 1), (1, 0)) == covariance.ij_ij
    True
    """

    ii_ii: float
    ii_jj: float
    ii_ij: float
    ii_jk: float
    ij_ij: float
    ij_ik: float
    ij_kl: float

    @classmethod
    def about(cls, square: float, pair: float, *products: float) -> Self:
        """Return the covariances of entries of the means `square` (of a diagonal one) and `pair`.

        `products` are the means of products of two entries, in the order of the attributes.
        """
        means = [square * square] * 2 + [square * pair] * 2 + [pair * pair] * 3
        triples = zip(fields(cls), products, means, strict=True)
        return cls(**{entry.name: value - mean for entry, value, mean in triples})

    def between(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """Return the covariance of two entries, each given by its row and column.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If an entry is not given by two integers >= 0.
        """
        (i, j), (k, m) = _place("first", first), _place("second", second)
        if i != j and k == m:
            (i, j), (k, m) = (k, m), (i, j)
        if i == j and k == m:
            return self.ii_ii if i == k else self.ii_jj
        if i == j:
            return self.ii_ij if i in (k, m) else self.ii_jk
        return (self.ij_kl, self.ij_ik, self.ij_ij)[len({i, j} & {k, m})]


def _place(name: str, entry: tuple[int, int]) -> tuple[int, int]:
    """Return the row and the column of an entry, the smaller one first."""
    allowed = "a row and a column"
    indices = [integer(name, index, low=0) for index in items(name, entry, allowed)]
    if len(indices) != 2:
        raise ArgumentError(name, entry, allowed)
    return min(indices), max(indices)


@dataclass(frozen=True, kw_only=True)
class Sector(Result):
    """One sector of the symmetric matrices under permutations of the samples.

    Its symmetric matrices consist of k = 1 or 2 copies of one irreducible representation. With an
    orthonormal basis, the first element of each copy corresponds to that of the others:
    ``I/√n`` and ``(11ᵀ − I)/√(n(n−1))`` in sector "trivial"; ``diag(e)`` and
    ``offdiag(e1ᵀ + 1eᵀ)/√(2(n−2))`` in sector "standard", for each e of an orthonormal basis of the
    space orthogonal to 1 = (1, …, 1). In sector "pairs", k is 1. Here n is the batch size. For
    n = 2, k is 1 in sector "standard", since the second matrix is 0.

    Attributes
    ----------
    name : {"trivial", "standard", "pairs"}
    multiplicity : int
        Dimension of the representation: 1, n − 1 and n(n−3)/2.
    noise : (k, k) ndarray
        C: covariance of one layer's Gram matrix given that of the layer before, times the width.
    jacobian : (k, k) ndarray
        J: the Jacobian of the mean-field map at the fixed point.
    variance : (k, k) ndarray
        S: stationary covariance, times the width, to leading order in 1/width.

    Examples
    --------
    >>> import bnmc
    >>> law = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fluctuations()
    >>> [(sector.name, sector.multiplicity) for sector in law.sectors]
    [('trivial', 1), ('standard', 9), ('pairs', 35)]
    """

    name: str
    multiplicity: int
    noise: FloatArray
    jacobian: FloatArray
    variance: FloatArray

    @property
    def eigenvalue(self) -> float:
        """The eigenvalue of `jacobian` of largest modulus."""
        values = np.linalg.eigvals(self.jacobian)
        return float(values[np.argmax(np.abs(values))].real)


def noises(entries: EntryCovariance, batch: int) -> tuple[FloatArray, ...]:
    """Return C in each sector that the batch has, from the covariances of the entries of σσᵀ."""
    n, e = batch, entries
    cross = math.sqrt(n - 1.0) * (2.0 * e.ii_ij + (n - 2.0) * e.ii_jk)
    of_pairs = 2.0 * e.ij_ij + (n - 2.0) * (4.0 * e.ij_ik + (n - 3.0) * e.ij_kl)
    trivial = np.array([[e.ii_ii + (n - 1.0) * e.ii_jj, cross], [cross, of_pairs]])
    diagonal, both = e.ii_ii - e.ii_jj, math.sqrt(2.0 * (n - 2.0)) * (e.ii_ij - e.ii_jk)
    other = 2.0 * (e.ij_ij - e.ij_ik + (n - 3.0) * (e.ij_ik - e.ij_kl))
    standard = np.array([[diagonal, both], [both, other]])
    return of_batch(n, trivial, standard, np.array([[2.0 * (e.ij_ij - 2.0 * e.ij_ik + e.ij_kl)]]))


def stationary(
    noise: EntryCovariance, jacobians: tuple[FloatArray, ...], batch: int
) -> Iterator[Sector]:
    """Yield the sectors, with the solution of S = J S Jᵀ + C; `noise` is C."""
    names = ("trivial", "standard", "pairs")
    sizes = (1, batch - 1, batch * (batch - 3) // 2)
    for name, size, c, j in zip(names, sizes, noises(noise, batch), jacobians, strict=False):
        equations = np.eye(c.size) - np.kron(j, j)
        s = np.linalg.solve(equations, c.ravel()).reshape(c.shape)
        s = 0.5 * (s + s.T)
        yield Sector(name=name, multiplicity=size, noise=c, jacobian=j, variance=s)
