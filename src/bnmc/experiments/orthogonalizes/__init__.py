"""The figures of *Batch normalization orthogonalizes representations in deep random networks*.

Daneshmand, Joudaki and Bach, arXiv 2106.03970.  The chain is ``H₊ = BN(W H)/√d``, linear and
uncentred, `bnmc.Chain.bn_linear`; its orthogonality gap is ``V(H) = ‖HᵀH/‖H‖_F² − I/n‖_F``.

Layers are counted by the weights that the input went through: layer 1 is the first normalized one,
layer 0 of `bnmc.simulate`.

All figures start from inputs that one direction dominates.  The chain does not see how the samples
are rotated among each other, so that only the spectrum of the input matters: one large sample
beside tiny ones, as the authors' code has it, is the same start as nearly equal samples.
"""

from __future__ import annotations

from bnmc.experiments.orthogonalizes.activations import fig_6
from bnmc.experiments.orthogonalizes.cosine import fig_1
from bnmc.experiments.orthogonalizes.gap import fig_2a, fig_2b
from bnmc.experiments.orthogonalizes.gaussian_distance import wasserstein

__all__ = ["fig_1", "fig_2a", "fig_2b", "fig_6", "wasserstein"]
