"""The covariances of the entries of the stationary Gram matrix that symmetry leaves."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EntryCovariance"]


@dataclass(frozen=True, kw_only=True)
class EntryCovariance:
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

    def between(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """Return the covariance of two entries, each given by its row and column."""
        (i, j), (k, m) = sorted(first), sorted(second)
        if i != j and k == m:
            (i, j), (k, m) = (k, m), (i, j)
        if i == j and k == m:
            return self.ii_ii if i == k else self.ii_jj
        if i == j:
            return self.ii_ij if i in (k, m) else self.ii_jk
        return (self.ij_kl, self.ij_ik, self.ij_ij)[len({i, j} & {k, m})]
