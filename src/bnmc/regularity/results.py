"""The results of ergodic averages: one ensemble, and ensembles of several widths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.regularity.ensembles import (
    Float64Array,
)

#: The quantities that `averages` estimates.
QUANTITIES = ("alpha", "rank_bound", "soft_rank", "squared_norm", "cubes", "squares")


@dataclass(frozen=True)
class Averages:
    """Expectations under the stationary law, for ``M = x xᵀ / n``.

    Attributes
    ----------
    chain : Chain
    layers : tuple of (int, int)
        First and last layer of the average.
    alpha : Estimate
        The regularity constant ``E Tr(diag(M²)²) / E Tr(M³)`` (Fig. 8 of the paper).
    rank_bound : Estimate
        ``E r``, ``r = (Tr M)²/‖M‖_F²`` (`bnmc.gram.rank_bound`).
    soft_rank : Estimate
        The mean number of eigenvalues of M of at least `tau` (`bnmc.gram.soft_rank`).
    squared_norm : Estimate
        ``E‖M‖_F²`` (Fig. 9 of the paper).
    cubes, squares : Estimate
        ``E Tr(M³)`` and ``E Tr(diag(M²)²)``.
    tau : float
        Threshold of the soft rank.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.regularity.averages(bnmc.Chain.bn_linear(8, 8), rng=0)
    >>> print(f"{found.rank_bound:.2f}")
    2.24 ± 0.01
    """

    chain: Chain
    layers: tuple[int, int]
    alpha: Estimate
    rank_bound: Estimate
    soft_rank: Estimate
    squared_norm: Estimate
    cubes: Estimate
    squares: Estimate
    tau: float

    @property
    def scaled_norm(self) -> Estimate:
        """``E‖M‖_F² / d^1.5``, which the paper bounds by ``1/(2√(1−α))`` for small γ."""
        factor = self.chain.width**-1.5
        norm = self.squared_norm
        low, high = norm.ci
        scaled = factor * norm.value, factor * norm.stderr, (factor * low, factor * high)
        return Estimate(*scaled, norm.n, norm.method, norm.level)


@dataclass(frozen=True, eq=False)
class Figures:
    """The quantities of Figures 8 and 9 of the paper against the width.

    Attributes
    ----------
    gamma : float
        Strength γ of the weights; infinite without a skip connection.
    widths : (widths,) ndarray of int
    averages : tuple of Averages
        One for each width.

    Examples
    --------
    >>> import bnmc
    >>> bnmc.regularity.figures([4, 8], rng=0).value("alpha").round(2)
    array([0.95, 0.91])
    """

    gamma: float
    widths: NDArray[np.int64]
    averages: tuple[Averages, ...]

    def value(self, name: str) -> Float64Array:
        """Return the estimates of a quantity, named as in `Averages`: (widths,)."""
        return np.array([estimate.value for estimate in self._of(name)])

    def stderr(self, name: str) -> Float64Array:
        """Return the standard errors of a quantity: (widths,)."""
        return np.array([estimate.stderr for estimate in self._of(name)])

    def _of(self, name: str) -> list[Estimate]:
        known = [*QUANTITIES, "scaled_norm"]
        if name not in known:
            raise ArgumentError("name", name, ", ".join(known))
        return [getattr(one, name) for one in self.averages]
