"""Experiments beyond the papers: stability of the fixed point, rates of mixing, and large sizes.

Intervals are at level 0.95.
"""

# One figure per file.  Figures do not import from each other.  Read `estimated_rates.py` first.

from __future__ import annotations

from bnmc.experiments.beyond.estimated_rates import rates
from bnmc.experiments.beyond.large_sizes import scale
from bnmc.experiments.beyond.stability import stability_atlas

__all__ = ["rates", "scale", "stability_atlas"]
