"""The training of random networks against their width, by `bnmc.train`.

Intervals are at level 0.95.  Read `kernel_change` in `over_width.py` first.
"""

from __future__ import annotations

from bnmc.experiments.training_law.flattening import one_step
from bnmc.experiments.training_law.logits import logit_divergences
from bnmc.experiments.training_law.over_width import coordinate_check, kernel_change
from bnmc.experiments.training_law.starts import orthogonal_start
from bnmc.experiments.training_law.vanishing import mean_field_depth

__all__ = [
    "coordinate_check",
    "kernel_change",
    "logit_divergences",
    "mean_field_depth",
    "one_step",
    "orthogonal_start",
]
