"""Figures about infinitely wide networks: *Infinitely wide nets* (Golikov, lectures of 2020).

The claims are those of the lectures and of their sources: Jacot, Gabriel and Hongler (arXiv
1806.07572), Du et al. (arXiv 1810.02054), Arora et al. (arXiv 1901.08584), and Golikov (arXiv
2003.05884 and 2006.06574).  Intervals are at level 0.95.
"""

# One file per measurement; `ensembles.py`, `divergences.py` and `convolutional_kernels.py` are
# shared.  The others do not import from each other.  Read `ntk_convergence` in `over_width.py`
# first.

from __future__ import annotations

from bnmc.experiments.limits.constant_kernels import constant_kernel
from bnmc.experiments.limits.logit_laws import kl
from bnmc.experiments.limits.over_width import exponents, ntk_convergence
from bnmc.experiments.limits.randomized_labels import alignment, complexity
from bnmc.experiments.limits.scaling_plane import plane

__all__ = [
    "alignment",
    "complexity",
    "constant_kernel",
    "exponents",
    "kl",
    "ntk_convergence",
    "plane",
]
