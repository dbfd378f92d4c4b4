"""The figures of *Batch normalization provably avoids rank collapse*, on the chain.

Daneshmand, Kohler, Bach, Hofmann and Lucchi, arXiv 2003.01652.  The chain is
``H₊ = BN(H + γ W H)``, `bnmc.Chain.bn_residual`, with W of unit variance; γ = ∞ stands for no skip
connection.  ``M = H Hᵀ / N`` has, up to zeros, d/N times the eigenvalues of the Gram matrix: the
same ones where N = d, as in all figures here but `centring`.  ``r(H) = (Tr M)²/‖M‖_F²`` bounds the
rank from below.

A rank needs a threshold.  Three are in use here: the soft rank counts eigenvalues of M of at least
1/2, the numerical rank those of at least 1e-12 of the largest (so singular values of 1e-6), and r
needs none.  The small eigenvalues fall for ever, exponentially in depth, with batch normalization
as well: a numerical rank goes on falling where r and the soft rank have settled.
"""

from __future__ import annotations

from bnmc.experiments.rank_collapse.centred_or_not import centring
from bnmc.experiments.rank_collapse.collapse import lemma_3
from bnmc.experiments.rank_collapse.over_width import fig_3a, fig_8, fig_9
from bnmc.experiments.rank_collapse.rank_over_depth import fig_2
from bnmc.experiments.rank_collapse.spectrum_over_depth import fig_3b

__all__ = ["centring", "fig_2", "fig_3a", "fig_3b", "fig_8", "fig_9", "lemma_3"]
