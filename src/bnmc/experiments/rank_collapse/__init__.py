"""The figures of *Batch normalization provably avoids rank collapse*, on the chain.

Daneshmand, Kohler, Bach, Hofmann and Lucchi, arXiv 2003.01652.  The chain is
``H₊ = BN(H + γ W H)`` (`bnmc.Chain.bn_residual`), with entries of W of variance 1; γ = ∞ means no
skip connection.  H has width d and batch size N.  Up to zeros, the eigenvalues of ``M = H Hᵀ / N``
are d/N times those of the Gram matrix.  They are equal if N = d, as in all figures except
`centring`.  ``r(H) = (Tr M)²/‖M‖_F²`` is a lower bound of the rank.

A rank depends on its threshold.  The figures use three ranks: the soft rank counts eigenvalues of M
of at least 1/2; the numerical rank counts those of at least 1e-12 of the largest (singular values
of at least 1e-6 of the largest); r needs no threshold.  Also with batch normalization, the small
eigenvalues fall exponentially with depth, without end.  So the numerical rank keeps falling with
depth after r and the soft rank have converged.
"""

# One file per measurement, with several figures.  Files do not import from each other.  Read
# `fig_3b` in `spectrum_over_depth.py` first; it is the shortest.

from __future__ import annotations

from bnmc.experiments.rank_collapse.ensembles import fig_3a, fig_8, fig_9
from bnmc.experiments.rank_collapse.rank_and_accuracy import fig_1
from bnmc.experiments.rank_collapse.rank_over_depth import centring, fig_2
from bnmc.experiments.rank_collapse.spectrum_over_depth import fig_3b, lemma_3
from bnmc.experiments.rank_collapse.trained_networks import fig_4, fig_5, fig_6, fig_10

__all__ = [
    "centring",
    "fig_1",
    "fig_2",
    "fig_3a",
    "fig_3b",
    "fig_4",
    "fig_5",
    "fig_6",
    "fig_8",
    "fig_9",
    "fig_10",
    "lemma_3",
]
