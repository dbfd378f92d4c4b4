"""The figures of *Batch normalization orthogonalizes representations in deep random networks*.

Daneshmand, Joudaki and Bach, arXiv 2106.03970.  The chain is ``H₊ = BN(W H)/√d``, linear with
``norm="batch-uncentred"``, with d the width and n the batch size.  Its orthogonality gap is
``V(H) = ‖HᵀH/‖H‖_F² − I/n‖_F``.

A layer is counted by the weights before it: layer 1 is the first normalized layer, which is layer 0
of `bnmc.simulate`.

All figures start from inputs with one dominant direction.  The law of the chain does not change if
the samples are rotated among each other, so only the spectrum of the input matters.  The authors'
code starts from one large sample and tiny ones; that start has the same law as nearly equal
samples.
"""

# `gaps.py` and `trained_networks.py` have several figures, other files one.  The laws of the gap,
# which other files import, are in `gaps.py`.  Read `cosine.py` first; it is the shortest.

from __future__ import annotations

from bnmc.experiments.orthogonalizes.cosine import fig_1
from bnmc.experiments.orthogonalizes.gaps import fig_2a, fig_2b
from bnmc.experiments.orthogonalizes.gaussian_distance import wasserstein
from bnmc.experiments.orthogonalizes.other_activations import fig_6
from bnmc.experiments.orthogonalizes.trained_networks import fig_3, fig_4, fig_7

__all__ = ["fig_1", "fig_2a", "fig_2b", "fig_3", "fig_4", "fig_6", "fig_7", "wasserstein"]
