"""Gradients of random networks: how their norms and directions change with depth.

The networks are those of `bnmc.backpropagate`.  Intervals are at level 0.95.
"""

# `norms_over_depth.py` has two figures.  Files do not import from each other.  Read
# `directions_over_depth.py` first.

from __future__ import annotations

from bnmc.experiments.gradients.directions_over_depth import directions
from bnmc.experiments.gradients.norms_over_depth import explosion, orthogonal

__all__ = ["directions", "explosion", "orthogonal"]
