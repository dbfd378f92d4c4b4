"""Experiments beyond the papers: stability, rates, sizes, phases, isometry, norms and more.

Intervals are at level 0.95.
"""

# One file per measurement, some with two figures.  Files do not import from each other, but from
# `implicit_blocks.py`, the blocks of a transformer.  Read `gap` in `distances.py` first.

from __future__ import annotations

from bnmc.experiments.beyond.as_deep_as_wide import depth_over_width
from bnmc.experiments.beyond.attention_over_width import gpt_sizes
from bnmc.experiments.beyond.compared_norms import norms
from bnmc.experiments.beyond.convolutions import conv
from bnmc.experiments.beyond.digits_over_depth import digits
from bnmc.experiments.beyond.distances import gap, scale
from bnmc.experiments.beyond.growing_widths import wider_than_memory
from bnmc.experiments.beyond.mixing_rates import rates, stability_atlas
from bnmc.experiments.beyond.without_batch_norm import edge_of_chaos_diagram, isometry

__all__ = [
    "conv",
    "depth_over_width",
    "digits",
    "edge_of_chaos_diagram",
    "gap",
    "gpt_sizes",
    "isometry",
    "norms",
    "rates",
    "scale",
    "stability_atlas",
    "wider_than_memory",
]
