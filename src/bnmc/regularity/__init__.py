"""The regularity constant and the one-step laws of the rank-collapse paper.

Daneshmand, Kohler, Bach, Hofmann and Lucchi (arXiv 2003.01652) show that batch normalization keeps
the rank of a linear network of width d at the order of √d.  Their bound rests on the regularity
constant of the stationary law (Definition 3),

    ``α = E Tr(diag(M²)²) / E Tr(M³)``,    ``M = x xᵀ / n``  (d × d, unit diagonal),

for representations x of shape (d, n).  They estimate α by ergodic averages (Fig. 8), and
``E‖M‖_F²`` (Fig. 9).  `constant` estimates α, `averages` all quantities of the two figures, and
`figures` these quantities for several widths; all with standard errors.  The law of one layer is
`bnmc.bounds.rank_collapse.lemma_7` for small γ and `one_step_second_moment` for γ = ∞, where γ is
the strength of the weights in x + γ W x.

How the averages are taken
--------------------------
An ensemble of independent chains starts from Gaussian samples.  It goes through `burn_in` layers,
and then through about as many layers again, and measures some of these.  Each chain gives one
average of each quantity.  Chains are independent, so the standard errors of averages over chains
hold for any autocorrelation within a chain.  The standard error of α uses the delta method.

The drift is the difference between the second and the first half of the measured layers, per chain.
It shows the influence of the start.  If the drift exceeds both a third of the target and three of
its standard errors, or if a standard error exceeds the target, then all layers so far become the
burn-in, and the ensemble goes through as many layers again.

Linear chains with Gaussian weights and no skip connection (γ = ∞) have their own kernels, which use
the non-zero spectrum of M alone.  A chain of width d keeps about √(2d) directions; all others
shrink to zero exponentially fast.  The chain starts with 3√d + 8 directions, or with all if these
are fewer.  A direction is dropped if it is below 1e-20 of the trace in all of 32 chains.  An
estimate is returned only after at least one direction was dropped in every chain, so the number of
directions at the start has no influence.

Small directions that are kept can grow again.  A float64 Gram matrix of a fixed basis loses a
direction at 1e-14 of the trace.  At d = 8 one chain in twenty would then lose its fourth direction
within 30 000 layers, and would have r = 2.15 and α = .920 from then on, instead of 2.245 and .912.
Stationary laws of lower rank exist besides that of full-rank inputs; the estimates are those of
full-rank inputs.

The package may import `simulation`, `bounds` and lower levels.  Read `ergodic.py` first.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.regularity.ergodic import Averages as Averages
from bnmc.regularity.ergodic import Figures as Figures
from bnmc.regularity.ergodic import averages, constant, figures, one_step_second_moment

__all__ = [
    "averages",
    "constant",
    "figures",
    "one_step_second_moment",
]

make_public(__name__)
