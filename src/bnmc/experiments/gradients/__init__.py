"""Gradients of random networks over depth, and spectra of Jacobians and of the Fisher matrix.

The networks are those of `bnmc.backpropagate`.  Intervals are at level 0.95.
"""

# Read `directions` in `over_depth.py` first.

from __future__ import annotations

from bnmc.experiments.gradients.linearization import fisher, isometry_spectrum
from bnmc.experiments.gradients.over_depth import directions, explosion, orthogonal

__all__ = ["directions", "explosion", "fisher", "isometry_spectrum", "orthogonal"]
