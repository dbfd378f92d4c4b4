"""The papers' inequalities as functions with explicit constants, one module for each paper.

============== ============================================================== ================
bridging       Joudaki, Daneshmand and Bach                                   arXiv 2205.13076
orthogonalizes Daneshmand, Joudaki and Bach                                   arXiv 2106.03970
rank_collapse  Daneshmand, Kohler, Bach, Hofmann and Lucchi                   arXiv 2003.01652
gaussian       Devroye, Mehrabian and Reddad                                  arXiv 1810.08693
limits         Du et al., Song and Yang, Arora et al., as quoted by Golikov   arXiv 1810.02054
============== ============================================================== ================

The name of a function contains the number of its statement. Its docstring has the statement and
lists its errors.

The package may import `chain`, `gram`, `estimate`, `_support` and `errors`. Read `gaussian.py`
first.
"""

from __future__ import annotations

from bnmc.bounds import bridging, gaussian, limits, orthogonalizes, rank_collapse

__all__ = ["bridging", "gaussian", "limits", "orthogonalizes", "rank_collapse"]
