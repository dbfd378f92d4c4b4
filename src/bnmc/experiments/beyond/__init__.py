"""Experiments beyond the papers: stability, rates, sizes, phases, isometry, norms and more.

Intervals are at level 0.95.
"""

# One figure per file; `wide_networks.py` holds the networks of two of them.  Figures do not import
# from each other.  Read `predicted_gap.py` first.

from __future__ import annotations

from bnmc.experiments.beyond.compared_norms import norms
from bnmc.experiments.beyond.convolutions import conv
from bnmc.experiments.beyond.digits_over_depth import digits
from bnmc.experiments.beyond.estimated_rates import rates
from bnmc.experiments.beyond.isometry_over_depth import isometry
from bnmc.experiments.beyond.large_sizes import scale
from bnmc.experiments.beyond.phase_diagram import edge_of_chaos_diagram
from bnmc.experiments.beyond.predicted_gap import gap
from bnmc.experiments.beyond.stability import stability_atlas

__all__ = [
    "conv",
    "digits",
    "edge_of_chaos_diagram",
    "gap",
    "isometry",
    "norms",
    "rates",
    "scale",
    "stability_atlas",
]
