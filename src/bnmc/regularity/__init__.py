"""The regularity constant and the one-step laws of the rank-collapse paper.

Daneshmand, Kohler, Bach, Hofmann and Lucchi (arXiv 2003.01652) show that batch normalization keeps
the rank of a linear network of width d at the order of √d.  Their bound rests on the regularity
constant of the invariant law (Definition 3),

    ``α = E Tr(diag(M²)²) / E Tr(M³)``,    ``M = x xᵀ / n``  (d × d, unit diagonal),

which they estimate by ergodic averages (Fig. 8), beside ``E‖M‖_F²`` (Fig. 9).  `constant` estimates
α, `averages` everything the two figures show, and `figures` for a range of widths; all with
standard errors.  `one_step_change` and `one_step_second_moment` are the laws of one layer, for
small γ and for γ = ∞.

How the averages are taken
--------------------------
An ensemble of independent chains starts from Gaussian samples.  It goes through `burn_in` layers,
and then through about as many again, of which every few are measured.  Each chain gives one average
of each quantity, and chains are independent: so the standard errors, of the averages over chains,
hold whatever the autocorrelation within a chain.  That of α is the delta method's.  What is left of
the start shows as a drift, the difference of the second and the first half of the measured layers,
chain by chain.  Where the drift is more than a third of the target and not within three of its
standard errors, or a standard error exceeds the target, all layers so far become the burn-in and
the ensemble goes on, through as many layers again.

Linear chains with Gaussian weights and no skip connection (γ = ∞) have kernels of their own, which
work on the non-zero spectrum of M alone.  A chain of width d keeps about √(2d) directions: all
others shrink to zero, exponentially fast.  It is started with 3√d + 8 of them (or all there are, if
that is less), and an estimate counts only when one has died in every chain, so that the number at
the start plays no role.  Directions are left out when they are below 1e-20 of the trace in all of
32 chains.  Those that stay come back from there, but not from 1e-14 of the trace in a float64 Gram
matrix of a fixed basis: so at d = 8 one chain in twenty loses its fourth direction for good within
30 000 layers, and has r = 2.15 and α = .920 from there on, in place of 2.245 and .912.  (So there
are invariant laws of lower rank beside that of full-rank inputs, which is meant here.)
"""

from __future__ import annotations

from bnmc.bounds.rank_collapse import lemma_7 as one_step_change
from bnmc.regularity.ergodic import (
    Averages,
    Figures,
    averages,
    constant,
    figures,
)
from bnmc.regularity.laws import one_step_second_moment

__all__ = [
    "Averages",
    "Figures",
    "averages",
    "constant",
    "figures",
    "one_step_change",
    "one_step_second_moment",
]
