"""Gradients of random networks: how their norms and directions change with depth.

The networks are those of `bnmc.backpropagate`.  Intervals are at level 0.95.
"""

# Read `directions` in `over_depth.py` first.

from __future__ import annotations

from bnmc.experiments.gradients.over_depth import directions, explosion, orthogonal

__all__ = ["directions", "explosion", "orthogonal"]
