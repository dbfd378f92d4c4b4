"""The papers' inequalities as functions, every constant explicit: one file a paper.

`bridging` is Joudaki, Daneshmand and Bach (arXiv 2205.13076), `orthogonalizes` Daneshmand, Joudaki
and Bach (arXiv 2106.03970), `rank_collapse` Daneshmand, Kohler, Bach, Hofmann and Lucchi (arXiv
2003.01652), `gaussian` Devroye, Mehrabian and Reddad (arXiv 1810.08693). Functions carry the number
of the statement they are; docstrings quote it, and say where the print misleads.
"""

from __future__ import annotations

from bnmc.bounds import bridging, gaussian, orthogonalizes, rank_collapse

__all__ = ["bridging", "gaussian", "orthogonalizes", "rank_collapse"]
